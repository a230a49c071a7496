#!/usr/bin/env bash
# Builds the shim against an installed OpenVINO: shim/build.sh [output folder]. Needs a C++ compiler.
# The program finds the result beside itself, beside OpenVINO's libraries, or where PUNA_OPENVINO_SHIM says.
set -euo pipefail
source_file=$(cd "$(dirname "$0")" && pwd)/shim.cpp
root=${OPENVINO_DIR:-$(python3 -c 'import importlib.util; print(importlib.util.find_spec("openvino").submodule_search_locations[0])')}
include=
for folder in "$root/include" "$root/runtime/include"; do
    [ -f "$folder/openvino/core/model.hpp" ] && include=$folder
done
[ -n "$include" ] || { echo "no headers of OpenVINO below $root" >&2; exit 1; }
library=$(find "$root" -name 'libopenvino.so*' | sort | tail -1)
[ -n "$library" ] || { echo "no libopenvino below $root" >&2; exit 1; }
output=${1:-$(dirname "$library")}/libpuna_openvino.so
${CXX:-c++} -std=c++17 -O2 -shared -fPIC -Wall -Wno-attributes -I"$include" "$source_file" \
    -L"$(dirname "$library")" -l:"$(basename "$library")" -o "$output"
echo "$output"
