//! Adapters of the PEFT library: every setting is honoured or refused by its name.

use std::fs;
use std::path::{Path, PathBuf};

use puna_convert::LoraConversion;
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/convert").join(name)
}

/// Writes the factors of these modules: name, rank, rows, columns. All numbers are 1.
fn write_factors(folder: &Path, modules: &[(&str, usize, usize, usize)]) {
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (module, rank, rows, columns) in modules {
        for (factor, shape) in [("lora_A", [*rank, *columns]), ("lora_B", [*rows, *rank])] {
            let begin = data.len();
            data.extend((0..shape[0] * shape[1]).flat_map(|_| 1f32.to_le_bytes()));
            header.insert(
                format!("base_model.model.{module}.{factor}.weight"),
                json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]}),
            );
        }
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(folder.join("adapter_model.safetensors"), file).expect("it is written");
}

const Q: &str = "model.layers.1.self_attn.q_proj";
const V: &str = "model.layers.0.self_attn.v_proj";

/// An adapter of the small llama with these settings besides the usual ones; ranks of [`Q`] and [`V`].
fn adapter(more: &Value, ranks: [usize; 2]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write_factors(folder.path(), &[(Q, ranks[0], 32, 32), (V, ranks[1], 16, 32)]);
    let mut settings = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"});
    for (key, value) in more.as_object().expect("an object") {
        settings[key] = value.clone();
    }
    fs::write(folder.path().join("adapter_config.json"), settings.to_string()).expect("it is written");
    folder
}

/// By what readers multiply the product of the factors of a module, the numbers of both included.
fn strength(adapter: &LoraConversion, weight: &str) -> f32 {
    let first = |ending: &str| {
        let name = format!("{weight}.{ending}");
        let (_, recipe) = adapter.tensors().iter().find(|(found, _)| *found == name).expect("it is there");
        let data = adapter.data(recipe).expect("it evaluates");
        (f32::from_le_bytes(data[..4].try_into().expect("4 bytes")), recipe.shape[1])
    };
    let ((a, _), (b, rank)) = (first("lora_a"), first("lora_b"));
    a * b * adapter.metadata.f32("adapter.lora.alpha").expect("it is there") / rank as f32
}

#[test]
fn modules_have_the_alpha_and_rank_of_their_patterns() {
    for (settings, ranks, expected) in [
        (json!({}), [2, 2], [2.0, 2.0]),
        (
            json!({"fan_in_fan_out": true, "modules_to_save": [], "layer_replication": null}),
            [2, 2],
            [2.0, 2.0],
        ),
        (json!({"alpha_pattern": {"q_proj": 16}}), [2, 2], [8.0, 2.0]),
        (json!({"alpha_pattern": {"layers.1.self_attn.q_proj": 16, "proj": 1}}), [2, 2], [8.0, 2.0]),
        (json!({"rank_pattern": {"q_proj": 8}}), [8, 2], [0.5, 2.0]),
        (json!({"rank_pattern": {"^model.*v_proj": 4}, "alpha_pattern": {"v_proj": 2}}), [2, 4], [2.0, 0.5]),
        (json!({"r": 4, "use_rslora": true}), [4, 4], [2.0, 2.0]),
        (
            json!({"r": 4, "use_rslora": true, "rank_pattern": {"q_proj": 16}, "alpha_pattern": {"v_proj": 6}}),
            [16, 4],
            [1.0, 3.0],
        ),
    ] {
        let folder = adapter(&settings, ranks);
        let found = LoraConversion::open(folder.path(), &fixture("llama")).expect("it is sound");
        for (weight, expected) in ["blk.1.attn_q.weight", "blk.0.attn_v.weight"].iter().zip(expected) {
            let strength = strength(&found, weight);
            assert!((strength - expected).abs() < 1e-6, "{settings} {weight}: {strength}, {expected}");
        }
    }
}

#[test]
fn what_the_file_could_not_say_is_refused_by_its_key() {
    for (settings, parts) in [
        (json!({"r": 8}), ["r gives", "the rank 8, but its lora_A has 2 rows"]),
        (json!({"rank_pattern": {"v_proj": 3}}), ["rank_pattern gives", V]),
        (json!({"rank_pattern": 3}), ["rank_pattern", "no object"]),
        (json!({"alpha_pattern": {"v_proj": "x"}}), ["alpha_pattern", "v_proj"]),
        (json!({"alpha_pattern": {"(": 1}}), ["alpha_pattern", "no pattern"]),
        (json!({"bias": "all"}), ["bias is \"all\"", ""]),
        (json!({"bias": "lora_only"}), ["bias is", ""]),
        (json!({"lora_bias": true}), ["lora_bias is true", ""]),
        (json!({"modules_to_save": ["lm_head"]}), ["modules_to_save is", "lm_head"]),
        (json!({"trainable_token_indices": [1]}), ["trainable_token_indices", ""]),
        (json!({"layer_replication": [[0, 2]]}), ["layer_replication", ""]),
        (json!({"use_dora": true}), ["use_dora", ""]),
        (json!({"init_lora_weights": "pissa_niter_4"}), ["init_lora_weights", "pissa"]),
        (json!({"r": null}), ["r is missing", ""]),
        (json!({"r": "x"}), ["r is \"x\"", ""]),
        (json!({"lora_alpha": 0}), ["lora_alpha", ""]),
        (json!({"peft_type": "IA3"}), ["peft_type", "IA3"]),
    ] {
        let folder = adapter(&settings, [2, 2]);
        let error = LoraConversion::open(folder.path(), &fixture("llama")).expect_err("it is refused");
        let error = error.to_string();
        assert!(error.starts_with("adapter_config.json: "), "{settings}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{settings}: {error}");
    }
}

#[test]
fn factors_have_to_fit_each_other_and_the_model() {
    for (modules, part) in [
        (
            &[(Q, 2, 32, 31)][..],
            "the change of blk.1.attn_q.weight has the shape [32, 31], the model's tensor [32, 32]",
        ),
        (&[("model.layers.2.self_attn.v_proj", 2, 16, 32)], "no tensor \"blk.2.attn_v.weight\""),
        (&[("model.layers.1.what", 2, 16, 32)], "is no factor of a change of llama"),
    ] {
        let folder = adapter(&json!({}), [2, 2]);
        write_factors(folder.path(), modules);
        let error = LoraConversion::open(folder.path(), &fixture("llama")).expect_err("it is refused");
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Queries of Gemma 2 take the factor of their scores, and so do their changes.
#[test]
fn changes_are_multiplied_as_their_weights_are() {
    let folder = adapter(&json!({}), [2, 2]);
    let found = LoraConversion::open(folder.path(), &fixture("gemma2-scalar")).expect("it is sound");
    let expected = 2.0 * (8.0f32 / 3.0).sqrt();
    assert!((strength(&found, "blk.1.attn_q.weight") - expected).abs() < 1e-5);
    assert_eq!(strength(&found, "blk.0.attn_v.weight"), 2.0);
}
