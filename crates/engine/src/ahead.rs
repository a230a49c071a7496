//! Masks of grammars, computed on a thread of their own while the model computes the logits that they are for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use puna_grammar::{Constraint, Grammar, GrammarError};

use crate::EngineError;

type Prepared = Result<Constraint, GrammarError>;

enum Task {
    /// A text begins.
    Begin(Grammar, Sender<Prepared>),
    /// A text goes on with a token.
    Accept(Box<Constraint>, u32, Sender<Prepared>),
}

/// The thread, started when the first grammar comes.
#[derive(Default)]
pub(crate) struct Ahead {
    running: Option<(Sender<Task>, JoinHandle<()>)>,
}

/// A constraint whose next mask is being computed.
pub(crate) struct Pending(Receiver<Prepared>);

impl Ahead {
    fn send(&mut self, task: Task) -> Result<(), EngineError> {
        if self.running.is_none() {
            let (sender, tasks) = channel();
            let thread = std::thread::Builder::new().name("grammar".into());
            let thread = thread.spawn(move || serve(&tasks)).map_err(EngineError::Thread)?;
            self.running = Some((sender, thread));
        }
        // A thread that has ended shows when the result is waited for.
        if let Some((sender, _)) = &self.running {
            let _ = sender.send(task);
        }
        Ok(())
    }

    /// Begins a text that follows the grammar.
    pub(crate) fn begin(&mut self, grammar: &Grammar) -> Result<Pending, EngineError> {
        let (reply, prepared) = channel();
        self.send(Task::Begin(grammar.clone(), reply))?;
        Ok(Pending(prepared))
    }

    /// Goes on with a token.
    pub(crate) fn accept(&mut self, constraint: Constraint, token: u32) -> Result<Pending, EngineError> {
        let (reply, prepared) = channel();
        self.send(Task::Accept(Box::new(constraint), token, reply))?;
        Ok(Pending(prepared))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.running.take() {
            drop(sender);
            // It catches panics itself; there is nothing to hand on.
            let _ = thread.join();
        }
    }
}

impl Pending {
    /// The constraint with its mask.
    pub(crate) fn wait(self) -> Result<Constraint, EngineError> {
        let ended = GrammarError::Matcher { problem: "its thread has ended".into() };
        self.0.recv().unwrap_or(Err(ended)).map_err(EngineError::Grammar)
    }
}

fn serve(tasks: &Receiver<Task>) {
    while let Ok(task) = tasks.recv() {
        let (reply, work): (_, Box<dyn FnOnce() -> Prepared>) = match task {
            Task::Begin(grammar, reply) => (reply, Box::new(move || grammar.constraint())),
            Task::Accept(mut constraint, token, reply) => {
                (reply, Box::new(move || constraint.accept(token).map(|()| *constraint)))
            }
        };
        let prepare = || {
            let mut constraint = work()?;
            constraint.mask()?;
            Ok(constraint)
        };
        let failed = || Err(GrammarError::Matcher { problem: "internal error".into() });
        // A request that is gone does not wait for its mask.
        let _ = reply.send(catch_unwind(AssertUnwindSafe(prepare)).unwrap_or_else(|_| failed()));
    }
}
