//! Which slots get how many tokens of the next step. Pure.

/// What one slot would like to evaluate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Index of the slot.
    pub slot: usize,
    /// Tokens that wait, at least 1.
    pub pending: usize,
    /// The slot has generated before: its one pending token goes before any prompt.
    pub generating: bool,
    /// The slot must not share a step, because it is suspected of making steps fail.
    pub alone: bool,
}

/// What a step may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Tokens in one step.
    pub tokens: usize,
    /// Free cache cells.
    pub cells: usize,
}

/// What one slot gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Index of the slot.
    pub slot: usize,
    /// Tokens to evaluate, at least 1.
    pub tokens: usize,
}

/// Divides a step among the slots: a suspected slot runs alone; otherwise generating slots come first, in the
/// order given, and prompts divide the rest equally, so that a long prompt delays neither the generation of
/// others nor a short prompt. What a short prompt does not need, longer ones get.
pub fn schedule(demands: &[Demand], limits: Limits) -> Vec<Share> {
    let mut room = limits.tokens.min(limits.cells);
    let mut shares = Vec::new();
    let mut give = |demand: &Demand, tokens: usize, room: &mut usize| {
        let tokens = tokens.min(demand.pending).min(*room);
        if tokens > 0 {
            *room -= tokens;
            shares.push(Share { slot: demand.slot, tokens });
        }
    };
    if let Some(alone) = demands.iter().find(|demand| demand.alone) {
        give(alone, alone.pending, &mut room);
        return shares;
    }
    for demand in demands.iter().filter(|demand| demand.generating) {
        give(demand, demand.pending, &mut room);
    }
    let mut prompts: Vec<&Demand> = demands.iter().filter(|demand| !demand.generating).collect();
    prompts.sort_by_key(|demand| demand.pending);
    for (index, demand) in prompts.iter().enumerate() {
        let waiting = prompts.len() - index;
        give(demand, room.div_ceil(waiting), &mut room);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(slot: usize, pending: usize) -> Demand {
        Demand { slot, pending, generating: false, alone: false }
    }

    fn generating(slot: usize) -> Demand {
        Demand { slot, pending: 1, generating: true, alone: false }
    }

    fn check(demands: &[Demand], tokens: usize, cells: usize, expected: &[(usize, usize)]) {
        let shares = schedule(demands, Limits { tokens, cells });
        let found: Vec<_> = shares.iter().map(|share| (share.slot, share.tokens)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn one_prompt_in_chunks() {
        check(&[], 512, 4096, &[]);
        check(&[prompt(0, 1000)], 512, 4096, &[(0, 512)]);
        check(&[prompt(0, 488)], 512, 4096, &[(0, 488)]);
        check(&[prompt(0, 1)], 1, 1, &[(0, 1)]);
    }

    #[test]
    fn generation_goes_before_prompts() {
        let demands = [prompt(0, 1000), generating(1), generating(2)];
        check(&demands, 512, 4096, &[(1, 1), (2, 1), (0, 510)]);
        check(&demands, 2, 4096, &[(1, 1), (2, 1)]);
        check(&demands, 1, 4096, &[(1, 1)]);
    }

    #[test]
    fn prompts_divide_the_rest() {
        check(&[prompt(0, 1000), prompt(1, 1000)], 512, 4096, &[(0, 256), (1, 256)]);
        check(&[prompt(0, 1000), prompt(1, 10)], 512, 4096, &[(1, 10), (0, 502)]);
        check(&[prompt(0, 9), prompt(1, 9), prompt(2, 9)], 2, 99, &[(0, 1), (1, 1)]);
    }

    #[test]
    fn free_cells_limit_the_step() {
        check(&[prompt(0, 1000), generating(1)], 512, 5, &[(1, 1), (0, 4)]);
        check(&[generating(1)], 512, 0, &[]);
    }

    #[test]
    fn a_suspect_runs_alone() {
        let suspect = Demand { alone: true, ..prompt(3, 700) };
        check(&[generating(0), suspect, prompt(1, 5)], 512, 4096, &[(3, 512)]);
    }

    #[test]
    fn limits_hold_for_every_mixture() {
        for seed in 0..500usize {
            let demands: Vec<Demand> = (0..seed % 7)
                .map(|slot| match (seed / (slot + 1)) % 3 {
                    0 => generating(slot),
                    other => prompt(slot, 1 + seed * other % 97),
                })
                .collect();
            let limits = Limits { tokens: 1 + seed % 50, cells: seed % 61 };
            let shares = schedule(&demands, limits);
            let total: usize = shares.iter().map(|share| share.tokens).sum();
            let wanted: usize = demands.iter().map(|demand| demand.pending).sum();
            assert_eq!(total, wanted.min(limits.tokens).min(limits.cells), "nothing is left unused");
            for share in &shares {
                let demand = demands[share.slot];
                assert!(share.tokens >= 1 && share.tokens <= demand.pending);
            }
        }
    }
}
