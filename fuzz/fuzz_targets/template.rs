//! Sources of chat templates, rendered with a conversation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use puna_chat::{Conversation, Template};
use serde_json::{Map, json};

fuzz_target!(|source: &str| {
    let Ok(template) = Template::parse(source, "<s>", "</s>") else { return };
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let _ = template.render(&Conversation {
        messages: vec![json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": "b"})],
        tools: Some(json!([tool])),
        add_generation_prompt: true,
        extra: Map::new(),
        now: None,
    });
});
