# syntax=docker/dockerfile:1
# Images with OpenVINO:
#   docker build -f docker/openvino.Dockerfile --target server -t llama-openvino:server .
#   docker run --rm -p 8080:8080 -v ~/models:/models llama-openvino:server -m /models/model.gguf
# Targets: base (the library and what it needs), full (all tools), light (chat and completion), server.
# Graphics: add --device=/dev/dri and -e GGML_OPENVINO_DEVICE=GPU. NPU: add --device=/dev/accel and …=NPU.

ARG UBUNTU_VERSION=24.04
ARG OPENVINO_VERSION=2026.4.1
ARG RUST_VERSION=1.95

FROM rust:${RUST_VERSION}-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked -p puna-llama

# The library comes from its Python package, which has everything in one folder; nothing of Python is kept.
FROM ubuntu:${UBUNTU_VERSION} AS library
ARG OPENVINO_VERSION
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-pip g++ \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --no-deps --target /package "openvino==${OPENVINO_VERSION}"
COPY crates/backend-openvino/shim /shim
RUN OPENVINO_DIR=/package/openvino /shim/build.sh /package/openvino/libs \
    && mkdir -p /opt/openvino \
    && mv /package/openvino/libs /opt/openvino/libs

FROM ubuntu:${UBUNTU_VERSION} AS base
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates curl libgomp1 ocl-icd-libopencl1 intel-opencl-icd \
    && rm -rf /var/lib/apt/lists/*
COPY --from=library /opt/openvino /opt/openvino
ENV OPENVINO_DIR=/opt/openvino \
    LLAMA_ARG_DEVICE=OPENVINO0 \
    GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR=/var/cache/llama
WORKDIR /app
RUN mkdir -p /var/cache/llama
VOLUME ["/var/cache/llama"]

FROM base AS full
COPY --from=build /source/target/release/llama /app/llama
ENTRYPOINT ["/app/llama"]

FROM base AS light
COPY --from=build /source/target/release/llama /app/llama
RUN ln -s llama llama-cli && ln -s llama llama-completion
ENTRYPOINT ["/app/llama-cli"]

FROM base AS server
COPY --from=build /source/target/release/llama /app/llama
RUN ln -s llama llama-server
ENV LLAMA_ARG_HOST=0.0.0.0
EXPOSE 8080
HEALTHCHECK CMD ["curl", "--fail", "--silent", "http://localhost:8080/health"]
ENTRYPOINT ["/app/llama", "serve"]
