//! From a model's last rows to embeddings and scores.

use puna_graph::ops::{Function, GatherRows, MatMul, MeanRows, Softmax};
use puna_graph::{Graph, Input, Operand, Output, PooledRows, ValueId};

use crate::builder::Norm;
use crate::{Builder, ModelError, Pooling, Purpose};

/// What becomes of a pooled row where scores are asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Classifier {
    /// Rows it reads if the file does not say; `None` for the first one, or the last of a causal model.
    pub rows: Option<PooledRows>,
    /// Function of its first matrix's result.
    pub function: Function,
    /// Whether scores become shares of one.
    pub softmax: bool,
}

impl Default for Classifier {
    fn default() -> Self {
        Self { rows: None, function: Function::Tanh, softmax: false }
    }
}

/// How rows become an embedding.
const KEY: &str = "pooling_type";
/// The scores of a classifier, one if the file does not say.
const LABELS: &str = "classifier.output_labels";
/// The same for what a classifier reads.
const ROWS_KEY: &str = "classifier.pooling_type";

impl Builder<'_> {
    /// How rows are pooled: as the options say, else as `pooling_type` does, else not at all.
    pub fn pooling(&self) -> Result<Pooling, ModelError> {
        if let Purpose::Embed(Some(pooling)) = self.purpose() {
            return Ok(pooling);
        }
        self.pooling_key(KEY).map(|pooling| pooling.unwrap_or(Pooling::None))
    }

    /// Refuses a file whose poolings are none, whatever it is asked for.
    pub fn check_pooling(&self) -> Result<(), ModelError> {
        [KEY, ROWS_KEY].iter().try_for_each(|key| self.pooling_key(key).map(|_| ()))
    }

    fn pooling_key(&self, key: &str) -> Result<Option<Pooling>, ModelError> {
        let Some(number) = self.optional_u32(key)? else { return Ok(None) };
        let known = Pooling::ALL.get(number as usize);
        known
            .map(|(pooling, _)| Some(*pooling))
            .ok_or_else(|| self.value_error(key, number, "between 0 and 4"))
    }

    /// Refuses to make anything but embeddings.
    pub fn only_embeds(&self) -> Result<(), ModelError> {
        match self.purpose() {
            Purpose::Embed(_) => Ok(()),
            Purpose::Generate | Purpose::GuessAhead => {
                Err(ModelError::NoLogits { architecture: self.architecture().to_string() })
            }
        }
    }

    /// Embeddings of an encoder, from its last rows.
    pub fn encoded(self, x: ValueId) -> Result<Graph, ModelError> {
        self.only_embeds()?;
        self.embeddings(x)
    }

    /// Pools the rows of each sequence; then come the classifier, if scores are asked for, and the matrices
    /// `dense_2` and `dense_3`, if the file has them.
    pub fn embeddings(mut self, x: ValueId) -> Result<Graph, ModelError> {
        let pooling = self.pooling()?;
        let rows = match pooling {
            Pooling::None => PooledRows::All,
            Pooling::Mean => PooledRows::Mean,
            Pooling::Cls => PooledRows::First,
            Pooling::Last => PooledRows::Last,
            Pooling::Rank => self.classified_rows()?,
        };
        let inputs = vec![x.into(), Operand::Input(Input::OutputRows)];
        let mut x = match rows {
            PooledRows::Mean => self.push(MeanRows, inputs, "pooled")?,
            _ => self.push(GatherRows, inputs, "output_rows")?,
        };
        if pooling == Pooling::Rank {
            x = self.classified(x)?;
        }
        let has_second = self.has_any(&["dense_3"]);
        if has_second || self.has_any(&["dense_2"]) {
            let said = [self.said_globally("dense_2.weight", 1), self.said_globally("dense_3.weight", 0)];
            let width = self.agreed(self.optional_u32("dense_2_feat_out")?, said)?;
            x = self.linear("dense_2", x, width)?;
        }
        if has_second {
            let said = self.said_globally("dense_3.weight", 1);
            let width = self.agreed(self.optional_u32("dense_3_feat_out")?, [said])?;
            x = self.linear("dense_3", x, width)?;
        }
        Ok(self.finish(vec![(Output::Embeddings(rows), x)]))
    }

    fn classified_rows(&self) -> Result<PooledRows, ModelError> {
        if let Some(rows) = self.classifier().rows.filter(|_| !self.has_key(ROWS_KEY)) {
            return Ok(rows);
        }
        Ok(match self.pooling_key(ROWS_KEY)? {
            Some(Pooling::Mean) => PooledRows::Mean,
            _ if self.is_bidirectional() => PooledRows::First,
            _ => PooledRows::Last,
        })
    }

    /// Scores: `cls.output · f(cls · x)`, either matrix and the norm `cls.norm` between if the file has them.
    fn classified(&mut self, x: ValueId) -> Result<ValueId, ModelError> {
        let classifier = self.classifier();
        let (inner, outer) = (self.has("cls.weight"), self.has("cls.output.weight"));
        if !inner && !outer {
            return Err(ModelError::NoClassifier);
        }
        let mut x = x;
        if inner {
            // As wide as the model, or the scores themselves.
            let (full, labels) = (self.width(x), self.array_length(LABELS)?.max(1));
            if !outer && labels != full && self.has_rows("cls.weight", full) {
                return Err(self.missing_tensor("cls.output.weight".to_string()));
            }
            let width = if outer { full } else { labels };
            x = self.linear("cls", x, width)?;
            x = self.unary(classifier.function, x, "cls_function")?;
            if self.has("cls.norm.weight") {
                let epsilon = self.f32_or("attention.layer_norm_epsilon", 1e-5)?;
                let outer = self.norm_kind()?;
                self.set_norm_kind(Norm::Layer(epsilon));
                x = self.norm("cls.norm", x)?;
                self.set_norm_kind(outer);
            }
        }
        if outer {
            let labels = self.array_length(LABELS)?.max(1);
            let weight = self.weight("cls.output.weight", &[labels, self.width(x)])?;
            let mut inputs = vec![weight, x.into()];
            inputs.extend(self.optional_weight("cls.output.bias", &[labels])?);
            x = self.push(MatMul, inputs, "cls.output")?;
        }
        if classifier.softmax {
            x = self.push(Softmax, vec![x.into()], "cls_shares")?;
        }
        Ok(x)
    }
}
