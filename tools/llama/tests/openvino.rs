//! Tools with `--device OPENVINO0` beside the processor's own back end, and set-ups with something wrong in them.
//! Skipped where OpenVINO is missing.

#![allow(clippy::print_stdout)] // says which tests are skipped, and why

mod common;

use common::{Run, llama, random_model, real_model, run};
use puna_conformance::{normalised_squared_error, zoo};
use std::path::Path;
use std::process::{Command, Stdio};

const DEVICE: [&str; 2] = ["-dev", "OPENVINO0"];
/// Variables of this process that lead to the library.
const KEPT: [&str; 6] =
    ["HOME", "VIRTUAL_ENV", "OPENVINO_DIR", "INTEL_OPENVINO_DIR", "LD_LIBRARY_PATH", "PYENV_ROOT"];
/// Properties under which the plugin computes as exactly as it can.
const EXACT: &str = "INFERENCE_PRECISION_HINT=f32,KV_CACHE_PRECISION=f32,DYNAMIC_QUANTIZATION_GROUP_SIZE=0";

/// The program on OpenVINO without the shim, which tests of the back end build.
fn on_openvino(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = llama(&[arguments, &DEVICE].concat());
    command.env("PUNA_OPENVINO_SHIM", "0");
    command.envs(KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.envs(variables.iter().copied());
    command
}

/// Whether OpenVINO is here; says so if not.
fn is_installed() -> bool {
    let mut command = llama(&["devices"]);
    command.envs(KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    let found = run(&mut command);
    let line = found.out.lines().find(|line| line.trim().starts_with("OPENVINO0: "));
    let line = line.unwrap_or_else(|| panic!("{}{}", found.out, found.err)).trim().to_owned();
    let is_there = !line.contains("not usable");
    if !is_there {
        println!("skipped: {line}");
    }
    is_there
}

fn ok(found: &Run) -> &str {
    assert_eq!(found.code, 0, "{}{}", found.out, found.err);
    &found.out
}

/// The last number of the line that begins with these words.
fn number(output: &str, begin: &str) -> f64 {
    let line = output.lines().find(|line| line.starts_with(begin));
    let rest = line.and_then(|line| line.split(['=', ':']).next_back());
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {begin} in {output}"))
}

#[test]
fn tools_write_what_they_write_on_the_processor() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = random_model(folder.path());
    let model = model.to_str().unwrap();
    let exact = [("GGML_OPENVINO_PROPERTIES", EXACT)];
    let stateful = [exact[0], ("GGML_OPENVINO_STATEFUL_EXECUTION", "1")];
    let greedy = ["-n", "12", "--temp", "0", "-ctk", "f32", "-ctv", "f32", "--log-disable", "-t", "2"];
    let generation: [&[&str]; 4] = [
        &["completion", "-m", model, "-p", "hi hihi hi", "-no-cnv", "-c", "128"],
        &["cli", "-m", model, "-p", "hi hihi", "-st", "-c", "256"],
        &["simple", "-m", model, "-c", "128", "hi hi"],
        &["run", model, "hi", "-c", "256"],
    ];
    for tool in generation {
        let arguments = [tool, &greedy].concat();
        let right = run(&mut llama(&arguments));
        for variables in [&exact[..], &stateful] {
            let found = run(&mut on_openvino(&arguments, variables));
            assert_eq!(ok(&found), ok(&right), "{arguments:?} {variables:?}");
        }
    }
    // Beyond the context: tokens in the middle go, the others move.
    let shifted =
        [&["completion", "-m", model, "-p", "hi hihi hi", "-no-cnv", "-c", "64", "--keep", "4"], &greedy[..]];
    let shifted = [&shifted.concat()[..], &["--context-shift", "-n", "100", "--ignore-eos"]].concat();
    let right = run(&mut llama(&shifted));
    let found = run(&mut on_openvino(&shifted, &exact));
    assert_eq!(ok(&found), ok(&right));
    // A cache in the model cannot move: what is left is computed anew, so only what was written before is the same.
    let anew = run(&mut on_openvino(&shifted, &stateful));
    let before = run(&mut on_openvino(&[&shifted[..], &["-n", "50"]].concat(), &stateful));
    // The last character may be cut.
    let before = ok(&before).trim_end().trim_end_matches('\u{fffd}');
    assert!(before.chars().count() > 40 && right.out.starts_with(before), "{before:?} {:?}", right.out);
    assert!(ok(&anew).starts_with(before) && anew.out.chars().count() > 90, "{:?}", anew.out);
    // A prompt's state in a file.
    let cache = folder.path().join("prompt");
    let saved =
        ["completion", "-m", model, "-no-cnv", "-c", "128", "--prompt-cache", cache.to_str().unwrap()];
    let saved = [&saved[..], &["-p", "hi hihi hihihi hi"], &greedy].concat();
    let first = run(&mut on_openvino(&saved, &exact));
    assert!(cache.is_file(), "{}", first.err);
    let second = run(&mut on_openvino(&saved, &exact));
    assert_eq!(ok(&second), ok(&first));
}

#[test]
fn tools_measure_what_they_measure_on_the_processor() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = random_model(folder.path());
    let model = model.to_str().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "hi hihi hi hi hihihi hi hi hihi hi hihihi hihi hi hi hi hihi hi").unwrap();
    let exact = [("GGML_OPENVINO_PROPERTIES", EXACT)];
    let stateful = [exact[0], ("GGML_OPENVINO_STATEFUL_EXECUTION", "1")];
    let perplexity = ["perplexity", "-m", model, "-f", text.to_str().unwrap(), "-c", "8"];
    let right = number(ok(&run(&mut llama(&perplexity))), "Final estimate");
    for variables in [&exact[..], &stateful] {
        let found = number(ok(&run(&mut on_openvino(&perplexity, variables))), "Final estimate");
        assert!((found - right).abs() < 1e-3 * right, "{found} {right}");
    }
    let embedding =
        ["embedding", "-m", model, "-p", "hi hi", "--pooling", "mean", "--embd-output-format", "raw"];
    let numbers = |run: &Run| -> Vec<f64> {
        ok(run).split_whitespace().map(|word| word.parse().unwrap_or_else(|_| panic!("{word}"))).collect()
    };
    let right = numbers(&run(&mut llama(&embedding)));
    for variables in [&exact[..], &stateful] {
        let found = numbers(&run(&mut on_openvino(&embedding, variables)));
        assert_eq!(found.len(), right.len());
        assert!(found.iter().zip(&right).all(|(a, b)| (a - b).abs() < 1e-3), "{found:?} {right:?}");
    }
    let bench = ["bench", "-m", model, "-p", "16", "-n", "4", "-r", "1", "-o", "jsonl"];
    let measured = run(&mut on_openvino(&bench, &exact));
    assert_eq!(ok(&measured).lines().count(), 2, "{}", measured.out);
    let batched = ["batched-bench", "-m", model, "-npp", "8", "-ntg", "4", "-npl", "1,3", "-c", "256"];
    ok(&run(&mut on_openvino(&batched, &exact)));
}

/// Answers of a server to several clients at once, each with a prompt of its own.
#[cfg(unix)]
fn answers(mut command: Command) -> Vec<String> {
    use std::io::{BufRead, BufReader, Read, Write};
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
    let ask = |client: usize| {
        let prompt = "hi hihi ".repeat(1 + client);
        let body = format!(
            "{{\"prompt\":\"{prompt}\",\"n_predict\":16,\"temperature\":0,\"ignore_eos\":true,\"return_tokens\":true}}"
        );
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(stream, "POST /completion HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let tokens = answer.split("\"tokens\":[").nth(1).unwrap_or_else(|| panic!("{answer}"));
        tokens.split(']').next().unwrap().to_owned()
    };
    let all = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..5).map(|client| scope.spawn(move || ask(client))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(child.wait().unwrap().success());
    all
}

#[cfg(unix)]
#[test]
fn a_server_answers_several_clients_as_on_the_processor() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = random_model(folder.path());
    let serve = ["serve", "-m", model.to_str().unwrap(), "-c", "1024", "--port", "0", "-t", "2", "-np", "3"];
    let serve = [&serve[..], &["-ctk", "f32", "-ctv", "f32", "--deterministic"]].concat();
    let right = answers(llama(&serve));
    let exact = ("GGML_OPENVINO_PROPERTIES", EXACT);
    for variables in [&[exact][..], &[exact, ("GGML_OPENVINO_STATEFUL_EXECUTION", "1")]] {
        assert_eq!(answers(on_openvino(&serve, variables)), right, "{variables:?}");
    }
}

/// The starter models: what they predict, as far as the precision goes.
#[test]
fn real_models_predict_what_they_predict_on_the_processor() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    let start: String = std::fs::read_to_string(page).unwrap().chars().take(2400).collect();
    std::fs::write(&text, start).unwrap();
    for name in ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"] {
        let Some(model) = real_model(name) else {
            println!("skipped: {name} is not here");
            continue;
        };
        let model = model.to_str().unwrap();
        let perplexity =
            ["perplexity", "-m", model, "-f", text.to_str().unwrap(), "-c", "128", "--chunks", "2"];
        let right = number(ok(&run(&mut llama(&perplexity))), "Final estimate");
        // Both turn activations into integers of eight bits in places of their own, which alone moves it by 1 %.
        for (properties, most) in [(EXACT, 0.015), ("", 0.03)] {
            let variables = [("GGML_OPENVINO_PROPERTIES", properties)];
            let found = number(ok(&run(&mut on_openvino(&perplexity, &variables))), "Final estimate");
            assert!((found - right).abs() < most * right, "{name} {properties}: {found}, {right}");
        }
        same_choices(name, model, folder.path());
    }
}

/// Tokens that are chosen along a text that the processor's back end wrote are the same wherever that is sure of its choice.
/// It rounds activations to eight bits, which moves logits by up to 1; OpenVINO does not here.
fn same_choices(name: &str, model: &str, folder: &Path) {
    let file = folder.join("logits");
    let logits = ["logits", "-m", model, "-c", "128", "-o", file.to_str().unwrap(), "--tokens"];
    let list = |found: &Run| ok(found).trim().trim_matches(['[', ']']).replace(' ', "");
    let tokenize = ["tokenize", "-m", model, "-p", "The capital of France is", "--ids", "--log-disable"];
    let prompt = list(&run(&mut llama(&tokenize)));
    let answer = list(&run(&mut llama(&[&logits[..], &[&prompt, "--greedy", "24"]].concat())));
    let tokens = format!("{prompt},{answer}");
    let positions = tokens.split(',').count();
    let arguments = [&logits[..], &[&tokens]].concat();
    let read = |found: Run| -> Vec<Vec<f32>> {
        ok(&found);
        let bytes = std::fs::read(&file).unwrap();
        let numbers: Vec<f32> =
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        numbers.chunks_exact(numbers.len() / positions).map(<[f32]>::to_vec).collect()
    };
    let right = read(run(&mut llama(&arguments)));
    let found = read(run(&mut on_openvino(&arguments, &[("GGML_OPENVINO_PROPERTIES", EXACT)])));
    let mut sure = 0;
    for (position, (right, found)) in right.iter().zip(&found).enumerate() {
        let best =
            |logits: &[f32]| (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        let first = best(right);
        let second = (0..right.len()).filter(|&id| id != first).map(|id| right[id]).fold(f32::MIN, f32::max);
        if right[first] - second > 1.0 {
            sure += 1;
            assert_eq!(best(found), first, "{name}, position {position}");
        }
    }
    assert!(sure >= positions / 3, "{name}: sure of {sure} of {positions} choices");
}

/// Models with an operation that has no translation run with it on the processor and the rest on OpenVINO.
#[test]
fn operations_without_translation_run_on_the_processor() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let file = folder.path().join("logits");
    for (name, operation) in [("deepseek4-moe", "CompressBlocks"), ("qwen4exp-moe", "NgramRows")] {
        let model = zoo::models().into_iter().find(|model| model.name == name).unwrap();
        std::fs::write(&path, model.bytes()).unwrap();
        let tokens = model.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let arguments = ["logits", "-m", path.to_str().unwrap(), "-c", "256", "-ctk", "f32", "-ctv", "f32"];
        let arguments = [&arguments[..], &["-o", file.to_str().unwrap(), "--tokens", &tokens]].concat();
        let variables = [("GGML_OPENVINO_PROPERTIES", EXACT), ("GGML_OPENVINO_LOG_UNSUPPORTED_OPS", "1")];
        let found = run(&mut on_openvino(&arguments, &variables));
        ok(&found);
        let told = found.err.lines().filter(|line| line.contains(operation)).collect::<Vec<_>>();
        assert!(told.iter().any(|line| line.contains("runs elsewhere: ")), "{name}: {}", found.err);
        let bytes = std::fs::read(&file).unwrap();
        let logits: Vec<f32> =
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        let error = normalised_squared_error(&logits, &model.logits);
        assert!(error <= model.tolerance().max(1e-5), "{name}: {error:.1e}");
    }
}

#[test]
fn what_is_wrong_with_a_set_up_is_one_line() {
    if !is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let model = random_model(folder.path());
    let model = model.to_str().unwrap();
    let text = folder.path().join("text");
    std::fs::create_dir(&text).unwrap();
    std::fs::write(text.join("libopenvino_c.so"), "no library").unwrap();
    let text = text.to_str().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "no library").unwrap();
    let file = file.to_str().unwrap();
    let ask = ["simple", "-m", model, "-n", "2", "hi"];
    // What is there in spite of it is used, and a line says so.
    for (variable, value, line) in [
        ("OPENVINO_DIR", "/no/such/folder", "OPENVINO_DIR=/no/such/folder leads to no library"),
        ("OPENVINO_DIR", file, "leads to no library of OpenVINO's; looking elsewhere"),
        ("GGML_OPENVINO_DEVICE", "TPU", "there is no device TPU (there are CPU"),
        ("GGML_OPENVINO_PROFILING", "on", "GGML_OPENVINO_PROFILING=on: a positive integer means on"),
        (
            "GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR",
            "/proc/none",
            "the compiled model is not kept: /proc/none",
        ),
        ("GGML_OPENVINO_SPILL_DIR", "/no/such/folder", "constants stay in memory: /no/such/folder"),
        ("PUNA_OPENVINO_SHIM", "/no/such/file", "PUNA_OPENVINO_SHIM=/no/such/file: there is no such file"),
        ("PUNA_OPENVINO_SHIM", file, "kept by the host"),
    ] {
        let mut command = on_openvino(&ask, &[(variable, value)]);
        if variable == "OPENVINO_DIR" {
            command.env_remove("INTEL_OPENVINO_DIR");
        }
        let found = run(&mut command);
        ok(&found);
        let told: Vec<&str> = found.err.lines().filter(|told| told.contains(line)).collect();
        assert_eq!(told.len(), 1, "{variable}={value}: {}", found.err);
    }
    // What cannot be used is an error.
    for (variable, value, line) in [
        ("OPENVINO_DIR", text, "libopenvino_c.so"),
        ("GGML_OPENVINO_PROPERTIES", "NO_SUCH=1", "NO_SUCH"),
        (
            "GGML_OPENVINO_PROPERTIES",
            "KV_CACHE_PRECISION=u8",
            "keys and values that the host keeps are f32 or f16",
        ),
        ("GGML_OPENVINO_PROPERTIES", "INFERENCE_PRECISION_HINT=f5", "f5"),
    ] {
        let found = run(&mut on_openvino(&[&ask[..], &["--log-disable"]].concat(), &[(variable, value)]));
        assert_eq!((found.code, found.out.as_str()), (1, ""), "{variable}={value}: {}", found.err);
        assert_eq!(found.err.lines().count(), 1, "{variable}={value}: {}", found.err);
        assert!(found.err.contains(line), "{variable}={value}: {}", found.err);
    }
}
