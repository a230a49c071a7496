//! What guesses ahead, as the flags say.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::load;
use puna_engine::{GUESSED_ROWS, NgramSettings, Proposer, Runner, SpeculationSettings};
use puna_flags::{Config, NgramSizes};
use puna_tokenizer::{Token, Tokenizer};

/// Vocabularies may differ by so many tokens at their ends, as some are padded.
const PADDING: usize = 128;

/// Kinds of speculation. A draft model without a kind is used in the simple way.
fn types(config: &Config) -> Vec<String> {
    let speculation = &config.speculation;
    let drafts = speculation.draft_model.is_some() || speculation.draft_hf.is_some();
    match speculation.types.is_empty() && drafts {
        true => vec!["draft-simple".to_owned()],
        false => speculation.types.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// Output rows that the model needs beside one for each sequence.
pub fn rows(config: &Config) -> u32 {
    if types(config).is_empty() { 0 } else { GUESSED_ROWS }
}

/// What guesses for so many sequences of a model with this tokenizer.
pub fn proposers(
    invocation: &Invocation,
    config: &Config,
    console: &Console,
    tokenizer: &Tokenizer,
    sequences: u32,
) -> Result<Vec<Box<dyn Proposer>>, Failure> {
    let names = types(config);
    let draft = match names.iter().any(|name| name == "draft-simple") {
        true => draft(invocation, config, console, tokenizer, sequences)?,
        false => None,
    };
    puna_engine::proposers(&names, &settings(config), draft)
        .map_err(|error| Failure::Failed(error.to_string()))
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

/// Loads the draft model that the flags name, if they name one.
fn draft(
    invocation: &Invocation,
    config: &Config,
    console: &Console,
    tokenizer: &Tokenizer,
    sequences: u32,
) -> Result<Option<Box<dyn Runner>>, Failure> {
    let speculation = &config.speculation;
    if speculation.draft_model.is_none() && speculation.draft_hf.is_none() {
        return Ok(None);
    }
    // What the flags say about the model's own weights is not about those of the draft model.
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
    let opened = load::open(invocation, &own, console, false)?;
    let its = opened.tokenizer(console)?;
    if let Some(difference) = difference(tokenizer, &its) {
        let path = opened.path.display();
        return Err(Failure::Failed(format!("{path} cannot guess for the model: {difference}")));
    }
    Ok(Some(Box::new(load::model(&opened, &own, console, sequences, sequences)?)))
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
    use puna_engine::SPECULATIONS;
    use puna_flags::SPECULATION_TYPES;

    use super::*;

    #[test]
    fn every_kind_that_a_flag_names_exists() {
        let names: Vec<&str> = SPECULATIONS.iter().map(|spec| spec.name).collect();
        assert_eq!(names, SPECULATION_TYPES);
        let config = Config::default();
        assert_eq!(settings(&config), SpeculationSettings::default());
        assert_eq!((types(&config), rows(&config)), (Vec::new(), 0));
    }

    #[test]
    fn a_draft_model_is_used_without_a_kind() {
        let mut config = Config::default();
        config.speculation.draft_model = Some("draft.gguf".into());
        assert_eq!((types(&config), rows(&config)), (vec!["draft-simple".to_owned()], GUESSED_ROWS));
        config.speculation.types = vec!["ngram-mod"];
        assert_eq!(types(&config), ["ngram-mod"]);
    }
}
