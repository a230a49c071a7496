"""Files between this program and PyPI's `gguf` and `llama-cpp-python`: what one writes the other reads with equal
metadata, tensors and results. `.ci/round_trip` installs the first and runs this; without the second its part is skipped.

    pip install gguf safetensors numpy [llama-cpp-python]
    python tools/llama/tests/round_trip.py target/release/llama
"""

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize
from safetensors.numpy import load_file

FIXTURES = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "convert"


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def ours_to_theirs(program, folder):
    """Converted files have the folder's numbers, in every format within its error."""
    source = load_file(FIXTURES / "qwen2moe" / "model.safetensors")
    for kind, most in [("f32", 0.0), ("f16", 1e-6), ("bf16", 1e-4), ("q8_0", 1e-4)]:
        path = folder / f"{kind}.gguf"
        run(program, "convert", FIXTURES / "qwen2moe", "--outtype", kind, "--outfile", path)
        reader = GGUFReader(path)
        assert reader.get_field("general.architecture").contents() == "qwen2moe"
        assert reader.get_field("qwen2moe.expert_count").contents() == 4
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        stack = [source[f"model.layers.1.mlp.experts.{x}.up_proj.weight"] for x in range(4)]
        for name, right in [
            ("token_embd.weight", source["model.embed_tokens.weight"]),
            ("blk.0.attn_q.weight", source["model.layers.0.self_attn.q_proj.weight"]),
            ("blk.1.ffn_up_exps.weight", np.stack(stack)),
            ("output_norm.weight", source["model.norm.weight"]),
        ]:
            tensor = tensors[name]
            found = dequantize(tensor.data, tensor.tensor_type).reshape(right.shape)
            error = float(np.sum((found - right) ** 2) / np.sum(right**2))
            assert error <= most, (kind, name, error)
        print("read by gguf:", kind, len(tensors), "tensors")


def theirs_to_ours(program, folder):
    """Files of the package are read, and copied without a change."""
    path, copy = folder / "theirs.gguf", folder / "copy.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_string("general.name", "a name")
    writer.add_array("some.list", [1.5, 2.5])
    writer.add_bool("some.flag", True)
    rng = np.random.default_rng(3)
    tensors = {"a": rng.standard_normal((4, 64), np.float32), "b": rng.standard_normal(7).astype(np.float16)}
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    raw = rng.integers(0, 255, (4, 68), np.uint8)
    writer.add_tensor("c", raw, raw_dtype=GGMLQuantizationType.Q8_0)
    finish(writer)
    assert "general.name (str) = \"a name\"" in run(program, "gguf", path).replace('"\\"', '"').replace('\\""', '"')
    run(program, "gguf", path, "--set", "some.number=int:5", "-o", copy)
    reader = GGUFReader(copy)
    assert reader.get_field("some.number").contents() == 5
    assert list(reader.get_field("some.list").contents()) == [1.5, 2.5]
    found = {tensor.name: tensor.data for tensor in reader.tensors}
    for name, data in {**tensors, "c": raw}.items():
        assert np.array_equal(found[name], data), name
    print("written by gguf:", len(found), "tensors")


# Every format that `gguf` can decode, as a file type.
FORMATS = (
    "F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_S Q4_K_S Q5_K_S Q6_K IQ2_XXS IQ2_XS IQ2_M IQ3_XXS IQ3_S IQ1_S IQ1_M "
    "IQ4_NL IQ4_XS TQ1_0 TQ2_0"
).split()
WIDTH, INNER, VOCABULARY = 256, 512, 64


def small_model(path):
    """A llama model of random weights, written by the package, and a file of importance for it."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(64)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    rng = np.random.default_rng(5)
    importance = {}
    shapes = {"token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH)}
    for layer in range(2):
        for name, shape in dict(
            attn_q=(WIDTH, WIDTH), attn_k=(WIDTH // 2, WIDTH), attn_v=(WIDTH // 2, WIDTH), attn_output=(WIDTH, WIDTH),
            ffn_gate=(INNER, WIDTH), ffn_up=(INNER, WIDTH), ffn_down=(WIDTH, INNER),
        ).items():
            shapes[f"blk.{layer}.{name}"] = shape
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (rng.standard_normal(shape) * 0.06).astype(np.float32))
        importance[f"{name}.weight"] = (rng.standard_exponential((1, shape[1])) * 100).astype(np.float32)
    for name in ["output_norm"] + [f"blk.{layer}.{kind}_norm" for layer in range(2) for kind in ("attn", "ffn")]:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    finish(writer)
    writer = GGUFWriter(importance_of(path), "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["random"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 100)
    for name, sums in importance.items():
        writer.add_tensor(f"{name}.in_sum2", sums)
        writer.add_tensor(f"{name}.counts", np.full((1, 1), 100, np.float32))
    finish(writer)


def importance_of(path):
    return path.with_suffix(".imatrix.gguf")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def formats(program, folder):
    """What is written in each format, the package decodes to the numbers that this program decodes it to."""
    model, path, back = folder / "small.gguf", folder / "quantised.gguf", folder / "back.gguf"
    small_model(model)
    for kind in FORMATS:
        run(program, "quantize", "--pure", "--imatrix", importance_of(model), model, path, kind)
        run(program, "quantize", "--allow-requantize", path, back, "F32")
        right = {tensor.name: tensor.data for tensor in GGUFReader(back).tensors}
        formats = set()
        for tensor in GGUFReader(path).tensors:
            found = dequantize(tensor.data, tensor.tensor_type).reshape(right[tensor.name].shape)
            scale = np.abs(right[tensor.name]).max()
            assert np.allclose(found, right[tensor.name], rtol=0, atol=2e-7 * scale), (kind, tensor.name)
            formats.add(tensor.tensor_type.name)
        # File types are named after their size; this one's matrices are IQ2_S.
        expected = "IQ2_S" if kind == "IQ2_M" else kind
        assert any(expected.startswith(name) for name in formats), (kind, formats)
    print("decoded alike:", len(FORMATS), "formats")


def results(program, folder):
    """llama-cpp-python computes what this program computes, of files that either made."""
    try:
        import llama_cpp
    except ImportError:
        print("skipped: results of llama-cpp-python, which is not installed")
        return
    model, tokens = folder / "small.gguf", [5, 17, 3, 42, 8, 30, 21, 2]
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))

    def theirs(path):
        found = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
        found.eval(tokens)
        return np.array(found.scores[: len(tokens)], np.float64)

    def ours(path):
        output = folder / "logits.f32"
        run(program, "logits", "-m", path, "--tokens", ",".join(map(str, tokens)), "-o", output)
        return np.fromfile(output, "<f4").reshape(len(tokens), -1).astype(np.float64)

    def same(path, what, most):
        right = theirs(path)
        error = float(((ours(path) - right) ** 2).sum() / (right**2).sum())
        assert error <= most, (what, error)
        print(f"results of {what}: {error:.1e}")

    same(model, "a file of the package gguf", 1e-5)
    for kind, number, most in [("Q8_0", 7, 1e-4), ("Q4_K_S", 14, 1e-3), ("IQ3_S", 26, 1e-3)]:
        path = folder / f"{kind}.gguf"
        run(program, "quantize", "--imatrix", importance_of(model), model, path, kind)
        same(path, f"{kind} written here", most)
        if kind.startswith("IQ"):
            continue
        settings = llama_cpp.llama_model_quantize_default_params()
        settings.ftype = number
        done = llama_cpp.llama_model_quantize(str(model).encode(), str(path).encode(), ctypes.byref(settings))
        assert done == 0, kind
        same(path, f"{kind} written there", most)


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        ours_to_theirs(program, Path(folder))
        theirs_to_ours(program, Path(folder))
        formats(program, Path(folder))
        results(program, Path(folder))


if __name__ == "__main__":
    main()
