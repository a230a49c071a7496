//! Where tools write: a folder that is missing, closed or full, a file that is read, Ctrl-C in the middle. One clear line
//! comes of it, the input stays as it was and nothing half-made is left.

#![cfg(unix)]
#![allow(clippy::print_stdout)] // says what is skipped, and why

mod common;

use common::workshop::{self, Workshop};
use common::{finish, llama};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A command that writes the file after its `OUT`, and the files that it reads.
struct Writing {
    arguments: Vec<&'static str>,
    inputs: Vec<&'static str>,
}

const OUT: &str = "OUT";

fn writing(arguments: &[&'static str], inputs: &[&'static str]) -> Writing {
    Writing { arguments: arguments.to_vec(), inputs: inputs.to_vec() }
}

/// Commands on the files of [`workshop::models`].
fn model_commands() -> Vec<Writing> {
    let measure = ["-m", "model.gguf", "-c", "8", "-f", "text"];
    let with = |tool: &'static str, more: &[&'static str]| [&[tool], &measure[..], more].concat();
    vec![
        writing(
            &["quantize", "--imatrix", "sums.gguf", "model.gguf", OUT, "Q4_K"],
            &["model.gguf", "sums.gguf"],
        ),
        writing(&["gguf", "model.gguf", "--set", "a=int:1", "-o", OUT], &["model.gguf"]),
        writing(
            &["gguf-split", "--merge", "part-00001-of-00002.gguf", OUT],
            &["part-00001-of-00002.gguf", "part-00002-of-00002.gguf"],
        ),
        writing(
            &["export-lora", "-m", "model.gguf", "--lora", "adapter.gguf", "-o", OUT],
            &["model.gguf", "adapter.gguf"],
        ),
        writing(&["convert-legacy", "old.bin", OUT], &["old.bin"]),
        writing(&with("imatrix", &["-o", OUT]), &["model.gguf", "text"]),
        writing(&with("imatrix", &["--output-format", "dat", "-o", OUT]), &["model.gguf", "text"]),
        writing(&["imatrix", "--in-file", "sums.gguf,sums.dat", "-o", OUT], &["sums.gguf", "sums.dat"]),
        writing(
            &[
                "cvector-generator",
                "-m",
                "model.gguf",
                "--positive-file",
                "one",
                "--negative-file",
                "other",
                "-o",
                OUT,
            ],
            &["model.gguf", "one", "other"],
        ),
        writing(&with("perplexity", &["--save-all-logits", OUT]), &["model.gguf", "text"]),
        writing(&["logits", "-m", "model.gguf", "--tokens", "5,17", "-o", OUT], &["model.gguf"]),
    ]
}

/// Commands on the files of [`workshop::adapter`].
fn folder_commands() -> Vec<Writing> {
    vec![
        writing(
            &["convert", "model", "--outfile", OUT],
            &["model/config.json", "model/model.safetensors", "model/generation_config.json"],
        ),
        writing(
            &["convert-lora", "adapter", "--base", "model", "--outfile", OUT],
            &["adapter/adapter_config.json", "adapter/adapter_model.safetensors", "model/config.json"],
        ),
        writing(&["logits", "-m", "model", "--tokens", "5,17", "-o", OUT], &["model/config.json"]),
    ]
}

/// Calls `check` with each command and its folder.
fn each(check: impl Fn(&Workshop, &Writing)) {
    let (models, folders) = (workshop::models(), workshop::adapter());
    model_commands().iter().for_each(|command| check(&models, command));
    folder_commands().iter().for_each(|command| check(&folders, command));
}

impl Writing {
    fn to(&self, output: &'static str) -> Vec<&'static str> {
        let place = |word: &&'static str| if *word == OUT { output } else { *word };
        self.arguments.iter().map(place).chain(["--log-disable"]).collect()
    }
}

/// Starts the program through a shell that says something first, in the folder.
fn start(shop: &Workshop, first: &str, arguments: &[&str]) -> Child {
    let program = llama(arguments);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{first} exec \"$0\" \"$@\"")]);
    command.arg(program.get_program()).args(program.get_args()).current_dir(shop.folder.path());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// Runs it and expects one line with these words and the folder as it was.
fn refused(shop: &Workshop, first: &str, arguments: &[&str], words: &[&str]) {
    let before = shop.files();
    let case = format!("{first} {}", arguments.join(" "));
    let (code, errors) = finish(start(shop, first, arguments), &case);
    assert_eq!((code, errors.lines().count()), (1, 1), "{case}: {errors}");
    assert!(
        errors.starts_with("error: ") && words.iter().any(|word| errors.contains(word)),
        "{case}: {errors}"
    );
    assert!(shop.files() == before, "{case}: the folder is changed");
}

#[test]
fn good_outputs_are_written() {
    each(|shop, command| {
        let child = start(shop, "", &command.to("out.gguf"));
        let (code, errors) = finish(child, "good");
        assert_eq!(code, 0, "{:?}: {errors}", command.arguments);
        std::fs::remove_file(shop.path("out.gguf")).expect("it was written");
    });
}

#[test]
fn missing_folders_and_folders_in_the_way() {
    each(|shop, command| {
        refused(shop, "", &command.to("no-such-folder/out.gguf"), &["no-such-folder"]);
        std::fs::create_dir(shop.path("taken")).expect("a folder");
        refused(shop, "", &command.to("taken"), &["taken"]);
        std::fs::remove_dir(shop.path("taken")).expect("it is empty");
    });
}

#[test]
fn inputs_are_never_written_over() {
    each(|shop, command| {
        for input in &command.inputs {
            refused(shop, "", &command.to(input), &["is the input itself", "exists already"]);
        }
    });
    let shop = workshop::models();
    let parts = "part-00001-of-00002.gguf";
    refused(
        &shop,
        "",
        &["quantize", "--keep-split", parts, "part.gguf", "Q8_0", "--log-disable"],
        &["input itself"],
    );
    std::fs::rename(shop.path("model.gguf"), shop.path("m-00001-of-00001.gguf")).expect("it is renamed");
    let split = ["gguf-split", "--split-max-tensors", "99", "m-00001-of-00001.gguf", "m", "--log-disable"];
    refused(&shop, "", &split, &["input itself"]);
    std::fs::rename(shop.path("sums.gguf"), shop.path("sums.at_3")).expect("it is renamed");
    let more = [
        "imatrix",
        "--in-file",
        "sums.at_3",
        "-m",
        "m-00001-of-00001.gguf",
        "-f",
        "text",
        "--save-frequency",
        "1",
    ];
    refused(&shop, "", &[&more[..], &["-o", "sums", "--log-disable"]].concat(), &["name of a snapshot"]);
}

#[test]
fn full_disks() {
    each(|shop, command| {
        // One block of 512 or 1024 bytes: not even the header fits.
        let small = shop_writes_little(command);
        refused(
            shop,
            if small { "ulimit -f 0;" } else { "ulimit -f 1;" },
            &command.to("out.gguf"),
            &["out.gguf"],
        );
    });
    let shop = workshop::models();
    for arguments in [
        &["gguf-split", "--split-max-tensors", "4", "model.gguf", "p"][..],
        &["gguf", "model.gguf", "--set", "a=int:1", "--in-place"],
        &["quantize", "--keep-split", "part-00001-of-00002.gguf", "q.gguf", "Q8_0"],
    ] {
        // Half of the model fits.
        let half = std::fs::metadata(shop.path("model.gguf")).expect("it is there").len() / 2048;
        for blocks in [0, 8, half / 4] {
            refused(
                &shop,
                &format!("ulimit -f {blocks};"),
                &[arguments, &["--log-disable"]].concat(),
                &["large"],
            );
        }
    }
}

/// Whether all that a command writes fits into a block.
fn shop_writes_little(command: &Writing) -> bool {
    ["convert-legacy", "logits", "convert-lora", "cvector-generator"].contains(&command.arguments[0])
}

#[test]
fn closed_folders() {
    use std::os::unix::fs::PermissionsExt;
    let root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.starts_with(b"0\n"));
    let drop = "exec setpriv --reuid 65534 --regid 65534 --clear-groups";
    let able = || {
        Command::new("sh").args(["-c", &format!("{drop} {} version", env!("CARGO_BIN_EXE_llama"))]).status()
    };
    if root && !able().is_ok_and(|status| status.success()) {
        println!("skipped: root may write everywhere, and setpriv cannot give that up");
        return;
    }
    each(|shop, command| {
        let open = |mode| {
            let folder = shop.folder.path();
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).expect("it is ours");
        };
        open(0o555);
        // The shell gives up its rights and runs the program in its place.
        let first = if root { drop } else { "" };
        let before = shop.files();
        let arguments = command.to("out.gguf");
        let program = llama(&arguments);
        let words: Vec<String> = std::iter::once(program.get_program())
            .chain(program.get_args())
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let found = common::run(
            Command::new("sh")
                .args(["-c", &format!("{first} {}", words.join(" "))])
                .current_dir(shop.folder.path())
                .stdin(Stdio::null()),
        );
        open(0o755);
        assert_eq!((found.code, found.err.lines().count()), (1, 1), "{arguments:?}: {}", found.err);
        assert!(
            found.err.contains("out.gguf") && found.err.contains("denied"),
            "{arguments:?}: {}",
            found.err
        );
        assert!(shop.files() == before, "{arguments:?}: the folder is changed");
    });
}

/// Sends this signal as soon as something new is in the folder, or after a while; expects an end at once and the folder as it
/// was. False if the command was done before.
fn interrupted(shop: &Workshop, signal: &str, arguments: &[&str], after: Duration) -> bool {
    let before = shop.files();
    let names = |shop: &Workshop| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(shop.folder.path()).expect("the folder").flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let count = names(shop).len();
    let mut child = start(shop, "", &[arguments, &["--log-disable"]].concat());
    let begun = Instant::now();
    while begun.elapsed() < after && names(shop).len() == count {
        std::thread::sleep(Duration::from_millis(1));
    }
    if child.try_wait().expect("it can be asked").is_none() {
        // It may end before this arrives.
        let _ = Command::new("kill").args([signal, &child.id().to_string()]).status();
    }
    let sent = Instant::now();
    let (code, errors) = finish(child, &arguments.join(" "));
    if code == 0 {
        let made: Vec<PathBuf> = shop.files().into_keys().filter(|path| !before.contains_key(path)).collect();
        assert!(
            made.iter().all(|path| !path.to_string_lossy().ends_with(".part")),
            "{arguments:?}: {made:?}"
        );
        made.iter().for_each(|path| std::fs::remove_file(path).expect("it is there"));
        return false;
    }
    // Before the program hears of Ctrl-C itself, the signal ends it, and nothing has been written yet. The others are seen
    // from outside.
    assert!(
        (code == -1 || (code == 130 && signal == "-INT")) && errors.is_empty(),
        "{arguments:?}: exit code {code}: {errors}"
    );
    assert!(sent.elapsed() < Duration::from_secs(5), "{arguments:?}: {:?}", sent.elapsed());
    assert!(shop.files() == before, "{arguments:?}: the folder is changed");
    true
}

/// A file that begins with these bytes and goes on with a hole, which takes no room.
fn with_hole(shop: &Workshop, name: &str, begin: &[u8], hole: usize) {
    shop.put(name, begin);
    let file = std::fs::File::options().write(true).open(shop.path(name)).expect("it is there");
    file.set_len((begin.len() + hole) as u64).expect("it becomes longer");
}

/// Rows and columns of large matrices, of which there are three.
const ROWS: usize = 16384;
const COLUMNS: usize = 1024;
const LARGE: usize = 4 * ROWS * COLUMNS;

/// Adds large models of zeros: a GGUF file, a model folder, a file from before GGUF.
fn large_models(shop: &Workshop) {
    let string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend(3u64.to_le_bytes());
    header.extend(2u64.to_le_bytes());
    string(&mut header, "general.architecture");
    header.extend(8u32.to_le_bytes());
    string(&mut header, "llama");
    string(&mut header, "llama.block_count");
    header.extend(4u32.to_le_bytes());
    header.extend(2u32.to_le_bytes());
    for (number, name) in
        ["blk.1.ffn_gate.weight", "blk.0.ffn_gate.weight", "token_embd.weight"].iter().enumerate()
    {
        string(&mut header, name);
        header.extend(2u32.to_le_bytes());
        header.extend([COLUMNS, ROWS].iter().flat_map(|extent| (*extent as u64).to_le_bytes()));
        header.extend(0u32.to_le_bytes());
        header.extend(((number * LARGE) as u64).to_le_bytes());
    }
    header.resize(header.len().next_multiple_of(32), 0);
    workshop::write_adapter(
        &shop.path("large-adapter.gguf"),
        "blk.0.ffn_gate.weight",
        ROWS as u64,
        COLUMNS as u64,
    );
    with_hole(shop, "large.gguf", &header, 3 * LARGE);

    // A whole model of one layer, since others are refused at once.
    let (mut listed, mut begin) = (serde_json::Map::new(), 0);
    for (name, shape) in [
        ("layers.0.mlp.up_proj", vec![ROWS, COLUMNS]),
        ("layers.0.mlp.gate_proj", vec![ROWS, COLUMNS]),
        ("layers.0.mlp.down_proj", vec![COLUMNS, ROWS]),
        ("layers.0.self_attn.q_proj", vec![COLUMNS, COLUMNS]),
        ("layers.0.self_attn.k_proj", vec![COLUMNS, COLUMNS]),
        ("layers.0.self_attn.v_proj", vec![COLUMNS, COLUMNS]),
        ("layers.0.self_attn.o_proj", vec![COLUMNS, COLUMNS]),
        ("layers.0.input_layernorm", vec![COLUMNS]),
        ("layers.0.post_attention_layernorm", vec![COLUMNS]),
        ("norm", vec![COLUMNS]),
        ("embed_tokens", vec![48, COLUMNS]),
    ] {
        let end = begin + 4 * shape.iter().product::<usize>();
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]});
        listed.insert(format!("model.{name}.weight"), entry);
        begin = end;
    }
    let text = serde_json::Value::Object(listed).to_string();
    let header = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    with_hole(shop, "large/model.safetensors", &header, begin);
    let config = workshop::folder("llama").good("model/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("it is JSON");
    for (key, number) in [
        ("num_hidden_layers", 1),
        ("hidden_size", COLUMNS),
        ("intermediate_size", ROWS),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 4),
        ("head_dim", COLUMNS / 4),
        ("vocab_size", 48),
    ] {
        config[key] = number.into();
    }
    config["tie_word_embeddings"] = true.into();
    shop.put("large/config.json", config.to_string().as_bytes());

    let mut old = shop.good("old.bin");
    let name = "layers.1.feed_forward.w3.weight";
    for word in [2, name.len() as u32, 0, COLUMNS as u32, 3 * ROWS as u32] {
        old.extend(word.to_le_bytes());
    }
    old.extend(name.as_bytes());
    old.resize(old.len().next_multiple_of(32), 0);
    with_hole(shop, "large.bin", &old, 3 * LARGE);
}

#[test]
fn ctrl_c_in_the_middle() {
    let shop = workshop::models();
    large_models(&shop);
    // A line of prompts for many seconds, and a text for as many.
    shop.put("long", "abcdefghijklmnopqrstuvwxyz".repeat(40_000).as_bytes());
    shop.put("many", "yes\nmore\n".repeat(20_000).as_bytes());
    let measure = ["-m", "model.gguf", "-c", "8", "-f", "long", "-b", "8"];
    let vectors = [
        "cvector-generator",
        "-m",
        "model.gguf",
        "--positive-file",
        "many",
        "--negative-file",
        "many",
        "-o",
        "out",
    ];
    let mut late = Vec::new();
    for arguments in [
        vec!["quantize", "large.gguf", "out.gguf", "Q8_0", "1"],
        vec!["quantize", "--pure", "large.gguf", "out.gguf", "F16", "1"],
        vec!["gguf-split", "--split-max-tensors", "1", "large.gguf", "parts"],
        vec!["gguf", "large.gguf", "--set", "a=int:1", "-o", "out.gguf"],
        vec!["gguf", "large.gguf", "--set", "a=int:1", "--in-place"],
        vec!["gguf-hash", "--all", "large.gguf"],
        vec!["export-lora", "-m", "large.gguf", "--lora", "large-adapter.gguf", "-o", "out.gguf"],
        vec!["convert", "large", "--outfile", "out.gguf"],
        vec!["convert", "large", "--outtype", "q8_0", "--outfile", "out.gguf", "--split-max-tensors", "1"],
        vec!["convert-legacy", "large.bin", "out.gguf"],
        // By itself it would write what it has from time to time.
        [&["imatrix"], &measure[..], &["-o", "out", "-ofreq", "0"]].concat(),
        [&["imatrix"], &measure[..], &["-o", "out", "-ofreq", "0", "--no-ppl"]].concat(),
        [&["perplexity"], &measure[..]].concat(),
        [&["perplexity"], &measure[..], &["--save-all-logits", "out"]].concat(),
        vectors.to_vec(),
    ] {
        if !interrupted(&shop, "-INT", &arguments, Duration::from_millis(150)) {
            late.push(arguments.join(" "));
        }
    }
    assert!(late.len() <= 3, "done before the interrupt came: {late:?}");
}

/// Whoever ends the program, or closes its terminal, does not find half a file either.
#[test]
fn an_end_from_outside_in_the_middle() {
    let shop = workshop::models();
    large_models(&shop);
    let mut signals = vec!["-TERM"];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    match ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()) {
        Some(mask) if mask & 1 == 0 => signals.push("-HUP"),
        _ => println!("skipped: SIGHUP, which is ignored here or may be"),
    }
    let mut late = Vec::new();
    for signal in &signals {
        for arguments in [
            vec!["quantize", "large.gguf", "out.gguf", "Q8_0", "1"],
            vec!["gguf-split", "--split-max-tensors", "1", "large.gguf", "parts"],
            vec!["gguf", "large.gguf", "--set", "a=int:1", "--in-place"],
            vec!["export-lora", "-m", "large.gguf", "--lora", "large-adapter.gguf", "-o", "out.gguf"],
            vec![
                "convert",
                "large",
                "--outtype",
                "q8_0",
                "--outfile",
                "out.gguf",
                "--split-max-tensors",
                "1",
            ],
        ] {
            if !interrupted(&shop, signal, &arguments, Duration::from_millis(150)) {
                late.push(format!("{signal} {}", arguments.join(" ")));
            }
        }
    }
    assert!(late.len() < 3 * signals.len(), "done before the signal came: {late:?}");
}
