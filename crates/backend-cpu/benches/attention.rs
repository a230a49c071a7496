//! Speed of attention: `cargo bench -p puna-backend-cpu --bench attention`.
//!
//! Reports billions of multiply-adds per second (of the cells that are seen), which is what counts in prefill, and
//! the bytes of the cache per second, which is what counts in decode.
#![allow(clippy::print_stdout)] // a benchmark reports on the terminal

use std::time::Instant;

use puna_backend_cpu::isa::Features;
use puna_backend_cpu::kernels::attention::{Attention, Heads, Inputs, Partials, Plan, Span};
use puna_backend_cpu::kernels::cache::{CacheRows, RowFormat};
use puna_backend_cpu::kernels::rows::{Rows, RowsMut};
use puna_backend_cpu::pool::{Pool, Scratch, Stage};
use puna_graph::ops::MaskRule;
use puna_quant::DType;

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

/// Least seconds of one layer's attention.
fn measure(heads: Heads, format: DType, tokens: usize, cells: usize, features: Features, pool: &Pool) -> f64 {
    let Heads { heads: count, kv_heads, key_dim, value_dim } = heads;
    let row = |dim| RowFormat::new(format, dim).expect("a cache format");
    let (key_format, value_format) = (row(key_dim), row(value_dim));
    // Several layers in turn, so that the cache of one is not still at hand when its turn comes again.
    let layers = if tokens == 1 { (64 << 20) / (kv_heads * cells * key_format.bytes()) + 1 } else { 1 };
    // 0x30 bytes are small numbers in all formats.
    let keys: Vec<Vec<u8>> = (0..layers).map(|_| vec![0x30; kv_heads * cells * key_format.bytes()]).collect();
    let values: Vec<Vec<u8>> =
        (0..layers).map(|_| vec![0x30; kv_heads * cells * value_format.bytes()]).collect();
    let queries = vec![0.01; tokens * count * key_dim];
    let mut output = vec![0.0; tokens * count * value_dim];
    let spans = [Span { tokens: 0..tokens as u32, cells: std::iter::once(0..cells as u32).collect() }];
    let token_positions: Vec<i32> = (0..tokens).map(|i| (cells - tokens + i) as i32).collect();
    let cell_positions: Vec<i32> = (0..cells as i32).collect();
    let scale = 1.0 / (key_dim as f32).sqrt();
    let attention = Attention {
        heads,
        scale,
        softcap: None,
        mask: MaskRule::Causal,
        sinks: None,
        alibi: None,
        relative: None,
        rounds: true,
    };
    let mut plan = Plan::new(heads);
    plan.build(&spans, tokens, &cell_positions).expect("a sound step");
    let mut partials = vec![0.0; plan.partial_floats()];
    // SAFETY: used by these two stages only.
    let partials = unsafe { Partials::new(partials.as_mut_ptr(), partials.len()) };
    let pointer = &Pointer(output.as_mut_ptr());
    let width = count * value_dim;
    // SAFETY: chunks touch different parts of the rows.
    let out = move || unsafe { RowsMut::from_raw(pointer.0, tokens, width, width) };
    let bytes = 4 * plan.scratch_floats();
    let mut times = Vec::new();
    for round in 0..2 + 24 / layers.min(8) {
        for layer in 0..layers {
            let run = Chunks {
                chunks: plan.chunks(),
                bytes,
                run: |chunk, scratch: &mut [f32]| {
                    let inputs = Inputs {
                        queries: Rows::new(&queries, tokens, count * key_dim, count * key_dim),
                        keys: CacheRows::new(&keys[layer], key_format, kv_heads, cells),
                        values: CacheRows::new(&values[layer], value_format, kv_heads, cells),
                        token_positions: &token_positions,
                        cell_positions: &cell_positions,
                    };
                    attention.run(features, &plan, &inputs, &out(), partials, chunk, scratch);
                },
            };
            let merge = Chunks {
                chunks: plan.merge_chunks(),
                bytes,
                run: |chunk, scratch: &mut [f32]| {
                    attention.merge(features, &plan, &out(), partials, chunk, scratch);
                },
            };
            let start = Instant::now();
            pool.run(&[&run, &merge]).expect("memory");
            if round > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    times.sort_by(f64::total_cmp);
    times[0]
}

fn main() {
    // Words after `--` choose lines: only those that contain all of them are measured.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let levels = Features::detect().levels();
    let shapes = [
        ("smollm2-135m", Heads { heads: 9, kv_heads: 3, key_dim: 64, value_dim: 64 }),
        ("llama-8b", Heads { heads: 32, kv_heads: 8, key_dim: 128, value_dim: 128 }),
        ("gemma-270m", Heads { heads: 4, kv_heads: 1, key_dim: 256, value_dim: 256 }),
        ("mha-64", Heads { heads: 16, kv_heads: 16, key_dim: 64, value_dim: 64 }),
    ];
    for threads in [1, 2] {
        let pool = match Pool::new(threads) {
            Ok(pool) => pool,
            Err(error) => return println!("{error}"),
        };
        let different = ["avx2", "avx512", "amx", "neon"];
        for &(level, features) in levels.iter().filter(|(name, _)| different.contains(name)) {
            for (name, heads) in shapes {
                for format in [DType::F32, DType::F16, DType::Q8_0] {
                    let start = format!("{threads} threads {level:7} {name:13} {format:5}");
                    let dims = heads.key_dim + heads.value_dim;
                    for (kind, tokens, cells) in
                        [("prefill", 512, 512), ("decode", 1, 512), ("decode", 1, 4096), ("decode", 1, 16384)]
                    {
                        let line = format!("{start} {kind} {cells}");
                        if !words.iter().all(|word| line.contains(word.as_str())) {
                            continue;
                        }
                        let time = measure(heads, format, tokens, cells, features, &pool);
                        let seen = tokens * (2 * cells - tokens + 1) / 2;
                        let products = (seen * heads.heads * dims) as f64 / time * 1e-9;
                        let bytes =
                            format.bytes_for(dims as u64).unwrap_or(0) as usize * cells * heads.kv_heads;
                        let rate = bytes as f64 / time * 1e-9;
                        println!("{line}: {:8.1} us {products:6.1} GMAC/s {rate:5.1} GB/s", time * 1e6);
                    }
                }
            }
        }
    }
}
