//! Chat templates that come with the engine, for models without one, for overrides by name, and for those who want no
//! other ones. A template is a file in `builtin/` and a row here.

use crate::Error;

/// The name of the template for models that have none.
pub const FALLBACK: &str = "chatml";

/// A built-in template.
struct Builtin {
    name: &'static str,
    /// Its Jinja2 source.
    source: &'static str,
    /// What stands in the templates of models that it serves, all of it; nothing if it is only found by its name.
    marks: &'static [&'static str],
}

macro_rules! templates {
    ($($name:literal => $marks:expr;)*) => {
        &[$(Builtin { name: $name, source: include_str!(concat!("builtin/", $name, ".jinja")), marks: &$marks }),*]
    };
}

/// All built-in templates. The first whose marks stand in a model's template serves that model.
#[rustfmt::skip] // one row, one line
const TEMPLATES: &[Builtin] = templates! {
    "phi4" => ["<|im_start|>", "<|im_sep|>"];
    "smolvlm" => ["<|im_start|>", "<end_of_utterance>"];
    "chatml" => ["<|im_start|>"];
    "mistral-v1" => ["' [INST] ' + system_message"];
    "mistral-v7-tekken" => [];
    "mistral-v7" => ["[INST]", "[SYSTEM_PROMPT]"];
    "mistral-v3-tekken" => ["\"[INST]\"", "[AVAILABLE_TOOLS]"];
    "mistral-v3" => ["[INST]", "[AVAILABLE_TOOLS]"];
    "llama2-sys-strip" => ["[INST]", "content.strip()"];
    "llama2-sys-bos" => ["bos_token + '[INST]"];
    "llama2-sys" => ["[INST]", "<<SYS>>"];
    "llama2" => ["[INST]"];
    "phi3" => ["<|assistant|>", "<|end|>"];
    "chatglm4" => ["[gMASK]<sop>"];
    "exaone-moe" => ["<|assistant|>", "<|user|>", "<|tool_declare|>"];
    "falcon3" => ["<|assistant|>", "<|user|>", "</s>"];
    "glmedge" => ["<|assistant|>", "<|user|>"];
    "zephyr" => ["<|user|>", "<|endoftext|>"];
    "monarch" => ["bos_token + message['role']"];
    "gemma" => ["<start_of_turn>"];
    "orion" => ["Assistant: ' + eos_token"];
    "openchat" => ["GPT4 Correct "];
    "vicuna-orca" => ["USER: ", "ASSISTANT: ", "SYSTEM: "];
    "vicuna" => ["USER: ", "ASSISTANT: "];
    "deepseek" => ["### Instruction:", "<|EOT|>"];
    "command-r" => ["<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"];
    "llama3" => ["<|start_header_id|>", "<|end_header_id|>"];
    "llama4" => ["<|header_start|>", "<|header_end|>"];
    "chatglm3" => ["[gMASK]sop"];
    "minicpm" => ["<用户>"];
    "deepseek2" => ["'Assistant: ' + message['content'] + eos_token"];
    "deepseek3" => ["<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>"];
    "exaone4" => ["[|assistant|]", "[|endofturn|]", "[|tool|]"];
    "exaone3" => ["[|assistant|]", "[|endofturn|]"];
    "rwkv-world" => ["'User: ' + message['content']|trim"];
    "granite" => ["<|start_of_role|>"];
    "granite-4.0" => [];
    "granite-4.1" => [];
    "gigachat" => ["additional_special_tokens[0] + message['content'] + additional_special_tokens[1]"];
    "megrez" => ["<|role_start|>"];
    "yandex" => [" Ассистент:"];
    "bailing2" => ["<role>ASSISTANT</role>", "<|role_end|>"];
    "bailing-think" => ["<role>ASSISTANT</role>", "'HUMAN'", "<think>"];
    "bailing" => ["<role>ASSISTANT</role>", "'HUMAN'"];
    "hunyuan-moe" => ["<|startoftext|>", "<|extra_4|>"];
    "hunyuan-vl" => ["<｜hy_Assistant｜>", "<｜hy_begin▁of▁sentence｜>"];
    "hunyuan-dense" => ["<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁3｜>"];
    "gpt-oss" => ["<|start|>", "<|channel|>"];
    "kimi-k2" => ["<|im_assistant|>assistant<|im_middle|>"];
    "seed_oss" => ["<seed:bos>"];
    "grok-2" => ["'Assistant: '", "<|separator|>"];
    "pangu-embedded" => ["[unused9]系统："];
    "solar-open" => ["<|begin|>", "<|content|>", "<|end|>"];
    "deepseek-ocr" => [];
};

/// All names, in the order of the table.
pub fn names() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|row| row.name)
}

/// The source of a built-in template.
pub fn find(name: &str) -> Result<&'static str, Error> {
    let row = TEMPLATES.iter().find(|row| row.name == name);
    row.map(|row| row.source).ok_or_else(|| Error::UnknownBuiltin { name: name.to_owned() })
}

/// The name of the built-in template that can stand for a model's own, as far as its source shows.
pub fn recognise(source: &str) -> Option<&'static str> {
    let fits = |row: &&Builtin| !row.marks.is_empty() && row.marks.iter().all(|mark| source.contains(mark));
    TEMPLATES.iter().find(fits).map(|row| row.name)
}
