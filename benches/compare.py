#!/usr/bin/env python3
"""Compares `llama bench` with the llama-bench programs of other engines, and prints a table of ratios.

    benches/compare.py --ours target/release/llama --peer L=/path/llama-bench [--peer "I=/path/llama-bench -rtr 1"]
                       [-t 2] [-p 512] [-n 32] [-d 0] [--rounds 5] [--ours-flags "--isa avx2"] [--bandwidth]
                       [--tsv FILE] MODEL...

Machines are noisy, so only programs that ran side by side are compared: every round runs all programs once for each
model, in an order that changes from round to round; a row shows the medians over the rounds, and the ratio of ours to
the better of the peers. A ratio is the median of the ratios of single rounds, too, because a round's runs share their
disturbances. With --bandwidth every run of ours measures how fast memory can be read right after it, and the last column is the
median share of that rate which generation reached. Peers that cannot load a model are left out of its rows. Nothing but the standard library is needed.
"""
import argparse, json, os, re, shlex, statistics, subprocess, sys


SHARE = re.compile(r" (tg\S+(?: @ d\d+)?): ([0-9.]+) GB/s of weights, ([0-9]+) % of it")


def run(command, environment):
    """Tokens per second by test (and, where they are printed, shares of memory's speed), or None if the program fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        rows = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        said = done.stderr.strip().splitlines()[-1:] if isinstance(error, ValueError) else [str(error)]
        print(f"{command[0]}: {''.join(said)}", file=sys.stderr)
        return None
    speeds = {}
    for row in rows:
        prompt, answer, depth = int(row["n_prompt"]), int(row["n_gen"]), int(row.get("n_depth", 0) or 0)
        name = f"pp{prompt}" if answer == 0 else f"tg{answer}" if prompt == 0 else f"pp{prompt}+tg{answer}"
        speeds[name + (f" @ d{depth}" if depth else "")] = float(row["avg_ts"])
    for test, rate, share in SHARE.findall(done.stderr):
        speeds[f"{test} share"] = float(share)
    return speeds or None


def program(text):
    """NAME=COMMAND: the name, the words of the command, its environment (VARIABLE=VALUE before the program)."""
    name, _, command = text.partition("=")
    words, environment = shlex.split(command), dict(os.environ)
    while words and "=" in words[0] and not os.path.exists(words[0]):
        variable, _, value = words.pop(0).partition("=")
        environment[variable] = value
    if not name or not words:
        raise argparse.ArgumentTypeError(f"expected NAME=COMMAND, not {text!r}")
    return name, words, environment


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="the llama program")
    parser.add_argument("--ours-flags", default="", help="further flags for it")
    parser.add_argument("--peer", type=program, action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("-t", "--threads", default="2")
    parser.add_argument("-p", "--prompt", default="512")
    parser.add_argument("-n", "--answer", default="32")
    parser.add_argument("-d", "--depth", default="0")
    parser.add_argument("--flags", default="", help="further flags for all programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bandwidth", action="store_true", help="the share of memory's speed that generation reaches")
    parser.add_argument("--tsv", help="appends every measurement to this file")
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()

    ours = [options.ours, "bench", *shlex.split(options.ours_flags), *["--bandwidth"] * options.bandwidth]
    programs = [("ours", ours, dict(os.environ))]
    programs += [(name, words + ["-fa", "1"], environment) for name, words, environment in options.peer]
    flags = ["-t", options.threads, "-p", options.prompt, "-n", options.answer, "-r", "1", "-o", "json"]
    if options.depth != "0":
        flags += ["-d", options.depth]
    flags += shlex.split(options.flags)

    names = [name for name, *_ in options.peer]
    titles = ["model", "test", "ours", *names, "ratio to the better", "of rounds", *["% of memory"] * options.bandwidth]
    print("| " + " | ".join(titles) + " |")
    print("| --- | --- |" + " ---: |" * (len(titles) - 2), flush=True)
    unmeasured = []
    for model in options.models:
        rounds, failed = [], set()
        for number in range(options.rounds):
            found = {}
            turn = number % len(programs)
            for name, words, environment in programs[turn:] + programs[:turn]:
                if name not in failed:
                    speeds = run(words + ["-m", model] + flags, environment)
                    if speeds is None:
                        failed.add(name)
                    else:
                        found[name] = speeds
            rounds.append(found)
            if "ours" in failed:
                break
        if "ours" in failed:
            print(f"{options.ours} cannot measure {model}", file=sys.stderr)
            unmeasured.append(model)
            continue
        label = os.path.basename(model).removesuffix(".gguf")
        for test in [test for test in rounds[0]["ours"] if not test.endswith(" share")]:
            medians, ratios = {}, []
            for name in ["ours", *names]:
                values = [found[name][test] for found in rounds if name in found and test in found[name]]
                if values and name not in failed:
                    medians[name] = statistics.median(values)
                if options.tsv:
                    with open(options.tsv, "a") as file:
                        file.writelines(f"{label}\t{test}\t{options.threads}\t{name}\t{value}\n" for value in values)
            peers = [name for name in names if name in medians]
            cells = [f"{medians[name]:.1f}" if name in medians else "-" for name in ["ours", *names]]
            if peers:
                best = max(peers, key=lambda name: medians[name])
                ratios = [found["ours"][test] / found[best][test] for found in rounds if best in found]
                cells += [f"{medians['ours'] / medians[best]:.2f}", f"{statistics.median(ratios):.2f}"]
            else:
                cells += ["-", "-"]
            if options.bandwidth:
                shares = [found["ours"][f"{test} share"] for found in rounds if f"{test} share" in found["ours"]]
                cells.append(f"{statistics.median(shares):.0f}" if shares else "-")
            print(f"| {label} | {test} | " + " | ".join(cells) + " |", flush=True)
    sys.exit(1 if unmeasured else 0)


if __name__ == "__main__":
    main()
