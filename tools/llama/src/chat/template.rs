//! From a conversation to the tokens of a prompt, with the model's own template.

use super::conversation::Conversation;
use crate::console::Console;
use crate::failure::Failure;
use crate::session::Session;
use puna_chat::{LocalTime, Template, builtin};
use puna_flags::{Chat, Toggle};
use puna_tokenizer::{Tokenizer, Vocabulary};
use serde_json::{Map, Value};
use std::time::{SystemTime, UNIX_EPOCH};

/// What helps against a template that cannot be used.
const REMEDY: &str = "--chat-template and --chat-template-file name another one";

/// A template with what the flags add to it.
pub struct Renderer {
    /// The template.
    pub template: Template,
    /// More variables.
    pub values: Map<String, Value>,
}

impl Renderer {
    /// The template that the flags name, else the model's, else a usual one.
    pub fn new(session: &Session, chat: &Chat, console: &Console) -> Result<Self, Failure> {
        let of_file = session.template.as_ref().map(Option::as_deref);
        Self::choose(of_file, session.tokenizer.vocabulary(), chat, console)
    }

    /// The same without a session, from what the model's file has as its template.
    pub fn choose(
        of_file: Result<Option<&str>, &puna_gguf::Error>,
        vocabulary: &Vocabulary,
        chat: &Chat,
        console: &Console,
    ) -> Result<Self, Failure> {
        let given = match (&chat.template_file, &chat.template) {
            (Some(path), _) => Some(crate::files::read_text(path, crate::files::SMALL)?),
            (None, Some(text)) if text.contains("{{") || text.contains("{%") => Some(text.clone()),
            (None, Some(name)) => Some(builtin::find(name).map_err(failed)?.to_string()),
            (None, None) => None,
        };
        let template = match (given, of_file) {
            (Some(source), _) => parse(&source, vocabulary)?,
            (None, Err(error)) => return Err(Failure::Failed(format!("{error}; {REMEDY}"))),
            (None, Ok(Some(source))) if !source.is_empty() => {
                parse(source, vocabulary).map_err(|failure| match failure {
                    Failure::Failed(reason) => {
                        Failure::Failed(format!("in the model's file: {reason}; {REMEDY}"))
                    }
                    other => other,
                })?
            }
            (None, Ok(_)) => {
                console.warn(&format!("the model has no chat template: using {}", builtin::FALLBACK));
                parse(builtin::find(builtin::FALLBACK).map_err(failed)?, vocabulary)?
            }
        };
        let mut values = match &chat.template_values {
            Some(text) => serde_json::from_str(text)
                .map_err(|error| Failure::Failed(format!("--chat-template-kwargs: {error}")))?,
            None => Map::new(),
        };
        if chat.reasoning != Toggle::Auto {
            values.entry("enable_thinking").or_insert(Value::Bool(chat.reasoning == Toggle::On));
        }
        Ok(Self { template, values })
    }

    /// The tokens of a conversation up to the point where the answer begins.
    pub fn tokens(&self, tokenizer: &Tokenizer, conversation: &Conversation) -> Result<Vec<u32>, Failure> {
        let text = self.text(conversation)?;
        // The tokenizer puts the beginning token in front itself.
        let bos = self.template.bos();
        let own = tokenizer.vocabulary().add_bos() && !bos.is_empty();
        let text = text.strip_prefix(bos).filter(|_| own).unwrap_or(&text);
        Ok(tokenizer.encode(text, true, true))
    }

    fn text(&self, conversation: &Conversation) -> Result<String, Failure> {
        let plain = self.render(conversation.values(false));
        let Some(system) = conversation.system() else { return plain };
        // Some templates refuse a system message, others drop it silently.
        match &plain {
            Ok(text) if text.contains(system.trim()) => plain,
            _ => self.render(conversation.values(true)).or(plain),
        }
    }

    fn render(&self, messages: Vec<Value>) -> Result<String, Failure> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let conversation = puna_chat::Conversation {
            messages,
            tools: None,
            add_generation_prompt: true,
            extra: self.values.clone(),
            now: Some(LocalTime::from_seconds(i64::try_from(seconds).unwrap_or(0))),
        };
        self.template.render(&conversation).map_err(failed)
    }
}

fn parse(source: &str, vocabulary: &Vocabulary) -> Result<Template, Failure> {
    let text = |token: Option<u32>| token.and_then(|token| vocabulary.text(token)).unwrap_or("");
    Template::parse(source, text(vocabulary.bos()), text(vocabulary.eos())).map_err(failed)
}

fn failed(error: puna_chat::Error) -> Failure {
    Failure::Failed(error.to_string())
}
