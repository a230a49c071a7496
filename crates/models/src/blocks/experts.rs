//! Mixture of experts in place of a feed-forward network.

use puna_graph::ValueId;
use puna_graph::ops::{ExpertWeights, Function, Gating, MatMulExperts, RouteExperts, SumExperts};

use crate::{Builder, ModelError};

impl Builder<'_> {
    /// Number of experts, 0 in a dense model.
    pub fn expert_count(&self) -> Result<u32, ModelError> {
        let experts = self.u32_or("expert_count", 0)?;
        if experts > 1024 {
            return Err(self.value_error("expert_count", experts, "at most 1024"));
        }
        Ok(experts)
    }

    /// Routes each row to its best experts (`ffn_gate_inp`), runs their gated networks (`ffn_gate_exps`,
    /// `ffn_up_exps`, `ffn_down_exps`) and adds them up by their shares.
    pub fn experts(
        &mut self,
        x: ValueId,
        function: Function,
        gating: Gating,
        normalise: bool,
    ) -> Result<ValueId, ModelError> {
        let experts = self.expert_count()?;
        let used = self.layer_u32("expert_used_count")?.unwrap_or(0);
        if used == 0 || used > experts {
            return Err(self.value_error("expert_used_count", used, "between 1 and expert_count"));
        }
        let hidden = match self.layer_u32("expert_feed_forward_length")? {
            Some(hidden) if hidden > 0 => hidden,
            _ => self.layer_u32("feed_forward_length")?.unwrap_or(0),
        };
        let width = self.width(x);
        let scale = self.applied_f32("expert_weights_scale")?.unwrap_or(1.0);

        let logits = self.linear("ffn_gate_inp", x, experts)?;
        let chosen = self.push(RouteExperts { used, gating }, vec![logits.into()], "expert_choice")?;
        let shares = self.push(
            ExpertWeights { gating, normalise, scale },
            vec![logits.into(), chosen.into()],
            "expert_shares",
        )?;
        let project =
            |b: &mut Self, name: &'static str, file_name: &str, x: ValueId, rows: u32, columns: u32| {
                let weight = b.weight(file_name, &[experts, rows, columns])?;
                b.push(MatMulExperts, vec![weight, x.into(), chosen.into()], name)
            };
        let gate = project(self, "ffn_gate_exps", "ffn_gate_exps.weight", x, hidden, width)?;
        let up = project(self, "ffn_up_exps", "ffn_up_exps.weight", x, hidden, width)?;
        let h = self.glu(function, gate, up)?;
        let h = project(self, "ffn_down_exps", "ffn_down_exps.weight", h, width, hidden)?;
        self.push(SumExperts, vec![h.into(), shares.into()], "ffn_experts")
    }
}
