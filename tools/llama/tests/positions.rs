//! Models with learned positions in every tool that takes a context: it is cut to what texts can fill, with one warning, and a
//! longer text is refused.

mod common;

use common::{Run, llama, output, run, with_letters};
use puna_conformance::zoo;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A StarCoder with 64 positions whose tokens are letters.
fn model() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = named("starcoder-mqa", folder.path());
    (folder, path)
}

/// A zoo model whose tokens are letters.
fn named(name: &str, folder: &Path) -> String {
    let path = folder.join(format!("{name}.gguf"));
    let zoo = zoo::models().into_iter().find(|zoo| zoo.name == name).unwrap();
    with_letters(&zoo.open(), &path);
    path.to_str().unwrap().to_owned()
}

/// So many tokens.
fn text(tokens: u32) -> String {
    (0..tokens).map(|token| char::from_u32(0x4e00 + token % 50).unwrap()).collect()
}

fn ids(count: usize) -> String {
    vec!["1"; count].join(",")
}

/// What a tool says of a context of 64 for one text.
fn warning(wanted: u32) -> String {
    format!(
        "context 64 instead of {wanted} (-c), because no text gets longer than the 64 positions of position_embd.weight"
    )
}

/// How many lines of the messages say this.
fn lines(run: &Run, text: &str) -> usize {
    run.err.lines().filter(|line| line.ends_with(text)).count()
}

#[test]
fn a_larger_context_is_cut_with_one_warning() {
    let (folder, path) = model();
    let file = folder.path().join("text");
    std::fs::write(&file, text(300)).unwrap();
    let (file, short, ids) = (file.to_str().unwrap(), text(20), ids(64));
    let sums = folder.path().join("sums.gguf");
    for (context, tool) in [
        ("65", &["logits", "--tokens", &ids][..]),
        ("4096", &["completion", "-no-cnv", "-p", &short, "-n", "4", "--ignore-eos", "--temp", "0"]),
        ("4096", &["simple", "-n", "4", &short]),
        // On two devices.
        ("4096", &["logits", "--tokens", "1,2,3", "-dev", "reference", "-ngl", "1"]),
        ("100", &["perplexity", "-f", file]),
        ("100", &["imatrix", "-f", file, "-o", sums.to_str().unwrap()]),
        ("500", &["batched-bench", "-npp", "32", "-ntg", "16", "-npl", "1"]),
    ] {
        let with =
            |context: &str| run(&mut llama(&[tool, &["-m", &path, "-c", context, "-t", "2"]].concat()));
        let found = with(context);
        assert_eq!(found.code, 0, "{tool:?}: {}", found.err);
        assert_eq!(lines(&found, &warning(context.parse().unwrap())), 1, "{tool:?}: {}", found.err);
        let usual = with("64");
        assert_eq!((usual.code, usual.err.contains("instead of")), (0, false), "{tool:?}: {}", usual.err);
        if tool[0] != "batched-bench" {
            assert_eq!(found.out, usual.out, "{tool:?}");
        }
    }
    // Two texts have room for twice as many.
    let two = ["logits", "-m", &path, "--tokens", "1,2;3,4", "-c"];
    assert!(!run(&mut llama(&[&two[..], &["128"]].concat())).err.contains("instead of"));
    let found = run(&mut llama(&[&two[..], &["129"]].concat()));
    let said = "context 128 instead of 129 (-c), because no text gets longer than the 64 positions of position_embd.weight, \
                and there are at most 2";
    assert_eq!((found.code, lines(&found, said)), (0, 1), "{}", found.err);
    let planned = output(&["info", "-m", &path, "-c", "4096"]);
    assert!(planned.contains(&warning(4096)), "{planned}");
}

#[test]
fn a_longer_text_is_refused() {
    let (_folder, path) = model();
    let (long, ids) = (text(65), ids(65));
    for (context, tool, said) in [
        (
            "4096",
            &["logits", "--tokens", &ids][..],
            "65 tokens and 0 to generate do not fit into a context of 64",
        ),
        ("0", &["logits", "--tokens", &ids], "65 tokens and 0 to generate do not fit into a context of 64"),
        ("4096", &["completion", "-no-cnv", "-p", &long, "-n", "4"], "the model has learned 64 positions"),
        (
            "0",
            &["bench", "-p", "65", "-n", "0", "-r", "1"],
            "a test of 65 tokens of prompt, 0 generated ones and 0 before them (-p, -n, -d) is too long: the model has learned \
             64 positions",
        ),
        (
            "0",
            &["bench", "-p", "16", "-n", "16", "-d", "60", "-r", "1"],
            "a test of 16 tokens of prompt, 0 generated ones and 60 before them (-p, -n, -d) is too long",
        ),
    ] {
        let context: &[&str] = if context == "0" { &[] } else { &["-c", context] };
        let found = run(&mut llama(&[tool, &["-m", &path, "-t", "2"], context].concat()));
        let last = found.err.lines().last().unwrap_or("");
        assert!(found.code == 1 && last.contains(said), "{tool:?}: {}", found.err);
    }
}

/// A draft model guesses as long as it has positions, and the text is the same.
#[test]
fn drafts_with_fewer_positions_change_no_text() {
    let (folder, draft) = model();
    let target = named("llama-dense", folder.path());
    let short = text(20);
    let common =
        ["completion", "-m", &target, "-no-cnv", "-p", &short, "-n", "100", "--ignore-eos", "--temp", "0"];
    let common = [&common[..], &["-c", "256", "-t", "2", "--deterministic"]].concat();
    let alone = run(&mut llama(&common));
    let guessed = run(&mut llama(&[&common[..], &["-md", &draft]].concat()));
    assert_eq!((alone.code, guessed.code, &guessed.out), (0, 0, &alone.out), "{}", guessed.err);
    assert_eq!(lines(&guessed, &warning(256)), 1, "{}", guessed.err);
}

/// A text that ends before it has all its tokens says why; one that has them does not.
#[test]
fn a_full_context_is_told_where_it_cut_the_text() {
    let (_folder, path) = model();
    let short = text(20);
    for (more, tokens, is_told) in [
        (&["-n", "100"][..], 45, true),
        (&["-n", "44"], 44, false),
        (&["-n", "100", "--context-shift"], 100, false),
    ] {
        let arguments = ["completion", "-no-cnv", "-m", &path, "-p", &short, "--ignore-eos", "--temp", "0"];
        let found = run(&mut llama(&[&arguments[..], &["-t", "2"], more].concat()));
        assert_eq!(found.code, 0, "{more:?}: {}", found.err);
        assert!(found.err.contains(&format!("generation: {tokens} tokens")), "{more:?}: {}", found.err);
        assert_eq!(found.err.contains("the context is full"), is_told, "{more:?}: {}", found.err);
    }
}

/// An embedder with 64 positions.
fn embedder() -> (tempfile::TempDir, PathBuf, usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bert.gguf");
    let zoo = zoo::embedding_models().into_iter().find(|zoo| zoo.name == "bert").unwrap();
    let file = zoo.open();
    with_letters(&file, &path);
    let most = file.tensors.get("position_embd.weight").unwrap().shape[0] as usize;
    (folder, path, most)
}

#[test]
fn embedders_keep_to_their_positions() {
    let (_folder, path, most) = embedder();
    let path = path.to_str().unwrap();
    let short = text(20);
    let embed = |text: &str, more: &[&str]| {
        run(&mut llama(&[&["embedding", "-m", path, "-p", text, "-t", "2"][..], more].concat()))
    };
    let usual = embed(&short, &[]);
    let larger = embed(&short, &["-c", "99999"]);
    assert_eq!((usual.code, larger.code, &larger.out), (0, 0, &usual.out), "{}", larger.err);
    let said = format!(
        "context {most} instead of 99999 (-c), because no text gets longer than the {most} positions of position_embd.weight"
    );
    assert_eq!(lines(&larger, &said), 1, "{}", larger.err);
    for more in [&[][..], &["-c", "99999"]] {
        let long = embed(&text(most as u32 + 1), more);
        let last = long.err.lines().last().unwrap_or("");
        let said =
            format!("a text of {} tokens is too long: the model has learned {most} positions", most + 1);
        assert!(long.code == 1 && last.ends_with(&said), "{}", long.err);
    }
}

/// A slot of the server has as many tokens as the table of positions; more are refused by the request.
#[test]
fn slots_of_the_server_are_as_long_as_the_table() {
    let (_folder, path) = model();
    let arguments = ["serve", "-m", &path, "-c", "4096", "--port", "0", "-t", "1", "-np", "2"];
    let mut child = llama(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address =
        line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}")).to_owned();
    let ask = |head: &str, body: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let request = format!("{head} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let slots = ask("GET /slots", "");
    let completed = |tokens: usize, more: usize| {
        let body = format!("{{\"prompt\":[{}],\"n_predict\":{more},\"ignore_eos\":true}}", ids(tokens));
        ask("POST /completion", &body)
    };
    let (fits, refused, cut) = (completed(60, 4), completed(65, 1), completed(60, 20));
    child.kill().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert_eq!(slots.matches("\"n_ctx\":64").count(), 2, "{slots}");
    assert!(fits.contains("\"tokens_predicted\":4"), "{fits}");
    assert!(refused.starts_with("HTTP/1.0 400") && refused.contains("\"n_ctx\":64"), "{refused}");
    assert!(refused.contains("has learned no more positions") && !refused.contains("(-c)"), "{refused}");
    assert!(cut.contains("\"truncated\":true") || cut.contains("\"stop_type\":\"limit\""), "{cut}");
    let warned = "context 128 instead of 4096 (-c), because no text gets longer than the 64 positions of position_embd.weight, \
                  and there are at most 2";
    assert_eq!(said.lines().filter(|line| line.ends_with(warned)).count(), 1, "{said}");
}
