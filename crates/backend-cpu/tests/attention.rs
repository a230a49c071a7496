//! Attention and cache kernels against f64, at every instruction-set level, with odd sizes, holes and several
//! sequences.
#![allow(clippy::single_range_in_vec_init)] // a span's cells are a list of ranges, often of one

use std::ops::Range;

use puna_backend_cpu::isa::Features;
use puna_backend_cpu::kernels::attention::{Attention, Heads, Inputs, Partials, Plan, Span};
use puna_backend_cpu::kernels::cache::{self, CACHE_FORMATS, CacheRows, CacheRowsMut, RowFormat};
use puna_backend_cpu::kernels::rope::{Rope, frequencies};
use puna_backend_cpu::kernels::rows::{Rows, RowsMut};
use puna_backend_cpu::pool::{Pool, Scratch, Stage};
use puna_graph::ops::{MaskRule, RopeKind};
use puna_quant::DType;

fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// A step on a cache.
struct Case {
    heads: Heads,
    tokens: usize,
    cells: usize,
    spans: Vec<Span>,
    token_positions: Vec<i32>,
    cell_positions: Vec<i32>,
    queries: Vec<f32>,
    keys: Vec<u8>,
    values: Vec<u8>,
    key_format: RowFormat,
    value_format: RowFormat,
    plan: Plan,
}

impl Case {
    /// `sequences` are (tokens of the step, cells in ranges); the last cells of each belong to its tokens.
    fn new(
        heads: Heads,
        (key, value): (DType, DType),
        cells: usize,
        sequences: &[(usize, Vec<Range<u32>>)],
    ) -> Self {
        let (mut spans, mut token_positions) = (Vec::new(), Vec::new());
        let mut cell_positions = vec![-1; cells];
        for (tokens, ranges) in sequences {
            let mut position = 0;
            for cell in ranges.iter().cloned().flatten() {
                cell_positions[cell as usize] = position;
                position += 1;
            }
            let first = token_positions.len();
            token_positions.extend((0..*tokens).map(|i| position - *tokens as i32 + i as i32));
            spans.push(Span { tokens: first as u32..(first + tokens) as u32, cells: ranges.clone() });
        }
        let tokens = token_positions.len();
        let key_format = RowFormat::new(key, heads.key_dim).unwrap();
        let value_format = RowFormat::new(value, heads.value_dim).unwrap();
        let encoded = |format: RowFormat, seed| {
            let numbers = random(seed, heads.kv_heads * cells * format.dim());
            let mut data = vec![0; heads.kv_heads * cells * format.bytes()];
            for (row, bytes) in numbers.chunks(format.dim()).zip(data.chunks_mut(format.bytes())) {
                // SAFETY: both are rows of this format.
                unsafe { format.encode(Features::SCALAR, row.as_ptr(), bytes.as_mut_ptr()) };
            }
            data
        };
        let (keys, values) = (encoded(key_format, 11), encoded(value_format, 12));
        let queries: Vec<f32> =
            random(13, tokens * heads.heads * heads.key_dim).iter().map(|x| x * 2.0).collect();
        let mut plan = Plan::new(heads);
        plan.build(&spans, tokens, &cell_positions).unwrap();
        Self {
            heads,
            tokens,
            cells,
            spans,
            token_positions,
            cell_positions,
            queries,
            keys,
            values,
            key_format,
            value_format,
            plan,
        }
    }

    fn run(&self, attention: &Attention<'_>, features: Features, pool: &Pool) -> Vec<f32> {
        struct Chunks<F> {
            chunks: usize,
            bytes: usize,
            run: F,
        }
        impl<F: Fn(usize, &mut [f32]) + Sync> Stage for Chunks<F> {
            fn chunks(&self) -> usize {
                self.chunks
            }
            fn run(&self, chunk: usize, scratch: &mut Scratch<'_>) {
                (self.run)(chunk, scratch.floats());
            }
            fn scratch_bytes(&self) -> usize {
                self.bytes
            }
        }
        struct Pointer(*mut f32);
        // SAFETY: the chunks write different rows.
        unsafe impl Sync for Pointer {}

        let Heads { heads, kv_heads, key_dim, value_dim } = self.heads;
        let (width, out_width) = (heads * key_dim, heads * value_dim);
        let mut output = vec![77.0; self.tokens * out_width];
        let mut partials = vec![f32::NAN; self.plan.partial_floats()];
        // SAFETY: used by these two stages only.
        let partials = unsafe { Partials::new(partials.as_mut_ptr(), partials.len()) };
        let pointer = &Pointer(output.as_mut_ptr());
        // SAFETY: chunks touch different parts of the rows.
        let out = move || unsafe { RowsMut::from_raw(pointer.0, self.tokens, out_width, out_width) };
        let bytes = 4 * self.plan.scratch_floats();
        assert!(self.plan.scratch_floats() <= Plan::scratch_floats_bound(self.heads));
        let run = Chunks {
            chunks: self.plan.chunks(),
            bytes,
            run: |chunk, scratch: &mut [f32]| {
                let inputs = Inputs {
                    queries: Rows::new(&self.queries, self.tokens, width, width),
                    keys: CacheRows::new(&self.keys, self.key_format, kv_heads, self.cells),
                    values: CacheRows::new(&self.values, self.value_format, kv_heads, self.cells),
                    token_positions: &self.token_positions,
                    cell_positions: &self.cell_positions,
                };
                attention.run(features, &self.plan, &inputs, &out(), partials, chunk, scratch);
            },
        };
        let merge = Chunks {
            chunks: self.plan.merge_chunks(),
            bytes,
            run: |chunk, scratch: &mut [f32]| {
                attention.merge(features, &self.plan, &out(), partials, chunk, scratch);
            },
        };
        pool.run(&[&run, &merge]).unwrap();
        output
    }

    /// Attention written down plainly.
    fn exact(&self, attention: &Attention<'_>) -> Vec<f64> {
        let Heads { heads, kv_heads, key_dim, value_dim } = self.heads;
        let decoded = |format: RowFormat, data: &[u8]| {
            let mut numbers = vec![0.0; data.len() / format.bytes() * format.dim()];
            for (row, bytes) in numbers.chunks_mut(format.dim()).zip(data.chunks(format.bytes())) {
                // SAFETY: both are rows of this format.
                unsafe { format.decode(Features::SCALAR, bytes.as_ptr(), row.as_mut_ptr()) };
            }
            numbers
        };
        let (keys, values) = (decoded(self.key_format, &self.keys), decoded(self.value_format, &self.values));
        let mut output = vec![77.0; self.tokens * heads * value_dim];
        for span in &self.spans {
            for token in span.tokens.start as usize..span.tokens.end as usize {
                for head in 0..heads {
                    let kv_head = head / (heads / kv_heads);
                    let q = i64::from(self.token_positions[token]);
                    let mut scores = Vec::new();
                    for cell in span.cells.iter().cloned().flatten() {
                        let cell = cell as usize;
                        let k = i64::from(self.cell_positions[cell]);
                        let is_seen = match attention.mask {
                            MaskRule::Causal => k <= q,
                            MaskRule::Window(n) => k <= q && q - k < i64::from(n),
                            MaskRule::Chunked(n) => k <= q && k / i64::from(n) == q / i64::from(n),
                            MaskRule::SymmetricWindow(n) => (q - k).abs() <= i64::from(n / 2),
                            MaskRule::Bidirectional => true,
                        };
                        if !is_seen {
                            continue;
                        }
                        let query = &self.queries[(token * heads + head) * key_dim..][..key_dim];
                        let key = &keys[(kv_head * self.cells + cell) * key_dim..][..key_dim];
                        let dot: f64 =
                            query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                        let mut score = dot * f64::from(attention.scale);
                        if let Some(cap) = attention.softcap {
                            score = f64::from(cap) * (score / f64::from(cap)).tanh();
                        }
                        if let Some(slopes) = attention.alibi {
                            score -= f64::from(slopes[head]) * (q - k).abs() as f64;
                        }
                        if let Some(table) = attention.relative {
                            let width = table.len() / heads;
                            let reach = (width / 2) as i64;
                            let offset = (k - q).clamp(-reach, reach) + reach;
                            score += f64::from(table[head * width + offset as usize]);
                        }
                        scores.push((score, cell));
                    }
                    let largest = scores.iter().map(|&(score, _)| score).fold(f64::NEG_INFINITY, f64::max);
                    let mut total: f64 = scores.iter().map(|&(score, _)| (score - largest).exp()).sum();
                    if let Some(sinks) = attention.sinks {
                        total += (f64::from(sinks[head]) - largest).exp();
                    }
                    let out = &mut output[(token * heads + head) * value_dim..][..value_dim];
                    out.fill(0.0);
                    for &(score, cell) in &scores {
                        let weight = (score - largest).exp() / total;
                        let value = &values[(kv_head * self.cells + cell) * value_dim..][..value_dim];
                        for (out, &value) in out.iter_mut().zip(value) {
                            *out += weight * f64::from(value);
                        }
                    }
                }
            }
        }
        output
    }

    /// Compares the tokens that see none of the cells `hidden` with f64.
    fn check_seen(&self, attention: &Attention<'_>, features: Features, hidden: &Range<u32>) {
        let (want, got) = (self.exact(attention), self.run(attention, features, &Pool::new(1).unwrap()));
        let width = self.heads.heads * self.heads.value_dim;
        for (token, (want, got)) in want.chunks(width).zip(got.chunks(width)).enumerate() {
            let position = |cell: u32| self.cell_positions[cell as usize];
            if hidden.clone().any(|cell| attention.mask.sees(self.token_positions[token], position(cell))) {
                continue;
            }
            let error: f64 = got.iter().zip(want).map(|(&got, want)| (f64::from(got) - want).powi(2)).sum();
            let power: f64 = want.iter().map(|x| x * x).sum();
            assert!(error / power <= 2.0 * rounded(), "token {token}: {:e}", error / power);
        }
    }

    /// Runs all levels on 1 to 3 threads; all threads must agree to the bit, and with f64 to `bound` (normalised
    /// mean squared error).
    fn check(&self, attention: &Attention<'_>, bound: f64) {
        let want = self.exact(attention);
        let power: f64 = want.iter().map(|x| x * x).sum::<f64>().max(1e-30);
        let pools = [1, 2, 3].map(|threads| Pool::new(threads).unwrap());
        for (level, features) in Features::detect().levels() {
            let got = self.run(attention, features, &pools[0]);
            let error: f64 = got.iter().zip(&want).map(|(&got, want)| (f64::from(got) - want).powi(2)).sum();
            let name = format!("{level} {:?} {:?} {:?}", self.heads, attention.mask, self.key_format.dtype());
            assert!(error / power <= bound, "{name}: error {:e}", error / power);
            for pool in &pools[1..] {
                assert_eq!(got, self.run(attention, features, pool), "{name}");
            }
        }
    }
}

fn plain(heads: Heads) -> Attention<'static> {
    let scale = 1.0 / (heads.key_dim as f32).sqrt();
    Attention {
        heads,
        scale,
        softcap: None,
        mask: MaskRule::Causal,
        sinks: None,
        alibi: None,
        relative: None,
        rounds: false,
    }
}

const F32: (DType, DType) = (DType::F32, DType::F32);

#[test]
fn odd_sizes() {
    for dim in [1, 2, 7, 16, 33, 64, 80, 128, 130] {
        for (tokens, cells) in [(1, 1), (1, 1000), (33, 33), (33, 700), (5, 600)] {
            let heads = Heads { heads: 6, kv_heads: 2, key_dim: dim, value_dim: dim + 3 };
            let case = Case::new(heads, F32, cells, &[(tokens, vec![0..cells as u32])]);
            case.check(&plain(heads), 1e-12);
        }
    }
}

#[test]
fn masks_and_attributes() {
    let heads = Heads { heads: 4, kv_heads: 2, key_dim: 32, value_dim: 24 };
    let sinks = random(21, 4);
    let slopes = [0.5, 0.25, 0.125, 0.0625];
    for tokens in [1, 40, 150] {
        let case = Case::new(heads, F32, 1200, &[(tokens, vec![0..1200])]);
        for mask in [
            MaskRule::Causal,
            MaskRule::Window(1),
            MaskRule::Window(100),
            MaskRule::Window(5000),
            MaskRule::Chunked(128),
            MaskRule::SymmetricWindow(65),
            MaskRule::Bidirectional,
        ] {
            case.check(&Attention { mask, ..plain(heads) }, 1e-12);
        }
        case.check(&Attention { softcap: Some(0.5), ..plain(heads) }, 1e-12);
        case.check(&Attention { sinks: Some(&sinks), ..plain(heads) }, 1e-12);
        case.check(&Attention { alibi: Some(&slopes), mask: MaskRule::Bidirectional, ..plain(heads) }, 1e-12);
        let relative = random(22, 4 * 61);
        for mask in [MaskRule::Bidirectional, MaskRule::Causal] {
            case.check(&Attention { relative: Some(&relative), mask, ..plain(heads) }, 1e-12);
        }
        let all = Attention {
            softcap: Some(2.0),
            sinks: Some(&sinks),
            alibi: Some(&slopes),
            mask: MaskRule::Window(200),
            ..plain(heads)
        };
        case.check(&all, 1e-12);
    }
}

/// Normalised mean squared error where numbers are rounded: with the matrix unit all to BF16, 1e-3 of themselves on average; without
/// it to integers of 16 bits, which lose about as much as numbers of F16 in the cache. 1.2e-7 was measured.
fn rounded() -> f64 {
    if Features::detect().names().contains(&"AMX") { 2e-5 } else { 2e-7 }
}

#[test]
fn rounded_attention_loses_no_more_than_its_numbers_do() {
    let sinks = random(21, 4);
    let slopes = [0.5, 0.25, 0.125, 0.0625];
    for (key_dim, value_dim) in [(64, 64), (33, 80), (128, 96), (16, 16)] {
        let heads = Heads { heads: 4, kv_heads: 2, key_dim, value_dim };
        let matrix = Attention { rounds: true, ..plain(heads) };
        for (tokens, cells) in [(20, 20), (40, 40), (17, 1100), (150, 1200)] {
            let case = Case::new(heads, F32, cells, &[(tokens, vec![0..cells as u32])]);
            for mask in
                [MaskRule::Causal, MaskRule::Window(100), MaskRule::Chunked(128), MaskRule::Bidirectional]
            {
                case.check(&Attention { mask, ..matrix }, rounded());
                case.check(
                    &Attention { mask, alibi: Some(&slopes), softcap: Some(2.0), ..matrix },
                    rounded(),
                );
            }
            case.check(&Attention { sinks: Some(&sinks), ..matrix }, rounded());
            case.check(&Attention { softcap: Some(0.5), ..matrix }, rounded());
            // Sharp weights, whose reference moves often.
            case.check(&Attention { scale: 2.0, ..matrix }, 50.0 * rounded());
            let (features, pool) = (Features::detect(), Pool::new(1).unwrap());
            let used = case.run(&matrix, features, &pool) != case.run(&plain(heads), features, &pool);
            let here = Features::detect().levels().iter().any(|(name, _)| *name == "avx512-vnni");
            assert_eq!(used, here, "{tokens} tokens are computed in rounded numbers where the processor can");
        }
    }
}

#[test]
fn rounded_numbers_come_from_every_format_and_several_sequences() {
    let heads = Heads { heads: 6, kv_heads: 2, key_dim: 64, value_dim: 64 };
    let matrix = Attention { rounds: true, ..plain(heads) };
    let sequences =
        [(1, vec![3..4, 10..700, 900..901]), (20, vec![800..850, 0..3]), (1, vec![]), (70, vec![2000..2070])];
    for format in formats() {
        Case::new(heads, (format, format), 2100, &sequences).check(&matrix, rounded());
    }
    let heads = Heads { heads: 71, kv_heads: 1, ..heads };
    Case::new(heads, F32, 600, &[(20, vec![0..600])])
        .check(&Attention { rounds: true, ..plain(heads) }, rounded());
}

#[test]
fn several_sequences_with_holes() {
    let heads = Heads { heads: 3, kv_heads: 3, key_dim: 16, value_dim: 16 };
    let sequences = [
        (1, vec![3..4, 10..700, 900..901]),
        (20, vec![800..850, 0..3]),
        (2, (1000..1900).step_by(3).map(|cell| cell..cell + 2).collect()),
        (1, vec![]),
        (70, vec![2000..2070]),
    ];
    let case = Case::new(heads, F32, 2100, &sequences);
    case.check(&plain(heads), 1e-12);
    // The sequence without cells yields zeros.
    let output = case.run(&plain(heads), Features::detect(), &Pool::new(1).unwrap());
    assert!(output[23 * 48..24 * 48].iter().all(|&x| x == 0.0));
}

#[test]
fn large_groups_and_unequal_heads() {
    for (heads, kv_heads, key_dim, value_dim) in [(71, 1, 64, 64), (16, 1, 576, 512), (8, 8, 256, 128)] {
        let heads = Heads { heads, kv_heads, key_dim, value_dim };
        for tokens in [1, 3, 20] {
            let case = Case::new(heads, F32, 600, &[(tokens, vec![0..600])]);
            case.check(&plain(heads), 1e-12);
        }
    }
}

#[test]
fn rows_do_not_depend_on_the_step_or_the_place_in_the_cache() {
    let heads = Heads { heads: 6, kv_heads: 2, key_dim: 64, value_dim: 64 };
    for (name, features) in Features::detect().levels() {
        for format in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
            let pool = Pool::new(2).unwrap();
            let all = Case::new(heads, (format, format), 1100, &[(200, vec![0..1100])]);
            let whole = all.run(&plain(heads), features, &pool);
            // The last token alone.
            let mut one = Case::new(heads, (format, format), 1100, &[(1, vec![0..1100])]);
            one.queries = all.queries[199 * 384..].to_vec();
            assert_eq!(one.run(&plain(heads), features, &pool), whole[199 * 384..], "{name} {format}");
            // The same rows in other cells.
            let mut moved = Case::new(heads, (format, format), 1700, &[(1, vec![500..1000, 1100..1700])]);
            moved.queries = one.queries;
            for head in 0..2 {
                for (data, old, bytes) in [
                    (&mut moved.keys, &all.keys, all.key_format.bytes()),
                    (&mut moved.values, &all.values, all.value_format.bytes()),
                ] {
                    for (index, cell) in (500..1000).chain(1100..1700).enumerate() {
                        data[(head * 1700 + cell) * bytes..][..bytes]
                            .copy_from_slice(&old[(head * 1100 + index) * bytes..][..bytes]);
                    }
                }
            }
            assert_eq!(moved.run(&plain(heads), features, &pool), whole[199 * 384..], "{name} {format}");
        }
    }
}

/// Formats whose encoder and decoder exist.
#[test]
fn rows_do_not_depend_on_what_a_window_gave_back() {
    let heads = Heads { heads: 4, kv_heads: 2, key_dim: 48, value_dim: 32 };
    for (features, window) in Features::detect()
        .levels()
        .into_iter()
        .flat_map(|(_, features)| [100, 512].map(|window| (features, window)))
    {
        let attention = Attention { mask: MaskRule::Window(window), ..plain(heads) };
        let all = Case::new(heads, F32, 1100, &[(200, vec![0..1100])]);
        let together = all.run(&attention, features, &Pool::new(2).unwrap());
        for token in [0, 1, 63, 124, 199] {
            let position = 900 + token as u32;
            // What a step of this row alone finds: the window, and some cells before it or none.
            for before in [0, 1, 37, 64, 200] {
                let mut one = Case::new(heads, F32, 1100, &[(1, vec![0..1100])]);
                let first = position + 1 - window - before;
                one.token_positions = vec![position as i32];
                one.spans =
                    vec![Span { tokens: 0..1, cells: std::iter::once(first..position + 1).collect() }];
                one.queries = all.queries[token * 4 * 48..][..4 * 48].to_vec();
                one.plan.build(&one.spans, 1, &one.cell_positions).expect("a sound step");
                let alone = one.run(&attention, features, &Pool::new(1).unwrap());
                assert_eq!(
                    alone,
                    together[token * 4 * 32..][..4 * 32],
                    "{token}, window of {window}, {before} before"
                );
            }
        }
    }
}

fn formats() -> Vec<DType> {
    CACHE_FORMATS.iter().copied().filter(|&format| RowFormat::new(format, 64).is_some()).collect()
}

#[test]
fn every_cache_format() {
    let heads = Heads { heads: 4, kv_heads: 2, key_dim: 64, value_dim: 96 };
    for key in formats() {
        for value in formats() {
            for tokens in [1, 20] {
                let case = Case::new(heads, (key, value), 300, &[(tokens, vec![0..100, 110..300])]);
                // For integer keys the query is rounded to 16-bit integers, 1.5e-5 of its largest number.
                case.check(&plain(heads), if key == DType::Q8_0 { 1e-9 } else { 1e-12 });
            }
        }
    }
    assert!(RowFormat::new(DType::Q8_0, 80).is_none());
    assert!(RowFormat::new(DType::Q4_K, 256).is_none());
}

#[test]
fn write_copy_and_shift() {
    let (heads, dim, cells) = (2, 64, 40);
    // Relative precision of a number in the format, squared.
    for (format, bound) in [(DType::F32, 1e-13), (DType::F16, 1e-6), (DType::BF16, 1e-4), (DType::Q8_0, 2e-4)]
    {
        let row = RowFormat::new(format, dim).unwrap();
        let tokens = 7;
        let numbers = random(31, tokens * heads * dim);
        let targets = [3, 4, 5, 20, 21, 39, 0];
        let mut first: Option<Vec<u8>> = None;
        for (level, features) in Features::detect().levels() {
            let mut data = vec![0xaa; heads * cells * row.bytes()];
            let mut view = CacheRowsMut::new(&mut data, row, heads, cells);
            let rows = Rows::new(&numbers, tokens, heads * dim, heads * dim);
            cache::write(features, &mut view, rows, &targets, 0..3);
            cache::write(features, &mut view, rows, &targets, 3..7);
            assert!(
                data[row.bytes()..2 * row.bytes()].iter().all(|&byte| byte == 0xaa),
                "cell 1 was touched"
            );
            let read = |data: &[u8], head: usize, cell: usize| {
                let mut out = vec![0.0; dim];
                let bytes = &data[(head * cells + cell) * row.bytes()..][..row.bytes()];
                // SAFETY: both are rows of this format.
                unsafe { row.decode(features, bytes.as_ptr(), out.as_mut_ptr()) };
                out
            };
            let near = |got: &[f32], want: &[f32], bound: f64| {
                let error: f64 = got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
                let power: f64 = want.iter().map(|&x| f64::from(x).powi(2)).sum();
                assert!(error / power <= bound, "{level} {format}: {:e}", error / power);
            };
            for head in 0..heads {
                for (token, &cell) in targets.iter().enumerate() {
                    let want = &numbers[(token * heads + head) * dim..][..dim];
                    near(&read(&data, head, cell as usize), want, bound);
                }
            }
            // All levels write the same bytes, those of the reference encoder.
            if let Some(encode) = format.format().encode {
                let mut bytes = vec![0; row.bytes()];
                encode(&numbers[..dim], &mut bytes);
                assert_eq!(bytes, data[3 * row.bytes()..][..row.bytes()], "{level} {format}");
            }
            assert_eq!(first.get_or_insert_with(|| data.clone()), &data, "{level} {format}");

            let before = data.clone();
            let mut view = CacheRowsMut::new(&mut data, row, heads, cells);
            cache::copy_cells(&mut view, 3..6, 4, 0..heads);
            cache::copy_cells(&mut view, 20..22, 19, 0..heads);
            for head in 0..heads {
                for (from, to) in [(3, 4), (4, 5), (5, 6), (20, 19), (21, 20), (39, 39)] {
                    assert_eq!(read(&data, head, to), read(&before, head, from));
                }
            }

            let mut data = before.clone();
            let rope = Rope { kind: RopeKind::Split, dims: 32, offset: 0, head_dim: dim };
            let deltas = [-5, 3, -100];
            let width = rope.table_width();
            let mut table = vec![0.0; 3 * width];
            let angles = frequencies(10000.0, 32, None);
            rope.fill_table(&angles, 1.0, &deltas, &mut RowsMut::new(&mut table, 3, width, width), 0..3);
            let mut scratch = vec![0.0; dim];
            let mut view = CacheRowsMut::new(&mut data, row, heads, cells);
            let turns = Rows::new(&table, 3, width, width);
            cache::shift_keys(features, &mut view, rope, turns, 3..6, 0..heads, &mut scratch);
            for head in 0..heads {
                for (index, cell) in (3..6).enumerate() {
                    let old = read(&before, head, cell);
                    let mut want = old.clone();
                    for (pair, angle) in angles.iter().enumerate() {
                        let (sine, cosine) = (f64::from(deltas[index]) * angle).sin_cos();
                        let (a, b) = (f64::from(old[pair]), f64::from(old[pair + 16]));
                        want[pair] = (a * cosine - b * sine) as f32;
                        want[pair + 16] = (a * sine + b * cosine) as f32;
                    }
                    near(&read(&data, head, cell), &want, bound);
                }
                assert_eq!(read(&data, head, 20), read(&before, head, 20));
            }
        }
    }
}

#[test]
fn bad_plans_are_refused() {
    let heads = Heads { heads: 4, kv_heads: 2, key_dim: 8, value_dim: 8 };
    let span = |tokens, cells| Span { tokens, cells: vec![cells] };
    assert!(Plan::new(heads).build(&[span(0..1, 0..10)], 1, &[0; 10]).is_ok());
    assert!(Plan::new(heads).build(&[span(0..2, 0..10)], 1, &[0; 10]).is_err());
    assert!(Plan::new(heads).build(&[span(0..1, 0..11)], 1, &[0; 10]).is_err());
    assert!(Plan::new(Heads { kv_heads: 3, ..heads }).build(&[], 1, &[0; 10]).is_err());
    assert!(Plan::new(Heads { kv_heads: 0, ..heads }).build(&[], 1, &[0; 10]).is_err());
}

#[test]
fn hidden_cells_may_hold_anything() {
    let heads = Heads { heads: 6, kv_heads: 2, key_dim: 32, value_dim: 48 };
    let hostile = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX];
    for (name, features) in Features::detect().levels() {
        for format in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
            for (tokens, mask, hidden) in [
                // Cells that only later tokens of the step see, or that all have left behind.
                (1, MaskRule::Window(70), 0..30),
                (3, MaskRule::Causal, 299..300),
                (3, MaskRule::Window(70), 0..100),
                (100, MaskRule::Causal, 250..300),
                (100, MaskRule::Chunked(128), 0..120),
            ] {
                let kinds = (format, if format == DType::Q8_0 { DType::F16 } else { format });
                let heads = if format == DType::Q8_0 { Heads { key_dim: 64, ..heads } } else { heads };
                let mut case = Case::new(heads, kinds, 300, &[(tokens, vec![0..100, 100..300])]);
                let attention = Attention { mask, ..plain(heads) };
                let pool = Pool::new(2).unwrap();
                let before = case.run(&attention, features, &pool);
                for (data, row) in [(&mut case.keys, case.key_format), (&mut case.values, case.value_format)]
                {
                    for (index, bytes) in data.chunks_mut(row.bytes()).enumerate() {
                        let cell = (index % case.cells) as u32;
                        if hidden.contains(&cell) {
                            let numbers = vec![hostile[index % hostile.len()]; row.dim()];
                            // SAFETY: both are rows of this format.
                            unsafe { row.encode(features, numbers.as_ptr(), bytes.as_mut_ptr()) };
                        }
                    }
                }
                let after = case.run(&attention, features, &pool);
                if tokens == 100 {
                    case.check_seen(&Attention { rounds: true, ..attention }, features, &hidden);
                }
                let width = heads.heads * heads.value_dim;
                let mut same = 0;
                for (token, (before, after)) in before.chunks(width).zip(after.chunks(width)).enumerate() {
                    let sees = |cell: u32| {
                        mask.sees(case.token_positions[token], case.cell_positions[cell as usize])
                    };
                    if !hidden.clone().any(sees) {
                        assert_eq!(before, after, "{name} {format} {mask:?} token {token} of {tokens}");
                        same += 1;
                    }
                }
                assert!(same > 0, "{mask:?}");
            }
        }
    }
}
