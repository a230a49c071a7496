//! AVX2 kernels: a lane is a row, and a group is two vectors of 8 rows. AVX-VNNI, where present, only replaces the
//! dot-product steps.

mod float;
mod many;
mod split;
mod unpack;

pub(super) use float::float;
pub(super) use split::{split, split_vnni};

use super::activation::Q8_BYTES;
use super::integers::{INTEGERS, Scales, with_format};
use super::layout::{GROUP, Layout, Pieces};
use super::{Abreast, Ahead, Operands};
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use unpack::{block_scales, quad_codes};

/// Rows in one vector.
const LANES: usize = 8;

/// Groups read side by side: one token waits for memory, and for its own sums, of which two groups have twice as many.
fn streams(tokens: usize) -> usize {
    if tokens == 1 { 2 } else { 1 }
}

/// Integer formats by [`super::ActivationFormat::Q8`] activations.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn integer(operands: &Operands<'_>, groups: Range<usize>) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups(operands, groups));
}

/// The same with AVX-VNNI.
///
/// # Safety
/// The processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn integer_vnni(operands: &Operands<'_>, groups: Range<usize>) {
    let Layout::Integer(format) = operands.geometry.layout else { return };
    with_format!(format, integer_groups_vnni(operands, groups));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn integer_groups<const F: usize>(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: without VNNI, nothing beyond AVX2 is used.
    unsafe { integer_tokens::<F, false>(operands, groups) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn integer_groups_vnni<const F: usize>(operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: only `integer_vnni` calls this, whose caller vouches for AVX-VNNI.
    unsafe { integer_tokens::<F, true>(operands, groups) }
}

/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn integer_tokens<const F: usize, const V: bool>(operands: &Operands<'_>, groups: Range<usize>) {
    if operands.tokens >= super::many::TOKENS {
        // SAFETY: forwarded from the caller.
        return unsafe { many::multiply::<F, V>(operands, groups) };
    }
    let steps = (operands.geometry.blocks(), const { INTEGERS[F].code_bytes() });
    for groups in Abreast::cut(groups, streams(operands.tokens)) {
        let mut token = 0;
        while token < operands.tokens {
            let ahead = if token == 0 { Some(operands.ahead(groups, steps)) } else { None };
            // SAFETY: forwarded from the caller.
            token += unsafe {
                match (groups.count, operands.tokens - token) {
                    (2, _) => one_token::<F, 2, V>(operands, groups, token, ahead),
                    (_, 4..) => some_tokens::<F, 4, V>(operands, groups.first, token, ahead),
                    (_, 2..4) => some_tokens::<F, 2, V>(operands, groups.first, token, ahead),
                    _ => one_token::<F, 1, V>(operands, groups, token, ahead),
                }
            };
        }
    }
}

/// The `R` groups by one token; asks for what is read later, line by line between its own reads. Returns 1, the
/// tokens done.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_token<const F: usize, const R: usize, const V: bool>(
    operands: &Operands<'_>,
    groups: Abreast,
    token: usize,
    ahead: Option<Ahead>,
) -> usize {
    let code_bytes = const { INTEGERS[F].code_bytes() };
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let (signed, together) = const { (signed::<F, V>(), together::<F, V>()) };
    let zero = _mm256_setzero_si256();
    let mut packed = [std::ptr::null(); R];
    for r in 0..R {
        packed[r] = operands.group(groups.group(r)).as_ptr();
    }
    let x = operands.activation_row(token).as_ptr();
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    for block in 0..operands.geometry.blocks() {
        let mut later = [std::ptr::null(); R];
        if let Some(ahead) = ahead {
            for r in 0..R {
                later[r] = ahead.codes(pieces, packed[r], block);
            }
        }
        let mut dots = [[[zero; 2]; 2]; R];
        let mut narrow = [[zero; 2]; R];
        each!(quad in 0 1 2 3 4 5 6 7 => {
            // SAFETY: an activation row has `blocks()` blocks, which begin with 32 bytes.
            let word = unsafe {
                _mm256_set1_epi32(x.add(block * Q8_BYTES + quad * 4).cast::<i32>().read_unaligned())
            };
            for r in 0..R {
                if let Some(ahead) = ahead
                    && quad * 64 < code_bytes
                {
                    ahead.line(later[r].wrapping_add(quad * 64));
                }
                for side in 0..2 {
                    // SAFETY: a group has `blocks()` blocks, and the caller vouches for AVX-VNNI.
                    unsafe {
                        let plane = packed[r].add(pieces.codes(block) + side * 32);
                        let (narrow, dots) = (&mut narrow[r][side], &mut dots[r][side][quad / 4]);
                        add_quad::<V>(quad_codes::<F>(plane, quad), word, signed, together, quad, narrow, dots);
                    }
                }
            }
        });
        let x = x.wrapping_add(block * Q8_BYTES);
        for r in 0..R {
            for side in 0..2 {
                // SAFETY: a group has one record for every `per_record` blocks, an activation row as many blocks.
                unsafe {
                    let record = packed[r].add(pieces.record(block));
                    let scales = block_scales::<F>(record, block % per_record, side * LANES);
                    let dots = if signed { dots[r][side] } else { less_offset::<F>(dots[r][side], x) };
                    sums[r][side] = combine::<F>(dots, scales, x, sums[r][side]);
                }
            }
        }
    }
    for r in 0..R {
        store(operands, token, groups.group(r), sums[r]);
    }
    1
}

/// Adds the products of a quad of 8 rows to `dots`, `together` quads at once by way of `narrow`.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_quad<const V: bool>(
    codes: __m256i,
    word: __m256i,
    signed: bool,
    together: usize,
    quad: usize,
    narrow: &mut __m256i,
    dots: &mut __m256i,
) {
    if V {
        // SAFETY: forwarded from the caller.
        *dots = unsafe { dot_vnni(*dots, codes, word) };
        return;
    }
    let pairs = if signed {
        let codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(word, codes))
    } else {
        _mm256_maddubs_epi16(codes, word)
    };
    *narrow = if quad.is_multiple_of(together) { pairs } else { _mm256_add_epi16(*narrow, pairs) };
    if quad % together == together - 1 {
        *dots = _mm256_add_epi32(*dots, _mm256_madd_epi16(*narrow, _mm256_set1_epi16(1)));
    }
}

/// One group by the tokens `token..token + T`, one half of the rows after the other: the sums of both by several tokens would not fit
/// the sixteen registers. Asks for what is read later. Returns `T`.
///
/// # Safety
/// With `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn some_tokens<const F: usize, const T: usize, const V: bool>(
    operands: &Operands<'_>,
    group: usize,
    token: usize,
    ahead: Option<Ahead>,
) -> usize {
    let geometry = &operands.geometry;
    let code_bytes = const { INTEGERS[F].code_bytes() };
    let pieces = const { Pieces::of(&INTEGERS[F]) };
    let per_record = const { INTEGERS[F].scales.blocks() };
    let packed = operands.group(group).as_ptr();
    let mut x: [&[u8]; T] = [&[]; T];
    for t in 0..T {
        x[t] = operands.activation_row(token + t);
    }
    let mut sums = [[_mm256_setzero_ps(); 2]; T];
    for block in 0..geometry.blocks() {
        if let Some(ahead) = ahead {
            ahead.lines(ahead.codes(pieces, packed, block), code_bytes);
        }
        for side in 0..2 {
            // SAFETY: a group has `blocks()` blocks and one record for every `per_record` of them, an activation row
            // as many blocks of `Q8_BYTES`.
            unsafe {
                let record = packed.add(pieces.record(block));
                let scales = block_scales::<F>(record, block % per_record, side * LANES);
                let plane = packed.add(pieces.codes(block) + side * 32);
                for t in 0..T {
                    let x = x[t].as_ptr().add(block * Q8_BYTES);
                    add_block::<F, V>(plane, scales, x, &mut sums[t][side]);
                }
            }
        }
    }
    for t in 0..T {
        store(operands, token + t, group, sums[t]);
    }
    T
}

/// Whether values are multiplied as signed numbers: those that take a whole byte, whose offset is 128, overflow the 16-bit
/// sums of AVX2 otherwise.
const fn signed<const F: usize, const V: bool>() -> bool {
    !V && INTEGERS[F].offset == 128
}

/// Quads whose 16-bit sums of two products cannot overflow together, within half a block where halves are summed apart:
/// 2 * 127 * largest * quads < 2^15.
const fn together<const F: usize, const V: bool>() -> usize {
    let largest = if signed::<F, V>() { 128 } else { INTEGERS[F].largest() };
    let half = if INTEGERS[F].scales.halves() { 4 } else { 8 };
    let quads = ((1 << 15) - 1) / (2 * 127 * largest);
    match quads {
        8.. => half,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Adds one block of 32 columns to the sums of 8 rows.
///
/// # Safety
/// `plane` as for [`quad_codes`]; `x` points to a block of a Q8 activation; with `V`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_block<const F: usize, const V: bool>(
    plane: *const u8,
    scales: [__m256; 3],
    x: *const u8,
    sum: &mut __m256,
) {
    // SAFETY: offsets up to 44 lie in the activation block.
    let word = |at: usize| unsafe { _mm256_set1_epi32(x.add(at).cast::<i32>().read_unaligned()) };
    let mut dots = [_mm256_setzero_si256(); 2];
    let (signed, together) = const { (signed::<F, V>(), together::<F, V>()) };
    let mut narrow = _mm256_setzero_si256();
    each!(quad in 0 1 2 3 4 5 6 7 => {
        // SAFETY: forwarded from the caller.
        unsafe {
            let codes = quad_codes::<F>(plane, quad);
            add_quad::<V>(codes, word(quad * 4), signed, together, quad, &mut narrow, &mut dots[quad / 4]);
        }
    });
    // SAFETY: forwarded from the caller.
    unsafe {
        let dots = if signed { dots } else { less_offset::<F>(dots, x) };
        *sum = combine::<F>(dots, scales, x, *sum);
    }
}

/// Takes what the offset of the codes is too much from the sums of a block, apart for its halves or all in the first.
///
/// # Safety
/// `x` points to a block of a Q8 activation.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn less_offset<const F: usize>(dots: [__m256i; 2], x: *const u8) -> [__m256i; 2] {
    let integer = const { INTEGERS[F] };
    if integer.offset == 0 {
        return dots;
    }
    let offset = -integer.offset as i16 as u16 as i32;
    // SAFETY: the sums of both halves lie in the activation block.
    let sums = unsafe { _mm256_set1_epi32(x.add(40).cast::<i32>().read_unaligned()) };
    if integer.scales.halves() {
        let left = _mm256_madd_epi16(sums, _mm256_set1_epi32(offset));
        let right = _mm256_madd_epi16(sums, _mm256_set1_epi32(offset << 16));
        [_mm256_add_epi32(dots[0], left), _mm256_add_epi32(dots[1], right)]
    } else {
        let both = _mm256_madd_epi16(sums, _mm256_set1_epi32(offset | offset << 16));
        [_mm256_add_epi32(dots[0], both), dots[1]]
    }
}

/// Adds the integer sums of one block, apart for its halves or to be added to each other, to the sum of 8 rows.
///
/// # Safety
/// `x` points to a block of a Q8 activation.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn combine<const F: usize>(
    dots: [__m256i; 2],
    scales: [__m256; 3],
    x: *const u8,
    sum: __m256,
) -> __m256 {
    let integer = const { INTEGERS[F] };
    // SAFETY: offsets up to 44 lie in the activation block.
    let float = |at: usize| unsafe { _mm256_set1_ps(x.add(at).cast::<f32>().read_unaligned()) };
    if integer.scales == Scales::SuperNibbles {
        // Each half's sum fits 16 bits: 16 products of 3 by 127.
        let pairs = _mm256_castps_si256(scales[2]);
        let factors = _mm256_and_si256(pairs, _mm256_set1_epi16(15));
        let minima = _mm256_srli_epi16::<4>(pairs);
        let both = _mm256_blend_epi16::<0xaa>(dots[0], _mm256_slli_epi32::<16>(dots[1]));
        let product = _mm256_cvtepi32_ps(_mm256_madd_epi16(factors, both));
        // SAFETY: as above.
        let sums = unsafe { _mm256_set1_epi32(x.add(40).cast::<i32>().read_unaligned()) };
        let minimum = _mm256_cvtepi32_ps(_mm256_madd_epi16(minima, sums));
        let value = _mm256_fmadd_ps(product, scales[0], _mm256_mul_ps(minimum, scales[1]));
        _mm256_fmadd_ps(value, float(32), sum)
    } else if integer.scales.halves() {
        let left = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[0]), float(32));
        let right = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[1]), float(32));
        _mm256_fmadd_ps(right, scales[1], _mm256_fmadd_ps(left, scales[0], sum))
    } else {
        let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[0], dots[1]));
        let sum = _mm256_fmadd_ps(_mm256_mul_ps(dot, float(32)), scales[0], sum);
        if matches!(integer.scales, Scales::Affine | Scales::SuperAffine) {
            _mm256_fmadd_ps(scales[1], float(36), sum)
        } else {
            sum
        }
    }
}

/// Adds the dot products of four unsigned by four signed bytes to each lane.
///
/// # Safety
/// The processor has AVX-VNNI.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn dot_vnni(mut sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    // As assembly because one generic kernel serves processors with and without the instruction.
    // SAFETY: reads and writes registers only; the caller vouches for the instruction.
    unsafe {
        asm!(
            "{{vex}} vpdpbusd {sum}, {unsigned}, {signed}",
            sum = inout(ymm_reg) sum,
            unsigned = in(ymm_reg) unsigned,
            signed = in(ymm_reg) signed,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Writes the results of one group for one token.
#[target_feature(enable = "avx2")]
fn store(operands: &Operands<'_>, token: usize, group: usize, values: [__m256; 2]) {
    let rows = operands.geometry.rows - group * GROUP;
    let place = operands.result(token, group * GROUP);
    let mut edge = [0.0; GROUP];
    let target = if rows >= GROUP { place } else { edge.as_mut_ptr() };
    // SAFETY: the caller of `multiply` vouches for the results of its rows, and the array holds both vectors.
    unsafe {
        _mm256_storeu_ps(target, values[0]);
        _mm256_storeu_ps(target.add(LANES), values[1]);
        if rows < GROUP {
            std::ptr::copy_nonoverlapping(edge.as_ptr(), place, rows);
        }
    }
}
