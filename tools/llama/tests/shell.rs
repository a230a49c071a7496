//! Finding tools, help, errors and exit codes.

mod common;

use common::{failure, llama, output, program, run};
use std::process::Stdio;

#[test]
fn alone_it_lists_its_commands() {
    let text = output(&[]);
    for name in ["cli", "bench", "tokenize", "info", "pull", "devices"] {
        assert!(text.contains(&format!("\n  {name} ")), "{text}");
    }
    assert_eq!(output(&["help"]), text);
    assert!(output(&["help", "all"]).contains("also: download, get"));
    assert!(output(&["--version"]).starts_with("llama (Puna) "));
    assert_eq!(output(&["--version"]), output(&["version"]));
}

#[test]
fn help_fits_the_tool() {
    let help = output(&["tokenize", "--help"]);
    assert!(help.contains("Usage: llama tokenize"), "{help}");
    assert!(help.contains("--show-count") && !help.contains("--top-k") && !help.contains('\u{1b}'), "{help}");
    assert!(help.contains("[also: -hf -hfr]") && help.contains("[env: LLAMA_ARG_HF_REPO]"), "{help}");
    let help = output(&["cli", "-h"]);
    for heading in ["Model:", "Sampling:", "Context:", "CPU:", "General:"] {
        assert!(help.contains(&format!("\n{heading}\n")), "{heading}");
    }
    assert!(help.contains("--temp <N>") && !help.contains("--show-count"), "{help}");
    assert_eq!(output(&["help", "tokenize"]), output(&["tokenize", "--help"]));
}

#[test]
fn wrong_command_lines_end_with_two() {
    assert_eq!(failure(2, &["tokenise"]), "error: unknown command \"tokenise\"; did you mean tokenize?");
    assert_eq!(failure(2, &["--frobnicate"]), "error: unknown flag \"--frobnicate\"");
    assert_eq!(failure(2, &["cli", "--tmep", "1"]), "error: unknown flag --tmep; did you mean --temp?");
    assert_eq!(failure(2, &["cli", "-c", "x"]), "error: --ctx-size cannot be \"x\": expected a whole number");
    assert_eq!(failure(2, &["tokenize", "--temp", "1"]), "error: llama tokenize has no flag --temp");
    assert_eq!(
        failure(2, &["bench", "-p", "x"]),
        "error: --n-prompt cannot be \"x\": expected numbers or ranges FIRST-LAST[+STEP|*FACTOR]"
    );
    assert_eq!(
        failure(2, &["tokenize", "-p", "x"]),
        "error: no model: give -m FILE, -hf USER/MODEL or -mu URL"
    );
    assert_eq!(failure(2, &["help", "--nosuchflag"]), "error: unknown flag \"--nosuchflag\"");
    assert_eq!(
        failure(2, &["help", "tokenise"]),
        "error: unknown command \"tokenise\"; did you mean tokenize?"
    );
    assert_eq!(output(&["help", "--help"]), output(&["help", "all"]));
    assert_eq!(failure(2, &["version", "--nosuchflag"]), "error: unexpected argument \"--nosuchflag\"");
    let folder = tempfile::tempdir().unwrap();
    for wrong in ["--nosuchflag", "-x", ""] {
        let found = run(llama(&["man", wrong]).current_dir(folder.path()));
        assert_eq!(
            (found.code, found.err.lines().next()),
            (2, Some(&*format!("error: expected a folder, got {wrong:?}")))
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let run = run(llama(&["cli"]).env("LLAMA_ARG_CTX_SIZE", "many"));
    assert_eq!(run.code, 2);
    assert!(
        run.err.starts_with("error: environment variable LLAMA_ARG_CTX_SIZE (--ctx-size) cannot be \"many\"")
    );
}

#[test]
fn completions_and_manual_pages() {
    for (shell, expected) in
        [("bash", "complete -F"), ("zsh", "#compdef llama"), ("fish", "complete -c llama")]
    {
        assert!(output(&["completions", shell]).contains(expected), "{shell}");
    }
    assert!(output(&["--completion-bash"]).contains("--show-count"));
    assert!(output(&["cli", "--completion-bash"]).contains("--show-count"));
    assert_eq!(
        failure(2, &["completions", "tcsh"]),
        "error: \"tcsh\" is no known shell: expected one of bash, elvish, fish, powershell, zsh"
    );
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man");
    output(&["man", pages.to_str().unwrap()]);
    let page = std::fs::read_to_string(pages.join("llama-tokenize.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("show\\-count"), "{page}");
    assert!(pages.join("llama.1").exists() && pages.join("llama-cli.1").exists());
}

#[cfg(unix)]
#[test]
fn a_link_is_a_tool() {
    let folder = tempfile::tempdir().unwrap();
    let link = |name: &str| {
        let path = folder.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_llama"), &path).unwrap();
        path
    };
    let help = run(&mut program(&link("llama-tokenize"), &["--help"]));
    assert!(help.code == 0 && help.out.contains("Usage: llama-tokenize"), "{}", help.out);
    let script = run(&mut program(&link("llama-bench"), &["--completion-bash"]));
    assert!(script.out.contains("llama-bench") && script.out.contains("--n-depth"));
    let wrong = run(&mut program(&link("llama-tokenise"), &[]));
    assert_eq!(
        (wrong.code, wrong.err.lines().next()),
        (2, Some("error: unknown command \"tokenise\"; did you mean tokenize?"))
    );
    let devices = run(&mut program(&link("llama"), &["devices"]));
    assert!(devices.out.contains("CPU: "), "{}", devices.out);
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child =
        llama(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn devices_are_listed_as_text_and_json() {
    assert!(output(&["devices"]).starts_with("Available devices:\n  CPU: "));
    assert_eq!(output(&["cli", "--list-devices"]), output(&["devices"]));
    let rows: serde_json::Value = serde_json::from_str(&output(&["devices", "--json"])).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["used"]), (&serde_json::json!("CPU"), &serde_json::json!(true)));
}
