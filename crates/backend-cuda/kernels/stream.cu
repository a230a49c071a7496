// Products of matrices with one row of activations on Hopper, up to four after each other in one launch: weights come through
// rings in shared memory, one for each warp, by copies that run on their own and do not wait for what the products need of each
// other; other warps ask for them, a lane for each ring. A block takes less than half of the shared memory, so that the launch before
// or after has room at the same time. Warps share a block's tiles evenly, to the group of 256 columns; what several of them have of a
// tile is joined in their order. The code is small on purpose: each product runs most of it once, and fetching it takes time.
#include "bytes.cuh"
#include "functions.cuh"

// Warps that multiply, and those that ask for copies, which takes so long that one would hold up the others.
#define STREAM_WARPS 8
#define STREAM_COPIERS 4
#define STREAM_THREADS (32 * STREAM_WARPS)
// Registers of a thread at the start, so few that a block of attention has room beside; of a thread that multiplies, which needs more
// in time, and of one that asks: as many in all.
#define STREAM_REGISTERS 112
#define STREAM_MORE(registers) ((registers) + 40)
#define STREAM_FEWER(registers) ((registers) - 40 * STREAM_WARPS / STREAM_COPIERS)
// Copies that are under way for a warp, at most; each is of one block or two.
#define STREAM_MOST 8
// Products of a launch, at most.
#define STREAM_PRODUCTS 4
// Integers from one counter to the next, so that they lie in different lines.
#define STREAM_COUNTER 32

// Numbers as the host lists them, eight bytes each.
struct alignas(8) Whole {
    int value;
    DEVICE_MEMBER operator int() const { return value; }
};
struct alignas(8) Real {
    float value;
    DEVICE_MEMBER operator float() const { return value; }
};
// A product with up to three matrices; parameters as of matvec.cu.
struct Product {
    const unsigned char* weights[3];
    Whole rows[3], split, row_bytes, other_row_bytes, chunks;
    const float *x, *norm;
    Real epsilon;
    float* out[3];
    const float *bias[3], *residual;
    Whole glu, table[4];
    Real factor;
};
struct Products {
    Product list[STREAM_PRODUCTS];
};

// What a lane needs to multiply: which columns of a product are its own, where codes of a table lie, and shifts of its chunks.
template <class L> struct Lane {
    uint32_t own[8], below[2], above[2];
    int chunk;
    DEVICE_MEMBER void start(const Constants& constants) {
        int lane = threadIdx.x % 32;
        chunk = lane % 4 * 2;
#pragma unroll
        for (int c = 0; c < 8; c++) own[c] = lane / 4 == c ? 0xffffffffu : 0;
        if (!L::TABLE) return;
        // Negative values are those of codes below 8.
#pragma unroll
        for (int i = 0; i < 2; i++) {
            below[i] = 0;
            above[i] = constants.table[2 + i];
#pragma unroll
            for (int k = 0; k < 4; k++) below[i] |= (-(constants.table[i] >> (8 * k)) & 255u) << (8 * k);
        }
    }
};

// Sums of products of codes, for rows g and 8 + g and the lane's two chunks, for both halves of a chunk if they are scaled
// apart. Every chunk meets activations in a column of its own, so that all sums are made in the same registers, whose columns
// may have powers of two of their own: codes are multiplied where they lie in their words.
template <class L, class F, class G>
DEVICE void sum_codes(int first[4], int second[4], const Group<F, G, 1>& raw, const Lane<L>& mine, uint2 b) {
    int sums[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[k][i] = 0;
#pragma unroll
    for (int c = 0; c < 8; c++) {
        uint32_t b0 = b.x & mine.own[c], b1 = b.y & mine.own[c];
        const uint32_t* codes[2] = {raw.codes[0][c / 4], raw.codes[1][c / 4]};
        const uint32_t* high[2] = {raw.high[0][c / 4], raw.high[1][c / 4]};
        if (L::CODES == CODE8) {
            uint32_t a[4] = {codes[0][c % 4 * 2], codes[1][c % 4 * 2], codes[0][c % 4 * 2 + 1], codes[1][c % 4 * 2 + 1]};
            mma_bytes(sums[0], a, b0, b1);
        } else if (L::TABLE) {
            uint32_t above[4], below[4];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t word = codes[r][c % 4], other = word ^ 0x88888888u;
                below[r] = permute_signed(mine.below[0], mine.below[1], word);
                below[2 + r] = permute_signed(mine.below[0], mine.below[1], word >> 16);
                above[r] = permute_signed(mine.above[0], mine.above[1], other);
                above[2 + r] = permute_signed(mine.above[0], mine.above[1], other >> 16);
            }
            if (L::HALVES) {
                mma_bytes_half(sums[0], above[0], above[1], b0);
                mma_bytes_half(sums[1], above[2], above[3], b1);
                mma_bytes_half(sums[2], below[0], below[1], b0);
                mma_bytes_half(sums[3], below[2], below[3], b1);
            } else {
                mma_bytes(sums[0], above, b0, b1);
                mma_bytes(sums[2], below, b0, b1);
            }
        } else if (L::NIBBLES) {
            uint32_t w = codes[0][c % 4], v = codes[1][c % 4];
            mma_codes_half(sums[0], w & 0x0f0f0f0fu, v & 0x0f0f0f0fu, b0);
            mma_codes_half(sums[1], w & 0xf0f0f0f0u, v & 0xf0f0f0f0u, b1);
            if (L::CODES == CODE5) {
                uint32_t bit = 0x01010101u << c;
                uint32_t a[4] = {high[0][0] & bit, high[1][0] & bit, high[0][1] & bit, high[1][1] & bit};
                mma_codes(sums[2], a, b0, b1);
            }
            if (L::CODES == CODE6) {
                uint32_t bits = 0x03030303u << (2 * (c % 4));
                mma_codes_half(sums[2], high[0][0] & bits, high[1][0] & bits, b0);
                mma_codes_half(sums[3], high[0][1] & bits, high[1][1] & bits, b1);
            }
        } else {
            uint32_t bits = 0x03030303u << (2 * (c % 4)), bit = 0x01010101u << c;
            mma_codes_half(sums[0], codes[0][0] & bits, codes[1][0] & bits, b0);
            mma_codes_half(sums[1], codes[0][1] & bits, codes[1][1] & bits, b1);
            if (L::CODES == CODE3) {
                mma_codes_half(sums[2], high[0][0] & bit, high[1][0] & bit, b0);
                mma_codes_half(sums[3], high[0][1] & bit, high[1][1] & bit, b1);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int chunk = mine.chunk + i % 2, pairs = 2 * (mine.chunk % 4 + i % 2);
        if (L::TABLE) {
            first[i] = sums[0][i] - sums[2][i];
            second[i] = L::HALVES ? sums[1][i] - sums[3][i] : 0;
        } else if (L::CODES == CODE8) {
            first[i] = sums[0][i];
            second[i] = 0;
        } else if (L::NIBBLES) {
            first[i] = sums[0][i];
            second[i] = sums[1][i] >> 4;
            if (L::CODES == CODE5) first[i] += (sums[2][i] >> chunk) << 4;
            if (L::CODES == CODE6) {
                first[i] += (sums[2][i] >> pairs) << 4;
                second[i] += (sums[3][i] >> pairs) << 4;
            }
        } else {
            first[i] = sums[0][i] >> pairs;
            second[i] = sums[1][i] >> pairs;
            if (L::CODES == CODE3) {
                first[i] += (sums[2][i] >> chunk) << 2;
                second[i] += (sums[3][i] >> chunk) << 2;
            }
        }
        if (!L::HALVES) first[i] += second[i];
    }
}

// Sums of a block for rows g and 8 + g, to be multiplied by `unit_of`.
template <class L> DEVICE float unit_of() { return L::SUPER_AFFINE_SCALES ? 1.0f / 256.0f : 1.0f; }
template <class L, class F, class G>
DEVICE void multiply_block(float sums[2], const Group<F, G, 1>& raw, const Constants& constants, const Lane<L>& mine, const Activations& x, int group) {
    int lane = threadIdx.x % 32, t = lane % 4, first[4], second[4];
    sum_codes<L, F, G>(first, second, raw, mine, x.quads[group * 32 + lane]);
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

// The products of one block or of two, at once if `TOGETHER`, so that they hide each other's waits. `release` is called when they were
// read.
template <class L, bool TOGETHER, class F, class G, class R>
DEVICE void multiply_blocks(float one[2], float other[2], const unsigned char* block, const unsigned char* next, bool two, const Constants& constants,
                            const Lane<L>& mine, const Activations& x, int group, int next_group, R release) {
    Group<F, G, 1> raw, more;
    raw.template load<L, FromShared>(block);
    if (TOGETHER) {
        if (two) more.template load<L, FromShared>(next);
        release();
    }
    multiply_block<L, F, G>(one, raw, constants, mine, x, group);
    other[0] = other[1] = 0.0f;
    if (!TOGETHER) {
        if (two) more.template load<L, FromShared>(next);
        release();
    }
    if (two) multiply_block<L, F, G>(other, more, constants, mine, x, next_group);
}

// A block's part of a product, and a warp's part of that. Items follow each other: tiles, or those of gate and value together,
// whose groups take turns; a unit is a group of an item.
struct Share {
    int tiles0, tiles1, first_item, per_item, units;
    DEVICE_MEMBER void find(const Product& p) {
        tiles0 = (p.rows[0] + 15) / 16;
        tiles1 = (p.rows[1] + 15) / 16;
        int all = p.glu ? tiles0 : tiles0 + tiles1 + (p.rows[2] + 15) / 16;
        first_item = (int)((unsigned)all * blockIdx.x / gridDim.x);
        int end_item = (int)((unsigned)all * (blockIdx.x + 1) / gridDim.x);
        per_item = p.glu ? 2 * groups_of(p.chunks) : groups_of(p.chunks);
        units = (end_item - first_item) * per_item;
    }
    // The first unit of a warp.
    DEVICE_MEMBER int begin_of(int warp) const { return (int)((unsigned)units * warp / STREAM_WARPS); }
    // Where an item begins: matrix, its first row there.
    DEVICE_MEMBER int matrix_of(const Product& p, int item, int& row) const {
        int tile = first_item + item, matrix = p.glu || tile < tiles0 ? 0 : tile < tiles0 + tiles1 ? 1 : 2;
        row = (tile - (matrix == 0 ? 0 : matrix == 1 ? tiles0 : tiles0 + tiles1)) * 16;
        return matrix;
    }
};

// A place in a warp's ring: copies follow each other, and one that does not fit before the end is put at the start.
struct RingPlace {
    int at, lap, number;
    DEVICE_MEMBER void start() { at = lap = number = 0; }
    // Where a copy of so many bytes is.
    DEVICE_MEMBER int place(int bytes, int ring) {
        if (at - lap + bytes > ring) {
            lap += ring;
            at = lap;
        }
        return at - lap;
    }
    DEVICE_MEMBER void pass(int bytes) {
        at += bytes;
        number++;
    }
    // What a warp says it has read: sixteens of bytes, and copies in the lowest eight bits.
    DEVICE_MEMBER uint32_t word() const { return (uint32_t)at / 16 << 8 | ((uint32_t)number & 255); }
};

// Copies of a warp's blocks of all products, made by one lane of another warp.
template <class F, class G> struct Fetch {
    const Products& products;
    int count, ring, warp;
    unsigned char* memory;
    SharedPlace full;
    // Which product, item and unit comes next, how many more of the product; where it is from, and where the one after it if two
    // matrices take turns.
    int product, item, unit, left, bytes;
    bool glu;
    Share share;
    RingPlace place;
    const unsigned char *from, *other;

    DEVICE_MEMBER void find() {
        const Product& p = products.list[product];
        int row, matrix = share.matrix_of(p, item, row), group = glu ? (unit + 1) / 2 : unit;
        bool first = std_is_same<F, G>::value || matrix < p.split;
        auto block = [&](const unsigned char* start, int at) {
            return first ? F::block_of(start, row, p.row_bytes, at) : G::block_of(start, row, p.other_row_bytes, at);
        };
        from = block(p.weights[matrix], group);
        bytes = first ? F::BLOCK : G::BLOCK;
        if (glu) {
            other = block(p.weights[1], unit / 2);
            if (unit % 2) {
                const unsigned char* value = other;
                other = from;
                from = value;
            }
        }
    }
    // Asks for all, as soon as there is room; `progress` says what was read.
    DEVICE_MEMBER void run(uint32_t* progress) {
        place.start();
        product = -1;
        left = unit = 0;
        share.per_item = 1;
#pragma unroll 1
        for (;;) {
            bool turns = left == 0 || unit == share.per_item;
            if (left > 0 && turns) {
                unit = 0;
                item++;
            }
#pragma unroll 1
            while (left == 0) {
                // The next product that has something for this warp.
                if (++product == count) {
                    // The next launch begins to fetch when this one has asked for all it needs.
                    let_next_start();
                    return;
                }
                const Product& p = products.list[product];
                share.find(p);
                glu = p.glu;
                int begin = share.begin_of(warp);
                left = share.begin_of(warp + 1) - begin;
                item = begin / share.per_item;
                unit = begin - item * share.per_item;
            }
            if (turns) find();
            bool two = 4 * bytes <= ring && left > 1 && unit + 1 < share.per_item && (!glu || unit % 2 == 0);
            int all = two ? 2 * bytes : bytes, at = place.place(all, ring), slot = place.number % STREAM_MOST;
#pragma unroll 1
            for (;;) {
                uint32_t read = load_acquired(progress), waiting = ((uint32_t)place.number - read) & 255;
                if (waiting == 0 || (waiting < STREAM_MOST && place.at + all - (int)(read >> 8) * 16 <= ring)) break;
                let_others_run();
            }
            SharedPlace barrier = full + 8 * slot;
            barrier_expect(barrier, all);
            copy_bulk(shared_place(memory + at), from, two && !glu ? all : bytes, barrier);
            if (two && glu) copy_bulk(shared_place(memory + at + bytes), other, bytes, barrier);
            place.pass(all);
            left -= two ? 2 : 1;
            unit += two ? 2 : 1;
            // A single unit of two matrices is followed by one of the other.
            const unsigned char* next = from + bytes;
            from = !glu ? from + all : two ? next : other;
            other = two ? other + bytes : next;
        }
    }
};

// Functions of gated units in few instructions.
DEVICE float quick_function(int function, float x) {
    float inner = function == 1 ? 1.5957691216057308f * x * (1.0f + 0.044715f * x * x) : function == 5 ? 2.0f * x : x;
    if (function == 2) return fmaxf(x, 0.0f);
    if (function == 3) return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    if (function == 6) return fast_exp(x);
    if (function == 7) return apply_function(7, x);
    float share = __fdividef(1.0f, 1.0f + fast_exp(-inner));
    return function == 4 ? share : function == 5 ? 2.0f * share - 1.0f : x * share;
}

// Four numbers times a factor, rounded to bytes: added to 1.5 2^23 they have the integer in their lowest bits.
DEVICE uint32_t round_to_bytes(float4 v, float factor) {
    uint32_t a = float_to_bits(fmaf(v.x, factor, 12582912.0f)), b = float_to_bits(fmaf(v.y, factor, 12582912.0f));
    uint32_t c = float_to_bits(fmaf(v.z, factor, 12582912.0f)), d = float_to_bits(fmaf(v.w, factor, 12582912.0f));
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

// Eight numbers of four lanes each are made the bytes of a chunk.
DEVICE void quantise_eight(Activations to, const float4 v[2], int at) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) most = fmaxf(most, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
    most = fmaxf(most, shuffle_xor(most, 1));
    most = fmaxf(most, shuffle_xor(most, 2));
    float scale = most * (1.0f / 127.0f), back = most > 0.0f ? __fdividef(127.0f, most) : 0.0f;
    int sum = 0, place = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t bytes = round_to_bytes(v[i], back);
        int quad = 2 * place + i;
        ((uint32_t*)to.quads)[at * 8 + quad % 4 * 2 + quad / 4] = bytes;
        sum = sum_of_bytes(bytes, sum);
    }
    sum += shuffle_xor(sum, 1);
    int other = shuffle_xor(sum, 2);
    if (place == 0) to.meta[at] = make_float4(scale, scale * (float)sum, scale * (float)other, scale * (float)(sum + other));
}

// Activations in eight bits, normalised if asked for; until `wait` only weights are read.
template <class W> DEVICE void quantise_row(Activations to, const Product& p, W wait) {
    __shared__ float squares[STREAM_WARPS];
    constexpr int STEP = 8 * STREAM_THREADS, KEPT = 2, BATCH = 2;
    int chunks = p.chunks, width = chunks * 32, whole = groups_of(chunks) * 256, first = threadIdx.x * 8, start = threadIdx.x / 32 * 256;
    const float *x = p.x, *norm = p.norm;
    auto load = [&](float4 v[2], const float* from, int at) {
#pragma unroll
        for (int i = 0; i < 2; i++) v[i] = at < width ? *(const float4*)(from + at + 4 * i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    };
    auto squares_of = [&](const float4 v[2]) {
        return v[0].x * v[0].x + v[0].y * v[0].y + v[0].z * v[0].z + v[0].w * v[0].w + v[1].x * v[1].x + v[1].y * v[1].y + v[1].z * v[1].z + v[1].w * v[1].w;
    };
    auto inverse_of = [&](float sum) {
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
        sync_some(STREAM_THREADS);
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < STREAM_WARPS; i++) sum += squares[i];
        return rsqrtf(sum / width + p.epsilon);
    };
    if (norm && whole <= KEPT * STEP) {
        // The usual width of a norm: everything stays in registers.
        float4 v[KEPT][2], w[KEPT][2];
#pragma unroll
        for (int i = 0; i < KEPT; i++) load(w[i], norm, first + i * STEP);
        wait();
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < KEPT; i++) load(v[i], x, first + i * STEP);
#pragma unroll
        for (int i = 0; i < KEPT; i++) sum += squares_of(v[i]);
        float inverse = inverse_of(sum);
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            if (start + i * STEP >= whole) break;
#pragma unroll
            for (int k = 0; k < 2; k++) v[i][k] = times(v[i][k], w[i][k], inverse);
            quantise_eight(to, v[i], (first + i * STEP) / 32);
        }
    } else {
        wait();
        float inverse = 1.0f;
        if (norm) {
            float sum = 0.0f;
#pragma unroll 2
            for (int at = first; at < width; at += STEP) {
                float4 v[2];
                load(v, x, at);
                sum += squares_of(v);
            }
            inverse = inverse_of(sum);
        }
#pragma unroll 1
        for (int base = 0; base + start < whole; base += BATCH * STEP) {
            float4 v[BATCH][2];
#pragma unroll
            for (int i = 0; i < BATCH; i++) load(v[i], x, base + i * STEP + first);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int at = base + i * STEP + first;
                if (base + i * STEP + start >= whole) break;
                if (norm && at < width) {
#pragma unroll
                    for (int k = 0; k < 2; k++) v[i][k] = times(v[i][k], *(const float4*)(norm + at + 4 * k), inverse);
                }
                quantise_eight(to, v[i], at / 32);
            }
        }
    }
    sync_some(STREAM_THREADS);
}

// `ring` and `activation_bytes` say how much shared memory a warp's copies and the activations have. Counters are zeros at the
// start and at the end.
template <class F, class G, int REGISTERS>
DEVICE void stream(const Products& products, int count, int ring, int activation_bytes, int* counters) {
    SHARED_BYTES(shared);
    __shared__ uint64_t barriers[STREAM_WARPS * STREAM_MOST];
    // What each warp has read of its ring.
    __shared__ uint32_t progress[STREAM_WARPS];
    // Sums of a warp's first and last tile, of both matrices of a gated unit.
    __shared__ float found[STREAM_WARPS][2][2][16];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Which warp's copies a lane of the other warps asks for.
    int served = (warp - STREAM_WARPS) * (STREAM_WARPS / STREAM_COPIERS) + lane;
    bool asks = warp >= STREAM_WARPS && lane < STREAM_WARPS / STREAM_COPIERS;
    if (asks) {
#pragma unroll
        for (int i = 0; i < STREAM_MOST; i++) barrier_start(shared_place(barriers + served * STREAM_MOST + i), 1);
        progress[served] = 0;
        barrier_fence();
    }
    __syncthreads();
    if (warp >= STREAM_WARPS) {
        group_registers<STREAM_FEWER(REGISTERS), false>();
        if (!asks) return;
        Fetch<F, G> fetch{products, count, ring, served, shared + activation_bytes + served * ring, shared_place(barriers + served * STREAM_MOST)};
        fetch.run(progress + served);
        return;
    }
    group_registers<STREAM_MORE(REGISTERS), true>();
    unsigned char* memory = shared + activation_bytes + warp * ring;
    SharedPlace full = shared_place(barriers + warp * STREAM_MOST);
    RingPlace now_at;
    now_at.start();
#pragma unroll 1
    for (int index = 0; index < count; index++) {
        const Product& p = products.list[index];
        Share share;
        share.find(p);
        int groups = groups_of(p.chunks), per_item = share.per_item, begin = share.begin_of(warp), end = share.begin_of(warp + 1);
        bool glu = p.glu;
        Constants constants{{(uint32_t)p.table[0], (uint32_t)p.table[1], (uint32_t)p.table[2], (uint32_t)p.table[3]}, p.factor};
        Lane<F> mine;
        Lane<G> mine_too;
        mine.start(constants);
        mine_too.start(constants);
        Activations a;
        a.quads = (uint2*)shared;
        a.meta = (float4*)(a.quads + groups * 32);
        // Tiles of several warps are joined by the threads of the first boundary between warps inside them; what they need for
        // that is looked for before the activations are there.
        int inside = threadIdx.x / 16;
        // A bit for each warp that has a part.
        uint32_t joined = 0;
        bool later = false;
        float bias = 0.0f;
        float* to = nullptr;
        const float* residual = nullptr;
        if (inside > 0 && inside < STREAM_WARPS) {
            int boundary = share.begin_of(inside), item = boundary / per_item;
            if (boundary % per_item > 0 && share.begin_of(inside - 1) <= item * per_item) {
                later = share.begin_of(inside - 1) / per_item != item;
                int join_row, join_matrix = share.matrix_of(p, item, join_row);
                join_row += threadIdx.x % 16;
                for (int w = inside - 1; w < STREAM_WARPS && (w < inside || share.begin_of(w) < (item + 1) * per_item); w++)
                    if (share.begin_of(w) < share.begin_of(w + 1)) joined |= 1u << w;
                if (join_row < p.rows[join_matrix]) {
                    to = p.out[join_matrix] + join_row;
                    if (p.residual) residual = p.residual + join_row;
                    if (p.bias[join_matrix]) bias = p.bias[join_matrix][join_row];
                }
            }
        }

        int item = begin / per_item, unit = begin % per_item, first_of_warp = item;
        bool whole = unit == 0;
        int row, matrix = share.matrix_of(p, item, row);
        quantise_row(a, p, [&]() {
            if (index == 0) {
                wait_for_previous();
            } else {
                if (threadIdx.x == 0) wait_for_blocks(counters + (index - 1) * STREAM_COUNTER, gridDim.x);
                sync_some(STREAM_THREADS);
            }
        });

        auto write = [&](int matrix, int row, float sum, float value) {
            if (row >= p.rows[matrix]) return;
            if (p.bias[matrix]) sum += p.bias[matrix][row];
            if (glu) sum = quick_function(p.glu - 1, sum) * value;
            if (p.residual) sum += p.residual[row];
            p.out[matrix][row] = sum;
        };
        float early = residual ? *residual : 0.0f;
        float sums[2] = {0.0f, 0.0f}, values[2] = {0.0f, 0.0f};
#pragma unroll 1
        for (int now = begin; now < end;) {
            // Two units at once if the ring has room for twice that, of a gated unit those of gate and value.
            bool is_first = std_is_same<F, G>::value || matrix < p.split;
            int bytes = is_first ? F::BLOCK : G::BLOCK;
            bool two = 4 * bytes <= ring && now + 1 < end && unit + 1 < per_item && (!glu || unit % 2 == 0);
            int all = two ? 2 * bytes : bytes;
            barrier_wait(full + 8 * (now_at.number % STREAM_MOST), now_at.number / STREAM_MOST % 2);
            const unsigned char *block = memory + now_at.place(all, ring), *next = block + bytes;
            now_at.pass(all);
            int group = glu ? unit / 2 : unit, next_group = glu ? group : group + 1;
            float one[2], more[2];
            auto release = [&]() {
                __syncwarp();
                if (lane == 0) store_released(progress + warp, now_at.word());
            };
            if (is_first) multiply_blocks<F, true, F, G>(one, more, block, next, two, constants, mine, a, group, next_group, release);
            else multiply_blocks<G, false, F, G>(one, more, block, next, two, constants, mine_too, a, group, next_group, release);
            bool value_only = glu && unit % 2;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                sums[r] += value_only ? 0.0f : glu ? one[r] : one[r] + more[r];
                values[r] += value_only ? one[r] : glu ? more[r] : 0.0f;
            }
            now += two ? 2 : 1;
            unit += two ? 2 : 1;
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
                        write(matrix, row + lane / 4 + 8 * side, sum, value);
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
                matrix = share.matrix_of(p, item, row);
            }
        }
        sync_some(STREAM_THREADS);
        if (to) {
            // All at once, then in their order.
            float parts[STREAM_WARPS], values_too[STREAM_WARPS];
#pragma unroll
            for (int w = 0; w < STREAM_WARPS; w++) {
                bool part = joined >> w & 1;
                const float(*from)[16] = found[w][w < inside && later];
                parts[w] = part ? from[0][threadIdx.x % 16] : 0.0f;
                values_too[w] = part ? from[1][threadIdx.x % 16] : 0.0f;
            }
            float sum = 0.0f, value = 0.0f;
#pragma unroll
            for (int w = 0; w < STREAM_WARPS; w++) {
                sum += parts[w];
                value += values_too[w];
            }
            sum += bias;
            if (glu) sum = quick_function(p.glu - 1, sum) * value;
            *to = sum + early;
        }
        if (index + 1 < count) {
            sync_some(STREAM_THREADS);
            if (threadIdx.x == 0) tell_blocks(counters + index * STREAM_COUNTER);
        }
    }
    // The last block to end leaves the counters as they were.
    if (count > 1 && threadIdx.x == 0 && atomicAdd(counters + (count - 1) * STREAM_COUNTER, 1) == (int)gridDim.x - 1)
        for (int index = 0; index < count; index++) counters[index * STREAM_COUNTER] = 0;
}

#define STREAM(name, F, G, registers)                                                                                    \
    KERNEL WITH_REGISTERS(registers) stream_##name(int count, int ring, int activation_bytes, int* counters, const __grid_constant__ Products products) { \
        GROUP_BODY((stream<F, G, registers>(products, count, ring, activation_bytes, counters)))                         \
    }                                                                                                                    \
    REGISTER(stream_##name)
#define STREAMS(name, code, scale, offset) STREAM(name, F_##name, F_##name, STREAM_REGISTERS)
QUANTISED_FORMATS(STREAMS)
STREAM(code4_super_code6_halves, F_code4_super, F_code6_halves, STREAM_REGISTERS)
// Too long for so few, and spilling costs more than room gives.
STREAM(code5_super_code6_halves, F_code5_super, F_code6_halves, STREAM_REGISTERS + 16)
