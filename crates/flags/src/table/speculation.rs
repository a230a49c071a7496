//! Flags of speculative decoding.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::speculation::SPECULATION_TYPES;
use crate::table::CACHE_TYPES;
use crate::values::{at_least, choice, filled, integer, number_in, path};

const GUESSING: ToolSet = ToolSet::CHAT.or(ToolSet::SERVE);

/// Kinds that the peer has.
const NOT_YET: &[&str] = &["draft-dspark"];

/// Length of a guess: no step checks more tokens.
fn guess(value: &str) -> Result<u32, String> {
    match integer(value)? {
        length @ 0..=64 => Ok(length),
        _ => Err("expected 0 to 64".into()),
    }
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value(
        "--spec-type",
        "TYPE,...",
        "Kinds of speculative decoding; the first that has a guess is used (docs/speculation.md)",
        |c: &mut Config, v| {
            c.speculation.types.clear();
            for name in v.split(',').map(str::trim).filter(|name| *name != "none") {
                if NOT_YET.contains(&name) {
                    return Err(format!("{name} is not supported yet"));
                }
                c.speculation.types.push(choice(name, SPECULATION_TYPES)?);
            }
            Ok(())
        },
    )
    .env("LLAMA_ARG_SPEC_TYPE")
    .tools(GUESSING),
    Flag::switch("--spec-default", "Usual speculative decoding: ngram-mod", |c: &mut Config, on| {
        c.speculation.types = if on { vec!["ngram-mod"] } else { Vec::new() };
    })
    .tools(GUESSING),
    Flag::value(
        "-md --model-draft --spec-draft-model",
        "FILE",
        "Draft model of speculative decoding, which needs the model's vocabulary, or a draft head (EAGLE-3, DFlash, MTP)",
        |c: &mut Config, v| {
            c.speculation.draft_model = Some(path(v)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_SPEC_DRAFT_MODEL")
    .tools(GUESSING),
    Flag::value(
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
        "USER/MODEL[:QUANT]",
        "Draft model of the hub",
        |c: &mut Config, v| {
            c.speculation.draft_hf = Some(filled(v)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_SPEC_DRAFT_HF_REPO")
    .tools(GUESSING),
    Flag::value(
        "--spec-draft-n-max",
        "N",
        "Tokens that a draft model guesses at most, up to 64",
        |c: &mut Config, v| {
            c.speculation.draft_most = guess(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_SPEC_DRAFT_N_MAX")
    .default("3")
    .tools(GUESSING),
    Flag::value(
        "--spec-draft-n-min",
        "N",
        "Shorter guesses of a draft model are not used",
        |c: &mut Config, v| {
            c.speculation.draft_least = integer(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_SPEC_DRAFT_N_MIN")
    .default("0")
    .tools(GUESSING),
    Flag::value(
        "--spec-draft-p-min --draft-p-min",
        "P",
        "Least probability of a token that a draft model guesses",
        |c: &mut Config, v| {
            c.speculation.draft_probability = number_in(v, 0.0, 1.0)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_SPEC_DRAFT_P_MIN")
    .default("0")
    .tools(GUESSING),
    Flag::value(
        "-ctkd --cache-type-k-draft --spec-draft-type-k",
        "TYPE",
        "Format of the draft model's cached keys",
        |c: &mut Config, v| {
            c.speculation.draft_type_k = choice(v, CACHE_TYPES)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K")
    .tools(GUESSING),
    Flag::value(
        "-ctvd --cache-type-v-draft --spec-draft-type-v",
        "TYPE",
        "Format of the draft model's cached values",
        |c: &mut Config, v| {
            c.speculation.draft_type_v = choice(v, CACHE_TYPES)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-simple-size-n",
        "N",
        "Tokens that must have been there before (ngram-simple)",
        |c: &mut Config, v| {
            c.speculation.simple.size_n = at_least(v, 1)?;
            Ok(())
        },
    )
    .default("12")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-simple-size-m",
        "N",
        "Tokens of a guess, up to 64 (ngram-simple)",
        |c: &mut Config, v| {
            c.speculation.simple.size_m = guess(v)?;
            Ok(())
        },
    )
    .default("48")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-simple-min-hits",
        "N",
        "How often they must have been there (ngram-simple)",
        |c: &mut Config, v| {
            c.speculation.simple.min_hits = at_least(v, 1)?;
            Ok(())
        },
    )
    .default("1")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-map-k-size-n",
        "N",
        "Tokens that must have been there before (ngram-map-k)",
        |c: &mut Config, v| {
            c.speculation.map_k.size_n = at_least(v, 1)?;
            Ok(())
        },
    )
    .default("12")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-map-k-size-m",
        "N",
        "Tokens of a guess, up to 64 (ngram-map-k)",
        |c: &mut Config, v| {
            c.speculation.map_k.size_m = guess(v)?;
            Ok(())
        },
    )
    .default("48")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-map-k-min-hits",
        "N",
        "How often they must have been there (ngram-map-k)",
        |c: &mut Config, v| {
            c.speculation.map_k.min_hits = at_least(v, 1)?;
            Ok(())
        },
    )
    .default("1")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-map-k4v-size-n",
        "N",
        "Tokens that must have been there before (ngram-map-k4v)",
        |c: &mut Config, v| {
            c.speculation.map_k4v.size_n = at_least(v, 1)?;
            Ok(())
        },
    )
    .default("12")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-map-k4v-size-m",
        "N",
        "Tokens of a guess, up to 64 (ngram-map-k4v)",
        |c: &mut Config, v| {
            c.speculation.map_k4v.size_m = guess(v)?;
            Ok(())
        },
    )
    .default("48")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-map-k4v-min-hits",
        "N",
        "How often they must have been there (ngram-map-k4v)",
        |c: &mut Config, v| {
            c.speculation.map_k4v.min_hits = at_least(v, 1)?;
            Ok(())
        },
    )
    .default("1")
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-mod-n-match",
        "N",
        "Tokens that must agree (ngram-mod)",
        |c: &mut Config, v| {
            c.speculation.mod_match = at_least(v, 1)?;
            Ok(())
        },
    )
    .default("24")
    .tools(GUESSING),
    Flag::value("--spec-ngram-mod-n-min", "N", "Shortest guess (ngram-mod)", |c: &mut Config, v| {
        c.speculation.mod_least = guess(v)?;
        Ok(())
    })
    .default("48")
    .tools(GUESSING),
    Flag::value("--spec-ngram-mod-n-max", "N", "Longest guess, up to 64 (ngram-mod)", |c: &mut Config, v| {
        c.speculation.mod_most = guess(v)?;
        Ok(())
    })
    .default("64")
    .tools(GUESSING),
    Flag::value("--spec-draft-p-split --draft-p-split", "P", "Probability at which guesses split", |_, v| {
        number_in(v, 0.0, 1.0).map(drop)
    })
    .env("LLAMA_ARG_SPEC_DRAFT_P_SPLIT")
    .inert("a guess is one line of tokens")
    .tools(GUESSING),
    Flag::value("-td --threads-draft --spec-draft-threads", "N", "Threads of the draft model", |_, v| {
        integer::<i32>(v).map(drop)
    })
    .inert("it shares those of the model")
    .tools(GUESSING),
    Flag::value(
        "-tbd --threads-batch-draft --spec-draft-threads-batch",
        "N",
        "Threads of the draft model for prompts",
        |_, v| integer::<i32>(v).map(drop),
    )
    .inert("it shares those of the model")
    .tools(GUESSING),
    Flag::value("--draft --draft-n --draft-max", "N", "Removed: it is now --spec-draft-n-max", |_, _| {
        Err("it is now --spec-draft-n-max".into())
    })
    .tools(GUESSING),
    Flag::value("--draft-min --draft-n-min", "N", "Removed: it is now --spec-draft-n-min", |_, _| {
        Err("it is now --spec-draft-n-min".into())
    })
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-size-n",
        "N",
        "Removed: it is now --spec-ngram-simple-size-n and its kin",
        |_, _| Err("it is now --spec-ngram-simple-size-n and its kin".into()),
    )
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-size-m",
        "N",
        "Removed: it is now --spec-ngram-simple-size-m and its kin",
        |_, _| Err("it is now --spec-ngram-simple-size-m and its kin".into()),
    )
    .tools(GUESSING),
    Flag::value(
        "--spec-ngram-min-hits",
        "N",
        "Removed: it is now --spec-ngram-simple-min-hits and its kin",
        |_, _| Err("it is now --spec-ngram-simple-min-hits and its kin".into()),
    )
    .tools(GUESSING),
];
