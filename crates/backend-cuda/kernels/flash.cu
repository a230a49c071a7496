// Attention of `flash.cuh`. `flash_prompt`: a block takes 64 rows of one key head (tokens times the query heads that share it), 16
// for each warp. `flash_decode`: a block takes one token's heads and a part of the cells, its warps share each tile.
#include "flash.cuh"

#define FLASH_MOST_SPLITS 64
// Cells that one block attends to by itself, and those of a part if there are several.
#define FLASH_ALONE 256
#define FLASH_LEAST 128

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
