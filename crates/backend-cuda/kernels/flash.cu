// Attention on the matrix units over a cache of F16 or Q8_0, for heads of 64, 128 or 256 elements: tiles of 64 cells, the softmax kept
// running. `flash_prompt`: a block takes 64 rows of one key head (tokens times the query heads that share it), 16
// for each warp. `flash_decode`: a block takes one token's heads and a part of the cells, its warps share each tile.
#include "cache.cuh"

#define FLASH_TILE 64
#define FLASH_THREADS 128
#define FLASH_MOST_SPLITS 64
// Cells that one block attends to by itself, and those of a part if there are several.
#define FLASH_ALONE 256
#define FLASH_LEAST 128

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

template <int D, template <int> class C>
DEVICE void flash_prompt(const float* queries, const unsigned char* keys, const unsigned char* values, float* out, const float* sinks,
                         const int* positions, const int* spans, const int* counts, const int* ranges, const int* cell_positions,
                         int heads, int kv_heads, int group, int rule, int number, float scale, float soft_cap) {
    SHARED_BYTES(shared);
    typedef Flash<D, C, false> F;
    // Two stages, and halves if the cache has none.
    uint16_t* halves = (uint16_t*)(shared + 2 * F::STAGE_BYTES);
    int* tile_positions = (int*)(F::Cache::DIRECT ? halves : halves + 2 * F::TILE);
    wait_for_previous();
    // Which tokens: tiles of each span follow each other, the last of a span first since it sees most.
    int blocks = (heads / kv_heads + group - 1) / group, kv_head = blockIdx.y / blocks, first_head = blockIdx.y % blocks * group;
    int used = min(group, heads / kv_heads - first_head), per_tile = 64 / group, tile = blockIdx.x, token = -1, last = 0;
    const int* span = spans;
    for (int s = 0; s < counts[0]; s++, span += SPAN) {
        int tiles_here = (span[1] - span[0] + per_tile - 1) / per_tile;
        if (tile < tiles_here) {
            token = span[0] + (tiles_here - 1 - tile) * per_tile;
            last = min(span[1], token + per_tile);
            break;
        }
        tile -= tiles_here;
    }
    if (token < 0) return;
    Cells cells = cells_of(span, ranges);
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    const float* from[2];
    int at[2], row_heads[2];
    Sight sights[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = warp * 16 + g + 8 * r, h = row % group;
        bool valid = h < used && token + row / group < last && row / group < per_tile;
        at[r] = valid ? token + row / group : -1;
        row_heads[r] = kv_head * (heads / kv_heads) + first_head + h;
        from[r] = valid ? queries + ((long long)at[r] * heads + row_heads[r]) * D : nullptr;
        sights[r] = valid ? sight(rule, number, positions[at[r]]) : Sight{2147483647, LEAST_POSITION};
    }
    F flash;
    flash.start(from[0], from[1], scale * 1.4426950408889634f);
    // Cells in ascending order of position end at the last token's own; then those that follow are not looked at.
    int end = cells.total, begin = 0;
    if (span[5] == 1 && rule != 3) {
        int low = 0, high = end, most = positions[last - 1];
        while (low < high) {
            int middle = (low + high) / 2;
            if (cell_positions[cells.at(middle)] <= most) low = middle + 1;
            else high = middle;
        }
        end = low;
        int least = sight(rule, number, positions[token]).low;
        low = 0;
        high = end;
        while (low < high) {
            int middle = (low + high) / 2;
            if (cell_positions[cells.at(middle)] < least) low = middle + 1;
            else high = middle;
        }
        begin = low / FLASH_TILE * FLASH_TILE;
    }
    auto load = [&](int base) {
        int stage = base / FLASH_TILE % 2;
        F::copy(shared + stage * F::STAGE_BYTES, keys, values, cells, base, end, kv_heads, kv_head);
        F::copy_positions(tile_positions + stage * FLASH_TILE, cell_positions, cells, base, end);
        copy_commit();
    };
    // What all rows of the block see, if cells are in order.
    bool sorted = span[5] == 1;
    int most_low = sight(rule, number, positions[last - 1]).low, least_high = sight(rule, number, positions[token]).high;
    if (begin < end) load(begin);
    for (int base = begin; base < end; base += FLASH_TILE) {
        int stage = base / FLASH_TILE % 2;
        copy_wait<0>();
        __syncthreads();
        if (base + FLASH_TILE < end) load(base + FLASH_TILE);
        const unsigned char* tile = shared + stage * F::STAGE_BYTES;
        if (!F::Cache::DIRECT) {
            F::convert(halves, tile, F::offset(kv_heads, kv_head));
            tile = (const unsigned char*)halves;
            __syncthreads();
        }
        const int* here = tile_positions + stage * FLASH_TILE;
        bool all = sorted && base + FLASH_TILE <= end && here[0] >= most_low && here[FLASH_TILE - 1] <= least_high;
        flash.template attend<FLASH_TILE>(tile, tile + 2 * F::TILE, here, 0, end - base, sights, soft_cap, all);
    }
    flash.finish_totals();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (at[r] < 0) continue;
        float total = flash.total[r], inverse;
        float most = flash.most[r], factor = 1.0f;
        if (sinks && most != -INFINITY) {
            float sink = sinks[row_heads[r]] * 1.4426950408889634f, top = fmaxf(most, sink);
            factor = exp2f(most - top);
            total = total * factor + exp2f(sink - top);
        }
        inverse = total > 0.0f ? factor / total : 0.0f;
        float* to = out + ((long long)at[r] * heads + row_heads[r]) * D + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < D / 8; j++) *(float2*)(to + j * 8) = make_float2(flash.sums[j][2 * r] * inverse, flash.sums[j][2 * r + 1] * inverse);
    }
}

// One pair of elements of heads, turned by a position.
struct Turn {
    int at[2];
    float sine, cosine;
    DEVICE_MEMBER void find(int pair, int position, double frequency, int dimensions, int split, float magnitude) {
        at[0] = 2 * pair;
        at[1] = at[0] + 1;
        sine = 0.0f;
        cosine = 1.0f;
        if (pair >= dimensions / 2) return;
        if (split) {
            at[0] = pair;
            at[1] = pair + dimensions / 2;
        }
        double turns = position * frequency * 0.15915494309189535;
        sincospif((float)(2.0 * (turns - rint(turns))), &sine, &cosine);
        sine *= magnitude;
        cosine *= magnitude;
    }
    DEVICE_MEMBER float2 pair(const float* head) const { return make_float2(head[at[0]], head[at[1]]); }
    DEVICE_MEMBER float first(float2 pair) const { return pair.x * cosine - pair.y * sine; }
    DEVICE_MEMBER float second(float2 pair) const { return pair.x * sine + pair.y * cosine; }
    DEVICE_MEMBER void store(float* head, float2 pair) const {
        head[at[0]] = first(pair);
        head[at[1]] = second(pair);
    }
    DEVICE_MEMBER void store(uint16_t* head, float2 pair) const {
        head[at[0]] = float_to_half(first(pair));
        head[at[1]] = float_to_half(second(pair));
    }
};

// Heads beyond 16 that share a key head are other blocks. The last block of a row's heads to end joins the parts in their
// order. With `new_keys` there is one row, and queries are not turned yet: each block turns its own, and those whose part has
// the row's own cell turn and store keys and values first.
template <int D, template <int> class C>
DEVICE void flash_decode(const float* queries, const unsigned char* keys, const unsigned char* values, float* partial, float* out,
                         const float* sinks, int* counters, const int* positions, const int* row_spans, const int* spans, const int* ranges, const int* cell_positions,
                         int heads, int kv_heads, int rule, int number, float scale, float soft_cap, int splits, const float* new_keys,
                         const float* new_values, const int* write_cells, const int* turned_by, const double* frequencies, int dimensions,
                         int split, float magnitude) {
    SHARED_BYTES(shared);
    typedef Flash<D, C, !C<D>::DIRECT> F;
    constexpr int STAGES = D > 128 ? 2 : 3;
    int* tile_positions = (int*)(shared + STAGES * F::STAGE_BYTES);
    let_next_start();
    // What the host wrote is there; the cells of earlier steps, too. All that does not depend on other numbers is asked for at once.
    int turned_pair = threadIdx.x % (D / 2), own = -1, turned_position = 0;
    double frequency = 0.0;
    if (new_keys) {
        own = write_cells[0];
        turned_position = turned_by[0];
        if (turned_pair < dimensions / 2) frequency = frequencies[turned_pair];
    }
    if (!new_keys) wait_for_previous();
    int group = heads / kv_heads, blocks = (group + 15) / 16, row = blockIdx.x, kv_head = blockIdx.y / blocks;
    int first_head = kv_head * group + blockIdx.y % blocks * 16, used = min(16, group - (int)(blockIdx.y % blocks) * 16);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    int span = row_spans[row];
    Sight row_sight = sight(rule, number, positions[row]), sights[2] = {row_sight, row_sight};
    Cells cells = cells_of(spans + max(span, 0) * SPAN, ranges);
    int all = span < 0 ? 0 : cells.total;
    // No more parts than are worth being joined; the other blocks have nothing to do.
    int part = all <= FLASH_ALONE ? max(all, 1) : (max((all + splits - 1) / splits, FLASH_LEAST) + FLASH_TILE - 1) / FLASH_TILE * FLASH_TILE;
    int parts = max(1, (all + part - 1) / part);
    if ((int)blockIdx.z >= parts) return;
    int begin = min(all, (int)blockIdx.z * part), end = min(all, begin + part);
    const float* from = queries + ((long long)row * heads + first_head) * D;
    auto load = [&](int index) {
        int base = begin + index * FLASH_TILE, stage = index % STAGES;
        if (base < end) {
            F::copy(shared + stage * F::STAGE_BYTES, keys, values, cells, base, end, kv_heads, kv_head);
            F::copy_positions(tile_positions + stage * FLASH_TILE, cell_positions, cells, base, end);
        }
        copy_commit();
    };
    // Whether this part has the row's own cell, which must be there before it is read.
    int own_index = own < 0 ? -1 : cells.index_of(own);
    bool stores = own >= 0 && (own_index < 0 ? blockIdx.z == 0 : own_index >= begin && own_index < end);
    // The tile with the row's own cell, which is put there when its copy has ended.
    int own_tile = stores && own_index >= 0 ? (own_index - begin) / FLASH_TILE : -1;
    __shared__ uint4 own_row[2][D / 8];
    unsigned char* own_rows[2] = {(unsigned char*)own_row[0], (unsigned char*)own_row[1]};
    for (int i = 0; i < STAGES - 1; i++) load(i);
    if (new_keys) {
        // Turned queries are where the last of the stages comes later. A thread has the same pair of every head.
        float* turned = (float*)(shared + (STAGES - 1) * F::STAGE_BYTES);
        float* turned_keys = turned + 16 * D;
        Turn turn;
        turn.find(turned_pair, turned_position, frequency, dimensions, split, magnitude);
        wait_for_previous();
        // All are asked for before any is used.
        constexpr int BATCH = 4, HEADS = FLASH_THREADS / (D / 2);
        bool turns_key = stores && threadIdx.x < D / 2;
        float2 key, value;
        if (turns_key) {
            key = turn.pair(new_keys + kv_head * D);
            value = *(const float2*)(new_values + kv_head * D + 2 * threadIdx.x);
        }
        for (int first = threadIdx.x / (D / 2); first < used; first += BATCH * HEADS) {
            float2 query[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (first + i * HEADS < used) query[i] = turn.pair(from + (first + i * HEADS) * D);
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (first + i * HEADS < used) turn.store(turned + (first + i * HEADS) * D, query[i]);
        }
        if (turns_key) {
            if (F::Cache::DIRECT) {
                turn.store((uint16_t*)own_rows[0], key);
                ((uint32_t*)own_rows[1])[threadIdx.x] = pack_half(value.x, value.y);
            } else {
                turn.store(turned_keys, key);
            }
        }
        __syncthreads();
        if (stores && !F::Cache::DIRECT) {
            for (int block = warp; block < D / 32; block += 4) {
                store_block(own_rows[0], CACHE_Q8_0, block, turned_keys[block * 32 + lane]);
                store_block(own_rows[1], CACHE_Q8_0, block, new_values[kv_head * D + block * 32 + lane]);
            }
            __syncthreads();
        }
        if (stores) {
            long long head = ((long long)own * kv_heads + kv_head) * F::Cache::HEAD;
            for (int i = threadIdx.x; i < F::Cache::HEAD / 2; i += FLASH_THREADS) {
                ((uint16_t*)(keys + head))[i] = ((const uint16_t*)own_rows[0])[i];
                ((uint16_t*)(values + head))[i] = ((const uint16_t*)own_rows[1])[i];
            }
        }
        from = turned;
    }
    F flash;
    flash.start(g < used ? from + g * D : nullptr, g + 8 < used ? from + (g + 8) * D : nullptr, scale * 1.4426950408889634f);
    int before = F::offset(kv_heads, kv_head);
    auto attend = [&](int stage, int base) {
        const unsigned char* tile = shared + stage * F::STAGE_BYTES + before;
        flash.template attend<16>(tile, tile + F::STAGE_BYTES / 2, tile_positions + stage * FLASH_TILE, warp * 16, end - base, sights, soft_cap, false);
    };
    for (int index = 0; begin + index * FLASH_TILE < end; index++) {
        int base = begin + index * FLASH_TILE, stage = index % STAGES;
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (index == own_tile) {
            F::replace(shared + stage * F::STAGE_BYTES, before, own_index - base, own_rows[0], own_rows[1]);
            __syncthreads();
        }
        load(index + STAGES - 1);
        if (base + warp * 16 < end)
            attend(stage, base);
    }
    flash.finish_totals();
    copy_wait<0>();
    __syncthreads();
    // The warps' results in shared memory, then each thread joins its elements.
    float* part_stats = partial + (long long)gridDim.x * heads * splits * D;
    float* results = (float*)shared;
    float* stats = results + 4 * 16 * D;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int h = g + 8 * r;
        if (h >= used) continue;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) results[(warp * 16 + h) * D + F::Order::result_at(j, lane % 4 * 2 + i)] = flash.sums[j][2 * r + i];
        if (lane % 4 == 0) {
            stats[(warp * 16 + h) * 2] = flash.most[r];
            stats[(warp * 16 + h) * 2 + 1] = flash.total[r];
        }
    }
    __syncthreads();
    // A warp for each head, whose lanes take elements.
    for (int h = warp; h < used; h += 4) {
        float best = -INFINITY, total = 0.0f, factors[4];
        for (int w = 0; w < 4; w++) best = fmaxf(best, stats[(w * 16 + h) * 2]);
        for (int w = 0; w < 4; w++) {
            float most = stats[(w * 16 + h) * 2];
            factors[w] = most == -INFINITY ? 0.0f : exp2f(most - best);
            total += factors[w] * stats[(w * 16 + h) * 2 + 1];
        }
        float* to = out + ((long long)row * heads + first_head + h) * D;
        float inverse = 1.0f;
        if (parts == 1) {
            // There is nothing to join.
            float sink = sinks ? sinks[first_head + h] * 1.4426950408889634f : -INFINITY, top = fmaxf(best, sink);
            float rest = best == -INFINITY ? 0.0f : exp2f(best - top);
            inverse = best == -INFINITY ? 0.0f : rest / (total * rest + (sinks ? exp2f(sink - top) : 0.0f));
        } else {
            long long number = ((long long)row * heads + first_head + h) * splits + blockIdx.z;
            to = partial + number * D;
            if (lane == 0) *(float2*)(part_stats + number * 2) = make_float2(best, total);
        }
#pragma unroll
        for (int d = lane; d < D; d += 32) {
            float sum = 0.0f;
            for (int w = 0; w < 4; w++) sum += factors[w] * results[(w * 16 + h) * D + d];
            to[d] = sum * inverse;
        }
    }
    if (parts == 1) return;
    __shared__ int is_last;
    __threadfence();
    __syncthreads();
    int counter = row * gridDim.y + blockIdx.y;
    if (threadIdx.x == 0) is_last = atomicAdd(counters + counter, 1) == parts - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) counters[counter] = 0;
    // A warp for each head; lanes first look at the parts, then take elements.
    float* weights = results + warp * FLASH_MOST_SPLITS;
    for (int h = warp; h < used; h += 4) {
        long long number = ((long long)row * heads + first_head + h) * splits;
        const float2* found = (const float2*)(part_stats + number * 2);
        const float* from = partial + number * D + lane * 2;
        float best = -INFINITY, total = 0.0f;
        for (int i = lane; i < parts; i += 32) best = fmaxf(best, found[i].x);
        best = warp_max(best);
        float sink = sinks ? sinks[first_head + h] * 1.4426950408889634f : -INFINITY, top = fmaxf(best, sink);
        for (int i = lane; i < parts; i += 32) {
            float2 stats = found[i];
            float weight = stats.x == -INFINITY ? 0.0f : exp2f(stats.x - top);
            weights[i] = weight;
            total += weight * stats.y;
        }
        total = warp_sum(total) + (sinks ? exp2f(sink - top) : 0.0f);
        __syncwarp();
        float inverse = best == -INFINITY ? 0.0f : 1.0f / total;
        float sums[D / 64][2];
#pragma unroll
        for (int k = 0; k < D / 64; k++) sums[k][0] = sums[k][1] = 0.0f;
#pragma unroll 8
        for (int i = 0; i < parts; i++) {
            float weight = weights[i];
#pragma unroll
            for (int k = 0; k < D / 64; k++) {
                float2 v = *(const float2*)(from + (long long)i * D + k * 64);
                sums[k][0] += weight * v.x;
                sums[k][1] += weight * v.y;
            }
        }
#pragma unroll
        for (int k = 0; k < D / 64; k++)
            *(float2*)(out + ((long long)row * heads + first_head + h) * D + k * 64 + lane * 2) = make_float2(sums[k][0] * inverse, sums[k][1] * inverse);
        __syncwarp();
    }
}

#define FLASH(NAME, D, CELLS)                                                                                                              \
    KERNEL BOUNDED(FLASH_THREADS, 1) flash_prompt_##NAME(                                                                        \
        const float* queries, const unsigned char* keys, const unsigned char* values, float* out, const float* sinks,         \
        const int* positions, const int* spans, const int* counts, const int* ranges, const int* cell_positions, int heads,   \
        int kv_heads, int group, int rule, int number, float scale, float soft_cap) {                                         \
        flash_prompt<D, CELLS>(queries, keys, values, out, sinks, positions, spans, counts, ranges, cell_positions, heads, kv_heads, \
                        group, rule, number, scale, soft_cap);                                                                \
    }                                                                                                                         \
    REGISTER(flash_prompt_##NAME)                                                                                                \
    KERNEL BOUNDED(FLASH_THREADS, 1) flash_decode_##NAME(                                                                        \
        const float* queries, const unsigned char* keys, const unsigned char* values, float* partial, float* result,           \
        const float* sinks, int* counters, const int* positions,                                                              \
        const int* row_spans, const int* spans, const int* ranges, const int* cell_positions, int heads, int kv_heads,        \
        int rule, int number, float scale, float soft_cap, int splits, const float* new_keys, const float* new_values,         \
        const int* write_cells, const int* turned_by, const double* frequencies, int dimensions, int split, float magnitude) { \
        flash_decode<D, CELLS>(queries, keys, values, partial, result, sinks, counters, positions, row_spans, spans, ranges, cell_positions, heads, kv_heads, \
                        rule, number, scale, soft_cap, splits, new_keys, new_values, write_cells, turned_by, frequencies,     \
                        dimensions, split, magnitude);                                                                        \
    }                                                                                                                         \
    REGISTER(flash_decode_##NAME)
FLASH(64, 64, HalfCells)
FLASH(128, 128, HalfCells)
FLASH(256, 256, HalfCells)
FLASH(bytes_64, 64, ByteCells)
FLASH(bytes_128, 128, ByteCells)
FLASH(bytes_256, 256, ByteCells)
