//! Rows taken in turns, 16 bytes of each at a time, and memory written past the caches.

use super::layout::GROUP;

/// 16 bytes of each row of a group.
pub(super) type Tile = [[u8; 16]; GROUP];

/// A cache line.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub(super) struct Line(pub(super) [u8; 64]);

/// The lines of a tile: of every unit of `N` bytes those of the 16 rows, one unit after the other. `N` is 2 or 4.
#[inline(always)]
pub(super) fn interleave<const N: usize>(tile: &Tile) -> [Line; 4] {
    const { assert!(N == 2 || N == 4) };
    #[cfg(target_arch = "x86_64")]
    return lanes::interleave::<N>(tile);
    #[cfg(not(target_arch = "x86_64"))]
    plain::<N>(tile)
}

/// What [`interleave`] does, byte by byte.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn plain<const N: usize>(tile: &Tile) -> [Line; 4] {
    let mut lines = [Line([0; 64]); 4];
    for (unit, row) in (0..16 / N).flat_map(|unit| (0..GROUP).map(move |row| (unit, row))) {
        let at = (unit * GROUP + row) * N;
        lines[at / 64].0[at % 64..][..N].copy_from_slice(&tile[row][unit * N..][..N]);
    }
    lines
}

/// Writes lines to memory that is not read soon, without reading it before and without room in the caches where the processor
/// can. [`finish`] comes after the last of them.
///
/// # Panics
/// If `destination` is shorter than the lines.
#[inline(always)]
pub(super) fn write(lines: &[Line], destination: &mut [u8]) {
    let destination = &mut destination[..lines.len() * 64];
    #[cfg(target_arch = "x86_64")]
    if destination.as_ptr().align_offset(16) == 0 {
        return lanes::write(lines, destination);
    }
    for (line, place) in lines.iter().zip(destination.chunks_exact_mut(64)) {
        place.copy_from_slice(&line.0);
    }
}

/// Makes what [`write`] wrote visible to whoever this thread tells of it.
pub(super) fn finish() {
    // SAFETY: SSE is part of every x86-64 processor.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// SSE2, which every x86-64 processor has.
#[cfg(target_arch = "x86_64")]
mod lanes {
    use super::{GROUP, Line, Tile};
    use std::arch::x86_64::*;

    #[inline(always)]
    pub(super) fn interleave<const N: usize>(tile: &Tile) -> [Line; 4] {
        let mut lines = [Line([0; 64]); 4];
        let place = lines.as_mut_ptr().cast::<__m128i>();
        // SAFETY: the processor has SSE2; rows are 16 bytes, and the 16 vectors written are the four lines.
        unsafe {
            let row = |row: usize| _mm_loadu_si128(tile[row].as_ptr().cast());
            if N == 4 {
                for four in 0..GROUP / 4 {
                    let [a, b, c, d] = [0, 1, 2, 3].map(|index| row(four * 4 + index));
                    let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
                    _mm_store_si128(place.add(four), _mm_unpacklo_epi64(ab, cd));
                    _mm_store_si128(place.add(4 + four), _mm_unpackhi_epi64(ab, cd));
                    let (ab, cd) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
                    _mm_store_si128(place.add(8 + four), _mm_unpacklo_epi64(ab, cd));
                    _mm_store_si128(place.add(12 + four), _mm_unpackhi_epi64(ab, cd));
                }
            } else {
                for eight in 0..GROUP / 8 {
                    let rows: [__m128i; 8] = std::array::from_fn(|index| row(eight * 8 + index));
                    // Columns 0 to 3 of two rows, then columns 4 to 7; then columns of four rows, two at a time.
                    let pairs = [0, 2, 4, 6].map(|first| {
                        let (a, b) = (rows[first], rows[first + 1]);
                        [_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)]
                    });
                    let fours = [0, 2].map(|first| {
                        let (a, b) = (pairs[first], pairs[first + 1]);
                        [
                            _mm_unpacklo_epi32(a[0], b[0]),
                            _mm_unpackhi_epi32(a[0], b[0]),
                            _mm_unpacklo_epi32(a[1], b[1]),
                            _mm_unpackhi_epi32(a[1], b[1]),
                        ]
                    });
                    for pair in 0..4 {
                        let (a, b) = (fours[0][pair], fours[1][pair]);
                        _mm_store_si128(place.add(pair * 4 + eight), _mm_unpacklo_epi64(a, b));
                        _mm_store_si128(place.add(pair * 4 + 2 + eight), _mm_unpackhi_epi64(a, b));
                    }
                }
            }
        }
        lines
    }

    /// `destination` is as long as the lines and aligned to 16 bytes.
    #[inline(always)]
    pub(super) fn write(lines: &[Line], destination: &mut [u8]) {
        debug_assert_eq!(destination.len(), lines.len() * 64);
        let source = lines.as_ptr().cast::<__m128i>();
        let place = destination.as_mut_ptr().cast::<__m128i>();
        for vector in 0..lines.len() * 4 {
            // SAFETY: both hold so many aligned vectors.
            unsafe { _mm_stream_si128(place.add(vector), _mm_load_si128(source.add(vector))) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaving_is_what_single_bytes_give() {
        let tile: Tile = std::array::from_fn(|row| std::array::from_fn(|byte| (row * 16 + byte) as u8));
        for line in 0..4 {
            assert_eq!(interleave::<2>(&tile)[line].0, plain::<2>(&tile)[line].0, "halves, line {line}");
            assert_eq!(interleave::<4>(&tile)[line].0, plain::<4>(&tile)[line].0, "words, line {line}");
        }
        assert_eq!(plain::<2>(&tile)[0].0[..6], [0, 1, 16, 17, 32, 33]);
        assert_eq!(plain::<4>(&tile)[1].0[..6], [4, 5, 6, 7, 20, 21]);
    }

    #[test]
    fn lines_are_written_wherever_they_go() {
        let lines: [Line; 3] =
            std::array::from_fn(|line| Line(std::array::from_fn(|byte| (line * 64 + byte) as u8)));
        for offset in 0..17 {
            let mut bytes = vec![0xff; 64 * 3 + 17];
            write(&lines, &mut bytes[offset..]);
            finish();
            assert!(bytes[offset..offset + 192].iter().enumerate().all(|(at, byte)| *byte == at as u8));
            assert!(bytes[..offset].iter().chain(&bytes[offset + 192..]).all(|byte| *byte == 0xff));
        }
    }
}
