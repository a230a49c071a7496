//! Where the model comes from and how it is read.

use crate::config::{Config, LoadMode};
use crate::flag::{Flag, ToolSet};
use crate::values::{choice, comma_list, filled, path};
use puna_gguf::{Value, parse_override};

fn load_mode(value: &str) -> Result<LoadMode, String> {
    Ok(match choice(value, &["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"])? {
        "none" | "dio" => LoadMode::Read,
        "mmap" => LoadMode::Mmap,
        "mlock" => LoadMode::Mlock,
        "mmap+mlock" => LoadMode::MmapMlock,
        _ => LoadMode::Auto,
    })
}

/// `KEY=TYPE:VALUE`, several of them separated by commas.
fn overrides(value: &str) -> Result<Vec<(String, Value)>, String> {
    let parse = |item: &String| parse_override(item).map_err(|error| error.to_string());
    comma_list(value).iter().map(parse).collect()
}

/// Tools that use adapters.
const ADAPTED: ToolSet = ToolSet::ENGINE.or(ToolSet::EXPORT_LORA);

/// `FILE:SCALE`, several of them separated by commas.
fn scaled(value: &str) -> Result<Vec<(std::path::PathBuf, f32)>, String> {
    let one = |item: &String| {
        let (path, scale) = item.rsplit_once(':').ok_or("expected FILE:SCALE")?;
        let scale: f32 = scale.parse().map_err(|_| format!("{scale:?} is no number"))?;
        if !scale.is_finite() || path.is_empty() {
            return Err("expected FILE:SCALE".to_owned());
        }
        Ok((path.into(), scale))
    };
    comma_list(value).iter().map(one).collect()
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value(
        "-m --model",
        "FILE",
        "Model file (GGUF); the first one if it is split",
        |c: &mut Config, v| {
            c.model.path = Some(path(v)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_MODEL")
    .tools(ToolSet::MODEL),
    Flag::value(
        "-hf -hfr --hf-repo",
        "USER/MODEL[:QUANT]",
        "Model of the Hugging Face hub, fetched once; without QUANT it is Q4_K_M, else the first file",
        |c: &mut Config, v| {
            c.model.hf_repo = Some(filled(v)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_HF_REPO")
    .tools(ToolSet::MODEL),
    Flag::value("-hff --hf-file", "FILE", "File of that repository, instead of QUANT", |c: &mut Config, v| {
        c.model.hf_file = Some(filled(v)?);
        Ok(())
    })
    .env("LLAMA_ARG_HF_FILE")
    .tools(ToolSet::MODEL),
    Flag::value("-hft --hf-token", "TOKEN", "Access token for the hub", |c: &mut Config, v| {
        c.model.hf_token = Some(filled(v)?);
        Ok(())
    })
    .env("HF_TOKEN")
    .tools(ToolSet::MODEL),
    Flag::value("-mu --model-url", "URL", "Model file to download, fetched once", |c: &mut Config, v| {
        c.model.url = Some(filled(v)?);
        Ok(())
    })
    .env("LLAMA_ARG_MODEL_URL")
    .tools(ToolSet::MODEL),
    Flag::not_yet("-dr --docker-repo", "[REPO/]MODEL[:QUANT]", "Model of Docker Hub")
        .env("LLAMA_ARG_DOCKER_REPO")
        .tools(ToolSet::MODEL),
    Flag::value(
        "-lm --load-mode",
        "MODE",
        "How the file is read: auto (a memory map), none (into memory), mmap, mlock, mmap+mlock; dio means none",
        |c: &mut Config, v| {
            c.model.load_mode = load_mode(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_LOAD_MODE")
    .default("auto")
    .tools(ToolSet::ENGINE),
    Flag::switch("--mmap", "Read through a memory map", |c: &mut Config, on| {
        c.model.load_mode = match (c.model.load_mode, on) {
            (LoadMode::Mlock | LoadMode::MmapMlock, false) => LoadMode::Mlock,
            (LoadMode::Mlock | LoadMode::MmapMlock, true) => LoadMode::MmapMlock,
            (_, true) => LoadMode::Mmap,
            (_, false) => LoadMode::Read,
        };
    })
    .negative("--no-mmap")
    .env("LLAMA_ARG_MMAP")
    .tools(ToolSet::ENGINE),
    Flag::switch("--mlock", "Keep what stays of the file in memory out of swap", |c: &mut Config, _| {
        c.model.load_mode = match c.model.load_mode {
            LoadMode::Read | LoadMode::Mlock => LoadMode::Mlock,
            _ => LoadMode::MmapMlock,
        };
    })
    .env("LLAMA_ARG_MLOCK")
    .tools(ToolSet::ENGINE),
    Flag::switch("-dio --direct-io", "The same as --no-mmap", |c: &mut Config, on| {
        if on {
            c.model.load_mode = LoadMode::Read;
        }
    })
    .negative("-ndio --no-direct-io")
    .env("LLAMA_ARG_DIO")
    .tools(ToolSet::ENGINE),
    Flag::value("-lzm --lazy-mode", "on|off|auto", "Read rarely used tensors on demand", |_, v| {
        choice(v, &["on", "off", "auto"]).map(drop)
    })
    .env("LLAMA_ARG_LAZY_MODE")
    .inert("a memory map is always read on demand")
    .tools(ToolSet::ENGINE),
    Flag::switch("--check-tensors", "Look for invalid numbers in the weights first", |c: &mut Config, on| {
        c.model.check_tensors = on;
    })
    .tools(ToolSet::ENGINE),
    Flag::text(
        "--override-kv",
        "KEY=TYPE:VALUE,...",
        "Use these values for metadata keys; TYPE is int, float, bool or str",
        |c: &mut Config, v| {
            c.model.overrides.extend(overrides(v)?);
            Ok(())
        },
    )
    .tools(ToolSet::ENGINE.or(ToolSet::TOKENIZE).or(ToolSet::QUANTIZE)),
    Flag::value("--lora", "FILE,...", "LoRA adapters, all at once; may be repeated", |c: &mut Config, v| {
        c.model.adapters.extend(comma_list(v).into_iter().map(|path| (path.into(), 1.0)));
        Ok(())
    })
    .tools(ADAPTED),
    Flag::value("--lora-scaled", "FILE:SCALE,...", "LoRA adapters with a factor; may be repeated", |c: &mut Config, v| {
        c.model.adapters.extend(scaled(v)?);
        Ok(())
    })
    .tools(ADAPTED),
    Flag::switch(
        "--lora-init-without-apply",
        "Load adapters without applying them, until a request does",
        |c: &mut Config, on| c.server.adapters_off = on,
    )
    .needs(&["lora", "lora-scaled"])
    .tools(ToolSet::SERVE),
    Flag::value("--control-vector", "FILE,...", "Vectors to add to what layers hand on; may be repeated", |c: &mut Config, v| {
        c.model.control_vectors.extend(comma_list(v).into_iter().map(|path| (path.into(), 1.0)));
        Ok(())
    })
    .tools(ToolSet::ENGINE),
    Flag::value("--control-vector-scaled", "FILE:SCALE,...", "Such vectors with a factor; may be repeated", |c: &mut Config, v| {
        c.model.control_vectors.extend(scaled(v)?);
        Ok(())
    })
    .tools(ToolSet::ENGINE),
    Flag::value("--control-vector-layer-range", "FIRST,LAST", "Layers of these vectors, both included", |c: &mut Config, v| {
        let wrong = || "expected FIRST,LAST".to_owned();
        let (first, last) = v.split_once([',', '-']).ok_or_else(wrong)?;
        let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        if first > last {
            return Err("expected the first layer before the last".into());
        }
        c.model.control_layers = Some((first, last));
        Ok(())
    })
    .tools(ToolSet::ENGINE),
    Flag::not_yet("-mm --mmproj", "FILE", "Projector for images and audio")
        .env("LLAMA_ARG_MMPROJ")
        .tools(ToolSet::GENERATE),
    Flag::not_yet("-mmu --mmproj-url", "URL", "Projector to download")
        .env("LLAMA_ARG_MMPROJ_URL")
        .tools(ToolSet::GENERATE),
    Flag::not_yet("--image", "FILE,...", "Image for the prompt").tools(ToolSet::CLI),
    Flag::not_yet("--audio", "FILE,...", "Audio for the prompt").tools(ToolSet::CLI),
    Flag::not_yet("--video", "FILE,...", "Video for the prompt").tools(ToolSet::CLI),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_typed() {
        let parsed = overrides("a.b=int:3,c=str:x,d=bool:true,e=float:0.5").unwrap();
        assert_eq!(parsed[0], ("a.b".into(), Value::I64(3)));
        assert_eq!(parsed[1], ("c".into(), Value::String("x".into())));
        assert_eq!(parsed[2], ("d".into(), Value::Bool(true)));
        assert_eq!(parsed[3], ("e".into(), Value::F64(0.5)));
        for wrong in ["a", "a=3", "a=int:x", "=int:3", "a=bool:yes", "a=what:3", ""] {
            assert!(overrides(wrong).is_err(), "{wrong}");
        }
    }
}
