//! Templates that are wrong, hostile or unusual.

use std::time::{Duration, Instant};

use puna_chat::{Conversation, Error, Limits, LocalTime, Template};
use serde_json::json;

fn render(source: &str, messages: serde_json::Value) -> Result<String, Error> {
    let messages = messages.as_array().unwrap().clone();
    let conversation = Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
    Template::parse(source, "<s>", "</s>")?.render(&conversation)
}

#[test]
fn endless_templates_end_fast() {
    let sources = [
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for i in range(10000) %}{% for j in range(10000) %}{{ j }}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 10000000000 }}",
        "{% set ns = namespace(x='x') %}{% for i in range(1000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(1000) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{{ 2 ** 100000 }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ 'a'.replace('a', 'b' * 1000000) * 100000 }}",
        "{{ range(10000000) | list | tojson }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000d}'.format(1) }}",
        "{{ 'x' | indent(1000000000) }}",
        "{{ 'x'.center(1000000000) }}",
    ];
    for source in sources {
        let start = Instant::now();
        let result = render(source, json!([]));
        let elapsed = start.elapsed();
        assert!(result.is_err(), "{source}: {:?}", result.map(|text| text.len()));
        assert!(elapsed < Duration::from_secs(2), "{source}: {elapsed:?}");
    }
}

/// Sixty steps make a value with 2 to the 60 parts. Whatever is done with it ends, fast and without the memory for it.
#[test]
fn values_that_hold_others_twice_are_paid_for() {
    let makers = [
        "[ns.x, ns.x]",
        "{'a': ns.x, 'b': ns.x}",
        "(ns.x, ns.x)",
        "ns.x, ns.x",
        "dict(a=ns.x, b=ns.x)",
        "[ns.x] + [ns.x]",
        "([ns.x] * 1000) | batch(1000) | list",
        "([ns.x] * 1000) | slice(1) | list",
        "[ns.x] | zip([ns.x]) | list",
        "[{'k': 1, 'v': ns.x}, {'k': 1, 'v': ns.x}] | groupby('k')",
        "namespace(a=ns.x, b=ns.x)",
        "ns",
    ];
    let uses = [
        "ns.x | string | length",
        "ns.x ~ ''",
        "{ns.x: 1}",
        "ns.x | upper | length",
        "[ns.x] | join(',') | length",
        "ns.x in {'a': 1}",
        "'' | replace(ns.x, '') | length",
        "ns.x == [ns.x]",
        "raise_exception(ns.x)",
        "strftime_now(ns.x)",
    ];
    for maker in makers {
        for used in uses {
            let source = format!(
                "{{% set ns = namespace(x=['a']) %}}{{% for i in range(60) %}}{{% set ns.x = {maker} %}}{{% endfor %}}{{{{ {used} }}}}"
            );
            let start = Instant::now();
            let result = render(&source, json!([]));
            let elapsed = start.elapsed();
            assert!(result.is_err(), "{source}: {:?}", result.map(|text| text.len()));
            assert!(elapsed < Duration::from_secs(2), "{source}: {elapsed:?}");
        }
    }
}

#[test]
fn deep_nesting_is_harmless_on_a_small_stack() {
    let work = || {
        for (open, close) in [("(", ")"), ("[", "]"), ("{'a':", "}"), ("-", ""), ("not ", ""), ("f(", ")")] {
            let source = format!("{{{{ {}1{} }}}}", open.repeat(50_000), close.repeat(50_000));
            // An error or a text: what matters is that the process lives.
            drop(render(&source, json!([])));
        }
        let source = format!("{}x{}", "{% if true %}".repeat(20_000), "{% endif %}".repeat(20_000));
        assert!(render(&source, json!([])).is_err());
        let source = format!("{{{{ 1{} }}}}", "|abs".repeat(50_000));
        drop(render(&source, json!([])));
        let source = format!("{{{{ 1{} }}}}", " + 1".repeat(50_000));
        drop(render(&source, json!([])));
        for grown in ["[ns.x]", "{1: ns.x}", "[ns.x] | reverse", "[ns.x] + [1]"] {
            let source = format!(
                "{{% set ns = namespace(x=[1]) %}}{{% for i in range(100000) %}}{{% set ns.x = {grown} %}}{{% endfor %}}"
            );
            assert!(matches!(render(&source, json!([])), Err(Error::TooMuchWork { .. })), "{grown}");
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
}

#[test]
fn long_conversations_stay_within_the_limits() {
    let message = json!({ "role": "user", "content": "word ".repeat(2_000) });
    let answer = json!({ "role": "assistant", "content": "word ".repeat(2_000) });
    let messages: Vec<_> = (0..400).flat_map(|_| [message.clone(), answer.clone()]).collect();
    let source = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/templates/Qwen-Qwen3-0.6B.jinja"
    ));
    let start = Instant::now();
    let text = render(&source.unwrap(), json!(messages)).unwrap();
    assert!(text.len() > 8_000_000);
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_long_conversation_gives_a_hostile_template_no_more_time() {
    let message = json!({ "role": "user", "content": "word ".repeat(2_000) });
    let messages = json!(vec![message; 2_000]);
    for source in [
        "{% for m in messages %}{% for i in range(10000) %}{{ loop.index }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for n in messages %}{{ n.content | upper | length }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{{ m.content }}{% endfor %}",
    ] {
        let start = Instant::now();
        let result = render(source, messages.clone());
        assert!(result.is_err(), "{source}: {:?}", result.map(|text| text.len()));
        assert!(start.elapsed() < Duration::from_secs(3), "{source}: {:?}", start.elapsed());
    }
}

#[test]
fn output_and_source_have_a_limit() {
    let limits = Limits { output: 10, source: 100, ..Limits::default() };
    let template = Template::parse_with("{{ 'x' * 11 }}", "", "", limits).unwrap();
    assert_eq!(template.render(&Conversation::default()), Err(Error::TooLong { limit: 10 }));
    let long = " ".repeat(101);
    let refused = Template::parse_with(&long, "", "", limits).map(|_| ());
    assert_eq!(refused, Err(Error::SourceTooLong { found: 101, limit: 100 }));
}

#[test]
fn errors_name_what_is_wrong_and_where() {
    let Err(Error::Syntax { line: 2, message }) = Template::parse("a\n{% for %}", "", "") else {
        panic!("expected a syntax error in line 2")
    };
    assert!(!message.is_empty());
    let cases = [
        ("a\n{{ messages | nosuchfilter }}", "nosuchfilter"),
        ("a\n{{ messages is nosuchtest }}", "nosuchtest"),
        ("a\n{{ nosuchfunction() }}", "nosuchfunction"),
        ("a\n{{ 'x'.nosuchmethod() }}", "nosuchmethod"),
    ];
    for (source, name) in cases {
        match render(source, json!([])) {
            Err(Error::Render { line: 2, message }) => assert!(message.contains(name), "{message}"),
            other => panic!("{source}: {other:?}"),
        }
    }
    let raised = render("{{ raise_exception('no ' ~ messages[0].role) }}", json!([{ "role": "tool" }]));
    assert_eq!(raised, Err(Error::Raised { line: 1, message: "no tool".to_owned() }));
    let raised = render("{% macro f() %}\n{{ raise_exception('deep') }}{% endmacro %}\n{{ f() }}", json!([]));
    assert_eq!(raised, Err(Error::Raised { line: 2, message: "deep".to_owned() }));
}

#[test]
fn json_is_what_python_writes() {
    let value = json!([{
        "name": "f", "description": "temp > 10 & humidity < 50 (user's choice) — a/b\u{1}\u{7f}\"\\",
        "parameters": { "b": [1, 2.0, 1e-7, true, null, []], "a": {} }
    }]);
    assert_eq!(
        render("{{ messages[0] | tojson }}", value.clone()).unwrap(),
        concat!(
            r#"{"name": "f", "description": "temp > 10 & humidity < 50 (user's choice) — a/b\u0001"#,
            "\u{7f}",
            r#"\"\\", "parameters": {"b": [1, 2.0, 1e-07, true, null, []], "a": {}}}"#
        )
    );
    let parameters = json!([{ "b": [1, "é🦙"], "a": {} }]);
    let cases = [
        ("tojson(indent=2)", "{\n  \"b\": [\n    1,\n    \"é🦙\"\n  ],\n  \"a\": {}\n}"),
        ("tojson(ensure_ascii=true)", r#"{"b": [1, "\u00e9\ud83e\udd99"], "a": {}}"#),
        ("tojson(sort_keys=true)", r#"{"a": {}, "b": [1, "é🦙"]}"#),
        ("tojson(separators=(',', ':'))", r#"{"b":[1,"é🦙"],"a":{}}"#),
    ];
    for (filter, expected) in cases {
        let source = format!("{{{{ messages[0] | {filter} }}}}");
        assert_eq!(render(&source, parameters.clone()).unwrap(), expected, "{filter}");
    }
}

#[test]
fn python_ways_of_values() {
    let cases = [
        (
            "{{ true }} {{ none }} {{ 1.0 }} {{ [1, 'a', none] }} {{ {'a': true} }}",
            "True None 1.0 [1, 'a', None] {'a': True}",
        ),
        ("{{ 'abc' is sequence }}{{ {} is iterable }}{{ true is number }}", "TrueTrueTrue"),
        ("{{ ' a b '.split() | length }}{{ 'a,b'.split(',')[-1] }}{{ 'abc'[::-1] }}", "2bcba"),
        ("{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "b1a2"),
        (
            "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        ("{{ bos_token }}{{ 'x' if tools else 'y' }}{{ documents is none }}", "<s>yTrue"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{{ strftime_now is defined }}", "False"),
        ("x\n{% generation %}\na\n  {%- endgeneration %}b", "x\nab"),
        ("{{ undefined_name }}|{{ [].x is defined }}", "|False"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, json!([])).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn extra_variables_replace_standard_ones_and_time_is_given() {
    let template =
        Template::parse("{{ bos_token }} {{ strftime_now('%Y') }} {{ effort }}", "<s>", "").unwrap();
    let mut conversation = Conversation::default();
    conversation.extra.insert("effort".to_owned(), json!("high"));
    conversation.extra.insert("bos_token".to_owned(), json!("B"));
    conversation.now = Some(LocalTime::from_date(2031, 1, 2, 3, 4, 5));
    assert_eq!(template.render(&conversation).unwrap(), "B 2031 high");
}
