//! Whether a whole text follows a grammar, and where it stops doing so.

use crate::{Grammar, GrammarError, allows};

/// Where a text leaves its grammar.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Offset in bytes of the first byte that is not allowed; the length of the text if it ends too early.
    pub offset: usize,
    /// Bytes that would have been allowed there.
    pub expected: Vec<u8>,
    /// The text could have ended there.
    pub end_expected: bool,
}

impl Mismatch {
    /// What would have been allowed, in words.
    pub fn expected_text(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut at = 0;
        while let Some(first) = self.expected.get(at) {
            let run =
                self.expected[at..].iter().zip(*first..).take_while(|(byte, next)| *byte == next).count();
            let last = self.expected.get(at + run - 1).unwrap_or(first);
            parts.push(match (first, last) {
                (128.., _) => "other characters".into(),
                (first, last) if run < 3 => (*first..=*last).map(name).collect::<Vec<_>>().join(" "),
                (first, 128..) => format!("{} to {} and other characters", name(*first), name(127)),
                (first, last) => format!("{} to {}", name(*first), name(*last)),
            });
            at += run;
        }
        parts.dedup();
        if self.end_expected {
            parts.push("the end of the text".into());
        }
        if parts.is_empty() { "nothing: the grammar has no way on".into() } else { parts.join(", ") }
    }
}

fn name(byte: u8) -> String {
    match byte {
        b'\n' => "\\n".into(),
        b'\r' => "\\r".into(),
        b'\t' => "\\t".into(),
        b' ' => "blank".into(),
        0x21..0x7f => char::from(byte).to_string(),
        _ => format!("\\x{byte:02X}"),
    }
}

/// Checks a text against a grammar that was compiled for [`crate::Tokens::bytes`].
pub fn check(grammar: &Grammar, text: &[u8]) -> Result<Option<Mismatch>, GrammarError> {
    let mut constraint = grammar.constraint()?;
    for (offset, byte) in text.iter().enumerate() {
        match constraint.accept(u32::from(*byte)) {
            Ok(()) => {}
            Err(GrammarError::NotAllowed { .. }) => return mismatch(constraint, offset).map(Some),
            Err(error) => return Err(error),
        }
    }
    if constraint.is_complete()? { Ok(None) } else { mismatch(constraint, text.len()).map(Some) }
}

fn mismatch(mut constraint: crate::Constraint, offset: usize) -> Result<Mismatch, GrammarError> {
    let end_expected = constraint.is_complete()?;
    let mask = constraint.mask()?.unwrap_or_default();
    let expected = (0..=u8::MAX).filter(|byte| allows(mask, u32::from(*byte))).collect();
    Ok(Mismatch { offset, expected, end_expected })
}
