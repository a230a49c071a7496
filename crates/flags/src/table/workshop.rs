//! Flags of the tools for model files.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{at_least, choice, comma_list, filled, integers, path};
use crate::workshop::Tasks;

const BATCHED_BENCH: ToolSet = ToolSet::BATCHED_BENCH;
const PERPLEXITY: ToolSet = ToolSet::PERPLEXITY;
const IMATRIX: ToolSet = ToolSet::IMATRIX;
const QUANTIZE: ToolSet = ToolSet::QUANTIZE;
const GGUF_SPLIT: ToolSet = ToolSet::GGUF_SPLIT;
const SPLIT: ToolSet = ToolSet::GGUF_SPLIT.or(ToolSet::CONVERT);

fn pattern(value: &str) -> Result<String, String> {
    match value.rsplit_once('=') {
        Some((pattern, format)) if !pattern.is_empty() && !format.is_empty() => Ok(value.to_owned()),
        _ => Err("expected PATTERN=TYPE".into()),
    }
}

/// Bytes of `N(M|G)`, in powers of 1000.
fn size(value: &str) -> Result<u64, String> {
    let wrong = || "expected a whole number above 0 followed by M or G".to_owned();
    let (number, unit) = match value.as_bytes() {
        [number @ .., b'M'] => (number, 1_000_000),
        [number @ .., b'G'] => (number, 1_000_000_000),
        _ => return Err(wrong()),
    };
    let number: u64 =
        std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    if number == 0 { Err(wrong()) } else { number.checked_mul(unit).ok_or_else(wrong) }
}

/// Numbers from `least` on, separated by commas.
fn numbers(value: &str, least: u32) -> Result<Vec<u32>, String> {
    value.split(',').map(|number| at_least(number, least)).collect()
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value("-npp", "N,...", "Prompt lengths", |c: &mut Config, v| {
        c.batched_bench.prompts.append(&mut numbers(v, 0)?);
        Ok(())
    })
    .tools(BATCHED_BENCH),
    Flag::value("-ntg", "N,...", "Generation lengths", |c: &mut Config, v| {
        c.batched_bench.answers.append(&mut numbers(v, 0)?);
        Ok(())
    })
    .tools(BATCHED_BENCH),
    Flag::value("-npl", "N,...", "Numbers of sequences", |c: &mut Config, v| {
        c.batched_bench.sequences.append(&mut numbers(v, 1)?);
        Ok(())
    })
    .tools(BATCHED_BENCH),
    Flag::switch("-pps", "The prompt is shared by all sequences", |c: &mut Config, on| {
        c.batched_bench.shared_prompt = on
    })
    .tools(BATCHED_BENCH),
    Flag::switch("-tgs", "Sequences generate one after the other, not together", |c: &mut Config, on| {
        c.batched_bench.separate = on
    })
    .tools(BATCHED_BENCH),
    Flag::value("--output-format", "md|jsonl", "Format of the results", |c: &mut Config, v| {
        c.batched_bench.jsonl = choice(v, &["md", "jsonl"])? == "jsonl";
        Ok(())
    })
    .default("md")
    .tools(BATCHED_BENCH),
    Flag::value("--chunks", "N", "Most chunks to evaluate; -1 means all", |c: &mut Config, v| {
        c.perplexity.chunks = match at_least(v, -1)? {
            0 => return Err("expected a number above 0, or -1 for all".into()),
            chunks => chunks,
        };
        Ok(())
    })
    .default("-1")
    .tools(PERPLEXITY.or(IMATRIX)),
    Flag::value(
        "--ppl-stride",
        "N",
        "Tokens between the starts of overlapping chunks; 0 means that they do not overlap",
        |c: &mut Config, v| {
            c.perplexity.stride = at_least(v, 0)?;
            Ok(())
        },
    )
    .default("0")
    .tools(PERPLEXITY),
    Flag::value(
        "--ppl-output-type",
        "0|1",
        "0 prints [chunk]perplexity, 1 a line for each chunk with its position",
        |c: &mut Config, v| {
            c.perplexity.output_type = u32::from(choice(v, &["0", "1"])? == "1");
            Ok(())
        },
    )
    .default("0")
    .tools(PERPLEXITY),
    Flag::switch(
        "--kl-divergence",
        "Compare predictions with those of --kl-divergence-base",
        |c: &mut Config, on| c.perplexity.divergence = on,
    )
    .tools(PERPLEXITY),
    Flag::value(
        "--save-all-logits --kl-divergence-base",
        "FILE",
        "File to record predictions in, or with recorded ones if --kl-divergence is given",
        |c: &mut Config, v| {
            c.perplexity.base = Some(path(v)?);
            Ok(())
        },
    )
    .tools(PERPLEXITY),
    Flag::switch("--hellaswag", "Solve tasks of HellaSwag (-f FILE)", |c: &mut Config, _| {
        c.perplexity.tasks = Some(Tasks::HellaSwag)
    })
    .tools(PERPLEXITY),
    Flag::value("--hellaswag-tasks", "N", "So many of them; 0 means all", |c: &mut Config, v| {
        c.perplexity.hellaswag_tasks = at_least(v, 0)?;
        Ok(())
    })
    .default("400")
    .tools(PERPLEXITY),
    Flag::switch("--winogrande", "Solve tasks of WinoGrande (-f FILE)", |c: &mut Config, _| {
        c.perplexity.tasks = Some(Tasks::WinoGrande)
    })
    .tools(PERPLEXITY),
    Flag::value("--winogrande-tasks", "N", "So many of them; 0 means all", |c: &mut Config, v| {
        c.perplexity.winogrande_tasks = at_least(v, 0)?;
        Ok(())
    })
    .default("0")
    .tools(PERPLEXITY),
    Flag::switch("--multiple-choice", "Solve tasks with several answers (-bf FILE)", |c: &mut Config, _| {
        c.perplexity.tasks = Some(Tasks::MultipleChoice)
    })
    .tools(PERPLEXITY),
    Flag::value("--multiple-choice-tasks", "N", "So many of them; 0 means all", |c: &mut Config, v| {
        c.perplexity.multiple_choice_tasks = at_least(v, 0)?;
        Ok(())
    })
    .default("0")
    .tools(PERPLEXITY),
    Flag::value("-o --output --output-file", "FILE", "File to write; imatrix.gguf unless given", |c: &mut Config, v| {
        c.imatrix.output = Some(path(v)?);
        Ok(())
    })
    .tools(IMATRIX),
    Flag::value("--output-format", "gguf|dat", "Kind of file; by its ending unless given", |c: &mut Config, v| {
        c.imatrix.format = Some(choice(v, &["gguf", "dat"])?.to_owned());
        Ok(())
    })
    .tools(IMATRIX),
    Flag::value("-ofreq --output-frequency", "N", "Write the file every N chunks; 0 means at the end", |c: &mut Config, v| {
        c.imatrix.output_frequency = at_least(v, 0)?;
        Ok(())
    })
    .default("10")
    .tools(IMATRIX),
    Flag::value("--save-frequency", "N", "Keep a copy every N chunks; 0 means never", |c: &mut Config, v| {
        c.imatrix.save_frequency = at_least(v, 0)?;
        Ok(())
    })
    .default("0")
    .tools(IMATRIX),
    Flag::switch("--process-output", "Measure the output matrix, too", |c: &mut Config, on| {
        c.imatrix.process_output = on
    })
    .tools(IMATRIX),
    Flag::switch("--ppl", "Print the perplexity", |c: &mut Config, on| c.imatrix.perplexity = on)
        .negative("--no-ppl")
        .tools(IMATRIX),
    Flag::value("--chunk --from-chunk", "N", "Chunks to leave out at the beginning", |c: &mut Config, v| {
        c.imatrix.from_chunk = at_least(v, 0)?;
        Ok(())
    })
    .default("0")
    .tools(IMATRIX),
    Flag::value("--in-file", "FILE,...", "Files to begin with; without a text they are combined", |c: &mut Config, v| {
        c.imatrix.inputs.extend(comma_list(v).into_iter().map(Into::into));
        Ok(())
    })
    .tools(IMATRIX),
    Flag::switch("--parse-special", "Special tokens in the text are what they are", |c: &mut Config, on| {
        c.imatrix.parse_special = on
    })
    .tools(IMATRIX),
    Flag::switch("--show-statistics", "Describe the files of --in-file", |c: &mut Config, on| {
        c.imatrix.statistics = on
    })
    .tools(IMATRIX),
    Flag::switch(
        "--allow-requantize",
        "Also quantise tensors that are quantised already; quality suffers",
        |c: &mut Config, on| c.quantize.allow_requantize = on,
    )
    .tools(QUANTIZE),
    Flag::switch("--leave-output-tensor", "Keep output.weight as it is", |c: &mut Config, on| {
        c.quantize.leave_output_tensor = on
    })
    .tools(QUANTIZE),
    Flag::switch("--pure", "One format for all tensors, no mixtures", |c: &mut Config, on| {
        c.quantize.pure = on
    })
    .tools(QUANTIZE),
    Flag::value(
        "--imatrix",
        "FILE",
        "Importance of columns (GGUF), which the errors of elements are weighted with",
        |c: &mut Config, v| {
            c.quantize.importance = Some(path(v)?);
            Ok(())
        },
    )
    .tools(QUANTIZE),
    Flag::value("--include-weights", "NAME", "Use importance for this tensor only; may be repeated", |c: &mut Config, v| {
        c.quantize.include_weights.push(filled(v)?);
        Ok(())
    })
    .tools(QUANTIZE),
    Flag::value("--exclude-weights", "NAME", "Use no importance for this tensor; may be repeated", |c: &mut Config, v| {
        c.quantize.exclude_weights.push(filled(v)?);
        Ok(())
    })
    .tools(QUANTIZE),
    Flag::value("--output-tensor-type", "TYPE", "Number format of output.weight", |c: &mut Config, v| {
        c.quantize.output_tensor_type = Some(filled(v)?);
        Ok(())
    })
    .tools(QUANTIZE),
    Flag::value("--token-embedding-type", "TYPE", "Number format of the token embeddings", |c: &mut Config, v| {
        c.quantize.token_embedding_type = Some(filled(v)?);
        Ok(())
    })
    .tools(QUANTIZE),
    Flag::value(
        "--tensor-type",
        "PATTERN=TYPE",
        "Number format of tensors whose name matches the regular expression; may be repeated, the first match counts",
        |c: &mut Config, v| {
            c.quantize.tensor_types.push(pattern(v)?);
            Ok(())
        },
    )
    .tools(QUANTIZE),
    Flag::value("--tensor-type-file", "FILE", "File with such PATTERN=TYPE, separated by white space", |c: &mut Config, v| {
        c.quantize.tensor_type_files.push(path(v)?);
        Ok(())
    })
    .tools(QUANTIZE),
    Flag::value("--prune-layers", "L0,L1,...", "Layers to leave out; the others are renumbered", |c: &mut Config, v| {
        c.quantize.prune_layers = integers(v)?;
        Ok(())
    })
    .tools(QUANTIZE),
    Flag::switch("--keep-split", "Write as many files as were read", |c: &mut Config, on| {
        c.quantize.keep_split = on
    })
    .tools(QUANTIZE),
    Flag::value("--max-buffer-size", "MiB", "Rows of a tensor in memory at once", |_, v| {
        at_least::<u64>(v, 1).map(drop)
    })
    .inert("a few rows at a time are enough")
    .tools(QUANTIZE),
    Flag::switch("--dry-run", "Print formats and sizes, write nothing", |c: &mut Config, on| {
        c.quantize.dry_run = on
    })
    .tools(QUANTIZE),
    Flag::switch("--split", "Cut a file into several (what happens without --merge)", |c: &mut Config, on| {
        c.gguf_split.split = on
    })
    .tools(GGUF_SPLIT),
    Flag::switch("--merge", "Make one file of several", |c: &mut Config, on| c.gguf_split.merge = on)
        .tools(GGUF_SPLIT),
    Flag::value("--split-max-tensors", "N", "Most tensors of a file (gguf-split: 128 if no size is given)", |c: &mut Config, v| {
        c.gguf_split.max_tensors = Some(at_least(v, 1)?);
        Ok(())
    })
    .tools(SPLIT),
    Flag::value("--split-max-size", "N(M|G)", "Most bytes of a file, in millions or thousand millions", |c: &mut Config, v| {
        c.gguf_split.max_bytes = Some(size(v)?);
        Ok(())
    })
    .tools(SPLIT),
    Flag::switch("--no-tensor-first-split", "The first file has metadata only", |c: &mut Config, on| {
        c.gguf_split.no_tensor_first_split = on
    })
    .tools(SPLIT),
    Flag::switch("--delete-splits", "Delete the parts once they are merged", |c: &mut Config, on| {
        c.gguf_split.delete_splits = on
    })
    .tools(GGUF_SPLIT),
    Flag::switch("--dry-run", "Print what would be written", |c: &mut Config, on| c.gguf_split.dry_run = on)
        .tools(GGUF_SPLIT),
];
