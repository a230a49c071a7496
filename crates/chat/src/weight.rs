//! What a value is worth when all of it is written out.
//!
//! A list that holds another one twice, again and again, takes little to make and no time at all to write down: sixty steps
//! make more than any memory holds; and a list of one long text, many times, needs no more than its places. The template
//! engine charges for each step, but not for what is within. So whatever makes values of values, texts or keys pays here
//! for all that they hold: before a source is compiled ([`crate::rewrite`]), literals with variables in them, keys and the operands
//! of `~` become arguments of functions, and filters that make texts come after one that charges. Nothing is then larger
//! than what a render may cost. A namespace, which could come to hold itself, may not be a part of anything.

use minijinja::value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};

use crate::rewrite::{JOINED, PLAIN, WEIGHED};

/// Key by which namespaces are known.
const MARK: &str = "\0namespace";
/// Bytes of text that one step pays for.
const BYTES: usize = 64;
/// Bytes of text that can be looked through in one step.
const SCANNED: usize = 1 << 10;
/// Items that can be looked at in one step.
const ITEMS: usize = 16;

/// Makes the functions known, and the filters that nest pay.
pub(crate) fn register(environment: &mut Environment<'static>) {
    environment.add_function(WEIGHED, weighed);
    environment.add_filter(WEIGHED, weighed_container);
    environment.add_function(PLAIN, plain);
    environment.add_function(JOINED, joined);
    environment.add_function("namespace", namespace);
    environment.add_function("dict", dict);
    environment.add_filter("batch", batch);
    environment.add_filter("slice", slice);
    environment.add_filter("groupby", groupby);
    environment.add_filter("zip", zip);
    environment.add_filter("replace", replace);
    environment.add_test("lower", is_lower);
    environment.add_test("upper", is_upper);
}

/// Pays for a method of this value, which may look through all of it. What it returns is paid for by the engine.
pub(crate) fn method(state: &State, value: &Value, arguments: &[Value]) -> Result<(), Error> {
    let size = match value.as_str() {
        Some(text) => text.len() / SCANNED,
        None => value.len().unwrap_or(0) / ITEMS,
    };
    state.consume_fuel(size as u64)?;
    arguments.iter().try_for_each(|argument| weighed(state, argument.clone()).map(drop))
}

/// Pays for a value from which a text is made, if it is not one.
pub(crate) fn weighed_container(state: &State, value: Value) -> Result<Value, Error> {
    if value.as_str().is_some() { Ok(value) } else { weighed(state, value) }
}

/// What `~` gives.
fn joined(state: &State, parts: Rest<Value>) -> Result<Value, Error> {
    let mut text = String::new();
    let mut safe = true;
    for part in parts.iter() {
        safe &= part.is_safe();
        let before = text.len();
        match part.as_str() {
            Some(part) => text.push_str(part),
            None => text.push_str(&weighed(state, part.clone())?.to_string()),
        }
        state.consume_fuel(((text.len() - before) / BYTES) as u64)?;
    }
    Ok(if safe { Value::from_safe_string(text) } else { Value::from(text) })
}

fn replace(state: &State, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments: Vec<Value> = arguments.0.into_iter().map(ValueOrKwargs::into_value).collect();
    let (value, from, to, count, more): (Value, Value, Value, Option<i64>, Kwargs) = from_args(&arguments)?;
    let count = match count {
        Some(count) => Some(count),
        None => more.get::<Option<i64>>("count")?,
    };
    more.assert_all_used()?;
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    for argument in [&value, &from, &to] {
        weighed_container(state, argument.clone())?;
    }
    let [value, from, to] =
        [StringInput::new(state, &value)?, StringInput::new(state, &from)?, StringInput::new(state, &to)?];
    let (value, from, to) = (value.as_str(), from.as_str(), to.as_str());
    let grown = value.matches(from).take(count).count().saturating_mul(to.len());
    state.consume_fuel(((value.len() + grown) / BYTES) as u64)?;
    Ok(Value::from(value.replacen(from, to, count)))
}

fn is_lower(state: &State, value: Value) -> Result<bool, Error> {
    weighed(state, value).map(|value| tests::is_lower(&value))
}

fn is_upper(state: &State, value: Value) -> Result<bool, Error> {
    weighed(state, value).map(|value| tests::is_upper(&value))
}

fn plain(value: Value) -> Result<Value, Error> {
    if is_namespace(&value) { Err(nested()) } else { Ok(value) }
}

fn dict(state: &State, value: Option<Value>, more: Kwargs) -> Result<Value, Error> {
    weighed(state, functions::dict(value, more)?)
}

fn batch(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    if fill.is_some() {
        state.consume_fuel(count as u64)?;
    }
    weighed(state, filters::batch(state, value, count, fill)?)
}

fn slice(state: &State, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    state.consume_fuel(count as u64)?;
    weighed(state, filters::slice(state, value, count, fill)?)
}

fn groupby(state: &State, value: Value, attribute: Option<String>, more: Kwargs) -> Result<Value, Error> {
    weighed(state, filters::groupby(value, attribute.as_deref(), more)?)
}

fn zip(state: &State, value: Value, others: Rest<Value>) -> Result<Value, Error> {
    weighed(state, filters::zip(state, value, others)?)
}

fn nested() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a namespace cannot be a part of another value")
}

/// A namespace that is known as one.
fn namespace(defaults: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let mut pairs = vec![(Value::from(MARK), Value::from(true))];
    if let Some(defaults) = defaults.map(ValueOrKwargs::into_value) {
        if defaults.kind() != ValueKind::Map {
            return functions::namespace(Some(defaults.into()));
        }
        for key in defaults.try_iter()? {
            let value = defaults.get_item(&key)?;
            if is_namespace(&value) {
                return Err(nested());
            }
            pairs.push((key, value));
        }
    }
    functions::namespace(Some(Value::from_pairs(pairs).into()))
}

fn is_namespace(value: &Value) -> bool {
    value.kind() == ValueKind::Map && value.get_attr(MARK).is_ok_and(|mark| mark.is_true())
}

/// The same value, paid for.
fn weighed(state: &State, value: Value) -> Result<Value, Error> {
    let mut parts = vec![value.clone()];
    while let Some(part) = parts.pop() {
        state.consume_fuel(1 + part.as_str().map_or(0, |text| text.len() / BYTES) as u64)?;
        match part.kind() {
            ValueKind::Map if is_namespace(&part) => return Err(nested()),
            ValueKind::Map => {
                for key in part.try_iter()? {
                    state.consume_fuel(1)?;
                    parts.push(part.get_item(&key)?);
                    parts.push(key);
                }
            }
            ValueKind::Seq | ValueKind::Iterable if part.len().is_some() => {
                for item in part.try_iter()? {
                    state.consume_fuel(1)?;
                    parts.push(item);
                }
            }
            _ => {}
        }
    }
    Ok(value)
}
