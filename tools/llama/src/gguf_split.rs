//! `llama gguf-split`: one model file as several, and back.

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::shards::{self, Output};
use crate::{interrupt, pages};
use puna_flags::{Config, FLAGS, GgufSplit, Positional, Spec, ToolSet};
use puna_gguf::{File, OpenOptions, TensorInfo, TensorSpec, split};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Flags of `gguf-split`.
pub const SPEC: Spec<Config> = Spec {
    name: "gguf-split",
    tool: ToolSet::GGUF_SPLIT,
    about: "Cut a model file into several (INPUT, and OUTPUT before -00001-of-00002.gguf), or make one of several \
            (--merge: the first of them, and OUTPUT)",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "INPUT OUTPUT",
        help: "Model file, and the file or the beginning of the names to write",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// Tensors of a file where no flag says otherwise.
const TENSORS: u64 = 128;

/// `llama gguf-split`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let [input, output] = config.positional.as_slice() else {
        return Err(invocation.usage("expected INPUT OUTPUT"));
    };
    let flags = &config.gguf_split;
    if flags.split && flags.merge {
        return Err(invocation.usage("--split and --merge exclude each other"));
    }
    if flags.max_tensors.is_some() && flags.max_bytes.is_some() {
        return Err(invocation.usage("--split-max-tensors and --split-max-size exclude each other"));
    }
    let (input, output) = (PathBuf::from(input), PathBuf::from(output));
    let file = File::open(&input, &OpenOptions::default())?;
    file.warnings().iter().for_each(|warning| console.warn(&warning.to_string()));
    shards::check_layers(&file.metadata)?;
    interrupt::install();
    if flags.merge {
        merge(&file, &input, &output, flags, &console)
    } else {
        cut(&file, &output, flags, &console)
    }
}

/// Cuts one file into several.
fn cut(file: &File, output: &Path, flags: &GgufSplit, console: &Console) -> Result<(), Failure> {
    if file.paths().len() > 1 {
        return Err(Failure::Failed(
            "the model is in several files already; --merge makes one of them".into(),
        ));
    }
    let groups = groups(file, flags);
    let count = groups.len();
    let mut plan = shards::plan(output, &file.metadata, groups)?;
    if let [only] = plan.as_mut_slice() {
        // Even a single part is named and marked as one, so that whoever asked for parts finds one.
        only.path = split::path(&shards::prefix(output), 1, 1);
        only.metadata.set(split::KEY_NUMBER, 0u16);
        only.metadata.set(split::KEY_COUNT, 1u16);
        only.metadata.set(split::KEY_TENSORS, only.tensors.len() as i32);
    }
    let mut text = format!("n_split: {count}\n");
    for (number, shard) in plan.iter().enumerate() {
        let bytes: u64 = shard.tensors.iter().map(|spec| spec.byte_len().unwrap_or(0)).sum();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "split {:05}: n_tensors = {}, total_size = {}M, {}",
            number + 1,
            shard.tensors.len(),
            bytes / 1_000_000,
            shard.path.display()
        );
    }
    pages::print(text.as_bytes())?;
    if flags.dry_run {
        return Ok(());
    }
    copy(file, Output::new(plan, file.paths())?, console)
}

/// Tensors in file order, cut where a group is full.
fn groups(file: &File, flags: &GgufSplit) -> Vec<Vec<TensorSpec>> {
    let most_tensors = flags.max_tensors.or(flags.max_bytes.is_none().then_some(TENSORS));
    let flags = GgufSplit { max_tensors: most_tensors, ..flags.clone() };
    groups_of(file.tensors.iter().map(TensorSpec::from).collect(), &flags)
}

/// Tensors in this order, cut where a group is full; one group without a limit.
pub fn groups_of(specs: Vec<TensorSpec>, flags: &GgufSplit) -> Vec<Vec<TensorSpec>> {
    let most_tensors = flags.max_tensors.unwrap_or(u64::MAX);
    let most_bytes = flags.max_bytes.unwrap_or(u64::MAX);
    let mut groups: Vec<Vec<TensorSpec>> = Vec::new();
    if flags.no_tensor_first_split {
        groups.push(Vec::new());
    }
    let mut bytes = u64::MAX;
    for spec in specs {
        let size = spec.byte_len().unwrap_or(0).next_multiple_of(puna_gguf::DEFAULT_ALIGNMENT);
        let full = groups.last().is_some_and(|group| group.len() as u64 >= most_tensors);
        if bytes == u64::MAX || full || bytes.saturating_add(size) > most_bytes {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes = bytes.saturating_add(size);
        if let Some(group) = groups.last_mut() {
            group.push(spec);
        }
    }
    if groups.is_empty() {
        groups.push(Vec::new());
    }
    groups
}

/// Makes one file of several.
fn merge(
    file: &File,
    input: &Path,
    output: &Path,
    flags: &GgufSplit,
    console: &Console,
) -> Result<(), Failure> {
    if file.metadata.u64_or(split::KEY_COUNT, 0)? == 0 {
        return Err(Failure::Failed(format!("{} is no part of a model", input.display())));
    }
    if output.exists() {
        return Err(Failure::Failed(format!("{} exists already", output.display())));
    }
    let tensors = file.tensors.iter().map(TensorSpec::from).collect();
    let plan = shards::plan(output, &file.metadata, vec![tensors])?;
    let parts = file.paths().len();
    pages::print(format!("merging {parts} files with {} tensors\n", file.tensors.len()).as_bytes())?;
    if flags.dry_run {
        return Ok(());
    }
    copy(file, Output::new(plan, file.paths())?, console)?;
    if flags.delete_splits {
        for path in file.paths() {
            std::fs::remove_file(path)
                .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        }
    }
    Ok(())
}

/// Copies all tensors in order.
fn copy(file: &File, mut output: Output, console: &Console) -> Result<(), Failure> {
    let all: u64 = file.tensors.iter().map(TensorInfo::byte_len).sum();
    let bar = console.progress(Some(all));
    for tensor in file.tensors.iter() {
        output.copy(file.bytes(tensor), &bar)?;
        file.release(tensor);
    }
    bar.finish_and_clear();
    let paths = output.finish()?;
    console.info(&format!("wrote {} files with {}", paths.len(), console::size(all)));
    Ok(())
}
