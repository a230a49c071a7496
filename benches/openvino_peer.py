"""Speed of OpenVINO GenAI on a GGUF file, to compare `llama bench --device OPENVINO0` with.

pip install openvino-genai==2026.4.1.0; python benches/openvino_peer.py MODEL [THREADS]
"""

import sys

import numpy
import openvino
import openvino_genai

PROMPT, GENERATED = 512, 64


def main():
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    pipeline = openvino_genai.LLMPipeline(sys.argv[1], "CPU", INFERENCE_NUM_THREADS=threads)
    seeds = iter(range(1, 100))

    def run(length, count):
        # Other tokens each time, so that nothing is found in a cache.
        tokens = (numpy.arange(length) * 977 + 1009 + next(seeds) * 7919) % 40_000 + 100
        tokens = openvino.Tensor(tokens.astype(numpy.int64).reshape(1, -1))
        mask = openvino.Tensor(numpy.ones((1, length), numpy.int64))
        config = openvino_genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        metrics = pipeline.generate(openvino_genai.TokenizedInputs(tokens, mask), config).perf_metrics
        return metrics.get_ttft().mean, metrics.get_tpot().mean

    run(PROMPT, 4)
    first = min(run(PROMPT, 2)[0] for _ in range(5))
    each = min(run(16, GENERATED)[1] for _ in range(3))
    print(f"prompt of {PROMPT}: {PROMPT / first * 1e3:.0f} t/s (best of 5)")
    print(f"generation of {GENERATED}: {1e3 / each:.1f} t/s (best of 3)")


main()
