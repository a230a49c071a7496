//! `config.json` with typed access; a setting may have several names, and parts of multimodal models nest.

use std::path::Path;

use serde_json::Value;

use crate::ConvertError;

/// Most bytes of a JSON file that describes a model; vocabularies of a million tokens are far below.
const MOST_JSON: u64 = 1 << 29;

/// Reads a JSON file of bounded length; the parser bounds the depth.
pub(crate) fn read_json(path: &Path) -> Result<Value, ConvertError> {
    let bytes = read(path, MOST_JSON)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| ConvertError::Json { path: path.to_owned(), reason: error.to_string() })
}

/// Reads a regular file of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>, ConvertError> {
    let io = |source| ConvertError::Io { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(io(std::io::Error::other("is no regular file")));
    }
    if metadata.len() > most {
        return Err(ConvertError::TooLong { path: path.to_owned(), found: metadata.len(), most });
    }
    std::fs::read(path).map_err(io)
}

/// The settings of a model.
#[derive(Clone, Debug)]
pub struct Config {
    root: Value,
    /// Where the settings of the text model are, if they have a place of their own.
    text: Option<&'static str>,
}

/// Names under which multimodal models keep the settings of their text model.
const TEXT: &[&str] = &["text_config", "llm_config", "language_config", "thinker_config"];

impl Config {
    /// Takes the contents of a `config.json`.
    pub fn new(root: Value) -> Self {
        let text = TEXT.iter().copied().find(|name| root.get(name).is_some_and(Value::is_object));
        Self { root, text }
    }

    /// Model classes, most specific first: those of the whole model, then those of its text model.
    pub fn classes(&self) -> Vec<&str> {
        fn of(value: &Value) -> Option<&Vec<Value>> {
            value.get("architectures")?.as_array()
        }
        let whole = of(&self.root).into_iter().flatten();
        let text = self.text.and_then(|name| self.root.get(name)).and_then(of).into_iter().flatten();
        whole.chain(text).filter_map(Value::as_str).collect()
    }

    /// The value of the first of these names that is there and not null. A name may be a path with dots.
    pub fn get(&self, names: &[&str]) -> Option<&Value> {
        let places = self.text.and_then(|name| self.root.get(name)).into_iter().chain([&self.root]);
        for place in places {
            for name in names {
                let mut value = Some(place);
                for part in name.split('.') {
                    value = value.and_then(|value| value.get(part));
                }
                if let Some(value) = value.filter(|value| !value.is_null()) {
                    return Some(value);
                }
            }
        }
        None
    }

    fn wrong(names: &[&str], value: &Value, expected: &'static str) -> ConvertError {
        let found: String = value.to_string().chars().take(80).collect();
        ConvertError::KeyValue { key: names.first().copied().unwrap_or("").to_owned(), found, expected }
    }

    fn missing(names: &[&str]) -> ConvertError {
        ConvertError::MissingKey { key: names.join(" or ") }
    }

    /// A whole number from 0, if it is there; floats without a fraction count.
    pub fn optional_u32(&self, names: &[&str]) -> Result<Option<u32>, ConvertError> {
        let Some(value) = self.get(names) else { return Ok(None) };
        whole(value).map(Some).ok_or_else(|| Self::wrong(names, value, "a whole number from 0"))
    }

    /// A whole number from 0.
    pub fn u32(&self, names: &[&str]) -> Result<u32, ConvertError> {
        self.optional_u32(names)?.ok_or_else(|| Self::missing(names))
    }

    /// A number, if it is there.
    pub fn optional_f32(&self, names: &[&str]) -> Result<Option<f32>, ConvertError> {
        let Some(value) = self.get(names) else { return Ok(None) };
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| Self::wrong(names, value, "a number"))
    }

    /// A number.
    pub fn f32(&self, names: &[&str]) -> Result<f32, ConvertError> {
        self.optional_f32(names)?.ok_or_else(|| Self::missing(names))
    }

    /// A flag, or `default`.
    pub fn bool_or(&self, names: &[&str], default: bool) -> bool {
        self.get(names).and_then(Value::as_bool).unwrap_or(default)
    }

    /// A text, if it is there.
    pub fn text(&self, names: &[&str]) -> Option<&str> {
        self.get(names).and_then(Value::as_str)
    }

    /// A list of whole numbers, if it is there and one.
    pub fn u32_list(&self, names: &[&str]) -> Option<Vec<u32>> {
        self.get(names)?.as_array()?.iter().map(whole).collect()
    }

    /// A list of numbers, if it is there and one.
    pub fn f32_list(&self, names: &[&str]) -> Option<Vec<f32>> {
        self.get(names)?.as_array()?.iter().map(|value| value.as_f64().map(|number| number as f32)).collect()
    }

    /// A list of texts, if it is there and one.
    pub fn text_list(&self, names: &[&str]) -> Option<Vec<&str>> {
        self.get(names)?.as_array()?.iter().map(Value::as_str).collect()
    }

    /// The settings of one of several kinds of layers, under `rope_parameters`, if they are kept by kind.
    pub fn rope_of(&self, kind: &str, name: &str) -> Option<f32> {
        let path = format!("rope_parameters.{kind}.{name}");
        self.get(&[&path])?.as_f64().map(|number| number as f32)
    }
}

fn whole(value: &Value) -> Option<u32> {
    if let Some(number) = value.as_u64() {
        return u32::try_from(number).ok();
    }
    let number = value.as_f64()?;
    (number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)).then_some(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::new(serde_json::from_str(text).expect("the sample is JSON"))
    }

    #[test]
    fn settings_of_the_text_model_come_first() {
        let found = config(
            r#"{"architectures": ["A"], "hidden_size": 1, "x": 4.0,
            "text_config": {"architectures": ["B"], "hidden_size": 2, "rope": {"theta": 0.5}, "n": null}}"#,
        );
        assert_eq!(found.classes(), ["A", "B"]);
        assert_eq!(found.u32(&["n_embd", "hidden_size"]).unwrap(), 2);
        assert_eq!(found.u32(&["x"]).unwrap(), 4);
        assert_eq!(found.optional_f32(&["rope.theta"]).unwrap(), Some(0.5));
        assert_eq!(found.optional_u32(&["n"]).unwrap(), None);
    }

    #[test]
    fn wrong_values_name_their_key() {
        let found = config(r#"{"a": -1, "b": 1.5, "c": "x", "d": 1e99, "e": 5000000000}"#);
        for key in ["a", "b", "c", "d", "e"] {
            let error = found.u32(&[key]).unwrap_err();
            assert!(error.to_string().starts_with(&format!("config.json: {key} is ")), "{error}");
        }
        assert!(found.f32(&["c"]).is_err() && found.f32(&["d"]).is_err());
        assert!(matches!(found.u32(&["z", "y"]), Err(ConvertError::MissingKey { key }) if key == "z or y"));
    }
}
