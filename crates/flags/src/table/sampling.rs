//! How the next token is chosen.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{at_least, filled, integer, number, number_in, positive};

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
            let known =
                SEQUENCE.iter().find(|(_, known)| *known == name).map(|(_, known)| (*known).to_owned());
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

/// Accepts only the values that switch a sampler off: zero and below.
fn off(value: &str) -> Result<(), String> {
    if number(value)? <= 0.0 {
        Ok(())
    } else {
        Err("this sampler is not supported yet; 0 switches it off".into())
    }
}

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
    .tools(ToolSet::GENERATE),
    Flag::value("--top-k", "N", "Keep the N most likely tokens; 0 means all", |c: &mut Config, v| {
        c.sampling.top_k = integer(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_TOP_K")
    .default("40")
    .tools(ToolSet::GENERATE),
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
    .tools(ToolSet::GENERATE),
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
    .tools(ToolSet::GENERATE),
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
        "The same with one letter each, out of edskypmxt",
        |c: &mut Config, v| {
            c.sampling.samplers = Some(sampler_letters(v)?);
            Ok(())
        },
    )
    .tools(ToolSet::GENERATE),
    Flag::value("--top-nsigma --top-n-sigma", "N", "Only -1 (off) so far", |_, v| off(v))
        .default("-1")
        .tools(ToolSet::GENERATE),
    Flag::value("--xtc-probability", "N", "Only 0 (off) so far", |_, v| off(v))
        .default("0")
        .tools(ToolSet::GENERATE),
    Flag::value("--xtc-threshold", "N", "Threshold of xtc", |_, v| number(v).map(drop))
        .inert("xtc is off")
        .tools(ToolSet::GENERATE),
    Flag::value("--dry-multiplier", "N", "Only 0 (off) so far", |_, v| off(v))
        .default("0")
        .tools(ToolSet::GENERATE),
    Flag::value("--dry-base", "N", "Base of dry", |_, v| number(v).map(drop))
        .inert("dry is off")
        .tools(ToolSet::GENERATE),
    Flag::value("--dry-allowed-length", "N", "Allowed length of dry", |_, v| integer::<i32>(v).map(drop))
        .inert("dry is off")
        .tools(ToolSet::GENERATE),
    Flag::value("--dry-penalty-last-n", "N", "Tokens that dry looks back on", |_, v| {
        integer::<i32>(v).map(drop)
    })
    .inert("dry is off")
    .tools(ToolSet::GENERATE),
    Flag::text("--dry-sequence-breaker", "TEXT", "Breaker of dry", |_, v| filled(v).map(drop))
        .inert("dry is off")
        .tools(ToolSet::GENERATE),
    Flag::value("--adaptive-target", "N", "Only -1 (off) so far", |_, v| match number(v)? {
        target if target < 0.0 => Ok(()),
        _ => Err("this sampler is not supported yet; -1 switches it off".into()),
    })
    .default("-1")
    .tools(ToolSet::GENERATE),
    Flag::value("--adaptive-decay", "N", "Decay of adaptive-p", |_, v| number(v).map(drop))
        .inert("adaptive-p is off")
        .tools(ToolSet::GENERATE),
    Flag::value("--dynatemp-range", "N", "Only 0 (off) so far", |_, v| off(v))
        .default("0")
        .tools(ToolSet::GENERATE),
    Flag::value("--dynatemp-exp", "N", "Exponent of the dynamic temperature", |_, v| number(v).map(drop))
        .inert("the dynamic temperature is off")
        .tools(ToolSet::GENERATE),
    Flag::value("--mirostat", "N", "Only 0 (off) so far", |_, v| off(v))
        .default("0")
        .tools(ToolSet::GENERATE),
    Flag::value("--mirostat-lr", "N", "Learning rate of mirostat", |_, v| number(v).map(drop))
        .inert("mirostat is off")
        .tools(ToolSet::GENERATE),
    Flag::value("--mirostat-ent", "N", "Target of mirostat", |_, v| number(v).map(drop))
        .inert("mirostat is off")
        .tools(ToolSet::GENERATE),
    Flag::not_yet("--grammar", "GRAMMAR", "Grammar (GBNF) for the output").tools(ToolSet::GENERATE),
    Flag::not_yet("--grammar-file", "FILE", "File with the grammar").tools(ToolSet::GENERATE),
    Flag::not_yet("-j --json-schema", "SCHEMA", "JSON schema for the output").tools(ToolSet::GENERATE),
    Flag::not_yet("-jf --json-schema-file", "FILE", "File with the schema").tools(ToolSet::GENERATE),
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
