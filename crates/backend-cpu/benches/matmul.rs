//! Speed of matrix multiplication: `cargo bench -p puna-backend-cpu --bench matmul [-- FORMAT...]`.
//!
//! Decode (1 token) reads a matrix larger than the second-level cache: GB/s of packed weights. Prefill (512 tokens)
//! prints TOP/s (a multiplication and an addition are two).
#![allow(clippy::print_stdout)] // printing is what this program does

use puna_backend_cpu::isa::Features;
use puna_backend_cpu::kernels::matmul::{Activation, ActivationFormat, OutputView, PackedMatrix};
use puna_backend_cpu::memory::AlignedBuffer;
use puna_quant::{DType, FORMATS};
use std::time::{Duration, Instant};

/// Rows and columns: the widths of small models, and one of a larger model.
const SHAPES: [(usize, usize); 4] = [(1536, 576), (576, 1536), (2048, 640), (4096, 4096)];
const BATCHES: [usize; 6] = [1, 4, 8, 16, 32, 512];

struct Buffers {
    activation: AlignedBuffer,
    output: AlignedBuffer,
    scratch: Vec<AlignedBuffer>,
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with("--")).collect();
    let formats: Vec<DType> = if wanted.is_empty() {
        use DType::*;
        vec![Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, Q4_K, Q5_K, Q6_K, F16, BF16, F32]
    } else {
        FORMATS
            .iter()
            .map(|format| format.dtype)
            .filter(|dtype| wanted.iter().any(|name| name.eq_ignore_ascii_case(dtype.name())))
            .collect()
    };
    let features = Features::detect();
    for (level, features) in features.levels() {
        if !wanted.is_empty() && wanted.iter().any(|name| name == level)
            || features == Features::detect() && !wanted.iter().any(|name| name.starts_with("avx"))
        {
            println!("level {level}");
            for &dtype in &formats {
                bench(dtype, features);
            }
        }
    }
}

fn bench(dtype: DType, features: Features) {
    println!(
        "{dtype:8} {:>11} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "shape", "pack ms", "1x1 GB/s", "1x2 GB/s", "tokens", "TOP/s 1, 2 threads"
    );
    for (rows, columns) in SHAPES {
        if columns % dtype.block() != 0 {
            continue;
        }
        let source = source(dtype, rows, columns);
        let start = Instant::now();
        let first = PackedMatrix::pack(dtype, rows, columns, &source).expect("a valid shape");
        let pack = start.elapsed();
        // Enough copies to exceed the caches, as the layers of a model do.
        let copies = (100_000_000 / first.bytes()).clamp(1, 64);
        let mut matrices = vec![first];
        while matrices.len() < copies {
            matrices.push(PackedMatrix::pack(dtype, rows, columns, &source).expect("a valid shape"));
        }
        let bytes: usize = matrices.iter().map(PackedMatrix::bytes).sum();
        print!("{dtype:8} {:>11} {:8.2}", format!("{rows}x{columns}"), pack.as_secs_f64() * 1e3);
        for threads in [1, 2] {
            let time = measure(&matrices, features, 1, threads);
            print!(" {:10.1}", bytes as f64 / time.as_secs_f64() / 1e9);
        }
        for tokens in BATCHES {
            let operations = 2.0 * (rows * columns * tokens * matrices.len()) as f64;
            let rates = [1, 2].map(|threads| {
                operations / measure(&matrices, features, tokens, threads).as_secs_f64() / 1e12
            });
            print!("  {tokens}: {:.2} {:.2}", rates[0], rates[1]);
        }
        println!();
    }
}

/// Blocks with all scales 1 and codes in every position.
fn source(dtype: DType, rows: usize, columns: usize) -> Vec<u8> {
    let format = dtype.format();
    let mut bytes: Vec<u8> = (0..rows * columns / format.block * format.bytes)
        .map(|index| (index as u32).wrapping_mul(2654435761).to_le_bytes()[3])
        .collect();
    for block in bytes.chunks_exact_mut(format.bytes) {
        for field in format.floats {
            use puna_quant::FloatField::*;
            match *field {
                F16(at) => block[at..at + 2].copy_from_slice(&0x3c00u16.to_le_bytes()),
                BF16(at) => block[at..at + 2].copy_from_slice(&0x3f80u16.to_le_bytes()),
                F32(at) => block[at..at + 4].copy_from_slice(&1.0f32.to_le_bytes()),
                F64(at) => block[at..at + 8].copy_from_slice(&1.0f64.to_le_bytes()),
                E8M0(at) => block[at] = 127,
                SplitF16(_) => {}
            }
        }
    }
    bytes
}

/// Shortest time of one pass over all matrices.
fn measure(matrices: &[PackedMatrix], features: Features, tokens: usize, threads: usize) -> Duration {
    let (rows, columns) = (matrices[0].rows(), matrices[0].columns());
    let format: ActivationFormat = matrices[0].activation(features, tokens);
    let memory = |bytes| AlignedBuffer::new(bytes).expect("memory");
    let mut buffers = Buffers {
        activation: memory(format.bytes(tokens, columns)),
        output: memory(tokens * rows * 4),
        scratch: (0..threads).map(|_| memory(matrices[0].scratch_bytes(format))).collect(),
    };
    let x: Vec<f32> = (0..tokens * columns).map(|index| (index % 17) as f32 - 8.0).collect();
    // SAFETY: the buffer has the activation's size.
    unsafe { format.prepare(features, &x, columns, 0..tokens, buffers.activation.as_pointer()) };
    let activation = Activation { format, tokens, columns, bytes: buffers.activation.as_slice() };
    let pointer = buffers.output.as_pointer() as usize;
    let groups = rows.div_ceil(16);
    let begin = Instant::now();
    let mut best = Duration::MAX;
    let barrier = std::sync::Barrier::new(threads);
    while best == Duration::MAX || begin.elapsed() < Duration::from_millis(200) {
        let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
            let workers: Vec<_> = buffers
                .scratch
                .iter_mut()
                .enumerate()
                .map(|(thread, scratch)| {
                    let (activation, barrier) = (&activation, &barrier);
                    scope.spawn(move || {
                        let bound = |thread: usize| (groups * thread / threads * 16).min(rows);
                        barrier.wait();
                        let start = Instant::now();
                        for matrix in matrices {
                            let out = OutputView { pointer: pointer as *mut f32, stride: rows };
                            let rows = bound(thread)..bound(thread + 1);
                            // SAFETY: the output has room for all results; threads write different rows.
                            unsafe {
                                matrix.multiply(features, activation, rows, out, scratch.as_mut_slice())
                            };
                        }
                        (start, Instant::now())
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        });
        let start = spans.iter().map(|span| span.0).min();
        let end = spans.iter().map(|span| span.1).max();
        if let (Some(start), Some(end)) = (start, end) {
            best = best.min(end - start);
        }
    }
    best
}
