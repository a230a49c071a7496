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
const BATCHES: [usize; 7] = [1, 4, 8, 12, 16, 32, 512];

struct Buffers {
    activation: AlignedBuffer,
    output: AlignedBuffer,
    scratch: Vec<AlignedBuffer>,
}

fn main() {
    // Words select: a format, a level, a shape (1536x576) or a number of tokens. `cached` measures one matrix again
    // and again, so the kernel rather than the memory.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let selected = |name: &str| words.iter().any(|word| word.eq_ignore_ascii_case(name));
    let or_all = |all: Vec<String>| -> Vec<String> {
        let some: Vec<String> = all.iter().filter(|name| selected(name)).cloned().collect();
        if some.is_empty() { all } else { some }
    };
    use DType::*;
    let usual = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, Q4_K, Q5_K, Q6_K, F16, BF16, F32];
    let mut formats: Vec<DType> =
        FORMATS.iter().map(|format| format.dtype).filter(|dtype| selected(dtype.name())).collect();
    if formats.is_empty() {
        formats = usual.to_vec();
    }
    let shapes = or_all(SHAPES.iter().map(|(rows, columns)| format!("{rows}x{columns}")).collect());
    let batches = or_all(BATCHES.iter().map(usize::to_string).collect());
    let best = Features::detect();
    let levels = best.levels();
    let mut levels: Vec<_> = levels.into_iter().filter(|(name, _)| selected(name)).collect();
    if levels.is_empty() {
        levels.push(("best", best));
    }
    for (level, features) in levels {
        println!("level {level}");
        prepare(features);
        for &dtype in &formats {
            for (rows, columns) in SHAPES {
                if columns % dtype.block() == 0 && shapes.contains(&format!("{rows}x{columns}")) {
                    let batches: Vec<usize> =
                        BATCHES.into_iter().filter(|tokens| batches.contains(&tokens.to_string())).collect();
                    bench(dtype, features, rows, columns, &batches, selected("cached"), selected("alike"));
                }
            }
        }
    }
}

/// Prints nanoseconds per 1000 numbers for the preparation of activations.
fn prepare(features: Features) {
    let (tokens, columns) = (64, 2048);
    let x: Vec<f32> = (0..tokens * columns).map(|index| (index % 23) as f32 - 11.0).collect();
    print!("prepare");
    use ActivationFormat::*;
    for format in [F32, Q8, Bf16, Q16] {
        let memory = AlignedBuffer::new(format.bytes(tokens, columns)).expect("memory");
        let best = (0..50).map(|_| {
            let start = processor_time();
            // SAFETY: the buffer has the activation's size.
            unsafe { format.prepare(features, &x, columns, 0..tokens, memory.as_pointer()) };
            processor_time() - start
        });
        let nanoseconds = best.min().unwrap_or_default().as_secs_f64() * 1e9;
        print!("  {format:?} {:.0} ns", nanoseconds * 1e3 / x.len() as f64);
    }
    println!();
}

/// Prints GB/s (1 token) or TOP/s with 1 and 2 threads.
fn bench(
    dtype: DType,
    features: Features,
    rows: usize,
    columns: usize,
    batches: &[usize],
    cached: bool,
    alike: bool,
) {
    let source = source(dtype, rows, columns);
    let start = Instant::now();
    let first = PackedMatrix::pack(dtype, rows, columns, &source).expect("a valid shape");
    let pack = start.elapsed();
    // Enough copies to exceed the caches, as the layers of a model do.
    let copies = if cached { 1 } else { (100_000_000 / first.bytes()).clamp(1, 64) };
    let mut matrices = vec![first];
    while matrices.len() < copies {
        matrices.push(PackedMatrix::pack(dtype, rows, columns, &source).expect("a valid shape"));
    }
    // A pass takes long compared with the start of its threads.
    let matrices: Vec<&PackedMatrix> = matrices.iter().cycle().take(matrices.len().max(32)).collect();
    let bytes: usize = matrices.iter().map(|matrix| matrix.bytes()).sum();
    let shape = format!("{rows}x{columns}");
    print!("{dtype:6} {shape:>9} pack {:5.2} ms", pack.as_secs_f64() * 1e3);
    for &tokens in batches {
        let rate = |threads| {
            let seconds = measure(&matrices, features, tokens, threads, alike).as_secs_f64();
            let operations = 2.0 * (rows * columns * tokens * matrices.len()) as f64;
            if tokens == 1 { bytes as f64 / seconds / 1e9 } else { operations / seconds / 1e12 }
        };
        print!("  {tokens}: {:.2} {:.2}{}", rate(1), rate(2), if tokens == 1 { " GB/s" } else { "" });
    }
    println!();
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

/// Shortest processor time of one pass over all matrices (of the slower thread).
fn measure(
    matrices: &[&PackedMatrix],
    features: Features,
    tokens: usize,
    threads: usize,
    alike: bool,
) -> Duration {
    let (rows, columns) = (matrices[0].rows(), matrices[0].columns());
    let format: ActivationFormat = matrices[0].activation(features, if alike { 1 } else { tokens });
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
        let times: Vec<Duration> = std::thread::scope(|scope| {
            let workers: Vec<_> = buffers
                .scratch
                .iter_mut()
                .enumerate()
                .map(|(thread, scratch)| {
                    let (activation, barrier) = (&activation, &barrier);
                    scope.spawn(move || {
                        let bound = |thread: usize| (groups * thread / threads * 16).min(rows);
                        barrier.wait();
                        let start = processor_time();
                        for matrix in matrices {
                            let out = OutputView { pointer: pointer as *mut f32, stride: rows };
                            let rows = bound(thread)..bound(thread + 1);
                            // SAFETY: the output has room for all results; threads write different rows.
                            unsafe {
                                matrix.multiply(
                                    features,
                                    activation,
                                    rows,
                                    out,
                                    std::ptr::null(),
                                    scratch.as_mut_slice(),
                                )
                            };
                        }
                        processor_time() - start
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        });
        best = best.min(times.into_iter().max().unwrap_or(Duration::MAX));
    }
    best
}

/// Time this thread has spent on a processor; unlike the time of day it leaves out what neighbours took.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
