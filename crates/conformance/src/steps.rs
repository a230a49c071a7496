//! Steps on empty caches, without the runtime's ledgers.

use std::ops::Range;

use puna_graph::{CacheGroup, Graph, GroupStep, PooledRows, Span, Step, ValueId};

/// Rows of each text, one after another.
fn sequences(texts: &[&[u32]]) -> Vec<Range<u32>> {
    let mut start = 0;
    let next = |text: &&[u32]| {
        start += text.len() as u32;
        start - text.len() as u32..start
    };
    texts.iter().map(next).collect()
}

/// The step that embeds these texts together, and the value with the embeddings.
pub fn embedding(graph: &Graph, texts: &[&[u32]]) -> (Step, ValueId) {
    let sequences = sequences(texts);
    let positions: Vec<i32> = texts.iter().flat_map(|text| 0..text.len() as i32).collect();
    let (value, rows) = graph.embeddings().expect("the graph makes embeddings");
    let output_rows = sequences.iter().flat_map(|sequence| match rows {
        PooledRows::All => sequence.clone(),
        PooledRows::First => sequence.start..sequence.start + 1,
        PooledRows::Last | PooledRows::Mean => sequence.end - 1..sequence.end,
    });
    let group = GroupStep::of_rows(&positions, &sequences);
    let step = Step {
        tokens: texts.concat(),
        output_rows: output_rows.collect(),
        groups: graph.groups().iter().map(|_| group.clone()).collect(),
        positions,
        sequences,
        ..Step::default()
    };
    (step, value)
}

/// The step in which the encoder reads tokens and the decoder others; every row of the decoder is an output.
pub fn encoder_and_decoder(graph: &Graph, encoder: &[u32], tokens: &[u32]) -> Step {
    let (read, rows) = (encoder.len() as u32, tokens.len() as u32);
    let (encoder_positions, positions): (Vec<i32>, Vec<i32>) =
        ((0..read as i32).collect(), (0..rows as i32).collect());
    let group = |group: &CacheGroup| match group {
        CacheGroup::EncoderStep => GroupStep::of_rows(&encoder_positions, std::slice::from_ref(&(0..read))),
        CacheGroup::Encoder => GroupStep {
            write_cells: (0..read).collect(),
            cell_positions: encoder_positions.clone(),
            spans: vec![Span { tokens: 0..rows, cells: std::iter::once(0..read).collect() }],
        },
        _ => GroupStep::of_rows(&positions, std::slice::from_ref(&(0..rows))),
    };
    Step {
        groups: graph.groups().iter().map(group).collect(),
        tokens: tokens.to_vec(),
        positions: positions.clone(),
        output_rows: (0..rows).collect(),
        sequences: std::iter::once(0..rows).collect(),
        encoder_tokens: encoder.to_vec(),
        encoder_positions: encoder_positions.clone(),
        ..Step::default()
    }
}
