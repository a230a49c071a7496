//! A conversation with a model: on a terminal with line editing, on pipes one message a line.

mod commands;
mod conversation;
mod input;
pub mod template;

pub use conversation::{Conversation, Role};
pub use template::Renderer;

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::session::{Answer, End, Session, summary};

use input::{Input, Line};
use puna_engine::Timings;
use puna_flags::Config;
use puna_grammar::{Budget, Tokens};
use puna_server::grammar_tokens;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

/// Whether the model's file has a chat template.
pub fn has_template(session: &Session) -> bool {
    match &session.template {
        Ok(text) => text.as_deref().is_some_and(|text| !text.is_empty()),
        // What is there is no text; using it says so.
        Err(_) => true,
    }
}

/// A running chat.
pub struct Chat<'a> {
    session: &'a Session,
    console: &'a Console,
    renderer: Renderer,
    conversation: Conversation,
    /// Text of files that goes before the next message.
    attached: String,
    totals: Totals,
    limit: Option<Limit>,
    show_timings: bool,
    /// Drop the oldest messages when the context is too small for all.
    forget: bool,
    single_turn: bool,
    simple_io: bool,
    multiline: bool,
    display: bool,
    colour: bool,
}

/// How long answers may reason.
struct Limit {
    tokens: Arc<Tokens>,
    most: usize,
    message: String,
}

/// Sums over all answers.
#[derive(Clone, Copy, Default)]
struct Totals {
    answers: u32,
    last: Timings,
    sum: Timings,
}

/// Whether the chat goes on.
#[derive(PartialEq, Eq, Debug)]
enum Flow {
    On,
    Exit,
}

impl<'a> Chat<'a> {
    /// A chat as the flags describe it.
    pub fn new(
        invocation: &Invocation,
        session: &'a Session,
        config: &Config,
        console: &'a Console,
    ) -> Result<Self, Failure> {
        let mut conversation = Conversation::default();
        let system = match &config.chat.system_file {
            Some(path) => Some(crate::files::read_text(path, crate::files::PROMPT)?),
            None => config.chat.system.clone(),
        };
        conversation.set_system(system.filter(|system| !system.is_empty()));
        Ok(Self {
            session,
            console,
            renderer: Renderer::new(invocation, session, &config.chat, console)?,
            conversation,
            attached: String::new(),
            totals: Totals::default(),
            limit: config.chat.reasoning_budget.map(|most| Limit {
                tokens: grammar_tokens(&session.tokenizer),
                most: most as usize,
                message: config.chat.reasoning_budget_message.clone(),
            }),
            show_timings: config.chat.show_timings,
            forget: config.context.shift,
            single_turn: config.chat.single_turn,
            simple_io: config.chat.simple_io,
            multiline: config.chat.multiline_input,
            display: config.prompt.display,
            colour: console::colour(config.chat.color, io::stdout().is_terminal()),
        })
    }

    /// Answers the first message, if there is one, then reads messages: until the end of the input, or one
    /// only. With a first message and an input that is no terminal nothing is read, because such an input may
    /// never end.
    pub fn run(&mut self, first: Option<String>) -> Result<(), Failure> {
        let (reads, shows) = (io::stdin().is_terminal(), io::stdout().is_terminal());
        if let Some(first) = first {
            if shows && self.display {
                let shown = first.trim_end().replace('\n', "\n  ");
                self.print(&format!("{}\n", self.paint("\x1b[1;32m", &format!("> {shown}"))))?;
            }
            let result = self.respond(first);
            if self.single_turn || !reads {
                return result;
            }
            self.report(result)?;
        }
        let interactive = reads && shows;
        if interactive && !self.single_turn {
            self.console.info("type a message, /help for commands; Ctrl-C stops an answer, Ctrl-D leaves");
        }
        let mut input =
            Input::new(interactive && !self.simple_io, shows && reads, self.multiline, self.colour);
        loop {
            let message = match input.read()? {
                Line::End => break,
                Line::Text(message) => message,
            };
            if message.trim().is_empty() && self.attached.is_empty() {
                continue;
            }
            match self.take(&message) {
                Ok(Flow::Exit) => break,
                Ok(Flow::On) => {}
                Err(failure) if self.single_turn || !reads => return Err(failure),
                failed => self.report(failed.map(drop))?,
            }
            if self.single_turn && self.totals.answers > 0 {
                break;
            }
        }
        input.save();
        Ok(())
    }

    /// Obeys a command or answers a message.
    fn take(&mut self, message: &str) -> Result<Flow, Failure> {
        if let Some(command) = message.strip_prefix('/') {
            return commands::obey(self, command);
        }
        self.respond(message.to_string())?;
        Ok(Flow::On)
    }

    /// In a conversation that goes on, a failure is a line and no end.
    fn report(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        match result {
            Err(Failure::Failed(message)) => {
                console::error(&message);
                Ok(())
            }
            other => other,
        }
    }

    /// Adds a message and its answer. If there is no answer, the message is not kept either.
    fn respond(&mut self, message: String) -> Result<(), Failure> {
        self.conversation.push(Role::User, std::mem::take(&mut self.attached) + &message);
        let answered = self.answer();
        if answered.is_err() {
            self.conversation.pop(Role::User);
        }
        answered
    }

    /// Answers the last message.
    fn answer(&mut self) -> Result<(), Failure> {
        let prompt = self.prompt()?;
        let mut request = self.session.request(prompt);
        // Each answer draws anew, so that another try differs, and all are determined by the first seed.
        request.sampling.seed = self.session.seed().wrapping_add(self.totals.answers);
        if let Some(limit) = &self.limit
            && let Some(passage) = self.renderer.passage(&self.conversation)?
        {
            let closing = format!("{}{}", limit.message, passage.end);
            let closing = self.session.tokenizer.encode(&closing, false, true);
            request.reasoning = Some(Budget::new(&limit.tokens, passage, limit.most, closing));
        }
        let mut out = io::stdout();
        let mut ended = true;
        let mut show = |text: &str| {
            out.write_all(text.as_bytes())?;
            out.flush()?;
            ended = text.ends_with('\n');
            Ok(())
        };
        let answer = self.session.generate(request, &mut show)?;
        if !ended || answer.text.is_empty() {
            self.print("\n")?;
        }
        self.conversation.push(Role::Assistant, answer.text.clone());
        self.after(&answer);
        match answer.end {
            End::Interrupted if self.single_turn || !io::stdin().is_terminal() => Err(Failure::Interrupted),
            _ => Ok(()),
        }
    }

    /// What there is to say after an answer.
    fn after(&mut self, answer: &Answer) {
        self.totals.answers += 1;
        self.totals.last = answer.timings;
        let sum = &mut self.totals.sum;
        sum.prompt_tokens += answer.timings.prompt_tokens;
        sum.cached_tokens += answer.timings.cached_tokens;
        sum.prompt += answer.timings.prompt;
        sum.generated_tokens += answer.timings.generated_tokens;
        sum.generation += answer.timings.generation;
        sum.guessed_tokens += answer.timings.guessed_tokens;
        sum.accepted_tokens += answer.timings.accepted_tokens;
        match answer.end {
            End::Complete => {}
            End::Interrupted => self.note("(stopped)"),
            End::Length => {
                let held = answer.timings.cached_tokens
                    + answer.timings.prompt_tokens
                    + answer.timings.generated_tokens;
                if held > self.session.information.context as usize {
                    self.note("(the context is full: /clear starts over, -c makes it larger)");
                }
            }
        }
        if self.show_timings {
            self.note(&summary(&answer.timings));
        }
    }

    /// The tokens of the conversation; without its oldest messages if those are too many and may be dropped.
    fn prompt(&mut self) -> Result<Vec<u32>, Failure> {
        let context = self.session.information.context as usize;
        // Room for an answer, too.
        let room = context - context / 4;
        loop {
            let tokens = self.renderer.tokens(&self.session.tokenizer, &self.conversation)?;
            if !self.forget || tokens.len() <= room || !self.conversation.forget_oldest() {
                return Ok(tokens);
            }
        }
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }

    /// Something beside the conversation.
    fn note(&self, text: &str) {
        self.console.aside(text, self.colour && io::stderr().is_terminal());
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("{code}{text}\x1b[0m") } else { text.to_string() }
    }
}
