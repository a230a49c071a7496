//! Hermes, Qwen 2.5 and Qwen 3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::{Call, CallDialect, call_of};

pub(super) const DIALECT: CallDialect =
    CallDialect { name: "hermes", detect, begin: "<tool_call>", end: "</tool_call>", parse };

/// Other models write something else between the same marks.
fn detect(template: &str) -> bool {
    template.contains("<tool_call>") && !template.contains("<function=") && !template.contains("<arg_key>")
}

fn parse(text: &str) -> Option<Call> {
    let text = text.trim();
    let text = text.strip_prefix("```json").or_else(|| text.strip_prefix("```")).unwrap_or(text);
    let text = text.strip_suffix("```").unwrap_or(text);
    call_of(&serde_json::from_str(text.trim()).ok()?, "name", "arguments")
}
