//! JSON schemas, Lark grammars and regular expressions, through llguidance.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::GrammarError;
use crate::tokens::{Tokens, allow};

/// Stack of the thread that compiles: the compiler calls itself for parts within parts.
const STACK: usize = 256 << 20;
/// Parts of rules that one mask may look at: about 20,000 take a millisecond.
const MOST_ITEMS: usize = 400_000;
/// Longest token in bytes that the library can hold.
const MOST_BYTES: usize = 4096;

/// Strings of JSON, which most tokens belong to: masks of these are made beforehand.
fn slices() -> Vec<String> {
    llguidance::earley::SlicedBiasComputer::json_slices()
}

/// The library's view of the tokens, made once.
pub(crate) fn factory(tokens: &Tokens) -> Result<&ParserFactory, GrammarError> {
    let made = tokens.factory.get_or_init(|| make(tokens));
    made.as_ref().map_err(|problem| GrammarError::Matcher { problem: problem.clone() })
}

fn make(tokens: &Tokens) -> Result<ParserFactory, String> {
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    let mut words: Vec<Vec<u8>> = tokens
        .iter()
        .map(|(_, token)| match token.control || token.end {
            // Never a part of text, only by its name in a Lark grammar.
            true => [&[marker][..], &token.bytes].concat(),
            false if token.bytes.len() > MOST_BYTES => Vec::new(),
            false => token.bytes.clone(),
        })
        .collect();
    let mut ends = tokens.ends().to_vec();
    if ends.is_empty() {
        // There has to be one; masks are cut off before it.
        ends.push(words.len() as u32);
        words.push([&[marker][..], b"<end>"].concat());
    }
    let end = ends.first().copied().unwrap_or_default();
    let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words).with_eos_tokens(&ends);
    let environment: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices())
        .map_err(|error| error.to_string())?;
    factory.quiet();
    let limits = factory.limits_mut();
    limits.verbose_errors = false;
    // An object with three hundred properties that may all be left out needs more than the library's 50,000.
    limits.step_max_items = MOST_ITEMS;
    Ok(factory)
}

/// Compiles, on a thread with a large stack. The message of an error is one line.
pub(crate) fn compile(grammar: TopLevelGrammar, tokens: &Tokens) -> Result<Guided, String> {
    let factory = factory(tokens).map_err(|error| error.to_string())?;
    let work = || {
        let parser = factory.create_parser(grammar).map_err(|error| message(&error.to_string()))?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(message(&error)),
            None => Ok(matcher),
        }
    };
    let matcher = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| error.to_string())?;
        thread.join().unwrap_or_else(|_| Err("the compiler failed".into()))
    })?;
    Ok(Guided { matcher, ended: None, accepted: 0 })
}

fn message(text: &str) -> String {
    text.split('\n').map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown error").to_owned()
}

/// How far a text is.
pub(crate) struct Guided {
    matcher: Matcher,
    /// The number of accepted tokens when one that ends the text was accepted.
    ended: Option<usize>,
    accepted: usize,
}

impl Clone for Guided {
    fn clone(&self) -> Self {
        // Independent of the original, also in its caches, so that both can be used at the same time.
        Self { matcher: self.matcher.deep_clone(), ended: self.ended, accepted: self.accepted }
    }
}

fn failed(error: impl std::fmt::Display) -> GrammarError {
    GrammarError::Matcher { problem: message(&error.to_string()) }
}

impl Guided {
    pub(crate) fn mask(&mut self, tokens: &Tokens, mask: &mut [u32]) -> Result<(), GrammarError> {
        if self.ended.is_some() {
            return Ok(());
        }
        let found = self.matcher.compute_mask_or_eos().map_err(failed)?;
        for (word, found) in mask.iter_mut().zip(found.as_slice()) {
            *word |= found;
        }
        // The library knows more tokens than there are if none ends the text.
        if let Some(last) = mask.last_mut()
            && !tokens.len().is_multiple_of(32)
        {
            *last &= (1 << (tokens.len() % 32)) - 1;
        }
        let complete = self.is_complete()?;
        for &token in tokens.ends() {
            match complete {
                true => allow(mask, token),
                false => {
                    if let Some(word) = mask.get_mut(token as usize / 32) {
                        *word &= !(1 << (token % 32));
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_complete(&mut self) -> Result<bool, GrammarError> {
        Ok(self.ended.is_some() || self.matcher.is_accepting().map_err(failed)?)
    }

    pub(crate) fn accept(&mut self, tokens: &Tokens, token: u32) -> Result<(), GrammarError> {
        let refused = GrammarError::NotAllowed { token };
        let Some(entry) = tokens.get(token).filter(|_| self.ended.is_none()) else { return Err(refused) };
        if entry.end {
            if !self.is_complete()? {
                return Err(refused);
            }
            self.ended = Some(self.accepted);
        } else {
            // Nothing may be accepted after a failure, so it is asked for first.
            if self.matcher.is_stopped() || self.matcher.validate_tokens(&[token]).map_err(failed)? == 0 {
                return Err(refused);
            }
            self.matcher.consume_token(token).map_err(failed)?;
        }
        self.accepted += 1;
        Ok(())
    }

    pub(crate) fn rollback(&mut self, count: usize) -> Result<(), GrammarError> {
        if count > self.accepted {
            return Err(GrammarError::Rollback { asked: count, known: self.accepted });
        }
        self.accepted -= count;
        let mut in_library = count;
        if self.ended.is_some_and(|ended| ended >= self.accepted) {
            self.ended = None;
            in_library -= 1;
        }
        match in_library {
            0 => Ok(()),
            count => self.matcher.rollback(count).map_err(failed),
        }
    }

    pub(crate) fn reset(&mut self) -> Result<(), GrammarError> {
        (self.ended, self.accepted) = (None, 0);
        self.matcher.reset().map_err(failed)
    }
}
