//! `cli`, `completion`, `simple`, `run` and `bench` on a real model, if one is here.

#![allow(clippy::print_stdout)] // says which tests are skipped, and why

mod common;

use common::{Run, llama, real_model, run};
use std::io::Write;
use std::process::Stdio;

const STARTER: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The arguments with the starter model in place of `MODEL`, or `None` without it.
fn with_model(arguments: &[&str]) -> Option<Run> {
    let command = command(arguments);
    if command.is_none() {
        println!("skipped: {STARTER} is not here");
    }
    command.map(|mut command| run(&mut command))
}

fn command(arguments: &[&str]) -> Option<std::process::Command> {
    let path = real_model(STARTER)?;
    let model = path.to_str().unwrap();
    let arguments: Vec<&str> =
        arguments.iter().map(|argument| if *argument == "MODEL" { model } else { *argument }).collect();
    Some(llama(&arguments))
}

fn with_input(arguments: &[&str], input: &str) -> Option<Run> {
    let mut command = command(arguments)?;
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Some(Run {
        code: output.status.code().unwrap_or(-1),
        out: text(&output.stdout),
        err: text(&output.stderr),
    })
}

fn ok(run: &Run) -> &str {
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    &run.out
}

/// What the reference program writes.
const PARIS: &str = "The capital of France is Paris.\n\nThe United States has a population of approximately";

#[test]
fn greedy_text_is_the_reference_programs() {
    let Some(simple) = with_model(&["simple", "-m", "MODEL", "-n", "12", "The capital of France is"]) else {
        return;
    };
    assert_eq!(ok(&simple), format!("{PARIS}\n"));
    let prompt = ["-m", "MODEL", "-p", "The capital of France is", "-n", "12", "--temp", "0", "-no-cnv"];
    let completion = with_model(&[&["completion"][..], &prompt].concat()).unwrap();
    assert_eq!(ok(&completion), format!("{PARIS}\n\n"));
    assert!(completion.err.contains("generation: 12 tokens"), "{}", completion.err);
    let hidden = with_model(&[&["completion", "--no-display-prompt"][..], &prompt].concat()).unwrap();
    assert_eq!(ok(&hidden), format!("{}\n\n", &PARIS["The capital of France is".len()..]));
}

#[test]
fn stop_texts_end_the_answer_before_them() {
    let prompt = ["completion", "-m", "MODEL", "-p", "The capital of France is", "-n", "12", "--temp", "0"];
    let stop = |text: &str| with_model(&[&prompt[..], &["-no-cnv", "-r", text]].concat());
    let Some(found) = stop("\n\nThe United States") else { return };
    assert_eq!(ok(&found), "The capital of France is Paris.\n\n");
    assert_eq!(ok(&stop("is.\n").unwrap()), "The capital of France is Par\n\n");
}

#[test]
fn on_a_pipe_there_is_only_the_answer() {
    // "What is the capital of France?" is a near tie of this model, which rounding decides.
    let question = ["-m", "MODEL", "-p", "Name the capital of France.", "-n", "20", "--temp", "0"];
    let Some(cli) = with_model(&[&["cli", "--single-turn"][..], &question].concat()) else { return };
    let answer = ok(&cli);
    assert!(answer.contains("Paris") && answer.ends_with('\n') && !answer.contains("<|"), "{answer:?}");
    assert!(!answer.contains('\u{1b}') && !answer.contains("> "), "{answer:?}");
    assert!(cli.err.contains("t/s"), "{}", cli.err);
    let quiet = with_model(&[&["cli", "--log-disable"][..], &question].concat()).unwrap();
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), (answer, ""));
    // The same answer by the other ways to ask.
    let path = ["-n", "20", "--temp", "0", "--log-disable"];
    let named = with_model(&[&["run", "MODEL", "Name the capital of France."][..], &path].concat()).unwrap();
    assert_eq!(ok(&named), answer);
    let conversation =
        with_model(&[&["completion", "-st", "--log-disable"][..], &question].concat()).unwrap();
    assert_eq!(ok(&conversation), answer);
}

#[test]
fn equal_seeds_give_equal_answers() {
    let ask = |seed: &str| {
        with_model(&["cli", "-m", "MODEL", "-p", "Tell me a story.", "-n", "24", "-s", seed, "--log-disable"])
    };
    let Some(first) = ask("42") else { return };
    assert_eq!(ok(&first), ok(&ask("42").unwrap()));
    assert_ne!(first.out, ask("43").unwrap().out);
}

#[test]
fn guesses_change_nothing_but_the_time() {
    let prompt =
        "one two three four five six\none two three four five six\none two three four five six\none two";
    let ask = |more: &[&str]| {
        let plain = ["completion", "-m", "MODEL", "-p", prompt, "-n", "40", "--temp", "0", "-no-cnv"];
        with_model(&[&plain, more].concat())
    };
    let Some(plain) = ask(&[]) else { return };
    let model = real_model(STARTER).unwrap();
    let model = model.to_str().unwrap();
    for more in [
        &["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3"][..],
        &["--spec-type", "ngram-mod,ngram-map-k", "--spec-ngram-map-k-size-n", "4"],
        &["--spec-type", "ngram-cache"],
        &["-md", model, "--spec-draft-n-max", "4"],
    ] {
        let found = ask(more).unwrap();
        assert_eq!(ok(&found), ok(&plain), "{more:?}");
        assert!(found.err.contains(" guessed ones right)"), "{more:?}: {}", found.err);
    }
    let refused = ask(&["--spec-type", "draft-simple"]).unwrap();
    assert!(refused.code == 1 && refused.err.contains("-md"), "{}", refused.err);
    let refused = ask(&["--spec-type", "draft-dspark"]).unwrap();
    assert!(
        refused.code == 2 && refused.err.contains("draft-dspark is not supported yet"),
        "{}",
        refused.err
    );
    let refused = ask(&["--draft-max", "5"]).unwrap();
    assert!(refused.code == 2 && refused.err.contains("--spec-draft-n-max"), "{}", refused.err);
}

#[test]
fn a_conversation_on_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("chat.json");
    let input = format!(
        "My name is Ada.\n/nonsense\n\nWhat is my name?\n/regen\n/stats\n/save {0}\n/clear\n/load {0}\n/system\n/exit\nnever\n",
        saved.display()
    );
    let arguments = ["cli", "-m", "MODEL", "-n", "12", "--temp", "0", "-sys", "You are helpful."];
    // A failed command ends a conversation on a pipe, as in a script.
    let Some(failed) = with_input(&arguments, &input) else { return };
    assert_eq!(failed.code, 1);
    assert!(failed.err.contains("unknown command /nonsense"), "{}", failed.err);
    let found = with_input(&arguments, &input.replace("/nonsense\n", "")).unwrap();
    let answers: Vec<&str> = ok(&found).lines().collect();
    assert!(answers.len() >= 3, "{}", found.out);
    assert!(found.err.contains("You are helpful.") && found.err.contains("seed"), "{}", found.err);
    // The second turn reuses the first.
    assert!(found.err.contains("reused"), "{}", found.err);
    let messages: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    let roles: Vec<_> = messages["messages"].as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
}

#[test]
fn a_saved_prompt_is_not_evaluated_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("prompt.cache");
    let cache = cache.to_str().unwrap();
    let text = "Once upon a time there was a llama that lived on a high plateau and";
    // A prompt in one step and in two give the same numbers only if asked for.
    let arguments =
        ["completion", "-m", "MODEL", "-p", text, "-n", "10", "--temp", "0", "-no-cnv", "--deterministic"];
    let Some(plain) = with_model(&arguments) else { return };
    let cached = [&arguments[..], &["--prompt-cache", cache]].concat();
    for time in ["first", "second"] {
        let found = with_model(&cached).unwrap();
        assert_eq!(ok(&found), plain.out, "{time}");
        assert!(found.err.contains("prompt: 1 tokens"), "{time}: {}", found.err);
    }
    let before = std::fs::read(cache).unwrap();
    // Without a prompt the saved one goes on, and all of the text is saved if asked for.
    let more = with_model(&[
        "completion",
        "-m",
        "MODEL",
        "-n",
        "10",
        "--temp",
        "0",
        "--deterministic",
        "--prompt-cache",
        cache,
        "--prompt-cache-all",
    ]);
    assert_eq!(ok(&more.unwrap()), plain.out);
    assert_ne!(std::fs::read(cache).unwrap(), before);
    let longer =
        ["completion", "-m", "MODEL", "-n", "5", "--temp", "0", "--deterministic", "--prompt-cache", cache];
    let longer = with_model(&longer);
    assert!(ok(&longer.unwrap()).len() > plain.out.len());
    // A damaged file is refused and not overwritten.
    let mut damaged = before;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x40;
    std::fs::write(cache, &damaged).unwrap();
    let refused = with_model(&cached).unwrap();
    assert_eq!((refused.code, refused.out.as_str()), (1, ""));
    assert!(refused.err.lines().last().unwrap().contains("prompt.cache"), "{}", refused.err);
    assert_eq!(std::fs::read(cache).unwrap(), damaged);
}

#[test]
fn too_long_prompts_are_refused_with_their_numbers() {
    let text = "word ".repeat(200);
    for tool in ["cli", "completion"] {
        let arguments =
            [tool, "-m", "MODEL", "-c", "64", "-p", &text, "--no-display-prompt", "--log-disable"];
        let Some(found) = with_model(&arguments) else { return };
        assert_eq!((found.code, found.out.as_str()), (1, ""), "{tool}");
        assert_eq!(found.err.lines().count(), 1, "{}", found.err);
        assert!(found.err.contains("the context holds 64") && found.err.contains("-c"), "{}", found.err);
    }
}

#[test]
fn generation_beyond_the_context() {
    let arguments = ["completion", "-m", "MODEL", "-c", "64", "-p", "Counting:", "-n", "150", "--ignore-eos"];
    let arguments = [&arguments[..], &["--temp", "0", "-no-cnv"]].concat();
    let Some(full) = with_model(&arguments) else { return };
    assert!(ok(&full).len() > 20 && full.err.contains("generation: 6"), "{}", full.err);
    let shifted = with_model(&[&arguments[..], &["--context-shift", "--keep", "4"]].concat()).unwrap();
    assert!(ok(&shifted).starts_with(full.out.trim_end()));
    assert!(shifted.err.contains("generation: 150 tokens"), "{}", shifted.err);
}

#[test]
fn bench_measures() {
    let arguments =
        ["bench", "-m", "MODEL", "-p", "8", "-n", "2", "-pg", "4,2", "-d", "0,4", "-r", "2", "-o", "jsonl"];
    let Some(found) = with_model(&arguments) else { return };
    let rows: Vec<serde_json::Value> =
        ok(&found).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 2);
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0);
        assert_eq!(row["model_type"], "llama 256M Q4_1");
        assert_eq!(row["model_n_params"], 134_515_008);
    }
}
