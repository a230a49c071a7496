//! A block at once, by a draft model that reads the model's states (DFlash, arXiv 2602.06036).
//!
//! The draft model's cache holds a row for each place of the text, made of the model's states there. A block is the text's
//! last token and masks after it; what the draft model says at each mask is the guess for that place.

use puna_runtime::{Batch, DraftHead, HeadKind, OutputRows, Work};

use super::draft_simple::likely;
use super::learned::Reader;
use super::room::make_room;
use super::{Evaluated, Proposer, SpeculationSettings, Text};
use crate::EngineError;
use crate::worker::guarded;

pub(super) struct DraftDflash {
    reader: Reader,
    mask: u32,
    most: usize,
    least: usize,
    probability: f32,
}

impl DraftDflash {
    /// None for a head that guesses otherwise.
    pub(super) fn new(head: DraftHead, settings: &SpeculationSettings) -> Option<Self> {
        let HeadKind::Block { size, mask } = head.kind() else { return None };
        Some(Self {
            reader: Reader::new(head, 0),
            mask,
            most: settings.draft_most.min(size.saturating_sub(1) as usize),
            least: settings.draft_least,
            probability: settings.draft_probability,
        })
    }

    /// Lets the draft model read the rows of sequences that it has not read, and then their blocks, each with its length.
    /// Returns the sequences that it had room for, with what came of them.
    fn read(
        &mut self,
        sequences: &[(usize, Option<(u32, usize)>)],
    ) -> Result<(Vec<usize>, puna_runtime::Outputs), EngineError> {
        let (mut rows, mut needs) =
            (Vec::with_capacity(sequences.len()), Vec::with_capacity(sequences.len()));
        for (sequence, block) in sequences {
            let unread = self.reader.unread(*sequence, None)?;
            needs.push((*sequence, unread.tokens.len() + block.map_or(0, |(_, masks)| 1 + masks)));
            rows.push(unread);
        }
        let kept = make_room(&mut self.reader, &needs);
        let (mut batch, mut features) = (Batch::default(), Vec::new());
        for ((sequence, block), rows) in sequences.iter().zip(rows) {
            if !kept.contains(sequence) {
                continue;
            }
            let number = *sequence as u32;
            batch.work.push(Work { sequence: number, tokens: rows.tokens, outputs: OutputRows::None });
            features.push(rows.features);
            if let Some((last, masks)) = block {
                let tokens = std::iter::once(*last).chain(std::iter::repeat_n(self.mask, *masks)).collect();
                batch.work.push(Work { sequence: number, tokens, outputs: OutputRows::All });
                features.push(Vec::new());
            }
        }
        let outputs = guarded(|| self.reader.head.run(&batch, &features))?;
        kept.iter().for_each(|sequence| self.reader.note_read(*sequence));
        Ok((kept, outputs.rows))
    }

    fn guess(&mut self, texts: &[Text<'_>]) -> Result<Vec<Vec<u32>>, EngineError> {
        let mut all = vec![Vec::new(); texts.len()];
        let (mut asked, mut blocks) = (Vec::new(), Vec::new());
        for (index, text) in texts.iter().enumerate() {
            let most = self.reader.room(text.sequence, text.tokens).min(text.most).min(self.most);
            let Some(last) = text.tokens.last().filter(|_| most > 0) else { continue };
            asked.push(index);
            blocks.push((text.sequence, Some((*last, most))));
        }
        if asked.is_empty() {
            return Ok(all);
        }
        let (kept, outputs) = self.read(&blocks)?;
        for index in asked.into_iter().filter(|index| kept.contains(&texts[*index].sequence)) {
            // The first row is that of a token that is known.
            let rows = outputs.of(texts[index].sequence as u32).skip(1);
            let tokens = rows
                .map_while(|row| likely(row, self.probability).and_then(|own| self.reader.head.token(own)));
            let tokens: Vec<u32> = tokens.collect();
            if tokens.len() >= self.least {
                all[index] = tokens;
            }
        }
        Ok(all)
    }
}

impl Proposer for DraftDflash {
    fn propose(&mut self, texts: &[Text<'_>]) -> Vec<Vec<u32>> {
        self.guess(texts).unwrap_or_else(|_| {
            self.reader.forget_all();
            vec![Vec::new(); texts.len()]
        })
    }

    fn learn(&mut self, evaluated: &Evaluated<'_>) {
        if self.reader.learn(evaluated) && self.read(&[(evaluated.sequence, None)]).is_err() {
            self.reader.forget_all();
        }
    }

    fn reads(&self) -> Option<u64> {
        Some(self.reader.head.weight_bytes())
    }
}
