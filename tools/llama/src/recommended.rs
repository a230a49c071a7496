//! Sampling settings that a model's file recommends: defaults where no flag says otherwise.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use puna_flags::{Config, Outcome, Sampling, Spec};
use puna_gguf::{Metadata, Value};
use std::ffi::OsString;

/// Keys after `general.sampling.` and the flags that mean the same.
const KEYS: &[(&str, &str)] = &[
    ("sequence", "--samplers"),
    ("top_k", "--top-k"),
    ("top_p", "--top-p"),
    ("min_p", "--min-p"),
    ("xtc_probability", "--xtc-probability"),
    ("xtc_threshold", "--xtc-threshold"),
    ("temp", "--temp"),
    ("penalty_last_n", "--repeat-last-n"),
    ("penalty_repeat", "--repeat-penalty"),
    ("mirostat", "--mirostat"),
    ("mirostat_tau", "--mirostat-ent"),
    ("mirostat_eta", "--mirostat-lr"),
];

/// The sampling settings of the command line over those of the file. A value of the file that a flag would refuse
/// is not used, and a warning says so.
pub fn sampling(
    invocation: &Invocation,
    spec: &Spec<Config>,
    config: &Config,
    metadata: &Metadata,
    console: &Console,
) -> Result<Sampling, Failure> {
    let mut base = Config::default();
    for (key, flag) in KEYS {
        let key = format!("general.sampling.{key}");
        let Some(value) = metadata.get(&key) else { continue };
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let argument = [OsString::from(format!("{flag}={text}"))];
        match spec.parse(base.clone(), &argument, &|_| None) {
            Ok(Outcome::Run { config, .. }) => base = config,
            Ok(Outcome::Action(_)) => {}
            Err(error) => console.warn(&format!("the file's {key} is not used: {error}")),
        }
    }
    if base.sampling == Sampling::default() {
        return Ok(config.sampling.clone());
    }
    // The command line was read before the file could be opened; once more, over what the file recommends.
    match invocation.parse_over(spec, Config { sampling: base.sampling, ..Config::default() })? {
        Some((again, _)) => Ok(again.sampling),
        None => Ok(config.sampling.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use puna_flags::Log;

    fn chosen(metadata: &[(&str, Value)], arguments: &[&str]) -> Sampling {
        let arguments = arguments.iter().map(OsString::from).collect();
        let invocation = Invocation::new("llama cli".into(), arguments);
        let quiet = Console::new(&Log { disable: true, ..Log::default() }, 0).unwrap();
        let metadata = metadata.iter().map(|(key, value)| (format!("general.sampling.{key}"), value.clone()));
        let metadata: Metadata = metadata.collect();
        let (config, _) = invocation.parse_over(&crate::cli::SPEC, Config::default()).unwrap().unwrap();
        sampling(&invocation, &crate::cli::SPEC, &config, &metadata, &quiet).unwrap()
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = [
            ("temp", Value::F32(0.25)),
            ("top_k", Value::I32(7)),
            ("sequence", Value::String("top_k;temp".into())),
        ];
        let found = chosen(&file, &["--top-k", "40", "--seed", "3"]);
        assert_eq!((found.temperature, found.top_k, found.seed), (0.25, 40, Some(3)));
        assert_eq!(found.samplers.unwrap(), ["top_k", "temperature"]);
        assert_eq!(chosen(&[], &[]), Sampling::default());
        assert_eq!(chosen(&[], &["--temp", "1"]).temperature, 1.0);
    }

    #[test]
    fn what_cannot_be_used_changes_nothing() {
        for (key, value) in [
            ("temp", Value::String("hot".into())),
            ("top_p", Value::F32(7.0)),
            ("mirostat", Value::I32(3)),
            ("xtc_probability", Value::F32(1.5)),
            ("sequence", Value::String("what".into())),
            ("sequence", Value::String("--help".into())),
        ] {
            assert_eq!(chosen(&[(key, value)], &[]), Sampling::default(), "{key}");
        }
    }
}
