//! Draft heads: models that read states of another model beside tokens.

use puna_graph::{Graph, Op};

use crate::{Batch, Model, Outputs, RuntimeError};

/// What a draft head gives.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DraftOutputs {
    /// Rows of logits, in the order of the batch.
    pub rows: Outputs,
    /// `[rows, width]`: the head's own states of these rows, the features of the tokens that follow; empty for heads that do
    /// not read their own states.
    pub hidden: Vec<f32>,
}

/// Numbers in a row of features, if the graph takes any.
pub(crate) fn feature_width(graph: &Graph) -> Option<u32> {
    graph.nodes.iter().find_map(|node| match node.op {
        Op::Features(features) => Some(features.width),
        _ => None,
    })
}

/// Features of a batch's rows, handed out step by step.
pub(crate) struct FeatureRows<'f> {
    width: usize,
    /// For each work its number of rows and their features, none or one for each.
    works: Vec<(usize, &'f [f32])>,
    /// The work that comes next, and how many of its rows are gone.
    next: (usize, usize),
}

impl FeatureRows<'_> {
    /// The next so many rows: which of them have features, and these.
    pub(crate) fn take(&mut self, rows: usize) -> (Vec<u32>, Vec<f32>) {
        let (mut featured, mut numbers) = (Vec::new(), Vec::new());
        let mut row = 0;
        while row < rows {
            let (work, gone) = self.next;
            let Some((count, features)) = self.works.get(work) else { break };
            let taken = (count - gone).min(rows - row);
            if !features.is_empty() {
                featured.extend(row as u32..(row + taken) as u32);
                numbers.extend_from_slice(&features[gone * self.width..(gone + taken) * self.width]);
            }
            row += taken;
            self.next = if gone + taken == *count { (work + 1, 0) } else { (work, gone + taken) };
        }
        (featured, numbers)
    }
}

impl Model {
    /// Numbers in a row of features, if the model is a draft head, or fuses states for one.
    pub fn feature_width(&self) -> Option<u32> {
        feature_width(&self.graph)
    }

    /// [`Model::run`] of a draft head. `features` has an entry for each work: [`Model::feature_width`] numbers for each of
    /// its tokens, or nothing, which only those heads take that tell the two kinds of rows apart (of DFlash, rows with
    /// features fill the caches, rows without are the block to draft).
    pub fn run_draft(&mut self, batch: &Batch, features: &[Vec<f32>]) -> Result<DraftOutputs, RuntimeError> {
        self.run_with(batch, features)
    }

    /// Refuses features that do not fit the batch.
    pub(crate) fn check_features<'f>(
        &self,
        batch: &Batch,
        features: &'f [Vec<f32>],
    ) -> Result<FeatureRows<'f>, RuntimeError> {
        let width = self.feature_width().unwrap_or(0) as usize;
        let optional =
            width == 0 || self.graph.nodes.iter().any(|node| matches!(node.op, Op::PreferFeatured(_)));
        let mut works = Vec::with_capacity(batch.work.len());
        for (index, work) in batch.work.iter().enumerate() {
            let given = features.get(index).map_or(&[][..], Vec::as_slice);
            let expected = work.tokens.len().saturating_mul(width);
            if given.len() != expected && !(optional && given.is_empty()) {
                return Err(RuntimeError::Features { work: index, found: given.len(), expected });
            }
            works.push((work.tokens.len(), given));
        }
        match features.get(works.len()) {
            Some(more) => Err(RuntimeError::Features { work: works.len(), found: more.len(), expected: 0 }),
            None => Ok(FeatureRows { width, works, next: (0, 0) }),
        }
    }
}
