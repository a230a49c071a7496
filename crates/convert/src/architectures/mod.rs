//! The table of architectures that can be converted.

mod bert;
mod bloom;
mod cohere;
mod deepseek;
mod draft;
mod encoders;
mod experts;
mod gated;
mod gemma;
mod glm;
mod gpt;
mod gpt_oss;
mod granite;
mod hybrid;
mod linear;
mod llama;
mod mamba;
mod olmo;
mod phi;
mod plamo;
mod qwen;
mod rwkv;
mod scaled;
mod streams;

use crate::keys::Keys;
use crate::rules::Rule;
use crate::{Config, ConvertError};

/// How folders of one architecture are converted.
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Classes in `config.json` that it stands for.
    pub classes: &'static [&'static str],
    /// Whether it is this one of several that share a class.
    pub(crate) applies: fn(&Config) -> bool,
    /// Settings that the classes have where `config.json` says nothing.
    pub(crate) defaults: &'static [(&'static str, f64)],
    /// Whether folders may have layers that guess tokens further ahead.
    pub(crate) ahead: bool,
    /// Whether these layers see a window only where the model's own are of both kinds.
    pub(crate) windows_ahead: bool,
    /// Writes the keys.
    pub(crate) keys: fn(&mut Keys<'_>) -> Result<(), ConvertError>,
    /// Names that differ from the common ones, and changes of data.
    pub(crate) rules: &'static [&'static [Rule]],
}

/// An architecture whose keys and names are the common ones.
const PLAIN: Architecture = Architecture {
    name: "",
    classes: &[],
    applies: |_| true,
    defaults: &[],
    ahead: false,
    windows_ahead: false,
    keys: |keys| keys.decoder(),
    rules: &[],
};

/// All architectures.
pub static ARCHITECTURES: &[&[Architecture]] = &[
    llama::ROWS,
    qwen::ROWS,
    gemma::ROWS,
    phi::ROWS,
    gpt::ROWS,
    bloom::ROWS,
    gpt_oss::ROWS,
    mamba::ROWS,
    hybrid::ROWS,
    cohere::ROWS,
    olmo::ROWS,
    granite::ROWS,
    scaled::ROWS,
    glm::ROWS,
    deepseek::ROWS,
    gated::ROWS,
    linear::ROWS,
    streams::ROWS,
    experts::ROWS,
    plamo::ROWS,
    rwkv::ROWS,
    draft::ROWS,
    encoders::ROWS,
    bert::ROWS,
];

/// All rows, in order.
pub fn rows() -> impl Iterator<Item = &'static Architecture> {
    ARCHITECTURES.iter().copied().flatten()
}

/// The row of the first of the classes in these settings that has one.
pub fn find(config: &Config) -> Result<&'static Architecture, ConvertError> {
    let classes = config.classes();
    let row = |class: &&str| rows().find(|row| row.classes.contains(class) && (row.applies)(config));
    classes.iter().find_map(row).ok_or_else(|| ConvertError::UnknownClass {
        found: classes.first().copied().unwrap_or("").chars().take(80).collect(),
        known: rows().flat_map(|row| row.classes).copied().collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Architectures that the engine runs and folders cannot be converted to, with the reason.
    const WITHOUT: &[(&str, &str)] = &[
        (
            "eagle3",
            "what folders say about the draft's tokens is a distance, and no file shows what GGUF has",
        ),
        ("pockettts", "rows of the embeddings are put together from several tensors of a sound model"),
        ("qwen3tts", "the embeddings are a network's results for all tokens, computed by the converter"),
        (
            "qwen4exp",
            "folders have a table of n-grams for each layer, in hundreds of pieces, files one for all",
        ),
        ("wavtokenizer-dec", "a decoder of sound, published as a PyTorch checkpoint and no folder"),
    ];

    #[test]
    fn every_architecture_of_the_engine_has_a_row_or_a_reason() {
        for known in puna_models::ARCHITECTURES {
            let has_row = rows().any(|row| row.name == known.name);
            let reason = WITHOUT.iter().find(|(name, _)| *name == known.name);
            assert!(has_row != reason.is_some(), "{}: {}", known.name, reason.map_or("no row", |row| row.1));
        }
        for (name, reason) in WITHOUT {
            println!("{name}: {reason}");
        }
    }

    #[test]
    fn layers_ahead_are_kept_where_the_engine_runs_them() {
        for known in puna_models::ARCHITECTURES.iter().filter(|known| known.guesses_ahead.is_some()) {
            // Folders have attention and network as two layers, files as one.
            let kept = known.name != "nemotron_h_moe";
            assert!(rows().any(|row| row.name == known.name && row.ahead == kept), "{}", known.name);
        }
        for row in rows().filter(|row| row.ahead) {
            assert!(puna_models::guesses_ahead(row.name), "{}", row.name);
        }
    }

    #[test]
    fn classes_are_unique_and_architectures_known_to_the_engine() {
        // Of rows that share a class all but the last apply to some settings only.
        let bare = Config::new(serde_json::json!({}));
        let general = rows().filter(|row| (row.applies)(&bare));
        let mut classes: Vec<&str> = general.flat_map(|row| row.classes).copied().collect();
        let count = classes.len();
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), count);
        for row in rows() {
            let known = puna_models::ARCHITECTURES.iter().any(|known| known.name == row.name);
            assert!(known, "{}", row.name);
        }
    }
}
