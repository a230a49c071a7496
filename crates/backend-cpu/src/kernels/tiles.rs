//! The tile registers of the matrix unit (AMX), and products of tiles.

use super::dots;
use std::arch::asm;
use std::arch::x86_64::*;

/// Rows of a tile of the first factor, and of a tile of sums.
const ROWS: usize = 16;

/// The tile registers, configured until dropped.
pub(super) struct Tiles;

impl Tiles {
    /// Gives each register its rows and the bytes of a row. Needs AMX and the system's permission, which a caller with
    /// [`crate::isa::Features::amx`] has.
    pub(super) fn configure(shapes: [(u8, u16); 8]) -> Self {
        #[repr(C, align(64))]
        struct Configuration {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (index, (rows, bytes)) in shapes.into_iter().enumerate() {
            (configuration.rows[index], configuration.row_bytes[index]) = (rows, bytes);
        }
        // SAFETY: the 64 bytes describe tiles that the architecture has.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly, preserves_flags));
        }
        Self
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: no tile is in use any more.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// A block of 32 tokens by one or two groups of rows, over some columns.
pub(super) struct Block {
    /// The first tile of 16 tokens, and the bytes to that of the next 16.
    pub(super) x: *const u8,
    pub(super) next_x: usize,
    /// The first tile of a group of rows, and the bytes to that of the next group.
    pub(super) weights: *const u8,
    pub(super) next_weights: usize,
    /// Tiles to multiply, one after the other in memory; at least one.
    pub(super) steps: usize,
    /// 32 tokens by 32 rows of sums to add to, or null.
    pub(super) from: *const f32,
}

impl Block {
    /// What [`Block::multiply_two`] does where the numbers are integers of 16 bits: sums of products are multiplied by what 1 stands
    /// for in each token (the first of `units`, 32 numbers) and in each row (the second).
    ///
    /// # Safety
    /// All tiles named and the units are valid memory.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn multiply_two_words(&self, units: [*const f32; 2], out: *mut f32, stride: usize) {
        // SAFETY: forwarded from the caller; rows of the first factor have 64 bytes in a tile.
        unsafe {
            let row_units = [0, ROWS].map(|row| _mm512_loadu_ps(units[1].add(row)));
            for token in (0..2 * ROWS).step_by(dots::ROWS) {
                let mut sums = [[_mm512_setzero_si512(); dots::ROWS]; 2];
                let x = self.x.add(token / ROWS * self.next_x + token % ROWS * 64);
                let weights = [self.weights, self.weights.add(self.next_weights)];
                dots::add_words(x, weights, self.steps, &mut sums);
                for t in 0..dots::ROWS {
                    let unit = _mm512_set1_ps(*units[0].add(token + t));
                    for group in 0..2 {
                        let factor = _mm512_mul_ps(unit, row_units[group]);
                        let sum = _mm512_cvtepi32_ps(sums[group][t]);
                        let sum = if self.from.is_null() {
                            _mm512_mul_ps(sum, factor)
                        } else {
                            let place = self.from.add((token + t) * 2 * ROWS + group * ROWS);
                            _mm512_fmadd_ps(sum, factor, _mm512_loadu_ps(place))
                        };
                        _mm512_storeu_ps(out.add((token + t) * stride + group * ROWS), sum);
                    }
                }
            }
        }
    }

    /// Writes 32 rows for each of 32 tokens to `out`, whose tokens are `stride` numbers apart.
    ///
    /// # Safety
    /// Tiles are configured, and all tiles named are valid memory.
    pub(super) unsafe fn multiply_two(&self, out: *mut f32, stride: usize) {
        // SAFETY: forwarded from the caller.
        unsafe {
            asm!(
                "test {from}, {from}",
                "jnz 3f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 2f",
                "3:",
                "tileloadd tmm0, [{from} + {line} * 2]",
                "tileloadd tmm1, [{from} + {line} * 2 + 64]",
                "tileloadd tmm2, [{from} + {line} * 2 + 2048]",
                "tileloadd tmm3, [{from} + {line} * 2 + 2112]",
                "2:",
                "tileloadd tmm4, [{x0} + {line}]",
                "tileloadd tmm6, [{w0} + {line}]",
                "tileloadd tmm7, [{w1} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{x1} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {x0}, 1024",
                "add {x1}, 1024",
                "add {w0}, 1024",
                "add {w1}, 1024",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{y0} + {stride}], tmm0",
                "tilestored [{y0} + {stride} + 64], tmm1",
                "tilestored [{y1} + {stride}], tmm2",
                "tilestored [{y1} + {stride} + 64], tmm3",
                x0 = inout(reg) self.x => _,
                x1 = inout(reg) self.x.add(self.next_x) => _,
                w0 = inout(reg) self.weights => _,
                w1 = inout(reg) self.weights.add(self.next_weights) => _,
                steps = inout(reg) self.steps => _,
                line = in(reg) 64_usize,
                from = in(reg) self.from,
                y0 = in(reg) out,
                y1 = in(reg) out.add(ROWS * stride),
                stride = in(reg) stride * 4,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }

    /// Writes 16 rows for each of 32 tokens.
    ///
    /// # Safety
    /// As for [`Block::multiply_two`].
    pub(super) unsafe fn multiply_one(&self, out: *mut f32, stride: usize) {
        // SAFETY: forwarded from the caller.
        unsafe {
            asm!(
                "test {from}, {from}",
                "jnz 3f",
                "tilezero tmm0",
                "tilezero tmm2",
                "jmp 2f",
                "3:",
                "tileloadd tmm0, [{from} + {line} * 2]",
                "tileloadd tmm2, [{from} + {line} * 2 + 2048]",
                "2:",
                "tileloadd tmm4, [{x0} + {line}]",
                "tileloadd tmm6, [{w0} + {line}]",
                "tileloadd tmm5, [{x1} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "add {x0}, 1024",
                "add {x1}, 1024",
                "add {w0}, 1024",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{y0} + {stride}], tmm0",
                "tilestored [{y1} + {stride}], tmm2",
                x0 = inout(reg) self.x => _,
                x1 = inout(reg) self.x.add(self.next_x) => _,
                w0 = inout(reg) self.weights => _,
                steps = inout(reg) self.steps => _,
                line = in(reg) 64_usize,
                from = in(reg) self.from,
                y0 = in(reg) out,
                y1 = in(reg) out.add(ROWS * stride),
                stride = in(reg) stride * 4,
                out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack)
            );
        }
    }
}
