//! Adapters of the PEFT library (`adapter_config.json`, `adapter_model.safetensors`) as GGUF.

use std::borrow::Cow;
use std::path::Path;

use puna_gguf::{Metadata, TensorSpec};
use regex_automata::meta::Regex;
use serde_json::Value;

use crate::architectures;
use crate::config::{Config, read_json};
use crate::conversion::{self, Options};
use crate::model::Model;
use crate::rules::{How, Name};
use crate::{ConvertError, Recipe, Source};

const SETTINGS: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

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
    /// `config.json` is needed. If the model's weights are there, too, the adapter has to fit them.
    pub fn open(folder: &Path, base: &Path) -> Result<Self, ConvertError> {
        let settings = Settings::read(&folder.join(SETTINGS))?;
        let path = base.join("config.json");
        if !path.is_file() {
            return Err(ConvertError::NoConfig { path: base.to_owned() });
        }
        let mut json = read_json(&path)?;
        let architecture = architectures::find(&Config::new(json.clone()))?;
        conversion::add_defaults(&mut json, architecture);
        let config = Config::new(json);
        let source = Source::from_files(&[folder.join(WEIGHTS)])?;
        let tensors =
            tensors(&Model { config: &config, source: &source, architecture, ahead: 0 }, &settings)?;
        check_base(base, &config, architecture, &tensors)?;
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", architecture.name);
        metadata.set("general.type", "adapter");
        if let Some(name) = folder.canonicalize().unwrap_or_default().file_name() {
            metadata.set("general.name", name.to_string_lossy().into_owned());
        }
        metadata.set("adapter.type", "lora");
        metadata.set("adapter.lora.alpha", settings.file_alpha() as f32);
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

/// What `adapter_config.json` says about the factors.
struct Settings {
    rank: u32,
    alpha: f64,
    /// Whether alpha is divided by the root of the rank.
    rooted: bool,
    ranks: Patterns,
    alphas: Patterns,
}

/// Settings of single modules: a pattern for the end of the name, and the number.
type Patterns = Vec<(Regex, f64)>;

impl Settings {
    fn read(path: &Path) -> Result<Self, ConvertError> {
        let config = Config::new(read_json(path)?);
        refuse_others(&config)?;
        let rank = config.u32(&["r"]).map_err(of_settings)?;
        let rooted = config.bool_or(&["use_rslora"], false);
        let alpha = f64::from(config.f32(&["lora_alpha"]).map_err(of_settings)?);
        // To readers an alpha of 0 is none.
        if alpha == 0.0 || rank == 0 {
            return Err(wrong(SETTINGS, "lora_alpha or r is 0, so it changes nothing"));
        }
        let (ranks, alphas) = (patterns(&config, "rank_pattern")?, patterns(&config, "alpha_pattern")?);
        Ok(Self { rank, alpha, rooted, ranks, alphas })
    }

    /// The number of the first pattern that fits the end of a module's name.
    fn of(patterns: &Patterns, module: &str) -> Option<f64> {
        patterns.iter().find(|(pattern, _)| pattern.is_match(module)).map(|(_, number)| *number)
    }

    /// Refuses a first factor whose rows are not the rank that the settings give the module.
    fn check_rank(&self, module: &str, rows: u64) -> Result<(), ConvertError> {
        let given = Self::of(&self.ranks, module);
        let (key, rank) = given.map_or(("r", f64::from(self.rank)), |rank| ("rank_pattern", rank));
        if rank == rows as f64 {
            return Ok(());
        }
        Err(wrong(
            SETTINGS,
            format!("{key} gives {module:?} the rank {rank}, but its lora_A has {rows} rows"),
        ))
    }

    /// The alpha of a module of this rank for readers, which divide it by the rank.
    fn divided(&self, alpha: f64, rank: u64) -> f64 {
        if self.rooted { alpha * (rank as f64).sqrt() } else { alpha }
    }

    /// `adapter.lora.alpha`, the one number for all modules.
    fn file_alpha(&self) -> f64 {
        self.divided(self.alpha, u64::from(self.rank))
    }

    /// What the second factor of a module is multiplied by, because its alpha or rank is another one.
    fn factor(&self, module: &str, rank: u64) -> f32 {
        let alpha = Self::of(&self.alphas, module).unwrap_or(self.alpha);
        (self.divided(alpha, rank) / self.file_alpha()) as f32
    }
}

fn wrong(file: &'static str, reason: impl Into<String>) -> ConvertError {
    ConvertError::Adapter { file, reason: reason.into() }
}

/// The error of a setting that is not one of `config.json`.
fn of_settings(error: ConvertError) -> ConvertError {
    match error {
        ConvertError::MissingKey { key } => wrong(SETTINGS, format!("{key} is missing")),
        ConvertError::KeyValue { key, found, expected } => {
            wrong(SETTINGS, format!("{key} is {found}, expected {expected}"))
        }
        other => other,
    }
}

/// Refuses what the settings say besides that the file could not have. `fan_in_fan_out` only says how the library merges:
/// the factors are the same.
fn refuse_others(config: &Config) -> Result<(), ConvertError> {
    match config.text(&["peft_type"]) {
        Some("LORA") | None => {}
        Some(other) => {
            return Err(wrong(SETTINGS, format!("peft_type is {other:?}, only \"LORA\" is known")));
        }
    }
    if config.bool_or(&["use_dora"], false) {
        return Err(wrong(SETTINGS, "use_dora is true: adapter files cannot have magnitudes"));
    }
    for (key, reason) in [
        ("bias", "adapter files cannot have trained biases"),
        ("lora_bias", "adapter files cannot have biases"),
        ("modules_to_save", "adapter files cannot have whole modules"),
        ("trainable_token_indices", "adapter files cannot have rows of tokens"),
        ("layer_replication", "the model's layers cannot be repeated"),
        ("alora_invocation_tokens", "adapters that count only after certain tokens are not built yet"),
    ] {
        let Some(found) = config.get(&[key]) else { continue };
        let nothing = match found {
            Value::Bool(flag) => !flag,
            Value::String(text) => text == "none",
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if !nothing {
            let found: String = found.to_string().chars().take(80).collect();
            return Err(wrong(SETTINGS, format!("{key} is {found}: {reason}")));
        }
    }
    // These begin by changing the model's own weights.
    if let Some(found) = config.text(&["init_lora_weights"])
        && ["pissa", "olora", "corda"].iter().any(|kind| found.to_lowercase().starts_with(kind))
    {
        let reason = "the adapter belongs to other weights than the model's; save it converted to LoRA";
        return Err(wrong(SETTINGS, format!("init_lora_weights is {found:?}: {reason}")));
    }
    Ok(())
}

/// Numbers by patterns, each of which stands for whole parts at the end of a module's name.
fn patterns(config: &Config, key: &str) -> Result<Patterns, ConvertError> {
    let map = match config.get(&[key]) {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(wrong(SETTINGS, format!("{key} is no object of names and numbers"))),
    };
    let mut found = Vec::new();
    for (name, value) in map {
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        let number = number.ok_or_else(|| {
            wrong(SETTINGS, format!("{key}: {name:?} is {value}, expected a number above 0"))
        })?;
        let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{name})$"));
        let regex = regex.map_err(|_| wrong(SETTINGS, format!("{key}: {name:?} is no pattern")))?;
        found.push((regex, number));
    }
    Ok(found)
}

/// The two factors in names of the library, and their endings in files.
const FACTORS: &[(&str, &str)] = &[("lora_A", "lora_a"), ("lora_B", "lora_b")];

fn tensors(model: &Model<'_>, settings: &Settings) -> Result<Vec<(String, Recipe)>, ConvertError> {
    let mut tensors = Vec::new();
    for name in model.source.names() {
        let shape = || model.source.entry(name).map(|entry| entry.shape.clone()).unwrap_or_default();
        let unknown = || {
            let architecture = model.architecture.name;
            wrong(
                WEIGHTS,
                format!("tensor {name:?} (shape {:?}) is no factor of a change of {architecture}", shape()),
            )
        };
        let short = name.strip_prefix("base_model.model.").unwrap_or(name);
        let found = FACTORS.iter().find_map(|(factor, ending)| {
            let (stem, rest) = short.split_once(&format!(".{factor}."))?;
            (rest == "weight" || rest == "default.weight").then_some((stem, *ending))
        });
        let (stem, ending) = found.ok_or_else(unknown)?;
        let parsed = Name::parse(&format!("{stem}.weight"));
        let (rule, suffix) = parsed.rule(model.architecture.rules).ok_or_else(unknown)?;
        if parsed.expert.is_some() {
            return Err(wrong(WEIGHTS, format!("{name:?} changes a single expert, which is not built yet")));
        }
        let recipe = Recipe::source(model.source, name)?;
        let [rows, columns] = recipe.shape[..] else { return Err(unknown()) };
        // The second factor has the rows of the weight, the first its columns.
        let recipe = match rule.how {
            How::Copy | How::Transposed => recipe,
            How::Rows(function) if ending == "lora_b" => function(model, recipe)?,
            How::Rows(_) => recipe,
            How::Skip | How::Map(_) | How::Split(_) => {
                let reason = format!(
                    "{name:?} belongs to a weight that is changed in a way that adapters cannot follow"
                );
                return Err(wrong(WEIGHTS, reason));
            }
        };
        let recipe = match ending {
            "lora_b" => recipe.multiply(settings.factor(stem, columns)),
            _ => {
                settings.check_rank(stem, rows)?;
                recipe
            }
        };
        tensors.push((format!("{}.{ending}", parsed.target(rule.to, suffix)), recipe));
    }
    tensors.sort_by(|(first, _), (second, _)| first.cmp(second));
    Ok(tensors)
}

/// Refuses an adapter whose factors do not come in pairs that fit each other and the model, as far as its folder tells.
fn check_base(
    base: &Path,
    config: &Config,
    architecture: &'static architectures::Architecture,
    tensors: &[(String, Recipe)],
) -> Result<(), ConvertError> {
    let weights = match Source::open(base) {
        Ok(source) => {
            let model = Model { config, source: &source, architecture, ahead: 0 };
            let options = Options { skip_unknown: true, ..Options::default() };
            Some(conversion::tensors(&model, &options, &mut Vec::new())?)
        }
        Err(ConvertError::NoWeights { .. }) => None,
        Err(error) => return Err(error),
    };
    let shape = |of: &[(String, Recipe)], name: &str| {
        of.iter().find(|(found, _)| found == name).map(|(_, recipe)| recipe.shape.clone())
    };
    for (name, _) in tensors {
        let Some((weight, ending)) = name.rsplit_once('.') else { continue };
        let other = if ending == "lora_a" { "lora_b" } else { "lora_a" };
        let (Some(a), Some(b)) =
            (shape(tensors, &format!("{weight}.lora_a")), shape(tensors, &format!("{weight}.lora_b")))
        else {
            return Err(wrong(WEIGHTS, format!("{weight} has no {other}")));
        };
        let ([rank, columns], [rows, inner]) = (&a[..], &b[..]) else { continue };
        if rank != inner {
            return Err(wrong(
                WEIGHTS,
                format!("lora_A of {weight} has {rank} rows, lora_B {inner} columns"),
            ));
        }
        let Some(weights) = &weights else { continue };
        match shape(weights, weight) {
            None => return Err(wrong(WEIGHTS, format!("the model has no tensor {weight:?}"))),
            Some(found) if found != [*rows, *columns] => {
                let reason = format!(
                    "the change of {weight} has the shape {:?}, the model's tensor {found:?}",
                    [rows, columns]
                );
                return Err(wrong(WEIGHTS, reason));
            }
            Some(_) => {}
        }
    }
    Ok(())
}
