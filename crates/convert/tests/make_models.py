"""Makes the small models in tests/fixtures/convert with `transformers` and `torch`, with the logits that these compute.

    pip install torch transformers safetensors
    python crates/convert/tests/make_models.py [NAME ...]

The tests read what this wrote and need neither package.
"""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers as T

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "convert"
TOKENS = [5, 17, 3, 42, 8, 30, 21, 2, 11, 36, 9, 27]
VOCABULARY = 48
BASE = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)


def base(**more):
    return {**BASE, **more}


MODELS = {
    "llama": (T.LlamaForCausalLM, T.LlamaConfig, base(rope_theta=5000.0)),
    "llama3-scaling": (T.LlamaForCausalLM, T.LlamaConfig, base(
        head_dim=16, tie_word_embeddings=True, attention_bias=True, rope_theta=10000.0,
        rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=16))),
    "mistral": (T.MistralForCausalLM, T.MistralConfig, base(head_dim=8, sliding_window=None)),
    "mixtral": (T.MixtralForCausalLM, T.MixtralConfig, base(
        num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
    "qwen2": (T.Qwen2ForCausalLM, T.Qwen2Config, base(use_sliding_window=False)),
    "qwen2moe": (T.Qwen2MoeForCausalLM, T.Qwen2MoeConfig, base(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40)),
    "qwen3": (T.Qwen3ForCausalLM, T.Qwen3Config, base(head_dim=16, use_sliding_window=False)),
    "qwen3moe": (T.Qwen3MoeForCausalLM, T.Qwen3MoeConfig, base(
        head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True,
        decoder_sparse_step=1)),
    "gemma": (T.GemmaForCausalLM, T.GemmaConfig, base(head_dim=16)),
    "gemma2": (T.Gemma2ForCausalLM, T.Gemma2Config, base(
        head_dim=8, sliding_window=4, query_pre_attn_scalar=8)),
    "gemma3": (T.Gemma3ForCausalLM, T.Gemma3TextConfig, base(
        head_dim=8, sliding_window=4, query_pre_attn_scalar=8, num_hidden_layers=6,
        rope_scaling=None)),
    "phi": (T.PhiForCausalLM, T.PhiConfig, base(num_key_value_heads=4, partial_rotary_factor=0.5)),
    "phi3": (T.Phi3ForCausalLM, T.Phi3Config, base(sliding_window=None, original_max_position_embeddings=64)),
    "phi3-longrope": (T.Phi3ForCausalLM, T.Phi3Config, base(
        sliding_window=None, original_max_position_embeddings=64, max_position_embeddings=256,
        rope_scaling=dict(type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.0, 2.0, 4.0, 8.0]))),
    "gpt2": (T.GPT2LMHeadModel, T.GPT2Config, dict(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)),
    "gptneox": (T.GPTNeoXForCausalLM, T.GPTNeoXConfig, base(rotary_pct=0.5)),
    "starcoder2": (T.Starcoder2ForCausalLM, T.Starcoder2Config, base(use_bias=True, sliding_window=None)),
    "bigcode": (T.GPTBigCodeForCausalLM, T.GPTBigCodeConfig, dict(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, multi_query=True)),
    "falcon": (T.FalconForCausalLM, T.FalconConfig, dict(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, multi_query=True,
        parallel_attn=True, new_decoder_architecture=False, bias=False, alibi=False, max_position_embeddings=64)),
    "falcon-40b": (T.FalconForCausalLM, T.FalconConfig, dict(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
        parallel_attn=True, new_decoder_architecture=True, bias=False, alibi=False, max_position_embeddings=64)),
    "bloom": (T.BloomForCausalLM, T.BloomConfig, dict(
        vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)),
    "mpt": (T.MptForCausalLM, T.MptConfig, dict(
        vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=64, no_bias=True,
        attn_config=dict(attn_type="multihead_attention", alibi=True))),
    "stablelm": (T.StableLmForCausalLM, T.StableLmConfig, base(partial_rotary_factor=0.5)),
    "mamba": (T.MambaForCausalLM, T.MambaConfig, dict(
        vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=2, expand=2, conv_kernel=4,
        time_step_rank=4)),
    "mamba2": (T.Mamba2ForCausalLM, T.Mamba2Config, dict(
        vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=2, expand=2, conv_kernel=4,
        head_dim=16, num_heads=4, n_groups=2, chunk_size=8)),
    "cohere": (T.CohereForCausalLM, T.CohereConfig, base(logit_scale=0.25, use_qk_norm=True)),
    "cohere2": (T.Cohere2ForCausalLM, T.Cohere2Config, base(
        logit_scale=0.25, head_dim=8, sliding_window=4, num_hidden_layers=4)),
    "olmo": (T.OlmoForCausalLM, T.OlmoConfig, base(clip_qkv=0.6)),
    "olmo2": (T.Olmo2ForCausalLM, T.Olmo2Config, base()),
    "olmoe": (T.OlmoeForCausalLM, T.OlmoeConfig, base(num_experts=4, num_experts_per_tok=2)),
    "granite": (T.GraniteForCausalLM, T.GraniteConfig, base(
        embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5, attention_multiplier=0.3)),
    "granitemoe": (T.GraniteMoeForCausalLM, T.GraniteMoeConfig, base(
        num_local_experts=4, num_experts_per_tok=2, embedding_multiplier=3.0, logits_scaling=2.0,
        residual_multiplier=0.5, attention_multiplier=0.3)),
    "glm4": (T.Glm4ForCausalLM, T.Glm4Config, base(head_dim=8, partial_rotary_factor=0.5, attention_bias=True)),
    "glm": (T.GlmForCausalLM, T.GlmConfig, base(head_dim=8, partial_rotary_factor=0.5, attention_bias=True)),
    "nemotron": (T.NemotronForCausalLM, T.NemotronConfig, base(head_dim=8, partial_rotary_factor=0.5)),
    "smollm3": (T.SmolLM3ForCausalLM, T.SmolLM3Config, base(num_hidden_layers=4, use_sliding_window=False)),
    "exaone4": (T.Exaone4ForCausalLM, T.Exaone4Config, base(
        head_dim=8, sliding_window=None,
        layer_types=["full_attention", "full_attention"])),
    "ernie4_5": (T.Ernie4_5ForCausalLM, T.Ernie4_5Config, base(head_dim=8, use_bias=False)),
    "arcee": (T.ArceeForCausalLM, T.ArceeConfig, base(head_dim=8)),
    "seed_oss": (T.SeedOssForCausalLM, T.SeedOssConfig, base(head_dim=8, attention_bias=True)),
    "hunyuan": (T.HunYuanDenseV1ForCausalLM, T.HunYuanDenseV1Config, base(head_dim=8)),
    "deepseek2": (T.DeepseekV3ForCausalLM, T.DeepseekV3Config, base(
        num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=24,
        first_k_dense_replace=1, n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5)),
    "lfm2": (T.Lfm2ForCausalLM, T.Lfm2Config, base(
        layer_types=["conv", "full_attention"], conv_L_cache=3, block_auto_adjust_ff_dim=False)),
    "gpt-oss": (T.GptOssForCausalLM, T.GptOssConfig, base(
        head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                          original_max_position_embeddings=16))),
    "jamba": (T.JambaForCausalLM, T.JambaConfig, base(
        num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
        num_experts=4, num_experts_per_tok=2, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=4,
        use_mamba_kernels=False)),
    "apertus": (T.ApertusForCausalLM, T.ApertusConfig, base(rope_scaling=None)),
    "qwen3next": (T.Qwen3NextForCausalLM, T.Qwen3NextConfig, base(
        num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=24, partial_rotary_factor=0.25)),
    "glm4moe": (T.Glm4MoeForCausalLM, T.Glm4MoeConfig, base(
        head_dim=8, partial_rotary_factor=0.5, use_qk_norm=True, attention_bias=True, n_routed_experts=4,
        num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=24, first_k_dense_replace=1, n_group=1,
        topk_group=1, routed_scaling_factor=1.5)),
    "falcon_h1": (T.FalconH1ForCausalLM, T.FalconH1Config, base(
        head_dim=8, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8,
        mamba_d_conv=4, mamba_chunk_size=8, mamba_rms_norm=False, embedding_multiplier=2.0, lm_head_multiplier=0.5,
        key_multiplier=0.5, attention_out_multiplier=0.7, ssm_in_multiplier=1.25, ssm_out_multiplier=0.8,
        mlp_multipliers=[0.9, 0.6], ssm_multipliers=[0.9, 0.8, 0.7, 1.1, 1.2])),
}

MODELS.update({
    "lfm2moe": (T.Lfm2MoeForCausalLM, T.Lfm2MoeConfig, base(
        layer_types=["conv", "full_attention"], conv_L_cache=3, num_dense_layers=1, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=24)),
    "granitehybrid": (T.GraniteMoeHybridForCausalLM, T.GraniteMoeHybridConfig, base(
        layer_types=["mamba", "attention"], num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=40,
        mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2,
        mamba_chunk_size=8, position_embedding_type="nope", embedding_multiplier=3.0, logits_scaling=2.0,
        residual_multiplier=0.5, attention_multiplier=0.3)),
    "granitehybrid-dense": (T.GraniteMoeHybridForCausalLM, T.GraniteMoeHybridConfig, base(
        layer_types=["mamba", "attention"], num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=40,
        mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2,
        mamba_chunk_size=8, position_embedding_type="rope")),
    "ernie4_5-moe": (T.Ernie4_5_MoeForCausalLM, T.Ernie4_5_MoeConfig, base(
        moe_num_experts=4, moe_k=2, moe_intermediate_size=24, moe_num_shared_experts=1, moe_layer_start_index=1,
        moe_layer_interval=1, use_bias=False)),
    "dots1": (T.Dots1ForCausalLM, T.Dots1Config, base(
        head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=24,
        first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
        sliding_window=None)),
    "deepseek-v2": (T.DeepseekV2ForCausalLM, T.DeepseekV2Config, base(
        num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=24,
        first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0,
        topk_method="greedy")),
    "olmo3": (T.Olmo3ForCausalLM, T.Olmo3Config, base(
        num_hidden_layers=4, sliding_window=4,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"])),
    "bitnet": (T.BitNetForCausalLM, T.BitNetConfig, base(hidden_act="silu", tie_word_embeddings=True)),
    "llama4": (T.Llama4ForCausalLM, T.Llama4TextConfig, base(
        num_hidden_layers=4, head_dim=8, intermediate_size=24, intermediate_size_mlp=48, num_local_experts=4,
        num_experts_per_tok=1, interleave_moe_layer_step=2, use_qk_norm=True, attention_chunk_size=8192,
        no_rope_layers=[1, 1, 1, 0], attn_temperature_tuning=False)),
    "hunyuan-moe": (T.HunYuanMoEV1ForCausalLM, T.HunYuanMoEV1Config, base(
        head_dim=8, num_experts=4, moe_topk=[2, 2], moe_intermediate_size=[24, 24], num_shared_expert=[1, 1])),
    "qwen35": (T.Qwen3_5ForCausalLM, T.Qwen3_5TextConfig, base(
        num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, partial_rotary_factor=0.25)),
    "minimax-m2": (T.MiniMaxM2ForCausalLM, T.MiniMaxM2Config, base(
        head_dim=8, num_local_experts=4, num_experts_per_tok=2, use_qk_norm=True, rotary_dim=4)),
    "nemotron_h": (T.NemotronHForCausalLM, T.NemotronHConfig, base(
        num_hidden_layers=3, head_dim=8, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8, n_groups=2,
        conv_kernel=4, chunk_size=8, layers_block_type=["mamba", "attention", "mlp"], mlp_hidden_act="relu2")),
    "phimoe": (T.PhimoeForCausalLM, T.PhimoeConfig, base(
        num_local_experts=4, num_experts_per_tok=2, sliding_window=None, attention_bias=True, lm_head_bias=True)),
})

LATENT = dict(
    num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)
LATENT_EXPERTS = dict(
    LATENT, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=24,
    first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5)
WINDOWS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
MODELS.update({
    "afmoe": (T.AfmoeForCausalLM, T.AfmoeConfig, base(
        num_hidden_layers=4, head_dim=8, num_experts=4, num_experts_per_tok=2, num_shared_experts=1, num_dense_layers=1,
        moe_intermediate_size=24, route_scale=1.5, sliding_window=4, layer_types=WINDOWS, mup_enabled=True)),
    "exaone-moe": (T.ExaoneMoeForCausalLM, T.ExaoneMoeConfig, base(
        num_hidden_layers=4, head_dim=8, num_experts=4, num_experts_per_tok=2, num_shared_experts=1,
        moe_intermediate_size=24, first_k_dense_replace=1, sliding_window=4, layer_types=WINDOWS)),
    "laguna": (T.LagunaForCausalLM, T.LagunaConfig, base(
        num_hidden_layers=4, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=40, moe_routed_scaling_factor=1.5, sliding_window=4,
        num_attention_heads_per_layer=[4, 4, 2, 4],
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        rope_parameters=dict(
            full_attention=dict(rope_type="default", rope_theta=50000.0, partial_rotary_factor=0.5),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0)))),
    "cohere2moe": (T.Cohere2MoeForCausalLM, T.Cohere2MoeConfig, base(
        num_hidden_layers=4, head_dim=8, num_experts=4, num_experts_per_tok=2, num_shared_experts=1, logit_scale=0.5,
        expert_selection_fn="sigmoid", prefix_dense_intermediate_size=40, sliding_window=4,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"])),
    "granite_swa": (T.GraniteSWAForCausalLM, T.GraniteSWAConfig, base(
        num_hidden_layers=4, sliding_window=4, embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5,
        attention_multiplier=0.3, layer_rope_theta=[0.0, 10000.0, 10000.0, 10000.0])),
    "minimax-01": (T.MiniMaxForCausalLM, T.MiniMaxConfig, base(
        head_dim=8, num_local_experts=4, num_experts_per_tok=2, block_size=4, full_attn_alpha_factor=3.5,
        linear_attn_alpha_factor=3.5, mlp_alpha_factor=3.5)),
    "dbrx": (T.DbrxForCausalLM, T.DbrxConfig, dict(
        d_model=32, n_heads=4, n_layers=2, max_seq_len=64, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, attn_config=dict(kv_n_heads=2, clip_qkv=0.5, rope_theta=5000.0),
        ffn_config=dict(hidden_size=32, ffn_hidden_size=24, moe_num_experts=4, moe_top_k=2))),
    "mistral4": (T.Mistral4ForCausalLM, T.Mistral4Config, base(**LATENT_EXPERTS)),
    "deepseek32": (T.DeepseekV32ForCausalLM, T.DeepseekV32Config, base(
        **LATENT_EXPERTS, index_topk=64, index_head_dim=16, index_n_heads=2)),
    "glm-dsa": (T.GlmMoeDsaForCausalLM, T.GlmMoeDsaConfig, base(
        **LATENT_EXPERTS, index_topk=64, index_head_dim=16, index_n_heads=2)),
    "minicpm3": (T.MiniCPM3ForCausalLM, T.MiniCPM3Config, base(**LATENT)),
    "kimi-linear": (T.KimiLinearForCausalLM, T.KimiLinearConfig, base(
        num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8, linear_head_dim=8, linear_num_heads=4, linear_conv_kernel_dim=4,
        num_local_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=24,
        layer_types=["linear_attention", "linear_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"])),
})

NEMOTRON = dict(
    head_dim=8, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8, n_groups=2, conv_kernel=4, chunk_size=8,
    mlp_hidden_act="relu2", n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=24,
    moe_shared_expert_intermediate_size=40, routed_scaling_factor=1.5)
MODELS.update({
    "nemotron_h_moe": (T.NemotronHForCausalLM, T.NemotronHConfig, base(
        num_hidden_layers=4, layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], **NEMOTRON)),
    "nemotron_h_moe-latent": (T.NemotronHForCausalLM, T.NemotronHConfig, base(
        num_hidden_layers=3, layers_block_type=["linear_attention", "moe", "full_attention"], moe_latent_size=16,
        **NEMOTRON)),
})
GEMMA_LAYERS = ["sliding_attention"] * 4 + ["full_attention"]
MODELS.update({
    "gemma3n": (T.Gemma3nForCausalLM, T.Gemma3nTextConfig, base(
        num_hidden_layers=5, head_dim=8, hidden_size_per_layer_input=16, vocab_size_per_layer_input=VOCABULARY,
        laurel_rank=8, num_kv_shared_layers=0, sliding_window=4, activation_sparsity_pattern=[0.95] * 5,
        layer_types=GEMMA_LAYERS)),
    "gemma4": (T.Gemma4ForCausalLM, T.Gemma4TextConfig, base(
        num_hidden_layers=5, head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
        hidden_size_per_layer_input=0, final_logit_softcapping=30.0, sliding_window=4, layer_types=GEMMA_LAYERS,
        enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=24)),
    "gemma4-e": (T.Gemma4ForCausalLM, T.Gemma4TextConfig, base(
        num_hidden_layers=5, head_dim=8, global_head_dim=16, hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=VOCABULARY, num_kv_shared_layers=2, use_double_wide_mlp=True, sliding_window=4,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"])),
})

# Models that also see: their small eyes are left out.
SECTIONS = dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 1, 2])
EYES = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
MODELS.update({
    "paddleocr": (T.PaddleOCRVLForConditionalGeneration, T.PaddleOCRVLConfig, dict(
        text_config=base(head_dim=8, rope_parameters=SECTIONS), vision_config=dict(image_size=28, **EYES))),
    "muse-glimmer": (T.MuseGlimmerForConditionalGeneration, T.MuseGlimmerConfig, dict(
        text_config=base(
            num_hidden_layers=4, head_dim=8, sliding_window=4, qk_scale_factor=1.7, output_multiplier=0.7,
            final_logit_softcapping=5.0, layer_types=WINDOWS),
        vision_config=dict(patch_size=4, pos_emb_height=2, pos_emb_width=2, max_position_embeddings=4, **EYES),
        out_hidden_size=16, projector_hidden_size=16)),
    "mimo2": (T.MiMoV2FlashForCausalLM, T.MiMoV2FlashConfig, base(
        num_hidden_layers=4, num_key_value_heads=1, head_dim=12, v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=24, sliding_window=4, layer_types=["full_attention"] + ["sliding_attention"] * 3,
        mlp_layer_types=["dense"] + ["sparse"] * 3)),
    "minimax-m3": (T.MiniMaxM3VLForCausalLM, T.MiniMaxM3VLTextConfig, base(
        num_hidden_layers=3, head_dim=8, rotary_dim=8, intermediate_size=24, dense_intermediate_size=40,
        shared_intermediate_size=24, num_local_experts=4, num_experts_per_tok=2, index_n_heads=2, index_head_dim=8,
        mlp_layer_types=["dense", "sparse", "sparse"])),
})

# Encoders: the mean of the last layer's rows is recorded in place of logits.
ENCODERS = {
    "modern-bert": (T.ModernBertModel, T.ModernBertConfig, base(
        num_hidden_layers=4, local_attention=4, cls_token_id=1, sep_token_id=2)),
    "gemma-embedding": (T.Gemma3TextModel, T.Gemma3TextConfig, base(
        head_dim=8, sliding_window=4, query_pre_attn_scalar=8, num_hidden_layers=6, rope_scaling=None,
        use_bidirectional_attention=True)),
    "eurobert": (T.EuroBertModel, T.EuroBertConfig, base()),
    "llama-embed": (T.LlamaModel, T.LlamaConfig, base(rope_theta=5000.0)),
    "nomic-bert": (T.NomicBertModel, T.NomicBertConfig, base()),
    "jina-bert-v3": (T.JinaEmbeddingsV3Model, T.JinaEmbeddingsV3Config, base()),
    "t5encoder": (T.T5EncoderModel, T.T5Config, dict(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=1)),
}
# Encoder and decoder: the decoder's logits after these tokens.
DECODER_TOKENS = [0, 7, 19, 4]
TRANSLATORS = {
    "t5": (T.T5ForConditionalGeneration, T.T5Config, dict(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=3, num_heads=4,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)),
    "t5-gated": (T.T5ForConditionalGeneration, T.T5Config, dict(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
}
MODELS.update(ENCODERS)
MODELS.update(TRANSLATORS)

MODELS.update({
    "gptj": (T.GPTJForCausalLM, T.GPTJConfig, dict(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4, bos_token_id=1, eos_token_id=2)),
})
INDEXER = dict(index_topk=64, index_head_dim=16, index_n_heads=2)
MODELS.update({
    "hy_v4": (T.HYV4ForCausalLM, T.HYV4Config, base(**LATENT_EXPERTS, **INDEXER, swiglu_limit=0.5)),
    "hunyuan_vl": (T.HunYuanVLForConditionalGeneration, T.HunYuanVLConfig, dict(
        text_config=base(head_dim=8, rope_parameters=dict(
            rope_type="dynamic", alpha=100.0, rope_theta=10000.0, factor=1.0, mrope_section=[1, 1, 1, 1])),
        vision_config=dict(**EYES, max_image_size=64))),
    "hrm_text": (T.HrmTextForCausalLM, T.HrmTextConfig, dict(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        max_position_embeddings=64, H_cycles=2, L_cycles=2, embedding_scale=2.0)),
    "dots3note": (T.Dots3NoteForCausalLM, T.Dots3NoteTextConfig, base(
        **{**LATENT_EXPERTS, "first_k_dense_replace": 1}, **INDEXER, num_hidden_layers=3, head_dim=16, sliding_window=4,
        layer_types=["full_attention", "full_attention", "sliding_attention"], moe_shared_expert_intermediate_size=24,
        swa_num_attention_heads=2, swa_num_key_value_heads=2, swa_q_lora_rank=16, swa_kv_lora_rank=24, swa_head_dim=20,
        swa_qk_nope_head_dim=12, swa_v_head_dim=8)),
    "bailingmoe3": (T.BailingHybridForCausalLM, T.BailingHybridConfig, base(
        num_hidden_layers=3, num_key_value_heads=4, head_dim=8, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8, num_local_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=24, first_k_dense_replace=1, n_group=2, topk_group=1, routed_scaling_factor=1.5,
        layer_types=["linear_attention", "full_attention", "linear_attention"])),
    "glm5-next": (T.Glm5NextForConditionalGeneration, T.Glm5NextConfig, dict(
        text_config=base(
            num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=0,
            qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
            moe_intermediate_size=24, routed_scaling_factor=1.5, linear_head_dim=8, linear_num_heads=4,
            layer_types=["linear_attention", "indexed_attention", "linear_attention"],
            mlp_layer_types=["dense", "sparse", "sparse"], index_kpool=4, hc_sinkhorn_iters=3, swiglu_limit=0.5, **INDEXER),
        vision_config=dict(
            depth=1, hidden_size=16, num_heads=2, image_size=28, out_hidden_size=32, intermediate_size=16,
            projection_intermediate_size=16))),
    "deepseek4": (T.DeepseekV4ForCausalLM, T.DeepseekV4Config, dict(
        vocab_size=VOCABULARY, hidden_size=32, moe_intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        head_dim=16, q_lora_rank=16, qk_rope_head_dim=8, n_routed_experts=4, num_experts_per_tok=2,
        max_position_embeddings=64, sliding_window=4, o_groups=2, o_lora_rank=8, hc_sinkhorn_iters=3, swiglu_limit=0.5,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=8), num_hash_layers=1,
        rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                          original_max_position_embeddings=16), **INDEXER)),
})

# Scores divided by the root of another number than the width of a head.
MODELS.update({
    "gemma2-scalar": (T.Gemma2ForCausalLM, T.Gemma2Config, base(
        head_dim=8, sliding_window=4, query_pre_attn_scalar=3)),
    "gemma3-scalar": (T.Gemma3ForCausalLM, T.Gemma3TextConfig, base(
        head_dim=8, sliding_window=4, query_pre_attn_scalar=3, rope_scaling=None,
        layer_types=["sliding_attention", "full_attention"])),
})

# Saved in another number format than f32.
FORMATS = {"mistral": torch.bfloat16, "qwen2": torch.float16}
# Saved in several files.
SHARDED = {"qwen3": "40KB"}


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "A_log" in name or name.endswith(("dt_bias", ".D")):
                parameter.add_(0.1 * noise)
            elif "norm" in name.lower() and parameter.dim() == 1 or "ln_" in name and parameter.dim() == 1:
                parameter.add_(0.1 * noise)
            elif "alpha_" in name or "beta" in name:
                parameter.add_(0.05 * noise)
            else:
                parameter.copy_(0.15 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(0.1 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("tid2eid"):
                experts = model.config.n_routed_experts
                for row in buffer:
                    row.copy_(torch.randperm(experts, generator=generator)[: len(row)])


@contextlib.contextmanager
def sample_deviation():
    """Gemma 3n's cut takes the deviation of a row as of a sample, as llama.cpp's zoo has it: of the 16384 elements of real models
    the two are the same, of 48 they are not."""
    of_all = torch.std
    torch.std = lambda *values, **settings: of_all(*values, **{**settings, "unbiased": True})
    try:
        yield
    finally:
        torch.std = of_all


def make(name, seed):
    model_class, config_class, settings = MODELS[name]
    config = config_class(**settings)
    config._attn_implementation = "eager"
    model = model_class(config)
    randomise(model, seed)
    dtype = FORMATS.get(name)
    if dtype is not None:
        model.to(dtype)
        saved = {key: value.clone() for key, value in model.state_dict().items()}
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=SHARDED.get(name, "1GB"))
    model.float().eval()
    del dtype
    # The class halves its setting, and would halve what it saved once more.
    changes = {}
    if settings.get("use_bidirectional_attention"):
        changes = {"sliding_window": settings["sliding_window"]}
    # Its class is the model's own code and none of the library.
    if name == "llama-embed":
        changes = {"architectures": ["LlamaBidirectionalModel"]}
    if changes:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=2) + "\n")
    tokens = torch.tensor([TOKENS])
    with torch.no_grad(), sample_deviation() if name == "gemma3n" else contextlib.nullcontext():
        if name == "llama-embed":
            everything = torch.zeros(1, 1, len(TOKENS), len(TOKENS))
            kind, found = "embedding", model(tokens, attention_mask=everything).last_hidden_state[0].mean(0)
        elif name in ENCODERS:
            kind, found = "embedding", model(tokens).last_hidden_state[0].mean(0)
        elif name in TRANSLATORS:
            kind, found = "decoder", model(tokens, decoder_input_ids=torch.tensor([DECODER_TOKENS])).logits[0]
        else:
            kind, found = "logits", model(tokens, use_cache=False).logits[0]
    (folder / f"{kind}.f32").write_bytes(found.float().contiguous().numpy().astype("<f4").tobytes())
    print(f"{name}: {sum(f.stat().st_size for f in folder.iterdir())} bytes, {kind} {found.std():.3f}")


def main():
    names = sys.argv[1:] or list(MODELS)
    for name in names:
        try:
            make(name, 7 + list(MODELS).index(name))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
    (FOLDER / "tokens.json").write_text(json.dumps(TOKENS) + "\n")


if __name__ == "__main__":
    main()
