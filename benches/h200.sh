#!/bin/sh
# Measures the CUDA back end on a machine with a card: nothing is built there. Usage:
#   benches/h200.sh FOLDER [quick]
# FOLDER holds `llama` and `zoo` (the test program of crates/backend-cuda, for its zoo), gen_shape_gguf.py and the wheel of
# the package gguf. It prints one table; models are made in /tmp and kept for the next run on the same machine.
set -u
folder=$(cd "$1" && pwd)
quick=${2:-}
python3 -m pip install -q --no-index --no-deps --target /tmp/site "$folder"/*.whl 2>/dev/null
export PYTHONPATH=/tmp/site
chmod +x "$folder/llama" "$folder/zoo" 2>/dev/null

echo "== devices"
"$folder/llama" devices
echo "== zoo"
[ -x "$folder/zoo" ] && "$folder/zoo" --nocapture 2>&1 | tail -60

make_model() { # shape format
    [ -f "/tmp/$1-$2.gguf" ] || python3 "$folder/gen_shape_gguf.py" "$1" "/tmp/$1-$2.gguf" "$2"
}
bench() { "$folder/llama" bench -dev CUDA0 -o md -r 3 "$@" 2>&1 | grep -vE '^\| -|^$'; }

echo "== speed"
make_model llama-8b Q4_K_M
bench -m /tmp/llama-8b-Q4_K_M.gguf -p 512,2048 -n 128 -ub 2048
bench -m /tmp/llama-8b-Q4_K_M.gguf -p 0 -n 128 -d 4096,16384 -ub 2048
[ -n "$quick" ] && exit 0
make_model llama-1b Q4_K_M
bench -m /tmp/llama-1b-Q4_K_M.gguf -p 2048 -n 128 -ub 2048
for format in Q8_0 Q6_K IQ4_XS MXFP4; do
    make_model llama-8b "$format"
    bench -m "/tmp/llama-8b-$format.gguf" -p 2048 -n 128 -ub 2048
    rm -f "/tmp/llama-8b-$format.gguf"
done
make_model llama-1b F16
bench -m /tmp/llama-1b-F16.gguf -p 2048 -n 128 -ub 2048
