//! Infill: for filling gaps in code. Ends the text where the model is not sure how to go on, and merges
//! candidates of which one is the beginning of another.

use std::sync::Arc;

use super::{Sampler, SamplerSpec};
use crate::Candidates;

pub(super) const SPEC: SamplerSpec = SamplerSpec {
    name: "infill",
    aliases: &[],
    letter: 'i',
    build: |parameters| {
        let texts = parameters.infill_texts.clone()?;
        Some(Box::new(Infill { texts }))
    },
};

/// What infill has to know about the tokens.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct InfillTexts {
    /// Text of each token.
    pub pieces: Vec<Vec<u8>>,
    /// Tokens that end the text.
    pub end_of_generation: Vec<u32>,
    /// The one that is chosen where nothing is probable enough.
    pub end_of_turn: Option<u32>,
}

/// More candidates than this are not compared with each other; chains have top-k or top-p before.
const MOST: usize = 512;
/// Share of the probability below which a continuation is not sure.
const SURE: f32 = 0.2;

struct Infill {
    texts: Arc<InfillTexts>,
}

impl Sampler for Infill {
    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.normalise();
        candidates.sort_best(MOST);
        let ends = |token: u32| self.texts.end_of_generation.contains(&token);
        let sum_of = |end: bool, candidates: &mut Candidates| -> f32 {
            candidates
                .items()
                .iter()
                .filter(|item| ends(item.token) == end)
                .map(|item| item.probability)
                .sum()
        };
        let (end, text) = (sum_of(true, candidates), sum_of(false, candidates));
        if 3.0 * end * candidates.len() as f32 > text {
            return candidates.retain(|item| ends(item.token));
        }
        candidates.keep_best(MOST);
        let mut probabilities: Vec<(u32, f32)> =
            candidates.items().iter().map(|item| (item.token, item.probability)).collect();
        self.merge(&mut probabilities);
        probabilities.retain(|(token, probability)| *probability >= SURE || ends(*token));
        let sure = probabilities.iter().filter(|(token, _)| !ends(*token)).count();
        if sure == 0 {
            return self.end(candidates);
        }
        let sum: f32 = probabilities.iter().map(|(_, probability)| probability).sum();
        let threshold = 1.0 / (sure + 1) as f32;
        probabilities.retain(|(token, probability)| probability / sum >= threshold || ends(*token));
        candidates.retain(|item| probabilities.iter().any(|(token, _)| *token == item.token));
    }
}

impl Infill {
    /// Adds up the probabilities of tokens of which one begins with the other, at the more probable of both.
    fn merge(&self, all: &mut [(u32, f32)]) {
        let piece = |token: u32| self.texts.pieces.get(token as usize).map_or(&[][..], Vec::as_slice);
        for first in 0..all.len() {
            for second in 0..all.len() {
                if all[first].1 == 0.0 {
                    break;
                }
                let (short, long) = (piece(all[first].0), piece(all[second].0));
                if first == second || all[second].1 == 0.0 || short.is_empty() || !long.starts_with(short) {
                    continue;
                }
                let (to, from) = if all[second].1 > all[first].1 { (second, first) } else { (first, second) };
                all[to].1 += all[from].1;
                all[from].1 = 0.0;
            }
        }
    }

    /// Only the end of the text stays; without such a token the best candidate does.
    fn end(&self, candidates: &mut Candidates) {
        match self.texts.end_of_turn {
            Some(token) => candidates.set_only(token),
            None => candidates.keep_best(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameters;

    /// Tokens: 0 "re", 1 "return", 2 "x", 3 end, 4 "y".
    fn left(weights: &[f32]) -> Vec<u32> {
        let pieces = ["re", "return", "x", "", "y"].map(|text| text.as_bytes().to_vec()).to_vec();
        let texts = InfillTexts { pieces, end_of_generation: vec![3], end_of_turn: Some(3) };
        let parameters = Parameters { infill_texts: Some(Arc::new(texts)), ..Parameters::default() };
        let logits: Vec<f32> = weights.iter().map(|weight| weight.ln()).collect();
        let mut candidates = Candidates::new(&logits).unwrap();
        (SPEC.build)(&parameters).unwrap().apply(&mut candidates);
        let mut tokens: Vec<u32> = candidates.items().iter().map(|item| item.token).collect();
        tokens.sort_unstable();
        tokens
    }

    #[test]
    fn values_by_hand() {
        // 3 * 0.1 * 5 > 0.9: the end is probable enough.
        assert_eq!(left(&[0.3, 0.2, 0.3, 0.1, 0.1]), [3]);
        // "re" and "return" merge at "return" (0.15 + 0.45); "x" has 0.2 <= 1/3 of the rest.
        assert_eq!(left(&[0.15, 0.45, 0.2, 0.01, 0.19]), [1, 3]);
        // "x" with 0.4 stays beside the merged 0.55: both are above 1/3.
        assert_eq!(left(&[0.1, 0.45, 0.4, 0.01, 0.04]), [1, 2, 3]);
    }

    #[test]
    fn ends_where_nothing_is_sure() {
        let pieces = (0..20).map(|n: u8| vec![b'a' + n]).collect();
        let texts = InfillTexts { pieces, end_of_generation: vec![19], end_of_turn: Some(19) };
        let parameters = Parameters { infill_texts: Some(Arc::new(texts)), ..Parameters::default() };
        let mut logits = vec![0.0; 20];
        logits[19] = -20.0;
        let mut candidates = Candidates::new(&logits).unwrap();
        (SPEC.build)(&parameters).unwrap().apply(&mut candidates);
        assert_eq!(candidates.items().iter().map(|item| item.token).collect::<Vec<_>>(), [19]);
        assert!((SPEC.build)(&Parameters::default()).is_none());
    }
}
