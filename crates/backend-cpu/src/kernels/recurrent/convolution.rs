//! Short causal convolutions, and the row before.

use std::ops::Range;

use super::{Cells, Run};
use crate::isa::Features;
use crate::kernels::rows::{Rows, RowsMut};
use crate::kernels::vector::{Kernel, Vector, dispatch, load_upto, store_upto};

/// A convolution of each channel with the rows before.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// `[kernel, channels]`: the taps of all channels, the one of the current row last.
    pub taps: &'a [f32],
    /// One number per channel.
    pub bias: Option<&'a [f32]>,
    /// Number of taps, at least 1.
    pub kernel: usize,
    /// Rows from tap to tap.
    pub dilation: usize,
}

impl Convolution<'_> {
    /// Rows that are kept.
    fn kept(&self) -> usize {
        self.dilation * (self.kernel - 1)
    }

    /// Convolves the channels in `channels` for all rows of the runs. The state is `[kept, channels]`, oldest first. Panics
    /// if a length does not fit.
    ///
    /// # Safety
    /// Nobody else uses these channels of the state and of `y`.
    pub unsafe fn run(
        &self,
        features: Features,
        runs: &[Run],
        cells: Cells,
        x: Rows<'_>,
        y: &RowsMut<'_>,
        channels: Range<usize>,
    ) {
        let (width, kept) = (x.width(), self.kept());
        assert!(self.taps.len() == self.kernel * width && y.width() == width, "{} channels", width);
        assert!(cells.elements() == kept * width && channels.end <= width, "state of another size");
        assert!(self.bias.is_none_or(|bias| bias.len() == width), "bias of another size");
        for run in runs {
            // SAFETY: the channels of the state are ours.
            let history = unsafe { cells.begin(run, channels.start, channels.len(), width, kept) };
            for row in run.rows.clone() {
                let age = row - run.rows.start;
                let taps = (0..self.kernel).map(|tap| {
                    let back = self.dilation * (self.kernel - 1 - tap);
                    let source = match age.checked_sub(back) {
                        Some(_) => x.row(row - back),
                        // SAFETY: `back` is at most `kept` and more than `age`: one of the kept rows.
                        None => unsafe { history.add((kept + age - back) * width).cast_const() },
                    };
                    (source, self.taps[tap * width..].as_ptr())
                });
                let mut sources = [(std::ptr::null(), std::ptr::null()); MOST_TAPS];
                let mut start = 0;
                let mut taps = taps.peekable();
                while taps.peek().is_some() {
                    let mut count = 0;
                    for (to, from) in sources.iter_mut().zip(taps.by_ref()) {
                        (*to, count) = (from, count + 1);
                        if count == MOST_TAPS {
                            break;
                        }
                    }
                    let bias = self.bias.filter(|_| start == 0).map(<[f32]>::as_ptr);
                    let (sources, y) = (&sources[..count], y.row(row));
                    let adds = start > 0;
                    dispatch(features, Taps { sources, bias, y, adds, channels: channels.clone() });
                    start += count;
                }
            }
            // The last rows stay, oldest first; those that were kept move up.
            let count = run.rows.len();
            for place in 0..kept {
                let from = place + count;
                let source = match from.checked_sub(kept) {
                    Some(row) => x.row(run.rows.start + row),
                    // SAFETY: below `kept`, and above `place`: not yet overwritten.
                    None => unsafe { history.add(from * width).cast_const() },
                };
                // SAFETY: rows of `width` numbers; the two differ.
                unsafe {
                    let (source, to) =
                        (source.add(channels.start), history.add(place * width + channels.start));
                    std::ptr::copy_nonoverlapping(source, to, channels.len());
                }
            }
        }
    }
}

/// Taps that one pass over the channels adds up.
const MOST_TAPS: usize = 8;

/// Adds up a row's taps.
struct Taps<'a> {
    sources: &'a [(*const f32, *const f32)],
    bias: Option<*const f32>,
    y: *mut f32,
    adds: bool,
    channels: Range<usize>,
}

impl Kernel for Taps<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut channel = self.channels.start;
        while channel < self.channels.end {
            let count = self.channels.end - channel;
            // SAFETY: all pointers are rows with these channels.
            unsafe {
                let mut sum = match self.bias {
                    Some(bias) => load_upto::<V>(bias.add(channel), count),
                    None if self.adds => load_upto::<V>(self.y.add(channel), count),
                    None => V::splat(0.0),
                };
                for (source, taps) in self.sources {
                    let x = load_upto::<V>(source.add(channel), count);
                    sum = x.fma(load_upto::<V>(taps.add(channel), count), sum);
                }
                store_upto(sum, self.y.add(channel), count);
            }
            channel += V::LANES;
        }
    }
}

/// For each row the columns `columns` of the one before; the state is the last row.
///
/// # Safety
/// Nobody else uses these columns of the state and of `y`.
pub unsafe fn shift_rows(runs: &[Run], cells: Cells, x: Rows<'_>, y: &RowsMut<'_>, columns: Range<usize>) {
    assert!(cells.elements() == x.width() && y.width() == x.width() && columns.end <= x.width(), "widths");
    let (first, length) = (columns.start, columns.len());
    for run in runs {
        // SAFETY: the columns of the state and of `y` are ours.
        unsafe {
            let before = cells.begin(run, first, length, 0, 1);
            for row in run.rows.clone() {
                let source = if row == run.rows.start { before.cast_const() } else { x.row(row - 1) };
                std::ptr::copy_nonoverlapping(source.add(first), y.row(row).add(first), length);
            }
            let last = x.row(run.rows.end - 1);
            std::ptr::copy_nonoverlapping(last.add(first), before.add(first), length);
        }
    }
}
