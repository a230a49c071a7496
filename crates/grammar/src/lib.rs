//! Constraints on what a model may write: grammars in GBNF and Lark, JSON schemas, regular expressions.
//!
//! A [`Grammar`] is compiled for the [`Tokens`] of a model. A [`Constraint`] follows one text: it says which
//! tokens may come next ([`Constraint::mask`]) and is told which one came ([`Constraint::accept`]).
//!
//! GBNF is matched by automata of this crate ([`gbnf`](crate) says how), the others by llguidance. Everything is
//! bounded: a grammar that would need too much memory or time is refused, or ends its own text with an error.
#![forbid(unsafe_code)]

mod budget;
mod check;
mod constraint;
mod error;
mod gbnf;
mod guided;
mod lark;
mod lazy;
mod schema;
mod tokens;

pub use budget::{Budget, Countdown};
pub use check::{Mismatch, check};
pub use constraint::{Constraint, Grammar};
pub use error::GrammarError;
pub use lazy::{Passage, Patience, Trigger};
pub use schema::{lark as lark_schema, prepare as prepare_schema};
pub use tokens::{Token, Tokens, allows};
