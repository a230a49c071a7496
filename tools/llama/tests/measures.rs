//! The tools that measure a model on a text: perplexity, importance, control vectors.

mod common;

use common::{failure, llama, random_model, run};
use puna_gguf::{File, OpenOptions};
use std::path::{Path, PathBuf};

/// A model, and a text of 50 letters, each of which is a token.
fn prepared(folder: &Path) -> (String, String) {
    let text = folder.join("text");
    std::fs::write(&text, "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwx").unwrap();
    (random_model(folder).to_str().unwrap().to_owned(), text.to_str().unwrap().to_owned())
}

fn done(arguments: &[&str]) -> String {
    let run = run(&mut llama(arguments));
    assert_eq!(run.code, 0, "{arguments:?}: {}", run.err);
    run.out
}

/// The last number of the line that begins with these words.
fn number(output: &str, begin: &str) -> f64 {
    let line = output.lines().find(|line| line.starts_with(begin));
    let rest = line.and_then(|line| line.split(['=', ':']).next_back());
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {begin} in {output}"))
}

fn floats(file: &File, name: &str) -> Vec<f32> {
    let tensor = file.tensors.get(name).unwrap_or_else(|| panic!("there is no {name}"));
    file.bytes(tensor).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn a_model_does_not_diverge_from_what_it_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let (model, text) = prepared(folder.path());
    let base = folder.path().join("base");
    let base = base.to_str().unwrap();
    let common = ["perplexity", "-m", &model, "-f", &text, "-c", "8"];
    let plain = number(&done(&common), "Final estimate");
    assert!(plain > 1.0 && plain < 1e6, "{plain}");
    // Chunks side by side or one after the other are the same chunks.
    let alone = number(&done(&[&common[..], &["-b", "8"]].concat()), "Final estimate");
    assert!((plain - alone).abs() < 1e-3 * plain, "{plain} {alone}");
    let recorded = number(&done(&[&common[..], &["--save-all-logits", base]].concat()), "Final estimate");
    assert!((plain - recorded).abs() < 1e-3 * plain, "{plain} {recorded}");
    let compare = ["perplexity", "-m", &model, "--kl-divergence", "--kl-divergence-base", base];
    let report = done(&compare);
    assert!(number(&report, "Mean    KLD").abs() < 1e-3, "{report}");
    assert_eq!(number(&report, "Same top p"), 100.0);
}

#[test]
fn what_cannot_be_measured_is_refused_before_the_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (_, text) = prepared(folder.path());
    let gone = ["perplexity", "-m", "no-such-file", "-f", &text];
    let refused = |more: &[&str]| failure(2, &[&gone[..], more].concat());
    assert!(refused(&["--ppl-stride", "4", "--save-all-logits", "x"]).contains("without --ppl-stride"));
    assert!(refused(&["--chunks", "0"]).contains("above 0"));
    assert!(failure(2, &["serve", "-m", "no-such-file", "--ssl-key-file", "x"]).contains("--ssl-cert-file"));
}

#[test]
fn files_with_importance_say_how_many_chunks_are_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let (model, text) = prepared(folder.path());
    let output = folder.path().join("sums.gguf");
    let out = output.to_str().unwrap();
    let common = ["imatrix", "-m", &model, "-f", &text, "-c", "8", "-o", out, "--chunks", "5"];
    for more in
        [&["-b", "16", "--save-frequency", "3"][..], &["-b", "16", "--save-frequency", "3", "--no-ppl"]]
    {
        done(&[&common[..], more].concat());
        // Two chunks run side by side, so the third is seen together with the fourth.
        let snapshot = folder.path().join("sums.gguf.at_4");
        for (path, chunks) in [(&snapshot, 4), (&output, 5)] {
            let file = File::open(path, &OpenOptions::default()).unwrap();
            assert_eq!(file.metadata.u32("imatrix.chunk_count").unwrap(), chunks, "{}", path.display());
            for name in ["blk.0.attn_q.weight", "blk.1.ffn_down.weight"] {
                assert_eq!(floats(&file, &format!("{name}.counts")), [(chunks * 8) as f32], "{name}");
                assert!(floats(&file, &format!("{name}.in_sum2")).iter().all(|sum| *sum > 0.0), "{name}");
            }
        }
        std::fs::remove_file(&snapshot).unwrap();
    }
    // Seven tensors in each of two layers, and a heading.
    let table = done(&["imatrix", "--in-file", out, "--show-statistics"]);
    assert_eq!(table.lines().count(), 15, "{table}");
    let both = folder.path().join("both.gguf");
    done(&["imatrix", "--in-file", &format!("{out},{out}"), "-o", both.to_str().unwrap()]);
    let both = File::open(&both, &OpenOptions::default()).unwrap();
    assert_eq!(floats(&both, "blk.0.attn_q.weight.counts"), [80.0]);
    let none_left = [&common[..], &["--from-chunk", "9"]].concat();
    let run = run(&mut llama(&none_left));
    assert!(run.code == 1 && run.err.contains("--from-chunk 9 leaves none"), "{}", run.err);
}

#[test]
fn directions_lie_between_two_kinds_of_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let (model, _) = prepared(folder.path());
    let write = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (one, other) = (write("one", "yes\nmore\n"), write("other", "no\nless\n"));
    let output = folder.path().join("vector.gguf");
    let [one, other, out] = [&one, &other, &output].map(|path| path.to_str().unwrap());
    let common =
        ["cvector-generator", "-m", &model, "--positive-file", one, "--negative-file", other, "-o", out];
    for method in ["pca", "mean"] {
        done(&[&common[..], &["--method", method]].concat());
        let file = File::open(&output, &OpenOptions::default()).unwrap();
        let direction = floats(&file, "direction.1");
        let length: f32 = direction.iter().map(|x| x * x).sum();
        assert!(direction.len() == 64 && (length - 1.0).abs() < 1e-4, "{method}: {length}");
    }
    let run = run(&mut llama(&[&common[..], &["-c", "2"]].concat()));
    assert!(run.code == 1 && run.err.contains("the context is 2 (-c)"), "{}", run.err);
    std::fs::remove_file(out).unwrap();
    let same = ["cvector-generator", "-m", &model, "--positive-file", one, "--negative-file", one, "-o", out];
    let same = common::run(&mut llama(&same));
    assert!(same.code == 1 && same.err.contains("there is no direction between them"), "{}", same.err);
    assert!(!output.exists());
}
