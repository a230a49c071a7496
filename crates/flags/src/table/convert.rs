//! Flags of the tools that make GGUF files of other files.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{filled, path};

const CONVERT: ToolSet = ToolSet::CONVERT;
const BOTH: ToolSet = ToolSet::CONVERT.or(ToolSet::CONVERT_LORA);

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
    Flag::not_yet("--bigendian", "", "Write a file for big-endian machines").tools(CONVERT),
    Flag::not_yet("--mmproj", "", "Write the encoder of images").tools(CONVERT),
    Flag::not_yet("--metadata", "FILE", "More metadata").tools(CONVERT),
];
