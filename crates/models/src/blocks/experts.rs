//! Mixture of experts in place of a feed-forward network.

use puna_graph::ops::{
    AddExpertBias, ChooseByTable, ExpertGroups, ExpertWeights, Function, GatherRows, Gating, MatMulExperts,
    RouteExperts, ScaleRows, SumExperts,
};
use puna_graph::{Input, Operand, ValueId};

use super::feed_forward::SHARED_EXPERT;
use super::{Activation, FeedForward, GateSource};
use crate::builder::Claim;
use crate::{Builder, ModelError};

/// What varies between mixtures. Keys of the file (`expert_gating_func`, `expert_weights_norm`,
/// `expert_weights_scale`, `expert_group_count`) win over the defaults here.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Experts {
    /// Gating if the file does not say; none if it must.
    pub gating: Option<Gating>,
    /// Whether shares are divided by their sum, if the file does not say.
    pub normalise: bool,
    /// Whether experts, shared ones too, have a gate.
    pub gated: bool,
    /// How an expert's gate and value become one.
    pub activation: Activation,
    /// The same of the shared expert, if it differs.
    pub shared_activation: Option<Activation>,
    /// Whether shares multiply the experts' inputs instead of their results.
    pub scales_input: bool,
    /// What the router reads, if not the experts' input.
    pub router_input: Option<ValueId>,
}

impl Experts {
    /// SwiGLU experts.
    pub fn new(gating: impl Into<Option<Gating>>, normalise: bool) -> Self {
        Self {
            gating: gating.into(),
            normalise,
            gated: true,
            activation: Function::Silu.into(),
            shared_activation: None,
            scales_input: false,
            router_input: None,
        }
    }
}

/// A router's decision for the rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// Chosen experts, `[Tokens, used]`.
    pub chosen: ValueId,
    /// Their shares, `[Tokens, used]`.
    pub shares: ValueId,
    /// Experts that one number in `chosen` stands for, 1 unless the choice is of groups.
    pub groups: u32,
}

/// Names of the experts' tensors: gate, up, down.
pub const EXPERTS: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
/// Gate and value in one.
const FUSED: &str = "ffn_gate_up_exps";
/// Width of an expert.
const WIDTH: &str = "expert_feed_forward_length";
/// Experts of each token of the vocabulary, in layers without a choice by score.
const TABLE: &str = "ffn_gate_tid2eid.weight";
/// Names of GroveMoE's chunk experts.
pub const CHUNK_EXPERTS: [&str; 3] = ["ffn_gate_chexps", "ffn_up_chexps", "ffn_down_chexps"];

impl Builder<'_> {
    /// Number of experts, 0 in a dense model.
    pub fn expert_count(&self) -> Result<u32, ModelError> {
        let experts = self.u32_or("expert_count", 0)?;
        if experts > 1024 {
            return Err(self.value_error("expert_count", experts, "at most 1024"));
        }
        Ok(experts)
    }

    /// Whether the layer has a router or experts: then it must have both.
    pub fn has_experts(&self) -> bool {
        self.has_any(&["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps"])
    }

    /// Whether the layer has a shared expert, by its tensors or because `expert_shared_count` says so.
    pub fn has_shared_expert(&self) -> Result<bool, ModelError> {
        let counted = self.u32_or("expert_shared_count", 0)? > 0;
        Ok(counted || self.has_any(&SHARED_EXPERT) || self.has_any(&["ffn_gate_inp_shexp"]))
    }

    /// The dense network, or where the layer has a router (`ffn_gate_inp`) its experts and its shared expert.
    pub fn dense_or_experts(
        &mut self,
        x: ValueId,
        network: impl Into<FeedForward>,
        experts: &Experts,
    ) -> Result<ValueId, ModelError> {
        if !self.has_experts() {
            return self.feed_forward(x, network);
        }
        self.experts_and_shared(x, experts)
    }

    /// Experts, plus the shared expert if the layer has one; a `ffn_gate_inp_shexp` weighs that.
    pub fn experts_and_shared(&mut self, x: ValueId, experts: &Experts) -> Result<ValueId, ModelError> {
        let routed = self.experts(x, experts)?;
        if !self.has_shared_expert()? {
            return Ok(routed);
        }
        let mut shared = self.shared_network(x, experts)?;
        if self.has("ffn_gate_inp_shexp.weight") {
            let gate = self.linear("ffn_gate_inp_shexp", x, 1)?;
            let gate = self.unary(Function::Sigmoid, gate, "ffn_gate_inp_shexp")?;
            let width = self.width(shared);
            let rows = self.split_heads(shared, width)?;
            let scaled = self.push(ScaleRows, vec![rows.into(), gate.into()], "ffn_shexp_gated")?;
            shared = self.join_heads(scaled)?;
        }
        self.add(routed, shared)
    }

    /// The shared expert of a mixture.
    pub fn shared_network(&mut self, x: ValueId, experts: &Experts) -> Result<ValueId, ModelError> {
        let gate = if experts.gated { GateSource::Separate } else { GateSource::None };
        self.shared_expert(x, gate, experts.shared_activation.unwrap_or(experts.activation))
    }

    /// Routes each row to its best experts, runs their networks and adds them up by their shares.
    pub fn experts(&mut self, x: ValueId, experts: &Experts) -> Result<ValueId, ModelError> {
        let routing = self.route(experts.router_input.unwrap_or(x), experts)?;
        self.run_experts(x, routing, experts, EXPERTS)
    }

    /// The router `ffn_gate_inp` with the selection bias `exp_probs_b`.
    pub fn route(&mut self, x: ValueId, experts: &Experts) -> Result<Routing, ModelError> {
        let count = self.expert_count()?;
        if count == 0 {
            return Err(self.value_error("expert_count", 0, "above 0 in a layer with experts"));
        }
        let used = self.layer_u32("expert_used_count")?.unwrap_or(0);
        if used == 0 || used > count {
            return Err(self.value_error("expert_used_count", used, "between 1 and expert_count"));
        }
        let gating = self.gating(experts.gating)?;
        let normalise = self.bool_or("expert_weights_norm", experts.normalise)?;
        let scale = self.applied_f32("expert_weights_scale")?.unwrap_or(1.0);
        let groups = match self.u32_or("expert_group_count", 0)? {
            0 | 1 => None,
            groups => {
                let used_groups = self.u32_or("expert_group_used_count", 0)?;
                if !(1..=groups).contains(&used_groups) {
                    let rule = "between 1 and expert_group_count";
                    return Err(self.value_error("expert_group_used_count", used_groups, rule));
                }
                if !count.is_multiple_of(groups) {
                    return Err(self.value_error("expert_group_count", groups, "a divisor of expert_count"));
                }
                if count / groups * used_groups < used {
                    let rule = "enough for the groups to have expert_used_count experts";
                    return Err(self.value_error("expert_group_used_count", used_groups, rule));
                }
                Some(ExpertGroups { count: groups, used: used_groups })
            }
        };

        let weight = self.weight("ffn_gate_inp.weight", &[count, self.width(x)])?;
        let mut inputs = vec![weight, x.into()];
        inputs.extend(self.optional_weight("ffn_gate_inp.bias", &[count])?);
        let logits = self.push(puna_graph::ops::MatMul, inputs, "ffn_gate_inp")?;
        let chosen = if self.layer() < self.u32_or("hash_layer_count", 0)? || self.has(TABLE) {
            self.choose_by_table(count, used)?
        } else {
            let mut inputs = vec![logits.into()];
            inputs.extend(match self.has("exp_probs_b") {
                true => self.optional_weight("exp_probs_b", &[count])?,
                false => self.optional_weight("exp_probs_b.bias", &[count])?,
            });
            self.push(RouteExperts { used, gating, groups }, inputs, "expert_choice")?
        };
        let mut inputs = vec![logits.into(), chosen.into()];
        inputs.extend(self.optional_weight("ffn_down_exps.scale", &[count])?);
        let shares = self.push(ExpertWeights { gating, normalise, scale }, inputs, "expert_shares")?;
        Ok(Routing { chosen, shares, groups: 1 })
    }

    /// Experts by the rows of a table at the step's tokens, which the file has as integers.
    fn choose_by_table(&mut self, experts: u32, used: u32) -> Result<ValueId, ModelError> {
        let table = self.integer_weight(TABLE, &[self.vocabulary()?, used])?;
        let rows = self.push(GatherRows, vec![table, Operand::Input(Input::Tokens)], "expert_table")?;
        self.push(ChooseByTable { experts }, vec![rows.into()], "expert_choice")
    }

    fn gating(&self, default: Option<Gating>) -> Result<Gating, ModelError> {
        const KEY: &str = "expert_gating_func";
        match (self.u32_or(KEY, 0)?, default) {
            (0, Some(default)) => Ok(default),
            (0, None) if !self.has_key(KEY) => Err(self.missing_key(KEY)),
            (1, _) => Ok(Gating::Softmax),
            (2, _) => Ok(Gating::Sigmoid),
            (3, _) => Ok(Gating::SoftmaxOfChosen),
            (4, _) => Ok(Gating::SqrtSoftplus),
            (other, _) => Err(self.value_error(KEY, other, "between 1 and 4")),
        }
    }

    /// Runs the chosen experts' networks on `x` and adds them up by their shares.
    pub fn run_experts(
        &mut self,
        x: ValueId,
        routing: Routing,
        experts: &Experts,
        [gate_name, up_name, down_name]: [&'static str; 3],
    ) -> Result<ValueId, ModelError> {
        let width = self.width(x);
        let is_main = up_name == EXPERTS[1];
        let is_fused =
            experts.gated && is_main && self.either("ffn_gate_up_exps.weight", "ffn_up_exps.weight")?;
        let hidden = match (is_fused, is_main) {
            (true, _) => self.fused_experts_width()?,
            (false, true) => self.network_width(self.expert_width()?, experts.gated, EXPERTS)?,
            (false, false) => self.network_width(None, experts.gated, [gate_name, up_name, down_name])?,
        };
        match self.layer_u32(WIDTH)? {
            // 0 says nothing.
            Some(width) if is_main && width > 0 && width != hidden => {
                return Err(self.value_error(WIDTH, width, "the width of the experts' tensors"));
            }
            _ => {}
        }
        let (gate, up) = if is_fused {
            let both = self.project_experts(FUSED, x, hidden.saturating_mul(2), routing)?;
            (Some(self.slice(both, 0, hidden)?), self.slice(both, hidden, hidden)?)
        } else {
            let gate = match experts.gated {
                true => Some(self.project_experts(gate_name, x, hidden, routing)?),
                false => None,
            };
            (gate, self.project_experts(up_name, x, hidden, routing)?)
        };
        let scaled = |b: &mut Self, h: ValueId| match experts.scales_input {
            // The projections are linear: scaling their results equals scaling their input.
            true => b.push(ScaleRows, vec![h.into(), routing.shares.into()], "expert_scaled"),
            false => Ok(h),
        };
        let gate = gate.map(|gate| scaled(self, gate)).transpose()?;
        let up = scaled(self, up)?;
        let h = self.activate(experts.activation, gate, up)?;
        let h = self.project_experts(down_name, h, width, routing)?;
        let mut inputs = vec![h.into()];
        if !experts.scales_input {
            inputs.push(routing.shares.into());
        }
        self.push(SumExperts, inputs, "ffn_experts")
    }

    /// What the file says about the width of an expert; where it says nothing of experts, networks are as wide as dense ones.
    fn expert_width(&self) -> Result<Option<u32>, ModelError> {
        let key = if self.has_key(WIDTH) { WIDTH } else { "feed_forward_length" };
        Ok(self.layer_u32(key)?.filter(|width| *width > 0))
    }

    /// The width of experts whose gate and value are one matrix.
    fn fused_experts_width(&self) -> Result<u32, ModelError> {
        let both = self.said_by(&format!("{FUSED}.weight"), 1).and_then(Claim::half);
        let down = self.said_by(&format!("{}.weight", EXPERTS[2]), 0);
        self.agreed(self.expert_width()?, [both, down])
    }

    /// The width of the space in which experts work, where two matrices lead into it and out of it.
    pub fn narrow_width(&self, key: &str, [into, out]: [&str; 2]) -> Result<u32, ModelError> {
        let [gate, up, down] = EXPERTS.map(|name| format!("{name}.weight"));
        let said = [(into, 1), (out, 0), (&gate, 0), (&up, 0), (&down, 1)];
        self.agreed(self.optional_u32(key)?, said.map(|(name, axis)| self.said_by(name, axis)))
    }

    fn project_experts(
        &mut self,
        name: &'static str,
        x: ValueId,
        rows: u32,
        routing: Routing,
    ) -> Result<ValueId, ModelError> {
        let file_name = format!("{name}.weight");
        let mut count = self.expert_count()?.div_ceil(routing.groups.max(1));
        if routing.groups > 1 {
            // There may be more than groups; they are never chosen.
            count = count.max(self.said_by(&file_name, 2).map_or(0, Claim::extent));
        }
        let weight = self.weight(&file_name, &[count, rows, self.width(x)])?;
        let h = self.push(MatMulExperts, vec![weight, x.into(), routing.chosen.into()], name)?;
        match self.optional_weight(&format!("{name}.bias"), &[count, rows])? {
            Some(bias) => self.push(AddExpertBias, vec![h.into(), bias, routing.chosen.into()], name),
            None => Ok(h),
        }
    }
}
