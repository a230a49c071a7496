//! Faults that users of other engines reported about grammars and schemas; the tests are named after their numbers.

mod common;

use std::time::{Duration, Instant};

use common::*;
use puna_grammar::{Grammar, GrammarError, Tokens, Trigger};
use serde_json::{Value, json};

#[track_caller]
fn refused(schema: &Value) -> (String, String) {
    match Grammar::json_schema(schema, &Tokens::bytes()) {
        Err(GrammarError::Schema { pointer, problem }) => (pointer, problem),
        other => panic!("{schema}: {other:?}"),
    }
}

/// Runs with a small stack, as a server's thread may have.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
}

#[test]
fn j01_groups_within_each_other() {
    on_a_small_stack(|| {
        for depth in [13_000, 60_000] {
            let text = format!("root ::= {}\"a\"{}", "(".repeat(depth), ")".repeat(depth));
            let start = Instant::now();
            assert!(matches!(Grammar::new(&text, &Tokens::bytes()), Err(GrammarError::Syntax { .. })));
            assert!(start.elapsed() < Duration::from_secs(1));
        }
        // What is not absurd works.
        let text = format!("root ::= {}\"a\"{}", "(".repeat(500), ")*".repeat(500));
        accepts(&grammar(&text), &["", "aaa"], &["b"]);
        // Other ways to grow: repetitions of repetitions, long chains of rules, long lists.
        for text in [
            "root ::= \"a\"{1,1000000}".to_owned(),
            "root ::= ((((\"a\"{1000}){1000}){1000}){1000}){1000}".to_owned(),
            "root ::= ((((\"a\"{0,1000}){0,1000}){0,1000}){0,1000}){0,1000}".to_owned(),
            "root ::= \"\"{4000000000}".to_owned(),
        ] {
            let start = Instant::now();
            assert!(
                matches!(Grammar::new(&text, &Tokens::bytes()), Err(GrammarError::TooLarge { .. })),
                "{text}"
            );
            assert!(start.elapsed() < Duration::from_secs(2), "{text}");
        }
        let mut chain = String::from("root ::= r0\n");
        (0..20_000).for_each(|n| chain += &format!("r{n} ::= r{}\n", n + 1));
        chain += "r20000 ::= \"a\"\n";
        accepts(&grammar(&chain), &["a"], &["b", ""]);
        let list = format!("root ::= {}\"x\"", "\"a\" | ".repeat(50_000));
        accepts(&grammar(&list), &["a", "x"], &["b"]);
    });
}

#[test]
fn j03_patterns_that_are_none() {
    on_a_small_stack(|| {
        let deep = "(".repeat(50_000);
        for pattern in ["*", "(?<=x)*", "a{2}{3}", deep.as_str(), "[", "a{9999999}"] {
            let schema =
                json!({"type": "object", "properties": {"name": {"type": "string", "pattern": pattern}}});
            let (pointer, _) = refused(&schema);
            assert_eq!(pointer, "#/properties/name/pattern");
        }
    });
}

#[test]
fn j05_a_grammar_that_is_none() {
    assert!(Grammar::new("root := x", &Tokens::bytes()).is_err());
}

#[test]
fn j06_never_unconstrained() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^hello there indeed\\!$"}},
                        "required": ["a"]});
    accepts(&common::schema(&schema), &[r#"{"a":"hello there indeed!"}"#], &[r#"{"a":"hello"}"#, "{}", "x"]);
}

#[test]
fn j07_classes_of_characters() {
    for (pattern, right, wrong) in [
        (r"^\d+$", "123", "12a"),
        (r"^[\w-]+$", "a_b-1", "a b"),
        (r"^(anon-)?\d{11,}$", "anon-12345678901", "anon-123"),
        (r"^\S+$", "ab!", "a b"),
    ] {
        let grammar = schema(&json!({"type": "string", "pattern": pattern}));
        accepts(&grammar, &[&format!("{right:?}")], &[&format!("{wrong:?}")]);
    }
}

#[test]
fn j09_patterns_are_found_anywhere() {
    for (pattern, right, wrong) in [
        (r"\S", vec!["a", " a ", "aa"], vec!["", "  "]),
        ("foo", vec!["foo", "a foo b"], vec!["fo", "oof"]),
        ("^a", vec!["a", "ab"], vec!["ba", ""]),
        ("b$", vec!["b", "ab"], vec!["ba", ""]),
        ("^a|b$", vec!["ax", "xb"], vec!["xa", "bx"]),
    ] {
        let grammar = schema(&json!({"type": "string", "pattern": pattern}));
        for text in right {
            accepts(&grammar, &[&format!("{text:?}")], &[]);
        }
        for text in wrong {
            accepts(&grammar, &[], &[&format!("{text:?}")]);
        }
    }
}

#[test]
fn j10_limits_deep_inside() {
    let mut inner = json!({"type": "string", "maxLength": 4000});
    let mut pattern = json!({"type": "string", "pattern": "^[a-z]+$"});
    for _ in 0..8 {
        inner = json!({"type": "object", "properties": {"o": inner}, "required": ["o"]});
        pattern = json!({"type": "object", "properties": {"o": pattern}, "required": ["o"]});
    }
    let wrap = |text: &str| format!("{}{text:?}{}", "{\"o\":".repeat(8), "}".repeat(8));
    let start = Instant::now();
    let (inner, pattern) = (schema(&inner), schema(&pattern));
    // Far less than a second on an idle machine.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    accepts(&inner, &[&wrap(&"x".repeat(4000))], &[&wrap(&"x".repeat(4001))]);
    accepts(&pattern, &[&wrap("abc")], &[&wrap("aB")]);
    // 32 tools at once.
    let tool = |n: usize| {
        json!({"type": "object", "required": ["name", "arguments"], "properties": {
            "name": {"const": format!("tool{n}")},
            "arguments": {"type": "object", "properties": {"s": {"type": "string", "maxLength": 4000}, "p": {"type": "string", "pattern": "^[a-z]+$"}}},
        }})
    };
    let start = Instant::now();
    let all = schema(&json!({"anyOf": (0..32).map(tool).collect::<Vec<_>>()}));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let (right, wrong) =
        (r#"{"name":"tool31","arguments":{"p":"abc"}}"#, r#"{"name":"tool32","arguments":{}}"#);
    accepts(&all, &[right], &[wrong]);
}

#[test]
fn j11_references() {
    let tree = json!({
        "type": "object",
        "properties": {"tree": {"anyOf": [
            {"type": "object", "properties": {
                "left": {"$ref": "#/properties/tree/anyOf/0"}, "right": {"$ref": "#/properties/tree/anyOf/1"}, "v": {"type": "integer"},
            }},
            {"type": "null"},
        ]}},
        "required": ["tree"],
    });
    accepts(
        &schema(&tree),
        &[r#"{"tree":{"left":{"left":{"v":1},"right":null},"v":2}}"#, r#"{"tree":null}"#],
        &[r#"{"tree":{"left":null}}"#, r#"{"tree":{"right":{"v":1}}}"#],
    );
    let escaped = json!({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"enum": [1, "x"]}}});
    accepts(&schema(&escaped), &["1", "\"x\""], &["2"]);
    for (reference, says) in
        [("https://example.com/x.json", "outside"), ("#/$defs/missing", "does not exist")]
    {
        let (pointer, problem) = refused(&json!({"properties": {"a": {"$ref": reference}}}));
        assert_eq!(pointer, "#/properties/a/$ref");
        assert!(problem.contains(says), "{problem}");
    }
    refused(&json!({"$ref": "#"}));
    refused(&json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}));
}

#[test]
fn j13_j14_keys_come_in_the_order_of_the_schema() {
    // Documented in docs/grammar.md: the order of the schema, whatever is required.
    let grammar = schema(&json!({"type": "object", "required": ["b", "d"], "properties": {
        "a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}, "d": {"type": "integer"}}}));
    accepts(
        &grammar,
        &[r#"{"a":1,"b":2,"c":3,"d":4}"#, r#"{"b":2,"d":4}"#, r#"{"b":1, "c":2, "d":3}"#],
        &[r#"{"a":1,"b":2,"c":3}"#, r#"{"d":1,"b":2}"#, r#"{"b":1,"d":2,"e":3}"#],
    );
    let grammar = schema(
        &json!({"type": "object", "properties": {"start_line": {"type": "integer"}, "end_line": {"type": "integer"}}}),
    );
    accepts(&grammar, &[r#"{"start_line":1,"end_line":2}"#, r#"{"end_line":2}"#, "{}"], &[]);
}

#[test]
fn j16_ambiguous_repetitions_do_not_slow_down() {
    let Some((tokens, _)) = vocabulary("llama-bpe") else { return };
    let optional = format!("root ::= {}", "\"x\"? ".repeat(64));
    let list = "root ::= [^\\x00]* (\"yes\" | \"no\")";
    for (text, character) in [(optional.as_str(), "x"), ("root ::= ((\"a\"*)*)*", "a"), (list, "a")] {
        let grammar = Grammar::new(text, &tokens).unwrap();
        let token = tokens.iter().find(|(_, token)| token.bytes == character.as_bytes()).unwrap().0;
        let mut constraint = grammar.constraint().unwrap();
        let count = if text == optional { 60 } else { 2000 };
        let mut times = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            constraint.mask().unwrap();
            constraint.accept(token).unwrap();
            times.push(start.elapsed());
        }
        times.sort();
        // On an idle machine far below 2 ms; many builds may run beside.
        assert!(times[times.len() / 2] < Duration::from_millis(10), "{text}: {:?}", times[times.len() / 2]);
    }
    let grammar = Grammar::json_schema(&json!({"type": "string", "maxLength": 10000}), &tokens).unwrap();
    let mut constraint = grammar.constraint().unwrap();
    let token = |text: &str| tokens.iter().find(|(_, token)| token.bytes == text.as_bytes()).unwrap().0;
    constraint.accept(token("\"")).unwrap();
    let mut times = Vec::new();
    for _ in 0..2000 {
        let start = Instant::now();
        constraint.mask().unwrap();
        constraint.accept(token("ab")).unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    assert!(times[1000] < Duration::from_millis(10), "{:?}", times[1000]);
}

#[test]
fn j17_tokens_across_a_trigger() {
    let Some((tokens, tokenizer)) = vocabulary("llama-bpe") else { return };
    let word = Trigger::Word("<tool_call>".into());
    let accept = |grammar: &Grammar, text: &str, more: &[&str]| {
        let mut constraint = grammar.constraint().unwrap();
        let mut pieces = tokenizer.encode(text, false, false);
        pieces.extend(more.iter().flat_map(|text| tokenizer.encode(text, false, false)));
        let result = pieces.into_iter().try_for_each(|token| {
            assert_eq!(constraint.mask().unwrap().is_some(), constraint.has_begun());
            constraint.accept(token)
        });
        (result, constraint)
    };
    // `>{` and `>\n` are single tokens that straddle the end of the trigger.
    let json = Grammar::new("root ::= \"<tool_call>\" \"{\" [a-z\" :]* \"}\"", &tokens).unwrap();
    let lazy = json.lazy(std::slice::from_ref(&word)).unwrap();
    let (result, mut constraint) = accept(&lazy, "Let me see. <tool_call", &[">{", "\"a\""]);
    assert_eq!(result, Ok(()));
    assert!(constraint.has_begun() && !constraint.is_complete().unwrap());
    let (result, _) = accept(&lazy, "no trigger at all <tool", &[]);
    assert_eq!(result, Ok(()));
    // The grammar does not allow what came with the trigger: an error of this text only.
    let (result, _) = accept(&lazy, "x <tool_call", &[">\n"]);
    assert!(matches!(result, Err(GrammarError::NotAllowed { .. })), "{result:?}");
    let any = Grammar::new("root ::= .*", &tokens).unwrap().lazy(std::slice::from_ref(&word)).unwrap();
    assert_eq!(accept(&any, "x <tool_call", &[">\n", "anything"]).0, Ok(()));
    // The first group that matched is where the grammar begins.
    let pattern = Trigger::Pattern(r"(?:thinking[\s\S]*?</think>\s*)?(\{)[\s\S]*".into());
    let object = Grammar::new("root ::= \"{\" [a-z]* \"}\"", &tokens).unwrap();
    let (result, mut constraint) =
        accept(&object.clone().lazy(&[pattern]).unwrap(), "thinking </think> {abc", &["}"]);
    assert_eq!(result, Ok(()));
    assert!(constraint.is_complete().unwrap());
    let whole = Trigger::WholePattern("[0-9]+".into());
    let (result, constraint) = accept(&object.clone().lazy(&[whole]).unwrap(), "a1", &["2"]);
    assert_eq!((result, constraint.has_begun()), (Ok(()), false));
    let brace = tokens.iter().find(|(_, token)| token.bytes == b"{").unwrap().0;
    let (result, constraint) =
        accept(&object.clone().lazy(&[Trigger::Token(brace)]).unwrap(), "so: ", &["{"]);
    assert_eq!((result, constraint.has_begun()), (Ok(()), true));
    for wrong in [Trigger::Pattern("(".into()), Trigger::Word(String::new()), Trigger::Token(1 << 30)] {
        assert!(matches!(object.clone().lazy(&[wrong]), Err(GrammarError::Trigger { index: 0, .. })));
    }
}

#[test]
fn j19_schemas_as_pydantic_writes_them() {
    let schema = json!({
        "$defs": {
            "Address": {"additionalProperties": false, "title": "Address", "type": "object", "required": ["street"], "properties": {
                "street": {"title": "Street", "type": "string"},
                "zip": {"anyOf": [{"type": "string", "pattern": "^\\d{5}$"}, {"type": "null"}], "default": null, "title": "Zip"}}},
            "Color": {"enum": ["red", "green"], "title": "Color", "type": "string"},
            "Cat": {"type": "object", "properties": {"kind": {"const": "cat", "type": "string"}, "lives": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["kind", "lives"]},
            "Dog": {"type": "object", "properties": {"kind": {"const": "dog", "type": "string"}, "good": {"type": "boolean"}}, "required": ["kind", "good"]},
        },
        "title": "Person", "type": "object",
        "properties": {
            "name": {"title": "Name", "type": "string", "minLength": 1},
            "born": {"format": "date", "title": "Born", "type": "string"},
            "id": {"format": "uuid", "type": "string"},
            "color": {"$ref": "#/$defs/Color", "default": "red"},
            "homes": {"items": {"$ref": "#/$defs/Address"}, "type": "array"},
            "matrix": {"items": {"items": {"type": "number"}, "type": "array"}, "type": "array"},
            "pet": {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
            "level": {"enum": [1, 2, "three"], "title": "Level"},
        },
        "required": ["name", "born", "homes", "pet"],
    });
    let right = r#"{"name": "Ann", "born": "2001-02-28", "id": "123e4567-e89b-12d3-a456-426614174000", "color": "green",
  "homes": [{"street": "x"}, {"street": "y", "zip": "12345"}, {"street":"z","zip":null}], "matrix": [[1, 2.5], []],
  "pet": {"kind": "cat", "lives": 9}, "level": "three"}"#;
    let wrong = [
        right.replace("02-28", "02-30"),
        right.replace("green", "blue"),
        right.replace("12345", "1234"),
        right.replace("\"lives\": 9", "\"lives\": 10"),
        right.replace("\"cat\"", "\"dog\""),
        right.replace("\"Ann\"", "\"\""),
        right.replace("\"three\"", "3"),
        right.replace("42661417", "4266141x"),
    ];
    accepts(&common::schema(&schema), &[right], &wrong.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_enforced_is_refused_with_its_place() {
    let inside =
        |inner: Value| json!({"type": "object", "properties": {"a/b": {"type": "array", "items": inner}}});
    let place = "#/properties/a~1b/items";
    for (keyword, value) in [
        ("not", json!({"type": "string"})),
        ("if", json!({"type": "string"})),
        ("contains", json!({"type": "string"})),
        ("uniqueItems", json!(true)),
        ("propertyNames", json!({"pattern": "^a"})),
        ("dependentRequired", json!({"a": ["b"]})),
        ("unevaluatedProperties", json!(false)),
        ("format", json!("regex")),
        ("pattern", json!("(?=a)")),
        ("type", json!("text")),
        ("minLength", json!(-1)),
        ("maxLength", json!(1e12)),
        ("multipleOf", json!(0)),
        ("enum", json!([])),
        ("required", json!("a")),
        ("minimum", json!("1")),
        ("properties", json!([])),
        ("anyOf", json!({})),
        ("patternProperties", json!({"[": true})),
    ] {
        let (pointer, problem) = refused(&inside(json!({keyword: value})));
        let expected = match keyword {
            "patternProperties" => format!("{place}/patternProperties/["),
            _ => format!("{place}/{keyword}"),
        };
        assert_eq!(pointer, expected, "{problem}");
    }
    // These only show when it is compiled.
    let either =
        json!([{"type": "object", "properties": {"x": {}}}, {"type": "object", "properties": {"y": {}}}]);
    let (found, problem) = refused(&inside(json!({ "oneOf": either })));
    assert_eq!(found, format!("{place}/oneOf"), "{problem}");
    assert!(problem.contains("\"anyOf\"") && !problem.contains("coerce"), "{problem}");
    for schema in [
        json!(false),
        json!(3),
        json!({"type": "string", "minLength": 5, "maxLength": 1}),
        json!({"minimum": 3, "maximum": 1, "type": "integer"}),
    ] {
        refused(&schema);
    }
    // What restricts nothing is no reason to refuse.
    for schema in [
        json!({}),
        json!(true),
        json!({"x-order": 1, "uniqueItems": false, "format": "int32", "nullable": true, "type": "integer"}),
    ] {
        common::schema(&schema);
    }
}

#[test]
fn ranges_formats_and_counts() {
    let rows: &[(Value, &[&str], &[&str])] = &[
        (
            json!({"type": "integer", "minimum": -3, "exclusiveMaximum": 120}),
            &["-3", "0", "119"],
            &["-4", "120", "1.5", "007"],
        ),
        (
            json!({"type": "number", "minimum": 0.5, "maximum": 2}),
            &["0.5", "1", "2", "1.75"],
            &["0.4", "2.1", "3"],
        ),
        (json!({"type": "integer", "multipleOf": 7}), &["0", "14", "-21"], &["1", "15"]),
        (
            json!({"type": "string", "format": "date-time"}),
            &["\"2026-11-29T20:36:23Z\""],
            &["\"2026-13-01T00:00:00Z\"", "\"x\""],
        ),
        (json!({"type": "string", "format": "ipv4"}), &["\"127.0.0.1\""], &["\"256.0.0.1\""]),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            &["\"ab\"", "\"éé🦙\""],
            &["\"a\"", "\"abcd\""],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}),
            &["[1]", "[1, 2]"],
            &["[]", "[1,2,3]", "[\"a\"]"],
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false}),
            &["[1,\"a\"]", "[1]"],
            &["[\"a\"]", "[1,\"a\",2]"],
        ),
        (json!({"type": ["string", "null"]}), &["null", "\"x\""], &["1"]),
        (json!({"type": "object"}), &["{}", "{\"a\": [1, {\"b\": null}]}"], &["[]"]),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            &["{\"x\":1}"],
            &["{\"x\":\"y\"}"],
        ),
        (
            json!({"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": false}),
            &["{\"n_1\":1}"],
            &["{\"m\":1}", "{\"n_1\":\"a\"}"],
        ),
        (
            json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}]}),
            &["{\"a\":1,\"b\":2}"],
            &["{\"a\":1}"],
        ),
        (json!({"const": {"a": [1, "x"]}}), &["{\"a\":[1,\"x\"]}"], &["{\"a\":[1]}"]),
        (json!({}), &["1", "\"a\"", "[{}]"], &["x"]),
    ];
    for (schema, right, wrong) in rows {
        accepts(&common::schema(schema), right, wrong);
    }
}

#[test]
fn lark_and_regular_expressions() {
    let tokens = Tokens::bytes();
    let lark =
        Grammar::new("%llguidance {}\nstart: \"a\" NUMBER \"b\"\nNUMBER: /[0-9]+/\n", &tokens).unwrap();
    accepts(&lark, &["a12b"], &["ab", "a1"]);
    accepts(&Grammar::regex("[a-c]+(x|y)?", &tokens).unwrap(), &["a", "abcx"], &["", "ax y"]);
    for wrong in ["%llguidance {}\nstart: missing", "%llguidance"] {
        assert!(matches!(Grammar::new(wrong, &tokens), Err(GrammarError::Compile { .. })), "{wrong}");
    }
    assert!(Grammar::regex("(", &tokens).is_err());
}

#[test]
fn schemas_go_back_too() {
    let grammar = schema(&json!({"type": "array", "items": {"type": "integer"}}));
    let mut constraint = grammar.constraint().unwrap();
    let mut masks = Vec::new();
    for byte in b"[12,3]" {
        masks.push(constraint.mask().unwrap().unwrap().to_vec());
        constraint.accept(u32::from(*byte)).unwrap();
    }
    assert!(constraint.is_complete().unwrap());
    constraint.accept(256).unwrap();
    assert!(constraint.accept(256).is_err());
    constraint.rollback(1).unwrap();
    assert!(constraint.is_complete().unwrap());
    constraint.rollback(2).unwrap();
    assert_eq!(constraint.mask().unwrap().unwrap(), masks[4]);
    assert!(constraint.accept(u32::from(b'x')).is_err());
    constraint.accept(u32::from(b'4')).unwrap();
    constraint.accept(u32::from(b']')).unwrap();
    constraint.reset().unwrap();
    assert_eq!(constraint.mask().unwrap().unwrap(), masks[0]);
}

/// Bounds are exact or refused, in our words, at their place; none is moved without a word, and none ends the program.
#[test]
fn large_numbers_are_enforced_exactly_or_refused() {
    let (most, least) = (i64::MAX, i64::MIN);
    for (schema, right, wrong) in [
        (
            json!({"type": "integer", "maximum": most}),
            vec!["9223372036854775807", "-5"],
            vec!["9223372036854775808"],
        ),
        (
            json!({"type": "integer", "minimum": least, "maximum": most}),
            vec!["0", "-9223372036854774784", "9223372036854775807"],
            vec!["9223372036854775808", "-9223372036854775809", "-10000000000000000000"],
        ),
        (
            json!({"type": "number", "minimum": least, "maximum": most}),
            vec!["0.5", "-9223372036854774784", "9223372036854774784"],
            vec!["9223372036854775808", "-9223372036854775809", "1e30"],
        ),
        (
            json!({"type": "integer", "minimum": 9007199254740991_i64}),
            vec!["9007199254740991", "90071992547409910"],
            vec!["9007199254740990"],
        ),
        (
            json!({"type": "integer", "minimum": 1e18, "maximum": 2_000_000_000_000_000_000_i64}),
            vec!["1000000000000000000", "2000000000000000000"],
            vec!["2000000000000000001", "999999999999999999"],
        ),
        (
            json!({"const": -9223372036854774784_i64}),
            vec!["-9223372036854774784"],
            vec!["-9223372036854774783"],
        ),
        (json!({"type": "integer", "multipleOf": 86_400}), vec!["172800", "0"], vec!["172801"]),
        (json!({"enum": [9007199254740991_i64]}), vec!["9007199254740991"], vec!["9007199254740992"]),
        (
            json!({"allOf": [{"multipleOf": 0.01}, {"multipleOf": 0.5}], "type": "number"}),
            vec!["1.5"],
            vec!["1.25"],
        ),
    ] {
        accepts(&common::schema(&schema), &right, &wrong);
    }
    for (schema, place) in [
        (json!({"type": "integer", "minimum": 1e30}), "#/minimum"),
        (json!({"type": "integer", "maximum": 9223372036854775808_u64}), "#/maximum"),
        (json!({"type": "integer", "maximum": u64::MAX}), "#/maximum"),
        (json!({"type": "integer", "minimum": 9007199254740993_i64}), "#/minimum"),
        (json!({"type": "integer", "exclusiveMinimum": 9007199254740992_i64}), "#/exclusiveMinimum"),
        (json!({"type": "integer", "minimum": 9007199254740992_i64, "exclusiveMinimum": true}), "#/minimum"),
        (json!({"type": "integer", "minimum": 1e18}), "#/minimum"),
        (json!({"type": "integer", "maximum": -1e18}), "#/maximum"),
        (json!({"type": "integer", "minimum": -1e30, "maximum": -1e30}), "#/minimum"),
        (json!({"type": "number", "maximum": 1e30}), "#/maximum"),
        (json!({"type": "number", "minimum": 1e-300}), "#/minimum"),
        (json!({"const": least}), "#/const"),
        (json!({"properties": {"a": {"const": {"b": [9007199254740993_i64]}}}}), "#/properties/a/const"),
        (json!({"enum": [1, u64::MAX]}), "#/enum/1"),
        (json!({"type": "integer", "multipleOf": 1e10}), "#/multipleOf"),
        (json!({"type": "number", "multipleOf": 0.07}), "#/multipleOf"),
        (json!({"type": "integer", "multipleOf": 99_991}), "#/multipleOf"),
        (json!({"allOf": [{"multipleOf": 9_999}, {"multipleOf": 9_997}]}), "#/allOf/1/multipleOf"),
    ] {
        let (pointer, problem) = refused(&schema);
        assert_eq!(pointer, place, "{schema}: {problem}");
        for word in ["regex", "i64", "Some(", "Decimal"] {
            assert!(!problem.contains(word), "{problem}");
        }
    }
}

#[test]
fn items_that_differ_where_their_values_are_listed() {
    let letters =
        json!({"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "uniqueItems": true});
    let some = |more: Value| {
        let mut schema = letters.clone();
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    for (schema, right, wrong) in [
        (
            letters.clone(),
            vec!["[]", "[\"b\"]", "[\"c\", \"a\",\"b\"]"],
            vec!["[\"a\",\"a\"]", "[\"a\",\"b\",\"a\"]", "[\"d\"]", "[\"a\",\"b\",\"c\",\"a\"]", "{}"],
        ),
        (
            some(json!({"minItems": 1, "maxItems": 2})),
            vec!["[\"b\"]", "[\"c\",\"b\"]"],
            vec!["[]", "[\"a\",\"b\",\"c\"]"],
        ),
        (some(json!({"type": ["array", "null"]})), vec!["null", "[\"a\"]"], vec!["\"a\"", "[\"a\",\"a\"]"]),
        (
            some(
                json!({"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"enum": [1, 1.0, 2, "x"], "type": "number"}}}),
            ),
            vec!["[2,1]"],
            vec!["[1,1]", "[1,2,1]", "[\"x\"]"],
        ),
        (
            some(json!({"items": {"enum": (0..19).collect::<Vec<_>>()}, "maxItems": 2})),
            vec!["[18,3]", "[5]"],
            vec!["[3,3]", "[1,2,3]"],
        ),
        (some(json!({"items": {"type": "boolean"}})), vec!["[true,false]"], vec!["[true,true]"]),
        // Of fewer than two nothing is the same.
        (
            json!({"type": "array", "items": {"type": "object"}, "maxItems": 1, "uniqueItems": true}),
            vec!["[]", "[{\"a\":1}]"],
            vec!["[{},{}]"],
        ),
        (json!({"type": "string", "uniqueItems": true}), vec!["\"a\""], vec!["[]"]),
    ] {
        accepts(&common::schema(&schema), &right, &wrong);
    }
    for wrong in [
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        json!({"type": "array", "items": {"enum": [1, 2, 3, 4, 5, 6]}, "uniqueItems": true}),
        json!({"type": "array", "items": {"enum": [[1], [1.0]]}, "uniqueItems": true}),
        json!({"type": "array", "items": {"enum": ["a"], "pattern": "b"}, "uniqueItems": true}),
        json!({"items": {"enum": ["a"]}, "uniqueItems": true}),
        json!({"type": "array", "prefixItems": [{}], "items": {"enum": ["a"]}, "uniqueItems": true}),
        json!({"type": "array", "uniqueItems": true}),
        json!({"type": "array", "items": {"const": "a"}, "uniqueItems": "yes"}),
    ] {
        let (pointer, problem) = refused(&wrong);
        assert_eq!(pointer, "#/uniqueItems", "{wrong}: {problem}");
    }
    // What the items themselves have wrong is told there.
    let (pointer, _) = refused(&some(json!({"items": {"enum": [u64::MAX]}})));
    assert_eq!(pointer, "#/items/enum/0");
}

/// Where a schema need not be enforced exactly, what of it can be is.
#[test]
fn loosely_more_is_allowed_and_nothing_less() {
    let overlapping =
        json!([{"type": "object", "properties": {"x": {}}}, {"type": "object", "properties": {"y": {}}}]);
    let schema = json!({
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
            "code": {"type": "string", "pattern": "^(?=x)"},
            "when": {"oneOf": overlapping},
            "size": {"type": "integer", "maximum": u64::MAX, "not": {"const": 5}},
            "other": {"$ref": "https://example.com/x"},
            "map": {"type": "object", "patternProperties": {"(?=a)": {}}, "additionalProperties": false},
        },
        "required": ["tags"],
    });
    assert!(puna_grammar::lark_schema(&schema, false).is_err());
    let loose = puna_grammar::lark_schema(&schema, true).unwrap();
    accepts(
        &grammar(&format!("%llguidance {{}}\nstart: %json {loose}")),
        &[
            "{\"tags\":[\"a\",\"a\"],\"code\":\"y\",\"when\":{\"y\":1},\"size\":99999999999999999999}",
            "{\"tags\":[],\"other\":[{}],\"map\":{\"a\":1}}",
        ],
        &["{}", "{\"tags\":[1]}", "{\"tags\":[],\"size\":\"x\"}", "{\"tags\":[],\"more\":1}"],
    );
    // What can be enforced as a whole is the same.
    let exact = json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}}});
    assert_eq!(puna_grammar::lark_schema(&exact, true), puna_grammar::lark_schema(&exact, false));
}
