//! A model folder that has been understood: metadata, and a recipe for each tensor.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use puna_gguf::{Bytes, File, MAX_LAYERS, Metadata, TensorSpec};
use puna_quant::DType;

use crate::architectures::{self, Architecture};
use crate::config::{Config, read_json};
use crate::keys::{Keys, rope_factors};
use crate::model::Model;
use crate::rules::{BLOCKS, How, Name, Named, Rule};
use crate::{ConvertError, Recipe, Source, ahead, tokenizer};

type Result<T> = std::result::Result<T, ConvertError>;

/// How to convert.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `general.name`, instead of the folder's name.
    pub name: Option<String>,
    /// Leave tensors out that no rule knows.
    pub skip_unknown: bool,
    /// `tokenizer.ggml.pre`, instead of what `tokenizer.json` is recognised to be.
    pub pre_tokenizer: Option<String>,
    /// Nothing but the tokenizer.
    pub vocabulary_only: bool,
    /// What becomes of layers that guess tokens further ahead.
    pub ahead: LayersAhead,
}

/// What becomes of layers that guess tokens further ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LayersAhead {
    /// They follow those of the model.
    #[default]
    Kept,
    /// They are left out.
    LeftOut,
    /// They are kept, with what they share with the model, and the model's own layers are left out.
    Alone,
}

/// A folder ready to be written.
#[derive(Debug)]
pub struct Conversion {
    /// All keys but those that depend on the number formats.
    pub metadata: Metadata,
    /// What is odd about the folder, or was left out.
    pub warnings: Vec<String>,
    source: Source,
    tensors: Vec<(String, Recipe)>,
}

/// Beginnings of names of encoders for images and sound, which are no part of a text model, and of heads that predict
/// more than the next token.
const OTHERS: &[&str] = &[
    "vision_tower.",
    "vision_model.",
    "visual.",
    "model.visual.",
    "model.vision_tower.",
    "model.vision_model.",
    "model.multi_modal_projector.",
    "multi_modal_projector.",
    "audio_tower.",
    "model.audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "model.embed_vision.",
    "model.embed_audio.",
    "mm_projector.",
    "mlp_AR.",
    "model.vision_adapter.",
    "model.vision_projection.",
    "mtp.",
    "model.mtp.",
    "model.mtp_layers.",
    "vit.",
    "vit_large_projector.",
    "model.vision.",
    "model.vqmodel.",
    "model.sam_model.",
    "model.qwen2_model.",
    "model.projector.",
    "model.image_newline",
    "model.view_seperator",
];

impl Conversion {
    /// Reads `config.json`, the tokenizer's files and the directories of the weights, and decides about every tensor.
    pub fn open(folder: &Path, options: &Options) -> Result<Self> {
        let path = folder.join("config.json");
        if !path.is_file() {
            let path = folder.to_owned();
            return Err(if folder.is_dir() {
                ConvertError::NoConfig { path }
            } else {
                ConvertError::NoFolder { path }
            });
        }
        let mut json = read_json(&path)?;
        let architecture = architectures::find(&Config::new(json.clone()))?;
        add_defaults(&mut json, architecture);
        let config = Config::new(json);
        if let Some(method) = config.text(&["quantization_config.quant_method"])
            && !["fp8", "mxfp4", "compressed-tensors"].contains(&method)
        {
            return Err(ConvertError::Quantised { method: method.chars().take(80).collect() });
        }
        let source = match options.vocabulary_only {
            true => Source::default(),
            false => weights(folder, architecture)?,
        };
        let mut model = Model { config: &config, source: &source, architecture, ahead: 0 };
        if options.ahead != LayersAhead::LeftOut {
            model.ahead = ahead::count(&model)?;
        }
        if options.ahead == LayersAhead::Alone && model.ahead == 0 {
            return Err(ConvertError::NoLayersAhead { architecture: architecture.name });
        }
        let mut keys =
            Keys { model: &model, metadata: general(folder, options, architecture), warnings: Vec::new() };
        (architecture.keys)(&mut keys)?;
        let Keys { mut metadata, mut warnings, .. } = keys;
        ahead::write_keys(&model, &mut metadata)?;
        let tensors = match options.vocabulary_only {
            true => Vec::new(),
            false => tensors(&model, options, &mut warnings)?,
        };
        recommended_sampling(folder, &mut metadata)?;
        pooling(folder, architecture, &mut metadata)?;
        let files =
            tokenizer::Files { folder, config: &config, pre_tokenizer: options.pre_tokenizer.as_deref() };
        let rows = tensors.iter().find(|(name, _)| name == "token_embd.weight");
        let size = rows.and_then(|(_, recipe)| recipe.shape.first().copied());
        tokenizer::write(&files, size, &mut metadata, &mut warnings)?;
        Ok(Self { metadata, warnings, source, tensors })
    }

    /// Names and recipes of all tensors, in the order of the file.
    pub fn tensors(&self) -> &[(String, Recipe)] {
        &self.tensors
    }

    /// Tensors as a file would list them in their own formats.
    pub fn specs(&self) -> Vec<TensorSpec> {
        let spec = |(name, recipe): &(String, Recipe)| TensorSpec {
            name: name.clone(),
            dtype: recipe.dtype,
            shape: recipe.shape.clone(),
        };
        self.tensors.iter().map(spec).collect()
    }

    /// The bytes of a tensor of [`Conversion::tensors`], in its own format.
    pub fn data(&self, recipe: &Recipe) -> Result<Cow<'_, [u8]>> {
        recipe.evaluate(&self.source)
    }

    /// Gives back the memory of what a tensor was made of.
    pub fn release(&self, recipe: &Recipe) {
        self.source.release(recipe.name());
    }

    /// Whether more of the weights are BF16 than F16.
    pub fn prefers_bfloat(&self) -> bool {
        self.source.prefers_bfloat()
    }

    /// The model in memory, without a file: tensors that need no change are ranges of the mapped folder.
    pub fn into_file(self) -> Result<File> {
        let mut parts = Vec::with_capacity(self.tensors.len());
        for (spec, (_, recipe)) in self.specs().into_iter().zip(&self.tensors) {
            let mapped = recipe.as_is().and_then(|name| self.source.mapped(name));
            let bytes = match mapped {
                Some((mapping, range)) => Bytes::Mapped(mapping, range),
                None => {
                    let bytes = recipe.evaluate(&self.source)?.into_owned();
                    self.source.release(recipe.name());
                    Bytes::Owned(bytes)
                }
            };
            parts.push((spec, bytes));
        }
        Ok(File::from_parts(self.metadata, parts)?)
    }
}

/// Folders in which the sentence-transformers library keeps matrices that follow the pooling.
const DENSE: &[&str] = &["2_Dense", "3_Dense"];

/// The weights of the folder, and those after the pooling if the architecture has such.
fn weights(folder: &Path, architecture: &Architecture) -> Result<Source> {
    let mut source = Source::open(folder)?;
    for module in DENSE {
        let path = folder.join(module).join("model.safetensors");
        let known = Name::parse(&format!("{module}.linear.weight")).rule(architecture.rules).is_some();
        if known && path.is_file() {
            source.add(&path, &format!("{module}."))?;
        }
    }
    Ok(source)
}

/// Adds the class's own settings where the file has none.
pub(crate) fn add_defaults(json: &mut serde_json::Value, architecture: &Architecture) {
    let config = Config::new(json.clone());
    for (name, value) in architecture.defaults {
        if config.get(&[name]).is_none()
            && let Some(object) = json.as_object_mut()
            && let Some(number) = serde_json::Number::from_f64(*value)
        {
            object.insert((*name).to_owned(), serde_json::Value::Number(number));
        }
    }
}

fn general(folder: &Path, options: &Options, architecture: &Architecture) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", architecture.name);
    metadata.set("general.type", "model");
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let of_folder = || folder.file_name().map(|name| name.to_string_lossy().into_owned());
    if let Some(name) = options.name.clone().or_else(of_folder) {
        metadata.set("general.name", name);
    }
    metadata
}

/// How the sentence-transformers library pools the rows of this model.
fn pooling(folder: &Path, architecture: &Architecture, metadata: &mut Metadata) -> Result<()> {
    let path = folder.join("1_Pooling").join("config.json");
    if !path.is_file() {
        return Ok(());
    }
    let config = Config::new(read_json(&path)?);
    let modes =
        [("pooling_mode_mean_tokens", 1u32), ("pooling_mode_cls_token", 2), ("pooling_mode_lasttoken", 3)];
    if let Some((_, number)) = modes.iter().find(|(name, _)| config.bool_or(&[name], false)) {
        metadata.set(format!("{}.pooling_type", architecture.name), *number);
    }
    Ok(())
}

/// What `generation_config.json` recommends.
fn recommended_sampling(folder: &Path, metadata: &mut Metadata) -> Result<()> {
    let path = folder.join("generation_config.json");
    if !path.is_file() {
        return Ok(());
    }
    let config = Config::new(read_json(&path)?);
    if let Some(found) = config.optional_u32(&["top_k"])?.and_then(|found| i32::try_from(found).ok()) {
        metadata.set("general.sampling.top_k", found);
    }
    for (key, name) in [
        ("general.sampling.top_p", "top_p"),
        ("general.sampling.min_p", "min_p"),
        ("general.sampling.temp", "temperature"),
        ("general.sampling.penalty_repeat", "repetition_penalty"),
    ] {
        if let Some(found) = config.optional_f32(&[name])? {
            metadata.set(key, found);
        }
    }
    Ok(())
}

/// The parts of one tensor of the result: itself, or its experts.
enum Parts {
    One(Recipe),
    Experts(BTreeMap<usize, Recipe>),
}

impl Parts {
    /// The whole tensor; experts are stacked, and none may be missing.
    fn whole(self, target: &str) -> Result<Recipe> {
        let experts = match self {
            Self::One(recipe) => return Ok(recipe),
            Self::Experts(experts) => experts,
        };
        match experts.keys().enumerate().find(|(index, expert)| index != *expert) {
            Some((expert, _)) => Err(ConvertError::MissingExpert { target: target.to_owned(), expert }),
            None => Recipe::stack(experts.into_values().collect()),
        }
    }
}

/// A tensor's name, taken apart; none if it is no part of the text model. `layers` is without those that guess ahead.
fn name_of(source_name: &str, model: &Model<'_>, layers: u32) -> Option<Name> {
    let counted_on = (model.ahead > 0).then(|| ahead::counted_on(source_name, layers)).flatten();
    if let Some(name) = counted_on {
        return Some(Name::parse(&name));
    }
    let is_other = OTHERS.iter().any(|prefix| source_name.starts_with(prefix));
    (!is_other).then(|| Name::parse(source_name))
}

pub(crate) fn tensors(
    model: &Model<'_>,
    options: &Options,
    warnings: &mut Vec<String>,
) -> Result<Vec<(String, Recipe)>> {
    let of_text = model.layers()?.min(MAX_LAYERS as u64) as u32;
    let layers = (of_text + model.ahead).min(MAX_LAYERS as u32);
    let first_stack = model.first_stack()?;
    let tied = model.config.bool_or(&["tie_word_embeddings"], false);
    let mut order: Vec<(Option<u32>, String)> = Vec::new();
    let mut parts: HashMap<String, Parts> = HashMap::new();
    let (mut others, mut further) = (0, 0);
    for source_name in model.source.names() {
        let Some(mut name) = name_of(source_name, model, of_text) else {
            others += 1;
            continue;
        };
        name.count_on(first_stack);
        if name.stack == BLOCKS && name.layer.is_some_and(|layer| layer >= layers) {
            further += 1;
            continue;
        }
        if options.ahead == LayersAhead::Alone && name.layer.is_some_and(|layer| layer < of_text) {
            continue;
        }
        let Some((rule, ending)) = name.rule(model.architecture.rules) else {
            // Scales are read with their blocks.
            if is_scale_of_blocks(model.source, source_name) {
                continue;
            }
            if options.skip_unknown {
                warnings.push(format!("tensor {source_name:?} is not known and left out"));
                continue;
            }
            return Err(ConvertError::UnknownTensor {
                name: source_name.clone(),
                shape: model.source.entry(source_name).map(|entry| entry.shape.clone()).unwrap_or_default(),
                architecture: model.architecture.name,
            });
        };
        if matches!(rule.how, How::Skip) || (tied && rule.to == "output") {
            continue;
        }
        for (to, recipe) in made(model, source_name, rule)? {
            let target = name.target(to, ending);
            let collision = |target: String| ConvertError::Collision { name: source_name.clone(), target };
            match (parts.get_mut(&target), name.expert) {
                (None, expert) => {
                    order.push((name.layer, target.clone()));
                    let part = match expert {
                        None => Parts::One(recipe),
                        Some(expert) => Parts::Experts(BTreeMap::from([(expert, recipe)])),
                    };
                    parts.insert(target, part);
                }
                (Some(Parts::Experts(experts)), Some(expert)) => {
                    if experts.insert(expert, recipe).is_some() {
                        return Err(collision(target));
                    }
                }
                _ => return Err(collision(target)),
            }
        }
    }
    if others > 0 {
        warnings.push(format!("{others} tensors of encoders and further heads are left out"));
    }
    if further > 0 {
        warnings.push(format!("{further} tensors of layers beyond the {layers} of the model are left out"));
    }
    // What belongs to no layer comes first, then layer by layer.
    order.sort_by_key(|(layer, _)| *layer);
    let mut tensors = Vec::with_capacity(order.len());
    for (name, values) in rope_factors(model)? {
        tensors.push((name.to_owned(), Recipe::values(name, values)));
    }
    for (_, target) in order {
        if let Some(part) = parts.remove(&target) {
            let recipe = part.whole(&target)?;
            tensors.push((target, recipe));
        }
    }
    Ok(tensors)
}

/// What a rule makes of a tensor of the folder: names without layer and ending, with recipes.
fn made(model: &Model<'_>, source_name: &str, rule: &Rule) -> Result<Named> {
    let recipe = match scales_of_blocks(source_name) {
        Some(scales) => Recipe::mxfp4(model.source, source_name, &scales)?,
        None => Recipe::source(model.source, source_name)?,
    };
    Ok(match rule.how {
        How::Copy | How::Skip => vec![(rule.to, recipe)],
        How::Transposed if recipe.shape.len() < 2 => vec![(rule.to, recipe)],
        How::Transposed => vec![(rule.to, recipe.transpose()?)],
        How::Map(function) | How::Rows(function) => vec![(rule.to, function(model, recipe)?)],
        How::Split(function) => function(model, recipe)?,
    })
}

/// Endings of the names of blocks of MXFP4, and of their scales: those of gpt-oss, and of the compressed-tensors library.
const BLOCKS_AND_SCALES: &[(&str, &str)] = &[("_blocks", "_scales"), (".weight_packed", ".weight_scale")];

fn scales_of_blocks(name: &str) -> Option<String> {
    BLOCKS_AND_SCALES
        .iter()
        .find_map(|(blocks, scales)| name.strip_suffix(blocks).map(|stem| format!("{stem}{scales}")))
}

fn is_scale_of_blocks(source: &Source, name: &str) -> bool {
    BLOCKS_AND_SCALES.iter().any(|(blocks, scales)| {
        name.strip_suffix(scales).is_some_and(|stem| source.has(&format!("{stem}{blocks}")))
    })
}

/// The format in which a tensor goes into a file whose matrices have `wanted`: vectors, norms and small tables that
/// kernels read as floats stay exact.
pub fn stored_format(name: &str, recipe: &Recipe, wanted: DType) -> DType {
    let axes = recipe.shape.iter().filter(|extent| **extent > 1).count();
    let exact = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_inp_shexp.weight",
        "ssm_conv1d.weight",
        "shortconv.conv.weight",
        "position_embd.weight",
        "time_mix_lerp_fused.weight",
        "time_mix_first.weight",
        "token_types.weight",
    ];
    match recipe.dtype {
        DType::MXFP4 | DType::I32 => recipe.dtype,
        _ if axes < 2 || name.ends_with(".bias") || exact.iter().any(|end| name.ends_with(end)) => DType::F32,
        _ if name.ends_with("ssm_a") || name.ends_with("ssm_d") => DType::F32,
        _ => wanted,
    }
}
