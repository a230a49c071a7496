//! Well-formed files with odd vocabularies and chat templates.

use super::Cases;
use super::raw::{Raw, RawValue};
use crate::{Array, Value};

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const TEMPLATE: &str = "tokenizer.chat_template";

pub(super) fn add(cases: &mut Cases, good: &Raw) {
    let count = match good.get(TOKENS) {
        Some(Value::Array(Array::String(tokens))) => tokens.len(),
        _ => 0,
    };
    tokens(cases);
    parallel_arrays(cases, count);
    merges(cases);
    special_ids(cases, count);
    for (what, text) in templates() {
        cases.relaid(format!("template/{what}"), move |raw| raw.set(TEMPLATE, text.as_str()));
    }
}

/// Adds a case that changes the list of tokens.
fn with_tokens(cases: &mut Cases, what: &str, change: impl Fn(&mut Vec<String>) + 'static) {
    cases.relaid(format!("tokenizer/tokens-{what}"), move |raw| {
        let mut tokens = match raw.get(TOKENS) {
            Some(Value::Array(Array::String(tokens))) => tokens.clone(),
            _ => vec!["a".to_owned(); 32],
        };
        change(&mut tokens);
        raw.set(TOKENS, tokens);
    });
}

fn tokens(cases: &mut Cases) {
    with_tokens(cases, "none", |tokens| tokens.clear());
    with_tokens(cases, "one", |tokens| tokens.truncate(1));
    with_tokens(cases, "half", |tokens| tokens.truncate(tokens.len() / 2));
    with_tokens(cases, "twice", |tokens| tokens.extend_from_within(..));
    with_tokens(cases, "all-empty", |tokens| tokens.iter_mut().for_each(String::clear));
    with_tokens(cases, "all-equal", |tokens| tokens.iter_mut().for_each(|token| *token = "same".into()));
    with_tokens(cases, "nul", |tokens| tokens.iter_mut().for_each(|token| token.push('\0')));
    with_tokens(cases, "megabyte", |tokens| {
        if let Some(token) = tokens.last_mut() {
            *token = "x".repeat(1 << 20);
        }
    });
    with_tokens(cases, "bad-byte-tokens", |tokens| {
        for (token, odd) in
            tokens.iter_mut().zip(["<0x>", "<0xZZ>", "<0x100>", "<0x-1>", "<0x41", "<0xFFFFFFFFF>"])
        {
            *token = odd.into();
        }
    });
    // A million tokens make every quadratic step of a loader visible.
    with_tokens(cases, "million", |tokens| tokens.extend((0..1_000_000).map(|index| format!("t{index}"))));
    cases.relaid("tokenizer/tokens-not-utf8".into(), |raw| {
        let mut bytes = [9u32.to_le_bytes(), 8u32.to_le_bytes()].concat();
        bytes.extend(64u64.to_le_bytes());
        for byte in 0..64u8 {
            bytes.extend(2u64.to_le_bytes());
            bytes.extend([0xc0 + byte % 64, 0xff]);
        }
        raw.set(TOKENS, RawValue::Bytes(bytes));
    });
}

fn parallel_arrays(cases: &mut Cases, count: usize) {
    let scores: Vec<(&str, Value)> = vec![
        ("u8", vec![1u8; count].into()),
        ("bool", vec![true; count].into()),
        ("u64", vec![u64::MAX; count].into()),
        ("f64-max", vec![f64::MAX; count].into()),
        ("nan", vec![f32::NAN; count].into()),
        ("-inf", vec![f32::NEG_INFINITY; count].into()),
        ("one-short", vec![0f32; count.saturating_sub(1)].into()),
        ("empty", Vec::<f32>::new().into()),
    ];
    for (what, value) in scores {
        cases.relaid(format!("tokenizer/scores-{what}"), move |raw| raw.set(SCORES, value.clone()));
    }
    let types: Vec<(&str, Value)> = vec![
        ("i8", vec![1i8; count].into()),
        ("f32", vec![1f32; count].into()),
        ("u64", vec![1u64; count].into()),
        ("-1", vec![-1i32; count].into()),
        ("7", vec![7i32; count].into()),
        ("2^31-1", vec![i32::MAX; count].into()),
        ("all-control", vec![3i32; count].into()),
        ("all-user-defined", vec![4i32; count].into()),
        ("all-byte", vec![6i32; count].into()),
        ("one-short", vec![1i32; count.saturating_sub(1)].into()),
        ("one-long", vec![1i32; count + 1].into()),
        ("empty", Vec::<i32>::new().into()),
    ];
    for (what, value) in types {
        cases.relaid(format!("tokenizer/types-{what}"), move |raw| raw.set(TYPES, value.clone()));
    }
}

fn merges(cases: &mut Cases) {
    let text = |list: &[&str]| Value::from(list.iter().map(|&merge| merge.to_owned()).collect::<Vec<_>>());
    let all: Vec<(&str, Value)> = vec![
        ("i32", vec![1i32; 8].into()),
        ("no-space", text(&["ab", "abc", ""])),
        ("only-space", text(&[" ", "  ", "   "])),
        ("repeated", text(&["a a", "a a", "a a", "aa aa", "aa aa"])),
        ("unknown-parts", text(&["\u{10ffff} \u{0}", "zzzzzz yyyyyy"])),
        ("megabyte", vec!["x ".repeat(1 << 19)].into()),
    ];
    for (what, value) in all {
        cases.relaid(format!("tokenizer/merges-{what}"), move |raw| {
            raw.set("tokenizer.ggml.model", "gpt2");
            raw.set(MERGES, value.clone());
        });
    }
    for model in [
        "llama",
        "gpt2",
        "bert",
        "t5",
        "rwkv",
        "plamo2",
        "gemma4",
        "none",
        "no_vocab",
        "whitespace",
        "hybriddna",
    ] {
        cases.relaid(format!("tokenizer/model-{model}"), move |raw| raw.set("tokenizer.ggml.model", model));
    }
    // A charsmap whose first number, the size of its table, exceeds it.
    for (what, bytes) in
        [("empty", vec![]), ("short", vec![1u8]), ("huge-table", vec![0xff; 64]), ("cyclic", vec![4; 260])]
    {
        cases.relaid(format!("tokenizer/charsmap-{what}"), move |raw| {
            raw.set("tokenizer.ggml.model", "t5");
            raw.set("tokenizer.ggml.precompiled_charsmap", bytes.clone());
        });
    }
}

fn special_ids(cases: &mut Cases, count: usize) {
    for name in ["bos", "eos", "unknown", "padding", "eot", "fim_pre"] {
        for id in [count as u32, u32::MAX] {
            cases.relaid(format!("tokenizer/{name}-id-{id}"), move |raw| {
                raw.set(&format!("tokenizer.ggml.{name}_token_id"), id);
            });
        }
    }
    cases.relaid("tokenizer/suppress-outside".into(), move |raw| {
        raw.set("tokenizer.ggml.suppress_tokens", vec![-1, count as i32, i32::MAX, i32::MIN]);
    });
}

/// Chat templates that do not end, end wrongly, or ask for too much.
fn templates() -> Vec<(&'static str, String)> {
    let messages = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let all = [
        ("empty", String::new()),
        ("unclosed-block", "{% for m in messages %}{{ m.content }}".into()),
        ("unclosed-expression", "{{ messages".into()),
        ("unclosed-string", "{{ 'abc }}".into()),
        ("unopened-block", "{% endfor %}{% endif %}".into()),
        ("unknown-filter", "{{ messages | nosuchfilter }}".into()),
        ("unknown-function", "{{ nosuchfunction(1) }}".into()),
        ("undefined-chain", "{{ a.b.c.d.e }}".into()),
        ("raise", "{{ raise_exception('no') }}".into()),
        ("division-by-zero", "{{ 1 / 0 }}{{ 1 % 0 }}".into()),
        ("huge-power", "{{ 10 ** 100000 }}".into()),
        ("huge-range", "{% for i in range(10**9) %}x{% endfor %}".into()),
        ("huge-range-list", "{{ range(10**9) | list | length }}".into()),
        (
            "nested-ranges",
            "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}".into(),
        ),
        ("huge-repeat", "{{ 'x' * 1000000000000 }}".into()),
        (
            "doubling",
            format!(
                "{{% set ns = namespace(s='x') %}}{}{{{{ ns.s }}}}",
                "{% set ns.s = ns.s ~ ns.s %}".repeat(60)
            ),
        ),
        ("recursive-macro", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".into()),
        (
            "mutual-macros",
            "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}".into(),
        ),
        ("recursive-loop", "{% for m in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}".into()),
        ("self-include", "{% include 'chat_template' %}{% extends 'chat_template' %}".into()),
        ("deep-parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000))),
        ("deep-lists", format!("{{{{ {}{} }}}}", "[".repeat(50_000), "]".repeat(50_000))),
        ("deep-ifs", format!("{}x{}", "{% if true %}".repeat(10_000), "{% endif %}".repeat(10_000))),
        ("long-chain", format!("{{{{ 1{} }}}}", " + 1".repeat(100_000))),
        ("long-not", format!("{{{{ {}true }}}}", "not ".repeat(100_000))),
        ("megabyte-text", format!("{messages}{}", "x".repeat(1 << 20))),
        ("nul", format!("\0{messages}\0")),
        ("internals", "{{ ''.__class__.__mro__[1].__subclasses__() }}".into()),
    ];
    all.into_iter().collect()
}
