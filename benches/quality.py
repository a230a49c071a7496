#!/usr/bin/env python3
"""How much of a model's predictions an engine's kernels lose in each number format: the Kullback-Leibler divergence of a
file's logits from those of the same file decoded to F32, ours and another engine's.

    benches/quality.py --ours target/release/llama [--peer /path/llama-perplexity] --text FILE [--chunks 4]
                       [--formats Q4_0,Q4_1,...] [--ours-flags "--deterministic"] MODEL.gguf

MODEL (best in F32 or F16) is quantised to each format and the result decoded to F32, both by `llama quantize`; each
engine is compared with its own F32 logits, so that only what happens to quantised weights counts. Prints a table, and ends with
status 1 if ours is further off than the peer anywhere, by more than two standard errors. Nothing but the standard library is needed.
"""
import argparse, os, re, shlex, subprocess, sys, tempfile

FORMATS = (
    "F16,BF16,Q8_0,Q4_0,Q4_1,Q5_0,Q5_1,Q2_K,Q3_K_M,Q4_K_M,Q5_K_M,Q6_K,IQ4_NL,IQ4_XS,IQ3_S,TQ2_0"
)


def run(command):
    """Everything that the program prints; ends this one if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout[-2000:]}")
    return done.stdout


def divergence(program, decoded, quantised, text, folder):
    """Mean divergence of the quantised file's predictions from those of the decoded file, and its standard error."""
    base = os.path.join(folder, "base")
    common = ["-f", text[0], "--chunks", str(text[1]), "-c", "512"]
    run(program + ["-m", decoded, *common, "--kl-divergence-base", base])
    printed = run(program + ["-m", quantised, *common, "--kl-divergence", "--kl-divergence-base", base])
    found = re.search(r"Mean\s+KLD:\s*(-?[0-9.e+-]+)\s*\S+\s*([0-9.e+-]+)", printed)
    if not found:
        sys.exit(f"{program[0]} printed no divergence:\n{printed[-2000:]}")
    return float(found.group(1)), float(found.group(2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="the llama program")
    parser.add_argument("--ours-flags", default="", help="further flags for it")
    parser.add_argument("--peer", help="another engine's llama-perplexity, with its flags")
    parser.add_argument("--text", required=True)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("model")
    options = parser.parse_args()

    ours = [options.ours, "perplexity", *shlex.split(options.ours_flags)]
    peer = shlex.split(options.peer) if options.peer else None
    text = (options.text, options.chunks)
    worse = []
    print("| format | ours | peer | ours / peer |\n| --- | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        quantised, decoded = os.path.join(folder, "quantised.gguf"), os.path.join(folder, "decoded.gguf")
        for name in options.formats.split(","):
            run([options.ours, "quantize", "--allow-requantize", options.model, quantised, name])
            run([options.ours, "quantize", "--allow-requantize", quantised, decoded, "F32"])
            own, own_error = divergence(ours, decoded, quantised, text, folder)
            cells = [f"{own:.6f}", "-", "-"]
            if peer:
                other, other_error = divergence(peer, decoded, quantised, text, folder)
                cells[1:] = [f"{other:.6f}", f"{own / other:.2f}" if other > 2 * other_error else "-"]
                if own - other > 2 * (own_error**2 + other_error**2) ** 0.5:
                    worse.append(name)
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    if worse:
        sys.exit("further from F32 than the peer: " + ", ".join(worse))


if __name__ == "__main__":
    main()
