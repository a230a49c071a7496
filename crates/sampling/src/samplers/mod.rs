//! The table of samplers.

mod adaptive_p;
mod dry;
mod infill;
mod min_p;
pub(crate) mod mirostat;
mod penalties;
mod temperature;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod xtc;

pub use dry::{DEFAULT_BREAKERS, DryBreakers};
pub use infill::InfillTexts;

use crate::{Candidate, Candidates, Parameters, SamplingError};

/// One step of a chain.
pub trait Sampler: Send {
    /// Changes logits or drops candidates; at least one stays.
    fn apply(&mut self, candidates: &mut Candidates);
    /// This one of the candidates was drawn, with its probability among them. It need not be accepted.
    fn chosen(&mut self, _candidate: &Candidate) {}
    /// A token was appended.
    fn accept(&mut self, _token: u32) {}
    /// Forgets what was accepted.
    fn reset(&mut self) {}
    /// Whether the best candidate always stays the best one: greedy chains of only such samplers need no
    /// candidates at all.
    fn keeps_best(&self) -> bool {
        false
    }
    /// What it needs of a row of logits, if those before it change as little as [`Needs::Lowers`].
    fn needs(&self) -> Needs {
        Needs::All
    }
}

/// What a sampler needs of a row of logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// All of it.
    All,
    /// It lowers the logits of at most so many tokens, one more with each that is accepted, and does nothing else.
    Lowers(usize),
    /// It keeps so many of the best candidates.
    Best(usize),
}

/// A row of [`SAMPLERS`].
#[derive(Debug)]
pub struct SamplerSpec {
    /// Name in `--samplers` and in requests.
    pub name: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// Letter in `--sampler-seq`.
    pub letter: char,
    /// Makes the sampler, or nothing if the parameters make it change nothing.
    pub build: fn(&Parameters) -> Option<Box<dyn Sampler>>,
}

/// Every sampler: first those of the default order, in that order.
pub const SAMPLERS: &[SamplerSpec] = &[
    penalties::SPEC,
    dry::SPEC,
    top_n_sigma::SPEC,
    top_k::SPEC,
    typical::SPEC,
    top_p::SPEC,
    min_p::SPEC,
    xtc::SPEC,
    temperature::SPEC,
    infill::SPEC,
    adaptive_p::SPEC,
];

/// Letters of the samplers that a request has which names none.
const DEFAULT_ORDER: &str = "edskypmxt";

/// The samplers of a request that names none, in order.
pub fn default_order() -> Vec<&'static SamplerSpec> {
    DEFAULT_ORDER.chars().filter_map(|letter| SAMPLERS.iter().find(|spec| spec.letter == letter)).collect()
}

/// Samplers by names separated by semicolons, as `--samplers` takes them. `-` counts as `_`, and names may be
/// written without either; empty names are skipped, so an empty text is an empty chain.
pub fn parse_names(text: &str) -> Result<Vec<&'static SamplerSpec>, SamplingError> {
    text.split(';').map(str::trim).filter(|name| !name.is_empty()).map(by_name).collect()
}

fn by_name(name: &str) -> Result<&'static SamplerSpec, SamplingError> {
    let wanted = name.replace('-', "_").to_ascii_lowercase();
    let known = |spec: &&SamplerSpec| {
        let mut names = spec.aliases.iter().chain([&spec.name]);
        names.any(|name| *name == wanted || name.replace('_', "") == wanted)
    };
    SAMPLERS.iter().find(known).ok_or_else(|| SamplingError::UnknownName {
        name: name.to_string(),
        known: SAMPLERS.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
    })
}

/// Samplers by their letters, as `--sampler-seq` takes them.
pub fn parse_letters(text: &str) -> Result<Vec<&'static SamplerSpec>, SamplingError> {
    text.chars()
        .map(|letter| {
            SAMPLERS.iter().find(|spec| spec.letter == letter).ok_or_else(|| SamplingError::UnknownLetter {
                letter,
                known: SAMPLERS.iter().map(|spec| spec.letter).collect(),
            })
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Applies a sampler to logits that are the logarithms of `weights`; the tokens left, in order of token.
    pub(crate) fn left(spec: &SamplerSpec, parameters: &Parameters, weights: &[f32]) -> Vec<u32> {
        let logits: Vec<f32> = weights.iter().map(|weight| weight.ln()).collect();
        let mut candidates = Candidates::new(&logits).unwrap();
        if let Some(mut sampler) = (spec.build)(parameters) {
            sampler.apply(&mut candidates);
        }
        let mut tokens: Vec<u32> = candidates.items().iter().map(|item| item.token).collect();
        tokens.sort_unstable();
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(specs: &[&SamplerSpec]) -> Vec<&'static str> {
        specs.iter().map(|spec| spec.name).collect()
    }

    #[test]
    fn orders_are_parsed() {
        let usual =
            ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"];
        assert_eq!(names(&default_order()), usual);
        assert_eq!(names(&parse_letters("ia").unwrap()), ["infill", "adaptive_p"]);
        assert_eq!(names(&parse_names("topk;TypP;top-nsigma").unwrap()), ["top_k", "typ_p", "top_n_sigma"]);
        assert_eq!(names(&parse_names("min-p; Temp ;TOP_K;").unwrap()), ["min_p", "temperature", "top_k"]);
        assert_eq!(names(&parse_letters("tke").unwrap()), ["temperature", "top_k", "penalties"]);
        assert!(parse_names("").unwrap().is_empty());
        let unknown = parse_names("top_k;nonsense").unwrap_err().to_string();
        assert!(
            unknown.starts_with("unknown sampler \"nonsense\", known are penalties, dry, top_n"),
            "{unknown}"
        );
        assert!(parse_letters("k?").unwrap_err().to_string().contains("'?'"));
    }

    #[test]
    fn names_and_letters_are_unique() {
        for (index, spec) in SAMPLERS.iter().enumerate() {
            for other in &SAMPLERS[index + 1..] {
                assert_ne!(spec.name, other.name);
                assert_ne!(spec.letter, other.letter);
            }
        }
    }
}
