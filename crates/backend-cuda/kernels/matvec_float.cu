// As matvec.cu for matrices of plain numbers: activations stay floats, and rows may have any width.
#include "formats.cuh"
#include "functions.cuh"

#define MATVEC_THREADS 512

template <class F, int N>
DEVICE void add_row(float sums[N], const typename F::T* row, const float* x, int width) {
    constexpr int VECTOR = 16 / sizeof(typename F::T), DEPTH = 4;
    int lane = threadIdx.x % 32;
    if (width % VECTOR == 0) {
        int vectors = width / VECTOR;
        for (int base = lane; base < vectors; base += 32 * DEPTH) {
            uint4 raw[DEPTH];
#pragma unroll
            for (int i = 0; i < DEPTH; i++)
                if (base + 32 * i < vectors) raw[i] = load_once((const uint4*)row + base + 32 * i);
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                int at = base + 32 * i;
                if (at >= vectors) continue;
                uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
                float values[VECTOR];
#pragma unroll
                for (int j = 0; j < VECTOR; j++)
                    values[j] = VECTOR == 4 ? bits_to_float(words[j % 4]) : F::value((typename F::T)(words[j / 2 % 4] >> (j % 2 * 16)));
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int j = 0; j < VECTOR; j += 4) {
                        float4 v = *(const float4*)(x + (long long)n * width + at * VECTOR + j);
                        sums[n] += values[j] * v.x + values[j + 1] * v.y + values[j + 2] * v.z + values[j + 3] * v.w;
                    }
            }
        }
        return;
    }
    for (int i = lane; i < width; i += 32) {
        float value = F::value(row[i]);
#pragma unroll
        for (int n = 0; n < N; n++) sums[n] += value * x[(long long)n * width + i];
    }
}

// Parameters as of matvec.cu; `chunks` is the width here, formats do not differ and scales are not used.
template <class F, int N>
DEVICE void matvec_float(const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2,
                         int row_bytes, int width, const float* x, const float* norm, float epsilon, float* out0, float* out1,
                         float* out2, const float* bias0, const float* bias1, const float* bias2, const float* residual, int glu,
                         int experts, const int* chosen, long long expert_bytes, int spread) {
    SHARED_BYTES(shared);
    float* a = (float*)shared;
    int lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32);
    int row = (threadIdx.x / 32) * gridDim.x + blockIdx.x;
    int total = glu ? n0 : n0 + n1 + n2;
    let_next_start();
    if (!experts && row < n0)
        for (int at = lane * 128; at < row_bytes; at += 4096) prefetch(w0 + (long long)row * row_bytes + at);
    wait_for_previous();
    long long slot = blockIdx.y;
    if (experts) {
        int expert = chosen ? chosen[slot] : (int)(slot % experts);
        w0 += expert * expert_bytes;
        if (glu) w1 += expert * expert_bytes;
        x += (spread ? slot : slot / experts) * (long long)width;
        out0 += slot * n0;
    }
    for (int n = 0; n < N; n++) {
        float inverse = 1.0f;
        const float* from = x + (long long)n * width;
        if (norm) {
            float squares = 0.0f;
            for (int i = threadIdx.x; i < width; i += blockDim.x) squares += from[i] * from[i];
            inverse = 1.0f / sqrtf(block_sum(squares) / width + epsilon);
        }
        for (int i = threadIdx.x; i < width; i += blockDim.x) a[(long long)n * width + i] = norm ? from[i] * inverse * norm[i] : from[i];
    }
    __syncthreads();
    for (; row < total; row += warps) {
        float sums[N], others[N];
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] = others[i] = 0.0f;
        int local = row, segment = 0;
        if (!glu && local >= n0) {
            local -= n0;
            segment = 1;
            if (local >= n1) {
                local -= n1;
                segment = 2;
            }
        }
        const unsigned char* matrix = segment == 0 ? w0 : segment == 1 ? w1 : w2;
        add_row<F, N>(sums, (const typename F::T*)(matrix + (long long)local * row_bytes), a, width);
        if (glu) add_row<F, N>(others, (const typename F::T*)(w1 + (long long)local * row_bytes), a, width);
        float* out = segment == 0 ? out0 : segment == 1 ? out1 : out2;
        const float* bias = segment == 0 ? bias0 : segment == 1 ? bias1 : bias2;
        int outputs = segment == 0 ? n0 : segment == 1 ? n1 : n2;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float sum = warp_sum(sums[i]), other = glu ? warp_sum(others[i]) : 0.0f;
            if (lane == 0) {
                if (bias) sum += bias[local];
                if (glu) sum = apply_function(glu - 1, sum) * other;
                if (residual) sum += residual[(long long)i * outputs + local];
                out[(long long)i * outputs + local] = sum;
            }
        }
    }
}

#define MATVEC(name, F, N)                                                                                               \
    KERNEL BOUNDED(MATVEC_THREADS, 1) matvec_##name##_##N(                                                               \
        const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2, int split,    \
        int row_bytes, int other_row_bytes, int width, const float* x, int, const float* norm, float epsilon, float* out0,    \
        float* out1, float* out2, const float* bias0, const float* bias1, const float* bias2, const float* residual,     \
        int glu, int experts, const int* chosen, long long expert_bytes, int spread, int t0, int t1, int t2, int t3,     \
        float factor) {                                                                                                  \
        matvec_float<F, N>(w0, w1, w2, n0, n1, n2, row_bytes, width, x, norm, epsilon, out0, out1, out2, bias0, bias1,   \
                           bias2, residual, glu, experts, chosen, expert_bytes, spread);                                 \
    }                                                                                                                    \
    REGISTER(matvec_##name##_##N)
#define MATVECS(name, F) MATVEC(name, F, 1) MATVEC(name, F, 2) MATVEC(name, F, 4) MATVEC(name, F, 8)
MATVECS(single, Single)
MATVECS(half, Half)
MATVECS(brain, Brain)
