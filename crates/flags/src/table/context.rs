//! Context, batches, caches and position encoding.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{TOGGLE_WORDS, at_least, choice, integer, number, number_in, toggle};

/// Number formats that a cache may have.
pub(crate) const CACHE_TYPES: &[&str] =
    &["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"];

const ONE_SEQUENCE: &str = "this tool runs one sequence";
/// Tools that run one sequence whatever they are told.
const ALONE: ToolSet = ToolSet::CHAT.or(ToolSet::SIMPLE).or(ToolSet::LOGITS).or(ToolSet::DIFFUSION);
const SIZED: ToolSet = ToolSet::ENGINE.or(ToolSet::INFO);

fn cache_type(value: &str) -> Result<&'static str, String> {
    choice(&value.to_ascii_lowercase(), CACHE_TYPES)
}

fn positive(value: &str) -> Result<Option<f32>, String> {
    match number(value)? {
        number if number > 0.0 => Ok(Some(number)),
        _ => Err("expected a number above 0".into()),
    }
}

/// A number whose negative values leave the choice to the model.
fn from_model(value: &str) -> Result<Option<f32>, String> {
    number(value).map(|number| (number >= 0.0).then_some(number))
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value(
        "-c --ctx-size",
        "N",
        "Tokens in the context; 0 means what the model was trained with",
        |c: &mut Config, v| {
            c.context.size = at_least(v, 0)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_CTX_SIZE")
    .default("0")
    .tools(SIZED),
    Flag::value(
        "-b --batch-size",
        "N",
        "Tokens handed over at once: the upper limit of -ub",
        |c: &mut Config, v| {
            c.context.batch = at_least(v, 1)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_BATCH")
    .default("2048")
    .tools(SIZED),
    Flag::value("-ub --ubatch-size", "N", "Tokens computed at once", |c: &mut Config, v| {
        c.context.micro_batch = at_least(v, 1)?;
        Ok(())
    })
    .env("LLAMA_ARG_UBATCH")
    .default("512")
    .tools(SIZED),
    Flag::value(
        "--keep",
        "N",
        "Tokens of the prompt that stay when the context shifts; -1 means all",
        |c: &mut Config, v| {
            c.context.keep = at_least(v, -1)?;
            Ok(())
        },
    )
    .default("0")
    .tools(ToolSet::GENERATE),
    Flag::switch("--context-shift", "Drop old tokens when the context is full", |c: &mut Config, on| {
        c.context.shift = on;
    })
    .negative("--no-context-shift")
    .env("LLAMA_ARG_CONTEXT_SHIFT")
    .default("off")
    .tools(ToolSet::GENERATE),
    Flag::switch(
        "--swa-full",
        "Cache the full context in layers with a sliding window",
        |c: &mut Config, on| {
            c.context.full_window = on;
        },
    )
    .env("LLAMA_ARG_SWA_FULL")
    .tools(SIZED),
    Flag::word("-fa --flash-attn", "on|off|auto", TOGGLE_WORDS, "Flash-style attention", |_, v| {
        toggle(v).map(drop)
    })
    .env("LLAMA_ARG_FLASH_ATTN")
    .inert("there is one kind of attention, which is flash-style")
    .tools(ToolSet::ENGINE),
    Flag::value(
        "-ctk --cache-type-k",
        "TYPE",
        "Number format of cached keys: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0 or q5_1",
        |c: &mut Config, v| {
            c.context.type_k = cache_type(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_CACHE_TYPE_K")
    .default("f16")
    .tools(SIZED),
    Flag::value(
        "-ctv --cache-type-v",
        "TYPE",
        "Number format of cached values, the same ones",
        |c: &mut Config, v| {
            c.context.type_v = cache_type(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_CACHE_TYPE_V")
    .default("f16")
    .tools(SIZED),
    Flag::switch("--warmup", "Run once before the first prompt", |_, _| ())
        .negative("--no-warmup")
        .inert("loading leaves nothing to warm up")
        .tools(ToolSet::ENGINE),
    Flag::value("--rope-scaling", "none|linear|yarn", "Scaling of positions", |c: &mut Config, v| {
        c.rope.scaling = Some(choice(v, &["none", "linear", "yarn"])?);
        Ok(())
    })
    .env("LLAMA_ARG_ROPE_SCALING_TYPE")
    .tools(ToolSet::ENGINE),
    Flag::value("--rope-scale", "N", "Factor by which the context grows", |c: &mut Config, v| {
        c.rope.scale = positive(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_ROPE_SCALE")
    .tools(ToolSet::ENGINE),
    Flag::value("--rope-freq-base", "N", "Base frequency of positions", |c: &mut Config, v| {
        c.rope.freq_base = positive(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_ROPE_FREQ_BASE")
    .tools(ToolSet::ENGINE),
    Flag::value(
        "--rope-freq-scale",
        "N",
        "Factor on frequencies: the inverse of --rope-scale",
        |c: &mut Config, v| {
            c.rope.scale = positive(v)?.map(|scale| 1.0 / scale);
            Ok(())
        },
    )
    .env("LLAMA_ARG_ROPE_FREQ_SCALE")
    .tools(ToolSet::ENGINE),
    Flag::value(
        "--yarn-orig-ctx",
        "N",
        "YaRN: context of the training; 0 means the model's",
        |c: &mut Config, v| {
            c.rope.yarn_orig_ctx = Some(integer(v)?).filter(|tokens| *tokens > 0);
            Ok(())
        },
    )
    .env("LLAMA_ARG_YARN_ORIG_CTX")
    .default("0")
    .tools(ToolSet::ENGINE),
    Flag::value(
        "--yarn-ext-factor",
        "N",
        "YaRN: mix of extrapolation; -1 means the model's",
        |c: &mut Config, v| {
            c.rope.yarn_ext_factor = from_model(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_YARN_EXT_FACTOR")
    .default("-1")
    .tools(ToolSet::ENGINE),
    Flag::value(
        "--yarn-attn-factor",
        "N",
        "YaRN: factor on attention; -1 means the model's",
        |c: &mut Config, v| {
            c.rope.yarn_attn_factor = from_model(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_YARN_ATTN_FACTOR")
    .default("-1")
    .tools(ToolSet::ENGINE),
    Flag::value(
        "--yarn-beta-slow",
        "N",
        "YaRN: high correction dimension; -1 means the model's",
        |c: &mut Config, v| {
            c.rope.yarn_beta_slow = from_model(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_YARN_BETA_SLOW")
    .default("-1")
    .tools(ToolSet::ENGINE),
    Flag::value(
        "--yarn-beta-fast",
        "N",
        "YaRN: low correction dimension; -1 means the model's",
        |c: &mut Config, v| {
            c.rope.yarn_beta_fast = from_model(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_YARN_BETA_FAST")
    .default("-1")
    .tools(ToolSet::ENGINE),
    Flag::value("-gan --grp-attn-n", "N", "Self-extend factor; only 1 (off) so far", |_, v| match number_in(
        v,
        1.0,
        f32::MAX,
    )? {
        1.0 => Ok(()),
        _ => Err("self-extend is not supported yet".into()),
    })
    .env("LLAMA_ARG_GRP_ATTN_N")
    .default("1")
    .tools(ToolSet::COMPLETION),
    Flag::value("-gaw --grp-attn-w", "N", "Width of self-extend", |_, v| integer::<u32>(v).map(drop))
        .env("LLAMA_ARG_GRP_ATTN_W")
        .inert("self-extend is off")
        .tools(ToolSet::COMPLETION),
    Flag::value("-np --parallel", "N", "Sequences at once", |_, v| integer::<i32>(v).map(drop))
        .env("LLAMA_ARG_N_PARALLEL")
        .inert(ONE_SEQUENCE)
        .tools(ALONE),
    Flag::switch("-kvu --kv-unified", "One cache for all sequences", |_, _| ())
        .negative("-no-kvu --no-kv-unified")
        .env("LLAMA_ARG_KV_UNIFIED")
        .inert("all sequences share one cache")
        .tools(ToolSet::ENGINE),
    Flag::value(
        "-ctxcp --ctx-checkpoints --swa-checkpoints",
        "N",
        "Earlier states kept of a sequence of a recurrent or windowed model",
        |_, v| integer::<u32>(v).map(drop),
    )
    .env("LLAMA_ARG_CTX_CHECKPOINTS")
    .inert("four recurrent states per sequence, and half a window, are always kept")
    .tools(ToolSet::CLI.or(ToolSet::SERVE)),
    Flag::value("-cram --cache-ram", "MIB", "Memory for saved prompts", |_, v| integer::<i32>(v).map(drop))
        .env("LLAMA_ARG_CACHE_RAM")
        .inert("one conversation has nothing to save")
        .tools(ToolSet::CLI),
    Flag::value("-dt --defrag-thold", "N", "Deprecated", |_, v| number(v).map(drop))
        .env("LLAMA_ARG_DEFRAG_THOLD")
        .inert("caches do not fragment")
        .tools(ToolSet::ENGINE),
];
