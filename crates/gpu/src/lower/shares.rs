//! What members of a divided device do with the rows of a matrix that are theirs: where their share of a product goes, and how
//! it comes together with those of the others.

use std::sync::Arc;

use puna_backend::BackendError;
use puna_backend::arena::SlotId;
use puna_graph::{Operand, Symbol, ValueId};

use super::{Arg, Lowering, NULL, THREADS, args};
use crate::weights::Matrix;
use crate::{Address, Argument, Blocks, BufferId};

/// Numbers that a thread of the kernel that joins shares takes at once.
const AT_ONCE: u32 = 4;

/// Blocks whose place is not known yet.
pub(super) struct Exchanged {
    pub(super) slot: SlotId,
    room: u32,
    rows: (Symbol, u32),
    firsts: Arc<[u32]>,
}

impl Exchanged {
    /// When it is.
    pub(super) fn blocks(&self, buffer: BufferId, offset: u64) -> Blocks {
        let Self { room, rows, ref firsts, .. } = *self;
        Blocks { address: Address { buffer, offset }, room, rows, firsts: firsts.clone() }
    }
}

/// Where a product goes.
pub(super) struct Target {
    /// For the kernel.
    pub(super) out: Arg,
    /// What the kernel adds.
    pub(super) residual: Arg,
    value: ValueId,
    exchanged: Option<Exchanged>,
    /// What is added later.
    later: Option<Arg>,
}

impl Lowering<'_, '_> {
    /// Where the product with a matrix goes, of so many rows; `residual` is a value to add.
    pub(super) fn target(
        &mut self,
        value: ValueId,
        matrix: &Matrix,
        rows: (Symbol, u32),
        residual: Option<SlotId>,
    ) -> Target {
        let at = |slot: Option<SlotId>, bytes: u64| slot.map_or(NULL, |slot| Arg::Slot(slot, bytes));
        let Some(share) = &matrix.share else {
            let out = self.value_slot(value).into();
            return Target { out, residual: at(residual, 0), value, exchanged: None, later: None };
        };
        let room = self.rows(rows.0) * rows.1;
        let first = 4 * u64::from(room) * u64::from(share.first);
        // The blocks of a single row are the row.
        let slot = match room {
            1 => self.value_slot(value),
            _ => self.scratch(4 * room as usize * share.all_rows() as usize),
        };
        let exchanged = Some(Exchanged { slot, room, rows, firsts: share.firsts.clone() });
        let (now, later) = match room {
            1 => (at(residual, first), None),
            _ => (NULL, Some(at(residual, 0))),
        };
        Target { out: Arg::Slot(slot, first), residual: now, value, exchanged, later }
    }

    /// The numbers of a bias that belong to the rows of a matrix that are here.
    pub(super) fn bias(&mut self, bias: Option<&Operand>, matrix: &Matrix) -> Result<Arg, BackendError> {
        let first = matrix.share.as_ref().map_or(0, |share| 4 * u64::from(share.first));
        Ok(match self.optional(bias)? {
            Arg::Slot(slot, bytes) => Arg::Slot(slot, bytes + first),
            Arg::Known(Argument::Address(address)) => address.plus(first).into(),
            other => other,
        })
    }

    /// Members get what they lack of the products that the last launch made.
    pub(super) fn exchange(&mut self, targets: Vec<Target>) -> Result<(), BackendError> {
        let mut joined = Vec::new();
        let task = self.pending.len().saturating_sub(1);
        for target in targets {
            let Some(exchanged) = target.exchanged else { continue };
            if let Some(residual) = target.later {
                let Exchanged { slot, room, rows, ref firsts } = exchanged;
                joined.push((target.value, slot, room, rows, firsts.clone(), residual));
            }
            self.arena.touch(exchanged.slot, task);
            if let Some(pending) = self.pending.last_mut() {
                pending.exchanged.push(exchanged);
            }
        }
        for (value, slot, room, (symbol, times), firsts, residual) in joined {
            let width = firsts.last().copied().unwrap_or(0);
            let bytes = firsts.iter().flat_map(|first| first.to_le_bytes()).collect();
            let firsts = self.constant(bytes)?;
            let out = self.value_slot(value);
            let rows = Arg::Known(Argument::Rows(symbol, times));
            let arguments = args![slot, firsts, room, residual, out, rows, width];
            let grid = self.elements(symbol, (times * width).div_ceil(AT_ONCE));
            self.launch("join_shares", grid, THREADS, 0, arguments);
        }
        Ok(())
    }
}
