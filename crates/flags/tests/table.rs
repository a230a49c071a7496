//! Invariants of the tables, row by row.

use puna_flags::{Config, FLAGS, Flag, Group, Kind, Outcome, Spec, ToolSet, bench};
use std::collections::BTreeMap;

fn rows<C>(groups: &'static [Group<C>]) -> impl Iterator<Item = &'static Flag<C>> {
    groups.iter().flat_map(|group| group.flags)
}

fn check_spellings<C>(groups: &'static [Group<C>]) {
    let mut seen: BTreeMap<&str, Vec<ToolSet>> = BTreeMap::new();
    for flag in rows(groups) {
        for spelling in flag.spellings.split_whitespace().chain(flag.negative.split_whitespace()) {
            assert!(spelling.starts_with('-') && !spelling.contains('_'), "{spelling}");
            let tools = seen.entry(spelling).or_default();
            assert!(tools.iter().all(|other| !other.has(flag.tools)), "{spelling} occurs twice for one tool");
            tools.push(flag.tools);
        }
        assert!(!flag.help.is_empty() && !flag.help.ends_with('.'), "help of {}", flag.spellings);
    }
}

#[test]
fn every_spelling_means_one_flag() {
    check_spellings(FLAGS);
    check_spellings(bench::FLAGS);
}

#[test]
fn what_flags_need_is_there() {
    for flag in rows(FLAGS) {
        for name in flag.needs {
            let needed = rows(FLAGS).find(|other| other.name() == *name && other.tools.has(flag.tools));
            assert!(needed.is_some(), "{} needs {name}", flag.spellings);
        }
    }
}

#[test]
fn shown_defaults_are_the_real_ones() {
    for flag in rows(FLAGS) {
        let Some(default) = flag.default else { continue };
        let mut config = Config::default();
        match flag.kind {
            Kind::Value { set, .. } => set(&mut config, default).unwrap(),
            Kind::Switch(set) => set(&mut config, default == "on"),
            _ => panic!("{} has a default but no value", flag.spellings),
        }
        assert_eq!(config, Config::default(), "default of {}", flag.spellings);
    }
    for flag in rows(bench::FLAGS) {
        let (Some(default), Kind::Value { set, .. }) = (flag.default, &flag.kind) else { continue };
        let mut bench = bench::Bench::default();
        set(&mut bench, default).unwrap();
        assert_eq!(bench, bench::Bench::default(), "default of {}", flag.spellings);
    }
}

#[test]
fn flags_without_a_stated_lack_of_effect_have_one() {
    // A value that each placeholder accepts and that is not the default.
    let samples = [
        "7",
        "1",
        "0.5",
        "-2",
        "text",
        "q8_0",
        "mlock",
        "off",
        "yarn",
        "a.b=int:1",
        "7+1",
        "7M",
        "kt",
        "top_k",
        "none",
        "/api",
        "file:2",
        "1,2",
        "dat",
        "gguf",
        "jsonl",
        "mean",
        "causal",
        "scalar",
        "json",
        "array",
        "ngram-mod",
    ];
    let refuses = |flag: &&Flag<Config>| flag.help.contains("so far") || flag.help.starts_with("Removed: ");
    for flag in rows(FLAGS).filter(|flag| flag.inert.is_none() && !refuses(flag)) {
        let changes = |apply: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            apply(&mut config);
            config != Config::default()
        };
        let effective = match flag.kind {
            Kind::Value { set, .. } => samples.iter().any(|sample| changes(&|c| drop(set(c, sample)))),
            Kind::Switch(set) => {
                // `--no-mmap` on top of the default, and `--direct-io` which only changes what is on.
                changes(&|c| set(c, true)) || changes(&|c| set(c, false))
            }
            Kind::Action(_) | Kind::NotYet { .. } => true,
        };
        assert!(effective, "{} changes nothing", flag.spellings);
    }
}

#[test]
fn commands_are_valid_and_help_lists_only_the_tools_flags() {
    for (name, tool) in [
        ("cli", ToolSet::CLI),
        ("completion", ToolSet::COMPLETION),
        ("simple", ToolSet::SIMPLE),
        ("run", ToolSet::RUN),
        ("logits", ToolSet::LOGITS),
        ("tokenize", ToolSet::TOKENIZE),
        ("template", ToolSet::RENDER),
        ("info", ToolSet::INFO),
        ("devices", ToolSet::DEVICES),
        ("serve", ToolSet::SERVE),
        ("pull", ToolSet::PULL),
        ("list", ToolSet::LIST),
        ("perplexity", ToolSet::PERPLEXITY),
        ("quantize", ToolSet::QUANTIZE),
        ("gguf-split", ToolSet::GGUF_SPLIT),
    ] {
        let spec = Spec { name, tool, about: "About", groups: FLAGS, positional: None };
        spec.command(name).debug_assert();
        let help = spec.help(name, false);
        assert!(help.contains("--help"), "{name}");
        assert_eq!(help.contains("--temp"), tool.has(ToolSet::GENERATE), "{name}");
        assert_eq!(help.contains("--show-count"), tool.has(ToolSet::TOKENIZE), "{name}");
    }
    bench::SPEC.command("bench").debug_assert();
    assert!(bench::SPEC.help("llama bench", false).contains("-pg"));
}

#[test]
fn rope_flags_become_metadata() {
    let spec = Spec { name: "cli", tool: ToolSet::CLI, about: "", groups: FLAGS, positional: None };
    let arguments = ["--rope-freq-scale", "0.5", "--rope-freq-base", "5000"].map(Into::into);
    let Ok(Outcome::Run { config, .. }) = spec.parse(Config::default(), &arguments, &|_| None) else {
        panic!()
    };
    let metadata = config.rope.metadata("llama");
    assert_eq!(metadata[0], ("llama.rope.scaling.factor".into(), puna_gguf::Value::F64(2.0)));
    // The file's kind of scaling stays.
    assert_eq!(metadata.len(), 2);
    assert_eq!(metadata[1], ("llama.rope.freq_base".into(), puna_gguf::Value::F64(5000.0)));
}
