#!/bin/sh
# Runs every fuzz target for a minute (or as many seconds as the first argument says): with libFuzzer if cargo-fuzz and a
# nightly compiler are there, else with random inputs made from pieces, which needs neither. No input may take more than
# 10 seconds or 2 GB.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
if cargo +nightly fuzz --version >/dev/null 2>&1; then
    for target in gbnf schema tokenizer template output; do
        echo "== $target"
        cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096
    done
else
    cargo run --release -p puna-server --example fuzz -- "$seconds"
fi
