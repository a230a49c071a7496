//! Token by token what followed the last ones, in a table of fixed size that all texts share.

use super::followed::{Followed, key};
use super::{Proposer, SpeculationSettings, Text};

/// Places of the table: 16 MiB, of which only what is used becomes real memory.
const PLACES: usize = 1 << 22;

pub(super) struct NgramMod {
    size: usize,
    least: usize,
    most: usize,
    /// One more than the token that followed; 0 for none. Later ones overwrite earlier ones.
    table: Vec<u32>,
    texts: Followed<()>,
}

fn place(tokens: &[u32]) -> usize {
    key(tokens) as usize % PLACES
}

impl NgramMod {
    pub(super) fn new(settings: &SpeculationSettings) -> Self {
        Self {
            size: settings.mod_match.max(1),
            least: settings.mod_least,
            most: settings.mod_most,
            table: vec![0; PLACES],
            texts: Followed::default(),
        }
    }

    fn guess(&mut self, text: &Text<'_>) -> Vec<u32> {
        let (size, table) = (self.size, &mut self.table);
        self.texts.follow(text, |(), before, token| {
            if let (Some(from), Some(stored)) = (before.len().checked_sub(size), token.checked_add(1)) {
                table[place(&before[from..])] = stored;
            }
        });
        let Some(from) = text.tokens.len().checked_sub(size) else { return Vec::new() };
        let mut tokens = text.tokens[from..].to_vec();
        // A guess that is cut because less pays is still as good as its whole.
        while tokens.len() - size < self.most.max(self.least) {
            let Some(token) = table[place(&tokens[tokens.len() - size..])].checked_sub(1) else { break };
            tokens.push(token);
        }
        let mut guess = tokens.split_off(size);
        if guess.len() < self.least {
            guess.clear();
        }
        guess.truncate(self.most.min(text.most));
        guess
    }
}

impl Proposer for NgramMod {
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        texts.iter().map(|text| self.guess(text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_learn_from_each_other() {
        let settings =
            SpeculationSettings { mod_match: 2, mod_least: 3, mod_most: 4, ..SpeculationSettings::default() };
        let mut all = NgramMod::new(&settings);
        let mut guess =
            |sequence, tokens: &[u32], most| all.propose(&[Text { sequence, tokens, most }]).remove(0);
        assert!(guess(0, &[1, 2, 3, 4, 5, 6, 7, 8], 9).is_empty());
        assert_eq!(guess(1, &[9, 1, 2], 9), [3, 4, 5, 6]);
        assert_eq!(guess(1, &[9, 1, 2], 2), [3, 4]);
        assert_eq!(guess(2, &[4, 5], 9), [6, 7, 8]);
        assert!(guess(2, &[5, 6], 9).is_empty(), "two are too few");
    }
}
