//! Answers told apart, for every way to cut them.

use puna_chat::dialects::{self, Call, Delta, Dialect, OutputParser, Tools};
use serde_json::{Value, json};

const TEMPLATE: &str = "<think></think><tool_call>";

#[derive(Debug, PartialEq, Default)]
struct Parts {
    reasoning: String,
    content: String,
    calls: Vec<Call>,
}

/// The functions of all tests.
fn tools() -> Tools {
    let text = json!({ "type": "string" });
    let function = |name: &str, properties: Value| json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object", "properties": properties } } });
    Tools::from_json(&[
        function("f", json!({ "a": text, "b": { "type": "integer" }, "c": { "type": "object" } })),
        function("g", json!({})),
        function("get_weather", json!({ "city": text, "unit": text })),
    ])
}

fn parse(template: &str, dialect: Option<&'static Dialect>, prompt: &str, pieces: &[&str]) -> Parts {
    let mut parser = OutputParser::new(template, prompt, true, dialect, tools());
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    let mut parts = Parts::default();
    for delta in deltas {
        match delta {
            Delta::Content(text) => parts.content.push_str(&text),
            Delta::Reasoning(text) => parts.reasoning.push_str(&text),
            Delta::Call(name) => parts.calls.push(Call { name, arguments: String::new() }),
            Delta::Arguments(text) => parts.calls.last_mut().expect("a call first").arguments.push_str(&text),
        }
    }
    parts
}

/// C16: the same for all cuts in two and for single letters.
#[track_caller]
fn check_with(template: &str, dialect: Option<&'static Dialect>, prompt: &str, text: &str, expected: &Parts) {
    for (place, _) in text.char_indices() {
        let parts = parse(template, dialect, prompt, &[&text[..place], &text[place..]]);
        assert_eq!(&parts, expected, "cut at {place} of {text:?}");
    }
    let letters: Vec<String> = text.chars().map(String::from).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    assert_eq!(&parse(template, dialect, prompt, &letters), expected, "letter by letter: {text:?}");
}

fn parts(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Parts {
    let call =
        |(name, arguments): &(&str, &str)| Call { name: name.to_string(), arguments: arguments.to_string() };
    Parts { reasoning: reasoning.into(), content: content.into(), calls: calls.iter().map(call).collect() }
}

#[track_caller]
fn check(prompt: &str, text: &str, reasoning: &str, content: &str, calls: &[(&str, &str)]) {
    check_with(TEMPLATE, dialects::detect(TEMPLATE), prompt, text, &parts(reasoning, content, calls));
}

#[track_caller]
fn dialect(name: &str, text: &str, content: &str, calls: &[(&str, &str)]) {
    let found = dialects::DIALECTS.iter().find(|dialect| dialect.name == name);
    assert!(found.is_some(), "{name}");
    check_with(
        "",
        found,
        found.and_then(|found| found.opened).unwrap_or(""),
        text,
        &parts("", content, calls),
    );
}

#[test]
fn parts_of_answers() {
    check("", "plain < text <tool", "", "plain < text <tool", &[]);
    check("", "<think>\nwhy\n</think>\n\nso", "why", "so", &[]);
    check("", "\n<think>a b </think>c ", "a b", "c ", &[]);
    check("<think>\n", "inside</think>out", "inside", "out", &[]);
    check("", "<think>never ends ", "never ends", "", &[]);
    check("", "no <think>thought</think>", "", "no <think>thought</think>", &[]);
    // C18: braces are no calls.
    check("", "int main() { return 0; }", "", "int main() { return 0; }", &[]);
    check("", "{\"name\": \"f\"}", "", "{\"name\": \"f\"}", &[]);
}

#[test]
fn c13_calls() {
    let two = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}\n</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>";
    check("", two, "", "Let me see.", &[("f", "{\"b\": 1, \"a\": \"é\"}"), ("g", "{}")]);
    check("", "<think>x</think>\n<tool_call>{\"name\":\"g\"}</tool_call>\n", "x", "", &[("g", "{}")]);
    // C19: a missing end, a fence, arguments as text.
    check("", "<tool_call>\n{\"name\":\"g\",\"arguments\":{}}", "", "", &[("g", "{}")]);
    check("", "<tool_call>```json\n{\"name\":\"g\"}\n```</tool_call>", "", "", &[("g", "{}")]);
    check("", "<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}</tool_call>", "", "", &[("g", "{}")]);
    // What is no call is lost to nobody.
    check("", "a <tool_call>{bad</tool_call> b", "", "a <tool_call>{bad</tool_call> b", &[]);
    check("", "<tool_call>{\"name\":", "", "<tool_call>{\"name\":", &[]);
}

/// What a limit cuts off is never made up: arguments stay a beginning of what the whole call has.
#[test]
fn calls_that_are_cut_off_keep_what_there_is() {
    let cases = [
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"one two\"}}</tool_call>"),
        ("llama", "{\"name\": \"f\", \"parameters\": {\"b\": 1, \"a\": \"one two\"}}"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{\"b\": 1, \"a\": \"one two\"}"),
        (
            "qwen-coder",
            "<tool_call>\n<function=f>\n<parameter=b>\n1\n</parameter>\n<parameter=a>\none two\n</parameter>\n</function>\n</tool_call>",
        ),
        ("gemma", "<|tool_call>call:f{b:1,a:<|\"|>one two<|\"|>}<tool_call|>"),
    ];
    for (name, text) in cases {
        let found = dialects::DIALECTS.iter().find(|dialect| dialect.name == name);
        assert!(found.is_some(), "{name}");
        let whole = &parse("", found, "", &[text]).calls[0].arguments;
        let mut most = 0;
        for (place, _) in text.char_indices() {
            let mut parser = OutputParser::new("", "", true, found, tools());
            let mut deltas = parser.push(&text[..place]);
            deltas.extend(parser.cut());
            let called = deltas.iter().any(|delta| matches!(delta, Delta::Call(_)));
            let arguments: String = deltas
                .iter()
                .map(|delta| match delta {
                    Delta::Arguments(text) => text.as_str(),
                    Delta::Content(text) if called => panic!("{name} at {place}: {text}"),
                    _ => "",
                })
                .collect();
            assert!(whole.starts_with(&arguments), "{name} at {place}: {arguments:?}");
            most = most.max(arguments.len());
        }
        assert!(most + 3 > whole.len(), "{name}: {most} of {}", whole.len());
    }
}

/// What is too long for a name is none, whether it comes at once or in pieces.
#[test]
fn names_that_are_too_long_are_none() {
    let found = dialects::DIALECTS.iter().find(|dialect| dialect.name == "gemma");
    for length in [100, 5000] {
        let text = format!("<|tool_call>call:{}{{a:1}}<tool_call|> b", "f".repeat(length));
        let whole = parse("", found, "", &[&text]);
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        assert_eq!(parse("", found, "", &pieces), whole, "{length}");
        assert_eq!(whole.calls.len(), usize::from(length == 100));
    }
}

/// The half of a mark with which a limit cuts an answer off is no text; a single character may be one.
#[test]
fn marks_that_are_cut_off_are_no_text() {
    let thinking = "<think></think>";
    let cases = [
        ("hermes", thinking, "<think>", "I see", "</think>"),
        ("hermes", thinking, "", "I look", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
        ("mistral", "", "", "I look", "[TOOL_CALLS]f[ARGS]{}"),
        ("qwen-coder", "", "", "I look", "<tool_call>\n<function=f>\n</function>\n</tool_call>"),
        ("gpt-oss", "", "", "I look", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"),
        ("kimi-k2", "", "", "I look", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"),
        ("minimax-m2", "", "", "I look", "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>"),
    ];
    for (name, template, prompt, text, mark) in cases {
        let found = dialects::DIALECTS.iter().find(|dialect| dialect.name == name);
        assert!(found.is_some(), "{name}");
        let whole = format!("{text}\n\n{mark}");
        for place in (0..=whole.len()).filter(|place| whole.is_char_boundary(*place)) {
            let mut parser = OutputParser::new(template, prompt, true, found, tools());
            let mut deltas = parser.push(&whole[..place]);
            deltas.extend(parser.cut());
            let told: String = deltas
                .iter()
                .map(|delta| match delta {
                    Delta::Content(text) | Delta::Reasoning(text) => text.as_str(),
                    Delta::Call(_) | Delta::Arguments(_) => "",
                })
                .collect();
            let expected = match place.checked_sub(text.len() + 2) {
                Some(1) => &whole[..place],
                _ => &whole[..place.min(text.len())],
            };
            assert_eq!(told.trim_end(), expected.trim_end(), "{name} at {place} of {whole:?}");
        }
    }
    // Words that some marks begin with are words.
    for (name, text) in
        [("firefunction", "this is fun"), ("command-r-plus", "some Act"), ("llama", "{\"a\": 1")]
    {
        let found = dialects::DIALECTS.iter().find(|dialect| dialect.name == name);
        assert!(found.is_some(), "{name}");
        let mut parser = OutputParser::new("", "", true, found, tools());
        let mut deltas = parser.push(text);
        deltas.extend(parser.cut());
        let told: String = deltas
            .iter()
            .map(|delta| if let Delta::Content(text) = delta { text.as_str() } else { panic!("{deltas:?}") })
            .collect();
        assert_eq!(told, text, "{name}");
    }
}

#[test]
fn c22_nothing_is_touched_unless_asked() {
    let text = "<think>a</think> b <tool_call>{\"name\":\"g\"}</tool_call>";
    let mut parser = OutputParser::new(TEMPLATE, "", false, dialects::detect(TEMPLATE), Tools::default());
    assert_eq!(parser.push(text), [Delta::Content(text.into())]);
    assert_eq!(parser.finish(), []);
    let mut parser = OutputParser::new("a template without marks", "<think>", true, None, tools());
    assert_eq!(parser.push(text), [Delta::Content(text.into())]);
}

#[test]
fn c16_arguments_are_streamed() {
    let mut parser = OutputParser::new(TEMPLATE, "", true, dialects::detect(TEMPLATE), tools());
    assert_eq!(parser.push("<tool_call>{\"name\": \"f\", \"arg"), [Delta::Call("f".into())]);
    assert_eq!(parser.push("uments\": {\"a\""), [Delta::Arguments("{\"a\"".into())]);
    assert_eq!(parser.push(": 1}}</tool"), [Delta::Arguments(": 1}".into())]);
    assert_eq!(parser.push("_call>"), []);
    assert_eq!(parser.finish(), []);
}

#[test]
fn c18_json_that_is_no_call() {
    let other = "{\"answer\": [1, 2], \"name\": \"Bob\"}";
    dialect("llama", other, other, &[]);
    dialect("llama", "int main() { return 0; }", "int main() { return 0; }", &[]);
    dialect("llama", "{", "{", &[]);
    dialect("llama", "{\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}", "", &[("f", "{\"a\": \"}\"}")]);
    let typed =
        "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\"}";
    dialect("llama", typed, "", &[("f", "{}"), ("g", "{}")]);
    dialect("hermes", "```json\n{\"name\": \"g\", \"arguments\": {}}\n```", "", &[("g", "{}")]);
    dialect("hermes", "```c\nint x;\n```", "```c\nint x;\n```", &[]);
}

/// Two calls, text before them, arguments that need quoting, one dialect after the other.
#[test]
fn c19_every_dialect() {
    let both = [("f", r#"{"a": "x\"y", "b": 2}"#), ("g", "{}")];
    let json = r#"{"name": "f", "arguments": {"a": "x\"y", "b": 2}}"#;
    for (name, begin, end) in [
        ("hermes", "<tool_call>\n", "\n</tool_call>"),
        ("gigachat", "<|function_call|>", "<|message_sep|>"),
        ("gigachat", "function call<|role_sep|>\n", "<|message_sep|>"),
    ] {
        let two = format!("Hi.\n{begin}{json}{end}{begin}{{\"name\": \"g\"}}{end}");
        dialect(name, &two, "Hi.", &both);
    }
    for (name, begin, end) in [
        ("mistral", "[TOOL_CALLS]", ""),
        ("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
        ("apriel", "<tool_calls>", "</tool_calls>"),
        ("granite", "<|tool_call|>", ""),
        ("firefunction", " functools", ""),
        ("command-r", "<|START_ACTION|>", "<|END_ACTION|>"),
        ("command-r-plus", "Action: ```json\n", "\n```"),
        ("lfm", "<|tool_call_start|>", "<|tool_call_end|>"),
        ("hermes", "<tool_call>", "</tool_call>"),
    ] {
        let two = format!("Hi.{begin}[{json},\n  {{\"name\": \"g\", \"arguments\": {{}}}}]{end}");
        dialect(name, &two, "Hi.", &both);
    }
    dialect("apriel", &format!("<tool_calls>\n{json}\n{{\"name\": \"g\"}}\n</tool_calls>"), "", &both);
    let named = r#"{"a": "x\"y", "b": 2}"#;
    for (name, text) in [
        ("mistral", format!("Hi.[TOOL_CALLS]f[ARGS]{named}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{{}}")),
        ("mistral", format!("Hi.[TOOL_CALLS]f{named}[TOOL_CALLS]g[ARGS]{{}}</s>")),
        (
            "kimi-k2",
            format!(
                "Hi.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{named}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>"
            ),
        ),
        (
            "deepseek",
            format!(
                "Hi.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{named}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
        ),
        (
            "deepseek",
            format!(
                "Hi.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{named}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
        ),
        ("functionary-3.1", format!("Hi.\n<function=f>{named}</function><function=g>{{}}</function>")),
        ("functionary-3.2", format!("all\nHi.>>>f\n{named}>>>g\n{{}}")),
        (
            "gpt-oss",
            format!(
                "<|channel|>final<|message|>Hi.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{named}<|call|><|start|>assistant to=functions.g<|channel|>commentary json<|message|>{{}}"
            ),
        ),
        (
            "solar",
            format!(
                "<|content|>Hi.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>abc<|tool_call:name|>f<|tool_call:args|>{named}<|tool_call:end|><|tool_call:begin|>abd<|tool_call:name|>g<|tool_call:args|>{{}}<|tool_call:end|><|calls|>"
            ),
        ),
        ("apertus", format!("Hi.<|tools_prefix|>[{{\"f\": {named}}}, {{\"g\": {{}}}}]<|tools_suffix|>")),
    ] {
        dialect(name, &text, "Hi.", &both);
    }
}

#[test]
fn c19_arguments_between_tags() {
    let expected = [("f", r#"{"a": "7 \"x\"\nline", "b": 2, "c": {"d":[1]}}"#), ("g", "{}")];
    let text = "7 \"x\"\nline";
    for (name, written) in [
        (
            "qwen-coder",
            format!(
                "Hi.\n<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n<parameter=b>\n2\n</parameter>\n<parameter=c>{{\"d\": [1]}}</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>"
            ),
        ),
        (
            "glm",
            format!(
                "Hi.\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n<arg_key>b</arg_key><arg_value>2</arg_value><arg_key>c</arg_key><arg_value>{{\"d\": [1]}}</arg_value>\n</tool_call><tool_call>g</tool_call>"
            ),
        ),
        (
            "hunyuan",
            format!(
                "Hi.<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>{text}</arg_value:opensource><arg_key:opensource>b</arg_key:opensource><arg_value:opensource>2</arg_value:opensource><arg_key:opensource>c</arg_key:opensource><arg_value:opensource>{{\"d\": [1]}}</arg_value:opensource></tool_call:opensource>\n<tool_call:opensource>g<tool_sep:opensource></tool_call:opensource></tool_calls:opensource>"
            ),
        ),
        (
            "minimax-m2",
            format!(
                "Hi.<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">{text}</parameter>\n<parameter name=\"b\">2</parameter><parameter name=\"c\">{{\"d\": [1]}}</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>"
            ),
        ),
        (
            "minimax-m3",
            format!(
                "Hi.]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<a>{text}]<]minimax[>[</a>]<]minimax[>[<b>2]<]minimax[>[</b>]<]minimax[>[<c>{{\"d\": [1]}}]<]minimax[>[</c>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"g\">]<]minimax[>[</invoke>]<]minimax[>[</tool_call>"
            ),
        ),
        (
            "minicpm",
            format!(
                "Hi.<function name=\"f\"><param name=\"a\"><![CDATA[{text}]]></param><param name=\"b\">2</param><param name=\"c\">{{\"d\": [1]}}</param></function>\n<function name=\"g\"></function>"
            ),
        ),
        (
            "dsml",
            format!(
                "Hi.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">{text}</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" string=\"false\">2</｜DSML｜parameter>\n<｜DSML｜parameter name=\"c\" string=\"false\">{{\"d\": [1]}}</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
            ),
        ),
        (
            "kimi-k3",
            format!(
                "<|open|>response<|sep|>Hi.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>{text}<|close|>argument<|sep|><|open|>argument key=\"b\" type=\"number\"<|sep|>2<|close|>argument<|sep|><|open|>argument key=\"c\" type=\"object\"<|sep|>{{\"d\": [1]}}<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"g\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
            ),
        ),
        (
            "muse",
            format!(
                " to=user<|message|>Hi.<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"a\">{text}</atem:parameter><atem:parameter name=\"b\">2</atem:parameter>\n<atem:parameter name=\"c\">{{\"d\": [1]}}</atem:parameter>\n</atem:invoke>\n<atem:invoke name=\"g\">\n</atem:invoke>\n</atem:function_calls>"
            ),
        ),
    ] {
        dialect(name, &written, "Hi.", &expected);
    }
}

#[test]
fn c19_forms_of_their_own() {
    let gemma = "Hi.<|tool_call>call:f{a:<|\"|>x\"{y<|\"|>,b:2,c:{d:[true,<|\"|>z<|\"|>]}}<tool_call|><|tool_call>call:g{}<tool_call|>";
    dialect("gemma", gemma, "Hi.", &[("f", r#"{"a":"x\"{y","b":2,"c":{"d":[true,"z"]}}"#), ("g", "{}")]);
    let lfm = "Hi.<|tool_call_start|>[f(a='x\"y', b=2, c={'d': [True, None]}), g()]<|tool_call_end|>";
    dialect("lfm", lfm, "Hi.", &[("f", r#"{"a": "x\"y", "b": 2, "c": {"d":[true,null]}}"#), ("g", "{}")]);
    dialect("lfm", "<|tool_call_start|>[f(<|tool_call_end|>", "<|tool_call_start|>[f(<|tool_call_end|>", &[]);
}

/// Whatever a model writes, no text makes a parser fail, and nothing is held back in the end.
#[test]
fn nothing_makes_a_parser_fail() {
    let mut seed = 7_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for dialect in dialects::DIALECTS {
        let mut pieces: Vec<&str> = vec![
            "{", "}", "[", "]", "\"", "f", "g", ":", ",", "\\", "\\u12", "\n", "name", "(", "=", "é", ">",
            "<",
        ];
        pieces.extend(dialect.begin);
        pieces.extend(dialect.frame);
        for _ in 0..300 {
            let text: String = (0..random(30)).map(|_| pieces[random(pieces.len())]).collect();
            let text = format!("{}{text}", dialect.begin[0]);
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            let whole = parse("", Some(dialect), "", &[&text]);
            assert_eq!(whole, parse("", Some(dialect), "", &letters), "{}: {text:?}", dialect.name);
        }
    }
}

/// What the templates of real models make of a call is read back.
#[test]
fn calls_of_real_templates() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/templates");
    let Ok(rendered) = std::fs::read_to_string(format!("{folder}/rendered.json")) else {
        println!("skipped: {folder}/rendered.json is not there");
        return;
    };
    let rendered: Value = serde_json::from_str(&rendered).expect("JSON");
    let mut read = 0;
    for (file, cases) in rendered["rendered"].as_object().expect("an object") {
        let template = std::fs::read_to_string(format!("{folder}/{file}")).expect("the template");
        let Some(text) = cases["tool_round"]["text"].as_str() else { continue };
        let turn = text.rsplit_once("Weather in Paris?").expect("the question").1;
        // Where the template writes no call there is none to read.
        let Some(end) = turn.find("21}").filter(|_| turn.contains("get_weather")) else { continue };
        let turn =
            turn[..end].split_once("assistant<|end_header_id|>\n\n").map_or(&turn[..end], |(_, turn)| turn);
        let Some(dialect) = dialects::detect(&template) else { panic!("{file}: no dialect for {turn}") };
        let parts = parse(&template, Some(dialect), "", &[turn]);
        let [call] = parts.calls.as_slice() else { panic!("{file}: {} reads {parts:?}", dialect.name) };
        assert_eq!(call.name, "get_weather", "{file}: {}", dialect.name);
        let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
        assert_eq!(arguments, json!({ "city": "Paris", "unit": "c" }), "{file}: {}", dialect.name);
        read += 1;
    }
    assert!(read >= 50, "{read} templates");
}

/// Each dialect's call of `f` with a text `a`, before and behind that text.
#[rustfmt::skip] // one row, one line
const LONG_CALLS: &[(&str, &str, &str)] = &[
    ("apertus", "<|tools_prefix|>[{\"f\": {\"a\": \"", "\"}}]<|tools_suffix|>"),
    ("apriel", "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}]</tool_calls>"),
    ("command-r", "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {\"a\": \"", "\"}}]<|END_ACTION|>"),
    ("command-r-plus", "Action: ```json\n[{\"tool_name\": \"f\", \"parameters\": {\"a\": \"", "\"}}]\n```"),
    ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"", "\"}<｜tool▁call▁end｜>"),
    ("dsml", "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"true\">", "</｜DSML｜parameter></｜DSML｜invoke>"),
    ("firefunction", " functools[{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}]"),
    ("functionary-3.1", "<function=f>{\"a\": \"", "\"}</function>"),
    ("functionary-3.2", "f\n{\"a\": \"", "\"}"),
    ("gemma", "<|tool_call>call:f{a:<|\"|>", "<|\"|>}<tool_call|>"),
    ("gigachat", "function call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}"),
    ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value></tool_call>"),
    ("gpt-oss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"", "\"}<|call|>"),
    ("granite", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}]"),
    ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}</tool_call>"),
    ("hunyuan", "<tool_call:opensource>f<tool_sep:opensource><arg_key:opensource>a</arg_key:opensource><arg_value:opensource>", "</arg_value:opensource></tool_call:opensource>"),
    ("kimi-k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": \"", "\"}<|tool_call_end|>"),
    ("kimi-k3", "<|open|>call tool=\"f\" index=\"0\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>", "<|close|>argument<|sep|><|close|>call<|sep|>"),
    ("lfm", "<|tool_call_start|>[f(a=\"", "\")]<|tool_call_end|>"),
    ("llama", "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": \"", "\"}}"),
    ("minicpm", "<function name=\"f\"><param name=\"a\">", "</param></function>"),
    ("minimax-m2", "<invoke name=\"f\"><parameter name=\"a\">", "</parameter></invoke>"),
    ("minimax-m3", "]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<a>", "]<]minimax[>[</a>]<]minimax[>[</invoke>"),
    ("mistral", "[TOOL_CALLS]f[ARGS]{\"a\": \"", "\"}"),
    ("muse", "<atem:invoke name=\"f\"><atem:parameter name=\"a\">", "</atem:parameter></atem:invoke>"),
    ("nemotron", "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": \"", "\"}}]</TOOLCALL>"),
    ("qwen-coder", "<function=f><parameter=a>", "</parameter></function>"),
    ("solar", "<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{\"a\": \"", "\"}<|tool_call:end|>"),
];

/// Parses a text in pieces of seven characters, looking at no byte more than a few times.
fn stream(dialect: &'static Dialect, text: &str) -> Parts {
    let mut parser =
        OutputParser::new("<think></think>", dialect.opened.unwrap_or(""), true, Some(dialect), tools());
    let letters: Vec<char> = text.chars().collect();
    let mut parts = Parts::default();
    let mut add = |deltas: Vec<Delta>| {
        for delta in deltas {
            match delta {
                Delta::Content(text) => parts.content.push_str(&text),
                Delta::Reasoning(text) => parts.reasoning.push_str(&text),
                Delta::Call(name) => parts.calls.push(Call { name, arguments: String::new() }),
                Delta::Arguments(text) => parts.calls.last_mut().unwrap().arguments.push_str(&text),
            }
        }
    };
    for piece in letters.chunks(7) {
        add(parser.push(&piece.iter().collect::<String>()));
    }
    add(parser.finish());
    let most = 8 * text.len() as u64 + 100_000;
    assert!(parser.work() >= text.len() as u64 / 2, "{}: the work is counted", dialect.name);
    assert!(parser.work() <= most, "{}: {} bytes of {}", dialect.name, parser.work(), text.len());
    parts
}

/// A call of a megabyte that comes in small pieces: the bytes that are looked at are counted.
#[test]
fn the_work_grows_with_the_length_of_a_call_only() {
    assert_eq!(LONG_CALLS.len(), dialects::DIALECTS.len());
    for (name, before, behind) in LONG_CALLS {
        let dialect = dialects::DIALECTS.iter().find(|dialect| dialect.name == *name).unwrap();
        let long = "x < y } \u{e9}. ".repeat(75_000);
        let found = stream(dialect, &format!("{before}{long}{behind}"));
        assert_eq!(found.calls.len(), 1, "{name}: {:.80}", found.content);
        assert_eq!(found.calls[0].name, "f", "{name}");
        let arguments: Value = serde_json::from_str(&found.calls[0].arguments).unwrap();
        assert!(arguments == json!({ "a": long }), "{name}");
        assert!(found.content.trim().is_empty(), "{name}: {:.80}", found.content);
    }
}

#[test]
fn the_work_grows_with_the_number_of_parts_only() {
    let find = |name: &str| dialects::DIALECTS.iter().find(|dialect| dialect.name == name).unwrap();
    let members: Vec<String> = (0..40_000).map(|number| format!("\"k{number}\": {number}")).collect();
    let object = format!("{{{}}}", members.join(", "));
    // Members before the name, arguments before the name, arguments as a text, many calls.
    let inner = object.trim_matches(['{', '}']);
    let found = stream(find("hermes"), &format!("<tool_call>{{{inner}, \"name\": \"f\"}}</tool_call>"));
    assert_eq!(found.calls, [Call { name: "f".into(), arguments: "{}".into() }]);
    let text = format!("<tool_call>{{\"arguments\": {object}, \"name\": \"f\"}}</tool_call>");
    assert_eq!(stream(find("hermes"), &text).calls, [Call { name: "f".into(), arguments: object.clone() }]);
    let quoted = json!(object).to_string();
    let text =
        format!("<tool_call>{{\"function\": {{\"name\": \"f\", \"arguments\": {quoted}}}}}</tool_call>");
    assert_eq!(stream(find("hermes"), &text).calls, [Call { name: "f".into(), arguments: object.clone() }]);
    let one = "{\"name\": \"g\", \"arguments\": {}}";
    let calls = vec![one; 20_000].join(",");
    assert_eq!(stream(find("apriel"), &format!("<tool_calls>[{calls}]</tool_calls>")).calls.len(), 20_000);
    let parameters: String =
        (0..20_000).map(|number| format!("<arg_key>k{number}</arg_key><arg_value>1</arg_value>")).collect();
    let found = stream(find("glm"), &format!("<tool_call>g{parameters}</tool_call>"));
    let arguments: Value = serde_json::from_str(&found.calls[0].arguments).unwrap();
    assert_eq!(arguments.as_object().unwrap().len(), 20_000);
    let parameters: String = (0..20_000).map(|number| format!("k{number}:[{number}],")).collect();
    let found = stream(find("gemma"), &format!("<|tool_call>call:g{{{parameters}z:1}}<tool_call|>"));
    let arguments: Value = serde_json::from_str(&found.calls[0].arguments).unwrap();
    assert_eq!(arguments.as_object().unwrap().len(), 20_001);
}

#[test]
fn the_work_grows_with_the_number_of_blanks_only() {
    let blanks = "\n \u{3000}".repeat(100_000);
    for (name, before, behind) in LONG_CALLS {
        let dialect = dialects::DIALECTS.iter().find(|dialect| dialect.name == *name).unwrap();
        // Before an answer, within it, within the reasoning, and everywhere in a call.
        let found = stream(dialect, &format!("{blanks}<think>{blanks}a{blanks}b"));
        assert!(found.content.ends_with('b') || found.reasoning.ends_with('b'), "{name}");
        stream(dialect, &format!("a{blanks}{before}x{behind}{blanks}b"));
        let cut = before.len() - 6;
        let cut = (0..=cut).rev().find(|cut| before.is_char_boundary(*cut)).unwrap();
        stream(dialect, &format!("{}{blanks}{}x{behind}", &before[..cut], &before[cut..]));
        stream(dialect, &format!("{before}x{}{blanks}{}", &behind[..1], &behind[1..]));
    }
}

/// An object within an object within an object: nothing recurses.
#[test]
fn names_within_names_are_no_calls() {
    let text = format!("<tool_call>{}1{}</tool_call>", "{\"name\": ".repeat(100_000), "}".repeat(100_000));
    let hermes = dialects::detect(TEMPLATE).unwrap();
    let found = stream(hermes, &text);
    assert!(found.calls.is_empty());
    assert_eq!(found.content, text);
}
