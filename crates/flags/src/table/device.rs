//! Devices and placement.

use crate::config::{Config, Layers};
use crate::flag::{Flag, ToolSet};
use crate::values::{TOGGLE_WORDS, boolean, choice, integer, integers, number};

/// Ways to split a model over devices; the last two are the same.
pub(crate) const SPLITS: &[&str] = &["none", "layer", "row", "tensor"];

/// A number, -1 and `auto`, or `all`.
pub(crate) fn gpu_layers(value: &str) -> Result<Layers, String> {
    match value {
        "auto" | "-1" => Ok(Layers::Fitting),
        "all" | "-2" => Ok(Layers::All),
        _ => integer::<u32>(value).map(Layers::Count).map_err(|_| "expected a number, auto or all".into()),
    }
}

/// Devices, separated by `separators`; `auto` leaves the choice to the program, `none` means no device but the CPU.
pub fn devices(value: &str, separators: &[char]) -> Result<Option<Vec<String>>, String> {
    match value.trim() {
        "auto" => return Ok(None),
        "none" => return Ok(Some(Vec::new())),
        _ => {}
    }
    let mut names: Vec<String> = Vec::new();
    for name in value.split(separators).map(str::trim) {
        match name {
            "" | "auto" | "none" => return Err("expected names of devices, auto or none".into()),
            name if names.iter().any(|other| other.eq_ignore_ascii_case(name)) => {
                return Err(format!("{name} is named twice"));
            }
            name => names.push(name.to_owned()),
        }
    }
    Ok(Some(names))
}

/// `REGEX=DEVICE` items, separated by `separator`.
pub fn overrides(value: &str, separator: char) -> Result<Vec<(String, String)>, String> {
    let item = |item: &str| match item.rsplit_once('=') {
        Some((pattern, device)) if !pattern.is_empty() && !device.is_empty() => {
            Ok((pattern.to_owned(), device.to_owned()))
        }
        _ => Err("expected REGEX=DEVICE".to_owned()),
    };
    value.split(separator).map(item).collect()
}

/// Shares of devices.
pub(crate) fn shares(value: &str, separators: &[char]) -> Result<Vec<f32>, String> {
    let share = |item: &str| match number(item)? {
        share if share < 0.0 => Err("expected numbers of at least 0".to_owned()),
        share => Ok(share),
    };
    let shares: Vec<f32> = value.split(separators).map(share).collect::<Result<_, _>>()?;
    match shares.iter().all(|share| *share == 0.0) {
        true => Err("expected a share above 0 for some device".into()),
        false => Ok(shares),
    }
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value(
        "-ngl --gpu-layers --n-gpu-layers",
        "N|auto|all",
        "Layers on devices other than the CPU: the last N, the output counted as one; auto: as many as fit",
        |c: &mut Config, v| {
            c.device.layers = gpu_layers(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_N_GPU_LAYERS")
    .default("auto")
    .tools(ToolSet::PLACED),
    Flag::value(
        "-dev --device",
        "NAME,...",
        "Devices for layers, of those that --list-devices names; auto: all NVIDIA cards; none: the CPU alone",
        |c: &mut Config, v| {
            c.device.names = devices(v, &[','])?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_DEVICE")
    .default("auto")
    .tools(ToolSet::PLACED),
    Flag::value(
        "-sm --split-mode",
        "none|layer|row|tensor",
        "How a model is split over several devices: by layers; row or tensor: by rows of matrices; none: that of -mg alone",
        |c: &mut Config, v| {
            c.device.split = choice(v, SPLITS)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_SPLIT_MODE")
    .default("layer")
    .tools(ToolSet::PLACED),
    Flag::value(
        "-ts --tensor-split",
        "N,N,...",
        "Shares of the devices, in any unit; what they have free if absent",
        |c: &mut Config, v| {
            c.device.shares = shares(v, &[',', '/', ';'])?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_TENSOR_SPLIT")
    .tools(ToolSet::PLACED),
    Flag::value("-mg --main-gpu", "INDEX", "The device, counted from 0, of -sm none", |c: &mut Config, v| {
        c.device.main = integer(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_MAIN_GPU")
    .default("0")
    .tools(ToolSet::PLACED),
    Flag::value(
        "-ot --override-tensor",
        "REGEX=DEVICE,...",
        "Devices of the tensors whose names a pattern finds; the first pattern counts",
        |c: &mut Config, v| {
            c.device.overrides.append(&mut overrides(v, ',')?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_OVERRIDE_TENSOR")
    .tools(ToolSet::PLACED),
    Flag::switch("-cmoe --cpu-moe", "Experts of all layers on the CPU", |c: &mut Config, on| {
        c.device.cpu_moe = if on { u32::MAX } else { 0 };
    })
    .env("LLAMA_ARG_CPU_MOE")
    .tools(ToolSet::PLACED),
    Flag::value("-ncmoe --n-cpu-moe", "N", "Experts of the first N layers on the CPU", |c: &mut Config, v| {
        c.device.cpu_moe = integer::<u32>(v)?.max(c.device.cpu_moe);
        Ok(())
    })
    .env("LLAMA_ARG_N_CPU_MOE")
    .tools(ToolSet::PLACED),
    Flag::value(
        "-ncffn --n-cpu-ffn",
        "N",
        "Dense feed-forward weights of the first N layers on the CPU",
        |c: &mut Config, v| {
            c.device.cpu_ffn = integer(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_N_CPU_FFN")
    .tools(ToolSet::PLACED),
    Flag::word(
        "-fit --fit",
        "on|off",
        TOGGLE_WORDS,
        "Let what was not asked for (context, experts, layers) follow from the memory that is free",
        |c: &mut Config, v| {
            c.device.fit = boolean(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_FIT")
    .default("on")
    .tools(ToolSet::PLACED),
    Flag::value(
        "-fitt --fit-target",
        "MIB,...",
        "MiB to leave free on each device; the last one counts for the rest",
        |c: &mut Config, v| {
            c.device.fit_target = integers(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_FIT_TARGET")
    .default("1024")
    .tools(ToolSet::PLACED),
    Flag::value("-fitc --fit-ctx", "N", "Least context that --fit may choose", |c: &mut Config, v| {
        c.device.fit_context = integer(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_FIT_CTX")
    .default("4096")
    .tools(ToolSet::PLACED),
    Flag::switch("-kvo --kv-offload", "Caches on the device of their layer", |c: &mut Config, on| {
        c.device.kv_offload = on;
    })
    .negative("-nkvo --no-kv-offload")
    .env("LLAMA_ARG_KV_OFFLOAD")
    .default("on")
    .tools(ToolSet::PLACED),
    Flag::switch("--op-offload", "Large operations of the CPU's layers on a device", |_, _| ())
        .negative("--no-op-offload")
        .inert("operations run where their weights are")
        .tools(ToolSet::ENGINE),
    Flag::switch("--no-host", "No pinned host memory", |_, _| ())
        .env("LLAMA_ARG_NO_HOST")
        .inert("weights on the CPU lie in ordinary memory")
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
