//! Which slots get how many tokens of the next step. Pure.

/// What one slot would like to evaluate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// Index of the slot.
    pub slot: usize,
    /// Tokens that wait, at least 1.
    pub pending: usize,
    /// Guessed tokens that could be checked after them.
    pub guessed: usize,
    /// Lower for requests that go first: those that came earlier, or matter more.
    pub arrival: u64,
    /// The slot has generated before, and what waits is its last token, or what was right of a guess: it goes before any
    /// prompt.
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
    /// Guessed tokens in one step.
    pub guessed: usize,
}

/// What one slot gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Index of the slot.
    pub slot: usize,
    /// Tokens to evaluate, at least 1.
    pub tokens: usize,
    /// Guessed tokens to check after them.
    pub guessed: usize,
}

/// Divides a step among the slots: a suspected slot runs alone; otherwise generating slots come first, those with least
/// waiting before others, else in the order given. Half of the rest is for the prompt that came first, so that none waits for ever shorter ones; the other
/// half prompts divide equally, so that a long one delays neither the generation of others nor a short prompt. What a
/// short prompt does not need, longer ones get. Guesses divide what is left then.
pub fn schedule(demands: &[Demand], limits: Limits) -> Vec<Share> {
    let mut room = limits.tokens.min(limits.cells);
    let mut shares = Vec::new();
    let mut give = |demand: &Demand, tokens: usize, room: &mut usize| {
        let tokens = tokens.min(demand.pending).min(*room);
        if tokens > 0 {
            *room -= tokens;
            shares.push(Share { slot: demand.slot, tokens, guessed: 0 });
        }
    };
    if let Some(alone) = demands.iter().find(|demand| demand.alone) {
        give(alone, alone.pending, &mut room);
        return shares;
    }
    let mut generating: Vec<&Demand> = demands.iter().filter(|demand| demand.generating).collect();
    generating.sort_by_key(|demand| demand.pending);
    for demand in generating {
        give(demand, demand.pending, &mut room);
    }
    let mut prompts: Vec<Demand> = demands.iter().filter(|demand| !demand.generating).copied().collect();
    let oldest = prompts.iter_mut().min_by_key(|demand| demand.arrival);
    let promised = oldest.map(|oldest| {
        let promised = oldest.pending.min(room / 2);
        oldest.pending -= promised;
        (oldest.slot, promised)
    });
    room -= promised.map_or(0, |(_, promised)| promised);
    prompts.sort_by_key(|demand| demand.pending);
    for (index, demand) in prompts.iter().enumerate() {
        let waiting = prompts.len() - index;
        let first = promised.filter(|(slot, _)| *slot == demand.slot).map_or(0, |(_, promised)| promised);
        let tokens = room.div_ceil(waiting).min(demand.pending).min(room);
        room -= tokens;
        if tokens + first > 0 {
            shares.push(Share { slot: demand.slot, tokens: tokens + first, guessed: 0 });
        }
    }
    let mut room = room.min(limits.guessed);
    let guessed = |share: &Share| {
        let demand = demands.iter().find(|demand| demand.slot == share.slot);
        demand.filter(|demand| demand.pending == share.tokens).map_or(0, |demand| demand.guessed)
    };
    let mut guesses: Vec<(usize, usize)> =
        shares.iter().map(guessed).enumerate().filter(|(_, guessed)| *guessed > 0).collect();
    guesses.sort_by_key(|(_, guessed)| *guessed);
    let count = guesses.len();
    for (index, (share, guessed)) in guesses.into_iter().enumerate() {
        shares[share].guessed = guessed.min(room.div_ceil(count - index)).min(room);
        room -= shares[share].guessed;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(slot: usize, pending: usize) -> Demand {
        Demand { slot, pending, guessed: 0, arrival: slot as u64, generating: false, alone: false }
    }

    fn generating(slot: usize) -> Demand {
        Demand { slot, pending: 1, guessed: 0, arrival: 0, generating: true, alone: false }
    }

    fn check(demands: &[Demand], tokens: usize, cells: usize, expected: &[(usize, usize)]) {
        let shares = schedule(demands, Limits { tokens, cells, guessed: 0 });
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
        // What was right of a guess, evaluated again, waits for no prompt, and delays nobody's next token.
        let again = Demand { pending: 6, ..generating(0) };
        check(
            &[prompt(3, 10), again, generating(1), generating(2)],
            512,
            4096,
            &[(1, 1), (2, 1), (0, 6), (3, 10)],
        );
        check(&[prompt(3, 10), again, generating(1), generating(2)], 5, 4096, &[(1, 1), (2, 1), (0, 3)]);
    }

    #[test]
    fn prompts_divide_the_rest() {
        check(&[prompt(0, 1000), prompt(1, 1000)], 512, 4096, &[(0, 384), (1, 128)]);
        check(&[prompt(1, 1000), prompt(0, 1000)], 512, 4096, &[(0, 384), (1, 128)]);
        check(&[prompt(0, 1000), prompt(1, 10)], 512, 4096, &[(1, 10), (0, 502)]);
        check(&[prompt(0, 10), prompt(1, 1000), prompt(2, 1000)], 512, 4096, &[(0, 10), (1, 251), (2, 251)]);
        check(&[prompt(0, 9), prompt(1, 9), prompt(2, 9)], 2, 99, &[(0, 2)]);
        check(&[prompt(0, 9), prompt(1, 9)], 1, 99, &[(0, 1)]);
    }

    #[test]
    fn free_cells_limit_the_step() {
        check(&[prompt(0, 1000), generating(1)], 512, 5, &[(1, 1), (0, 4)]);
        check(&[generating(1)], 512, 0, &[]);
    }

    #[test]
    fn guesses_get_what_is_left() {
        let guessing = |slot, guessed| Demand { guessed, ..generating(slot) };
        let check = |demands: &[Demand], tokens, cells, guessed, expected: &[usize]| {
            let shares = schedule(demands, Limits { tokens, cells, guessed });
            let found: Vec<_> = shares.iter().map(|share| share.guessed).collect();
            assert_eq!(found, expected);
        };
        let demands = [guessing(0, 3), generating(1), guessing(2, 20), guessing(3, 20)];
        check(&demands, 512, 512, 64, &[3, 0, 20, 20]);
        check(&demands, 512, 512, 23, &[3, 0, 10, 10]);
        check(&demands, 14, 512, 64, &[3, 0, 4, 3]);
        check(&demands, 512, 4, 64, &[0, 0, 0, 0]);
        check(&[prompt(0, 100), guessing(1, 5)], 64, 512, 64, &[0, 0]);
        check(&[prompt(0, 10), guessing(1, 5)], 64, 512, 64, &[5, 0]);
        check(&[Demand { alone: true, ..guessing(0, 5) }], 64, 512, 64, &[0]);
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
            let limits = Limits { tokens: 1 + seed % 50, cells: seed % 61, guessed: 0 };
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
