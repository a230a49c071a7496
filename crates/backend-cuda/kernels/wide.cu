// Products of a matrix with many rows of activations on Hopper's matrix units for groups of four warps (`wgmma`), in half
// precision. A warp of its own copies blocks of weights and activations to shared memory; weights go from there to registers, where
// they are decoded and multiplied from; activations lie as the units want them (prepare_tiles). They come scaled by a power of two for each row, weights
// are scaled by 256, so that neither overflows or vanishes; sums are floats.
#include "formats.cuh"
#include "functions.cuh"

// What weights are multiplied by; `half_scales` knows it.
#define WIDE_SCALE 256.0f
// Bytes of shared memory for blocks; the host knows it, too.
#define WIDE_SHARED (225 << 10)

// What only these kernels need of the platform; the emulation has its own.
#ifndef PUNA_EMULATION
// What a mask leaves of a word, and other bits.
DEVICE uint32_t merge_bits(uint32_t word, uint32_t mask, uint32_t bits) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
    return result;
}
// Blocks of a column of the grid that count in the same place share what they have written before, when all are there: gives the
// share of this one, the same to all threads. (Where blocks do not run at the same time, -1, and to the last one their number: it does all.)
DEVICE int share_of_blocks(int* counter, int count) {
    if (threadIdx.x == 0) {
        tell_blocks(counter);
        wait_for_blocks(counter, count);
    }
    __syncthreads();
    return blockIdx.z;
}
// At the end: the last one to leave makes the counter zero again.
DEVICE void leave_blocks(int* counter, int count) {
    if (threadIdx.x == 0 && atomicAdd(counter, 1) == 2 * count - 1) *counter = 0;
}
// Products of 64 rows with 16 columns of a tile: lines in eights, 1024 bytes apart; the exchange of 128 bytes.
template <int COLUMNS> DEVICE void multiply_tile(float* c, const uint32_t a[4], SharedPlace tile, int k) {
    uint64_t b = (tile >> 4 | 1u << 16) + 2 * k | (uint64_t)(1u << 30 | 64u) << 32;
    GroupUnit<COLUMNS>::multiply(c, a, b);
}
#endif

// A row of activations in half precision and the power of two it was divided by. With `up` the row is function(x) up;
// with `norm` it is normalised. Blocks of 64 columns follow each other, in each the rows, 128 bytes of a row. Of 16 columns
// `4 t` and `4 t + 2` are at `2 t`, the two after these 8 further (so that codes of a word become pairs with one mask), and 16
// bytes are at the place of their number exclusive-or the row's.
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
        *(uint32_t*)(line + ((unit ^ (row & 7)) * 16) + t * 4) = pack_half(v.x * multiplier, v.z * multiplier);
        *(uint32_t*)(line + (((unit + 1) ^ (row & 7)) * 16) + t * 4) = pack_half(v.y * multiplier, v.w * multiplier);
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
// `4 t + 3` of its 16 columns.
template <class F> struct QuantisedRows {
    // Bytes of 16 rows and 256 columns, which are copied to shared memory.
    static constexpr int BLOCK = F::BLOCK;
    struct Half {
        uint32_t codes[2][F::CODE_WORDS], high[2][F::HIGH_WORDS > 0 ? F::HIGH_WORDS : 1], scale[2][F::SCALE_WORDS], super[2];
    };
    // Loads a half of a block.
    DEVICE_MEMBER void load(Half& to, const unsigned char* block, int side) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            F::template load_half<FromShared>(to.codes[r], to.high[r], block, lane, r, side);
            F::template load_scales<4, FromShared>(to.scale[r], to.super[r], block, lane / 4 + 8 * r, side * 4);
        }
    }
    DEVICE_MEMBER void start(const unsigned char*, int, int, int) {}
    DEVICE_MEMBER void load_chunk(Half&, int, int, int) {}

    static DEVICE_MEMBER uint32_t byte_as_halves(uint32_t word, int byte) { return __byte_perm(word, 0x64646464u, 0x4040 + 0x0101 * byte); }
    // Scale and minimum of a chunk as pairs of equal halves.
    static DEVICE_MEMBER void scales(uint32_t factor[2], uint32_t minimum[2], const uint32_t* words, uint32_t super, int chunk, const Constants& constants) {
        // Scales of a byte become 1024 and more, then they are multiplied by the group's number.
        if (F::SUPER_AFFINE_SCALES) {
            uint32_t both = scale_halves(super ^ 0x80000000u, F::TIMES_256, 0);
#pragma unroll
            for (int side = 0; side < 2; side++) {
                uint32_t times = pair_of(both, side), less = scale_halves(times, 0xe400e400u, 0);
                uint32_t* to = side ? minimum : factor;
                to[0] = to[1] = scale_halves(byte_as_halves(words[chunk / 2], chunk % 2 * 2 + side), times, less);
            }
        } else if (F::SUPER_HALVES_SCALES) {
            uint32_t times = scale_halves(pair_of(super, 0), same_halves(constants.factor * WIDE_SCALE), 0);
#pragma unroll
            for (int side = 0; side < 2; side++) {
                uint32_t byte = byte_as_halves(words[chunk / 2] ^ 0x80808080u, chunk % 2 * 2 + side);
                factor[side] = scale_halves(subtract_halves(byte, 0x64806480u), times, 0);
                minimum[side] = 0;
            }
        } else {
            F::half_scales(factor, minimum, F::scale_of(words, chunk), super, constants);
        }
    }
    // Signed bytes are made unsigned first; 1024 and what codes are too large are taken off again.
    static constexpr uint32_t FLIP = F::SIGNED ? 0x80808080u : 0;
    static constexpr uint32_t OFFSET = 0x64006400u + (F::SIGNED ? 128 : F::SHIFT) * 0x00010001u;
    static DEVICE_MEMBER void decode(uint32_t a[2][4], const Half& raw, int chunk, int side, const Constants& constants) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t factor[2], minimum[2];
            scales(factor, minimum, raw.scale[r], raw.super[r], chunk, constants);
            if (F::CODES == CODE4) {
                // Codes of four bits become the lowest bits of 1024 and more, or those above them: 1024 and 16 times the code.
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t word = raw.codes[r][chunk] >> 8 * i;
                    uint32_t low = subtract_halves(merge_bits(word, 0x000f000fu, 0x64006400u), OFFSET);
                    uint32_t upper = scale_halves(merge_bits(word, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd400d400u + F::SHIFT * 0x00100010u);
                    a[0][r + 2 * i] = scale_halves(low, factor[0], minimum[0]);
                    a[1][r + 2 * i] = scale_halves(upper, factor[1], minimum[1]);
                }
                continue;
            }
            uint32_t q[2];
            F::quads(q, raw.codes[r], raw.high[r], chunk, side, constants);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t pair = __byte_perm(q[i / 2] ^ FLIP, 0x64646464u, i % 2 ? 0x4341 : 0x4240);
                a[i / 2][r + i % 2 * 2] = scale_halves(subtract_halves(pair, OFFSET), factor[i / 2], minimum[i / 2]);
            }
        }
    }
};
template <class F> struct PlainRows {
    const unsigned char* from[2];
    // They go from memory to registers at once.
    static constexpr int BLOCK = 0;
    struct Half {
        uint32_t words[2][4][4];
    };
    DEVICE_MEMBER void start(const unsigned char* matrix, int row, int rows, int row_bytes) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            from[r] = matrix + (long long)min(row + (int)threadIdx.x % 32 / 4 + 8 * r, rows - 1) * row_bytes + threadIdx.x % 4 * 8;
    }
    DEVICE_MEMBER void load(Half&, const unsigned char*, int) {}
    DEVICE_MEMBER void load_chunk(Half& to, int half, int chunk, int chunks) {
        // What lies past the end meets zeros; it only has to be a number, so the first columns stand for it.
        int at = half * 4 + chunk < chunks ? half * 4 + chunk : 0;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int step = 0; step < 2; step++) words2(to.words[r][chunk] + 2 * step, from[r] + at * 64 + step * 32);
    }
    static DEVICE_MEMBER float value(uint32_t pair, int side) { return F::value((uint16_t)(pair >> 16 * side)) * WIDE_SCALE; }
    static DEVICE_MEMBER void decode(uint32_t a[2][4], const Half& raw, int chunk, int, const Constants&) {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t* four = raw.words[r][chunk] + i / 2 * 2;
                a[i / 2][r + i % 2 * 2] = pack_half(value(four[0], i % 2), value(four[1], i % 2));
            }
    }
};

// A tile of 64 UNITS MATRICES rows of the matrix and TOKENS rows of activations; units of four warps take 64 MATRICES rows
// each. Up to three matrices of one width; those from number `split` on have the second format. With `glu` the first two
// are gate and value, and the result is function(gate) value: a unit has 64 rows of both, or half of the units have the
// values. The third grid axis cuts the width into parts, whose sums their blocks add up in their order, each for a share of the tile.
// With fewer blocks than tiles in the second axis, the groups of columns of all tiles are one list of which blocks take shares: what
// has the end of a tile adds up what others have of it. (Then there are one format, one tile of activations, the whole width, no gates
// and no addend.)
template <class F, class G, int UNITS, int MATRICES, int TOKENS>
DEVICE void wide(const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2, int split,
                 int row_bytes, int other_row_bytes, int chunks, const unsigned char* x, int apart, const float* scales, int tokens,
                 float* out0, float* out1, float* out2, const float* bias0, const float* bias1, const float* bias2,
                 const float* residual, int glu, float* partial, int* counters, Constants constants) {
    SHARED_BYTES(shared);
    constexpr int ROWS = 64 * MATRICES, WIDE_THREADS = 128 * UNITS, WARPS = 4 * UNITS;
    // Bytes of 64 columns of activations, of a stage of 128 columns, of a warp's blocks of weights, of a slot with those of all warps.
    constexpr int TILE = TOKENS * 128, STAGE = 2 * TILE, BLOCKS = MATRICES * most_of<F::BLOCK, G::BLOCK>::value, SLOT = WARPS * BLOCKS;
    // How many of them fit.
    constexpr int RING = 3 * SLOT + 4 * STAGE <= WIDE_SHARED ? 3 : 2, STAGES = RING * SLOT + 4 * STAGE <= WIDE_SHARED ? 4 : RING * SLOT + 3 * STAGE <= WIDE_SHARED ? 3 : 2;
    static_assert(RING * SLOT + STAGES * STAGE <= WIDE_SHARED, "blocks fit");
    // Whether a block may take parts of several tiles.
    constexpr bool SHARES = MATRICES == 1;
    __shared__ uint64_t full[STAGES], empty[STAGES], filled[RING], emptied[RING];
    unsigned char* tiles = aligned_shared(shared);
    unsigned char* ring = tiles + STAGES * STAGE;
    SharedPlace tile_place = shared_place(tiles), full_place = shared_place(full), empty_place = shared_place(empty);
    SharedPlace filled_place = shared_place(filled), emptied_place = shared_place(emptied);
    let_next_start();
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, part = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
    int first_token = blockIdx.x * TOKENS;
    // Tiles: of the first matrix, of the second, of the third.
    int per = glu ? UNITS * ROWS / 2 : UNITS * ROWS, groups = groups_of(chunks), halves = groups * 2;
    int tiles0 = (n0 + per - 1) / per, tiles1 = glu ? 0 : (n1 + per - 1) / per, all_tiles = tiles0 + tiles1 + (glu ? 0 : (n2 + per - 1) / per);
    // Blocks go from the last tile of their share to the first, so that what they wait for others have done at their start.
    auto share_at = [&](int number) { return (int)((long long)all_tiles * groups * number / gridDim.y); };
    bool whole = !SHARES || (int)gridDim.y == all_tiles;
    int low = whole ? 0 : share_at(blockIdx.y), high = whole ? groups : share_at(blockIdx.y + 1);
    int pieces = whole ? 1 : (high - 1) / groups - low / groups + 1;
    struct Piece {
        int tile, matrix, rows, bytes, begin, end;
        const unsigned char* base;
    };
    auto piece_of = [&](int index) {
        Piece piece;
        piece.tile = blockIdx.y;
        piece.begin = (int)((long long)halves * blockIdx.z / gridDim.z);
        piece.end = (int)((long long)halves * (blockIdx.z + 1) / gridDim.z);
        if (!whole) {
            piece.tile = (high - 1) / groups - index;
            piece.begin = 2 * (max(low, piece.tile * groups) - piece.tile * groups);
            piece.end = 2 * (min(high, (piece.tile + 1) * groups) - piece.tile * groups);
        }
        piece.matrix = 0;
        if (!glu && piece.tile >= tiles0) {
            piece.tile -= tiles0;
            piece.matrix = 1;
            if (piece.tile >= tiles1) {
                piece.tile -= tiles1;
                piece.matrix = 2;
            }
        }
        piece.rows = piece.matrix == 0 ? n0 : piece.matrix == 1 ? n1 : n2;
        piece.bytes = piece.matrix < split ? row_bytes : other_row_bytes;
        piece.base = piece.matrix == 0 ? w0 : piece.matrix == 1 ? w1 : w2;
        return piece;
    };
    // The first row of a unit's matrix, and the matrix.
    auto start_of = [&](const Piece& piece, int unit, int m) { return piece.tile * per + (glu ? MATRICES == 2 ? unit : unit % (UNITS / 2) : unit * MATRICES + m) * 64; };
    auto matrix_of = [&](const Piece& piece, int unit, int m) { return glu && (MATRICES == 2 ? m == 1 : unit >= UNITS / 2) ? w1 : piece.base; };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_start(full_place + 8 * i, 1);
            barrier_start(empty_place + 8 * i, WARPS);
        }
        for (int i = 0; i < RING; i++) {
            barrier_start(filled_place + 8 * i, 1);
            barrier_start(emptied_place + 8 * i, WARPS);
        }
        barrier_fence();
    }
    __syncthreads();
    Piece piece = piece_of(0);
    // The warp that copies (of four, because registers are given back by fours): a lane for each block of weights, others for activations.
    auto copy = [&](auto* type) {
        typedef typename pointed_by<decltype(type)>::type L;
        // What weights are copied next.
        Piece ahead = piece;
        int group = ahead.begin / 2, index = 0, copied = 0, all = whole ? (piece.end + 1) / 2 - group : high - low;
        const unsigned char* from = nullptr;
        auto enter = [&] {
            if (L::BLOCK == 0 || lane >= WARPS * MATRICES) return;
            int unit = lane / MATRICES / 4, m = lane % MATRICES, row = min(start_of(ahead, unit, m) + lane / MATRICES % 4 * 16, ahead.rows - 1);
            from = matrix_of(ahead, unit, m) + (long long)(row / 16 * 16) * ahead.bytes + (long long)group * L::BLOCK;
        };
        auto copy_weights = [&] {
            int slot = copied % RING;
            if (copied >= RING) barrier_wait(emptied_place + 8 * slot, copied / RING % 2 ^ 1);
            if (lane == 0) barrier_expect(filled_place + 8 * slot, WARPS * MATRICES * L::BLOCK);
            __syncwarp();
            if (from) {
                copy_bulk(shared_place(ring + slot * SLOT + lane * L::BLOCK), from, L::BLOCK, filled_place + 8 * slot);
                from += L::BLOCK;
            }
            copied++;
            if (SHARES && 2 * ++group >= ahead.end && copied < all) {
                ahead = piece_of(++index);
                group = ahead.begin / 2;
                enter();
            }
        };
        int number = 0;
        auto copy_tiles = [&](int half) {
            int stage = number % STAGES;
            if (number >= STAGES) barrier_wait(empty_place + 8 * stage, number / STAGES % 2 ^ 1);
            if (lane == 0) barrier_expect(full_place + 8 * stage, STAGE);
            __syncwarp();
            if (lane < 2)
                copy_bulk(tile_place + stage * STAGE + lane * TILE, x + (((long long)half * 2 + lane) * apart + first_token) * 128, TILE, full_place + 8 * stage);
            number++;
        };
        enter();
        if (L::BLOCK > 0)
            while (copied < RING && copied < all) copy_weights();
        wait_for_previous();
        int odd = piece.begin % 2;
        for (int at = 0; at < pieces; at++) {
            if (SHARES && at > 0) piece = piece_of(at);
            for (int half = piece.begin; half < piece.end; half++) {
                copy_tiles(half);
                // Weights for what is copied now are on their way; those of later groups follow when there is room.
                int wanted = (odd + number - 1 + STAGES) / 2;
                if (L::BLOCK > 0)
                    while (copied < all && copied < wanted) copy_weights();
            }
        }
    };
    float sums[MATRICES][TOKENS / 2];
    uint32_t slot = 0, slot_round = 0, stage = 0, round = 0, last_stage = 0;
    auto multiply = [&](auto* type) {
        typedef typename pointed_by<decltype(type)>::type L;
#pragma unroll
        for (int m = 0; m < MATRICES; m++)
#pragma unroll
            for (int i = 0; i < TOKENS / 2; i++) sums[m][i] = 0.0f;
        int begin = piece.begin, end = piece.end;
        L rows_of[MATRICES];
        typename L::Half raw[MATRICES];
        // Fragments of a chunk of columns are made while the products of those before run.
        uint32_t a[2][2][4];
        const unsigned char* mine = ring + threadIdx.x / 32 * MATRICES * L::BLOCK;
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            rows_of[m].start(matrix_of(piece, part, m), start_of(piece, part, m) + warp * 16, piece.rows, piece.bytes);
#pragma unroll
            for (int chunk = 0; chunk < 4; chunk++) rows_of[m].load_chunk(raw[m], begin, chunk, chunks);
        }
        wait_for_previous();
        if (L::BLOCK > 0) barrier_wait(filled_place + 8 * slot, slot_round);
#pragma unroll
        for (int m = 0; m < MATRICES; m++) rows_of[m].load(raw[m], mine + slot * SLOT + m * L::BLOCK, begin % 2);
        auto leave_slot = [&] {
            if (lane == 0) barrier_arrive(emptied_place + 8 * slot);
            if (++slot == RING) {
                slot = 0;
                slot_round ^= 1;
            }
        };
        for (int base = begin / 2 * 2; base < end; base += 2) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int half = base + i;
                if (half < begin || half >= end) continue;
#pragma unroll
                for (int step = 0; step < 4 * MATRICES; step++) {
                    int chunk = step / MATRICES, m = step % MATRICES;
                    auto& now = a[step % 2];
                    L::decode(now, raw[m], chunk, i, constants);
                    // What was decoded makes room for what comes next.
                    if (half + 1 < end) {
                        rows_of[m].load_chunk(raw[m], half + 1, chunk, chunks);
                        if (L::BLOCK > 0 && i == 1 && step == 3 * MATRICES) {
                            leave_slot();
                            barrier_wait(filled_place + 8 * slot, slot_round);
                        }
                        if (chunk == 3) rows_of[m].load(raw[m], mine + slot * SLOT + m * L::BLOCK, 1 - i);
                    }
                    if (step == 0) barrier_wait(full_place + 8 * stage, round);
                    group_keep(now[0], 8);
                    group_fence();
#pragma unroll
                    for (int k = 0; k < 2; k++) multiply_tile<TOKENS>(sums[m], now[k], tile_place + stage * STAGE + chunk / 2 * TILE, chunk % 2 * 2 + k);
                    group_commit();
                    group_wait<1>();
                    // Now the products of the stage before have ended.
                    if (step == 0 && half > begin && lane == 0) barrier_arrive(empty_place + 8 * last_stage);
                }
                last_stage = stage;
                if (++stage == STAGES) {
                    stage = 0;
                    round ^= 1;
                }
            }
        }
        group_wait<0>();
        if (SHARES) {
            if (lane == 0) barrier_arrive(empty_place + 8 * last_stage);
            if (L::BLOCK > 0) leave_slot();
        }
    };
    bool first_format = std_is_same<F, G>::value || piece.matrix < split;
    if (threadIdx.x >= WIDE_THREADS) {
        group_registers<24, false>();
        if (threadIdx.x >= WIDE_THREADS + 32) return;
        if (first_format) copy((F*)nullptr);
        else copy((G*)nullptr);
        return;
    }
    group_registers<UNITS == 2 ? 240 : 112, true>();

    // A thread's sums as quads: of two rows and two neighbouring tokens. They lie in shared memory, or beside those of the other
    // parts of the width.
    constexpr int QUADS = TOKENS / 8;
    auto quad_of = [&](int m, int i) { return make_float4(sums[m][4 * i], sums[m][4 * i + 1], sums[m][4 * i + 2], sums[m][4 * i + 3]); };
    auto add = [](float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); };
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    // Where the numbers of a quad go (or -1), and what comes to them; this is asked for before other blocks are waited for.
    struct Rest {
        long long at[4];
        float scale[4], bias[4], residual[4];
    };
    auto rest_of = [&](int quad) {
        const float* bias = piece.matrix == 0 ? bias0 : piece.matrix == 1 ? bias1 : bias2;
        Rest rest;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = start_of(piece, part, 0) + quad / QUADS * 64 + warp * 16 + g + i / 2 * 8, token = first_token + quad % QUADS * 8 + 2 * t + i % 2;
            bool there = row < piece.rows && token < tokens;
            rest.at[i] = there ? (long long)token * piece.rows + row : -1;
            rest.scale[i] = there ? scales[token] : 0.0f;
            rest.bias[i] = there && bias ? bias[row] : 0.0f;
            rest.residual[i] = there && residual ? residual[rest.at[i]] : 0.0f;
        }
        return rest;
    };
    auto store = [&](const Rest& rest, float4 v4, float4 w4) {
        float* out = piece.matrix == 0 ? out0 : piece.matrix == 1 ? out1 : out2;
        float values[4] = {v4.x, v4.y, v4.z, v4.w}, others[4] = {w4.x, w4.y, w4.z, w4.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v = values[i] * rest.scale[i] + rest.bias[i];
            if (glu) v = gate(glu - 1, v) * rest.scale[i] * others[i];
            if (rest.at[i] >= 0) out[rest.at[i]] = v + rest.residual[i];
        }
    };
    for (int at = 0; at < pieces; at++) {
        if (at > 0) piece = piece_of(at);
        if (first_format) multiply((F*)nullptr);
        else multiply((G*)nullptr);
        if (whole) break;
        float4* own = (float4*)partial + (long long)blockIdx.y * (QUADS * WIDE_THREADS) + threadIdx.x;
        if (piece.end < halves) {
            // Another block has the end of the tile.
#pragma unroll
            for (int i = 0; i < QUADS; i++) own[i * WIDE_THREADS] = quad_of(0, i);
            sync_some(WIDE_THREADS);
            if (threadIdx.x == 0) tell_blocks(counters + (high - 1) / groups);
            continue;
        }
        const float* bias = piece.matrix == 0 ? bias0 : piece.matrix == 1 ? bias1 : bias2;
        float* out = piece.matrix == 0 ? out0 : piece.matrix == 1 ? out1 : out2;
        int row = start_of(piece, part, 0) + warp * 16 + g;
        float scale[QUADS][2], biases[2] = {bias && row < piece.rows ? bias[row] : 0.0f, bias && row + 8 < piece.rows ? bias[row + 8] : 0.0f};
#pragma unroll
        for (int i = 0; i < QUADS * 2; i++) scale[i / 2][i % 2] = i / 2 * 8 + 2 * t + i % 2 < tokens ? scales[i / 2 * 8 + 2 * t + i % 2] : 0.0f;
        if (piece.begin > 0) {
            int tile = low / groups, others = 0;
            while (share_at(blockIdx.y - others) > tile * groups) others++;
            if (threadIdx.x == 0) {
                wait_for_blocks(counters + tile, others);
                counters[tile] = 0;
            }
            sync_some(WIDE_THREADS);
            for (int other = others; other > 0; other--) {
                float4 v[QUADS];
#pragma unroll
                for (int i = 0; i < QUADS; i++) v[i] = own[(long long)(i - other * QUADS) * WIDE_THREADS];
#pragma unroll
                for (int i = 0; i < QUADS; i++) {
                    sums[0][4 * i] += v[i].x;
                    sums[0][4 * i + 1] += v[i].y;
                    sums[0][4 * i + 2] += v[i].z;
                    sums[0][4 * i + 3] += v[i].w;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < QUADS * 4; i++) {
            int token = i / 4 * 8 + 2 * t + i % 2, at = row + i / 2 % 2 * 8;
            if (token < tokens && at < piece.rows) out[(long long)token * piece.rows + at] = sums[0][i] * scale[i / 4][i % 2] + biases[i / 2 % 2];
        }
    }
    if (!whole) return;
    bool apart_sums = gridDim.z > 1;
    int blocks = gridDim.x * gridDim.y, number = blockIdx.y * gridDim.x + blockIdx.x;
    auto quads_of = [&](int z) { return (float4*)partial + ((long long)z * blocks + number) * (QUADS * MATRICES * WIDE_THREADS); };
    float4* quads = apart_sums ? quads_of(blockIdx.z) : (float4*)tiles;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MATRICES; m++)
#pragma unroll
        for (int i = 0; i < QUADS; i++) quads[(m * QUADS + i) * WIDE_THREADS + threadIdx.x] = quad_of(m, i);
    __syncthreads();
    // Threads that have gates share the work with those that have their values.
    bool halved = glu && MATRICES == 1;
    int owner = halved ? threadIdx.x % (WIDE_THREADS / 2) : threadIdx.x, first = halved ? part / (UNITS / 2) : 0, step = halved ? 2 : 1;
    int all = glu ? QUADS : QUADS * MATRICES, splits = gridDim.z, from_quad = all * (int)blockIdx.z / splits, to_quad = all * ((int)blockIdx.z + 1) / splits;
    Rest rest = rest_of(from_quad + first);
    if (apart_sums) {
        int share = share_of_blocks(counters + number, splits);
        if (share < 0) return;
        if (share == splits) {
            from_quad = 0;
            to_quad = all;
            rest = rest_of(first);
        }
    }
    auto total = [&](int quad, int thread) {
        if (!apart_sums) return quads[quad * WIDE_THREADS + thread];
        float4 sum = none;
        constexpr int BATCH = 8;
        for (int base = 0; base < splits; base += BATCH) {
            float4 v[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) v[i] = base + i < splits ? quads_of(base + i)[quad * WIDE_THREADS + thread] : none;
#pragma unroll
            for (int i = 0; i < BATCH; i++) sum = add(sum, v[i]);
        }
        return sum;
    };
    for (int quad = from_quad + first; quad < to_quad; quad += step) {
        float4 v4 = total(quad, owner), w4 = none;
        if (glu) w4 = MATRICES == 2 ? total(QUADS + quad, owner) : total(quad, owner + WIDE_THREADS / 2);
        Rest here = rest;
        if (quad + step < to_quad) rest = rest_of(quad + step);
        store(here, v4, w4);
    }
    if (apart_sums) leave_blocks(counters + number, splits);
}

#define WIDE(name, F, G, UNITS, MATRICES, TOKENS)                                                                                \
    KERNEL BOUNDED(128 * UNITS + 128, 1) wide_##name##_##TOKENS(                                                                  \
        const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2, int split,            \
        int row_bytes, int other_row_bytes, int chunks, const unsigned char* x, int apart, const float* scales, int tokens,      \
        float* out0, float* out1, float* out2, const float* bias0, const float* bias1, const float* bias2,                       \
        const float* residual, int glu, float* partial, int* counters, int t0, int t1, int t2, int t3, float factor) {           \
        GROUP_BODY((wide<F, G, UNITS, MATRICES, TOKENS>(                                                                         \
            w0, w1, w2, n0, n1, n2, split, row_bytes, other_row_bytes, chunks, x, apart, scales, tokens, out0, out1, out2,       \
            bias0, bias1, bias2, residual, glu, partial, counters,                                                               \
            Constants{{(uint32_t)t0, (uint32_t)t1, (uint32_t)t2, (uint32_t)t3}, factor})))                                       \
    }                                                                                                                            \
    REGISTER(wide_##name##_##TOKENS)
// For few tokens four units, for many two, which take twice as many rows each; the host knows it, too.
#define WIDES(name, F, G)      \
    WIDE(name, F, G, 4, 1, 32) \
    WIDE(name, F, G, 4, 1, 64) \
    WIDE(name, F, G, 2, 2, 128)
#define QUANTISED_WIDES(name, code, scale, offset) WIDES(name, QuantisedRows<F_##name>, QuantisedRows<F_##name>)
QUANTISED_FORMATS(QUANTISED_WIDES)
WIDES(code4_super_code6_halves, QuantisedRows<F_code4_super>, QuantisedRows<F_code6_halves>)
WIDES(code5_super_code6_halves, QuantisedRows<F_code5_super>, QuantisedRows<F_code6_halves>)
WIDES(half, PlainRows<Half>, PlainRows<Half>)
WIDES(brain, PlainRows<Brain>, PlainRows<Brain>)
