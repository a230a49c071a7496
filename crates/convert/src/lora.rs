//! Adapters of the PEFT library (`adapter_config.json`, `adapter_model.safetensors`) as GGUF.

use std::borrow::Cow;
use std::path::Path;

use puna_gguf::{Metadata, TensorSpec};

use crate::architectures;
use crate::config::{Config, read_json};
use crate::model::Model;
use crate::rules::{How, Name};
use crate::{ConvertError, Recipe, Source};

/// An adapter ready to be written.
#[derive(Debug)]
pub struct LoraConversion {
    /// All keys.
    pub metadata: Metadata,
    source: Source,
    tensors: Vec<(String, Recipe)>,
}

impl LoraConversion {
    /// Reads the adapter in a folder; `base` is the folder of the model that it was trained for, of which only
    /// `config.json` is needed.
    pub fn open(folder: &Path, base: &Path) -> Result<Self, ConvertError> {
        let wrong = |reason: String| ConvertError::Adapter { reason };
        let settings = Config::new(read_json(&folder.join("adapter_config.json"))?);
        match settings.text(&["peft_type"]) {
            Some("LORA") | None => {}
            Some(other) => return Err(wrong(format!("adapters of type {other:?} are not known"))),
        }
        if settings.bool_or(&["use_dora"], false) {
            return Err(wrong("it has magnitudes (DoRA), which adapter files cannot have".into()));
        }
        let rank = settings.u32(&["r"])?.max(1) as f32;
        let mut alpha = settings.f32(&["lora_alpha"])?;
        if settings.bool_or(&["use_rslora"], false) {
            // Readers divide by the rank, these adapters by its root.
            alpha *= rank.sqrt();
        }
        let path = base.join("config.json");
        if !path.is_file() {
            return Err(ConvertError::NoConfig { path: base.to_owned() });
        }
        let config = Config::new(read_json(&path)?);
        let architecture = architectures::find(&config)?;
        let source = Source::from_files(&[folder.join("adapter_model.safetensors")])?;
        let tensors = tensors(&Model { config: &config, source: &source, architecture })?;
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", architecture.name);
        metadata.set("general.type", "adapter");
        if let Some(name) = folder.canonicalize().unwrap_or_default().file_name() {
            metadata.set("general.name", name.to_string_lossy().into_owned());
        }
        metadata.set("adapter.type", "lora");
        metadata.set("adapter.lora.alpha", alpha);
        Ok(Self { metadata, source, tensors })
    }

    /// Names and recipes of all tensors, in the order of the file.
    pub fn tensors(&self) -> &[(String, Recipe)] {
        &self.tensors
    }

    /// Tensors as a file lists them in their own formats.
    pub fn specs(&self) -> Vec<TensorSpec> {
        let spec = |(name, recipe): &(String, Recipe)| TensorSpec {
            name: name.clone(),
            dtype: recipe.dtype,
            shape: recipe.shape.clone(),
        };
        self.tensors.iter().map(spec).collect()
    }

    /// The bytes of a tensor, in its own format.
    pub fn data(&self, recipe: &Recipe) -> Result<Cow<'_, [u8]>, ConvertError> {
        recipe.evaluate(&self.source)
    }
}

/// The two factors in names of the library, and their endings in files.
const FACTORS: &[(&str, &str)] = &[("lora_A", "lora_a"), ("lora_B", "lora_b")];

fn tensors(model: &Model<'_>) -> Result<Vec<(String, Recipe)>, ConvertError> {
    let mut tensors = Vec::new();
    for name in model.source.names() {
        let unknown = || ConvertError::UnknownTensor {
            name: name.clone(),
            shape: model.source.entry(name).map(|entry| entry.shape.clone()).unwrap_or_default(),
            architecture: model.architecture.name,
        };
        let short = name.strip_prefix("base_model.model.").unwrap_or(name);
        let found = FACTORS.iter().find_map(|(factor, ending)| {
            let (stem, rest) = short.split_once(&format!(".{factor}."))?;
            (rest == "weight" || rest == "default.weight").then_some((stem, *ending))
        });
        let (stem, ending) = found.ok_or_else(unknown)?;
        let parsed = Name::parse(&format!("{stem}.weight"));
        let (rule, suffix) = parsed.rule(model.architecture.rules).ok_or_else(unknown)?;
        let recipe = Recipe::source(model.source, name)?;
        if recipe.shape.len() != 2 {
            return Err(unknown());
        }
        // The second factor has the rows of the weight, the first its columns.
        let recipe = match rule.how {
            How::Copy | How::Transposed => recipe,
            How::Rows(function) if ending == "lora_b" => function(model, recipe)?,
            How::Rows(_) => recipe,
            How::Skip | How::Map(_) | How::Split(_) => {
                let reason = format!(
                    "{name:?} belongs to a weight that is changed in a way that adapters cannot follow"
                );
                return Err(ConvertError::Adapter { reason });
            }
        };
        tensors.push((format!("{}.{ending}", parsed.target(rule.to, suffix)), recipe));
    }
    tensors.sort_by(|(first, _), (second, _)| first.cmp(second));
    Ok(tensors)
}
