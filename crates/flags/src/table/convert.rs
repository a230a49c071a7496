//! Flags of the tools that make GGUF files of other files, look into them or change them.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{at_least, choice, filled, number_in, path};
use crate::workshop::Edit;
use puna_gguf::parse_override;

const CONVERT: ToolSet = ToolSet::CONVERT;
const HASH: ToolSet = ToolSet::GGUF_HASH;
const GGUF: ToolSet = ToolSet::GGUF;
const CVECTOR: ToolSet = ToolSet::CVECTOR;
const BOTH: ToolSet = ToolSet::CONVERT.or(ToolSet::CONVERT_LORA);

/// `OLD=NEW`.
fn renaming(value: &str) -> Result<Edit, String> {
    match value.split_once('=') {
        Some((from, to)) if !from.is_empty() && !to.is_empty() => Ok(Edit::Rename(from.into(), to.into())),
        _ => Err("expected OLD=NEW".into()),
    }
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value("--outfile", "FILE", "File to write; in the folder, named after it, unless given", |c: &mut Config, v| {
        c.convert.output = Some(path(v)?);
        Ok(())
    })
    .tools(BOTH),
    Flag::value(
        "--outtype",
        "TYPE",
        "f32, f16, bf16, q8_0 or any other type of quantize; auto is bf16 or f16, whichever the weights are (an adapter: f32)",
        |c: &mut Config, v| {
            c.convert.output_type = Some(filled(v)?);
            Ok(())
        },
    )
    .tools(BOTH),
    Flag::value("--base", "DIR", "Folder of the model that the adapter was trained for", |c: &mut Config, v| {
        c.convert.base = Some(path(v)?);
        Ok(())
    })
    .tools(ToolSet::CONVERT_LORA),
    Flag::switch("--vocab-only", "Write the tokenizer and no weights", |c: &mut Config, on| {
        c.convert.vocabulary_only = on
    })
    .tools(CONVERT),
    Flag::value("--model-name", "NAME", "Name of the model, instead of the folder's", |c: &mut Config, v| {
        c.convert.name = Some(filled(v)?);
        Ok(())
    })
    .tools(CONVERT),
    Flag::value("--pre", "NAME", "Pre-tokenizer to write where tokenizer.json has an unknown one", |c: &mut Config, v| {
        c.convert.pre_tokenizer = Some(filled(v)?);
        Ok(())
    })
    .tools(CONVERT),
    Flag::switch("--skip-unknown", "Leave out tensors that are not known", |c: &mut Config, on| {
        c.convert.skip_unknown = on
    })
    .tools(CONVERT),
    Flag::switch("--no-mtp --no-nextn", "Leave out layers that guess tokens ahead", |c: &mut Config, on| {
        c.convert.not_ahead = on
    })
    .tools(CONVERT),
    Flag::switch("--mtp", "Write nothing but layers that guess tokens ahead, a file for -md", |c: &mut Config, on| {
        c.convert.only_ahead = on
    })
    .tools(CONVERT),
    Flag::switch("--dry-run", "Print what would be written", |c: &mut Config, on| c.convert.dry_run = on)
        .tools(CONVERT),
    Flag::switch("--print-supported-models", "Print the model classes that are known", |c: &mut Config, on| {
        c.convert.list = on
    })
    .tools(CONVERT),
    Flag::switch("--use-temp-file", "Keep tensors in a temporary file", |_, _| ())
        .inert("tensors are read when they are written")
        .tools(CONVERT),
    Flag::switch("--no-lazy", "Read all tensors first", |_, _| ())
        .inert("tensors are read when they are written")
        .tools(CONVERT),
    Flag::switch("--xxh64", "XXH64 (what is computed when nothing is chosen)", |c: &mut Config, on| {
        c.gguf_hash.xxh64 = on
    })
    .tools(HASH),
    Flag::switch("--sha1", "SHA-1", |c: &mut Config, on| c.gguf_hash.sha1 = on).tools(HASH),
    Flag::switch("--sha256", "SHA-256", |c: &mut Config, on| c.gguf_hash.sha256 = on).tools(HASH),
    Flag::switch("--all", "All of these", |c: &mut Config, on| c.gguf_hash.all = on).tools(HASH),
    Flag::switch("--uuid", "An identifier (UUID of version 5)", |c: &mut Config, on| c.gguf_hash.uuid = on)
        .tools(HASH),
    Flag::switch("--no-layer", "Of everything together only, not of each tensor", |c: &mut Config, on| {
        c.gguf_hash.no_layer = on
    })
    .tools(HASH),
    Flag::value("-c --check", "FILE", "Compare with a list that this tool printed", |c: &mut Config, v| {
        c.gguf_hash.check = Some(path(v)?);
        Ok(())
    })
    .tools(HASH),
    Flag::text("--set", "KEY=TYPE:VALUE", "Give a key this value; TYPE is int, float, bool or str; may be repeated", |c: &mut Config, v| {
        let (key, value) = parse_override(v).map_err(|error| error.to_string())?;
        c.gguf.edits.push(Edit::Set(key, value));
        Ok(())
    })
    .tools(GGUF),
    Flag::value("--rename", "OLD=NEW", "Give a key another name; may be repeated", |c: &mut Config, v| {
        c.gguf.edits.push(renaming(v)?);
        Ok(())
    })
    .tools(GGUF),
    Flag::value("--delete", "KEY", "Remove a key; may be repeated", |c: &mut Config, v| {
        c.gguf.edits.push(Edit::Delete(filled(v)?));
        Ok(())
    })
    .tools(GGUF),
    Flag::value("-o --output", "FILE", "File to write", |c: &mut Config, v| {
        c.gguf.output = Some(path(v)?);
        Ok(())
    })
    .tools(GGUF),
    Flag::switch("--in-place", "Put the new file into the old one's place", |c: &mut Config, on| {
        c.gguf.in_place = on
    })
    .tools(GGUF),
    Flag::switch("--full", "Print whole arrays and texts", |c: &mut Config, on| c.gguf.full = on).tools(GGUF),
    Flag::value("-o --output --output-file", "FILE", "File to write; ggml-lora-merged-f16.gguf unless given", |c: &mut Config, v| {
        c.export_lora.output = Some(path(v)?);
        Ok(())
    })
    .tools(ToolSet::EXPORT_LORA),
    Flag::value("--positive-file", "FILE", "Prompts of one kind, one in a line", |c: &mut Config, v| {
        c.cvector.positive = Some(path(v)?);
        Ok(())
    })
    .tools(CVECTOR),
    Flag::value("--negative-file", "FILE", "Prompts of the other kind, as many", |c: &mut Config, v| {
        c.cvector.negative = Some(path(v)?);
        Ok(())
    })
    .tools(CVECTOR),
    Flag::value("-o --output --output-file", "FILE", "File to write; control_vector.gguf unless given", |c: &mut Config, v| {
        c.cvector.output = Some(path(v)?);
        Ok(())
    })
    .tools(CVECTOR),
    Flag::value("--method", "pca|mean", "Principal direction of the differences, or their mean", |c: &mut Config, v| {
        c.cvector.mean = choice(v, &["pca", "mean"])? == "mean";
        Ok(())
    })
    .default("pca")
    .tools(CVECTOR),
    Flag::value("--pca-iter", "N", "Most steps to the principal direction", |c: &mut Config, v| {
        c.cvector.iterations = at_least(v, 1)?;
        Ok(())
    })
    .default("1000")
    .tools(CVECTOR),
    Flag::value("--pca-batch", "N", "Steps at once", |_, v| at_least::<u64>(v, 1).map(drop))
        .inert("every step may be the last")
        .tools(CVECTOR),
    Flag::value("--context-length", "N", "Context that the model was trained with", |c: &mut Config, v| {
        c.convert_legacy.context = at_least(v, 1)?;
        Ok(())
    })
    .default("2048")
    .tools(ToolSet::CONVERT_LEGACY),
    Flag::value("--eps", "X", "Epsilon of norms; 1e-5 for Llama 2", |c: &mut Config, v| {
        c.convert_legacy.epsilon = number_in(v, 0.0, 1.0)?;
        Ok(())
    })
    .default("0.000005")
    .tools(ToolSet::CONVERT_LEGACY),
    Flag::not_yet("--bigendian", "", "Write a file for big-endian machines").tools(CONVERT),
    Flag::not_yet("--mmproj", "", "Write the encoder of images").tools(CONVERT),
    Flag::not_yet("--metadata", "FILE", "More metadata").tools(CONVERT),
];
