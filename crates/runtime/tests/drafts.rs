//! Draft heads against their forward passes in numpy, on the evaluator and on the processor.

mod support;

use std::sync::Arc;

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::zoo::{DraftModel, draft_models};
use puna_quant::DType;
use puna_runtime::{
    Batch, DraftOutputs, Model, ModelOptions, OutputRows, Placement, Pooling, Purpose, RuntimeError, Work,
};
use support::normalised_squared_error;

/// Squared error against `float64`: sums in `f32`.
const EXACT: f64 = 1e-10;

fn backends() -> Vec<Arc<dyn Backend>> {
    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).expect("threads start");
    vec![Arc::new(Reference), Arc::new(cpu)]
}

fn load(model: &DraftModel, backend: &Arc<dyn Backend>, purpose: Purpose, micro_batch: u32) -> Model {
    let options = ModelOptions {
        context: 256,
        sequences: 3,
        micro_batch,
        keys: DType::F32,
        values: DType::F32,
        purpose,
        ..ModelOptions::default()
    };
    let backends = [backend.clone()];
    Model::load(Arc::new(model.open()), &backends, &Placement::default(), &options, &mut |_| true)
        .expect("the draft head loads")
}

fn work(sequence: u32, tokens: &[u32], outputs: OutputRows) -> Work {
    Work { sequence, tokens: tokens.to_vec(), outputs }
}

fn run(model: &mut Model, work: Vec<Work>, features: &[Vec<f32>]) -> DraftOutputs {
    model.run_draft(&Batch::of(work), features).expect("the batch runs")
}

#[track_caller]
fn same(found: &[f32], model: &DraftModel, kind: &str) {
    let error = normalised_squared_error(found, &model.expected[kind]);
    assert!(error <= EXACT, "{} {kind}: {error:.1e}", model.name);
}

fn of(architecture: &str) -> Vec<DraftModel> {
    draft_models().into_iter().filter(|model| model.architecture() == architecture).collect()
}

#[test]
fn eagle3_fuses_states_and_drafts_from_its_own() {
    for (model, backend) in
        of("eagle3").iter().flat_map(|model| backends().into_iter().map(move |b| (model, b)))
    {
        let purpose = Purpose::Embed(Some(Pooling::None));
        let mut fusing = load(model, &backend, purpose, 7);
        assert_eq!(fusing.feature_width(), Some(model.width as u32));
        let fused = run(
            &mut fusing,
            vec![work(0, &model.tokens, OutputRows::All)],
            std::slice::from_ref(&model.features),
        );
        let fused = fused.rows.logits.into_vec();
        same(&fused, model, "fused");

        let mut head = load(model, &backend, Purpose::Generate, 64);
        let found =
            run(&mut head, vec![work(0, &model.tokens, OutputRows::All)], std::slice::from_ref(&fused));
        same(&found.rows.logits, model, "logits");
        same(&found.hidden, model, "hidden");
        let width = head.feature_width().expect("it takes features") as usize;
        let last = found.hidden[found.hidden.len() - width..].to_vec();
        let next = run(&mut head, vec![work(0, &[model.best], OutputRows::Last)], &[last]);
        same(&next.rows.logits, model, "next.logits");

        // In small steps, beside another sequence, and after going back.
        let mut head = load(model, &backend, Purpose::Generate, 5);
        let (first, rest) = model.tokens.split_at(9);
        run(&mut head, vec![work(1, &model.tokens, OutputRows::None)], std::slice::from_ref(&fused));
        head.truncate(1, 9).expect("it can go back");
        let batch = vec![work(2, first, OutputRows::None), work(1, rest, OutputRows::All)];
        let (head_of, rest_of) = fused.split_at(9 * width);
        let found = run(&mut head, batch, &[head_of.to_vec(), rest_of.to_vec()]);
        let vocabulary = found.rows.width;
        let error = normalised_squared_error(&found.rows.logits, &model.expected["logits"][9 * vocabulary..]);
        assert!(error <= EXACT, "{}: {error:.1e}", model.name);
    }
}

#[test]
fn dflash_drafts_a_block_over_states() {
    for (model, backend) in
        of("dflash").iter().flat_map(|model| backends().into_iter().map(move |b| (model, b)))
    {
        let mut head = load(model, &backend, Purpose::Generate, 64);
        let block = work(0, &model.block, OutputRows::All);
        let text = work(0, &model.tokens, OutputRows::None);
        let found = run(&mut head, vec![text.clone(), block.clone()], &[model.features.clone(), Vec::new()]);
        same(&found.rows.logits, model, "logits");
        let best =
            (0..found.rows.width).max_by(|a, b| found.rows.row(0)[*a].total_cmp(&found.rows.row(0)[*b]));
        assert_eq!(best, Some(model.best as usize));
        assert!(found.hidden.is_empty());

        // The block is dropped, as when its tokens were refused, and drafted again, in a step of its own.
        head.truncate(0, model.tokens.len() as u32).expect("it can go back");
        let found = run(&mut head, vec![block], &[Vec::new()]);
        same(&found.rows.logits, model, "logits");
    }
}

#[test]
fn features_that_do_not_fit_are_refused() {
    let backend = &backends()[0];
    for model in draft_models() {
        let mut head = load(&model, backend, Purpose::Generate, 64);
        let width = head.feature_width().expect("it takes features") as usize;
        let batch = Batch::of(vec![work(0, &[1, 2], OutputRows::Last)]);
        let short = head.run_draft(&batch, &[vec![0.0; 2 * width - 1]]).expect_err("one number is missing");
        assert!(matches!(short, RuntimeError::Features { work: 0, .. }), "{short}");
        let more = head.run_draft(&batch, &[vec![0.0; 2 * width], vec![0.0]]).expect_err("a work is missing");
        assert!(matches!(more, RuntimeError::Features { work: 1, .. }), "{more}");
        assert_eq!(head.run(&batch).is_err(), model.architecture() == "eagle3", "{}", model.name);
    }
}
