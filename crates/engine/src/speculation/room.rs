//! Room in the cache of what guesses.

/// A cache that follows the texts of an engine's sequences.
pub(super) trait Room {
    /// Sequences that it may hold.
    fn sequences(&self) -> usize;
    /// Cells that nothing holds.
    fn free(&mut self) -> usize;
    /// Gives up what it holds of a sequence.
    fn forget(&mut self, sequence: usize);
}

/// Makes room for so many cells more of each of these sequences: what others hold is forgotten first, then of the asked ones
/// those that need most, which do without a guess. Returns the ones that there is room for.
pub(super) fn make_room(cache: &mut impl Room, needs: &[(usize, usize)]) -> Vec<usize> {
    let mut kept: Vec<(usize, usize)> = needs.to_vec();
    let needed = |kept: &[(usize, usize)]| kept.iter().map(|(_, cells)| cells).sum::<usize>();
    for sequence in 0..cache.sequences() {
        if cache.free() >= needed(&kept) {
            break;
        }
        if !needs.iter().any(|(asked, _)| *asked == sequence) {
            cache.forget(sequence);
        }
    }
    while cache.free() < needed(&kept) {
        let largest = kept.iter().enumerate().max_by_key(|(_, (_, cells))| *cells);
        let Some(index) = largest.map(|(index, _)| index) else { break };
        let (sequence, _) = kept.remove(index);
        cache.forget(sequence);
    }
    kept.into_iter().map(|(sequence, _)| sequence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Cells {
        held: Vec<usize>,
        all: usize,
    }

    impl Room for Cells {
        fn sequences(&self) -> usize {
            self.held.len()
        }
        fn free(&mut self) -> usize {
            self.all - self.held.iter().sum::<usize>()
        }
        fn forget(&mut self, sequence: usize) {
            self.held[sequence] = 0;
        }
    }

    #[test]
    fn others_go_first_and_then_those_that_need_most() {
        type Case<'a> = (&'a [(usize, usize)], &'a [usize], [usize; 3]);
        let cases: [Case<'_>; 6] = [
            (&[(0, 20)], &[0], [30, 30, 20]),
            (&[(0, 30)], &[0], [30, 0, 20]),
            (&[(0, 75)], &[], [0, 0, 0]),
            // The second needs more than there is: only it does without.
            (&[(0, 5), (1, 60), (2, 5)], &[0, 2], [30, 0, 20]),
            (&[(0, 15), (1, 16)], &[0, 1], [30, 30, 0]),
            (&[], &[], [30, 30, 20]),
        ];
        for (needs, kept, held) in cases {
            let mut cells = Cells { held: vec![30, 30, 20], all: 100 };
            assert_eq!(make_room(&mut cells, needs), kept, "{needs:?}");
            assert_eq!(cells.held, held, "{needs:?}");
        }
    }
}
