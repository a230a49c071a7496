//! GBNF: reading it ([`parser`]), automata of its rules ([`automaton`]), following a text ([`sets`]) and the
//! tokens that may come next ([`mask`]).

pub(crate) mod automaton;
pub(crate) mod follower;
pub(crate) mod mask;
pub(crate) mod parser;
pub(crate) mod ranges;
pub(crate) mod sets;
