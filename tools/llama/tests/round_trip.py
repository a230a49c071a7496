"""Files between this program and PyPI's `gguf`: what one writes the other reads with equal metadata and tensors.

    pip install gguf safetensors numpy
    python tools/llama/tests/round_trip.py target/release/llama
"""

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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "general.name (str) = \"a name\"" in run(program, "gguf", path).replace('"\\"', '"').replace('\\""', '"')
    run(program, "gguf", path, "--set", "some.number=int:5", "-o", copy)
    reader = GGUFReader(copy)
    assert reader.get_field("some.number").contents() == 5
    assert list(reader.get_field("some.list").contents()) == [1.5, 2.5]
    found = {tensor.name: tensor.data for tensor in reader.tensors}
    for name, data in {**tensors, "c": raw}.items():
        assert np.array_equal(found[name], data), name
    print("written by gguf:", len(found), "tensors")


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        ours_to_theirs(program, Path(folder))
        theirs_to_ours(program, Path(folder))


if __name__ == "__main__":
    main()
