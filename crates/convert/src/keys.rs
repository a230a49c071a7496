//! From `config.json` to the keys of an architecture.

use puna_gguf::{Metadata, Value};

use crate::ConvertError;
use crate::model::{HEAD_DIM, HEADS, KV_HEADS, Model, WIDTH};

type Result<T> = std::result::Result<T, ConvertError>;

const CONTEXT: &[&str] = &[
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "model_max_length",
    "max_context_length",
];
const FEED_FORWARD: &[&str] = &["intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "hidden_dim"];
const RMS_EPSILON: &[&str] = &["rms_norm_eps", "layernorm_epsilon"];
const LAYER_EPSILON: &[&str] = &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layernorm_eps"];
const EXPERTS: &[&str] = &[
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "ffn_config.moe_num_experts",
];
const EXPERTS_USED: &[&str] = &[
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_k",
    "moe_top_k",
    "top_k_experts",
    "ffn_config.moe_top_k",
];
const THETA: &[&str] = &[
    "rope_parameters.full_attention.rope_theta",
    "rope_parameters.rope_theta",
    "rope_theta",
    "rotary_emb_base",
    "global_rope_theta",
    "attn_config.rope_theta",
];
const PARTIAL: &[&str] = &[
    "rope_parameters.full_attention.partial_rotary_factor",
    "rope_parameters.partial_rotary_factor",
    "partial_rotary_factor",
    "rotary_pct",
    "rope_pct",
];

/// A setting of full layers where it differs: under a name of its own, or among those of the first such layer.
pub(crate) fn of_full_layers(model: &Model<'_>, name: &str, setting: &str) -> Result<Option<u32>> {
    let config = model.config;
    let kinds = config.text_list(&["layer_types"]).unwrap_or_default();
    let first = kinds.iter().position(|kind| *kind == "full_attention").unwrap_or(0);
    let by_kind = format!("per_layer_config.full_attention.{setting}");
    let by_layer = format!("per_layer_config.{first}.{setting}");
    config.optional_u32(&[name, &by_kind, &by_layer])
}

/// Width of the heads of full layers, where it differs.
pub(crate) fn global_head_dim(model: &Model<'_>) -> Result<Option<u32>> {
    of_full_layers(model, "global_head_dim", "head_dim")
}

/// Context where a model has no limit of its own.
const NO_LIMIT: u32 = 1 << 20;

/// Settings of RoPE scaling, wherever they are.
fn scaling<'n>(name: &str, buffer: &'n mut [String; 3]) -> [&'n str; 3] {
    *buffer = [
        format!("rope_scaling.{name}"),
        format!("rope_parameters.full_attention.{name}"),
        format!("rope_parameters.{name}"),
    ];
    [&buffer[0], &buffer[1], &buffer[2]]
}

/// Writes keys of one architecture.
pub(crate) struct Keys<'a> {
    pub(crate) model: &'a Model<'a>,
    pub(crate) metadata: Metadata,
    /// Settings without effect on GGUF models, worth a warning.
    pub(crate) warnings: Vec<String>,
}

impl Keys<'_> {
    /// Sets a key of the architecture.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        let key = format!("{}.{key}", self.model.architecture.name);
        self.metadata.set(key, value);
    }

    /// Whether a key of the architecture is set.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.metadata.contains(&format!("{}.{key}", self.model.architecture.name))
    }

    /// A whole number of the settings, which must be there.
    pub(crate) fn number(&mut self, key: &str, names: &[&str]) -> Result<u32> {
        let found = self.model.config.u32(names)?;
        self.set(key, found);
        Ok(found)
    }

    /// A whole number of the settings, if it is there.
    pub(crate) fn optional_number(&mut self, key: &str, names: &[&str]) -> Result<Option<u32>> {
        let found = self.model.config.optional_u32(names)?;
        if let Some(found) = found {
            self.set(key, found);
        }
        Ok(found)
    }

    /// A number of the settings, which must be there.
    pub(crate) fn float(&mut self, key: &str, names: &[&str]) -> Result<f32> {
        let found = self.model.config.f32(names)?;
        self.set(key, found);
        Ok(found)
    }

    /// A number of the settings, if it is there.
    pub(crate) fn optional_float(&mut self, key: &str, names: &[&str]) -> Result<Option<f32>> {
        let found = self.model.config.optional_f32(names)?;
        if let Some(found) = found {
            self.set(key, found);
        }
        Ok(found)
    }

    /// A flag of the settings, if it is there.
    pub(crate) fn optional_flag(&mut self, key: &str, names: &[&str]) {
        if let Some(found) = self.model.config.get(names).and_then(serde_json::Value::as_bool) {
            self.set(key, found);
        }
    }

    /// What all transformers have: sizes, heads, norms, RoPE, experts.
    pub(crate) fn decoder(&mut self) -> Result<()> {
        self.sizes()?;
        let model = self.model;
        let width = model.width()? as u32;
        if self.optional_number("feed_forward_length", FEED_FORWARD)?.is_none() {
            let ratio = model.config.optional_u32(&["expansion_ratio", "ffn_config.ffn_hidden_ratio"])?;
            self.set("feed_forward_length", width.saturating_mul(ratio.unwrap_or(4)));
        }
        self.attention()?;
        self.rope()?;
        self.experts()
    }

    /// Context, width, layers.
    pub(crate) fn sizes(&mut self) -> Result<()> {
        if self.optional_number("context_length", CONTEXT)?.is_none() {
            let limited = self.model.config.get(HEADS).is_some();
            self.set("context_length", if limited { 2048 } else { NO_LIMIT });
        }
        self.number("embedding_length", WIDTH)?;
        let layers = self.model.layers()? as u32;
        self.set("block_count", layers);
        self.optional_number("vocab_size", &["vocab_size"])?;
        if self.optional_float("attention.layer_norm_rms_epsilon", RMS_EPSILON)?.is_none() {
            self.optional_float("attention.layer_norm_epsilon", LAYER_EPSILON)?;
        }
        Ok(())
    }

    /// Heads.
    pub(crate) fn attention(&mut self) -> Result<()> {
        let heads = self.number("attention.head_count", HEADS)?;
        let kv = self.model.config.optional_u32(KV_HEADS)?.unwrap_or(heads);
        self.set("attention.head_count_kv", kv);
        if let Some(dim) = self.model.config.optional_u32(HEAD_DIM)? {
            self.set("attention.key_length", dim);
            self.set("attention.value_length", dim);
        }
        Ok(())
    }

    /// Base, rotated dimensions and scaling of RoPE; factors per dimension become tensors elsewhere.
    pub(crate) fn rope(&mut self) -> Result<()> {
        let config = self.model.config;
        self.optional_float("rope.freq_base", THETA)?;
        let partial = config.optional_f32(PARTIAL)?;
        let dim = self.model.head_dim()? as f32 * partial.unwrap_or(1.0);
        self.set("rope.dimension_count", dim.clamp(0.0, 65536.0) as u32);
        let mut buffer = Default::default();
        let kind =
            config.text(&scaling("rope_type", &mut buffer)).or_else(|| config.text(&["rope_scaling.type"]));
        let factor = config.optional_f32(&scaling("factor", &mut buffer))?;
        let original = config
            .optional_u32(&scaling("original_max_position_embeddings", &mut buffer))?
            .or(config.optional_u32(&["original_max_position_embeddings"])?);
        match kind {
            Some("linear") => {
                self.set("rope.scaling.type", "linear");
                self.set("rope.scaling.factor", factor.unwrap_or(1.0));
            }
            Some("yarn") => {
                let factor = factor.unwrap_or(1.0);
                self.set("rope.scaling.type", "yarn");
                self.set("rope.scaling.factor", factor);
                if let Some(original) = original {
                    self.set("rope.scaling.original_context_length", original);
                }
                // The engine's own multiplier for this factor comes on top.
                if let Some(attention) = config.optional_f32(&scaling("attention_factor", &mut buffer))? {
                    self.set("rope.scaling.attn_factor", attention / (1.0 + 0.1 * factor.max(1.0).ln()));
                }
                for (key, name) in [
                    ("rope.scaling.yarn_beta_fast", "beta_fast"),
                    ("rope.scaling.yarn_beta_slow", "beta_slow"),
                ] {
                    let found = config.optional_f32(&scaling(name, &mut buffer))?;
                    if let Some(found) = found {
                        self.set(key, found);
                    }
                }
            }
            Some("longrope" | "su") => {
                let context = config.optional_u32(CONTEXT)?.unwrap_or(0);
                let original = original.unwrap_or(context).max(1);
                let ratio = factor.unwrap_or(context as f32 / original as f32).max(1.0);
                let given = config.optional_f32(&scaling("attention_factor", &mut buffer))?;
                let factor = given.unwrap_or_else(|| match ratio > 1.0 && original > 1 {
                    true => (1.0 + ratio.ln() / (original as f32).ln()).sqrt(),
                    false => 1.0,
                });
                self.set("rope.scaling.original_context_length", original);
                self.set("rope.scaling.attn_factor", factor);
            }
            Some("default" | "llama3" | "mrope" | "proportional") | None => {}
            Some("dynamic" | "xdrope") if config.get(&scaling("alpha", &mut buffer)).is_some() => {
                let alpha = config.f32(&scaling("alpha", &mut buffer))?;
                self.set("rope.scaling.alpha", alpha);
            }
            Some(other) => self.warnings.push(format!("RoPE scaling of type {other:?} is left out")),
        }
        Ok(())
    }

    /// Numbers of experts.
    pub(crate) fn experts(&mut self) -> Result<()> {
        let list = |names| self.model.config.u32_list(names).and_then(|list| list.first().copied());
        if let Some(found) = list(EXPERTS) {
            self.set("expert_count", found);
        } else {
            self.optional_number("expert_count", EXPERTS)?;
        }
        if !self.has("expert_count") {
            return Ok(());
        }
        if let Some(found) = list(EXPERTS_USED) {
            self.set("expert_used_count", found);
        } else {
            self.optional_number("expert_used_count", EXPERTS_USED)?;
        }
        const WIDTHS: &[&str] = &["moe_intermediate_size", "expert_ffn_hidden_size"];
        if let Some(found) = list(WIDTHS) {
            self.set("expert_feed_forward_length", found);
        } else {
            self.optional_number("expert_feed_forward_length", WIDTHS)?;
        }
        self.optional_number(
            "expert_shared_feed_forward_length",
            &["shared_expert_intermediate_size", "shared_intermediate_size"],
        )?;
        Ok(())
    }

    /// What routers of the DeepSeek kind have.
    pub(crate) fn grouped_experts(&mut self) -> Result<()> {
        self.optional_number(
            "leading_dense_block_count",
            &["first_k_dense_replace", "moe_layer_start_index"],
        )?;
        self.optional_number("expert_shared_count", &["n_shared_experts", "num_shared_experts"])?;
        self.optional_float(
            "expert_weights_scale",
            &["routed_scaling_factor", "moe_router_topk_scaling_factor"],
        )?;
        self.optional_flag("expert_weights_norm", &["norm_topk_prob"]);
        let groups = self.model.config.optional_u32(&["n_group", "num_expert_group"])?;
        if groups.is_some_and(|groups| groups > 1) {
            self.number("expert_group_count", &["n_group", "num_expert_group"])?;
            self.number("expert_group_used_count", &["topk_group"])?;
        }
        Ok(())
    }

    /// Dense layers before the first with experts, where the settings list the kinds of networks.
    pub(crate) fn leading_dense(&mut self) {
        if let Some(kinds) = self.model.config.text_list(&["mlp_layer_types"]) {
            let dense = kinds.iter().take_while(|kind| **kind == "dense").count();
            self.set("leading_dense_block_count", dense as u32);
        }
    }

    /// Which layers select positions themselves (1) and which use the selection of one before (0).
    pub(crate) fn indexer_types(&mut self) {
        if let Some(kinds) = self.model.config.text_list(&["indexer_types"]) {
            let own: Vec<u32> = kinds.iter().map(|kind| u32::from(*kind == "full")).collect();
            self.set("attention.indexer.types", own);
        }
    }

    /// The function of a router: 1 for softmax, 2 for sigmoid.
    pub(crate) fn gating(&mut self, default: u32) {
        let found = match self.model.config.text(&["scoring_func", "score_function", "scoring_function"]) {
            Some("softmax") => 1,
            Some("sigmoid") => 2,
            _ => default,
        };
        self.set("expert_gating_func", found);
    }

    /// A window, if attention has one.
    pub(crate) fn window(&mut self) -> Result<()> {
        self.optional_number("attention.sliding_window", &["sliding_window"])?;
        Ok(())
    }

    /// Which layers of `layer_types` have a window.
    pub(crate) fn window_pattern(&mut self) {
        if let Some(kinds) = self.model.config.text_list(&["layer_types"]) {
            let windowed = kinds.iter().map(|kind| *kind == "sliding_attention");
            let layers = self.model.layers().map_or(usize::MAX, |layers| layers as usize);
            // Some lists go on with the layers that guess tokens further ahead.
            let windowed: Vec<bool> =
                windowed.take(layers.saturating_add(self.model.ahead as usize)).collect();
            self.set("attention.sliding_window_pattern", windowed);
        }
    }
}

/// Factors of RoPE frequencies that are computed: name and numbers of the tensors.
pub(crate) fn rope_factors(model: &Model<'_>) -> Result<Vec<(&'static str, Vec<f32>)>> {
    let config = model.config;
    let mut buffer = Default::default();
    let kind =
        config.text(&scaling("rope_type", &mut buffer)).or_else(|| config.text(&["rope_scaling.type"]));
    match kind {
        Some("llama3") => {
            let mut setting = |name: &str, default: f32| -> Result<f32> {
                Ok(config.optional_f32(&scaling(name, &mut buffer))?.unwrap_or(default))
            };
            let factor = setting("factor", 8.0)?;
            let (low, high) = (setting("low_freq_factor", 1.0)?, setting("high_freq_factor", 4.0)?);
            let original = setting("original_max_position_embeddings", 8192.0)?;
            let base = config.optional_f32(THETA)?.unwrap_or(10000.0);
            let partial = config.optional_f32(PARTIAL)?.unwrap_or(1.0);
            let dim = (model.head_dim()? as f32 * partial).clamp(0.0, 65536.0);
            let of = |pair: u32| {
                let wavelength = std::f32::consts::TAU * base.powf(2.0 * pair as f32 / dim);
                if wavelength < original / high {
                    1.0
                } else if wavelength > original / low {
                    factor
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            };
            Ok(vec![("rope_freqs.weight", (0..dim as u32 / 2).map(of).collect())])
        }
        // Pairs beyond the rotated share do not turn: their frequencies are divided by a huge number.
        Some("proportional") => {
            let width = match global_head_dim(model)? {
                Some(width) => u64::from(width),
                None => model.head_dim()?,
            };
            let pairs = (width / 2).min(65536);
            let partial = config.optional_f32(PARTIAL)?.unwrap_or(1.0);
            let turning = (pairs as f32 * partial) as u64;
            let of = |pair: u64| if pair < turning { 1.0 } else { 1e30 };
            Ok(vec![("rope_freqs.weight", (0..pairs).map(of).collect())])
        }
        Some("longrope" | "su") => {
            let mut factors = Vec::new();
            for (tensor, name) in
                [("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor")]
            {
                if let Some(found) = config.f32_list(&scaling(name, &mut buffer)) {
                    factors.push((tensor, found));
                }
            }
            Ok(factors)
        }
        _ => Ok(Vec::new()),
    }
}
