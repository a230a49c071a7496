//! What guesses ahead, as the flags say.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::load;
use puna_engine::{
    Draft, DraftFile, GUESSED_ROWS, NgramSettings, Proposer, SPECULATIONS, SpeculationSettings,
    SpeculationSpec,
};
use puna_flags::{Config, NgramSizes};
use puna_gguf::File;
use puna_runtime::{DraftHead, HeadInputs, ModelOptions, Purpose};
use puna_tokenizer::{Token, Tokenizer};

/// Vocabularies may differ by so many tokens at their ends, as some are padded.
const PADDING: usize = 128;

/// What guesses ahead: opened before the model, so that a fault of the draft is told first.
pub struct Guessing {
    /// Kinds of speculation.
    names: Vec<String>,
    /// The draft model or head, with the flags that are about it.
    draft: Option<(load::Opened, Config)>,
    /// The flags that are about a layer of the model's own file, where such a layer guesses.
    own: Option<Config>,
    /// States of the model that the head reads.
    inputs: HeadInputs,
}

impl Guessing {
    /// Nothing guesses.
    pub fn none() -> Self {
        Self { names: Vec::new(), draft: None, own: None, inputs: HeadInputs::None }
    }

    /// Whether anything guesses.
    pub fn is_on(&self) -> bool {
        !self.names.is_empty()
    }

    /// Opens what the flags name. A draft without a kind is used as its file allows.
    pub fn open(invocation: &Invocation, config: &Config, console: &Console) -> Result<Self, Failure> {
        let speculation = &config.speculation;
        let mut names: Vec<String> = speculation.types.iter().map(|name| (*name).to_owned()).collect();
        let wanted = speculation.draft_model.is_some() || speculation.draft_hf.is_some();
        let file = |name: &String| kind(name).map_or(DraftFile::None, |spec| spec.draft);
        let drafts = |name: &String| file(name) != DraftFile::None;
        if let [first, second, ..] = names.iter().filter(|name| drafts(name)).collect::<Vec<_>>()[..] {
            let what = format!("--spec-type names {first} and {second}: only one kind can have a draft");
            return Err(invocation.usage(what));
        }
        if !wanted || !(names.is_empty() || names.iter().any(drafts)) {
            let own = names.iter().any(|name| file(name) == DraftFile::Ahead).then(|| draft_config(config));
            let inputs = if own.is_some() { HeadInputs::LastState } else { HeadInputs::None };
            if wanted {
                console.warn("the draft model (-md) is not used: --spec-type names no kind that has one");
            }
            return Ok(Self { names, draft: None, own, inputs });
        }
        if let Some(path) = speculation.draft_model.as_ref().filter(|path| !path.exists()) {
            return Err(Failure::Failed(format!(
                "draft model (-md): {}: there is no such file",
                path.display()
            )));
        }
        let own = draft_config(config);
        let opened = load::open(invocation, &own, console, false)?;
        let fitting = fitting(&opened.file)?;
        let path = opened.path.display();
        let Some(first) = fitting.first() else {
            let architecture = opened.file.metadata.str("general.architecture")?;
            return Err(Failure::Failed(format!(
                "{path}: heads of kind '{architecture}' cannot be used yet"
            )));
        };
        if let Some(other) = names.iter().find(|name| drafts(name) && !fitting.contains(&name.as_str())) {
            return Err(Failure::Failed(format!("{path} is for --spec-type {first}, not {other}")));
        }
        if names.is_empty() {
            names.push((*first).to_owned());
        }
        let is_model = names.iter().any(|name| file(name) == DraftFile::Model);
        let inputs = if is_model { HeadInputs::None } else { DraftHead::inputs(&opened.file.metadata)? };
        Ok(Self { names, inputs, own: None, draft: Some((opened, own)) })
    }

    /// What the model has to be loaded with, for so many sequences. A file without the layer that is to guess, or without those
    /// that a head reads, is refused.
    pub fn options(
        &self,
        config: &Config,
        opened: &load::Opened,
        sequences: u32,
    ) -> Result<ModelOptions, Failure> {
        let guessed = if self.names.is_empty() { 0 } else { GUESSED_ROWS };
        let options = load::options(config, sequences, sequences.saturating_add(guessed))?;
        if self.own.is_some() {
            let options = ModelOptions { purpose: Purpose::GuessAhead, ..options.clone() };
            puna_runtime::estimate(&opened.file.metadata, &opened.file.tensors, &options)
                .map_err(|error| Failure::Failed(format!("--spec-type draft-mtp: {error}")))?;
        }
        if let (HeadInputs::Layers(layers), Some((draft, _))) = (&self.inputs, &self.draft) {
            let metadata = &opened.file.metadata;
            let count =
                metadata.u32_or(&format!("{}.block_count", metadata.str("general.architecture")?), 0)?;
            if let Some(layer) = layers.iter().find(|layer| **layer >= count) {
                let path = draft.path.display();
                return Err(Failure::Failed(format!(
                    "{path} cannot guess for the model: it needs what layer {layer} reads, and the model has {count} layers"
                )));
            }
        }
        Ok(ModelOptions { head_inputs: self.inputs.clone(), ..options })
    }

    /// What guesses for so many sequences of a model with this tokenizer.
    pub fn proposers(
        self,
        config: &Config,
        console: &Console,
        opened: &load::Opened,
        tokenizer: &Tokenizer,
        sequences: u32,
    ) -> Result<Vec<Box<dyn Proposer>>, Failure> {
        let head = |draft: &load::Opened, own: &Config| {
            let options = load::options(own, sequences, sequences.saturating_add(GUESSED_ROWS))?;
            Ok::<_, Failure>(Draft::Head(Box::new(load::head(draft, opened, own, console, &options)?)))
        };
        let draft = match &self.draft {
            None => self.own.as_ref().map(|own| head(opened, own)).transpose()?,
            Some((draft, own)) => {
                let its = Tokenizer::from_metadata(&draft.file.metadata)?;
                if let Some(difference) = its.and_then(|its| difference(tokenizer, &its)) {
                    let path = draft.path.display();
                    return Err(Failure::Failed(format!("{path} cannot guess for the model: {difference}")));
                }
                Some(if self.inputs == HeadInputs::None {
                    // Without a tokenizer nothing says that its tokens are the model's.
                    draft.tokenizer(console)?;
                    Draft::Model(Box::new(load::model(draft, own, console, sequences, sequences)?))
                } else {
                    head(draft, own)?
                })
            }
        };
        puna_engine::proposers(&self.names, &settings(config), draft)
            .map_err(|error| Failure::Failed(error.to_string()))
    }
}

/// The kind of speculation of this name.
fn kind(name: &str) -> Option<&'static SpeculationSpec> {
    SPECULATIONS.iter().find(|spec| spec.name == name)
}

/// Kinds of speculation that a draft file is for, the one that is meant without a name first.
fn fitting(file: &File) -> Result<Vec<&'static str>, Failure> {
    let inputs = DraftHead::inputs(&file.metadata)?;
    let architecture = file.metadata.str("general.architecture")?;
    // Of a model there may be a file of the layers that guess ahead alone.
    let is_whole = || file.tensors.iter().any(|tensor| tensor.name.starts_with("blk.0."));
    let suits = |spec: &&SpeculationSpec| match (spec.draft, &inputs) {
        (DraftFile::None, _) => false,
        (DraftFile::Model, HeadInputs::None) => true,
        (DraftFile::Model, HeadInputs::LastState) => is_whole(),
        (DraftFile::Ahead, HeadInputs::LastState) => true,
        (DraftFile::Head(head), HeadInputs::Layers(_)) => head == architecture,
        _ => false,
    };
    Ok(SPECULATIONS.iter().filter(suits).map(|spec| spec.name).collect())
}

/// The flags as they are for the draft: what they say about the model's own weights is not about it.
fn draft_config(config: &Config) -> Config {
    let speculation = &config.speculation;
    let mut own = config.clone();
    own.model.path.clone_from(&speculation.draft_model);
    own.model.hf_repo.clone_from(&speculation.draft_hf);
    (own.model.hf_file, own.model.url) = (None, None);
    own.model.overrides.clear();
    own.model.adapters.clear();
    own.model.control_vectors.clear();
    own.rope = puna_flags::Rope::default();
    own.device = puna_flags::Device {
        names: config.device.names.clone(),
        fit: config.device.fit,
        fit_target: config.device.fit_target.clone(),
        ..puna_flags::Device::default()
    };
    let kind = |kind: &'static str, otherwise| if kind.is_empty() { otherwise } else { kind };
    own.context.type_k = kind(speculation.draft_type_k, config.context.type_k);
    own.context.type_v = kind(speculation.draft_type_v, config.context.type_v);
    own
}

fn settings(config: &Config) -> SpeculationSettings {
    let speculation = &config.speculation;
    let ngram = |sizes: NgramSizes| NgramSettings {
        size: sizes.size_n as usize,
        most: sizes.size_m as usize,
        hits: sizes.min_hits as usize,
    };
    SpeculationSettings {
        simple: ngram(speculation.simple),
        map_k: ngram(speculation.map_k),
        map_k4v: ngram(speculation.map_k4v),
        mod_match: speculation.mod_match as usize,
        mod_least: speculation.mod_least as usize,
        mod_most: speculation.mod_most as usize,
        draft_most: speculation.draft_most as usize,
        draft_least: speculation.draft_least as usize,
        draft_probability: speculation.draft_probability,
    }
}

/// In what two vocabularies differ, if that matters.
fn difference(model: &Tokenizer, draft: &Tokenizer) -> Option<String> {
    let (model, draft) = (model.vocabulary(), draft.vocabulary());
    if model.len().abs_diff(draft.len()) > PADDING {
        return Some(format!("it knows {} tokens, the model {}", draft.len(), model.len()));
    }
    let count = Token::try_from(model.len().min(draft.len())).unwrap_or(Token::MAX);
    let other = (0..count).find(|token| model.text(*token) != draft.text(*token))?;
    let text = |text: Option<&str>| crate::console::printable(text.unwrap_or(""), 40);
    Some(format!(
        "its token {other} is '{}', the model's '{}'",
        text(draft.text(other)),
        text(model.text(other))
    ))
}

#[cfg(test)]
mod tests {
    use puna_flags::SPECULATION_TYPES;

    use super::*;

    #[test]
    fn every_kind_that_a_flag_names_exists() {
        let names: Vec<&str> = SPECULATIONS.iter().map(|spec| spec.name).collect();
        assert_eq!(names, SPECULATION_TYPES);
        let config = Config::default();
        assert_eq!(settings(&config), SpeculationSettings::default());
    }
}
