// Products of a matrix with one row of activations on Hopper: weights come through rings in shared memory, one for each warp,
// by copies that run on their own. A block takes less than half of the shared memory, so that the next launch fills its rings
// while this one drains. Warps share a block's tiles evenly, to the group of 256 columns; what several of them have of a tile is
// joined in their order.
#include "bytes.cuh"
#include "functions.cuh"

#define STREAM_WARPS 8
#define STREAM_THREADS 256
// Copies that are under way for a warp, at most.
#define STREAM_MOST 8

// Sums of a block for rows g and 8 + g, as `add_group` has them, in fewer instructions where scales belong to groups; to be
// multiplied by `unit_of`.
template <class L> DEVICE float unit_of() { return L::SUPER_AFFINE_SCALES ? 1.0f / 256.0f : 1.0f; }
template <class L, class F, class G>
DEVICE void multiply_block(float sums[2], const Group<F, G, 1>& raw, const Constants& constants, const Activations& x, int group) {
    int lane = threadIdx.x % 32, t = lane % 4;
    int first[4] = {0, 0, 0, 0}, second[4] = {0, 0, 0, 0};
    uint2 b = x.quads[group * 32 + lane];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        uint32_t low[2], high[2];
        L::quads(low, raw.codes[0][c / 4], raw.high[0][c / 4], c % 4, c / 4, constants);
        L::quads(high, raw.codes[1][c / 4], raw.high[1][c / 4], c % 4, c / 4, constants);
        uint32_t a[4] = {low[0], high[0], low[1], high[1]};
        int d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
        if (L::HALVES) {
            mma_bytes_half(d, a[0], a[1], b.x);
            mma_bytes_half(e, a[2], a[3], b.y);
        } else {
            mma_bytes(d, a, b.x, b.y);
        }
        bool mine = t == c / 2;
        first[c % 2] = mine ? d[c % 2] : first[c % 2];
        first[2 + c % 2] = mine ? d[2 + c % 2] : first[2 + c % 2];
        if (L::HALVES) {
            second[c % 2] = mine ? e[c % 2] : second[c % 2];
            second[2 + c % 2] = mine ? e[2 + c % 2] : second[2 + c % 2];
        }
    }
    float4 meta[2] = {x.meta[group * 8 + 2 * t], x.meta[group * 8 + 2 * t + 1]};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (L::SUPER_AFFINE_SCALES) {
            // The word has scale and minimum of both chunks, in bytes; the group's numbers are taken 256 times.
            uint32_t super = scale_halves(raw.super[r], L::TIMES_256, 0);
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t both = scale_halves(subtract_halves(bytes_as_halves(raw.scale[r][0], i), 0x64006400u), super, 0);
                float scale = half_to_float((uint16_t)both) * (float)first[2 * r + i];
                sum += meta[i].x * scale - half_to_float((uint16_t)(both >> 16)) * meta[i].w;
            }
            sums[r] = sum;
        } else if (L::SUPER_HALVES_SCALES) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t pair = raw.scale[r][0] >> (16 * i);
                sum += (float)(int8_t)pair * (meta[i].x * (float)first[2 * r + i] - L::SHIFT * meta[i].y);
                sum += (float)(int8_t)(pair >> 8) * (meta[i].x * (float)second[2 * r + i] - L::SHIFT * meta[i].z);
            }
            sums[r] = sum * (half_to_float((uint16_t)raw.super[r]) * constants.factor);
        } else {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                Scales s = L::scales(L::scale_of(raw.scale[r], i), raw.super[r], constants);
                float product = s.scale[0] * (float)first[2 * r + i];
                if (L::HALVES) product += s.scale[1] * (float)second[2 * r + i];
                sum += meta[i].x * product;
                if (L::SHIFT != 0) {
                    s.minimum[0] -= L::SHIFT * s.scale[0];
                    s.minimum[1] -= L::SHIFT * s.scale[1];
                }
                if (L::MINIMUM || L::SHIFT != 0)
                    sum += L::HALVES ? s.minimum[0] * meta[i].y + s.minimum[1] * meta[i].z : s.minimum[0] * meta[i].w;
            }
            sums[r] = sum;
        }
    }
}

// The products of one block or of two at once, which hide each other's waits. `release` is called when they were read.
template <class L, class F, class G, class R>
DEVICE void multiply_blocks(float one[2], float other[2], const unsigned char* block, const unsigned char* next, bool two, const Constants& constants,
                            const Activations& x, int group, int next_group, R release) {
    Group<F, G, 1> raw, more;
    raw.template load<L, FromShared>(block);
    if (two) {
        more.template load<L, FromShared>(next);
        release();
        multiply_block<L, F, G>(one, raw, constants, x, group);
        multiply_block<L, F, G>(other, more, constants, x, next_group);
    } else {
        release();
        multiply_block<L, F, G>(one, raw, constants, x, group);
        other[0] = other[1] = 0.0f;
    }
}

// Parameters as of matvec.cu, without those of experts; `stages` says how many copies of `stage_bytes` a warp has room for.
template <class F, class G>
DEVICE void stream(const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2, int split,
                   int row_bytes, int other_row_bytes, int chunks, const float* x, const float* norm, float epsilon,
                   float* out0, float* out1, float* out2, const float* bias0, const float* bias1, const float* bias2,
                   const float* residual, int glu, int stages, int stage_bytes, Constants constants) {
    SHARED_BYTES(shared);
    __shared__ uint64_t barriers[STREAM_WARPS * STREAM_MOST];
    // Sums of a warp's first and last tile, of both matrices of a gated unit.
    __shared__ float found[STREAM_WARPS][2][2][16];
    int groups = groups_of(chunks), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Activations a;
    a.quads = (uint2*)shared;
    a.meta = (float4*)(a.quads + groups * 32);
    unsigned char* ring = (unsigned char*)(a.meta + groups * 8) + warp * stages * stage_bytes;
    SharedPlace full = shared_place(barriers + warp * STREAM_MOST);
    if (lane == 0) {
#pragma unroll 1
        for (int i = 0; i < stages; i++) barrier_start(full + 8 * i, 1);
        barrier_fence();
    }
    __syncwarp();
    // A block's items follow each other: tiles, or those of gate and value together, whose groups take turns.
    int tiles0 = (n0 + 15) / 16, tiles1 = (n1 + 15) / 16, all = glu ? tiles0 : tiles0 + tiles1 + (n2 + 15) / 16;
    int first_item = (int)((long long)all * blockIdx.x / gridDim.x), end_item = (int)((long long)all * (blockIdx.x + 1) / gridDim.x);
    int per_item = glu ? 2 * groups : groups, units = (end_item - first_item) * per_item;
    auto begin_of = [&](int of) { return (int)((long long)units * of / STREAM_WARPS); };
    int begin = begin_of(warp), end = begin_of(warp + 1);
    // Where an item begins: matrix, its first row there.
    auto matrix_of = [&](int item, int& row) {
        int tile = first_item + item, matrix = glu || tile < tiles0 ? 0 : tile < tiles0 + tiles1 ? 1 : 2;
        row = (tile - (matrix == 0 ? 0 : matrix == 1 ? tiles0 : tiles0 + tiles1)) * 16;
        return matrix;
    };
    // The next copy: where it is from, and where the one after it if two matrices take turns; its item, the unit in it, the stage.
    const unsigned char *from = w0, *other = w1;
    int ahead = begin, ahead_item = begin / per_item, ahead_unit = begin % per_item, ahead_stage = 0, bytes = F::BLOCK;
    auto find = [&]() {
        int row, matrix = matrix_of(ahead_item, row), group = glu ? (ahead_unit + 1) / 2 : ahead_unit;
        const unsigned char* start = matrix == 0 ? w0 : matrix == 1 ? w1 : w2;
        bool first = std_is_same<F, G>::value || matrix < split;
        from = first ? F::block_of(start, row, row_bytes, group) : G::block_of(start, row, other_row_bytes, group);
        bytes = first ? F::BLOCK : G::BLOCK;
        if (glu) {
            other = F::block_of(w1, row, row_bytes, ahead_unit / 2);
            if (ahead_unit % 2) {
                const unsigned char* value = other;
                other = from;
                from = value;
            }
        }
    };
    auto copy = [&]() {
        SharedPlace barrier = full + 8 * ahead_stage;
        barrier_expect(barrier, bytes);
        copy_bulk(shared_place(ring + ahead_stage * stage_bytes), from, bytes, barrier);
        // The next launch begins to fetch when this one has asked for all it needs.
        if (++ahead == end) let_next_start();
        if (++ahead_stage == stages) ahead_stage = 0;
        if (++ahead_unit == per_item) {
            ahead_unit = 0;
            ahead_item++;
            if (ahead < end) find();
        } else if (glu) {
            const unsigned char* next = from + bytes;
            from = other;
            other = next;
        } else {
            from += bytes;
        }
    };
    if (lane == 0 && begin < end) {
        find();
#pragma unroll 1
        for (int i = 0; i < stages && ahead < end; i++) copy();
    }
    quantise_rows<STREAM_WARPS>(a, x, 1, 1, chunks, norm, epsilon, []() { wait_for_previous(); });

    auto write = [&](int matrix, int row, float sum, float value, const float* early) {
        int width = matrix == 0 ? n0 : matrix == 1 ? n1 : n2;
        if (row >= width) return;
        const float* bias = matrix == 0 ? bias0 : matrix == 1 ? bias1 : bias2;
        float* out = matrix == 0 ? out0 : matrix == 1 ? out1 : out2;
        if (bias) sum += bias[row];
        if (glu) sum = apply_function(glu - 1, sum) * value;
        if (residual) sum += early ? *early : residual[row];
        out[row] = sum;
    };
    // Tiles of several warps are joined by the threads of the first boundary between warps inside them.
    int inside = threadIdx.x / 16, join_item = -1, join_row = 0, join_matrix = 0;
    float early = 0.0f;
    if (inside > 0 && inside < STREAM_WARPS) {
        int boundary = begin_of(inside), item = boundary / per_item;
        if (boundary % per_item > 0 && begin_of(inside - 1) <= item * per_item) {
            join_item = item;
            join_matrix = matrix_of(item, join_row);
            join_row += threadIdx.x % 16;
            int width = join_matrix == 0 ? n0 : join_matrix == 1 ? n1 : n2;
            if (residual && join_row < width) early = residual[join_row];
        }
    }

    float sums[2] = {0.0f, 0.0f}, values[2] = {0.0f, 0.0f};
    int item = begin / per_item, unit = begin % per_item, first_of_warp = item, stage = 0, round = 0;
    bool whole = unit == 0;
    int row, matrix = matrix_of(item, row);
#pragma unroll 1
    for (int now = begin; now < end;) {
        // Two units at once, of a gated unit those of gate and value.
        bool two = now + 1 < end && unit + 1 < per_item && (!glu || unit % 2 == 0);
        int next = stage + 1 == stages ? 0 : stage + 1;
        barrier_wait(full + 8 * stage, round);
        if (two) barrier_wait(full + 8 * next, next == 0 ? round ^ 1 : round);
        int group = glu ? unit / 2 : unit, next_group = glu ? group : group + 1;
        float one[2], more[2];
        bool is_first = std_is_same<F, G>::value || matrix < split;
        auto release = [&]() {
            __syncwarp();
            if (lane != 0) return;
            if (ahead < end) copy();
            if (two && ahead < end) copy();
        };
        if (is_first) multiply_blocks<F, F, G>(one, more, ring + stage * stage_bytes, ring + next * stage_bytes, two, constants, a, group, next_group, release);
        else multiply_blocks<G, F, G>(one, more, ring + stage * stage_bytes, ring + next * stage_bytes, two, constants, a, group, next_group, release);
        bool value_only = glu && unit % 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sums[r] += value_only ? 0.0f : glu ? one[r] : one[r] + more[r];
            values[r] += value_only ? one[r] : glu ? more[r] : 0.0f;
        }
        int taken = two ? 2 : 1;
        now += taken;
        unit += taken;
        stage += taken;
        if (stage >= stages) {
            stage -= stages;
            round ^= 1;
        }
        bool done = unit == per_item;
        if (done || now == end) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                sums[r] += shuffle_xor(sums[r], 1);
                sums[r] += shuffle_xor(sums[r], 2);
                if (glu) {
                    values[r] += shuffle_xor(values[r], 1);
                    values[r] += shuffle_xor(values[r], 2);
                }
            }
            if (lane % 4 < 2) {
                int side = lane % 4;
                float unit_here = is_first ? unit_of<F>() : unit_of<G>();
                float sum = (side ? sums[1] : sums[0]) * unit_here, value = (side ? values[1] : values[0]) * unit_here;
                if (done && whole) {
                    write(matrix, row + lane / 4 + 8 * side, sum, value, nullptr);
                } else {
                    float(*to)[16] = found[warp][item != first_of_warp];
                    to[0][lane / 4 + 8 * side] = sum;
                    to[1][lane / 4 + 8 * side] = value;
                }
            }
            sums[0] = sums[1] = values[0] = values[1] = 0.0f;
            unit = 0;
            item++;
            whole = true;
            matrix = matrix_of(item, row);
        }
    }
    __syncthreads();
    if (join_item >= 0) {
        float sum = 0.0f, value = 0.0f;
        int item_end = (join_item + 1) * per_item;
        for (int w = inside - 1; w < STREAM_WARPS && begin_of(w) < item_end; w++) {
            if (begin_of(w) == begin_of(w + 1)) continue;
            const float(*from)[16] = found[w][join_item != begin_of(w) / per_item];
            sum += from[0][threadIdx.x % 16];
            value += from[1][threadIdx.x % 16];
        }
        write(join_matrix, join_row, sum, value, &early);
    }
}

#define STREAM(name, F, G)                                                                                                    \
    KERNEL BOUNDED(STREAM_THREADS, 1) stream_##name(                                                                          \
        const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2, int split,         \
        int row_bytes, int other_row_bytes, int chunks, const float* x, const float* norm, float epsilon, float* out0,        \
        float* out1, float* out2, const float* bias0, const float* bias1, const float* bias2, const float* residual, int glu, \
        int stages, int stage_bytes, int t0, int t1, int t2, int t3, float factor) {                                          \
        GROUP_BODY((stream<F, G>(w0, w1, w2, n0, n1, n2, split, row_bytes, other_row_bytes, chunks, x, norm, epsilon, out0,  \
                                  out1, out2, bias0, bias1, bias2, residual, glu, stages, stage_bytes,                        \
                                  Constants{{(uint32_t)t0, (uint32_t)t1, (uint32_t)t2, (uint32_t)t3}, factor})))              \
    }                                                                                                                         \
    REGISTER(stream_##name)
#define STREAMS(name, code, scale, offset) STREAM(name, F_##name, F_##name)
QUANTISED_FORMATS(STREAMS)
STREAM(code4_super_code6_halves, F_code4_super, F_code6_halves)
STREAM(code5_super_code6_halves, F_code5_super, F_code6_halves)
