#!/bin/sh
# Runs every fuzz target for a minute (or as many seconds as the first argument says). Needs a nightly compiler and
# cargo-fuzz. No input may take more than 10 seconds or 2 GB.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
for target in gbnf schema tokenizer template output; do
    echo "== $target"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096
done
