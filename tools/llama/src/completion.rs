//! `llama completion`: continue a text, or hold a conversation as `cli` does.

use crate::chat::{self, Chat};
use crate::console::Console;
use crate::failure::Failure;
use crate::files::{self, Replacement};
use crate::invocation::Invocation;
use crate::session::{Answer, End, Session, summary};
use crate::{pages, prompt};
use puna_engine::UNLIMITED;
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use std::path::Path;

/// Flags of `completion`.
pub const SPEC: Spec<Config> = Spec {
    name: "completion",
    tool: ToolSet::COMPLETION,
    about: "Continue a text; with a model that has a chat template hold a conversation, unless -no-cnv",
    groups: FLAGS,
    positional: None,
};

/// `llama completion`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let text = prompt::given(&config)?;
    config.prompt.cache_file.as_deref().filter(|_| !config.prompt.cache_read_only).map_or(
        // Better now than after the prompt was evaluated.
        Ok(()),
        files::check_replaceable,
    )?;
    let session = Session::start(invocation, &SPEC, &config, &console, UNLIMITED)?;
    if session.has_encoder && config.prompt.cache_file.is_some() {
        let reason = "--prompt-cache: the model's encoder reads the prompt, so there is no beginning to save";
        return Err(Failure::Failed(reason.into()));
    }
    let interactive = config.chat.interactive || config.chat.interactive_first;
    let plain = interactive || config.prompt.cache_file.is_some();
    if config.chat.conversation.unwrap_or(!plain && chat::has_template(&session)) {
        let first = text.filter(|text| !text.trim().is_empty());
        return Chat::new(invocation, &session, &config, &console)?.run(first);
    }
    let text = text.unwrap_or_default();
    Completion { session: &session, config: &config, console: &console, tokens: Vec::new(), lines: 0 }
        .run(&text)
}

struct Completion<'a> {
    session: &'a Session,
    config: &'a Config,
    console: &'a Console,
    /// Everything so far.
    tokens: Vec<u32>,
    /// Lines of the standard input that were read.
    lines: usize,
}

impl Completion<'_> {
    fn run(&mut self, text: &str) -> Result<(), Failure> {
        let tokenizer = &self.session.tokenizer;
        let special = self.config.prompt.special;
        let restored = self.restore()?;
        self.tokens = tokenizer.encode(text, true, true);
        if text.is_empty() && !restored.is_empty() {
            // Without a prompt the saved one goes on.
            self.tokens = restored;
        } else if self.tokens.is_empty() {
            self.tokens.extend(tokenizer.vocabulary().bos());
        }
        self.session.check(&self.tokens)?;
        if self.config.prompt.verbose {
            for token in &self.tokens {
                let piece = tokenizer.piece(*token, true);
                self.console.info(&format!("{token:6} -> '{}'", String::from_utf8_lossy(&piece)));
            }
        }
        if self.config.prompt.display {
            pages::print(&tokenizer.decode(&self.tokens, special))?;
        }
        self.save_prompt()?;
        let interactive = self.config.chat.interactive || self.config.chat.interactive_first;
        let mut waits = self.config.chat.interactive_first;
        loop {
            if waits && !self.input()? {
                break;
            }
            waits = true;
            let answer = self.answer()?;
            if answer.end == End::Interrupted && !interactive {
                pages::print(b"\n")?;
                return Err(Failure::Interrupted);
            }
            if !interactive || answer.end == End::Length {
                break;
            }
        }
        // As llama.cpp ends its output.
        pages::print(b"\n\n")?;
        if self.config.prompt.cache_all {
            self.save()?;
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<Answer, Failure> {
        let request = self.session.request(self.tokens.clone());
        let answer = self.session.generate(request, &mut |part| pages::print(part.as_bytes()))?;
        self.tokens.extend(&answer.tokens);
        self.console.info("");
        self.console.info(&summary(&answer.timings));
        let wanted = self.config.prompt.predict.and_then(|wanted| usize::try_from(wanted).ok());
        let is_short = answer.end == End::Length && wanted.is_none_or(|wanted| answer.tokens.len() < wanted);
        if is_short && self.tokens.len() >= self.session.information.context as usize {
            self.console.warn("the context is full: -c makes it larger, --context-shift goes on without it");
        }
        Ok(answer)
    }

    /// Reads a line of the person and appends it. False at the end of the input.
    fn input(&mut self) -> Result<bool, Failure> {
        let chat = &self.config.chat;
        // Stop texts belong to the dialogue: they are what the person answers to.
        let asked = self.config.prompt.reverse.last().map(String::as_str).unwrap_or("");
        pages::print(format!("{asked}{}", chat.prefix).as_bytes())?;
        let Some(line) = files::read_line(&mut std::io::stdin().lock(), self.lines)? else {
            return Ok(false);
        };
        self.lines += 1;
        let tokenizer = &self.session.tokenizer;
        if chat.prefix_bos {
            self.tokens.extend(tokenizer.vocabulary().bos());
        }
        let text = format!("{asked}{}{line}{}", chat.prefix, chat.suffix);
        self.tokens.extend(tokenizer.encode(&text, false, true));
        Ok(true)
    }

    fn cache(&self) -> Option<&Path> {
        self.config.prompt.cache_file.as_deref()
    }

    /// The tokens of the saved prompt, if there is one.
    fn restore(&self) -> Result<Vec<u32>, Failure> {
        let Some(path) = self.cache().filter(|path| path.exists()) else { return Ok(Vec::new()) };
        let (mut file, bytes) = files::open_regular(path, self.session.saved_bytes())?;
        let restored = self.session.engine.restore(0, &mut file, bytes, Vec::new().into());
        restored.map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
    }

    /// Evaluates the prompt and saves it, unless the file has it already.
    fn save_prompt(&self) -> Result<(), Failure> {
        if self.cache().is_none() || self.config.prompt.cache_read_only {
            return Ok(());
        }
        if self.held()?.starts_with(&self.tokens) {
            return Ok(());
        }
        let request = puna_engine::Request { predict: 0, ..self.session.request(self.tokens.clone()) };
        let answer = self.session.generate(request, &mut |_| Ok(()))?;
        if answer.end == End::Interrupted {
            return Err(Failure::Interrupted);
        }
        let (tokens, speed) = (answer.timings.prompt_tokens, answer.timings.prompt_per_second());
        self.console.info(&format!("[ prompt to be saved: {tokens} tokens, {speed:.1} t/s ]"));
        self.save()
    }

    fn save(&self) -> Result<(), Failure> {
        let Some(path) = self.cache().filter(|_| !self.config.prompt.cache_read_only) else { return Ok(()) };
        let failed =
            |error: puna_engine::EngineError| Failure::Failed(format!("{}: {error}", path.display()));
        let mut file = Replacement::create(path)?;
        self.session.engine.save(0, file.writer()).map_err(failed)?;
        file.finish()
    }

    fn held(&self) -> Result<Vec<u32>, Failure> {
        self.session.engine.held(0).map_err(|error| Failure::Failed(error.to_string()))
    }
}
