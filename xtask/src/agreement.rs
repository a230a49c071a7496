//! Tables of crates that do not know each other, but must agree.

use puna_flags::{Config, FLAGS, Outcome, Spec, ToolSet};

/// Samplers that the flags do not accept, by name or by letter.
pub fn unknown_samplers(samplers: &[(&str, char)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, letter) in samplers {
        if chosen("--samplers", name) != [*name] {
            faults.push(format!("--samplers does not know {name}"));
        }
        if chosen("--sampler-seq", &letter.to_string()) != [*name] {
            faults.push(format!("--sampler-seq does not take {letter} for {name}"));
        }
    }
    faults
}

/// The samplers that a flag chooses; none if it refuses the value.
fn chosen(flag: &str, value: &str) -> Vec<String> {
    let spec = Spec { name: "cli", tool: ToolSet::CLI, about: "", groups: FLAGS, positional: None };
    match spec.parse(Config::default(), &[flag.into(), value.into()], &|_| None) {
        Ok(Outcome::Run { config, .. }) => config.sampling.samplers.unwrap_or_default(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_know_every_sampler() {
        let samplers: Vec<_> = puna_sampling::SAMPLERS.iter().map(|row| (row.name, row.letter)).collect();
        crate::assert_clean(unknown_samplers(&samplers));
    }

    #[test]
    fn an_unknown_sampler_is_caught() {
        assert_eq!(unknown_samplers(&[("top_k", 'k')]), [""; 0]);
        assert_eq!(unknown_samplers(&[("top_k", 'p')]).len(), 1);
        assert_eq!(unknown_samplers(&[("nonsense", 'k')]).len(), 2);
    }
}
