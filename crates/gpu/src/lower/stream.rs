//! Products of a single row on devices whose weights come through rings in shared memory: several that follow each other are one
//! launch, so that the weights of one are fetched while another waits for its activations.

use super::products::{ACTIVATION_BYTES, GROUP_COLUMNS, PAIRS, Part, VECTOR_TILE};
use super::{Lowering, NULL, ONE, Pending, args};
use crate::{Extent, MatrixUnits, layout};

/// Warps that multiply, those that ask for copies, and the threads of all.
const WARPS: u32 = 8;
const COPIERS: u32 = 4;
const THREADS: u32 = 32 * (WARPS + COPIERS);
/// Products of one launch, at most.
const MOST_PRODUCTS: usize = 4;
/// Blocks of weights that a warp's ring has room for: at least, and wanted, which is what kernels need to take two at once.
const LEAST_BLOCKS: u32 = 2;
const WANTED_BLOCKS: u32 = 4;
/// Shared memory of these kernels besides activations and rings, and what the system takes for each block.
const OTHER: u32 = 4 << 10;
/// Rings begin at multiples of this.
const LINE: u32 = 128;
/// Where the arguments of a product have the number of matrices of the first layout.
const SPLIT: usize = 6;

/// A product that waits to be put into a launch, beside its arguments.
pub(super) struct Streamed {
    /// Names of its layouts; the second is the first if there is only one.
    layouts: [&'static str; 2],
    blocks: u32,
    activation_bytes: u32,
    block_bytes: u32,
}

impl Lowering<'_, '_> {
    /// How a product of one row streams, where the device can do that.
    pub(super) fn streamed(&self, parts: &[&Part], gated: bool) -> Option<Streamed> {
        let (first, last) = (&parts.first()?.matrix, &parts.last()?.matrix);
        if self.device.matrix_units() < MatrixUnits::Group || !first.layout.is_quantised() {
            return None;
        }
        let groups = first.columns.div_ceil(GROUP_COLUMNS);
        let block_bytes =
            parts.iter().map(|part| layout::TILE as u32 * part.matrix.row_bytes / groups).max()?;
        let tiles: u32 = match gated {
            true => first.rows.div_ceil(VECTOR_TILE),
            false => parts.iter().map(|part| part.matrix.rows.div_ceil(VECTOR_TILE)).sum(),
        };
        let streamed = Streamed {
            layouts: [first.layout.name, last.layout.name],
            blocks: tiles.clamp(1, self.device.processors()),
            activation_bytes: groups * GROUP_COLUMNS / 32 * ACTIVATION_BYTES,
            block_bytes,
        };
        self.ring(streamed.activation_bytes, block_bytes).map(|_| streamed)
    }

    /// Bytes of a warp's ring: in as much shared memory as lets another launch have the same at the same time, if that is enough, else
    /// what is wanted, as far as there is room.
    fn ring(&self, activation_bytes: u32, block_bytes: u32) -> Option<u32> {
        let ring = |room: u32| room.saturating_sub(activation_bytes + OTHER) / WARPS / LINE * LINE;
        let [least, wanted] =
            [LEAST_BLOCKS, WANTED_BLOCKS].map(|blocks| (blocks * block_bytes).next_multiple_of(LINE));
        let whole = self.device.shared_bytes();
        let ring = ring(whole / 2).max(ring(whole).min(wanted));
        (ring >= least).then_some(ring)
    }

    /// Puts products that follow each other into launches.
    pub(super) fn join_streams(&mut self) {
        let most = if self.device.blocks_meet() { MOST_PRODUCTS } else { 1 };
        let mut joined: Vec<Pending> = Vec::new();
        let mut waiting: Vec<(Pending, Streamed)> = Vec::new();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.streamed.take() {
                Some(streamed) => {
                    let all = waiting.iter().map(|(_, streamed)| streamed).chain(std::iter::once(&streamed));
                    // What was exchanged is read by what comes after it.
                    let exchanges = waiting.iter().any(|(pending, _)| !pending.exchanged.is_empty());
                    let fits = waiting.len() < most && !exchanges && self.together(all).is_some();
                    if !fits {
                        joined.extend(self.stream_launch(&mut waiting));
                    }
                    waiting.push((pending, streamed));
                }
                None => {
                    joined.extend(self.stream_launch(&mut waiting));
                    joined.push(pending);
                }
            }
        }
        joined.extend(self.stream_launch(&mut waiting));
        self.pending = joined;
    }

    /// How products are one launch, if they fit together.
    fn together<'s>(&self, products: impl Iterator<Item = &'s Streamed> + Clone) -> Option<Together> {
        let most = |of: fn(&Streamed) -> u32| products.clone().map(of).max();
        let (kernel, first_layout) = kernel(products.clone())?;
        let activation_bytes = most(|streamed| streamed.activation_bytes)?;
        let ring = self.ring(activation_bytes, most(|streamed| streamed.block_bytes)?)?;
        Some(Together {
            kernel,
            first_layout,
            blocks: most(|streamed| streamed.blocks)?,
            activation_bytes,
            ring,
        })
    }

    /// One launch of all that wait.
    fn stream_launch(&self, waiting: &mut Vec<(Pending, Streamed)>) -> Option<Pending> {
        let together = self.together(waiting.iter().map(|(_, streamed)| streamed))?;
        let Together { kernel, first_layout, blocks, activation_bytes, ring } = together;
        let mut arguments = args![waiting.len() as u32, ring, activation_bytes, self.around.counters];
        let single = arguments.len();
        let (mut length, mut exchanged) = (0, Vec::new());
        for (mut pending, streamed) in waiting.drain(..) {
            exchanged.append(&mut pending.exchanged);
            if streamed.layouts[0] != first_layout {
                pending.arguments[SPLIT] = 0_i32.into();
            }
            length = pending.arguments.len();
            arguments.extend(pending.arguments);
        }
        arguments.resize(single + MOST_PRODUCTS * length, NULL);
        Some(Pending {
            kernel: format!("stream_{kernel}"),
            grid: [Extent::Fixed(blocks), ONE, ONE],
            threads: THREADS,
            shared: activation_bytes + WARPS * ring,
            arguments,
            single,
            streamed: None,
            exchanged,
        })
    }
}

/// A launch of several products.
struct Together {
    kernel: String,
    first_layout: &'static str,
    blocks: u32,
    activation_bytes: u32,
    ring: u32,
}

/// The kernel for products with these layouts, and the first of its layouts.
fn kernel<'s>(products: impl Iterator<Item = &'s Streamed>) -> Option<(String, &'static str)> {
    let names: Vec<&'static str> = products.flat_map(|streamed| streamed.layouts).collect();
    let first = *names.first()?;
    if names.iter().all(|name| *name == first) {
        return Some((first.to_string(), first));
    }
    let (one, other) =
        PAIRS.iter().find(|(one, other)| names.iter().all(|name| name == one || name == other))?;
    Some((format!("{one}_{other}"), one))
}
