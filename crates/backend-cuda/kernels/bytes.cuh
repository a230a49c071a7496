// Products in eight bits: a block's own copy of activations, and what a warp does with 16 rows and 256 columns of a matrix on the
// matrix units for integers.
#pragma once
#include "formats.cuh"

// Activations in shared memory. `quads` has for each chunk and each row of activations four lanes with the two quads of
// bytes that a lane multiplies; `meta` scale, scaled sums of both halves, and of the whole chunk.
struct Activations {
    uint2* quads;
    float4* meta;
};

// Four numbers of eight lanes each are made the bytes of a chunk.
DEVICE void quantise_chunk(Activations to, float4 v, int at) {
    float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    for (int mask = 1; mask < 8; mask <<= 1) most = fmaxf(most, shuffle_xor(most, mask));
    float scale = most * (1.0f / 127.0f), back = most > 0.0f ? __fdividef(127.0f, most) : 0.0f;
    int a = __float2int_rn(v.x * back), b = __float2int_rn(v.y * back), c = __float2int_rn(v.z * back), d = __float2int_rn(v.w * back);
    int sum = a + b + c + d;
    for (int mask = 1; mask < 4; mask <<= 1) sum += shuffle_xor(sum, mask);
    int other = shuffle_xor(sum, 4), quad = threadIdx.x % 8;
    uint32_t packed = (uint32_t)((a & 255) | (b & 255) << 8 | (c & 255) << 16) | (uint32_t)d << 24;
    ((uint32_t*)to.quads)[at * 8 + quad % 4 * 2 + quad / 4] = packed;
    if (quad == 0) to.meta[at] = make_float4(scale, scale * (float)sum, scale * (float)other, scale * (float)(sum + other));
}

DEVICE float4 times(float4 v, float4 w, float factor) {
    return make_float4(v.x * w.x * factor, v.y * w.y * factor, v.z * w.z * factor, v.w * w.w * factor);
}

// Quantises `rows` rows of `chunks` chunks, kept `apart` rows of each chunk apart; with a norm weight they are normalised
// first. Until `wait` only weights are read.
template <int WARPS, class W>
DEVICE void quantise_rows(Activations to, const float* x, int rows, int apart, int chunks, const float* norm, float epsilon, W wait) {
    __shared__ float squares[WARPS];
    // What a lane keeps of a row while its norm is found.
    constexpr int KEPT = 4, BATCH = 8;
    int width = chunks * 32, whole = groups_of(chunks) * 256, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Each row has as many warps as there are for it.
    int share = WARPS / rows, row = warp / share, part = warp % share, first = part * 128 + lane * 4, step = share * 128;
    const float* from = x + (long long)row * width;
    if (norm && whole <= KEPT * step) {
        float4 v[KEPT], w[KEPT];
#pragma unroll
        for (int i = 0; i < KEPT; i++) w[i] = first + i * step < width ? *(const float4*)(norm + first + i * step) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        wait();
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            v[i] = first + i * step < width ? *(const float4*)(from + first + i * step) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
        }
        sum = warp_sum(sum);
        if (lane == 0) squares[warp] = sum;
        __syncthreads();
        sum = 0.0f;
        for (int i = 0; i < share; i++) sum += squares[row * share + i];
        float inverse = rsqrtf(sum / width + epsilon);
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            if (part * 128 + i * step < whole) quantise_chunk(to, times(v[i], w[i], inverse), (first + i * step) / 32 * apart + row);
    } else {
        wait();
        float inverse = 1.0f;
        if (norm) {
            float sum = 0.0f;
#pragma unroll 4
            for (int i = first; i < width; i += step) {
                float4 v = *(const float4*)(from + i);
                sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            }
            sum = warp_sum(sum);
            if (lane == 0) squares[warp] = sum;
            __syncthreads();
            sum = 0.0f;
            for (int i = 0; i < share; i++) sum += squares[row * share + i];
            inverse = rsqrtf(sum / width + epsilon);
        }
        for (int base = first; base - lane * 4 < whole; base += BATCH * step) {
            float4 v[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) v[i] = base + i * step < width ? *(const float4*)(from + base + i * step) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int at = base + i * step;
                if (at - lane * 4 >= whole) break;
                if (norm && at < width) v[i] = times(v[i], *(const float4*)(norm + at), inverse);
                quantise_chunk(to, v[i], at / 32 * apart + row);
            }
        }
    }
    __syncthreads();
}

// What a lane has of a group: two rows, in them both halves. With one row of activations it needs the scales of two
// chunks, else of all.
template <class F, class G, int N> struct Group {
    static constexpr int COUNT = N == 1 ? 2 : 8;
    static constexpr int CODES = most_of<F::CODE_WORDS, G::CODE_WORDS>::value;
    static constexpr int HIGH = most_of<most_of<F::HIGH_WORDS, G::HIGH_WORDS>::value, 1>::value;
    static constexpr int SCALES = most_of<COUNT * most_of<F::SCALE_BYTES, G::SCALE_BYTES>::value / 4, 1>::value;
    uint32_t codes[2][2][CODES], high[2][2][HIGH], scale[2][SCALES], super[2];
    template <class L, class M> DEVICE_MEMBER void load(const unsigned char* block) {
        int lane = threadIdx.x % 32, chunk = N == 1 ? lane % 4 * 2 : 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int half = 0; half < 2; half++) L::template load_half<M>(codes[r][half], high[r][half], block, lane, r, half);
            L::template load_scales<COUNT, M>(scale[r], super[r], block, lane / 4 + 8 * r, chunk);
        }
    }
};

// Adds products of a group. For one row of activations its eight chunks are the columns of the other operand, and lane `t`
// gets the sums of chunks 2 t and 2 t + 1, so that each scale is applied by one lane. For more, it has those of
// activations 2 t and 2 t + 1, chunk by chunk.
template <class L, class F, class G, int N>
DEVICE void add_group(float sums[4], const Group<F, G, N>& raw, const Constants& constants, const Activations& x, int group) {
    int lane = threadIdx.x % 32, t = lane % 4;
    int first[4] = {0, 0, 0, 0}, second[4] = {0, 0, 0, 0};
    uint2 b;
    if (N == 1) b = x.quads[group * 32 + lane];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        uint32_t low[2], high[2];
        L::quads(low, raw.codes[0][c / 4], raw.high[0][c / 4], c % 4, c / 4, constants);
        L::quads(high, raw.codes[1][c / 4], raw.high[1][c / 4], c % 4, c / 4, constants);
        uint32_t a[4] = {low[0], high[0], low[1], high[1]};
        if (N > 1) b = x.quads[(group * 8 + c) * 32 + lane];
        int d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
        if (L::HALVES) {
            mma_bytes_half(d, a[0], a[1], b.x);
            mma_bytes_half(e, a[2], a[3], b.y);
        } else {
            mma_bytes(d, a, b.x, b.y);
        }
        if (N == 1) {
            if (t == c / 2) {
                first[c % 2] = d[c % 2];
                first[2 + c % 2] = d[2 + c % 2];
                if (L::HALVES) {
                    second[c % 2] = e[c % 2];
                    second[2 + c % 2] = e[2 + c % 2];
                }
            }
        } else {
            float4 meta[2] = {x.meta[(group * 8 + c) * 8 + 2 * t], x.meta[(group * 8 + c) * 8 + 2 * t + 1]};
#pragma unroll
            for (int r = 0; r < 2; r++) {
                Scales s = L::scales(L::scale_of(raw.scale[r], c), raw.super[r], constants);
                s.minimum[0] -= L::SHIFT * s.scale[0];
                s.minimum[1] -= L::SHIFT * s.scale[1];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float product = s.scale[0] * (float)d[2 * r + i];
                    if (L::HALVES) product += s.scale[1] * (float)e[2 * r + i];
                    float sum = meta[i].x * product;
                    if (L::MINIMUM || L::SHIFT != 0)
                        sum += L::HALVES ? s.minimum[0] * meta[i].y + s.minimum[1] * meta[i].z : s.minimum[0] * meta[i].w;
                    sums[2 * r + i] += sum;
                }
            }
        }
    }
    if (N == 1) {
        float4 meta[2] = {x.meta[group * 8 + 2 * t], x.meta[group * 8 + 2 * t + 1]};
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                Scales s = L::quick_scales(L::scale_of(raw.scale[r], i), raw.super[r], constants);
                float product = s.scale[0] * (float)first[2 * r + i];
                if (L::HALVES) product += s.scale[1] * (float)second[2 * r + i];
                float sum = meta[i].x * product;
                if (L::MINIMUM || L::SHIFT != 0) {
                    if (L::SHIFT != 0) {
                        s.minimum[0] -= L::SHIFT * s.scale[0];
                        s.minimum[1] -= L::SHIFT * s.scale[1];
                    }
                    sum += L::HALVES ? s.minimum[0] * meta[i].y + s.minimum[1] * meta[i].z : s.minimum[0] * meta[i].w;
                }
                sums[r] += sum;
            }
    }
}
