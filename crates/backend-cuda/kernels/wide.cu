// Products of a matrix with many rows of activations on Hopper's matrix units for groups of four warps (`wgmma`), in half
// precision. Weights go from memory to registers, where they are decoded and multiplied from; activations lie in memory as
// the units want them (prepare_tiles) and are copied as they are. They come scaled by a power of two for each row, weights
// are scaled by 256, so that neither overflows or vanishes; sums are floats.
#include "formats.cuh"
#include "functions.cuh"

// What weights are multiplied by; `half_scales` knows it.
#define WIDE_SCALE 256.0f

// A row of activations in half precision and the power of two it was divided by. With `up` the row is function(x) up;
// with `norm` it is normalised. Blocks of 64 columns follow each other, in each the rows, 128 bytes of a row. Columns
// `4 t + i` of 16 are at `2 t + i`, from i = 2 on 6 further, and 16 bytes are at the place of their number exclusive-or the row's.
// A thread keeps KEPT times four numbers from the first look to the second; without that it reads them again.
template <int KEPT>
DEVICE void prepare(const float* x, const float* up, const float* norm, unsigned char* out, float* scales, int width, int whole,
                    int apart, int function, float epsilon) {
    let_next_start();
    int row = blockIdx.x, first = threadIdx.x * 4, step = blockDim.x * 4;
    const float* from = x + (long long)row * width;
    const float* other = up ? up + (long long)row * width : nullptr;
    float4 kept[KEPT > 0 ? KEPT : 1], weights[KEPT > 0 ? KEPT : 1];
    auto norm_at = [&](int i) { return norm && i < width ? *(const float4*)(norm + i) : make_float4(1.0f, 1.0f, 1.0f, 1.0f); };
    auto load = [&](int i) {
        if (i >= width) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float4 v = *(const float4*)(from + i);
        if (other) {
            float4 w = *(const float4*)(other + i);
            v.x = apply_function(function, v.x) * w.x;
            v.y = apply_function(function, v.y) * w.y;
            v.z = apply_function(function, v.z) * w.z;
            v.w = apply_function(function, v.w) * w.w;
        }
        return v;
    };
    float squares = 0.0f, most = 0.0f;
    auto look = [&](float4& v, float4 w) {
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
        most = fmaxf(fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
    };
#pragma unroll
    for (int k = 0; k < KEPT; k++) weights[k] = norm_at(first + k * step);
    wait_for_previous();
#pragma unroll
    for (int k = 0; k < KEPT; k++) kept[k] = load(first + k * step);
#pragma unroll
    for (int k = 0; k < KEPT; k++) look(kept[k], weights[k]);
    if (KEPT == 0)
#pragma unroll 4
        for (int i = first; i < width; i += step) {
            float4 v = load(i);
            look(v, norm_at(i));
        }
    block_sum_max(squares, most);
    float inverse = norm ? 1.0f / sqrtf(squares / width + epsilon) : 1.0f;
    most *= inverse;
    int exponent = 0;
    if (most > 0.0f && most < 1e30f) frexpf(most, &exponent);
    // The largest is put just below 2^10.
    float factor = ldexpf(1.0f, 10 - exponent), multiplier = factor * inverse;
    auto store = [&](int i, float4 v) {
        if (i >= whole) return;
        unsigned char* line = out + ((long long)(i / 64) * apart + row) * 128;
        int unit = i % 64 / 16 * 2, t = i % 16 / 4;
        *(uint32_t*)(line + ((unit ^ (row & 7)) * 16) + t * 4) = pack_half(v.x * multiplier, v.y * multiplier);
        *(uint32_t*)(line + (((unit + 1) ^ (row & 7)) * 16) + t * 4) = pack_half(v.z * multiplier, v.w * multiplier);
    };
#pragma unroll
    for (int k = 0; k < KEPT; k++) store(first + k * step, kept[k]);
    if (KEPT == 0)
#pragma unroll 4
        for (int i = first; i < whole; i += step) {
            float4 v = load(i);
            look(v, norm_at(i));
            store(i, v);
        }
    if (threadIdx.x == 0) scales[row] = 1.0f / (factor * WIDE_SCALE);
}
#define PREPARE(KEPT)                                                                                                             \
    KERNEL prepare_tiles_##KEPT(const float* x, const float* up, const float* norm, unsigned char* out, float* scales, int width, \
                                int whole, int apart, int function, float epsilon) {                                              \
        prepare<KEPT>(x, up, norm, out, scales, width, whole, apart, function, epsilon);                                          \
    }                                                                                                                             \
    REGISTER(prepare_tiles_##KEPT)
PREPARE(0)
PREPARE(2)
PREPARE(8)

// The functions 0 and 1, in few instructions.
DEVICE float gate(int function, float x) {
    float inner = function == 0 ? x : 1.5957691216057308f * x * (1.0f + 0.044715f * x * x);
    return __fdividef(x, 1.0f + fast_exp(-inner));
}

// What a lane has of 128 columns of two rows. `decode` makes fragments of both steps of a chunk: those of columns `4 t` to
// `4 t + 3` of its 16 columns. What was decoded is loaded again for what comes later.
template <class F> struct QuantisedRows {
    const unsigned char* from;
    static constexpr int DEPTH = 2;
    struct Half {
        uint32_t codes[2][F::CODE_WORDS], high[2][F::HIGH_WORDS > 0 ? F::HIGH_WORDS : 1], scale[2][F::SCALE_WORDS], super[2];
    };
    // Rows from `row` on, a multiple of 16; past the last ones, those stand for them.
    DEVICE_MEMBER void start(const unsigned char* matrix, int row, int rows, int row_bytes, int half) {
        from = F::block_of(matrix, min(row, rows - 1), row_bytes, half / 2);
    }
    // Halves of groups are loaded one after the other.
    DEVICE_MEMBER void load(Half& to, int half, int) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            F::template load_half<FromMemory>(to.codes[r], to.high[r], from, lane, r, half % 2);
            F::template load_scales<4, FromMemory>(to.scale[r], to.super[r], from, lane / 4 + 8 * r, half % 2 * 4);
        }
        if (half % 2 == 1) from += F::BLOCK;
    }
    static constexpr bool WHOLE = true;
    DEVICE_MEMBER void load_chunk(Half&, int, int, int) {}

    // Signed bytes are made unsigned first; 1024 and what codes are too large are taken off again.
    static constexpr uint32_t FLIP = F::SIGNED ? 0x80808080u : 0;
    static constexpr uint32_t OFFSET = 0x64006400u + (F::SIGNED ? 128 : F::SHIFT) * 0x00010001u;
    static DEVICE_MEMBER void decode(uint32_t a[2][4], const Half& raw, int chunk, int half, const Constants& constants) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t q[2], factor[2], minimum[2];
            F::quads(q, raw.codes[r], raw.high[r], chunk, half % 2, constants);
            F::half_scales(factor, minimum, F::scale_of(raw.scale[r], chunk), raw.super[r], constants);
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[i / 2][r + i % 2 * 2] = scale_halves(subtract_halves(bytes_as_halves(q[i / 2] ^ FLIP, i % 2), OFFSET), factor[i / 2], minimum[i / 2]);
        }
    }
};
template <class F> struct PlainRows {
    const unsigned char* from[2];
    static constexpr int DEPTH = 1;
    struct Half {
        uint32_t words[2][4][4];
    };
    DEVICE_MEMBER void start(const unsigned char* matrix, int row, int rows, int row_bytes, int) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            from[r] = matrix + (long long)min(row + (int)threadIdx.x % 32 / 4 + 8 * r, rows - 1) * row_bytes + threadIdx.x % 4 * 8;
    }
    DEVICE_MEMBER void load(Half& to, int half, int chunks) {
#pragma unroll
        for (int chunk = 0; chunk < 4; chunk++) load_chunk(to, half, chunk, chunks);
    }
    static constexpr bool WHOLE = false;
    DEVICE_MEMBER void load_chunk(Half& to, int half, int chunk, int chunks) {
        // What lies past the end meets zeros; it only has to be a number, so the first columns stand for it.
        int at = half * 4 + chunk < chunks ? half * 4 + chunk : 0;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int step = 0; step < 2; step++) words2(to.words[r][chunk] + 2 * step, from[r] + at * 64 + step * 32);
    }
    static DEVICE_MEMBER void decode(uint32_t a[2][4], const Half& raw, int chunk, int, const Constants&) {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t pair = raw.words[r][chunk][i];
                a[i / 2][r + i % 2 * 2] = pack_half(F::value((uint16_t)pair) * WIDE_SCALE, F::value((uint16_t)(pair >> 16)) * WIDE_SCALE);
            }
    }
};

// A tile of 64 UNITS MATRICES rows of the matrix and TOKENS rows of activations; units of four warps take 64 MATRICES rows
// each. Up to three matrices of one width; those from number `split` on have the second format. With `glu` the first two
// are gate and value, and the result is function(gate) value: a unit has 64 rows of both, or half of the units have the
// values. The third grid axis cuts the width into parts, whose sums the last block of a tile to end adds up in their order.
template <class F, class G, int UNITS, int MATRICES, int TOKENS, int STAGES>
DEVICE void wide(const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2, int split,
                 int row_bytes, int other_row_bytes, int chunks, const unsigned char* x, int apart, const float* scales, int tokens,
                 float* out0, float* out1, float* out2, const float* bias0, const float* bias1, const float* bias2,
                 const float* residual, int glu, float* partial, int* counters, Constants constants) {
    SHARED_BYTES(shared);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    constexpr int STAGE = TOKENS * 128, ROWS = 64 * MATRICES, WIDE_THREADS = 128 * UNITS;
    unsigned char* tiles = aligned_shared(shared);
    SharedPlace tile_place = shared_place(tiles), full_place = shared_place(full), empty_place = shared_place(empty);
    let_next_start();
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, part = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    int first_token = blockIdx.x * TOKENS;
    // Which rows: of the first matrix, or of the second or third.
    int per = glu ? UNITS * ROWS / 2 : UNITS * ROWS, tile = blockIdx.y, matrix = 0;
    if (!glu) {
        int tiles0 = (n0 + per - 1) / per, tiles1 = (n1 + per - 1) / per;
        if (tile >= tiles0) {
            tile -= tiles0;
            matrix = 1;
            if (tile >= tiles1) {
                tile -= tiles1;
                matrix = 2;
            }
        }
    }
    int rows = matrix == 0 ? n0 : matrix == 1 ? n1 : n2, bytes = matrix < split ? row_bytes : other_row_bytes;
    const unsigned char* base = matrix == 0 ? w0 : matrix == 1 ? w1 : w2;
    // The first row of each of a group's matrices.
    int starts[MATRICES];
    const unsigned char* from[MATRICES];
#pragma unroll
    for (int m = 0; m < MATRICES; m++) {
        starts[m] = tile * per + (glu ? MATRICES == 2 ? part : part % (UNITS / 2) : part * MATRICES + m) * 64;
        bool second = glu && (MATRICES == 2 ? m == 1 : part >= UNITS / 2);
        from[m] = second ? w1 : base;
    }
    int halves = groups_of(chunks) * 2;
    int begin = (int)((long long)halves * blockIdx.z / gridDim.z), end = (int)((long long)halves * (blockIdx.z + 1) / gridDim.z);
    int blocks = (end - begin) * 2;
    float sums[MATRICES][TOKENS / 2];
#pragma unroll
    for (int m = 0; m < MATRICES; m++)
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++) sums[m][i] = 0.0f;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_start(full_place + 8 * i, 1);
            barrier_start(empty_place + 8 * i, WIDE_THREADS / 32);
        }
        barrier_fence();
    }
    __syncthreads();
    auto copy = [&](int block) {
        int stage = block % STAGES;
        barrier_expect(full_place + 8 * stage, STAGE);
        copy_bulk(tile_place + stage * STAGE, x + ((long long)(begin * 2 + block) * apart + first_token) * 128, STAGE, full_place + 8 * stage);
    };
    auto run = [&](auto* type) {
        typedef typename pointed_by<decltype(type)>::type L;
        constexpr int DEPTH = L::DEPTH;
        L sources[MATRICES];
        typename L::Half raw[DEPTH][MATRICES];
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            sources[m].start(from[m], starts[m] + warp * 16, rows, bytes, begin);
#pragma unroll
            for (int i = 0; i < DEPTH; i++)
                if (begin + i < end) sources[m].load(raw[i][m], begin + i, chunks);
        }
        wait_for_previous();
        if (threadIdx.x == 0)
            for (int i = 0; i < STAGES && i < blocks; i++) copy(i);
        // The block of columns that comes, its stage, and how often stages were used.
        int block = 0, stage = 0, round = 0;
        for (int half = begin; half < end; half += DEPTH) {
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                if (half + i >= end) break;
#pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    // Fragments of 64 columns are made while other units' products run; registers of products under way must
                    // not be touched.
                    uint32_t a[4][MATRICES][4];
                    group_wait<0>();
#pragma unroll
                    for (int m = 0; m < MATRICES; m++) {
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            uint32_t steps[2][4];
                            L::decode(steps, raw[i][m], pair * 2 + c, half + i, constants);
#pragma unroll
                            for (int k = 0; k < 8; k++) a[c * 2 + k / 4][m][k % 4] = steps[k / 4][k % 4];
                            if (!L::WHOLE && half + i + DEPTH < end) sources[m].load_chunk(raw[i][m], half + i + DEPTH, pair * 2 + c, chunks);
                        }
                        if (L::WHOLE && pair == 1 && half + i + DEPTH < end) sources[m].load(raw[i][m], half + i + DEPTH, chunks);
                    }
                    if (block > 0 && lane == 0) barrier_arrive(empty_place + 8 * (stage > 0 ? stage - 1 : STAGES - 1));
                    if (threadIdx.x == 0 && block > 1 && block - 2 + STAGES < blocks) {
                        barrier_wait(empty_place + 8 * ((block - 2) % STAGES), (block - 2) / STAGES % 2);
                        copy(block - 2 + STAGES);
                    }
                    __syncwarp();
                    barrier_wait(full_place + 8 * stage, round);
                    group_keep(a[0][0], 16 * MATRICES);
                    group_fence();
#pragma unroll
                    for (int step = 0; step < 4; step++)
#pragma unroll
                        for (int m = 0; m < MATRICES; m++) group_multiply<TOKENS>(sums[m], a[step][m], tile_place + stage * STAGE, step);
                    group_commit();
                    block++;
                    if (++stage == STAGES) {
                        stage = 0;
                        round ^= 1;
                    }
                }
            }
        }
        group_wait<0>();
    };
    if (std_is_same<F, G>::value || matrix < split) run((F*)nullptr);
    else run((G*)nullptr);

    int last_token = min(TOKENS, tokens - first_token);
    if (gridDim.z > 1) {
        __shared__ int is_last;
        // Parts of a tile: columns of the sums, rows within a column.
        long long all = (long long)gridDim.x * gridDim.y, number = (long long)blockIdx.y * gridDim.x + blockIdx.x;
        float* mine = partial + ((blockIdx.z * all + number) * WIDE_THREADS + threadIdx.x) * 4;
        long long next = all * gridDim.z * WIDE_THREADS * 4;
#pragma unroll
        for (int m = 0; m < MATRICES; m++)
#pragma unroll
            for (int i = 0; i < TOKENS / 8; i++)
                *(float4*)(mine + (m * (TOKENS / 8) + i) * next) = make_float4(sums[m][4 * i], sums[m][4 * i + 1], sums[m][4 * i + 2], sums[m][4 * i + 3]);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) is_last = atomicAdd(counters + number, 1) == (int)gridDim.z - 1;
        __syncthreads();
        if (!is_last) return;
        __threadfence();
        if (threadIdx.x == 0) counters[number] = 0;
#pragma unroll
        for (int m = 0; m < MATRICES; m++)
#pragma unroll
            for (int i = 0; i < TOKENS / 8; i++) {
                const float* other = partial + (number * WIDE_THREADS + threadIdx.x) * 4 + (m * (TOKENS / 8) + i) * next;
                float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                for (int z = 0; z < (int)gridDim.z; z++) {
                    float4 v = *(const float4*)(other + z * all * WIDE_THREADS * 4);
                    sum.x += v.x;
                    sum.y += v.y;
                    sum.z += v.z;
                    sum.w += v.w;
                }
                sums[m][4 * i] = sum.x;
                sums[m][4 * i + 1] = sum.y;
                sums[m][4 * i + 2] = sum.z;
                sums[m][4 * i + 3] = sum.w;
            }
    }
    // Values go by way of shared memory to the threads that have the gates.
    float others[MATRICES == 1 ? TOKENS / 2 : 1];
    if (MATRICES == 1 && glu) {
        float* exchange = (float*)tiles + threadIdx.x % (WIDE_THREADS / 2);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++)
            if (part >= UNITS / 2) exchange[i * (WIDE_THREADS / 2)] = sums[0][i];
        __syncthreads();
        if (part >= UNITS / 2) return;
#pragma unroll
        for (int i = 0; i < TOKENS / 2; i++) others[i] = exchange[i * (WIDE_THREADS / 2)];
    }
    const float* bias = matrix == 0 ? bias0 : matrix == 1 ? bias1 : bias2;
    float* out = matrix == 0 ? out0 : matrix == 1 ? out1 : out2;
#pragma unroll
    for (int m = 0; m < MATRICES; m++) {
        if (glu && m == 1) break;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = starts[m] + warp * 16 + g + 8 * r;
            if (row >= rows) continue;
            float add = bias ? bias[row] : 0.0f;
#pragma unroll
            for (int i = 0; i < TOKENS / 4; i++) {
                int token = i / 2 * 8 + 2 * t + i % 2;
                if (token >= last_token) continue;
                float scale = scales[first_token + token];
                float v = sums[m][i / 2 * 4 + 2 * r + i % 2] * scale + add;
                if (glu) v = gate(glu - 1, v) * scale * (MATRICES == 2 ? sums[MATRICES - 1] : others)[i / 2 * 4 + 2 * r + i % 2];
                long long at = (long long)(first_token + token) * rows + row;
                if (residual) v += residual[at];
                out[at] = v;
            }
        }
    }
}

#define WIDE(name, F, G, UNITS, MATRICES, TOKENS, STAGES, BLOCKS)                                                                \
    KERNEL BOUNDED(128 * UNITS, BLOCKS) wide_##name##_##UNITS##_##TOKENS(                                                        \
        const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2, int split,            \
        int row_bytes, int other_row_bytes, int chunks, const unsigned char* x, int apart, const float* scales, int tokens,      \
        float* out0, float* out1, float* out2, const float* bias0, const float* bias1, const float* bias2,                       \
        const float* residual, int glu, float* partial, int* counters, int t0, int t1, int t2, int t3, float factor) {           \
        GROUP_BODY((wide<F, G, UNITS, MATRICES, TOKENS, STAGES>(                                                           \
            w0, w1, w2, n0, n1, n2, split, row_bytes, other_row_bytes, chunks, x, apart, scales, tokens, out0, out1, out2,       \
            bias0, bias1, bias2, residual, glu, partial, counters,                                                               \
            Constants{{(uint32_t)t0, (uint32_t)t1, (uint32_t)t2, (uint32_t)t3}, factor})))                                       \
    }                                                                                                                            \
    REGISTER(wide_##name##_##UNITS##_##TOKENS)
// For few tokens: two blocks of two units share a processor, or one block of four has it, which reads activations less
// often. Then how far ahead activations are fetched, which the host knows, too.
#define WIDES(name, F, G)               \
    WIDE(name, F, G, 2, 1, 32, 8, 2)    \
    WIDE(name, F, G, 4, 1, 32, 8, 1)    \
    WIDE(name, F, G, 2, 1, 64, 8, 2)    \
    WIDE(name, F, G, 4, 1, 64, 8, 1)    \
    WIDE(name, F, G, 2, 2, 128, 8, 1)
#define QUANTISED_WIDES(name, code, scale, offset) WIDES(name, QuantisedRows<F_##name>, QuantisedRows<F_##name>)
QUANTISED_FORMATS(QUANTISED_WIDES)
WIDES(code4_super_code6_halves, QuantisedRows<F_code4_super>, QuantisedRows<F_code6_halves>)
WIDES(code5_super_code6_halves, QuantisedRows<F_code5_super>, QuantisedRows<F_code6_halves>)
WIDES(half, PlainRows<Half>, PlainRows<Half>)
WIDES(brain, PlainRows<Brain>, PlainRows<Brain>)
