//! The builder's access to keys of the architecture.

use super::{Builder, MOST_LAYERS, MOST_WIDTH, ModelError, Result};

impl Builder<'_> {
    /// Full name of an architecture key.
    pub fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// A required count between 1 and `most`.
    pub fn count(&self, key: &str, most: u32) -> Result<u32> {
        let value = self.metadata.u32(&self.key(key))?;
        self.check_count(key, value, most)
    }

    /// A number of layers, or that of [`Builder::layers`] if the key is absent.
    pub fn layers_or(&self, key: &str) -> Result<u32> {
        let value = self.metadata.u32_or(&self.key(key), self.layers)?;
        self.check_count(key, value, MOST_LAYERS)
    }

    /// A count between 1 and the widest tensor axis, or `default` if the key is absent.
    pub fn width_or(&self, key: &str, default: u32) -> Result<u32> {
        let value = self.metadata.u32_or(&self.key(key), default)?;
        self.check_count(key, value, MOST_WIDTH)
    }

    fn check_count(&self, key: &str, value: u32, most: u32) -> Result<u32> {
        if (1..=most).contains(&value) {
            return Ok(value);
        }
        let rule = match most {
            MOST_LAYERS => "between 1 and 512",
            MOST_WIDTH => "between 1 and 16777216",
            _ => "at least 1",
        };
        Err(self.value_error(key, value, rule))
    }

    /// The error of a key that is not there.
    pub fn missing_key(&self, key: &str) -> ModelError {
        ModelError::MissingKey { key: self.key(key), architecture: self.architecture.to_string() }
    }

    /// The error of a key whose value, or default where it is absent, breaks a rule.
    pub fn value_error(&self, key: &str, value: impl std::fmt::Display, rule: &'static str) -> ModelError {
        let (is_there, key, value) = (self.has_key(key), self.key(key), value.to_string());
        match is_there {
            true => ModelError::Value { key, value, rule },
            false => ModelError::Default { key, value, rule },
        }
    }

    /// An optional number.
    pub fn optional_u32(&self, key: &str) -> Result<Option<u32>> {
        Ok(self.metadata.optional_u32(&self.key(key))?)
    }

    /// A number, or `default` if the key is absent.
    pub fn u32_or(&self, key: &str, default: u32) -> Result<u32> {
        Ok(self.metadata.u32_or(&self.key(key), default)?)
    }

    /// A flag, or `default` if the key is absent.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.metadata.bool_or(&self.key(key), default)?)
    }

    /// A text, or `default` if the key is absent.
    pub fn str_or(&self, key: &str, default: &'static str) -> Result<&str> {
        Ok(self.metadata.str_or(&self.key(key), default)?)
    }

    /// A finite number, or `default` if the key is absent.
    pub fn f32_or(&self, key: &str, default: f32) -> Result<f32> {
        let value = self.metadata.f32_or(&self.key(key), default)?;
        if value.is_finite() { Ok(value) } else { Err(self.value_error(key, value, "finite")) }
    }

    /// A finite number that is not zero; zero and absence mean "not applied".
    pub fn applied_f32(&self, key: &str) -> Result<Option<f32>> {
        Ok(Some(self.f32_or(key, 0.0)?).filter(|value| *value != 0.0))
    }

    /// A required positive number.
    pub fn positive_f32(&self, key: &str) -> Result<f32> {
        let value = self.metadata.f32(&self.key(key))?;
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.value_error(key, value, "positive"))
        }
    }

    /// The current layer's element of a key that is a number for all layers or an array of one per layer.
    pub fn layer_u32(&self, key: &str) -> Result<Option<u32>> {
        let values = self.metadata.u32_per_layer(&self.key(key), self.stack as usize)?;
        Ok(values.and_then(|values| values.get(self.layer.unwrap_or(0) as usize).copied()))
    }

    /// Largest number of query heads of any layer, `None` if the key is absent.
    pub fn any_heads(&self) -> Result<Option<u32>> {
        let key = self.key("attention.head_count");
        let heads = self.metadata.u32_per_layer(&key, self.stack as usize)?;
        Ok(heads.and_then(|heads| heads.into_iter().max()))
    }

    /// Largest number of query heads of any layer, of which one must have some.
    pub fn most_heads(&self) -> Result<u32> {
        const KEY: &str = "attention.head_count";
        match self.any_heads()?.ok_or_else(|| self.missing_key(KEY))? {
            0 => Err(self.value_error(KEY, 0, "above 0 in some layer")),
            heads => Ok(heads),
        }
    }

    /// Width of the current layer's feed-forward network.
    pub fn hidden_width(&self) -> Result<u32> {
        const KEY: &str = "feed_forward_length";
        let hidden = self.layer_u32(KEY)?.ok_or_else(|| self.missing_key(KEY))?;
        match (1..=1 << 28).contains(&hidden) {
            true => Ok(hidden),
            false => Err(self.value_error(KEY, hidden, "between 1 and 2^28")),
        }
    }

    /// Whether the file has a key of the architecture.
    pub fn has_key(&self, key: &str) -> bool {
        self.metadata.contains(&self.key(key))
    }

    /// The current layer's element of a key that is a number for all layers or an array of one per layer; 0 if
    /// the key is absent.
    pub fn layer_f32(&self, key: &str) -> Result<f32> {
        let full = self.key(key);
        let values = self.metadata.f32_per_layer(&full, self.stack as usize)?;
        let value = values.and_then(|values| values.get(self.layer() as usize).copied()).unwrap_or(0.0);
        if value.is_finite() { Ok(value) } else { Err(self.value_error(key, value, "finite")) }
    }

    /// The current layer's element of a key without the architecture's prefix that is an array of one per layer.
    pub fn global_layer_f32(&self, key: &str) -> Result<f32> {
        let values = self.metadata.f32_per_layer(key, self.stack as usize)?;
        let value = values.and_then(|values| values.get(self.layer() as usize).copied());
        let value = value.map_or_else(|| self.metadata.f32(key), Ok)?;
        match value.is_finite() {
            true => Ok(value),
            false => Err(ModelError::Value { key: key.into(), value: value.to_string(), rule: "finite" }),
        }
    }

    /// Bound of dense networks and shared experts (`swiglu_clamp_shexp`), by default that of experts.
    pub fn shared_bound(&self) -> Result<f32> {
        const KEY: &str = "swiglu_clamp_shexp";
        self.layer_f32(if self.has_key(KEY) { KEY } else { "swiglu_clamp_exp" })
    }

    /// A key that is an array of one flag per layer, if the file has it.
    pub fn layer_flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        Ok(self.metadata.bool_per_layer(&self.key(key), self.stack as usize)?)
    }

    /// A required array of numbers of layers.
    pub fn layer_list(&self, key: &str) -> Result<Vec<u32>> {
        let layers = self.metadata.u32_array(&self.key(key))?;
        match layers.iter().find(|layer| **layer >= self.stack) {
            Some(layer) => Err(self.value_error(key, layer, "numbers of layers")),
            None => Ok(layers),
        }
    }

    /// Whether a key is an array.
    pub fn is_array(&self, key: &str) -> bool {
        matches!(self.metadata.get(&self.key(key)), Some(puna_gguf::Value::Array(_)))
    }

    /// A required array of `length` integers, as 64 bits each.
    pub fn u64_array(&self, key: &str, length: usize) -> Result<Vec<u64>> {
        let key = self.key(key);
        let values = match self.metadata.required(&key)? {
            // Factors are bit patterns and may look negative.
            puna_gguf::Value::Array(puna_gguf::Array::I64(values)) => {
                values.iter().map(|value| *value as u64).collect()
            }
            _ => self.metadata.u64_array(&key)?,
        };
        match values.len() == length {
            true => Ok(values),
            false => Err(puna_gguf::Error::ArrayLength { key, found: values.len(), expected: length }.into()),
        }
    }

    /// Elements of an array of texts or numbers, 0 if the key is absent.
    pub fn array_length(&self, key: &str) -> Result<u32> {
        let key = self.key(key);
        match self.metadata.get(&key) {
            None => Ok(0),
            Some(puna_gguf::Value::Array(array)) => Ok(u32::try_from(array.len()).unwrap_or(u32::MAX)),
            Some(_) => self.metadata.string_array(&key).map(|_| 0).map_err(Into::into),
        }
    }

    /// Reads the numbers `attention.indexer.NAME` of a sparse selection of positions, and which layers make it. It is not made:
    /// attention sees all positions.
    pub fn indexer_keys(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.metadata.u32(&self.key(&format!("attention.indexer.{name}")))?;
        }
        self.layer_u32("attention.indexer.types").map(|_| ())
    }

    /// Reads numbers that say what the tensors say, too, or concern what is not computed here: a file that lacks one is not
    /// whole.
    pub fn require_numbers(&self, keys: &[&str]) -> Result<()> {
        keys.iter().try_for_each(|key| self.metadata.u32(&self.key(key)).map(|_| ()).map_err(Into::into))
    }

    /// Refuses a file without one of these keys, which are read with a default that is another architecture's.
    pub fn require_keys(&self, keys: &[&str]) -> Result<()> {
        keys.iter().find(|key| !self.has_key(key)).map_or(Ok(()), |key| Err(self.missing_key(key)))
    }
}
