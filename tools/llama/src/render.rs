//! `llama template`: the prompt that a chat template makes of a conversation.

use crate::chat::template::{Chosen, now, values};
use crate::console::{Console, WARNINGS};
use crate::failure::Failure;
use crate::files::{self, PROMPT};
use crate::invocation::Invocation;
use crate::{load, pages, source};
use puna_chat::{Conversation, LocalTime};
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use serde_json::{Map, Value};

/// Flags of `template`.
pub const SPEC: Spec<Config> = Spec {
    name: "template",
    tool: ToolSet::RENDER,
    about: "Print the prompt that a chat template makes of a conversation: a JSON file with messages, tools, \
            add_generation_prompt (true unless given), bos_token, eos_token and whatever else the template reads. \
            Built-in templates: bailing bailing-think bailing2 chatglm3 chatglm4 chatml command-r deepseek deepseek-ocr \
            deepseek2 deepseek3 exaone-moe exaone3 exaone4 falcon3 gemma gigachat glmedge gpt-oss granite granite-4.0 \
            granite-4.1 grok-2 hunyuan-dense hunyuan-moe hunyuan-vl kimi-k2 llama2 llama2-sys llama2-sys-bos \
            llama2-sys-strip llama3 llama4 megrez minicpm mistral-v1 mistral-v3 mistral-v3-tekken mistral-v7 \
            mistral-v7-tekken monarch openchat orion pangu-embedded phi3 phi4 rwkv-world seed_oss smolvlm solar-open \
            vicuna vicuna-orca yandex zephyr",
    groups: FLAGS,
    positional: None,
};

/// `llama template`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, _)) = invocation.parse(&SPEC)? else { return Ok(()) };
    // Nothing but the text is printed, unless something may be wrong.
    let console = Console::new(&config.log, WARNINGS)?;
    let chat = &config.chat;
    let Some(path) = &chat.conversation_file else {
        return Err(invocation.usage("no conversation: give --conversation FILE"));
    };
    let now = match &chat.now {
        None => now(),
        Some(text) => LocalTime::parse(text).ok_or_else(|| {
            invocation.usage(format!("--now {text}: expected a time like 2026-07-04T09:05:03"))
        })?,
    };
    let of_model =
        config.model.path.is_some() || config.model.hf_repo.is_some() || config.model.url.is_some();
    let (chosen, tokenizer) = match of_model {
        true => {
            let model = source::model(invocation, &config.model, &console, false)?;
            let metadata = load::metadata(&model, &console)?;
            let template = metadata.optional_str("tokenizer.chat_template");
            let chosen = Chosen::find(invocation, template.as_ref().copied(), chat)?;
            (chosen, Some(load::tokenizer(&model, &metadata, &console)?))
        }
        false if chat.template.is_none() && chat.template_file.is_none() => {
            return Err(
                invocation.usage("no template: give -m MODEL, --chat-template or --chat-template-file")
            );
        }
        false => (Chosen::find(invocation, Ok(None), chat)?, None),
    };
    let template = chosen.compile(tokenizer.as_ref().map(puna_tokenizer::Tokenizer::vocabulary))?;
    let name = path.display().to_string();
    let conversation = conversation(&files::read_text(path, PROMPT)?, &name, values(invocation, chat)?, now)?;
    let text = template.render(&conversation).map_err(|error| Failure::Failed(error.to_string()))?;
    pages::print(text.as_bytes())
}

/// The conversation that the text of a file holds. What the file says goes before the flags' `values`.
fn conversation(
    text: &str,
    name: &str,
    values: Map<String, Value>,
    now: LocalTime,
) -> Result<Conversation, Failure> {
    let wrong = |what: String| Failure::Failed(format!("{name}: {what}"));
    let parsed: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let Value::Object(mut members) = parsed else {
        return Err(wrong("expected a JSON object with messages".into()));
    };
    let messages = match members.shift_remove("messages") {
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err(wrong("\"messages\" is not a list".into())),
        None => return Err(wrong("there is no \"messages\"".into())),
    };
    let add_generation_prompt = match members.shift_remove("add_generation_prompt") {
        None => true,
        Some(Value::Bool(add)) => add,
        Some(_) => return Err(wrong("\"add_generation_prompt\" is neither true nor false".into())),
    };
    let tools = members.shift_remove("tools").filter(|tools| !tools.is_null());
    let mut extra = values;
    extra.extend(members);
    Ok(Conversation { messages, tools, add_generation_prompt, extra, now: Some(now) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_built_in_template() {
        for name in puna_chat::builtin::names() {
            assert!(SPEC.about.split_whitespace().any(|word| word == name), "{name}");
        }
    }
}
