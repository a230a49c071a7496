//! The chunks of a text: where they begin, and which of their rows count.

use crate::failure::Failure;
use puna_flags::Config;

/// Which tokens are evaluated and which of them count.
pub struct Plan {
    pub(super) tokens: Vec<u32>,
    /// Replaces the first token of each chunk.
    first: Option<u32>,
    /// Tokens of a chunk, at least 2.
    pub length: u32,
    /// Tokens between the starts of two chunks.
    step: u32,
    /// First row of a chunk whose prediction counts; it has seen this many tokens before it.
    pub(super) scored: u32,
    /// Whole chunks that are evaluated, at least 1.
    pub chunks: usize,
}

impl Plan {
    /// Chunks of this length that do not overlap, as many as are whole, at most `most` unless that is negative.
    pub fn chunks_of(length: u32, tokens: Vec<u32>, first: Option<u32>, most: i32) -> Result<Self, Failure> {
        let chunks = tokens.len() / length.max(1) as usize;
        if length < 2 || chunks == 0 {
            return Err(Failure::Failed(format!(
                "the text has {} tokens, which is no whole chunk of {length} (-c)",
                tokens.len()
            )));
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(Self { tokens, first, length, step: length, scored: length / 2, chunks: chunks.min(most) })
    }

    /// Chunks as the flags of `perplexity` describe them, at most `--chunks` of them.
    pub(super) fn new(
        config: &Config,
        length: u32,
        tokens: Vec<u32>,
        first: Option<u32>,
    ) -> Result<Self, Failure> {
        let failed = |text: String| Err(Failure::Failed(text));
        let stride = config.perplexity.stride;
        let length = length.saturating_add(stride / 2);
        if length < 2 || stride >= length {
            return failed(format!("a chunk of {length} tokens is too short for a stride of {stride}"));
        }
        let (whole, count) = (length as usize, tokens.len());
        let (step, scored, chunks) = if stride == 0 {
            if count < 2 * whole {
                return failed(format!(
                    "the text has {count} tokens, but a context of {length} (-c) needs at least {}",
                    2 * whole
                ));
            }
            (length, length / 2, count / whole)
        } else {
            if count <= whole {
                return failed(format!("the text has {count} tokens, but more than {length} are needed"));
            }
            (stride, length - stride - 1, (count - whole).div_ceil(stride as usize))
        };
        let most = usize::try_from(config.perplexity.chunks).unwrap_or(usize::MAX);
        Ok(Self { tokens, first, length, step, scored, chunks: chunks.min(most) })
    }

    /// Chunks that are evaluated side by side.
    pub fn sequences(&self, batch: u32) -> u32 {
        (batch / self.length).clamp(1, u32::try_from(self.chunks.max(1)).unwrap_or(u32::MAX))
    }

    /// Index of a chunk's first token.
    pub(super) fn start(&self, chunk: usize) -> usize {
        chunk * self.step as usize
    }

    /// The tokens of a chunk as they are given to the model.
    pub fn chunk(&self, chunk: usize) -> Vec<u32> {
        let start = self.start(chunk);
        let end = (start + self.length as usize).min(self.tokens.len());
        let mut tokens = self.tokens.get(start..end).unwrap_or(&[]).to_vec();
        if let (Some(token), Some(first)) = (tokens.first_mut(), self.first) {
            *token = first;
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(length: u32, stride: u32, tokens: u32, chunks: i32) -> Result<Plan, Failure> {
        let mut config = Config::default();
        (config.perplexity.stride, config.perplexity.chunks) = (stride, chunks);
        Plan::new(&config, length, (0..tokens).collect(), Some(99))
    }

    #[test]
    fn chunks_follow_one_another_or_overlap() {
        let whole = plan(4, 0, 11, -1).unwrap();
        assert_eq!((whole.chunks, whole.scored, whole.step), (2, 2, 4));
        assert_eq!(whole.chunk(1), [99, 5, 6, 7]);
        assert_eq!(plan(4, 0, 11, 1).unwrap().chunks, 1);
        assert_eq!((whole.sequences(2048), whole.sequences(7), whole.sequences(1)), (2, 1, 1));
        let strided = plan(4, 2, 11, -1).unwrap();
        assert_eq!((strided.length, strided.chunks, strided.scored, strided.step), (5, 3, 2, 2));
        assert_eq!(strided.chunk(2), [99, 5, 6, 7, 8]);
        for (length, stride, tokens) in [(4, 0, 7), (4, 2, 5), (1, 0, 9), (0, 0, 9), (4, 9, 99)] {
            assert!(plan(length, stride, tokens, -1).is_err(), "{length} {stride} {tokens}");
        }
    }
}
