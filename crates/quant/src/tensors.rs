//! Which tensors of a model are quantised, and what stands in for a format that does not fit one.

use crate::DType;

/// Names (or parts of them) of tensors that keep their format: small, or harmed by fewer bits.
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// What GLM-5-Next keeps besides: the small matrices of its delta attention, of latent attention, of streams and of the
/// selection of positions.
const KEPT_IN_GLM5_NEXT: &[&str] = &[
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// Whether a tensor of this name and number of axes is quantised at all.
pub fn is_quantized(architecture: &str, name: &str, axes: usize) -> bool {
    let own = if architecture == "glm5-next" { KEPT_IN_GLM5_NEXT } else { &[] };
    let kept = KEPT.iter().chain(own).any(|part| name.contains(part));
    axes >= 2 && name.ends_with("weight") && !kept
}

/// The format for rows that `dtype`'s blocks do not divide; none if there is no substitute.
pub fn fallback(dtype: DType, row: u64) -> Option<DType> {
    let fits = |dtype: DType| row.is_multiple_of(dtype.block() as u64);
    if fits(dtype) {
        return Some(dtype);
    }
    let next = match dtype {
        DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => DType::IQ4_NL,
        DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => DType::IQ4_NL,
        DType::Q2_0 | DType::Q2_K | DType::Q3_K | DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        DType::Q1_0 => return None,
        _ => DType::F16,
    };
    Some(if fits(next) { next } else { DType::F16 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decides_or_is_small_is_kept() {
        let quantized = |name: &str, axes: usize| is_quantized("llama", name, axes);
        assert!(quantized("blk.3.attn_q.weight", 2) && quantized("blk.3.ffn_up_exps.weight", 3));
        assert!(quantized("cls.output.weight", 2) && quantized("token_embd.weight", 2));
        assert!(!quantized("blk.3.attn_q.weight", 1) && !quantized("blk.3.attn_q.bias", 2));
        assert!(!quantized("blk.3.ffn_gate_inp.weight", 2) && !quantized("position_embd.weight", 2));
        assert!(
            quantized("blk.3.ssm_beta.weight", 2) && !is_quantized("glm5-next", "blk.3.ssm_beta.weight", 2)
        );
    }

    #[test]
    fn a_format_that_does_not_fit_has_a_substitute() {
        assert_eq!(fallback(DType::Q8_0, 64), Some(DType::Q8_0));
        assert_eq!(fallback(DType::Q8_0, 40), Some(DType::F16));
        assert_eq!(fallback(DType::Q6_K, 96), Some(DType::Q8_0));
        assert_eq!(fallback(DType::Q1_0, 40), None);
    }
}
