//! Devices and placement.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{TOGGLE_WORDS, boolean, choice, integer, integers, number};

const ONE_DEVICE: &str = "a model runs as a whole on the device of --device";

/// A number, -1 and `auto`, or `all`.
fn gpu_layers(value: &str) -> Result<(), String> {
    match value {
        "auto" | "-1" | "all" | "-2" => Ok(()),
        _ => integer::<u32>(value).map(drop).map_err(|_| "expected a number, auto or all".into()),
    }
}

/// One device; `auto` and `none` (which means no device but the CPU) leave the choice to the program.
pub(crate) fn device(value: &str) -> Result<Option<String>, String> {
    match value.trim() {
        "auto" | "none" => Ok(None),
        "" => Err("expected the name of a device, auto or none".into()),
        name if name.contains([',', '/']) => Err("a model runs on one device: name one".into()),
        name => Ok(Some(name.to_owned())),
    }
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value(
        "-ngl --gpu-layers --n-gpu-layers",
        "N|auto|all",
        "Layers on devices other than the CPU",
        |_, v| gpu_layers(v),
    )
    .env("LLAMA_ARG_N_GPU_LAYERS")
    .inert(ONE_DEVICE)
    .tools(ToolSet::ENGINE),
    Flag::value(
        "-dev --device",
        "NAME",
        "Device to use, of those that --list-devices names; none means the CPU",
        |c: &mut Config, v| {
            c.device.name = device(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_DEVICE")
    .default("auto")
    .tools(ToolSet::ENGINE),
    Flag::value("-sm --split-mode", "none|layer|row|tensor", "How a model is split over devices", |_, v| {
        choice(v, &["none", "layer", "row", "tensor"]).map(drop)
    })
    .env("LLAMA_ARG_SPLIT_MODE")
    .inert(ONE_DEVICE)
    .tools(ToolSet::ENGINE),
    Flag::value("-ts --tensor-split", "N,N,...", "Shares of the devices", |_, v| {
        v.split([',', '/', ';']).try_for_each(|share| number(share).map(drop))
    })
    .env("LLAMA_ARG_TENSOR_SPLIT")
    .inert(ONE_DEVICE)
    .tools(ToolSet::ENGINE),
    Flag::value("-mg --main-gpu", "INDEX", "First device", |_, v| integer::<u32>(v).map(drop))
        .env("LLAMA_ARG_MAIN_GPU")
        .inert(ONE_DEVICE)
        .tools(ToolSet::ENGINE),
    Flag::value("-ot --override-tensor", "REGEX=DEVICE,...", "Place tensors by name", |_, v| {
        let all = v.split(',').all(|item| {
            item.split_once('=').is_some_and(|(name, place)| !name.is_empty() && !place.is_empty())
        });
        if all { Ok(()) } else { Err("expected REGEX=DEVICE".into()) }
    })
    .env("LLAMA_ARG_OVERRIDE_TENSOR")
    .inert(ONE_DEVICE)
    .tools(ToolSet::ENGINE),
    Flag::switch("-cmoe --cpu-moe", "Experts on the CPU", |_, _| ())
        .env("LLAMA_ARG_CPU_MOE")
        .inert(ONE_DEVICE)
        .tools(ToolSet::ENGINE),
    Flag::value("-ncmoe --n-cpu-moe", "N", "Experts of the first N layers on the CPU", |_, v| {
        integer::<u32>(v).map(drop)
    })
    .env("LLAMA_ARG_N_CPU_MOE")
    .inert(ONE_DEVICE)
    .tools(ToolSet::ENGINE),
    Flag::value(
        "-ncffn --n-cpu-ffn",
        "N",
        "Feed-forward weights of the first N layers on the CPU",
        |_, v| integer::<u32>(v).map(drop),
    )
    .env("LLAMA_ARG_N_CPU_FFN")
    .inert(ONE_DEVICE)
    .tools(ToolSet::ENGINE),
    Flag::word("-fit --fit", "on|off", TOGGLE_WORDS, "Shrink the context so that the model fits", |_, v| {
        boolean(v).map(drop)
    })
    .env("LLAMA_ARG_FIT")
    .inert(ONE_DEVICE)
    .tools(ToolSet::ENGINE),
    Flag::value("-fitt --fit-target", "MIB,...", "Memory to leave free on each device", |_, v| {
        integers::<u32>(v).map(drop)
    })
    .env("LLAMA_ARG_FIT_TARGET")
    .inert(ONE_DEVICE)
    .tools(ToolSet::ENGINE),
    Flag::value("-fitc --fit-ctx", "N", "Least context that --fit may choose", |_, v| {
        integer::<u32>(v).map(drop)
    })
    .env("LLAMA_ARG_FIT_CTX")
    .inert(ONE_DEVICE)
    .tools(ToolSet::ENGINE),
    Flag::switch("-kvo --kv-offload", "Caches on the device of their layer", |_, _| ())
        .negative("-nkvo --no-kv-offload")
        .env("LLAMA_ARG_KV_OFFLOAD")
        .inert(ONE_DEVICE)
        .tools(ToolSet::ENGINE),
    Flag::switch("--op-offload", "Large operations of the CPU's layers on a device", |_, _| ())
        .negative("--no-op-offload")
        .inert(ONE_DEVICE)
        .tools(ToolSet::ENGINE),
    Flag::switch("--no-host", "No pinned host memory", |_, _| ())
        .env("LLAMA_ARG_NO_HOST")
        .inert(ONE_DEVICE)
        .tools(ToolSet::ENGINE),
    Flag::switch("--repack", "Convert weights to the layout that kernels read", |_, _| ())
        .negative("-nr --no-repack")
        .env("LLAMA_ARG_REPACK")
        .inert("they always are")
        .tools(ToolSet::ENGINE),
    Flag::not_yet("--rpc", "HOST:PORT,...", "Devices of other machines")
        .env("LLAMA_ARG_RPC")
        .tools(ToolSet::ENGINE),
];
