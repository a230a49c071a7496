"""Files of `llama quantize` against those of llama.cpp's llama-quantize: how far predictions move from those of the unquantised model.

usage: quantize_divergence.py LLAMA PEER_QUANTIZE MODEL.f32.gguf TEXT [TYPE ...]

Both programs get the same importance file, made by `llama imatrix` from the second half of TEXT; the mean Kullback-Leibler divergence over
chunks of the first half is measured by `llama perplexity` for both. Prints a line per type; exit status 1 where ours is more than 2 % above.
"""
import os, re, subprocess, sys, tempfile

TYPES = "Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS Q3_K_L Q3_K_M Q3_K_S IQ3_M IQ3_S IQ3_XS IQ3_XXS Q2_K Q2_K_S IQ2_M IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S".split()
CHUNKS, CONTEXT = 8, 256


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout + done.stderr


def main(llama, peer, model, text, *types):
    worst = 0.0
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        at = lambda name: os.path.join(folder, name)
        words = open(text, encoding="utf-8").read(); half = len(words) // 2
        open(at("first.txt"), "w").write(words[:half]); open(at("second.txt"), "w").write(words[half:])
        measure = ["-f", at("first.txt"), "-c", str(CONTEXT), "-b", str(CONTEXT), "--chunks", str(CHUNKS), "--kl-divergence-base", at("base")]
        run(llama, "imatrix", "-m", model, "-f", at("second.txt"), "-c", str(CONTEXT), "--chunks", "16", "-o", at("imatrix.gguf"))
        run(llama, "perplexity", "-m", model, *measure)
        for kind in types or TYPES:
            figures = []
            for command in ([llama, "quantize"], [peer]):
                run(*command, "--imatrix", at("imatrix.gguf"), model, at("q.gguf"), kind)
                found = run(llama, "perplexity", "-m", at("q.gguf"), *measure, "--kl-divergence")
                figures.append((float(re.search(r"Mean\s+KLD:\s*([0-9.eE+-]+)", found)[1]), os.path.getsize(at("q.gguf"))))
                os.unlink(at("q.gguf"))
            (own, own_size), (other, other_size) = figures; worst = max(worst, own / other)
            print(f"{kind:8} {own:.6f} {other:.6f} {own / other:.3f}  bytes {own_size} {other_size}", flush=True)
    print(f"largest ratio {worst:.3f}"); return worst > 1.02


if __name__ == "__main__":
    if len(sys.argv) < 5: sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
