//! Answers told apart, for every way to cut them.

use puna_chat::dialects::{Call, Delta, OutputParser};

const TEMPLATE: &str = "<think></think><tool_call>";

#[derive(Debug, PartialEq, Default)]
struct Parts {
    reasoning: String,
    content: String,
    calls: Vec<Call>,
}

fn parse(prompt: &str, pieces: &[&str]) -> Parts {
    let mut parser = OutputParser::new(TEMPLATE, prompt, true, true);
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    let mut parts = Parts::default();
    for delta in deltas {
        match delta {
            Delta::Content(text) => parts.content.push_str(&text),
            Delta::Reasoning(text) => parts.reasoning.push_str(&text),
            Delta::Call(call) => parts.calls.push(call),
        }
    }
    parts
}

/// C16: the same for all cuts in two and for single letters.
#[track_caller]
fn check(prompt: &str, text: &str, reasoning: &str, content: &str, calls: &[(&str, &str)]) {
    let call =
        |(name, arguments): &(&str, &str)| Call { name: name.to_string(), arguments: arguments.to_string() };
    let calls = calls.iter().map(call).collect();
    let expected = Parts { reasoning: reasoning.into(), content: content.into(), calls };
    for (place, _) in text.char_indices() {
        assert_eq!(parse(prompt, &[&text[..place], &text[place..]]), expected, "cut at {place} of {text:?}");
    }
    let letters: Vec<String> = text.chars().map(String::from).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    assert_eq!(parse(prompt, &letters), expected, "letter by letter: {text:?}");
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
    check("", two, "", "Let me see.", &[("f", "{\"b\":1,\"a\":\"é\"}"), ("g", "{}")]);
    check("", "<think>x</think>\n<tool_call>{\"name\":\"g\"}</tool_call>\n", "x", "", &[("g", "{}")]);
    // C19: a missing end, a fence, arguments as text.
    check("", "<tool_call>\n{\"name\":\"g\",\"arguments\":{}}", "", "", &[("g", "{}")]);
    check("", "<tool_call>```json\n{\"name\":\"g\"}\n```</tool_call>", "", "", &[("g", "{}")]);
    check("", "<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}</tool_call>", "", "", &[("g", "{}")]);
    // What is no call is lost to nobody.
    check("", "a <tool_call>{bad</tool_call> b", "", "a <tool_call>{bad</tool_call> b", &[]);
    check("", "<tool_call>{\"name\":", "", "<tool_call>{\"name\":", &[]);
}

#[test]
fn c22_nothing_is_touched_unless_asked() {
    let text = "<think>a</think> b <tool_call>{\"name\":\"g\"}</tool_call>";
    let mut parser = OutputParser::new(TEMPLATE, "", false, false);
    assert_eq!(parser.push(text), [Delta::Content(text.into())]);
    assert_eq!(parser.finish(), []);
    let mut parser = OutputParser::new("a template without marks", "<think>", true, true);
    assert_eq!(parser.push(text), [Delta::Content(text.into())]);
}
