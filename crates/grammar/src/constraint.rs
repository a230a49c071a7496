//! Grammars of all kinds, and texts that follow them.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use crate::gbnf::automaton::Automaton;
use crate::gbnf::follower::Follower;
use crate::gbnf::mask::Compiled;
use crate::gbnf::parser;
use crate::guided::{self, Guided};
use crate::lazy::{Triggers, Waiting};
use crate::tokens::allows;
use crate::{GrammarError, Patience, Tokens, Trigger, lark, schema};

/// A compiled grammar for the tokens of one model. Cheap to copy.
#[derive(Clone)]
pub struct Grammar {
    tokens: Arc<Tokens>,
    kind: Arc<Kind>,
    triggers: Option<Arc<Triggers>>,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("lazy", &self.triggers.is_some()).finish_non_exhaustive()
    }
}

enum Kind {
    Gbnf(Arc<Compiled>),
    Guided(Box<std::sync::Mutex<Guided>>),
}

impl Grammar {
    /// A grammar in GBNF, or in Lark if its text begins with `%llguidance`.
    pub fn new(text: &str, tokens: &Arc<Tokens>) -> Result<Self, GrammarError> {
        if lark::is_lark(text) {
            return Self::lark(text, tokens);
        }
        let parsed = parser::parse(text, tokens)?;
        let compiled = Arc::new(Compiled::new(Automaton::new(&parsed, tokens.longest())?, tokens.clone()));
        // A grammar too ambiguous to begin with is refused here.
        Follower::new(compiled.clone())?;
        Ok(Self { tokens: tokens.clone(), kind: Arc::new(Kind::Gbnf(compiled)), triggers: None })
    }

    /// A grammar in llguidance's variant of Lark.
    pub fn lark(text: &str, tokens: &Arc<Tokens>) -> Result<Self, GrammarError> {
        lark::check(text)?;
        Self::guided("Lark grammar", TopLevelGrammar::from_lark(text.to_owned()), tokens)
    }

    /// Texts that match a regular expression as a whole.
    pub fn regex(pattern: &str, tokens: &Arc<Tokens>) -> Result<Self, GrammarError> {
        Self::guided("regular expression", TopLevelGrammar::from_regex(pattern), tokens)
    }

    /// JSON that a schema allows.
    pub fn json_schema(schema: &Value, tokens: &Arc<Tokens>) -> Result<Self, GrammarError> {
        let guided = schema::compile(schema, tokens)?;
        Ok(Self::from_guided(guided, tokens))
    }

    fn guided(
        kind: &'static str,
        grammar: TopLevelGrammar,
        tokens: &Arc<Tokens>,
    ) -> Result<Self, GrammarError> {
        let guided = guided::compile(grammar, tokens);
        let guided = guided.map_err(|problem| GrammarError::Compile { kind, problem })?;
        Ok(Self::from_guided(guided, tokens))
    }

    fn from_guided(guided: Guided, tokens: &Arc<Tokens>) -> Self {
        let kind = Arc::new(Kind::Guided(Box::new(std::sync::Mutex::new(guided))));
        Self { tokens: tokens.clone(), kind, triggers: None }
    }

    /// The same grammar, but everything is allowed until one of the triggers occurs.
    pub fn lazy(self, triggers: &[Trigger]) -> Result<Self, GrammarError> {
        self.lazy_with(triggers, Patience::default())
    }

    /// The same with more said about when triggers count.
    pub fn lazy_with(self, triggers: &[Trigger], patience: Patience) -> Result<Self, GrammarError> {
        let triggers = Some(Arc::new(Triggers::new(triggers, patience, &self.tokens)?));
        Ok(Self { triggers, ..self })
    }

    /// The tokens that it was compiled for.
    pub fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// A text that follows it, at its beginning.
    pub fn constraint(&self) -> Result<Constraint, GrammarError> {
        let engine = match &*self.kind {
            Kind::Gbnf(compiled) => Engine::Gbnf(Box::new(Follower::new(compiled.clone())?)),
            Kind::Guided(guided) => {
                // It is only ever copied, so a panic has left nothing half done.
                let guided = guided.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                Engine::Guided(Box::new(guided.clone()))
            }
        };
        let waiting = self.triggers.as_ref().map(|_| Waiting::default());
        Ok(Constraint {
            tokens: self.tokens.clone(),
            triggers: self.triggers.clone(),
            engine,
            mask: vec![0; self.tokens.words()],
            fresh: false,
            waiting,
            begun: 0,
        })
    }
}

#[derive(Clone)]
enum Engine {
    Gbnf(Box<Follower>),
    Guided(Box<Guided>),
}

impl Engine {
    fn mask(&mut self, tokens: &Tokens, mask: &mut [u32]) -> Result<(), GrammarError> {
        match self {
            Self::Gbnf(follower) => follower.mask(mask),
            Self::Guided(guided) => guided.mask(tokens, mask),
        }
    }

    fn accept(&mut self, tokens: &Tokens, token: u32) -> Result<(), GrammarError> {
        match self {
            Self::Gbnf(follower) => follower.accept(token),
            Self::Guided(guided) => guided.accept(tokens, token),
        }
    }

    fn reset(&mut self) -> Result<(), GrammarError> {
        match self {
            Self::Gbnf(follower) => follower.reset(),
            Self::Guided(guided) => guided.reset(),
        }
    }
}

/// How far one text is that follows a [`Grammar`]. Copies go their own ways.
#[derive(Clone)]
pub struct Constraint {
    tokens: Arc<Tokens>,
    triggers: Option<Arc<Triggers>>,
    engine: Engine,
    mask: Vec<u32>,
    /// The mask is that of the present place.
    fresh: bool,
    /// The text before a trigger; none once the grammar has begun.
    waiting: Option<Waiting>,
    /// Tokens accepted since the grammar began, which may have begun with several at once.
    begun: usize,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Constraint {
    /// The tokens that may come next: bit `t % 32` of word `t / 32` for token `t`. Tokens that end the text are
    /// among them exactly where it may end. `None` if everything is allowed, because no trigger has occurred.
    ///
    /// The result is remembered, so asking again costs nothing.
    pub fn mask(&mut self) -> Result<Option<&[u32]>, GrammarError> {
        if self.waiting.is_some() {
            return Ok(None);
        }
        if !self.fresh {
            self.mask.fill(0);
            self.engine.mask(&self.tokens, &mut self.mask)?;
            self.fresh = true;
        }
        Ok(Some(&self.mask))
    }

    /// Goes on with this token. An error if the grammar does not allow it; the place is then as before.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if let (Some(waiting), Some(triggers)) = (&mut self.waiting, self.triggers.clone()) {
            let empty: &[u8] = &[];
            let bytes = self.tokens.get(token).map_or(empty, |token| &token.bytes);
            let Some(begin) = waiting.accept(&triggers, token, bytes) else { return Ok(()) };
            let lenient = triggers.patience.lenient;
            let mut tokens = self.split(&begin.rest);
            tokens.extend(begin.tokens);
            match tokens.iter().try_for_each(|token| self.engine.accept(&self.tokens, *token)) {
                Ok(()) => (self.waiting, self.begun, self.fresh) = (None, tokens.len(), false),
                Err(GrammarError::NotAllowed { .. }) if lenient => {
                    self.engine.reset()?;
                    self.waiting.iter_mut().for_each(Waiting::pass);
                }
                Err(error) => return Err(error),
            }
            return Ok(());
        }
        // The mask knows already, if it was asked for.
        if self.fresh && !allows(&self.mask, token) {
            return Err(GrammarError::NotAllowed { token });
        }
        self.engine.accept(&self.tokens, token)?;
        self.begun += 1;
        self.fresh = false;
        Ok(())
    }

    /// Tokens that make up these bytes: always the longest that fits.
    fn split(&self, mut bytes: &[u8]) -> Vec<u32> {
        let mut tokens = Vec::new();
        while !bytes.is_empty() {
            let fits = |token: &crate::Token| {
                !token.control && !token.end && !token.bytes.is_empty() && bytes.starts_with(&token.bytes)
            };
            let longest = self
                .tokens
                .iter()
                .filter(|(_, token)| fits(token))
                .max_by_key(|(_, token)| token.bytes.len());
            // Bytes that no token has are none of the grammar's business: no token could continue them either.
            let Some((token, entry)) = longest else { break };
            tokens.push(token);
            bytes = bytes.get(entry.bytes.len()..).unwrap_or_default();
        }
        tokens
    }

    /// Whether the text may end here. A grammar that has not begun does not mind.
    pub fn is_complete(&mut self) -> Result<bool, GrammarError> {
        match &mut self.engine {
            _ if self.waiting.is_some() => Ok(true),
            Engine::Gbnf(follower) => Ok(follower.is_complete()),
            Engine::Guided(guided) => guided.is_complete(),
        }
    }

    /// Whether the grammar has begun: always, unless it is lazy.
    pub fn has_begun(&self) -> bool {
        self.waiting.is_none()
    }

    /// Takes the last `count` tokens back. At least the last 256 can be; not across the beginning of a lazy
    /// grammar.
    pub fn rollback(&mut self, count: usize) -> Result<(), GrammarError> {
        let known = self.waiting.as_ref().map_or(self.begun, Waiting::len);
        if self.triggers.is_some() && count > known {
            return Err(GrammarError::Rollback { asked: count, known });
        }
        self.fresh = false;
        match (&mut self.waiting, &mut self.engine) {
            (Some(waiting), _) => waiting.rollback(count),
            (None, Engine::Gbnf(follower)) => follower.rollback(count)?,
            (None, Engine::Guided(guided)) => guided.rollback(count)?,
        }
        if self.waiting.is_none() {
            self.begun -= count;
        }
        Ok(())
    }

    /// Goes back to the beginning.
    pub fn reset(&mut self) -> Result<(), GrammarError> {
        self.fresh = false;
        self.begun = 0;
        self.waiting = self.triggers.as_ref().map(|_| Waiting::default());
        self.engine.reset()
    }
}
