//! From a conversation to the tokens of a prompt, with the model's own template.

use super::conversation::Conversation;
use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::session::Session;
use puna_chat::dialects::reasoning_of;
use puna_chat::{LocalTime, Template, builtin};
use puna_flags::{Chat, Toggle, closest};
use puna_grammar::Passage;
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

/// The source of a template, and where it comes from.
pub struct Chosen {
    /// Jinja2.
    pub source: String,
    /// For messages, as in "chat template: that of the model's file".
    pub origin: String,
    /// It is the model's own.
    of_model: bool,
}

impl Chosen {
    fn new(source: impl Into<String>, origin: impl Into<String>) -> Self {
        Self { source: source.into(), origin: origin.into(), of_model: false }
    }

    /// The template that the flags name, else that of the model's file, else a usual one.
    pub fn find(
        invocation: &Invocation,
        of_file: Result<Option<&str>, &puna_gguf::Error>,
        chat: &Chat,
    ) -> Result<Self, Failure> {
        if let Some(given) = Self::given(invocation, chat)? {
            return Ok(given);
        }
        let of_file = of_file.map_err(|error| Failure::Failed(format!("{error}; {REMEDY}")))?;
        match of_file.filter(|source| !source.is_empty()) {
            Some(source) if chat.jinja => {
                Ok(Self { of_model: true, ..Self::new(source, "that of the model's file") })
            }
            Some(source) => {
                let Some(name) = builtin::recognise(source) else {
                    return Err(Failure::Failed(
                        "the model's chat template is like none of the built-in ones, and --no-jinja allows no other; \
                         --chat-template names one"
                            .into(),
                    ));
                };
                let source = builtin::find(name).map_err(failed)?;
                Ok(Self::new(source, format!("{name}, built in, for that of the model's file (--no-jinja)")))
            }
            None => {
                let source = builtin::find(builtin::FALLBACK).map_err(failed)?;
                Ok(Self::new(source, format!("{}, built in, as the model has none", builtin::FALLBACK)))
            }
        }
    }

    /// What the flags name.
    fn given(invocation: &Invocation, chat: &Chat) -> Result<Option<Self>, Failure> {
        let jinja = |flag: &str| match chat.jinja {
            true => Ok(()),
            false => Err(invocation.usage(format!("{flag} is Jinja, which --no-jinja rules out"))),
        };
        Ok(match (&chat.template_file, &chat.template) {
            (Some(path), _) => {
                jinja("--chat-template-file")?;
                let source = crate::files::read_text(path, crate::files::SMALL)?;
                Some(Self::new(source, format!("that of {}", path.display())))
            }
            (None, Some(source)) if source.contains("{{") || source.contains("{%") => {
                jinja("the text of --chat-template")?;
                Some(Self::new(source, "the text of --chat-template"))
            }
            (None, Some(name)) => {
                let source = builtin::find(name).map_err(|error| {
                    let near = closest(name, builtin::names());
                    let hint = near.map(|near| format!("did you mean {near}? ")).unwrap_or_default();
                    invocation
                        .usage(format!("--chat-template: {error}; {hint}'llama template --help' lists them"))
                })?;
                Some(Self::new(source, format!("{name}, built in, as --chat-template says")))
            }
            (None, None) => None,
        })
    }

    /// Compiled, for a model with this vocabulary if there is one.
    pub fn compile(&self, vocabulary: Option<&Vocabulary>) -> Result<Template, Failure> {
        let text = |token: Option<u32>| token.and_then(|token| vocabulary?.text(token)).unwrap_or("");
        let [bos, eos] =
            [vocabulary.and_then(Vocabulary::bos), vocabulary.and_then(Vocabulary::eos)].map(text);
        Template::parse(&self.source, bos, eos).map_err(|error| match self.of_model {
            true => Failure::Failed(format!("in the model's file: {error}; {REMEDY}")),
            false => failed(error),
        })
    }
}

/// Checks what the flags say about the template, as far as that goes without a model.
pub fn check(invocation: &Invocation, chat: &Chat) -> Result<(), Failure> {
    values(invocation, chat)?;
    Chosen::given(invocation, chat)?.map_or(Ok(()), |chosen| chosen.compile(None).map(drop))
}

/// More variables, as the flags give them.
pub fn values(invocation: &Invocation, chat: &Chat) -> Result<Map<String, Value>, Failure> {
    let mut values: Map<String, Value> = match &chat.template_values {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            invocation.usage(format!("--chat-template-kwargs: expected a JSON object: {error}"))
        })?,
        None => Map::new(),
    };
    if chat.reasoning != Toggle::Auto {
        values.entry("enable_thinking").or_insert(Value::Bool(chat.reasoning == Toggle::On));
    }
    if let Some(effort) = &chat.reasoning_effort {
        values.entry("reasoning_effort").or_insert(Value::String(effort.clone()));
    }
    Ok(values)
}

/// What `strftime_now` shows.
pub fn now() -> LocalTime {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LocalTime::from_seconds(i64::try_from(seconds).unwrap_or(0))
}

impl Renderer {
    /// The template that the flags name, else the model's, else a usual one.
    pub fn new(
        invocation: &Invocation,
        session: &Session,
        chat: &Chat,
        console: &Console,
    ) -> Result<Self, Failure> {
        let of_file = session.template.as_ref().map(Option::as_deref);
        Self::choose(invocation, of_file, session.tokenizer.vocabulary(), chat, console)
    }

    /// The same without a session, from what the model's file has as its template.
    pub fn choose(
        invocation: &Invocation,
        of_file: Result<Option<&str>, &puna_gguf::Error>,
        vocabulary: &Vocabulary,
        chat: &Chat,
        console: &Console,
    ) -> Result<Self, Failure> {
        if matches!(of_file, Ok(None | Some(""))) && chat.template.is_none() && chat.template_file.is_none() {
            console.warn(&format!("the model has no chat template: using {}", builtin::FALLBACK));
        }
        let chosen = Chosen::find(invocation, of_file, chat)?;
        let template = chosen.compile(Some(vocabulary))?;
        console.info(&format!("chat template: {}", chosen.origin));
        Ok(Self { template, values: values(invocation, chat)? })
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

    /// The part of an answer to this conversation in which the model reasons, if it does.
    pub fn passage(&self, conversation: &Conversation) -> Result<Option<Passage>, Failure> {
        let found = reasoning_of(self.template.source(), &self.text(conversation)?);
        Ok(found.map(|(begin, end, open)| Passage { begin: begin.to_owned(), end: end.to_owned(), open }))
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
        let conversation = puna_chat::Conversation {
            messages,
            tools: None,
            add_generation_prompt: true,
            extra: self.values.clone(),
            now: Some(now()),
        };
        self.template.render(&conversation).map_err(failed)
    }
}

fn failed(error: puna_chat::Error) -> Failure {
    Failure::Failed(error.to_string())
}
