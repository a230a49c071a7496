//! The program `llama`: one binary, many tools.
//!
//! `llama TOOL ...` and a link called `llama-TOOL` do the same. Each tool is a row of [`tools::TOOLS`] and a file.
#![forbid(unsafe_code)]

mod batched_bench;
mod bench;
mod bench_output;
mod chat;
mod cli;
mod completion;
mod console;
mod constraint;
mod convert;
mod convert_legacy;
mod cvector;
mod devices;
mod diffusion;
mod early;
mod embedder;
mod embedding;
mod export_lora;
mod failure;
mod file_types;
mod files;
mod gguf_edit;
mod gguf_hash;
mod gguf_split;
mod grammar;
mod imatrix;
mod info;
mod interrupt;
mod invocation;
mod load;
mod logits;
mod measure;
mod models;
mod pages;
mod perplexity;
mod placement;
mod prompt;
mod pull;
mod quantize;
mod recommended;
mod render;
mod rerank;
mod run;
mod serve;
mod session;
mod shards;
mod simple;
mod source;
mod speculation;
mod tokenize;
mod tools;

use failure::Failure;
use invocation::Invocation;
use std::any::Any;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;

/// Where the last panic happened; the hook knows, who catches it does not.
static PANIC_PLACE: Mutex<String> = Mutex::new(String::new());

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        if let (Ok(mut place), Some(location)) = (PANIC_PLACE.lock(), panic.location()) {
            *place = format!("{}:{}", location.file(), location.line());
        }
    }));
    interrupt::limits_are_errors();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let result =
        catch_unwind(AssertUnwindSafe(|| dispatch(arguments))).unwrap_or_else(|panic| Err(internal(&*panic)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Finds the tool: by the program's name, else by the first argument.
fn dispatch(arguments: Vec<OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let stem = std::path::Path::new(&program).file_stem().and_then(|stem| stem.to_str()).unwrap_or("");
    if let Some(name) = stem.strip_prefix("llama-") {
        let tool = tools::find(name).ok_or_else(|| tools::unknown(name, stem))?;
        return (tool.run)(&Invocation::new(format!("llama-{}", tool.name), arguments.collect()));
    }
    let Some(first) = arguments.next() else { return pages::overview(false) };
    let Some(name) = first.to_str() else { return Err(tools::unknown(&first.to_string_lossy(), "llama")) };
    let mut rest: Vec<OsString> = arguments.collect();
    let name = match name {
        "-h" | "--help" => "help",
        "--version" => "version",
        "--completion-bash" => {
            rest = vec![OsString::from("bash")];
            "completions"
        }
        other => other,
    };
    let tool = tools::find(name).ok_or_else(|| tools::unknown(name, "llama"))?;
    (tool.run)(&Invocation::new(format!("llama {}", tool.name), rest))
}

fn internal(panic: &(dyn Any + Send)) -> Failure {
    let text =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let place = PANIC_PLACE.lock().map(|place| place.clone()).unwrap_or_default();
    Failure::Failed(format!("internal error at {place}: {}", text.unwrap_or("no message").replace('\n', " ")))
}
