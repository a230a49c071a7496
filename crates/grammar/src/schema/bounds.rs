//! Numbers in schemas, as far as llguidance enforces them exactly. It reads them in double precision, makes whole numbers of
//! 64 bits of them, and calls itself without end for the smallest of these.

use serde_json::{Map, Number, Value};

use super::{refused, within};
use crate::GrammarError;

/// From here on doubles leave whole numbers out.
const EXACT: f64 = (1u64 << 53) as f64;
/// From here on they are no whole numbers of 64 bits.
const LARGEST: f64 = (1u64 << 63) as f64;
/// The whole number of 64 bits that is the largest double among them, less its sign the smallest. What is beyond is not told
/// apart from it.
const NEAR: i64 = i64::MAX - 1023;
/// From here on a bound without one on the other side has more digits than the library can count with.
const ALONE: f64 = 1e18;
/// Largest step without its factors 2 and 5: the library tells as many remainders apart, in a tenth of a second.
const MOST_REMAINDERS: u128 = 10_000;
/// Decimal places of a bound: groups within each other of the pattern that it becomes.
const MOST_PLACES: usize = 100;

/// Checks the bounds of a schema's numbers, and moves those that stand for the limits of 64 bits to what can be enforced.
pub(super) fn check(members: &mut Map<String, Value>, pointer: &str) -> Result<(), GrammarError> {
    let whole = members.get("type").is_some_and(|kind| kind == "integer");
    let has = |names: [&str; 2]| names.iter().any(|name| members.get(*name).is_some_and(Value::is_number));
    let (low, high) = (has(["minimum", "exclusiveMinimum"]), has(["maximum", "exclusiveMaximum"]));
    for (name, exclusive, below, other) in
        [("minimum", "exclusiveMinimum", true, high), ("maximum", "exclusiveMaximum", false, low)]
    {
        // In the fourth draft it says how the other is meant.
        let strict = members.get(exclusive) == Some(&Value::Bool(true));
        for (name, strict) in [(name, strict), (exclusive, true)] {
            let Some(value) = members.get(name).filter(|value| value.is_number()).cloned() else { continue };
            let wrong = |problem: &str| Err(refused(&within(pointer, name), format!("{value} {problem}")));
            match (value.as_i64(), below, strict) {
                (Some(i64::MIN), true, false) => drop(members.insert(name.into(), (-NEAR).into())),
                // The library takes it for the largest of 64 bits, where that is what it makes.
                (Some(i64::MAX), false, false) if whole => {}
                (Some(i64::MAX), false, false) => drop(members.insert(name.into(), NEAR.into())),
                _ if !is_exact(&value)
                    || (strict && value.as_f64().is_none_or(|value| value.abs() >= EXACT)) =>
                {
                    return wrong(
                        "is too large to be enforced exactly; up to 9007199254740991 (2^53 - 1) every bound is",
                    );
                }
                _ => {
                    let number = value.as_f64().unwrap_or(0.0);
                    let toward_zero = if below { number } else { -number };
                    if toward_zero >= ALONE && !other {
                        return wrong("is too large to be enforced without a bound on the other side");
                    }
                    let places = number.to_string().split('.').nth(1).map_or(0, str::len);
                    if places > MOST_PLACES {
                        return wrong("has too many decimal places to be enforced");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whether a number is what the library makes of it.
fn is_exact(value: &Value) -> bool {
    let Some(double) = value.as_f64().filter(|double| double.abs() < LARGEST) else { return false };
    match value.as_number().and_then(Number::as_i128) {
        Some(whole) => double as i128 == whole,
        None => true,
    }
}

/// Checks that every number in a value can be demanded exactly.
pub(super) fn check_values(value: &Value, place: &str) -> Result<(), GrammarError> {
    match find(value, &|part| part.is_number() && !is_exact(part)) {
        None => Ok(()),
        Some(number) => Err(refused(
            place,
            format!(
                "{number} cannot be demanded exactly; whole numbers up to 9007199254740991 (2^53 - 1) can"
            ),
        )),
    }
}

/// The steps (`multipleOf`) of a schema that may hold beside each other.
#[derive(Debug, Default)]
pub(super) struct Steps(Vec<(u128, u32)>);

impl Steps {
    /// Checks that a step can be enforced; if it is `joined`, beside the others that are, too.
    pub(super) fn check(&mut self, value: &Value, place: &str, joined: bool) -> Result<(), GrammarError> {
        let Some(mut step) = value.as_f64().filter(|step| *step > 0.0) else {
            return Err(refused(place, "expected a number above 0"));
        };
        // As the library finds the digits.
        let mut places = 0;
        while step.fract() != 0.0 {
            step *= 10.0;
            places += 1;
        }
        // It counts in 32 bits.
        if step > f64::from(u32::MAX) || remainders(step as u128) > MOST_REMAINDERS {
            return Err(refused(
                place,
                format!("{value} has more digits than a step can have to be enforced"),
            ));
        }
        if !joined {
            return Ok(());
        }
        let digits = (step as u128, places);
        if !self.0.contains(&digits) {
            self.0.push(digits);
        }
        let most = self.0.iter().map(|(_, places)| *places).max().unwrap_or(0);
        let mut common = 1u128;
        for (step, places) in &self.0 {
            let step = step.saturating_mul(10u128.saturating_pow(most - places));
            let product = common.saturating_mul(step);
            let next = product / greatest_divisor(common, step).max(1);
            if product > u128::from(u32::MAX) || remainders(next) > MOST_REMAINDERS {
                return Err(refused(
                    place,
                    format!("{value} cannot be enforced beside the schema's other steps"),
                ));
            }
            common = next;
        }
        Ok(())
    }
}

/// A step without its factors 2 and 5: of these the last digits tell.
fn remainders(mut step: u128) -> u128 {
    for factor in [2, 5] {
        while step > 0 && step.is_multiple_of(factor) {
            step /= factor;
        }
    }
    step
}

fn greatest_divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// Whether the library survives the numbers in a schema that it gets as it is, and in time.
pub(crate) fn is_safe(schema: &Value) -> bool {
    let is_bad = |part: &Value| match part.get("multipleOf") {
        Some(step) => Steps::default().check(step, "#", false).is_err(),
        None => part.is_number() && part.as_f64().is_none_or(|double| double.abs() >= LARGEST),
    };
    find(schema, &is_bad).is_none()
}

/// A number or an object in a value for which `wanted` holds.
fn find<'a>(value: &'a Value, wanted: &dyn Fn(&Value) -> bool) -> Option<&'a Value> {
    let mut work = vec![value];
    while let Some(value) = work.pop() {
        match value {
            Value::Number(_) | Value::Object(_) if wanted(value) => return Some(value),
            Value::Array(items) => work.extend(items),
            Value::Object(members) => work.extend(members.values()),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_that_are_not_themselves() {
        for exact in
            [json!(0), json!(-1.5), json!(9007199254740992_i64), json!(-9223372036854774784_i64), json!(1e18)]
        {
            assert!(is_exact(&exact), "{exact}");
        }
        for other in
            [json!(9007199254740993_i64), json!(i64::MIN), json!(i64::MAX), json!(u64::MAX), json!(1e30)]
        {
            assert!(!is_exact(&other), "{other}");
        }
        assert!(is_safe(&json!({"const": [1, {"a": i64::MAX - 1024}]})));
        assert!(!is_safe(&json!({"const": [1, {"a": i64::MIN}]})) && !is_safe(&json!({"maximum": -1e30})));
        assert!(is_safe(&json!({"items": {"multipleOf": 86_400}})));
        assert!(!is_safe(&json!({"items": {"multipleOf": 99_991}})));
    }
}
