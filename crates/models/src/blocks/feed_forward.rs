//! Feed-forward networks.

use puna_graph::ValueId;
use puna_graph::ops::{ClampedGlu, Function, GateBound, SoftCap};

use crate::{Builder, ModelError};

/// How gate and value become one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    /// `function(gate) · up`, without a gate `function(up)`.
    Function(Function),
    /// A bounded product.
    Clamped(ClampedGlu),
    /// `β tanh(gate / β) · sigmoid(gate) · λ tanh(up / λ)`; `λ` of 0 leaves `up` as it is.
    Situ {
        /// `β`
        gate_bound: f32,
        /// `λ`
        up_bound: f32,
    },
}

impl From<Function> for Activation {
    fn from(function: Function) -> Self {
        Activation::Function(function)
    }
}

impl Activation {
    /// SwiGLU as gpt-oss has it.
    pub const SHIFTED: Self =
        Activation::Clamped(ClampedGlu { bound: GateBound::Shifted { alpha: 1.702 }, limit: 7.0 });

    /// SwiGLU, bounded if the limit is above zero.
    pub fn silu_bounded(limit: f32, bound: GateBound) -> Self {
        match limit > 1e-6 {
            true => Activation::Clamped(ClampedGlu { bound, limit }),
            false => Activation::Function(Function::Silu),
        }
    }
}

/// Where the gate comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GateSource {
    /// A matrix of its own (`ffn_gate`).
    Separate,
    /// The first half of `ffn_up`'s rows.
    Fused,
    /// There is none.
    None,
}

/// A feed-forward network: `ffn_down · activation(ffn_gate · x, ffn_up · x)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FeedForward {
    /// Where the gate comes from.
    pub gate: GateSource,
    /// How gate and value become one.
    pub activation: Activation,
    /// Width between the matrices, by default the layer's `feed_forward_length`.
    pub hidden: Option<u32>,
    /// Whether biases are left out though the file has them.
    pub ignores_biases: bool,
}

impl FeedForward {
    /// With a gate matrix.
    pub fn gated(activation: impl Into<Activation>) -> Self {
        let (gate, activation) = (GateSource::Separate, activation.into());
        Self { gate, activation, hidden: None, ignores_biases: false }
    }

    /// With the gate in the first half of `ffn_up`.
    pub fn fused(activation: impl Into<Activation>) -> Self {
        Self { gate: GateSource::Fused, ..Self::gated(activation) }
    }

    /// Without a gate.
    pub fn plain(function: Function) -> Self {
        Self { gate: GateSource::None, ..Self::gated(function) }
    }
}

impl From<Function> for FeedForward {
    fn from(function: Function) -> Self {
        Self::gated(function)
    }
}

/// Names of a network's tensors: gate, up, down.
pub const FEED_FORWARD: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];
/// Names of a shared expert's tensors.
pub const SHARED_EXPERT: [&str; 3] = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];

impl Builder<'_> {
    /// The layer's dense network.
    pub fn feed_forward(
        &mut self,
        x: ValueId,
        network: impl Into<FeedForward>,
    ) -> Result<ValueId, ModelError> {
        let mut network = network.into();
        let hidden = match network.hidden {
            Some(hidden) if (1..=1 << 28).contains(&hidden) => hidden,
            Some(hidden) => {
                return Err(self.value_error("feed_forward_length", hidden, "between 1 and 2^28"));
            }
            None => self.hidden_width()?,
        };
        network.hidden = Some(hidden);
        self.network(x, network, FEED_FORWARD)
    }

    /// The shared expert of a mixture, as wide as most of its tensors and `expert_shared_feed_forward_length` say.
    pub fn shared_expert(
        &mut self,
        x: ValueId,
        gate: GateSource,
        activation: Activation,
    ) -> Result<ValueId, ModelError> {
        let key = self.optional_u32("expert_shared_feed_forward_length")?.filter(|hidden| *hidden > 0);
        let hidden = self.network_width(key, gate != GateSource::None, SHARED_EXPERT)?;
        let network = FeedForward { gate, hidden: Some(hidden), ..FeedForward::gated(activation) };
        self.network(x, network, SHARED_EXPERT)
    }

    /// The width between a network's matrices on which most of them and the key agree.
    pub fn network_width(
        &self,
        key: Option<u32>,
        gated: bool,
        [gate, up, down]: [&str; 3],
    ) -> Result<u32, ModelError> {
        let said = |name: &str, axis| self.said_by(&format!("{name}.weight"), axis);
        self.agreed(key, [said(gate, 1).filter(|_| gated), said(up, 1), said(down, 0)])
    }

    fn network(
        &mut self,
        x: ValueId,
        network: FeedForward,
        [gate_name, up_name, down_name]: [&'static str; 3],
    ) -> Result<ValueId, ModelError> {
        let FeedForward { gate, activation, ignores_biases, .. } = network;
        let hidden = network.hidden.unwrap_or(0);
        let h = match gate {
            GateSource::Separate => {
                let gate = self.linear_with(gate_name, x, hidden, !ignores_biases)?;
                let up = self.linear_with(up_name, x, hidden, !ignores_biases)?;
                self.activate(activation, Some(gate), up)?
            }
            GateSource::Fused => {
                let both = self.linear_with(up_name, x, 2 * hidden, !ignores_biases)?;
                let (gate, up) = (self.slice(both, 0, hidden)?, self.slice(both, hidden, hidden)?);
                self.activate(activation, Some(gate), up)?
            }
            GateSource::None => {
                let up = self.linear_with(up_name, x, hidden, !ignores_biases)?;
                self.activate(activation, None, up)?
            }
        };
        let h = if self.has("ffn_sub_norm.weight") { self.norm("ffn_sub_norm", h)? } else { h };
        let width = self.width(x);
        self.linear_with(down_name, h, width, !ignores_biases)
    }

    /// Joins gate and value. Without a gate the bounds of a bounded product do not apply: what stays is SiLU.
    pub fn activate(
        &mut self,
        activation: Activation,
        gate: Option<ValueId>,
        up: ValueId,
    ) -> Result<ValueId, ModelError> {
        match (activation, gate) {
            (Activation::Function(function), Some(gate)) => self.glu(function, gate, up),
            (Activation::Function(function), None) => self.unary(function, up, "ffn_act"),
            (Activation::Clamped(glu), Some(gate)) => self.push(glu, vec![gate.into(), up.into()], "ffn_act"),
            (Activation::Clamped(_), None) => self.unary(Function::Silu, up, "ffn_act"),
            (Activation::Situ { gate_bound, up_bound }, gate) => {
                let gate = gate.unwrap_or(up);
                let mut up = up;
                if up_bound > 0.0 {
                    up = self.push(SoftCap { cap: up_bound }, vec![up.into()], "ffn_act")?;
                }
                let bounded = self.push(SoftCap { cap: gate_bound }, vec![gate.into()], "ffn_act")?;
                let opened = self.glu(Function::Sigmoid, gate, bounded)?;
                self.mul(opened, up, "ffn_act")
            }
        }
    }
}
