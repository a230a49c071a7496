//! How far back a saved sequence can go.

use puna_graph::CacheGroup;

use crate::Model;

/// Lengths above 0 to which a sequence can be truncated after it was saved and restored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reach {
    /// Every length from this one on is possible.
    pub from: u32,
    /// Single lengths below that one, ascending.
    pub lengths: Vec<u32>,
}

impl Reach {
    /// The largest length up to `wanted`; 0 is always possible.
    pub fn longest(&self, wanted: u32) -> u32 {
        if wanted >= self.from {
            return wanted;
        }
        let below = self.lengths.partition_point(|length| *length <= wanted);
        below.checked_sub(1).map_or(0, |index| self.lengths[index])
    }

    /// Whether what this one says of a sequence serves wherever the other one does.
    pub fn covers(&self, other: &Reach) -> bool {
        self.from <= other.from && other.lengths.iter().all(|length| self.longest(*length) == *length)
    }
}

impl Model {
    /// How far back the sequence could go if it was saved now and restored into a model of which others use their share.
    pub fn reach(&self, sequence: u32) -> Reach {
        if !self.exists(sequence) {
            return Reach::default();
        }
        let mut reach = Reach { from: 0, lengths: Vec::new() };
        let mut recurrent = None;
        for ledger in self.timed() {
            match ledger.group() {
                CacheGroup::Recurrent => recurrent = Some(ledger.restorable(sequence)),
                _ => reach.from = reach.from.max(ledger.earliest(sequence).unsigned_abs()),
            }
        }
        if let Some(mut lengths) = recurrent {
            lengths.retain(|length| *length >= reach.from);
            reach = Reach { from: u32::MAX, lengths };
        }
        reach
    }
}

#[cfg(test)]
mod tests {
    use super::Reach;

    #[test]
    fn lengths_that_can_be_used() {
        let any = Reach::default();
        let window = Reach { from: 90, lengths: Vec::new() };
        let states = Reach { from: u32::MAX, lengths: vec![96, 100, 130] };
        let longest = |reach: &Reach| [0, 89, 90, 97, 120, 130, 200].map(|wanted| reach.longest(wanted));
        assert_eq!(longest(&any), [0, 89, 90, 97, 120, 130, 200]);
        assert_eq!(longest(&window), [0, 0, 90, 97, 120, 130, 200]);
        assert_eq!(longest(&states), [0, 0, 0, 96, 100, 130, 130]);
        assert!(any.covers(&window) && any.covers(&states) && any.covers(&any) && states.covers(&states));
        assert!(!window.covers(&any) && !states.covers(&window) && window.covers(&states));
        let later = Reach { from: u32::MAX, lengths: vec![100, 130, 200] };
        assert!(!later.covers(&states) && !states.covers(&later));
    }
}
