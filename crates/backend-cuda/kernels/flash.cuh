// Attention on the matrix units over a cache of F16 or Q8_0, for heads of 64, 128 or 256 elements: tiles of 64 cells, the softmax kept
// running.
#pragma once
#include "cache.cuh"

#define FLASH_TILE 64
#define FLASH_THREADS 128

// How cells come from a cache of halves: as they are.
template <int D> struct HalfCells {
    static constexpr bool DIRECT = true;
    static constexpr int HEAD = 2 * D, ROW = HEAD, RAW = 0;
    // Element that the first of a pair of a lane's query fragment is, and that of a column of the results.
    static DEVICE_MEMBER int query_at(int step, int t, int pair) { return step * 16 + t * 2 + pair * 8; }
    static DEVICE_MEMBER int result_at(int tile, int column) { return tile * 8 + column; }
    static DEVICE_MEMBER uint4 unit(const unsigned char*, int) { return make_uint4(0, 0, 0, 0); }
};
// And from one of Q8_0: blocks of a half, the scale, and 32 bytes. They are copied as they are. A prompt's tile is then made one of
// halves; for a single row lanes make fragments of words as they lie there. Two blocks are 17 words: scale, two bytes; seven words;
// two bytes, scale; eight words. A lane with the last two bytes of the first block has its first two, too.
template <int D> struct ByteCells {
    static constexpr bool DIRECT = false;
    // Bytes of a head, and of one in shared memory: pieces of 16 bytes in which it may begin at any word.
    static constexpr int HEAD = D / 32 * 34, ROW = (HEAD + 15) / 16 * 16, RAW = FLASH_TILE * ROW;
    // Makes eight halves of a row from the bytes of a head.
    static DEVICE_MEMBER uint4 unit(const unsigned char* head, int unit) {
        const unsigned char* block = head + unit / 4 * 34;
        uint32_t scale = half_pair(*(const uint16_t*)block);
        const unsigned char* at = block + 2 + unit % 4 * 8;
        // Bytes begin in the middle of a word or at its start.
        const uint32_t* words = (const uint32_t*)(at - (unit / 4 % 2 == 0 ? 2 : 0));
        uint32_t first = words[0], second = words[1];
        if (unit / 4 % 2 == 0) {
            uint32_t third = words[2];
            first = __byte_perm(first, second, 0x5432);
            second = __byte_perm(second, third, 0x5432);
        }
        return make_uint4(halves(first, 0, scale), halves(first, 1, scale), halves(second, 0, scale), halves(second, 1, scale));
    }
    // Elements are in the order of words: those of a lane's words of keys, and those of a column of the results.
    static DEVICE_MEMBER int query_at(int step, int t, int pair) { return step / 2 * 32 + (step % 2 * 16 + t * 4 + pair * 2 + (step / 2 % 2 == 0 ? 2 : 0)) % 32; }
    static DEVICE_MEMBER int result_at(int tile, int column) { return tile / 4 * 32 + (column * 4 + tile % 4 + (tile / 4 % 2 == 0 ? 2 : 0)) % 32; }
    // Word `index` (0 to 7) of a block's bytes in this order, without signs, and the block's scale in both halves of a word.
    static DEVICE_MEMBER uint32_t word(uint32_t& scale, const unsigned char* head, int block, int index) {
        const uint32_t* words = (const uint32_t*)(head + block / 2 * 68);
        uint32_t first = words[0], middle = words[8], word = words[(block % 2 == 0 ? 1 : 9) + index];
        scale = block % 2 == 0 ? pair_of(first, 0) : pair_of(middle, 1);
        if (block % 2 == 0 && index == 7) word = __byte_perm(middle, first, 0x7610);
        return word ^ 0x80808080u;
    }
    static DEVICE_MEMBER uint32_t scaled(uint32_t bytes, int side, uint32_t scale) {
        return scale_halves(subtract_halves(bytes_as_halves(bytes, side), 0x64806480u), scale, 0);
    }
    // Fragments of keys for a step of 16 elements: cell `first` + g, then the one eight cells further.
    static DEVICE_MEMBER void keys(uint32_t pair[4], const unsigned char* stage, int first, int step) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t scale, bytes = word(scale, stage + (first + lane / 4 + 8 * i) * ROW, step / 2, step % 2 * 4 + lane % 4);
            pair[2 * i] = scaled(bytes, 0, scale);
            pair[2 * i + 1] = scaled(bytes, 1, scale);
        }
    }
    // Fragments of values of 16 cells from `first` for tiles 2 `both` and 2 `both` + 1 of eight columns.
    static DEVICE_MEMBER void values(uint32_t pair[4], const unsigned char* stage, int first, int both) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const unsigned char* head = stage + (first + lane % 4 * 2 + 8 * i) * ROW;
            uint32_t scales[2], one = word(scales[0], head, both / 2, lane / 4), other = word(scales[1], head + ROW, both / 2, lane / 4);
            uint32_t bytes = __byte_perm(one, other, both % 2 == 0 ? 0x5140 : 0x7362), scale = __byte_perm(scales[0], scales[1], 0x5410);
            pair[i] = scaled(bytes, 0, scale);
            pair[2 + i] = scaled(bytes, 1, scale);
        }
    }
    static DEVICE_MEMBER uint32_t half_pair(uint16_t half) { return half | (uint32_t)half << 16; }
    static DEVICE_MEMBER uint32_t halves(uint32_t bytes, int side, uint32_t scale) {
        return scale_halves(subtract_halves(bytes_as_halves(bytes ^ 0x80808080u, side), 0x64806480u), scale, 0);
    }
};

// With WORDS fragments are made of words of the cache; else tiles are of halves.
template <int D, template <int> class C, bool WORDS> struct Flash {
    static constexpr int UNITS = D / 8;
    typedef C<D> Cache;
    typedef typename chosen<WORDS, Cache, HalfCells<D>>::type Order;
    static constexpr int TILE = FLASH_TILE * D;
    // Place of eight halves of a row, so that eight rows use all banks.
    static DEVICE_MEMBER int place(int row, int unit) { return row * D + ((unit ^ (row & 7)) * 8); }

    // Fragments of 16 rows of queries: row r of the warp is at `rows[r]`, or none.
    uint32_t query[D / 16][4];
    float sums[D / 8][4];
    float most[2], total[2];

    DEVICE_MEMBER void start(const float* first, const float* second, float scale) {
        int t = threadIdx.x % 4;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* from = i % 2 ? second : first;
                int column = Order::query_at(k, t, i / 2);
                query[k][i] = from ? pack_half(from[column] * scale, from[column + 1] * scale) : 0;
            }
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[j][i] = 0.0f;
        most[0] = most[1] = -INFINITY;
        total[0] = total[1] = 0.0f;
    }

    static DEVICE_MEMBER void copy_halves(uint16_t* to, const unsigned char* cache, const Cells& cells, int base, int end, int kv_heads, int kv_head) {
        constexpr int ROWS = FLASH_THREADS / UNITS;
        int unit = threadIdx.x % UNITS, first = threadIdx.x / UNITS, bytes = kv_heads * (D * 2);
        const unsigned char* from = cache + kv_head * (D * 2) + unit * 16;
        if (cells.count == 1) {
            // The usual case: neighbours.
            from += (long long)(cells.first + base + first) * bytes;
#pragma unroll
            for (int i = 0; i < FLASH_TILE / ROWS; i++) {
                bool valid = base + first + i * ROWS < end;
                copy_async(to + place(first + i * ROWS, unit), valid ? from : cache, valid);
                from += ROWS * bytes;
            }
            return;
        }
#pragma unroll 1
        for (int row = first; row < FLASH_TILE; row += ROWS) {
            bool valid = base + row < end;
            long long cell = valid ? cells.at(base + row) : 0;
            copy_async(to + place(row, unit), from + cell * bytes, valid);
        }
    }
    // Bytes before a head in the rows of a stage: it lies there as it does in memory, if that is the same for all cells.
    static DEVICE_MEMBER int offset(int kv_heads, int kv_head) { return !Cache::DIRECT && kv_heads * Cache::HEAD % 16 == 0 ? kv_head * Cache::HEAD % 16 : 0; }
    static DEVICE_MEMBER void copy_bytes(unsigned char* to, const unsigned char* cache, const Cells& cells, int base, int end, int kv_heads, int kv_head) {
        constexpr int PIECES = Cache::ROW / 16, LANES = PIECES > 16 ? 32 : PIECES > 8 ? 16 : 8, ROWS = FLASH_THREADS / LANES;
        if (kv_heads * Cache::HEAD % 16 > 0) {
            // Heads begin anywhere: 17 pieces.
            constexpr int PIECE = Cache::HEAD / 17;
            for (int i = threadIdx.x; i < FLASH_TILE * 17; i += FLASH_THREADS) {
                int row = i / 17, piece = i % 17;
                bool valid = base + row < end;
                long long cell = valid ? cells.at(base + row) : 0;
                const unsigned char* from = cache + (cell * kv_heads + kv_head) * Cache::HEAD + piece * PIECE;
                copy_async_piece<PIECE>(to + row * Cache::ROW + piece * PIECE, from, valid);
            }
            return;
        }
        int piece = threadIdx.x % LANES, first = threadIdx.x / LANES, before = offset(kv_heads, kv_head);
        if (piece >= PIECES) return;
        int bytes = min(16, before + Cache::HEAD - piece * 16), stride = kv_heads * Cache::HEAD;
        const unsigned char* from = cache + kv_head * Cache::HEAD - before + piece * 16;
        to += first * Cache::ROW + piece * 16;
        if (cells.count == 1) {
            const unsigned char* next = from + (long long)(cells.first + base + first) * stride;
#pragma unroll
            for (int i = 0; i < FLASH_TILE / ROWS; i++) {
                bool valid = base + first + i * ROWS < end;
                copy_async_bytes(to + i * ROWS * Cache::ROW, valid ? next : cache, valid ? bytes : 0);
                next += ROWS * stride;
            }
            return;
        }
#pragma unroll 1
        for (int i = 0; i < FLASH_TILE / ROWS; i++) {
            bool valid = base + first + i * ROWS < end;
            long long cell = valid ? cells.at(base + first + i * ROWS) : 0;
            copy_async_bytes(to + i * ROWS * Cache::ROW, from + cell * stride, valid ? bytes : 0);
        }
    }
    // A stage of keys and values, as they are in the cache.
    static constexpr int STAGE_BYTES = Cache::DIRECT ? 2 * TILE * 2 : 2 * Cache::RAW;
    static DEVICE_MEMBER void copy(unsigned char* stage, const unsigned char* keys, const unsigned char* values, const Cells& cells, int base, int end, int kv_heads, int kv_head) {
        if (Cache::DIRECT) {
            copy_halves((uint16_t*)stage, keys, cells, base, end, kv_heads, kv_head);
            copy_halves((uint16_t*)stage + TILE, values, cells, base, end, kv_heads, kv_head);
        } else {
            copy_bytes(stage, keys, cells, base, end, kv_heads, kv_head);
            copy_bytes(stage + Cache::RAW, values, cells, base, end, kv_heads, kv_head);
        }
    }
    // Puts keys and values of one row into a stage, whose rows begin so many bytes after.
    static DEVICE_MEMBER void replace(unsigned char* stage, int before, int row, const unsigned char* keys, const unsigned char* values) {
        for (int i = threadIdx.x; i < Cache::HEAD / 2; i += FLASH_THREADS) {
            int at = Cache::DIRECT ? place(row, i / 8) + i % 8 : (row * Cache::ROW + before) / 2 + i;
            ((uint16_t*)stage)[at] = ((const uint16_t*)keys)[i];
            ((uint16_t*)(stage + STAGE_BYTES / 2))[at] = ((const uint16_t*)values)[i];
        }
    }
    // A tile of halves.
    static DEVICE_MEMBER void convert(uint16_t* tile, const unsigned char* stage, int before) {
        if (Cache::DIRECT) return;
#pragma unroll 4
        for (int i = threadIdx.x; i < FLASH_TILE * UNITS; i += FLASH_THREADS) {
            int row = i / UNITS, unit = i % UNITS;
            *(uint4*)(tile + place(row, unit)) = Cache::unit(stage + before + row * Cache::ROW, unit);
            *(uint4*)(tile + TILE + place(row, unit)) = Cache::unit(stage + before + Cache::RAW + row * Cache::ROW, unit);
        }
    }
    // Positions of a tile's cells; of those past the end nothing is known.
    static DEVICE_MEMBER void copy_positions(int* to, const int* cell_positions, const Cells& cells, int base, int end) {
        if (threadIdx.x < FLASH_TILE && base + (int)threadIdx.x < end) copy_async_word(to + threadIdx.x, cell_positions + cells.at(base + threadIdx.x));
    }

    static DEVICE_MEMBER void load_keys(uint32_t pair[4], const unsigned char* tile, int first, int step) {
        int lane = threadIdx.x % 32;
        if constexpr (WORDS) Cache::keys(pair, tile, first, step);
        else load_matrices(pair, (const uint16_t*)tile + place(first + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
    }
    static DEVICE_MEMBER void load_values(uint32_t pair[4], const unsigned char* tile, int first, int both) {
        int lane = threadIdx.x % 32;
        if constexpr (WORDS) Cache::values(pair, tile, first, both);
        else load_matrices_transposed(pair, (const uint16_t*)tile + place(first + lane % 16, both * 2 + lane / 16));
    }

    // Attends to COUNT cells of a tile from `first`. `tile_positions` are those of the tile's cells; `sights`
    // what rows g and g + 8 see, unless they see `all`. Scores are in units of ln 2 unless they are capped or biased.
    template <int COUNT>
    DEVICE_MEMBER void attend(const unsigned char* keys, const unsigned char* values, const int* tile_positions, int first, int limit,
                              const Sight sights[2], float soft_cap, bool all) {
        int lane = threadIdx.x % 32, t = lane % 4;
        float scores[COUNT / 8][4];
#pragma unroll
        for (int j = 0; j < COUNT / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[j][i] = 0.0f;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int j = 0; j < COUNT / 16; j++) {
                uint32_t pair[4];
                load_keys(pair, keys, first + j * 16, k);
                mma_half(scores[2 * j], query[k], pair);
                mma_half(scores[2 * j + 1], query[k], pair + 2);
            }
        float best[2] = {most[0], most[1]};
        if (soft_cap > 0.0f) {
#pragma unroll
            for (int i = 0; i < COUNT / 2; i++) {
                float score = scores[i / 4][i % 4];
                scores[i / 4][i % 4] = soft_cap * 1.4426950408889634f * tanhf(score * 0.6931471805599453f / soft_cap);
            }
        }
        if (!all) {
#pragma unroll
            for (int j = 0; j < COUNT / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int at = first + j * 8 + t * 2 + i % 2;
                    bool visible = at < limit && sights[i / 2].sees(tile_positions[at]);
                    scores[j][i] = visible ? scores[j][i] : -INFINITY;
                }
        }
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) best[i % 4 / 2] = fmaxf(best[i % 4 / 2], scores[i / 4][i % 4]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            best[r] = fmaxf(best[r], shuffle_xor(best[r], 1));
            best[r] = fmaxf(best[r], shuffle_xor(best[r], 2));
            float factor = most[r] == -INFINITY ? 0.0f : fast_exp2(most[r] - best[r]);
            most[r] = best[r];
            total[r] *= factor;
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                sums[j][2 * r] *= factor;
                sums[j][2 * r + 1] *= factor;
            }
        }
        float base[2] = {most[0] == -INFINITY ? 0.0f : most[0], most[1] == -INFINITY ? 0.0f : most[1]};
#pragma unroll
        for (int j = 0; j < COUNT / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[j][i] = fast_exp2(scores[j][i] - base[i / 2]);
                total[i / 2] += scores[j][i];
            }
#pragma unroll
        for (int k = 0; k < COUNT / 16; k++) {
            uint32_t weights[4] = {pack_half(scores[2 * k][0], scores[2 * k][1]), pack_half(scores[2 * k][2], scores[2 * k][3]),
                                   pack_half(scores[2 * k + 1][0], scores[2 * k + 1][1]),
                                   pack_half(scores[2 * k + 1][2], scores[2 * k + 1][3])};
#pragma unroll
            for (int j = 0; j < D / 16; j++) {
                uint32_t pair[4];
                load_values(pair, values, first + k * 16, j);
                mma_half(sums[2 * j], weights, pair);
                mma_half(sums[2 * j + 1], weights, pair + 2);
            }
        }
    }

    DEVICE_MEMBER void finish_totals() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            total[r] += shuffle_xor(total[r], 1);
            total[r] += shuffle_xor(total[r], 2);
        }
    }
};
