//! Selective state space layers (Gu and Dao, arXiv 2312.00752; Dao and Gu, arXiv 2405.21060).

use puna_graph::ops::{Function, SelectiveScan};
use puna_graph::{Operand, ValueId};

use crate::{Builder, ModelError};

/// The values that a scan reads, already split: `u` `[Tokens, heads, dim]`, time steps `[Tokens, heads]`, `b` and `c`
/// `[Tokens, groups, size]`.
#[derive(Clone, Copy, Debug)]
pub struct ScanInputs {
    /// Input.
    pub u: ValueId,
    /// Time steps, after softplus.
    pub steps: ValueId,
    /// What is written to the state.
    pub b: ValueId,
    /// What is read from it.
    pub c: ValueId,
}

impl Builder<'_> {
    /// Mamba 1: `[Tokens, width]` to the same.
    pub fn mamba1(&mut self, x: ValueId) -> Result<ValueId, ModelError> {
        let inner = self.extent("ssm.inner_size")?;
        let (size, rank) = (self.extent("ssm.state_size")?, self.extent("ssm.time_step_rank")?);
        let both = self.linear("ssm_in", x, 2 * inner)?;
        let (u, z) = (self.slice(both, 0, inner)?, self.slice(both, inner, inner)?);
        let u = self.short_convolution("ssm_conv1d", u)?;
        let u = self.unary(Function::Silu, u, "ssm_conv1d")?;
        let projected = self.linear("ssm_x", u, rank + 2 * size)?;
        let mut steps = self.slice(projected, 0, rank)?;
        let (mut b, mut c) = (self.slice(projected, rank, size)?, self.slice(projected, rank + size, size)?);
        if self.has_any(&["ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"]) {
            steps = self.norm("ssm_dt_norm", steps)?;
            (b, c) = (self.norm("ssm_b_norm", b)?, self.norm("ssm_c_norm", c)?);
        }
        let steps = self.linear("ssm_dt", steps, inner)?;
        let steps = self.unary(Function::Softplus, steps, "ssm_dt")?;
        let rates = self.weight("ssm_a", &[inner, size])?;
        let u = self.split_heads(u, 1)?;
        let (b, c) = (self.split_heads(b, size)?, self.split_heads(c, size)?);
        let y = self.selective_scan(ScanInputs { u, steps, b, c }, rates)?;
        let y = self.join_heads(y)?;
        let y = self.glu(Function::Silu, z, y)?;
        let width = self.width(x);
        self.linear("ssm_out", y, width)
    }

    /// Mamba 2, with a norm before the output if the file has `ssm_norm`: `[Tokens, width]` to the same.
    pub fn mamba2(&mut self, x: ValueId) -> Result<ValueId, ModelError> {
        let (inner, size) = (self.extent("ssm.inner_size")?, self.extent("ssm.state_size")?);
        let (heads, groups) = (self.extent("ssm.time_step_rank")?, self.extent("ssm.group_count")?);
        if !inner.is_multiple_of(heads) || !inner.is_multiple_of(groups) {
            return Err(self.value_error("ssm.inner_size", inner, "a multiple of heads and of groups"));
        }
        let Some(side) = groups.checked_mul(size).filter(|side| *side <= 1 << 24) else {
            return Err(self.value_error("ssm.state_size", size, "smaller with so many groups"));
        };
        let all = self.linear("ssm_in", x, 2 * inner + 2 * side + heads)?;
        let (z, mixed) = (self.slice(all, 0, inner)?, self.slice(all, inner, inner + 2 * side)?);
        let steps = self.slice(all, 2 * inner + 2 * side, heads)?;
        let mixed = self.short_convolution("ssm_conv1d", mixed)?;
        let mixed = self.unary(Function::Silu, mixed, "ssm_conv1d")?;
        let u = self.slice(mixed, 0, inner)?;
        let (b, c) = (self.slice(mixed, inner, side)?, self.slice(mixed, inner + side, side)?);
        let bias = self.weight("ssm_dt.bias", &[heads])?;
        let steps = self.add(steps, bias)?;
        let steps = self.unary(Function::Softplus, steps, "ssm_dt")?;
        let rates = self.weight("ssm_a", &[heads])?;
        let u = self.split_heads(u, inner / heads)?;
        let (b, c) = (self.split_heads(b, size)?, self.split_heads(c, size)?);
        let y = self.selective_scan(ScanInputs { u, steps, b, c }, rates)?;
        let y = self.join_heads(y)?;
        let mut y = self.glu(Function::Silu, z, y)?;
        if self.has("ssm_norm.weight") {
            let split = self.split_heads(y, inner / groups)?;
            let normed = self.norm("ssm_norm", split)?;
            y = self.join_heads(normed)?;
        }
        let width = self.width(x);
        self.linear("ssm_out", y, width)
    }

    /// The recurrence with its skip `ssm_d`.
    pub fn selective_scan(&mut self, inputs: ScanInputs, rates: Operand) -> Result<ValueId, ModelError> {
        let ScanInputs { u, steps, b, c } = inputs;
        let heads = self.heads_of(u);
        let state = self.recurrent_state(&[heads, self.width(u), self.width(b)])?;
        let skip = self.weight("ssm_d", &[heads])?;
        let inputs = vec![u.into(), steps.into(), rates, b.into(), c.into(), skip];
        self.push(SelectiveScan { state }, inputs, "ssm_scan")
    }
}
