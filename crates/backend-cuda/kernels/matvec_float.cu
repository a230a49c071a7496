// As matvec.cu for matrices of plain numbers: activations stay floats, and rows may have any width.
#include "formats.cuh"
#include "functions.cuh"

#define MATVEC_THREADS 512
// Vectors of 16 bytes that a lane asks for at once, twice.
#define MATVEC_DEPTH 4

// Where number `i` of a row of activations is: those that meet the same part of a vector follow each other, so that lanes that
// read neighbours use all banks.
template <int VECTOR> DEVICE int place_of(int i, int width) {
    return VECTOR == 4 || width % VECTOR ? i : i % 8 / 4 * (width / 2) + i / 8 * 4 + i % 4;
}

template <class F, int N> DEVICE void add_vector(float sums[N], uint4 raw, const float* x, int width, int at) {
    constexpr int VECTOR = 16 / sizeof(typename F::T);
    uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    float values[VECTOR];
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        values[j] = VECTOR == 4 ? bits_to_float(words[j % 4]) : F::value((typename F::T)(words[j / 2 % 4] >> (j % 2 * 16)));
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < VECTOR; j += 4) {
            float4 v = *(const float4*)(x + n * width + j / 4 * (width / 2) + at * 4);
            sums[n] += values[j] * v.x + values[j + 1] * v.y + values[j + 2] * v.z + values[j + 3] * v.w;
        }
}

// Parameters as of matvec.cu; `width` is that of rows, formats do not differ and scales are not used.
template <class F, int N>
DEVICE void matvec_float(const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2,
                         int row_bytes, int width, const float* x, const float* norm, float epsilon, float* out0, float* out1,
                         float* out2, const float* bias0, const float* bias1, const float* bias2, const float* residual, int glu,
                         int experts, const int* chosen, long long expert_bytes, int spread) {
    SHARED_BYTES(shared);
    constexpr int VECTOR = 16 / sizeof(typename F::T), STEP = 32 * MATVEC_DEPTH;
    float* a = (float*)shared;
    int lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32), total = glu ? n0 : n0 + n1 + n2;
    int row = (threadIdx.x / 32) * gridDim.x + blockIdx.x;
    // Rows that are not whole vectors are read number by number.
    bool whole = width % VECTOR == 0;
    int vectors = width / VECTOR;
    let_next_start();
    long long slot = blockIdx.y;
    if (experts) {
        // Which matrix it is may come from the kernel before.
        wait_for_previous();
        int expert = chosen ? chosen[slot] : (int)(slot % experts);
        w0 += expert * expert_bytes;
        if (glu) w1 += expert * expert_bytes;
        x += (spread ? slot : slot / experts) * (long long)width;
        out0 += slot * n0;
    }
    // Which matrix a row is of, and its number there.
    auto matrix_of = [&](int index, int& local) {
        local = index;
        if (glu || local < n0) return 0;
        local -= n0;
        if (local < n1) return 1;
        local -= n1;
        return 2;
    };
    auto line_of = [&](int index, bool second) {
        int local, matrix = matrix_of(index, local);
        return (matrix == 0 ? second ? w1 : w0 : matrix == 1 ? w1 : w2) + (long long)local * row_bytes;
    };
    // What is asked for next: of a gated unit the gate's row, then the value's.
    int ahead_row = row, ahead_base = 0;
    bool ahead_second = false;
    const uint4* ahead = (const uint4*)(row < total && whole ? line_of(row, false) : w0);
    auto fetch = [&](uint4 raw[MATVEC_DEPTH]) {
        if (ahead_row >= total) return;
#pragma unroll
        for (int i = 0; i < MATVEC_DEPTH; i++) {
            int at = ahead_base + 32 * i + lane;
            if (at < vectors) raw[i] = load_once(ahead + at);
        }
        ahead_base += STEP;
        if (ahead_base < vectors) return;
        ahead_base = 0;
        if (glu && !ahead_second) {
            ahead_second = true;
        } else {
            ahead_second = false;
            ahead_row += warps;
        }
        if (ahead_row < total) ahead = (const uint4*)line_of(ahead_row, ahead_second);
    };
    uint4 raw[2][MATVEC_DEPTH];
    if (whole) fetch(raw[0]);
    if (norm && 4 * (int)threadIdx.x < width) prefetch(norm + 4 * threadIdx.x);
    if (!experts) wait_for_previous();
    // The norm's factor of a row is applied to its sums.
    float inverse[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float* from = x + (long long)n * width;
        float squares = 0.0f;
        if (width % 4 == 0) {
#pragma unroll 4
            for (int i = 4 * threadIdx.x; i < width; i += 4 * MATVEC_THREADS) {
                float4 v = *(const float4*)(from + i);
                if (norm) {
                    float4 w = *(const float4*)(norm + i);
                    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
                    v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
                }
                *(float4*)(a + n * width + place_of<VECTOR>(i, width)) = v;
            }
        } else {
            for (int i = threadIdx.x; i < width; i += MATVEC_THREADS) {
                squares += from[i] * from[i];
                a[n * width + i] = norm ? from[i] * norm[i] : from[i];
            }
        }
        inverse[n] = norm ? 1.0f / sqrtf(block_sum(squares) / width + epsilon) : 1.0f;
    }
    __syncthreads();
    float sums[N], gates[N];
#pragma unroll
    for (int n = 0; n < N; n++) sums[n] = gates[n] = 0.0f;
    bool second = false;
    // A line is done: of a gated unit the gate waits for the value.
    auto finish = [&]() {
        int local, matrix = matrix_of(row, local);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float sum = warp_sum(sums[n]) * inverse[n];
            sums[n] = 0.0f;
            if (glu && !second) {
                gates[n] = sum;
                continue;
            }
            if (lane != 0) continue;
            float* out = matrix == 0 ? out0 : matrix == 1 ? out1 : out2;
            const float* bias = matrix == 0 ? bias0 : matrix == 1 ? bias1 : bias2;
            long long at = (long long)n * (matrix == 0 ? n0 : matrix == 1 ? n1 : n2) + local;
            float result = glu ? gates[n] : sum;
            if (bias) result += bias[local];
            if (glu) result = apply_function(glu - 1, result) * sum;
            if (residual) result += residual[at];
            out[at] = result;
        }
        if (glu && !second) {
            second = true;
        } else {
            second = false;
            row += warps;
        }
    };
    if (!whole) {
        while (row < total) {
            const typename F::T* line = (const typename F::T*)line_of(row, second);
            for (int i = lane; i < width; i += 32) {
                float value = F::value(line[i]);
#pragma unroll
                for (int n = 0; n < N; n++) sums[n] += value * a[n * width + i];
            }
            finish();
        }
        return;
    }
    int base = 0;
    while (row < total) {
#pragma unroll
        for (int turn = 0; turn < 2; turn++) {
            if (row >= total) break;
            fetch(raw[turn ^ 1]);
#pragma unroll
            for (int i = 0; i < MATVEC_DEPTH; i++) {
                int at = base + 32 * i + lane;
                if (at < vectors) add_vector<F, N>(sums, raw[turn][i], a, width, at);
            }
            base += STEP;
            if (base >= vectors) {
                base = 0;
                finish();
            }
        }
    }
}

#define MATVEC(name, F, N)                                                                                               \
    KERNEL BOUNDED(MATVEC_THREADS, N == 1 ? 2 : 1) matvec_##name##_##N(                                                               \
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
