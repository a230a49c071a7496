//! Running batches: how the work is cut and placed must not change the result.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use puna_backend::reference::Reference;
use puna_backend::*;
use puna_graph::CacheGroup::{self, Full, Window};
use puna_graph::{Graph, Op, Step};
use puna_runtime::{Batch, ModelOptions, OutputRows, RuntimeError};
use support::*;

const MIXED: [CacheGroup; 3] = [Window(8), Full, Window(8)];

#[test]
fn a_prompt_in_one_step_equals_token_by_token() {
    for layers in [vec![Full, Full], MIXED.to_vec(), vec![Window(8)]] {
        let handmade = Handmade::new(&layers, 1);
        let tokens = text(60, 2);
        let whole = all_rows(&mut handmade.load(&options(64, 1, 512)), 0, &tokens);
        let mut model = handmade.load(&options(64, 1, 512));
        let single: Vec<f32> = tokens.iter().flat_map(|token| all_rows(&mut model, 0, &[*token])).collect();
        assert_same(&single, &whole);
        for micro_batch in [1, 2, 3, 7] {
            let cut = all_rows(&mut handmade.load(&options(64, 1, micro_batch)), 0, &tokens);
            assert_same(&cut, &whole);
        }
        let few = ModelOptions { outputs: 2, ..options(64, 1, 512) };
        assert_same(&all_rows(&mut handmade.load(&few), 0, &tokens), &whole);
    }
}

#[test]
fn ragged_sequences_in_one_batch_equal_single_ones() {
    let handmade = Handmade::new(&MIXED, 3);
    let texts: Vec<Vec<u32>> = [17, 3, 40, 1, 12].iter().map(|n| text(*n, *n as u64)).collect();
    for micro_batch in [1, 5, 16, 512] {
        let mut model = handmade.load(&options(256, 5, micro_batch));
        // Each text in two parts, so that the second batch meets caches of all sequences.
        let part = |first: bool| {
            let parts = texts.iter().enumerate().map(|(sequence, tokens)| {
                let (head, tail) = tokens.split_at(tokens.len() / 3);
                work(sequence as u32, if first { head } else { tail }, OutputRows::All)
            });
            parts.collect::<Vec<_>>()
        };
        let (first, second) = (run(&mut model, part(true)), run(&mut model, part(false)));
        for (sequence, tokens) in texts.iter().enumerate() {
            let mut found = Vec::new();
            for outputs in [&first, &second] {
                for (index, row) in outputs.rows.iter().enumerate() {
                    if row.sequence == sequence as u32 {
                        assert_eq!(row.position as usize * VOCABULARY as usize, found.len());
                        found.extend_from_slice(outputs.row(index));
                    }
                }
            }
            let alone = all_rows(&mut handmade.load(&options(256, 1, 512)), 0, tokens);
            assert_same(&found, &alone);
            assert_eq!(model.length(sequence as u32) as usize, tokens.len());
        }
    }
}

#[test]
fn one_sequence_may_appear_twice_in_a_batch() {
    let handmade = Handmade::new(&MIXED, 4);
    let tokens = text(20, 5);
    let whole = all_rows(&mut handmade.load(&options(64, 2, 512)), 0, &tokens);
    let mut model = handmade.load(&options(64, 2, 512));
    let parts = vec![
        work(1, &tokens[..9], OutputRows::All),
        work(0, &tokens[..4], OutputRows::None),
        work(1, &tokens[9..], OutputRows::All),
        work(0, &[], OutputRows::Last),
    ];
    let outputs = run(&mut model, parts);
    assert_same(&outputs.logits, &whole);
    assert_eq!(outputs.rows.last().map(|row| (row.sequence, row.position)), Some((1, 19)));
    assert_eq!(model.length(0), 4);
}

#[test]
fn only_the_rows_asked_for_come_back() {
    let handmade = Handmade::new(&[Full], 6);
    let tokens = text(30, 7);
    let whole = all_rows(&mut handmade.load(&options(64, 1, 7)), 0, &tokens);
    let mut model = handmade.load(&options(64, 1, 7));
    let none = run(&mut model, vec![work(0, &tokens[..20], OutputRows::None)]);
    assert!(none.rows.is_empty() && none.logits.is_empty());
    let last = run(&mut model, vec![work(0, &tokens[20..], OutputRows::Last)]);
    assert_eq!(last.rows.len(), 1);
    assert_same(last.last(0).expect("has a row"), &whole[29 * VOCABULARY as usize..]);
}

#[test]
fn long_texts_in_windows_equal_those_that_forget_nothing() {
    let handmade = Handmade::new(&MIXED, 8);
    let tokens = text(300, 9);
    let all = ModelOptions { full_window_cache: true, ..options(300, 1, 512) };
    let whole = all_rows(&mut handmade.load(&all), 0, &tokens);
    for micro_batch in [1, 6, 50] {
        let mut model = handmade.load(&options(300, 2, micro_batch));
        assert_same(&all_rows(&mut model, 1, &tokens), &whole);
        assert!(model.positions(1).start > 0, "old positions were recycled");
        assert_eq!(model.positions(1).end, 300);
    }
}

#[test]
fn a_full_context_is_refused_and_changes_nothing() {
    let handmade = Handmade::new(&MIXED, 10);
    let tokens = text(60, 11);
    let mut model = handmade.load(&options(40, 2, 8));
    let whole = all_rows(&mut handmade.load(&options(64, 2, 8)), 0, &tokens[..36]);
    all_rows(&mut model, 0, &tokens[..30]);
    let too_long = Batch::of(vec![work(0, &tokens[30..41], OutputRows::All)]);
    let refused = model.run(&too_long);
    assert!(
        matches!(refused, Err(RuntimeError::ContextFull { needed: 11, free: 10, context: 40 })),
        "{refused:?}"
    );
    let both = vec![work(0, &tokens[30..36], OutputRows::All), work(1, &tokens[..5], OutputRows::All)];
    let refused = model.run(&Batch::of(both));
    assert!(
        matches!(refused, Err(RuntimeError::ContextFull { needed: 11, free: 10, context: 40 })),
        "{refused:?}"
    );
    assert_eq!((model.length(0), model.length(1), model.free_cells()), (30, 0, 10));
    let rest = all_rows(&mut model, 0, &tokens[30..36]);
    assert_same(&rest, &whole[30 * VOCABULARY as usize..]);
    // A full conversation does not stop a new one from starting once it is cleared.
    all_rows(&mut model, 0, &tokens[36..40]);
    assert_eq!(model.free_cells(), 0);
    model.clear(0);
    assert_same(&all_rows(&mut model, 1, &tokens[..36]), &whole);
}

#[test]
fn tokens_and_sequences_out_of_range_are_refused() {
    let mut model = Handmade::new(&[Full], 12).load(&options(40, 2, 8));
    let mut refuse =
        |sequence, token| model.run(&Batch::of(vec![work(sequence, &[token], OutputRows::Last)]));
    let token = refuse(0, VOCABULARY);
    assert!(matches!(
        token,
        Err(RuntimeError::TokenOutOfRange { token: VOCABULARY, vocabulary: VOCABULARY })
    ));
    let sequence = refuse(2, 0);
    assert!(matches!(sequence, Err(RuntimeError::SequenceOutOfRange { sequence: 2, sequences: 2 })));
    assert!(refuse(0, u32::MAX).is_err() && refuse(u32::MAX, 0).is_err());
    assert_eq!((model.length(0), model.length(2), model.length(u32::MAX)), (0, 0, 0));
    assert_eq!(run(&mut model, Vec::new()).rows, []);
}

/// The evaluator, without some operations, and failing at some run.
struct Limited {
    lacks: &'static [&'static str],
    runs_until_failure: Arc<AtomicUsize>,
}

struct LimitedPartition(Box<dyn Partition>, Arc<AtomicUsize>);

impl Backend for Limited {
    fn name(&self) -> &'static str {
        "limited"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        Reference.devices()
    }

    fn supports(&self, graph: &Graph, node: usize) -> bool {
        !self.lacks.contains(&graph.nodes[node].op.name())
    }

    fn load(
        &self,
        device: DeviceId,
        segment: Segment,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Box<dyn Partition>, BackendError> {
        let nodes = &segment.graph.nodes[segment.nodes.clone()];
        assert!(nodes.iter().all(|node| !self.lacks.contains(&node.op.name())));
        let partition = Reference.load(device, segment, weights, caches, progress)?;
        Ok(Box::new(LimitedPartition(partition, self.runs_until_failure.clone())))
    }
}

impl Partition for LimitedPartition {
    fn compile(&mut self, bounds: Bounds) -> Result<ProgramId, BackendError> {
        self.0.compile(bounds)
    }

    fn run(&mut self, program: ProgramId, step: &Step, boundary: &mut Boundary) -> Result<(), BackendError> {
        if self.1.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(BackendError::Device { device: "limited".into(), reason: "test".into() });
        }
        self.0.run(program, step, boundary)
    }

    fn states(&mut self) -> &mut dyn States {
        self.0.states()
    }

    fn memory(&self) -> MemoryUse {
        self.0.memory()
    }
}

fn limited(lacks: &'static [&'static str], runs: usize) -> (Arc<AtomicUsize>, Vec<Arc<dyn Backend>>) {
    let runs_until_failure = Arc::new(AtomicUsize::new(runs));
    let first = Limited { lacks, runs_until_failure: runs_until_failure.clone() };
    (runs_until_failure, vec![Arc::new(first), Arc::new(Reference)])
}

#[test]
fn a_failing_device_leaves_lengths_as_they_were() {
    let handmade = Handmade::new(&[Full, Window(8)], 13);
    let tokens = text(60, 14);
    let whole = all_rows(&mut handmade.load(&options(64, 2, 4)), 0, &tokens);
    let (runs, backends) = limited(&[], usize::MAX);
    let mut model = handmade.load_on(&backends, &options(64, 2, 4));
    all_rows(&mut model, 0, &tokens[..5]);
    runs.store(1, Ordering::Relaxed);
    let batch = vec![work(0, &tokens[5..12], OutputRows::All), work(1, &tokens[..9], OutputRows::All)];
    assert!(matches!(model.run(&Batch::of(batch)), Err(RuntimeError::Backend(_))));
    assert_eq!((model.length(0), model.length(1), model.free_cells()), (5, 0, 59));
    runs.store(usize::MAX, Ordering::Relaxed);
    assert_same(&all_rows(&mut model, 0, &tokens[5..]), &whole[5 * VOCABULARY as usize..]);

    // A failure so late that the window has lost what the old length needs: the sequence is empty, not wrong.
    model.clear(0);
    all_rows(&mut model, 0, &tokens[..20]);
    runs.store(8, Ordering::Relaxed);
    assert!(model.run(&Batch::of(vec![work(0, &tokens[20..60], OutputRows::All)])).is_err());
    assert_eq!((model.length(0), model.free_cells()), (0, 64));
    runs.store(usize::MAX, Ordering::Relaxed);
    assert_same(&all_rows(&mut model, 0, &tokens), &whole);
}

#[test]
fn what_one_back_end_lacks_another_runs() {
    let handmade = Handmade::new(&MIXED, 15);
    let tokens = text(50, 16);
    let whole = all_rows(&mut handmade.load(&options(64, 1, 7)), 0, &tokens);
    for lacks in [&["Attention"][..], &["Rope", "Glu"], &["MatMul"], &["GatherRows"]] {
        let (_, backends) = limited(lacks, usize::MAX);
        let mut model = handmade.load_on(&backends, &options(64, 1, 7));
        assert!(model.memory().len() > 1, "it was cut into segments");
        assert_same(&all_rows(&mut model, 0, &tokens), &whole);
        let saved = model.save(0, &tokens).expect("saves");
        handmade.load(&options(64, 1, 7)).restore(0, &saved).expect("restores what other segments saved");
    }
    let graph = &handmade.graph;
    assert!(graph.nodes.iter().any(|node| matches!(node.op, Op::Attention(_))));
}

#[test]
fn loading_reports_progress_and_can_be_cancelled_or_refused() {
    let handmade = Handmade::new(&MIXED, 17);
    let load =
        |backends: &[Arc<dyn Backend>], options: &ModelOptions, progress: &mut dyn FnMut(f32) -> bool| {
            handmade.try_load(backends, options, progress)
        };
    let (_, backends) = limited(&["Attention"], usize::MAX);
    let mut last = 0.0;
    let mut progress = |share: f32| {
        assert!((last..=1.0).contains(&share));
        last = share;
        true
    };
    assert!(load(&backends, &options(64, 1, 7), &mut progress).is_ok());
    assert_eq!(last, 1.0);
    assert!(matches!(load(&reference(), &options(64, 1, 7), &mut |_| false), Err(RuntimeError::Cancelled)));
    let (_, lacking) = limited(&["Attention"], usize::MAX);
    let refused = load(&lacking[..1], &options(64, 1, 7), &mut |_| true);
    assert!(matches!(refused, Err(RuntimeError::Unsupported { op: "Attention", .. })));
    for wrong in [options(0, 1, 7), options(64, 0, 7), options(64, 1, 0), options(u32::MAX, 1, 7)] {
        let refused = load(&reference(), &wrong, &mut |_| true);
        assert!(matches!(refused, Err(RuntimeError::Option { .. })), "{wrong:?}");
    }
    assert!(matches!(load(&[], &options(64, 1, 7), &mut |_| true), Err(RuntimeError::NoDevice { .. })));
}
