//! How the next token is chosen.

use crate::config::{Config, GrammarSource};
use crate::flag::{Flag, ToolSet};
use crate::values::{at_least, filled, integer, number, number_in, path, positive};

/// Letters of `--sampler-seq` and the samplers they stand for.
const SEQUENCE: &[(char, &str)] = &[
    ('e', "penalties"),
    ('d', "dry"),
    ('s', "top_n_sigma"),
    ('k', "top_k"),
    ('y', "typ_p"),
    ('p', "top_p"),
    ('m', "min_p"),
    ('x', "xtc"),
    ('t', "temperature"),
    ('i', "infill"),
    ('a', "adaptive_p"),
];

fn sampler_letters(value: &str) -> Result<Vec<String>, String> {
    let name =
        |letter| SEQUENCE.iter().find(|(known, _)| *known == letter).map(|(_, name)| (*name).to_owned());
    value.chars().map(|letter| name(letter).ok_or_else(|| format!("{letter} is no sampler"))).collect()
}

/// Sampler names separated by semicolons, in the spellings that scripts use.
fn sampler_names(value: &str) -> Result<Vec<String>, String> {
    let parts = value.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let plain = part.to_ascii_lowercase().replace('-', "_");
            let name = match plain.as_str() {
                "temp" => "temperature",
                "typical" | "typical_p" | "typ" => "typ_p",
                "nucleus" => "top_p",
                "top_nsigma" => "top_n_sigma",
                other => other,
            };
            let same = |known: &str| known == name || known.replace('_', "") == name;
            let known = SEQUENCE.iter().find(|(_, known)| same(known)).map(|(_, known)| (*known).to_owned());
            known.ok_or_else(|| format!("{part} is no sampler"))
        })
        .collect()
}

/// `ID+BIAS` or `ID-BIAS`; `-inf` rules a token out.
fn logit_bias(value: &str) -> Result<(u32, f32), String> {
    let shape = || "expected TOKEN_ID+BIAS or TOKEN_ID-BIAS".to_owned();
    let sign = value.find(['+', '-']).ok_or_else(shape)?;
    let (id, bias) = value.split_at(sign);
    let id = id.trim().parse().map_err(|_| shape())?;
    match bias.parse::<f32>() {
        Ok(bias) if !bias.is_nan() && bias != f32::INFINITY => Ok((id, bias)),
        _ => Err(shape()),
    }
}

/// Tools that draw tokens.
const DRAW: ToolSet = ToolSet::GENERATE.or(ToolSet::DIFFUSION);

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value(
        "--temp --temperature",
        "N",
        "Temperature; 0 means always the most likely token",
        |c: &mut Config, v| {
            c.sampling.temperature = number(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_TEMPERATURE")
    .default("0.8")
    .tools(DRAW),
    Flag::value("--top-k", "N", "Keep the N most likely tokens; 0 means all", |c: &mut Config, v| {
        c.sampling.top_k = integer(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_TOP_K")
    .default("40")
    .tools(DRAW),
    Flag::value(
        "--top-p",
        "N",
        "Keep tokens up to this total probability; 1 means all",
        |c: &mut Config, v| {
            c.sampling.top_p = number_in(v, 0.0, 1.0)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_TOP_P")
    .default("0.95")
    .tools(DRAW),
    Flag::value(
        "--min-p",
        "N",
        "Drop tokens below this share of the most likely one's probability; 0 means none",
        |c: &mut Config, v| {
            c.sampling.min_p = number_in(v, 0.0, 1.0)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_MIN_P")
    .default("0.05")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--typical --typical-p",
        "N",
        "Locally typical probability; 1 means all",
        |c: &mut Config, v| {
            c.sampling.typical_p = number_in(v, 0.0, 1.0)?;
            Ok(())
        },
    )
    .default("1")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "-s --seed",
        "N",
        "Start of the random numbers; -1 means a new one each time",
        |c: &mut Config, v| {
            c.sampling.seed = match integer::<i64>(v)? {
                -1 | 0xffff_ffff => None,
                other => Some(u32::try_from(other).map_err(|_| "expected -1 to 4294967295".to_owned())?),
            };
            Ok(())
        },
    )
    .default("-1")
    .tools(DRAW),
    Flag::value(
        "--repeat-last-n",
        "N",
        "Tokens that penalties look back on; 0 means none, -1 the whole context",
        |c: &mut Config, v| {
            c.sampling.repeat_last_n = at_least(v, -1)?;
            Ok(())
        },
    )
    .default("64")
    .tools(ToolSet::GENERATE),
    Flag::value("--repeat-penalty", "N", "Divisor for repeated tokens; 1 means none", |c: &mut Config, v| {
        c.sampling.repeat_penalty = positive(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_REPEAT_PENALTY")
    .default("1")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--presence-penalty",
        "N",
        "Subtracted from tokens that have occurred",
        |c: &mut Config, v| {
            c.sampling.presence_penalty = number(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_PRESENCE_PENALTY")
    .default("0")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--frequency-penalty",
        "N",
        "Subtracted for each time that a token has occurred",
        |c: &mut Config, v| {
            c.sampling.frequency_penalty = number(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_FREQUENCY_PENALTY")
    .default("0")
    .tools(ToolSet::GENERATE),
    Flag::text(
        "-l --logit-bias",
        "ID(+/-)BIAS",
        "Add a bias to a token; may be repeated",
        |c: &mut Config, v| {
            for item in v.split(',') {
                c.sampling.logit_bias.push(logit_bias(item)?);
            }
            Ok(())
        },
    )
    .tools(ToolSet::GENERATE),
    Flag::switch("--ignore-eos", "Go on after the end of the text", |c: &mut Config, on| {
        c.sampling.ignore_eos = on
    })
    .tools(ToolSet::GENERATE),
    Flag::value("--samplers", "NAME;NAME...", "Samplers and their order", |c: &mut Config, v| {
        c.sampling.samplers = Some(sampler_names(v)?);
        Ok(())
    })
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--sampler-seq --sampling-seq",
        "LETTERS",
        "The same with one letter each, out of edskypmxtia",
        |c: &mut Config, v| {
            c.sampling.samplers = Some(sampler_letters(v)?);
            Ok(())
        },
    )
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--top-nsigma --top-n-sigma",
        "N",
        "Keep tokens whose logit is within N standard deviations of the best; -1 means all",
        |c: &mut Config, v| {
            c.sampling.top_n_sigma = number(v)?;
            Ok(())
        },
    )
    .default("-1")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--xtc-probability",
        "N",
        "How often the most likely tokens are dropped; 0 means never",
        |c: &mut Config, v| {
            c.sampling.xtc_probability = number_in(v, 0.0, 1.0)?;
            Ok(())
        },
    )
    .default("0")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--xtc-threshold",
        "N",
        "Least probability of tokens that are dropped then; above 0.5 means none",
        |c: &mut Config, v| {
            c.sampling.xtc_threshold = number_in(v, 0.0, 1.0)?;
            Ok(())
        },
    )
    .default("0.1")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--dry-multiplier",
        "N",
        "Strength of the penalty for repeated sequences; 0 means none",
        |c: &mut Config, v| {
            c.sampling.dry_multiplier = number(v)?;
            Ok(())
        },
    )
    .default("0")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--dry-base",
        "N",
        "Base of that penalty: it grows by this factor with each token; below 1 means none",
        |c: &mut Config, v| {
            c.sampling.dry_base = number(v)?;
            Ok(())
        },
    )
    .default("1.75")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--dry-allowed-length",
        "N",
        "Repeated sequences up to this length cost nothing",
        |c: &mut Config, v| {
            c.sampling.dry_allowed_length = at_least(v, 0)?;
            Ok(())
        },
    )
    .default("2")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--dry-penalty-last-n",
        "N",
        "Tokens in which repetitions are looked for; 0 means none, -1 the whole context",
        |c: &mut Config, v| {
            c.sampling.dry_penalty_last_n = at_least(v, -1)?;
            Ok(())
        },
    )
    .default("64")
    .tools(ToolSet::GENERATE),
    Flag::text(
        "--dry-sequence-breaker",
        "TEXT",
        "Text that ends a repeated sequence instead of line break, colon, quote and star; may be repeated, none means no text",
        |c: &mut Config, v| {
            let breakers = c.sampling.dry_breakers.get_or_insert_default();
            match v {
                "none" => breakers.clear(),
                text => breakers.push(filled(text)?),
            }
            Ok(())
        },
    )
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--adaptive-target",
        "N",
        "Mean probability of the chosen tokens for the sampler adaptive_p; -1 means off",
        |c: &mut Config, v| {
            c.sampling.adaptive_target = number_in(v, f32::MIN, 1.0)?;
            Ok(())
        },
    )
    .default("-1")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--adaptive-decay",
        "N",
        "Weight that older tokens keep in that mean",
        |c: &mut Config, v| {
            c.sampling.adaptive_decay = number_in(v, 0.0, 0.99)?;
            Ok(())
        },
    )
    .default("0.9")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--dynatemp-range",
        "N",
        "How far the temperature moves around its value with the entropy; 0 means not at all",
        |c: &mut Config, v| {
            c.sampling.dynatemp_range = number_in(v, 0.0, f32::MAX)?;
            Ok(())
        },
    )
    .default("0")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--dynatemp-exp",
        "N",
        "Exponent of the entropy's share in that",
        |c: &mut Config, v| {
            c.sampling.dynatemp_exponent = number(v)?;
            Ok(())
        },
    )
    .default("1")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--mirostat",
        "N",
        "Mirostat 1 or 2 instead of all samplers but the temperature; 0 means off",
        |c: &mut Config, v| {
            c.sampling.mirostat = match integer::<i32>(v)? {
                version @ 0..=2 => version,
                _ => return Err("expected 0, 1 or 2".into()),
            };
            Ok(())
        },
    )
    .default("0")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--mirostat-lr",
        "N",
        "Learning rate of mirostat",
        |c: &mut Config, v| {
            c.sampling.mirostat_eta = number(v)?;
            Ok(())
        },
    )
    .default("0.1")
    .tools(ToolSet::GENERATE),
    Flag::value(
        "--mirostat-ent",
        "N",
        "Surprise in bits that mirostat comes to",
        |c: &mut Config, v| {
            c.sampling.mirostat_tau = number(v)?;
            Ok(())
        },
    )
    .default("5")
    .tools(ToolSet::GENERATE),
    Flag::text("--grammar", "GRAMMAR", "Grammar that the output has to follow: GBNF, or Lark after %llguidance", |c: &mut Config, v| {
        c.sampling.grammar = Some(GrammarSource::Text(filled(v)?));
        Ok(())
    })
    .tools(ToolSet::GENERATE.or(ToolSet::GRAMMAR)),
    Flag::value("--grammar-file", "FILE", "File with such a grammar", |c: &mut Config, v| {
        c.sampling.grammar = Some(GrammarSource::File(path(v)?));
        Ok(())
    })
    .tools(ToolSet::GENERATE.or(ToolSet::GRAMMAR)),
    Flag::text("-j --json-schema", "SCHEMA", "JSON schema that the output has to follow", |c: &mut Config, v| {
        c.sampling.grammar = Some(GrammarSource::Schema(filled(v)?));
        Ok(())
    })
    .tools(ToolSet::GENERATE.or(ToolSet::GRAMMAR)),
    Flag::value("-jf --json-schema-file", "FILE", "File with such a schema", |c: &mut Config, v| {
        c.sampling.grammar = Some(GrammarSource::SchemaFile(path(v)?));
        Ok(())
    })
    .tools(ToolSet::GENERATE.or(ToolSet::GRAMMAR)),
    Flag::switch("-bs --backend-sampling", "Choose tokens on the device", |_, _| ())
        .env("LLAMA_ARG_BACKEND_SAMPLING")
        .inert("the result is the same")
        .tools(ToolSet::GENERATE),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_lists() {
        assert_eq!(sampler_letters("kt").unwrap(), ["top_k", "temperature"]);
        assert!(sampler_letters("kz").is_err());
        assert_eq!(sampler_names("top-k; typical;temp").unwrap(), ["top_k", "typ_p", "temperature"]);
        assert_eq!(sampler_names("minp;adaptive-p;infill").unwrap(), ["min_p", "adaptive_p", "infill"]);
        assert!(sampler_names("top_k;what").is_err());
    }

    #[test]
    fn biases() {
        assert_eq!(logit_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(logit_bias("7-0.5"), Ok((7, -0.5)));
        assert_eq!(logit_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in ["", "7", "x+1", "-1+2", "7+x", "7+nan", "7+inf", "7+1e99"] {
            assert!(logit_bias(wrong).is_err(), "{wrong}");
        }
    }
}
