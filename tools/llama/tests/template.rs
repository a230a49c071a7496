//! `llama template`, and which template the tools use.
#![allow(clippy::print_stdout)] // says what was checked, and what was skipped and why

mod common;

use common::{failure, llama, output, real_model, run, tiny_metadata, tiny_model};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/templates")
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Every template with every conversation: the text and nothing else, or exit code 1 where transformers fails.
#[test]
fn every_template_of_the_fixtures() {
    let text = std::fs::read_to_string(fixtures().join("rendered.json")).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (name, conversation) in recorded["conversations"].as_object().unwrap() {
        let mut conversation = conversation.clone();
        for token in ["bos_token", "eos_token"] {
            conversation[token] = recorded[token].clone();
        }
        files.push((name, write(folder.path(), &format!("{name}.json"), &conversation.to_string())));
    }
    let (mut texts, mut errors) = (0, 0);
    for (template, results) in recorded["rendered"].as_object().unwrap() {
        let template = fixtures().join(template);
        let template = template.to_str().unwrap();
        for (name, file) in &files {
            let found = run(&mut llama(&[
                "template",
                "--chat-template-file",
                template,
                "--conversation",
                file,
                "--now",
                "2026-07-04T09:05:03",
            ]));
            match results[name.as_str()].get("text") {
                Some(text) => {
                    assert_eq!((found.code, found.err.as_str()), (0, ""), "{template} {name}");
                    assert!(found.out == text.as_str().unwrap(), "{template} {name}: {}", found.out);
                    texts += 1;
                }
                None => {
                    assert_eq!((found.code, found.out.as_str()), (1, ""), "{template} {name}");
                    assert!(found.err.starts_with("error: "), "{template} {name}: {}", found.err);
                    errors += 1;
                }
            }
        }
    }
    println!("{texts} texts, {errors} errors");
    assert_eq!(texts + errors, 560);
}

#[test]
fn the_file_and_the_flags_say_what_the_template_sees() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        "c.json",
        &json!({"messages": [{"role": "user", "content": "é"}], "bos_token": "<B>", "x": 1, "tools": null})
            .to_string(),
    );
    let with = |source: &str, more: &[&str]| {
        output(&[&["template", "--chat-template", source, "--conversation", &file], more].concat())
    };
    let source =
        "{{ bos_token }}{{ messages[0].content }}{{ add_generation_prompt }}{{ x }}{{ tools }}|{{ y }}";
    assert_eq!(with(source, &[]), "<B>éTrue1None|");
    assert_eq!(with(source, &["--chat-template-kwargs", "{\"x\": 2, \"y\": [1.5]}"]), "<B>éTrue1None|[1.5]");
    let now = ["--now", "2024-02-29T23:05:03"];
    assert_eq!(with("{{ strftime_now('%d %b %Y %H:%M:%S') }}", &now), "29 Feb 2024 23:05:03");
    assert_eq!(
        with("{{ reasoning_effort }}{{ enable_thinking }}", &["--reasoning-effort", "low", "-rea", "off"]),
        "lowFalse"
    );
    assert_eq!(with("chatml", &[]), "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(with("chatml", &["--no-jinja"]), "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n");
    let without = write(folder.path(), "d.json", r#"{"messages": [], "add_generation_prompt": false}"#);
    assert_eq!(output(&["template", "--chat-template", "chatml", "--conversation", &without]), "");
}

#[test]
fn a_models_own_template_and_its_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let mut metadata = tiny_metadata();
    let source = "{{ bos_token }}[INST] {{ messages[0].content }} [/INST]{{ eos_token }}";
    metadata.set("tokenizer.chat_template", source);
    let path = folder.path().join("own.gguf");
    puna_gguf::write(&path, &metadata, &[]).unwrap();
    let path = path.to_str().unwrap();
    let file = write(folder.path(), "c.json", r#"{"messages": [{"role": "user", "content": "hi"}]}"#);
    let found = output(&["template", "-m", path, "--conversation", &file]);
    let bos = metadata_token(&metadata, "tokenizer.ggml.bos_token_id");
    let eos = metadata_token(&metadata, "tokenizer.ggml.eos_token_id");
    assert_eq!(found, format!("{bos}[INST] hi [/INST]{eos}"));
    // Without Jinja it is the built-in one that is like it.
    assert_eq!(output(&["template", "-m", path, "--conversation", &file, "--no-jinja"]), "[INST] hi [/INST]");
    // A model without a template has that of ChatML.
    let plain = tiny_model(folder.path());
    let found = output(&["template", "-m", plain.to_str().unwrap(), "--conversation", &file]);
    assert_eq!(found, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

fn metadata_token(metadata: &puna_gguf::Metadata, key: &str) -> String {
    let tokens = metadata.string_array("tokenizer.ggml.tokens").unwrap();
    let token = metadata.optional_u32(key).unwrap();
    token.map_or(String::new(), |token| tokens[token as usize].to_string())
}

#[test]
fn mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(folder.path(), "good.json", r#"{"messages": []}"#);
    let fails = |source: &str, text: &str| {
        let file = write(folder.path(), "c.json", text);
        failure(1, &["template", "--chat-template", source, "--conversation", &file])
    };
    assert!(fails("chatml", "[]").contains("expected a JSON object"));
    assert!(fails("chatml", "{}").contains("there is no \"messages\""));
    assert!(fails("chatml", r#"{"messages": 1}"#).contains("is not a list"));
    assert!(
        fails("chatml", r#"{"messages": [], "add_generation_prompt": 1}"#).contains("neither true nor false")
    );
    assert!(fails("chatml", "{").contains("c.json"));
    let raised = fails("\n{{ raise_exception('not ' ~ 'so') }}", r#"{"messages": []}"#);
    assert_eq!(raised, "error: the chat template refused the conversation (line 2): not so");
    let unknown = fails("a\n{{ x | nosuch }}", r#"{"messages": []}"#);
    assert!(unknown.contains("line 2") && unknown.contains("nosuch"), "{unknown}");
    assert!(fails("{% if %}", r#"{"messages": []}"#).contains("line 1"));
    let named = |name: &str| failure(2, &["template", "--chat-template", name, "--conversation", &good]);
    assert!(named("llama2-sys-stripp").contains("did you mean llama2-sys-strip?"));
    assert!(named("nosuchname").contains("--help"));
    for kwargs in ["{bad", "5", "[]"] {
        let with = [
            "template",
            "--chat-template",
            "chatml",
            "--conversation",
            &good,
            "--chat-template-kwargs",
            kwargs,
        ];
        assert!(
            failure(2, &with).starts_with("error: --chat-template-kwargs: expected a JSON object: "),
            "{kwargs}"
        );
    }
    assert!(failure(2, &["template", "--chat-template", "chatml"]).contains("--conversation FILE"));
    assert!(failure(2, &["template", "--conversation", &good]).contains("--chat-template-file"));
    let late = ["template", "--chat-template", "chatml", "--conversation", &good, "--now", "tomorrow"];
    assert!(failure(2, &late).contains("2026-07-04T09:05:03"));
    let jinja = ["template", "--chat-template", "{{ 1 }}", "--conversation", &good, "--no-jinja"];
    assert_eq!(failure(2, &jinja), "error: the text of --chat-template is Jinja, which --no-jinja rules out");
}

/// C24: a wrong template in a model's file can be overridden, and the log says which one is used and from where.
#[test]
fn c24_the_flags_choose_the_template_and_the_log_says_which() {
    const STARTER: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let Some(model) = real_model(STARTER) else {
        println!("skipped: {STARTER} is not here");
        return;
    };
    let model = model.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let own = write(folder.path(), "own.jinja", "{{ messages[0].content }} is");
    let common = ["cli", "-m", model, "-st", "-p", "x", "-n", "1", "--temp", "0"];
    for (flags, origin) in [
        (&[][..], "chat template: that of the model's file\n".to_owned()),
        (
            &["--chat-template", "llama3"],
            "chat template: llama3, built in, as --chat-template says\n".to_owned(),
        ),
        (&["--chat-template-file", &own], format!("chat template: that of {own}\n")),
        (
            &["--no-jinja"],
            "chat template: chatml, built in, for that of the model's file (--no-jinja)\n".to_owned(),
        ),
    ] {
        let arguments: Vec<&str> = [&common[..], flags].concat();
        let found = run(&mut llama(&arguments));
        assert_eq!(found.code, 0, "{}", found.err);
        assert!(found.err.contains(&origin), "{flags:?}: {}", found.err);
    }
}
