//! Reading members of a JSON body: absent and `null` are the same, everything else has its type and range or is
//! an error that names the field.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{ApiError, ApiResult};

/// The members of a request.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fields(pub Map<String, Value>);

impl Fields {
    /// Parses a body. Nesting is limited by the parser, invalid UTF-8 is refused.
    pub fn parse(body: &[u8]) -> ApiResult<Self> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(members)) => Ok(Self(members)),
            Ok(other) => Err(ApiError::invalid(format!("the body is {}, expected an object", kind(&other)))),
            Err(error) => Err(ApiError::invalid(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// The first of these members that is there.
    pub fn get(&self, names: &[&str]) -> Option<(&str, &Value)> {
        let mut found = names.iter().filter_map(|name| self.0.get_key_value(*name));
        found.find(|(_, value)| !value.is_null()).map(|(name, value)| (name.as_str(), value))
    }

    /// A whole number in a range.
    pub fn integer(&self, names: &[&str], range: RangeInclusive<i64>) -> ApiResult<Option<i64>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        let whole = value.as_i64().or_else(|| {
            let float = value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15);
            float.map(|float| float as i64)
        });
        match whole {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ if value.is_number() => Err(ApiError::invalid(format!(
                "field '{name}': value must be a whole number between {} and {}, got {value}",
                range.start(),
                range.end()
            ))),
            _ => Err(wrong(name, value, "a whole number")),
        }
    }

    /// A finite number, moved into a range if it lies outside.
    pub fn clamped(&self, names: &[&str], range: RangeInclusive<f32>) -> ApiResult<Option<f32>> {
        Ok(self.number(names)?.map(|number| number.clamp(*range.start(), *range.end())))
    }

    /// A number that is finite as single precision.
    pub fn number(&self, names: &[&str]) -> ApiResult<Option<f32>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        let Some(number) = value.as_f64() else { return Err(wrong(name, value, "a number")) };
        match number as f32 {
            number if number.is_finite() => Ok(Some(number)),
            _ => Err(ApiError::invalid(format!("field '{name}': {value} is too large"))),
        }
    }

    /// True or false.
    pub fn boolean(&self, names: &[&str]) -> ApiResult<Option<bool>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(name, value, "true or false"))
    }

    /// A text.
    pub fn text(&self, names: &[&str]) -> ApiResult<Option<&str>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| wrong(name, value, "a string"))
    }

    /// A text or a list of texts.
    pub fn texts(&self, names: &[&str]) -> ApiResult<Option<Vec<String>>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        let expected = "a string or a list of strings";
        match value {
            Value::String(text) => Ok(Some(vec![text.clone()])),
            Value::Array(items) => {
                let text = |(index, item): (usize, &Value)| {
                    let text = item.as_str().map(str::to_owned);
                    text.ok_or_else(|| wrong(&format!("{name}[{index}]"), item, "a string"))
                };
                items.iter().enumerate().map(text).collect::<ApiResult<_>>().map(Some)
            }
            _ => Err(wrong(name, value, expected)),
        }
    }

    /// A list.
    pub fn list(&self, names: &[&str]) -> ApiResult<Option<&Vec<Value>>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        value.as_array().map(Some).ok_or_else(|| wrong(name, value, "a list"))
    }

    /// An object.
    pub fn object(&self, names: &[&str]) -> ApiResult<Option<&Map<String, Value>>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| wrong(name, value, "an object"))
    }
}

/// The error for a member of the wrong type.
pub fn wrong(name: &str, value: &Value, expected: &str) -> ApiError {
    ApiError::invalid(format!("field '{name}': expected {expected}, got {}", kind(value)))
}

/// The error for a member that has to be there.
pub fn missing(name: &str) -> ApiError {
    ApiError::invalid(format!("field '{name}' is missing"))
}

/// What a value is, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn numbers_have_types_and_ranges() {
        let all = fields(r#"{"a":3,"b":4.0,"c":1e300,"d":"5","e":null,"f":-9223372036854775808,"g":2.5}"#);
        let read = |name: &str| all.integer(&[name], -1..=10);
        assert_eq!(read("a"), Ok(Some(3)));
        assert_eq!(read("b"), Ok(Some(4)));
        assert_eq!(read("e"), Ok(None));
        assert_eq!(read("absent"), Ok(None));
        for name in ["c", "d", "f", "g"] {
            let message = read(name).unwrap_err().message;
            assert!(message.contains(&format!("'{name}'")), "{message}");
        }
        assert!(all.number(&["c"]).is_err());
        assert_eq!(all.clamped(&["f"], 0.0..=1.0), Ok(Some(0.0)));
        assert_eq!(all.integer(&["absent", "e", "a"], 0..=5), Ok(Some(3)));
    }

    #[test]
    fn lists_of_texts_name_what_is_none() {
        let all = fields(r#"{"a":"x","b":["x","y"],"c":["x",null],"d":5}"#);
        let read = |name: &str| all.texts(&[name]).map_err(|error| error.message);
        assert_eq!(read("a"), Ok(Some(vec!["x".into()])));
        assert_eq!(read("b"), Ok(Some(vec!["x".into(), "y".into()])));
        assert_eq!(read("c"), Err("field 'c[1]': expected a string, got null".into()));
        assert_eq!(read("d"), Err("field 'd': expected a string or a list of strings, got a number".into()));
    }

    #[test]
    fn bodies_that_are_no_objects() {
        let deep = "[".repeat(100_000);
        for body in ["", "[]", "3", "{", "nul", deep.as_str(), "{\"a\":\"\u{1}\"}"] {
            assert!(Fields::parse(body.as_bytes()).is_err());
        }
        assert!(Fields::parse(b"{\"a\":\"\xff\"}").is_err());
    }
}
