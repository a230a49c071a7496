// Products of a matrix with few rows of activations: every weight is read once, at the speed of memory. A block first
// makes its own eight-bit copy of the activations, normalised if asked for; then each warp takes rows of the matrix.
#include "formats.cuh"
#include "functions.cuh"

#define MATVEC_THREADS 512

template <class A, class B> struct std_is_same {
    static constexpr bool value = false;
};
template <class A> struct std_is_same<A, A> {
    static constexpr bool value = true;
};

struct Activations {
    // For each row of activations and chunk: columns 0 to 15, 16 to 31, and scale with the sums of both.
    int4* low;
    int4* high;
    uint2* meta;
};

// Quantises `rows` rows of `chunks` chunks to shared memory; with a norm weight they are normalised first.
DEVICE void quantise_rows(Activations to, const float* x, int rows, int chunks, const float* norm, float epsilon) {
    int width = chunks * 32;
    for (int row = 0; row < rows; row++) {
        const float* from = x + (long long)row * width;
        float inverse = 1.0f;
        if (norm) {
            float squares = 0.0f;
            for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
                float4 v = *(const float4*)(from + i);
                squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            }
            inverse = 1.0f / sqrtf(block_sum(squares) / width + epsilon);
        }
        // Eight threads for each chunk; whole warps stay together.
        int rounds = (width + blockDim.x * 4 - 1) / (blockDim.x * 4);
        for (int round = 0; round < rounds; round++) {
            int i = (round * blockDim.x + threadIdx.x) * 4;
            bool inside = i < width;
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (inside) {
                v = *(const float4*)(from + i);
                if (norm) {
                    float4 w = *(const float4*)(norm + i);
                    v.x *= inverse * w.x;
                    v.y *= inverse * w.y;
                    v.z *= inverse * w.z;
                    v.w *= inverse * w.w;
                }
            }
            float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
            for (int mask = 1; mask < 8; mask <<= 1) most = fmaxf(most, shuffle_xor(most, mask));
            float scale = most / 127.0f, back = most > 0.0f ? 127.0f / most : 0.0f;
            int a = __float2int_rn(v.x * back), b = __float2int_rn(v.y * back), c = __float2int_rn(v.z * back), d = __float2int_rn(v.w * back);
            int sum = a + b + c + d;
            for (int mask = 1; mask < 4; mask <<= 1) sum += shuffle_xor(sum, mask);
            int other = shuffle_xor(sum, 4);
            if (inside) {
                int chunk = i / 32, quad = i / 4 % 8;
                int packed = (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (d & 255) << 24;
                int4* plane = quad < 4 ? to.low : to.high;
                ((int*)(plane + (long long)row * chunks + chunk))[quad % 4] = packed;
                if (quad == 0) {
                    uint2 meta;
                    meta.x = float_to_bits(scale);
                    meta.y = (uint32_t)(sum & 0xffff) | (uint32_t)other << 16;
                    to.meta[(long long)row * chunks + chunk] = meta;
                }
            }
        }
    }
    __syncthreads();
}

// Adds a chunk's product with each row of activations.
template <class F, int N>
DEVICE void add_chunk(float sums[N], const Raw& raw, const Constants& constants, const Activations& x, int chunks, int chunk) {
    uint32_t q[8];
    F::codes(raw, constants, q);
    Scales s = F::scales(raw, constants);
#pragma unroll
    for (int row = 0; row < N; row++) {
        int at = row * chunks + chunk;
        int4 low = x.low[at], high = x.high[at];
        uint2 meta = x.meta[at];
        int first = __dp4a((int)q[0], low.x, 0), second = __dp4a((int)q[4], high.x, 0);
        first = __dp4a((int)q[1], low.y, first);
        second = __dp4a((int)q[5], high.y, second);
        first = __dp4a((int)q[2], low.z, first);
        second = __dp4a((int)q[6], high.z, second);
        first = __dp4a((int)q[3], low.w, first);
        second = __dp4a((int)q[7], high.w, second);
        int first_sum = (int16_t)(meta.y & 0xffff), second_sum = (int16_t)(meta.y >> 16);
        if (F::SHIFT != 0) {
            first -= F::SHIFT * first_sum;
            second -= F::SHIFT * second_sum;
        }
        float product = F::HALVES ? s.scale[0] * (float)first + s.scale[1] * (float)second : s.scale[0] * (float)(first + second);
        if (F::MINIMUM)
            product += F::HALVES ? s.minimum[0] * (float)first_sum + s.minimum[1] * (float)second_sum
                                 : s.minimum[0] * (float)(first_sum + second_sum);
        sums[row] += bits_to_float(meta.x) * product;
    }
}

// Up to three matrices of one width; those from number `split` on have the second format. With `glu` the first two are
// gate and value, and the result is function(gate) value. With `experts` the second grid axis is a slot whose matrix is the
// chosen one; its activations are row slot / used, or row slot if `spread`. A null `chosen` means slot modulo `used`.
template <class F, class G, int N>
DEVICE void matvec(const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2, int split,
                   int row_bytes, int other_row_bytes, int chunks, const float* x, const float* norm, float epsilon,
                   float* out0, float* out1, float* out2, const float* bias0, const float* bias1, const float* bias2,
                   const float* residual, int glu, int experts, const int* chosen, long long expert_bytes, int spread,
                   Constants constants) {
    SHARED_BYTES(shared);
    constexpr int DEPTH = N > 2 ? 2 : 4;
    Activations a;
    a.low = (int4*)shared;
    a.high = a.low + N * chunks;
    a.meta = (uint2*)(a.high + N * chunks);
    int lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32);
    // Neighbouring rows go to different blocks, so that all of them are busy to the end.
    int row = (threadIdx.x / 32) * gridDim.x + blockIdx.x;
    int total = glu ? n0 : n0 + n1 + n2;
    let_next_start();
    long long slot = blockIdx.y;
    if (experts) {
        // Which matrix it is may come from the kernel before.
        wait_for_previous();
        int expert = chosen ? chosen[slot] : (int)(slot % experts);
        w0 += expert * expert_bytes;
        if (glu) w1 += expert * expert_bytes;
        x += (spread ? slot : slot / experts) * (long long)chunks * 32;
        out0 += slot * n0;
    }
    // The part of a row of the matrix that each lane works on is always on its way: loads of one row end with the first
    // of the next.
    auto find = [&](int row, bool second) {
        if (row >= total) return (const unsigned char*)nullptr;
        if (second) return w1 + (long long)row * row_bytes;
        if (glu || row < n0) return w0 + (long long)row * row_bytes;
        row -= n0;
        if (row < n1) return w1 + (long long)row * (split > 1 ? row_bytes : other_row_bytes);
        return w2 + (long long)(row - n1) * (split > 2 ? row_bytes : other_row_bytes);
    };
    auto is_first = [&](int row) {
        return std_is_same<F, G>::value || row < (split > 2 ? n0 + n1 + n2 : split > 1 ? n0 + n1 : n0);
    };
    auto load = [&](const unsigned char* from, bool first, int chunk) {
        return first ? F::load(from, chunks, chunk) : G::load(from, chunks, chunk);
    };
    const unsigned char* here = find(row, false);
    Raw raw[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        if (here && lane + 32 * i < chunks) raw[i] = load(here, is_first(row), lane + 32 * i);
    if (!experts) wait_for_previous();
    quantise_rows(a, x, N, chunks, norm, epsilon);
    bool second = false;
    float gate[N];
    while (row < total) {
        int next_row = glu && !second ? row : row + warps;
        bool next_second = glu && !second;
        const unsigned char* next = find(next_row, next_second);
        bool first = is_first(row), next_first = is_first(next_row);
        float sums[N];
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] = 0.0f;
        for (int base = lane; base < chunks; base += 32 * DEPTH) {
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                int chunk = base + 32 * i;
                if (chunk < chunks) {
                    Raw now = raw[i];
                    int after = chunk + 32 * DEPTH;
                    bool stays = after < chunks;
                    const unsigned char* from = stays ? here : next;
                    if (from) raw[i] = load(from, stays ? first : next_first, stays ? after : lane + 32 * i);
                    if (first) add_chunk<F, N>(sums, now, constants, a, chunks, chunk);
                    else add_chunk<G, N>(sums, now, constants, a, chunks, chunk);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums[i] = warp_sum(sums[i]);
            if (next_second) gate[i] = sums[i];
        }
        if (!next_second) {
            int local = row, segment = 0;
            if (!glu && local >= n0) {
                local -= n0;
                segment = 1;
                if (local >= n1) {
                    local -= n1;
                    segment = 2;
                }
            }
            float* out = segment == 0 ? out0 : segment == 1 ? out1 : out2;
            const float* bias = segment == 0 ? bias0 : segment == 1 ? bias1 : bias2;
            int width = segment == 0 ? n0 : segment == 1 ? n1 : n2;
#pragma unroll
            for (int i = 0; i < N; i++) {
                float sum = sums[i];
                if (lane == i) {
                    if (bias) sum += bias[local];
                    if (glu) sum *= apply_function(glu - 1, gate[i]);
                    if (residual) sum += residual[(long long)i * width + local];
                    out[(long long)i * width + local] = sum;
                }
            }
        }
        row = next_row;
        second = next_second;
        here = next;
    }
}

#define MATVEC_PARAMETERS                                                                                            \
    const unsigned char *w0, const unsigned char *w1, const unsigned char *w2, int n0, int n1, int n2, int split,    \
        int row_bytes, int other_row_bytes, int chunks, const float *x, const float *norm, float epsilon,            \
        float *out0, float *out1, float *out2, const float *bias0, const float *bias1, const float *bias2,           \
        const float *residual, int glu, int experts, const int *chosen, long long expert_bytes, int spread,          \
        int t0, int t1, int t2, int t3, float factor
#define MATVEC_ARGUMENTS                                                                                             \
    w0, w1, w2, n0, n1, n2, split, row_bytes, other_row_bytes, chunks, x, norm, epsilon, out0, out1, out2, bias0,    \
        bias1, bias2, residual, glu, experts, chosen, expert_bytes, spread,                                          \
        Constants { {(uint32_t)t0, (uint32_t)t1, (uint32_t)t2, (uint32_t)t3}, factor }

#define MATVEC(name, F, G, N)                                                    \
    KERNEL BOUNDED(MATVEC_THREADS, 2) matvec_##name##_##N(MATVEC_PARAMETERS) {    \
        matvec<F, G, N>(MATVEC_ARGUMENTS);                                       \
    }                                                                            \
    REGISTER(matvec_##name##_##N)
#define MATVECS(name, code, scale, offset)      \
    MATVEC(name, F_##name, F_##name, 1)         \
    MATVEC(name, F_##name, F_##name, 2)         \
    MATVEC(name, F_##name, F_##name, 4)         \
    MATVEC(name, F_##name, F_##name, 8)
QUANTISED_FORMATS(MATVECS)

// The pairs of formats that a file's mixtures put side by side.
#define MATVEC_PAIRS(name, F, G) MATVEC(name, F, G, 1) MATVEC(name, F, G, 2) MATVEC(name, F, G, 4) MATVEC(name, F, G, 8)
MATVEC_PAIRS(code4_super_code6_halves, F_code4_super, F_code6_halves)
MATVEC_PAIRS(code5_super_code6_halves, F_code5_super, F_code6_halves)
