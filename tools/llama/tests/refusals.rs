//! Input that never ends, is no text or cannot be used: refused in one line, before anything is printed.

#![allow(clippy::print_stdout)] // says which tests are skipped, and why

mod common;

use common::{failure, llama, output, real_model, run, tiny_model};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const STARTER: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The path of the starter model, if it is here.
fn starter() -> Option<String> {
    let path = real_model(STARTER);
    if path.is_none() {
        println!("skipped: {STARTER} is not here");
    }
    path.map(|path| path.to_str().unwrap().to_owned())
}

#[test]
#[cfg(unix)]
fn devices_are_not_read_to_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let model = model.to_str().unwrap();
    let long = "error: /dev/zero has more than 256.0 MiB (the limit here)";
    assert_eq!(failure(1, &["tokenize", "-m", model, "-f", "/dev/zero"]), long);
    assert_eq!(failure(1, &["tokenize", "-m", model, "-bf", "/dev/zero"]), long);
    assert_eq!(failure(1, &["completion", "-m", model, "-f", "/dev/zero"]), long);
    let cache = ["completion", "-m", model, "-p", "hi", "--prompt-cache", "/dev/zero"];
    assert_eq!(failure(1, &cache), "error: /dev/zero is not a regular file");
    let cache = ["completion", "-m", model, "-p", "hi", "--prompt-cache", "no-such-folder/file"];
    assert!(failure(1, &cache).starts_with("error: no-such-folder/file: No such file"));
    // A pipe that ends is a prompt like any other.
    let mut child = llama(&["tokenize", "-m", model, "--ids", "-f", "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hi").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"[1, 263]\n");
}

#[test]
fn nothing_to_measure_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let model = model.to_str().unwrap();
    let nothing = failure(2, &["bench", "-m", model, "-p", "0", "-n", "0"]);
    assert!(nothing.contains("nothing to measure"), "{nothing}");
    let backwards = failure(2, &["bench", "-m", model, "-p", "5-1"]);
    assert!(backwards.contains("the range ends before it begins"), "{backwards}");
    let split = failure(2, &["bench", "-m", model, "-sm", "rows"]);
    assert!(split.contains("none") && split.contains("layer"), "{split}");
    // Before the first model is measured.
    let two = format!("{model},no-such.gguf");
    assert_eq!(failure(1, &["bench", "-m", &two]), "error: no-such.gguf: there is no such file");
    let lengths = ["batched-bench", "-m", model, "-npp", "8", "-ntg", "2", "-npl", "1", "-c", "4"];
    let run = run(&mut llama(&lengths));
    assert_eq!((run.code, run.out.as_str()), (2, ""), "{}", run.err);
    assert!(
        run.err.contains("needs 10 cells, more than the 4 of -c") && run.err.contains("no room"),
        "{}",
        run.err
    );
}

#[test]
fn what_is_no_text_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let model = model.to_str().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, b"hi \xe2\x82").unwrap();
    let file = path.to_str().unwrap();
    let named = format!("error: {file}: byte 3 (counted from 0) is not valid UTF-8");
    for flag in ["-f", "-bf"] {
        assert_eq!(failure(1, &["tokenize", "-m", model, flag, file]), named);
        assert_eq!(failure(1, &["completion", "-m", model, flag, file]), named);
    }
    assert_eq!(failure(1, &["perplexity", "-m", model, "-f", file]), named);
    assert_eq!(
        failure(1, &["tokenize", "-m", model, "-p", "a\\xff"]),
        "error: -p, escapes replaced: byte 1 (counted from 0) is not valid UTF-8"
    );
    // Escapes that make a character together are fine.
    output(&["tokenize", "-m", model, "-p", "\\xe2\\x82\\xac"]);
    let mut command = llama(&["tokenize", "-m", model, "--stdin"]);
    let found = run(command.stdin(std::fs::File::open(&path).unwrap()));
    let text = "error: standard input: byte 3 (counted from 0) is not valid UTF-8\n";
    assert_eq!((found.code, found.out.as_str(), found.err.as_str()), (1, "", text));
}

#[test]
fn special_tokens_that_do_not_exist_are_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let model = model.to_str().unwrap();
    let with = |value: &str| {
        let value = format!("tokenizer.ggml.eot_token_id=int:{value}");
        run(&mut llama(&["tokenize", "-m", model, "--ids", "-p", "hi", "--override-kv", &value]))
    };
    let found = with("5000");
    assert_eq!((found.code, found.out.as_str()), (0, "[1, 263]\n"));
    assert_eq!(
        found.err,
        "warning: tokenizer.ggml.eot_token_id is 5000, but there are 264 tokens: it is not used\n"
    );
    for absent in ["-1", "4294967295", "2"] {
        assert_eq!(with(absent).err, "", "{absent}");
    }
}

#[test]
fn sampling_values_are_checked_before_anything_is_loaded() {
    for (flag, value) in [
        ("--repeat-penalty", "0"),
        ("--repeat-penalty", "-1"),
        ("--repeat-penalty", "inf"),
        ("-l", "1+inf"),
        ("-l", "1+nan"),
        ("-l", "1+1e99"),
        ("--temp", "nan"),
        ("--top-p", "1.5"),
        ("--min-p", "-0.1"),
        ("--presence-penalty", "inf"),
    ] {
        for tool in ["cli", "completion", "simple", "run", "serve"] {
            let message = failure(2, &[tool, "-m", "no-such-file", flag, value]);
            assert!(message.contains(" cannot be "), "{message}");
        }
    }
    let Some(model) = starter() else { return };
    for tool in ["completion", "simple"] {
        let arguments = [tool, "-m", &model, "-p", "hi", "--log-disable", "-l", "49152+1"];
        assert_eq!(failure(1, &arguments), "error: token 49152 is outside the vocabulary of 49152 tokens");
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_not_printed() {
    let Some(model) = starter() else { return };
    let text = "word ".repeat(200);
    for tool in [&["completion", "-no-cnv"][..], &["simple"]] {
        let arguments = [tool, &["-m", &model, "-c", "64", "--log-disable", "-p", &text]].concat();
        let message = failure(1, &arguments);
        assert!(message.starts_with("error: the prompt has 2"), "{message}");
    }
}

#[test]
fn a_template_matters_only_where_one_is_needed() {
    let Some(model) = starter() else { return };
    let key = "tokenizer.chat_template";
    let common = ["-m", &model, "-p", "The capital of France is", "-n", "2", "--temp", "0", "--log-disable"];
    for (template, reason) in [
        ("str:a {% for %}", "error: in the model's file: chat template, line 1: "),
        ("int:7", "error: metadata key \"tokenizer.chat_template\" "),
    ] {
        let value = format!("{key}={template}");
        let given: Vec<&str> = [&common[..], &["--override-kv", &value]].concat();
        let with = |arguments: &[&'static str]| [arguments, &given].concat();
        for arguments in [&["cli", "-st"][..], &["completion"], &["completion", "-cnv", "-st"], &["run"]] {
            let message = failure(1, &with(arguments));
            assert!(message.starts_with(reason), "{arguments:?}: {message}");
            assert!(message.ends_with("--chat-template-file name another one"), "{message}");
        }
        for arguments in [&["completion", "-no-cnv"][..], &["simple"]] {
            assert!(output(&with(arguments)).contains("Paris"), "{arguments:?}");
        }
        output(&with(&["cli", "-st", "--chat-template", "chatml"]));
    }
}

#[test]
fn the_environment_is_not_silently_ignored() {
    let found = run(llama(&["cli"]).env("LLAMA_ARG_RPC", "host:1"));
    assert_eq!(found.code, 2);
    assert!(
        found
            .err
            .starts_with("error: environment variable LLAMA_ARG_RPC, that is --rpc, is not supported yet"),
        "{}",
        found.err
    );
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let value = std::ffi::OsStr::from_bytes(b"\xff");
        let found = run(llama(&["cli"]).env("LLAMA_ARG_TOP_K", value));
        assert_eq!(found.code, 2);
        assert!(found.err.starts_with("error: environment variable LLAMA_ARG_TOP_K is not valid UTF-8"));
    }
}

#[test]
fn small_mistakes_are_named() {
    assert!(failure(2, &["info", ""]).contains("expected a file"));
    assert_eq!(failure(2, &["version", "x"]), "error: unexpected argument \"x\"");
    assert!(failure(2, &["bench", "-fa", "maybe"]).contains("on, off"));
    assert!(failure(2, &["cli", "-fa", "maybe"]).contains("expected one of on, off, auto"));
    let help = output(&["run", "--help"]);
    let usage = help.lines().find(|line| line.starts_with("Usage: ")).unwrap_or("");
    assert_eq!(usage.matches('[').count(), usage.matches(']').count(), "{usage}");
    if std::path::Path::new("/dev/full").exists() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let found = run(llama(&["help"]).stdout(full));
        assert_eq!(found.code, 1);
        assert!(found.err.starts_with("error: standard output: "), "{}", found.err);
    }
}

#[test]
fn a_device_that_is_missing_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let devices = output(&["devices"]);
    let Some(reason) = devices.lines().find_map(|line| line.trim().strip_prefix("CUDA0: not usable: "))
    else {
        return println!("skipped: there is a CUDA device here");
    };
    let error = failure(1, &["completion", "-m", model.to_str().unwrap(), "-p", "hi", "-dev", "cuda0"]);
    assert!(error.contains(reason) && error.contains("'llama devices' lists"), "{error}");
}

/// What is wrong with a file is said, not what follows from it.
#[test]
fn a_model_without_a_context_or_of_no_known_kind_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let model = model.to_str().unwrap();
    let fails = |more: &[&str]| failure(1, &[&["completion", "-m", model, "-p", "hi"], more].concat());
    let unknown = ["--override-kv", "general.architecture=str:lama"];
    for more in [&unknown[..], &[&unknown[..], &["-c", "64"]].concat()] {
        let error = fails(more);
        assert!(error.contains("unknown model architecture 'lama'") && error.contains("llama"), "{error}");
    }
    let mut metadata = common::tiny_metadata();
    assert!(metadata.remove("llama.context_length").is_some());
    let without = folder.path().join("without.gguf");
    let shape = vec![264, 64];
    let spec =
        puna_gguf::TensorSpec { name: "token_embd.weight".into(), dtype: puna_quant::DType::F32, shape };
    puna_gguf::write(&without, &metadata, &[(spec, &[0; 264 * 64 * 4])]).unwrap();
    for more in [&[][..], &["-c", "64"]] {
        let arguments = [&["completion", "-m", without.to_str().unwrap(), "-p", "hi"], more].concat();
        let error = failure(1, &arguments);
        assert!(error.contains("\"llama.context_length\" is missing"), "{more:?}: {error}");
    }
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_measuring_at_once() {
    let Some(model) = starter() else { return };
    let mut child =
        llama(&["bench", "-m", &model, "-p", "4096", "-n", "0", "-ub", "4096", "-b", "4096", "-r", "9"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let start = Instant::now();
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // A step of this size takes longer; other tests run beside this one.
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn values_of_keys_that_no_model_can_have_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let model = common::random_model(folder.path());
    let out = folder.path().join("out.gguf");
    let (model, out) = (model.to_str().unwrap(), out.to_str().unwrap());
    let text = failure(1, &["gguf", model, "--set", "llama.rope.scaling.factor=str:hi", "-o", out]);
    assert!(text.contains("could not be loaded") && text.contains("llama.rope.scaling.factor"), "{text}");
    assert!(!Path::new(out).exists());
    // What is taken away is the user's own business.
    let found = run(&mut llama(&["gguf", model, "--delete", "llama.context_length", "-o", out]));
    assert_eq!(found.code, 0, "{}", found.err);
    assert!(found.err.contains("could not be loaded any more"), "{}", found.err);
}

#[test]
fn tests_of_more_tokens_than_a_cache_may_have_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_model(folder.path());
    let text = failure(2, &["bench", "-m", model.to_str().unwrap(), "-p", "2147483647", "-n", "0"]);
    assert!(text.contains("2147483647 tokens of prompt") && text.contains("at most 1073741824"), "{text}");
}
