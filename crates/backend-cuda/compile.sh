#!/bin/sh
# Compiles kernels/*.cu to kernels/compiled/*.fatbin: machine code for sm_90a, compressed PTX for others. It needs the compiler
# of the PyPI packages nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime and nvidia-cuda-cccl, all 13.0.*, and
# g++: usage: compile.sh PATH-TO-nvcc [FILE...]   (FILE without .cu; default all). Files whose sources did not change are kept.
set -eu
nvcc=$1
shift
cd "$(dirname "$0")/kernels"
mkdir -p compiled
[ $# -gt 0 ] || set -- $(ls *.cu | sed 's/\.cu$//')
digest() { cat *.cuh "$1.cu" ../compile.sh | sha256sum | cut -d' ' -f1; }
targets="-gencode arch=compute_90a,code=sm_90a"
# PTX runs on everything later: 80 serves 8.6 and 8.9 as well, 90 serves 10.0 and 12.0.
for number in 75 80 90; do targets="$targets -gencode arch=compute_$number,code=compute_$number"; done
for name in "$@"; do
    wanted=$(digest "$name")
    if [ "$(cat "compiled/$name.digest" 2>/dev/null)" = "$wanted" ] && [ -f "compiled/$name.fatbin" ]; then continue; fi
    "$nvcc" -std=c++17 -O3 --fatbin -Xfatbin --compress-all -Xfatbin --compress-mode=size -t 4 --split-compile 0 $targets "$name.cu" -o "compiled/$name.fatbin"
    echo "$wanted" >"compiled/$name.digest"
    echo "$name: $(stat -c %s "compiled/$name.fatbin") bytes"
done
