//! One benchmark for each family of kernels: `cargo bench -p puna-backend-cpu --bench kernels [-- WORD...]`; the words
//! choose lines.
//!
//! Each prints the median time of a call, bytes or operations per second, and which share of a limit it reaches, on one thread: of reading memory (`bandwidth`), of
//! multiplying and adding f32 (`fma`), or of four times that (`dot`: the byte dot products, where the processor has
//! them; the matrix unit can do more). The other benchmarks here explore shapes, threads and levels.
#![allow(clippy::print_stdout)] // a benchmark reports on the terminal

use std::hint::black_box;
use std::time::{Duration, Instant};

use puna_backend_cpu::bandwidth::read_bandwidth;
use puna_backend_cpu::isa::Features;
use puna_backend_cpu::kernels::activation::{Binary, binary};
use puna_backend_cpu::kernels::attention::{Attention, Heads, Inputs, Partials, Plan, Span};
use puna_backend_cpu::kernels::cache::{self, CacheRows, CacheRowsMut, RowFormat};
use puna_backend_cpu::kernels::matmul::{Activation, OutputView, PackedMatrix};
use puna_backend_cpu::kernels::norm::{Norm, NormKind};
use puna_backend_cpu::kernels::rope::{Rope, frequencies};
use puna_backend_cpu::kernels::rows::{Rows, RowsMut};
use puna_backend_cpu::kernels::vector::{Kernel, Vector, dispatch};
use puna_backend_cpu::memory::AlignedBuffer;
use puna_graph::ops::{MaskRule, RopeKind};
use puna_quant::DType;

/// What one thread can do.
struct Limits {
    /// Words that chosen lines contain.
    words: Vec<String>,
    features: Features,
    bytes_per_second: f64,
    operations_per_second: f64,
}

/// Work of one call, and the limit it is compared with.
enum Work {
    Bytes(u64),
    Operations(u64),
    ByteOperations(u64),
}

impl Limits {
    fn measure() -> Self {
        let features = Features::detect();
        let found = read_bandwidth(features, 1, 512 << 20, Duration::from_secs(2)).expect("memory");
        let best = (0..20)
            .map(|_| {
                let start = Instant::now();
                black_box(dispatch(features, Chains { rounds: 200_000 }));
                dispatch(features, ChainOperations { rounds: 200_000 }) / start.elapsed().as_secs_f64()
            })
            .fold(0.0, f64::max);
        println!("{}", features.names().join(", "));
        println!("limits of one thread: {:.1} GB/s, {:.0} GFLOP/s", found.bytes_per_second / 1e9, best / 1e9);
        let words = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
        let bytes_per_second = found.bytes_per_second;
        Self { words, features, bytes_per_second, operations_per_second: best }
    }

    /// Measures `call` for about half a second and prints its line, if that was chosen.
    fn bench(&self, group: &str, name: &str, work: Work, mut call: impl FnMut()) {
        let (amount, limit, unit, what) = match work {
            Work::Bytes(bytes) => (bytes, self.bytes_per_second, "GB/s", "bandwidth"),
            Work::Operations(count) => (count, self.operations_per_second, "GOP/s", "fma"),
            Work::ByteOperations(count) => (count, 4.0 * self.operations_per_second, "GOP/s", "dot"),
        };
        let line = format!("{group} {name}");
        if !self.words.iter().all(|word| line.contains(word.as_str())) {
            return;
        }
        // Calls that together take long compared with reading the clock.
        let mut calls = 1_usize;
        let mut times: Vec<f64> = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(500) || times.len() < 5 {
            let start = Instant::now();
            (0..calls).for_each(|_| call());
            let time = start.elapsed().as_secs_f64();
            if time < 1e-4 {
                calls *= 2;
                times.clear();
            } else {
                times.push(time / calls as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        let time = times[times.len() / 2];
        let rate = amount as f64 / time;
        let share = 100.0 * rate / limit;
        println!("{line:32} {:10.2} us {:8.1} {unit} {share:4.0} % of {what}", time * 1e6, rate / 1e9);
    }
}

/// Independent chains of multiplications and additions.
struct Chains {
    rounds: usize,
}

impl Kernel for Chains {
    type Output = f32;

    #[inline(always)]
    fn run<V: Vector>(self) -> f32 {
        let factor = V::splat(black_box(0.999));
        let mut sums = [V::splat(black_box(1.0)); 12];
        for _ in 0..self.rounds {
            for sum in 0..12 {
                sums[sum] = sums[sum].fma(factor, factor);
            }
        }
        sums.iter().map(|sum| sum.sum()).sum()
    }
}

/// How many operations [`Chains`] does.
struct ChainOperations {
    rounds: usize,
}

impl Kernel for ChainOperations {
    type Output = f64;

    #[inline(always)]
    fn run<V: Vector>(self) -> f64 {
        (2 * V::LANES * 12 * self.rounds) as f64
    }
}

const FORMATS: [DType; 13] = {
    use DType::*;
    [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, F16, BF16]
};

/// Matrices by one token (bytes) and by 512 (operations).
fn matmul(limits: &Limits) {
    for (group, tokens, columns, rows) in
        [("matmul by 1", 1, 2048, 65_536), ("matmul by 8", 8, 2048, 2048), ("matmul by 512", 512, 2048, 1024)]
    {
        for dtype in FORMATS {
            let format = dtype.format();
            // Bytes of one kind make valid blocks of every format, with small scales.
            let source = vec![0x21; rows * columns / format.block * format.bytes];
            let matrix = PackedMatrix::pack(dtype, rows, columns, &source).expect("a valid shape");
            drop(source);
            let form = matrix.activation(limits.features, tokens);
            let prepared = AlignedBuffer::new(form.bytes(tokens, columns)).expect("memory");
            let x: Vec<f32> = (0..tokens * columns).map(|index| (index % 17) as f32 - 8.0).collect();
            // SAFETY: the buffer has the activation's size and nobody else uses it.
            unsafe { form.prepare(limits.features, &x, columns, 0..tokens, prepared.as_pointer()) };
            let activation = Activation { format: form, tokens, columns, bytes: prepared.as_slice() };
            let mut output = vec![0.0; tokens * rows];
            let mut scratch = AlignedBuffer::new(matrix.scratch_bytes(form)).expect("memory");
            let operations = (2 * rows * columns * tokens) as u64;
            let work = match dtype {
                _ if tokens == 1 => Work::Bytes(matrix.bytes() as u64),
                DType::F16 | DType::BF16 => Work::Operations(operations),
                _ => Work::ByteOperations(operations),
            };
            limits.bench(group, dtype.name(), work, || {
                let out = OutputView { pointer: output.as_mut_ptr(), stride: rows };
                let (next, scratch) = (std::ptr::null(), scratch.as_mut_slice());
                // SAFETY: the output has room for all results and nobody else uses it.
                unsafe { matrix.multiply(limits.features, &activation, 0..rows, out, next, scratch) };
            });
        }
    }
}

/// One layer's attention: a prompt (operations) and one token at some depth (bytes).
fn attention(limits: &Limits) {
    let heads = Heads { heads: 8, kv_heads: 2, key_dim: 128, value_dim: 128 };
    for format in [DType::F16, DType::Q8_0] {
        let row = RowFormat::new(format, 128).expect("a cache format");
        for (tokens, cells) in [(512, 512), (1, 65_536)] {
            let bytes = heads.kv_heads * cells * row.bytes();
            let (keys, values) = (vec![0x30; bytes], vec![0x30; bytes]);
            let queries = vec![0.01; tokens * 8 * 128];
            let mut output = vec![0.0; tokens * 8 * 128];
            let spans =
                [Span { tokens: 0..tokens as u32, cells: std::iter::once(0..cells as u32).collect() }];
            let token_positions: Vec<i32> = (0..tokens).map(|i| (cells - tokens + i) as i32).collect();
            let cell_positions: Vec<i32> = (0..cells as i32).collect();
            let mask = MaskRule::Causal;
            let attention = Attention {
                heads,
                scale: 0.1,
                softcap: None,
                mask,
                sinks: None,
                alibi: None,
                relative: None,
                rounds: true,
            };
            let mut plan = Plan::new(heads);
            plan.build(&spans, tokens, &cell_positions).expect("a sound step");
            let mut partials = vec![0.0; plan.partial_floats()];
            let mut scratch = vec![0.0; plan.scratch_floats()];
            let seen = tokens * (2 * cells - tokens + 1) / 2;
            let work = match tokens {
                1 => Work::Bytes(2 * bytes as u64),
                _ => Work::Operations((2 * seen * 8 * 256) as u64),
            };
            limits.bench("attention", &format!("{format} {tokens} by {cells}"), work, || {
                // SAFETY: used by this call only, whose parts run one after the other.
                let partials = unsafe { Partials::new(partials.as_mut_ptr(), partials.len()) };
                let inputs = Inputs {
                    queries: Rows::new(&queries, tokens, 8 * 128, 8 * 128),
                    keys: CacheRows::new(&keys, row, 2, cells),
                    values: CacheRows::new(&values, row, 2, cells),
                    token_positions: &token_positions,
                    cell_positions: &cell_positions,
                };
                let out = RowsMut::new(&mut output, tokens, 8 * 128, 8 * 128);
                for chunk in 0..plan.chunks() {
                    attention.run(limits.features, &plan, &inputs, &out, partials, chunk, &mut scratch);
                }
                for chunk in 0..plan.merge_chunks() {
                    attention.merge(limits.features, &plan, &out, partials, chunk, &mut scratch);
                }
            });
        }
    }
}

/// Operations on rows, which read and write the nearest caches: bytes.
fn rows(limits: &Limits) {
    const ROWS: usize = 16;
    const WIDTH: usize = 2048;
    let group = "rows";
    let features = limits.features;
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|index| (index % 13) as f32 * 0.1 - 0.6).collect();
    let weight = vec![1.0; WIDTH];
    let mut y = vec![0.0; ROWS * WIDTH];
    let bytes = |streams: usize| Work::Bytes((streams * 4 * ROWS * WIDTH) as u64);
    let view = || Rows::new(&x, ROWS, WIDTH, WIDTH);
    limits.bench(group, "norm", bytes(2), || {
        let (kind, weight) = (NormKind::Rms, Some(&weight[..]));
        let norm = Norm { kind, epsilon: 1e-5, groups: 1, weight, bias: None };
        norm.run(features, view(), &mut RowsMut::new(&mut y, ROWS, WIDTH, WIDTH), 0..ROWS);
    });
    limits.bench(group, "gate", bytes(3), || {
        let out = &mut RowsMut::new(&mut y, ROWS, WIDTH, WIDTH);
        binary(features, Binary::SiluGate, view(), view(), out, 0..ROWS);
    });
    let rope = Rope { kind: RopeKind::Split, dims: 64, offset: 0, head_dim: 64 };
    let width = rope.table_width();
    let mut table = vec![0.0; ROWS * width];
    let positions: Vec<i32> = (0..ROWS as i32).collect();
    let angles = frequencies(10_000.0, 64, None);
    rope.fill_table(&angles, 1.0, &positions, &mut RowsMut::new(&mut table, ROWS, width, width), 0..ROWS);
    limits.bench(group, "rope", bytes(2), || {
        let out = &mut RowsMut::new(&mut y, ROWS, WIDTH, WIDTH);
        rope.run(features, Rows::new(&table, ROWS, width, width), view(), out, 0..ROWS);
    });
    let cells: Vec<u32> = (0..ROWS as u32).collect();
    for dtype in [DType::F16, DType::Q8_0] {
        let format = RowFormat::new(dtype, 64).expect("a cache format");
        let mut data = vec![0; WIDTH / 64 * ROWS * format.bytes()];
        limits.bench(group, &format!("cache write {dtype}"), bytes(1), || {
            let mut rows = CacheRowsMut::new(&mut data, format, WIDTH / 64, ROWS);
            cache::write(features, &mut rows, view(), &cells, 0..ROWS);
        });
    }
    let matrix = PackedMatrix::pack(DType::Q8_0, 16, WIDTH, &vec![0; 16 * WIDTH / 32 * 34]).expect("valid");
    for tokens in [1, 512] {
        let form = matrix.activation(features, tokens);
        let prepared = AlignedBuffer::new(form.bytes(ROWS, WIDTH)).expect("memory");
        limits.bench(group, &format!("prepare {form:?}"), bytes(1), || {
            // SAFETY: the buffer has the activation's size and nobody else uses it.
            unsafe { form.prepare(features, &x, WIDTH, 0..ROWS, prepared.as_pointer()) };
        });
    }
}

fn main() {
    let limits = Limits::measure();
    matmul(&limits);
    attention(&limits);
    rows(&limits);
}
