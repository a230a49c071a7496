//! Every format at every level of the processor against a multiplication of the decoded numbers.

use puna_backend_cpu::isa::Features;
use puna_backend_cpu::kernels::matmul::{Activation, ActivationFormat, OutputView, PackedMatrix, Plan};
use puna_backend_cpu::memory::AlignedBuffer;
use puna_quant::{DType, FORMATS, FloatField, Format};

/// Formats with kernels of their own; the others share the path that decodes rows.
const FAST: [DType; 28] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::IQ4_NL,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::Q2_K,
    DType::Q3_K,
    DType::IQ4_XS,
    DType::MXFP4,
    DType::NVFP4,
    DType::TQ1_0,
    DType::TQ2_0,
    DType::Q1_0,
    DType::Q2_0,
    DType::IQ2_XXS,
    DType::IQ2_XS,
    DType::IQ2_S,
    DType::IQ3_XXS,
    DType::IQ3_S,
    DType::IQ1_S,
    DType::IQ1_M,
];

/// A small generator of the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) ^ (self.0 >> 40)) as u32
    }

    /// Roughly normal, variance 1.
    fn normal(&mut self) -> f32 {
        let sum: f32 = (0..12).map(|_| (self.next() & 0xffff) as f32 / 65536.0).sum();
        sum - 6.0
    }
}

/// Blocks of random bytes with scales of ordinary size.
fn random_rows(format: &Format, rows: usize, columns: usize, random: &mut Random) -> Vec<u8> {
    let bytes = (0..rows * columns / format.block * format.bytes).map(|_| random.next() as u8).collect();
    with_scales(format, bytes, random)
}

/// The blocks with scales of ordinary size.
fn with_scales(format: &Format, mut bytes: Vec<u8>, random: &mut Random) -> Vec<u8> {
    for block in bytes.chunks_exact_mut(format.bytes) {
        for field in format.floats {
            let value = random.normal() * 0.02;
            let mut put = |at: usize, number: &[u8]| block[at..at + number.len()].copy_from_slice(number);
            match *field {
                FloatField::F16(at) => put(at, &half::f16::from_f32(value).to_le_bytes()),
                FloatField::BF16(at) => put(at, &half::bf16::from_f32(value).to_le_bytes()),
                FloatField::F32(at) => put(at, &value.to_le_bytes()),
                FloatField::F64(at) => put(at, &f64::from(value).to_le_bytes()),
                FloatField::E8M0(at) => put(at, &[118 + (random.next() % 8) as u8]),
                FloatField::SplitF16(at) => {
                    let bits = half::f16::from_f32(value).to_bits();
                    for word in 0..4 {
                        let high = &mut block[at + word * 2 + 1];
                        *high = *high & 15 | ((bits >> (4 * word) & 15) as u8) << 4;
                    }
                }
            }
        }
        if format.dtype == DType::I64 {
            block.copy_from_slice(&i64::from(random.next() as i8).to_le_bytes());
        }
    }
    bytes
}

fn decoded(dtype: DType, rows: usize, columns: usize, source: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; rows * columns];
    (dtype.format().decode)(source, &mut values);
    values
}

/// The numbers that a prepared activation stands for.
fn prepared_values(format: ActivationFormat, x: &[f32], columns: usize) -> Vec<f64> {
    match format {
        ActivationFormat::F32 => x.iter().map(|x| f64::from(*x)).collect(),
        ActivationFormat::Bf16 => x.iter().map(|x| f64::from(half::bf16::from_f32(*x).to_f32())).collect(),
        ActivationFormat::Q8 | ActivationFormat::Q8Split => x
            .chunks(columns)
            .flat_map(|row| row.chunks(32))
            .flat_map(|block| {
                let most = integers(format);
                let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                let inverse = if largest > 0.0 { most / largest } else { 0.0 };
                let scale = f64::from(largest / most);
                block.iter().map(move |x| f64::from((x * inverse).round_ties_even()) * scale)
            })
            .collect(),
        ActivationFormat::Q16 => x
            .chunks(columns)
            .flat_map(|row| row.chunks(64))
            .flat_map(|block| {
                let step = word_step(block);
                block.iter().map(move |x| (f64::from(*x) / step).round_ties_even() * step)
            })
            .collect(),
    }
}

/// The largest integer that stands for a number.
fn integers(format: ActivationFormat) -> f32 {
    if format == ActivationFormat::Q8Split { 8127.0 } else { 127.0 }
}

/// What 1 stands for in a block of integers of 16 bits: the block has a length of 46336 of it, or a largest number of 32767.
fn word_step(block: &[f32]) -> f64 {
    let length = block.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    (length / 46336.0).max(f64::from(largest) / 32767.0).max(f64::MIN_POSITIVE)
}

struct Case {
    matrix: PackedMatrix,
    weights: Vec<f32>,
    rows: usize,
    columns: usize,
}

impl Case {
    fn new(dtype: DType, rows: usize, columns: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let source = random_rows(dtype.format(), rows, columns, &mut random);
        Self::of(dtype, rows, columns, &source)
    }

    fn of(dtype: DType, rows: usize, columns: usize, source: &[u8]) -> Self {
        let matrix = PackedMatrix::pack(dtype, rows, columns, source).expect("a valid shape");
        Self { matrix, weights: decoded(dtype, rows, columns, source), rows, columns }
    }

    /// Multiplies with `threads` callers, each with its own range of rows, and checks that nothing else is written.
    fn multiply(
        &self,
        features: Features,
        format: ActivationFormat,
        x: &[f32],
        tokens: usize,
        threads: usize,
    ) -> Vec<f32> {
        let bytes = format.bytes(tokens, self.columns);
        let mut prepared = AlignedBuffer::new(bytes).expect("memory");
        let middle = tokens / 2;
        for part in [0..middle, middle..tokens] {
            let x = &x[part.start * self.columns..part.end * self.columns];
            // SAFETY: the buffer has the activation's size and nobody else uses it.
            unsafe { format.prepare(features, x, self.columns, part, prepared.as_pointer()) };
        }
        let activation = Activation { format, tokens, columns: self.columns, bytes: prepared.as_mut_slice() };
        const GUARD: f32 = -12345.0;
        let stride = self.rows + 3;
        let mut output = vec![GUARD; tokens * stride];
        let out = OutputView { pointer: output.as_mut_ptr(), stride };
        let groups = self.rows.div_ceil(16);
        for thread in 0..threads {
            let bound = |thread: usize| (groups * thread / threads * 16).min(self.rows);
            let mut scratch = vec![0x7f; self.matrix.scratch_bytes(format)];
            let rows = bound(thread)..bound(thread + 1);
            // SAFETY: the output has room for every token and row.
            unsafe { self.matrix.multiply(features, &activation, rows, out, std::ptr::null(), &mut scratch) };
        }
        let mut results = Vec::with_capacity(tokens * self.rows);
        for row in output.chunks_exact(stride) {
            results.extend_from_slice(&row[..self.rows]);
            assert_eq!(row[self.rows..], [GUARD; 3], "written past the last row");
        }
        results
    }

    /// Largest error against the activation `x`, less what `doubt` (the error bound of each `x`) can cause, relative
    /// to `sum of |w x|`.
    fn error(&self, results: &[f32], x: &[f64], doubt: &[f64]) -> f64 {
        let mut worst = 0.0f64;
        for (token, x) in x.chunks_exact(self.columns).enumerate() {
            let doubt = &doubt[token * self.columns..][..self.columns];
            for row in 0..self.rows {
                let weights = &self.weights[row * self.columns..][..self.columns];
                let (mut sum, mut size, mut allowed) = (0.0, 1e-30, 0.0);
                for ((w, x), doubt) in weights.iter().zip(x).zip(doubt) {
                    sum += f64::from(*w) * x;
                    size += (f64::from(*w) * x).abs();
                    allowed += f64::from(w.abs()) * doubt;
                }
                let error = ((f64::from(results[token * self.rows + row]) - sum).abs() - allowed) / size;
                assert!(error.is_finite(), "token {token} row {row}: {}", results[token * self.rows + row]);
                worst = worst.max(error);
            }
        }
        worst
    }
}

/// By how much each prepared number may differ from the number given: Q8 rounds to multiples of 1/127 of the largest
/// of 32 (split, of 1/8127), Q16 to multiples of [`word_step`], and BF16 to 8 significant bits.
fn doubts(format: ActivationFormat, x: &[f32], columns: usize) -> Vec<f64> {
    match format {
        ActivationFormat::F32 => vec![0.0; x.len()],
        ActivationFormat::Bf16 => x.iter().map(|x| f64::from(x.abs()) / 512.0).collect(),
        ActivationFormat::Q8 | ActivationFormat::Q8Split => x
            .chunks(columns)
            .flat_map(|row| row.chunks(32))
            .flat_map(|block| {
                let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                let most = f64::from(integers(format));
                // Half of 1, and what the factor's rounding makes of the largest.
                vec![f64::from(largest) / most * (0.5 + 2e-7 * most); block.len()]
            })
            .collect(),
        ActivationFormat::Q16 => x
            .chunks(columns)
            .flat_map(|row| row.chunks(64))
            .flat_map(|block| vec![word_step(block) * (0.5 + 2e-7 * 32767.0); block.len()])
            .collect(),
    }
}

/// What a kernel may add to the error of the prepared activation, relative to `sum of |w x|`: integer sums are exact,
/// so only f32 rounding remains; with BF16 the weights are rounded too, to 8 significant bits. With Q16 the weights are rounded too: of 64 numbers of
/// normal distribution half a step is 8.6e-5 of the root of their mean square; products are 0.8 of that times the other's mean.
fn tolerance(format: ActivationFormat) -> f64 {
    match format {
        ActivationFormat::F32 => 1e-6,
        ActivationFormat::Q8 | ActivationFormat::Q8Split => 1e-5,
        ActivationFormat::Bf16 => 1.0 / 511.0,
        ActivationFormat::Q16 => 8.6e-5 / 0.8,
    }
}

fn check(dtype: DType, rows: usize, columns: usize, tokens: usize, threads: usize) {
    let case = Case::new(dtype, rows, columns, (rows * 7 + columns * 3 + tokens) as u64);
    let mut random = Random(99);
    let x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
    let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let certain = vec![0.0; x.len()];
    for (level, features) in Features::detect().levels() {
        let mut formats = vec![];
        for tokens in [1, tokens, 512] {
            let format = case.matrix.activation(features, tokens);
            if !formats.contains(&format) {
                formats.push(format);
            }
        }
        for format in formats {
            let results = case.multiply(features, format, &x, tokens, threads);
            let name = format!("{dtype} {level} {format:?} {rows}x{columns} by {tokens} on {threads}");
            let error = case.error(&results, &exact, &doubts(format, &x, columns));
            assert!(error <= tolerance(format), "{name}: error {error:.2e}");
            let error = case.error(&results, &prepared_values(format, &x, columns), &certain);
            assert!(error <= tolerance(format), "{name}: error {error:.2e} of the prepared activation");
        }
    }
}

#[test]
fn decoded_rows_are_the_reference_values() {
    for format in FORMATS {
        let columns = 2 * format.block.max(32) + if format.block == 1 { 3 } else { 0 };
        let case = Case::new(format.dtype, 37, columns, 5);
        let mut row = vec![0.0; columns];
        for index in 0..37 {
            case.matrix.decode_row(index, &mut row);
            assert_eq!(row, case.weights[index * columns..][..columns], "{} row {index}", format.name);
        }
    }
}

#[test]
fn packing_in_parts_equals_packing_at_once() {
    for dtype in [DType::Q4_1, DType::Q6_K, DType::F16, DType::IQ3_S, DType::NVFP4, DType::Q8_K] {
        let (rows, columns) = (57, 512);
        let source = random_rows(dtype.format(), rows, columns, &mut Random(3));
        let whole = PackedMatrix::pack(dtype, rows, columns, &source).expect("a valid shape");
        let plan = Plan::new(dtype, rows, columns).expect("a valid shape");
        let mut bytes = AlignedBuffer::new(plan.bytes()).expect("memory");
        for part in [32..57, 0..16, 16..32] {
            let place = plan.destination(part.clone());
            let source = &source[plan.source(part.clone())];
            plan.pack_rows(source, part, &mut bytes.as_mut_slice()[place]);
        }
        let parts = PackedMatrix::new(plan, bytes.into()).expect("the plan's size");
        let (mut a, mut b) = (vec![0.0; columns], vec![0.0; columns]);
        for row in 0..rows {
            whole.decode_row(row, &mut a);
            parts.decode_row(row, &mut b);
            assert_eq!(a, b, "{dtype} row {row}");
        }
    }
}

#[test]
fn shapes_that_formats_cannot_have_are_errors() {
    assert!(Plan::new(DType::Q4_K, 16, 128).is_err());
    assert!(Plan::new(DType::Q4_K, 16, 0).is_err());
    assert!(Plan::new(DType::F32, usize::MAX / 8, 64).is_err());
    assert!(PackedMatrix::pack(DType::Q8_0, 2, 32, &[0; 67]).is_err());
}

#[test]
fn fast_formats_by_few_rows() {
    for dtype in FAST {
        for rows in [1, 15, 16, 17, 40] {
            check(dtype, rows, 256, 1, 1);
            check(dtype, rows, 512, 3, 2);
        }
    }
}

#[test]
fn fast_formats_by_token_counts() {
    for dtype in FAST {
        for tokens in [1, 2, 3, 5, 7, 8, 9, 33] {
            check(dtype, 40, 256, tokens, 1);
        }
    }
}

#[test]
fn fast_formats_by_columns() {
    for dtype in FAST {
        for columns in [32, 96, 576, 640, 768, 2304] {
            if columns % dtype.block() == 0 {
                check(dtype, 80, columns, 2, 3);
                check(dtype, 33, columns, 34, 1);
            }
        }
    }
    check(DType::F32, 20, 37, 3, 1);
    check(DType::F16, 20, 37, 3, 1);
    check(DType::BF16, 20, 37, 3, 1);
}

#[test]
fn wide_matrices_are_split_in_panels() {
    for dtype in [DType::Q4_1, DType::Q4_K, DType::F16, DType::BF16] {
        check(dtype, 600, 1024, 40, 2);
    }
}

#[test]
fn every_other_format() {
    for format in FORMATS.iter().filter(|format| !FAST.contains(&format.dtype)) {
        check(format.dtype, 17, 512, 3, 2);
        check(format.dtype, 40, 256, 33, 1);
    }
}

#[test]
fn results_do_not_depend_on_other_tokens() {
    for dtype in FAST {
        let case = Case::new(dtype, 72, 512, 11);
        let mut random = Random(12);
        let x: Vec<f32> = (0..35 * 512).map(|_| random.normal()).collect();
        for (level, features) in Features::detect().levels() {
            for ask in [1, 512] {
                let format = case.matrix.activation(features, ask);
                let all = case.multiply(features, format, &x, 35, 2);
                for token in [0, 7, 33, 34] {
                    let alone = case.multiply(features, format, &x[token * 512..][..512], 1, 1);
                    assert_eq!(alone, all[token * 72..][..72], "{dtype} {level} {format:?} token {token}");
                }
            }
        }
    }
}

#[test]
fn more_tokens_and_columns_than_are_kept_at_once() {
    let (tokens, columns) = (133, 1280);
    let mut random = Random(31);
    let x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
    for dtype in FORMATS.iter().map(|format| format.dtype) {
        let case = Case::new(dtype, 20, columns, 32);
        for (level, features) in
            Features::detect().levels().into_iter().filter(|(level, _)| *level != "scalar")
        {
            let format = case.matrix.activation(features, 8);
            let all = case.multiply(features, format, &x, tokens, 1);
            for token in [0, 6, 127, 128, 132] {
                let alone = case.multiply(features, format, &x[token * columns..][..columns], 1, 1);
                assert_eq!(alone, all[token * 20..][..20], "{dtype} {level} {format:?} token {token}");
            }
        }
    }
}

#[test]
fn rows_of_more_columns_than_a_cache_holds() {
    let columns = 149_824;
    let mut random = Random(37);
    let x: Vec<f32> = (0..20 * columns).map(|_| random.normal()).collect();
    let case = Case::new(DType::Q4_0, 32, columns, 38);
    for (level, features) in Features::detect().levels().into_iter().filter(|(level, _)| *level != "scalar") {
        let format = case.matrix.activation(features, 8);
        let all = case.multiply(features, format, &x, 20, 1);
        for tokens in [1, 7] {
            let some = case.multiply(features, format, &x[..tokens * columns], tokens, 1);
            assert_eq!(some, all[..tokens * 32], "{level} {format:?} {tokens} tokens");
        }
    }
}

#[test]
fn the_largest_sums_do_not_overflow() {
    for format in FORMATS.iter().filter(|format| format.block > 1) {
        for byte in [0x00, 0x0f, 0x7f, 0x80, 0xf0, 0xff] {
            let bytes = vec![byte; 16 * 256 / format.block * format.bytes];
            let source = with_scales(format, bytes, &mut Random(41));
            let case = Case::of(format.dtype, 16, 256, &source);
            for (x, (level, features)) in [1.0, -1.0]
                .into_iter()
                .flat_map(|x| Features::detect().levels().into_iter().map(move |l| (x, l)))
            {
                let (x, none) = (vec![x; 9 * 256], vec![0.0; 9 * 256]);
                for ask in [1, 9] {
                    let activation = case.matrix.activation(features, ask);
                    if matches!(activation, ActivationFormat::Q8 | ActivationFormat::Q8Split) {
                        let values = prepared_values(activation, &x, 256);
                        for tokens in [1, 9] {
                            let all = case.multiply(features, activation, &x[..tokens * 256], tokens, 1);
                            let error = case.error(&all, &values[..tokens * 256], &none[..tokens * 256]);
                            let name =
                                format!("{} {level} {activation:?} of {byte:#x} by {tokens}", format.name);
                            assert!(error <= tolerance(activation), "{name}: error {error:.2e}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn levels_with_vectors_agree_to_the_bit() {
    let (tokens, columns) = (7, 768);
    let x: Vec<f32> = {
        let mut random = Random(21);
        (0..tokens * columns).map(|_| random.normal()).collect()
    };
    for dtype in FAST {
        let case = Case::new(dtype, 50, columns, 22);
        let mut first: Option<(&str, Vec<u32>)> = None;
        for (level, features) in
            Features::detect().levels().into_iter().filter(|(level, _)| *level != "scalar")
        {
            let format = case.matrix.activation(features, 1);
            let results = case.multiply(features, format, &x, tokens, 2);
            let bits: Vec<u32> = results.iter().map(|result| result.to_bits()).collect();
            let (other, expected) = first.get_or_insert_with(|| (level, bits.clone()));
            assert_eq!(&bits, expected, "{dtype} {format:?}: {level} and {other}");
        }
    }
}

#[test]
fn prepared_activations_are_the_same_at_every_level() {
    let (tokens, columns) = (19, 112);
    let mut random = Random(8);
    let mut x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
    x[32..64].fill(0.0);
    x[70] = 1e30;
    // Blocks whose reciprocal overflows, beside zeros.
    for (block, size) in [1e-38, 1e-37, 1e-36, 1e-35, 1e-34].into_iter().enumerate() {
        let place = (2 + block) * columns;
        x[place..][..4].copy_from_slice(&[size, 0.0, -size, size / 3.0]);
        x[place + 4..][..28].fill(0.0);
    }
    use ActivationFormat::*;
    for format in [F32, Q8, Q8Split, Bf16, Q16] {
        let prepared = |features| {
            let mut bytes = AlignedBuffer::new(format.bytes(tokens, columns)).expect("memory");
            // SAFETY: the buffer has the activation's size and nobody else uses it.
            unsafe { format.prepare(features, &x, columns, 0..tokens, bytes.as_pointer()) };
            bytes.as_mut_slice().to_vec()
        };
        let scalar = prepared(Features::SCALAR);
        for (level, features) in Features::detect().levels() {
            assert_eq!(prepared(features), scalar, "{format:?} at {level}");
        }
        if matches!(format, Q8 | Q8Split) {
            for token in 2..7 {
                let block = &scalar[token * format.bytes(1, columns)..];
                let [first, zero, second, ..] = [0, 1, 2].map(|column: usize| block[column] as i8);
                assert!(
                    zero == 0 && second == -first && first >= 0,
                    "{format:?}: {first}, {zero} and {second} of {:e}",
                    x[token * columns]
                );
            }
        }
    }
}

/// Levels that multiply F16 by integers of 16 bits.
fn levels_with_words() -> Vec<(&'static str, Features)> {
    let matrix = PackedMatrix::pack(DType::F16, 16, 32, &[0; 1024]).expect("a valid shape");
    let words = |features| matrix.activation(features, 512) == ActivationFormat::Q16;
    Features::detect().levels().into_iter().filter(|(_, features)| words(*features)).collect()
}

const SKIPPED: &str = "skipped: no level of this processor multiplies F16 by integers of 16 bits";

fn halves(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect()
}

#[test]
fn integers_of_16_bits_lose_less_than_activations_in_f16() {
    let levels = levels_with_words();
    if levels.is_empty() {
        return println!("{SKIPPED}");
    }
    let (rows, columns, tokens) = (48, 1024, 40);
    let mut random = Random(51);
    let case =
        Case::of(DType::F16, rows, columns, &halves((0..rows * columns).map(|_| random.normal() * 0.02)));
    let normal: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
    let mut outliers = normal.clone();
    outliers.iter_mut().step_by(64).for_each(|x| *x *= 1000.0);
    // Each of both factors loses 2.5e-9, and 5.0e-9 where one number of a block is all of it; a tenth more for chance.
    for (x, most) in [(normal, 5.5e-9), (outliers, 8.2e-9)] {
        let (mut power, mut of_halves) = (0.0, 0.0);
        let mut right = vec![];
        for x in x.chunks(columns) {
            for weights in case.weights.chunks(columns) {
                let dot = |number: &dyn Fn(f32) -> f32| -> f64 {
                    weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(number(*x))).sum()
                };
                let exact = dot(&|x| x);
                power += exact * exact;
                of_halves += (dot(&|x| half::f16::from_f32(x).to_f32()) - exact).powi(2);
                right.push(exact);
            }
        }
        for &(level, features) in &levels {
            let found = case.multiply(features, ActivationFormat::Q16, &x, tokens, 2);
            let error: f64 = found.iter().zip(&right).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
            let (error, of_halves) = (error / power, of_halves / power);
            println!("{level}: {error:.2e}, with activations in F16 {of_halves:.2e}");
            assert!(error < most && error < of_halves / 2.0, "{level}: {error:.2e} and {of_halves:.2e}");
        }
    }
}

#[test]
fn the_largest_sums_of_16_bits_do_not_overflow() {
    let levels = levels_with_words();
    if levels.is_empty() {
        return println!("{SKIPPED}");
    }
    let (rows, columns, tokens) = (16, 128, 9);
    // Equal numbers have the largest sums that blocks of one length can have; a single one has the largest integer.
    let equal = |_: usize| 0.7f32;
    let single = |at: usize| if at.is_multiple_of(64) { 3.0 } else { 0.0 };
    let several = |at: usize| if at % 64 < 2 { 3.0 } else { 0.0 };
    for kind in [&equal as &dyn Fn(usize) -> f32, &single, &several] {
        let case = Case::of(DType::F16, rows, columns, &halves((0..rows * columns).map(kind)));
        for sign in [1.0, -1.0] {
            let x: Vec<f32> = (0..tokens * columns).map(|at| sign * kind(at)).collect();
            let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for &(level, features) in &levels {
                let found = case.multiply(features, ActivationFormat::Q16, &x, tokens, 1);
                let error = case.error(&found, &exact, &doubts(ActivationFormat::Q16, &x, columns));
                assert!(error <= tolerance(ActivationFormat::Q16), "{level}: error {error:.2e}");
            }
        }
    }
}

/// Integers of 16 bits by their blocks' lengths beside f32: the same where a number is infinite or none, and else as near as steps are.
#[test]
fn integers_of_16_bits_take_odd_numbers() {
    let levels = levels_with_words();
    if levels.is_empty() {
        return println!("{SKIPPED}");
    }
    let (rows, columns, tokens) = (33, 160, 21);
    let mut random = Random(61);
    let mut weights: Vec<f32> = (0..rows * columns).map(|_| random.normal()).collect();
    let mut x: Vec<f32> = (0..tokens * columns).map(|_| random.normal()).collect();
    let numbers = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 65504.0, 6e-8, 0.0];
    for (place, number) in numbers.into_iter().enumerate() {
        weights[place * 3 * columns + 70] = number;
        x[place * 2 * columns + 155] = number;
    }
    // Nothing but small numbers, or zeros.
    weights[19 * columns..][..columns].iter_mut().for_each(|weight| *weight *= 1e-7);
    weights[20 * columns..][..columns].fill(0.0);
    for (token, size) in [(13, 1e30), (14, 1e-30), (15, 0.0), (16, 1e-38)] {
        x[token * columns..][..columns].iter_mut().for_each(|x| *x *= size);
    }
    x[17 * columns + 3] = 1e30;
    let case = Case::of(DType::F16, rows, columns, &halves(weights.iter().copied()));
    for &(level, features) in &levels {
        let expected = case.multiply(features, ActivationFormat::F32, &x, tokens, 1);
        let found = case.multiply(features, ActivationFormat::Q16, &x, tokens, 1);
        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let (token, row) = (place / rows, place % rows);
            let name = format!("{level} token {token} row {row}: {found:e}, in f32 {expected:e}");
            assert_eq!(found.is_finite(), expected.is_finite(), "{name}");
            let blocks = case.weights[row * columns..][..columns].chunks(64);
            let length = |block: &[f32]| block.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let size: f64 = blocks
                .zip(x[token * columns..][..columns].chunks(64))
                .map(|(weights, x)| length(weights) * length(x))
                .sum();
            // Half a step of each of 64 numbers by the length of the others, for both factors. Of numbers so small that a step
            // would be subnormal, nothing is left.
            let most = size / 32767.0 * 8.0 * 1.01 + 1e-6 * size + 1e-32;
            let error = (f64::from(*found) - f64::from(*expected)).abs();
            assert!(!found.is_finite() || error <= most, "{name}");
        }
    }
}
