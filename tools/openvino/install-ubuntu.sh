#!/usr/bin/env bash
# Sets the program up with OpenVINO on Ubuntu, in one go: OpenVINO in a Python environment of its own, the drivers' loader
# for Intel graphics, the program built from these sources, and the shim beside it.
# Usage: tools/openvino/install-ubuntu.sh [folder], by default ~/.local/share/llama-openvino.
set -euo pipefail

openvino_version=${OPENVINO_VERSION:-2026.4.1}
folder=${1:-$HOME/.local/share/llama-openvino}
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

say() { printf '\n== %s\n' "$1"; }

say "packages of the system"
sudo apt-get update
sudo apt-get install --yes build-essential curl python3-venv ocl-icd-libopencl1 intel-opencl-icd

if ! command -v cargo >/dev/null; then
    echo "Rust is missing; install it as https://rustup.rs says and run this again" >&2
    exit 1
fi

say "OpenVINO $openvino_version"
python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet "openvino==$openvino_version"
library=$("$folder/environment/bin/python" -c 'import openvino, os; print(os.path.dirname(openvino.__file__))')

say "the program"
cargo build --release --locked -p puna-llama --manifest-path "$source_folder/Cargo.toml"
mkdir -p "$folder/bin"
target_folder=${CARGO_TARGET_DIR:-$source_folder/target}
install -m 755 "$target_folder/release/llama" "$folder/bin/llama"

say "the shim"
OPENVINO_DIR=$library "$source_folder/crates/backend-openvino/shim/build.sh" "$folder/bin"

cat > "$folder/setup.sh" <<SETUP
export OPENVINO_DIR="$library"
export PATH="$folder/bin:\$PATH"
SETUP

say "done"
cat <<DONE
  source $folder/setup.sh
  llama devices
  export GGML_OPENVINO_DEVICE=CPU   # or GPU, NPU
  llama cli -m model.gguf --device OPENVINO0
DONE
