// Attention of `flash.cuh` for the rows of a step of several, each with its own cells. The cells of all rows and heads are one list, of
// which each block takes a share: it goes on from one row's heads to the next. Four warps copy and four attend, so that copies run on
// while some heads end and others begin. What a block has of a row that other blocks have parts of, too, the last of them joins in
// their order. Cells are the rows of the units' products and heads the columns, since mostly eight heads or fewer share a key head.
#include "flash.cuh"

// Rows of a step, at most; cells that a share has at least.
#define MOST_ROWS 64
#define LEAST_SHARE 128

// What only these kernels need of the platform; the emulation has its own.
#ifndef PUNA_EMULATION
// Arrives at a barrier when the copies that the thread asked for by `copy_async` have ended.
DEVICE void barrier_arrive_after_copies(SharedPlace barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
#endif

// The cells of a row and what it sees of them. In the list a row has a tile at least, since fewer cells take as long; so rows without
// cells, which fill up a step, are not all one block's.
struct RowCells {
    int total, before, first_range, ranges, first;
    Sight sight;
    DEVICE_MEMBER int weight() const { return max(total, FLASH_TILE); }
};

// The next tile of a share: row, key head, which block of the heads that share it, cells of these from `at` to the share's end of
// them, and what is left of the share.
struct RowPlace {
    int row, kv_head, block, start, at, end, left;
    DEVICE_MEMBER void enter(const RowCells* rows, int from) {
        start = at = from;
        end = min(rows[row].weight(), at + left);
    }
    DEVICE_MEMBER void advance(const RowCells* rows, int kv_heads, int blocks) {
        int count = min(FLASH_TILE, end - at);
        at += count;
        left -= count;
        if (at < end || left == 0) return;
        if (++block == blocks) {
            block = 0;
            if (++kv_head == kv_heads) {
                kv_head = 0;
                row++;
            }
        }
        enter(rows, 0);
    }
};

// A stage of keys and values. Those of halves lie in rows that begin in other banks; those of bytes as `Flash` has them. Fragments are those of the other side of a product with their middle exchanged.
template <int D, template <int> class C> struct RowTile {
    typedef Flash<D, C, !C<D>::DIRECT> F;
    static constexpr bool DIRECT = C<D>::DIRECT;
    static constexpr int ROW = DIRECT ? 2 * D + 16 : F::Cache::ROW, BYTES = 2 * FLASH_TILE * ROW;
    static DEVICE_MEMBER void copy(unsigned char* tile, const unsigned char* keys, const unsigned char* values, const Cells& cells, int base, int end, int kv_heads, int kv_head) {
        if constexpr (DIRECT) {
            constexpr int UNITS = D / 8, ROWS = FLASH_THREADS / UNITS, HEAD = 2 * D;
            int unit = threadIdx.x % UNITS, first = threadIdx.x / UNITS;
            unsigned char* to = tile + first * ROW + unit * 16;
            long long within = kv_head * HEAD + unit * 16, step = (long long)ROWS * kv_heads * HEAD;
            if (cells.count == 1 && base + FLASH_TILE <= end) {
                // The usual case: neighbours.
                long long from = (long long)(cells.first + base + first) * kv_heads * HEAD + within;
#pragma unroll
                for (int i = 0; i < FLASH_TILE / ROWS; i++) {
                    copy_async(to + i * ROWS * ROW, keys + from, true);
                    copy_async(to + i * ROWS * ROW + BYTES / 2, values + from, true);
                    from += step;
                }
                return;
            }
            // Warps attend to sixteen cells: those past the end are the last one again.
            int count = min(FLASH_TILE, (end - base + 15) / 16 * 16);
#pragma unroll 1
            for (int row = first; row < count; row += ROWS) {
                long long from = (long long)cells.at(min(base + row, end - 1)) * kv_heads * HEAD + within;
                copy_async(tile + row * ROW + unit * 16, keys + from, true);
                copy_async(tile + row * ROW + unit * 16 + BYTES / 2, values + from, true);
            }
        } else {
            F::copy(tile, keys, values, cells, base, end, kv_heads, kv_head);
        }
    }
    static DEVICE_MEMBER void exchange(uint32_t a[4]) {
        uint32_t middle = a[1];
        a[1] = a[2];
        a[2] = middle;
    }
    static DEVICE_MEMBER void keys(uint32_t a[4], const unsigned char* tile, int first, int step) {
        int lane = threadIdx.x % 32;
        if constexpr (DIRECT) {
            load_matrices(a, tile + (first + lane % 16) * ROW + lane / 16 * 16 + step * 32);
        } else {
            F::load_keys(a, tile, first, step);
            exchange(a);
        }
    }
    static DEVICE_MEMBER void values(uint32_t a[4], const unsigned char* tile, int first, int both) {
        int lane = threadIdx.x % 32;
        if constexpr (DIRECT) {
            load_matrices_transposed(a, tile + (first + lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 16 + both * 32);
        } else {
            F::load_values(a, tile, first, both);
            exchange(a);
        }
    }
};

// What a warp knows of some eights of heads: element pairs of their queries, their sums, 16 elements at a time, and for the heads 2 t and
// 2 t + 1 the largest score and the sum of weights.
template <class T, int D, int EIGHTS> struct FewHeads {
    typedef typename T::F::Order Order;
    uint32_t query[D / 16][EIGHTS][2];
    float sums[D / 16][EIGHTS][4], most[EIGHTS][2], total[EIGHTS][2];

    // Queries are copied to shared memory; their rows there begin in other banks.
    static constexpr int QUERY_ROW = D + 8;
    DEVICE_MEMBER void start(const float* from, int used, float scale) {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            int head = e * 8 + g;
#pragma unroll
            for (int k = 0; k < D / 16; k++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float2 pair = make_float2(0.0f, 0.0f);
                    if (head < used) pair = *(const float2*)(from + head * QUERY_ROW + Order::query_at(k, t, i));
                    query[k][e][i] = pack_half(pair.x * scale, pair.y * scale);
                }
#pragma unroll
            for (int k = 0; k < D / 16; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[k][e][i] = 0.0f;
            most[e][0] = most[e][1] = -INFINITY;
            total[e][0] = total[e][1] = 0.0f;
        }
    }
    // Attends to 16 cells of a tile from `first`; scores are in units of ln 2.
    DEVICE_MEMBER void attend(const unsigned char* keys, const unsigned char* values, const int* tile_positions, int first, int limit, Sight sight, float soft_cap) {
        int lane = threadIdx.x % 32;
        float scores[EIGHTS][4], odd[EIGHTS][4];
#pragma unroll
        for (int e = 0; e < EIGHTS; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) scores[e][i] = odd[e][i] = 0.0f;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t a[4];
            T::keys(a, keys, first, k);
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) mma_half(k % 2 ? odd[e] : scores[e], a, query[k][e]);
        }
        // Cells g and g + 8.
        int at = first + lane / 4;
        bool seen[2] = {at < limit && sight.sees(tile_positions[at]), at + 8 < limit && sight.sees(tile_positions[at + 8])};
        uint32_t weights[EIGHTS][2];
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float score = scores[e][i] + odd[e][i];
                if (soft_cap > 0.0f) score = soft_cap * 1.4426950408889634f * tanhf(score * 0.6931471805599453f / soft_cap);
                scores[e][i] = seen[i / 2] ? score : -INFINITY;
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float best = fmaxf(scores[e][i], scores[e][2 + i]);
                best = fmaxf(best, shuffle_xor(best, 4));
                best = fmaxf(best, shuffle_xor(best, 8));
                best = fmaxf(fmaxf(best, shuffle_xor(best, 16)), most[e][i]);
                float factor = most[e][i] == -INFINITY ? 0.0f : fast_exp2(most[e][i] - best), base = best == -INFINITY ? 0.0f : best;
                most[e][i] = best;
                scores[e][i] = fast_exp2(scores[e][i] - base);
                scores[e][2 + i] = fast_exp2(scores[e][2 + i] - base);
                total[e][i] = total[e][i] * factor + scores[e][i] + scores[e][2 + i];
#pragma unroll
                for (int k = 0; k < D / 16; k++) {
                    sums[k][e][i] *= factor;
                    sums[k][e][2 + i] *= factor;
                }
            }
            weights[e][0] = transposed_matrix(pack_half(scores[e][0], scores[e][1]));
            weights[e][1] = transposed_matrix(pack_half(scores[e][2], scores[e][3]));
        }
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t a[4];
            T::values(a, values, first, k);
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) mma_half(sums[k][e], a, weights[e]);
        }
    }
    // What the warp has of `used` heads, and their largest scores and sums of weights.
    DEVICE_MEMBER void leave(float* results, float* stats, int used) {
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int e = 0; e < EIGHTS; e++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int head = e * 8 + 2 * t + i;
                float all = total[e][i] + shuffle_xor(total[e][i], 4);
                all += shuffle_xor(all, 8);
                all += shuffle_xor(all, 16);
                if (head >= used) continue;
#pragma unroll
                for (int k = 0; k < D / 16; k++)
#pragma unroll
                    for (int half = 0; half < 2; half++) results[head * D + Order::result_at(2 * k + half, g)] = sums[k][e][2 * half + i];
                if (g == 0) *(float2*)(stats + 2 * head) = make_float2(most[e][i], all);
            }
    }
};

template <int D, template <int> class C, int EIGHTS>
DEVICE void flash_rows(const float* queries, const unsigned char* keys, const unsigned char* values, float* partial, float* out,
                       const float* sinks, int* counters, const int* positions, const int* row_spans, const int* spans, const int* ranges,
                       const int* cell_positions, int rows, int heads, int kv_heads, int rule, int number, float scale, float soft_cap) {
    SHARED_BYTES(shared);
    typedef RowTile<D, C> T;
    typedef typename T::F F;
    typedef FewHeads<T, D, EIGHTS> Heads;
    constexpr int STAGES = D > 128 ? 2 : 3, ROW_HEADS = 8 * EIGHTS;
    int* tile_positions = (int*)(shared + STAGES * T::BYTES);
    float* tile_queries = (float*)(tile_positions + STAGES * FLASH_TILE);
    __shared__ int4 weights[MOST_ROWS / 4];
    __shared__ RowCells infos[MOST_ROWS];
    __shared__ int first_row, is_last[2];
    let_next_start();
    // What the host wrote is there.
    int group = heads / kv_heads, blocks = (group + ROW_HEADS - 1) / ROW_HEADS, per_row = kv_heads * blocks, taken = min(group, ROW_HEADS);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    SharedPlace full_place = shared_place(full), empty_place = shared_place(empty);
    int mine = threadIdx.x;
    if (mine == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_start(full_place + 8 * i, FLASH_THREADS);
            barrier_start(empty_place + 8 * i, FLASH_THREADS / 32);
        }
        barrier_fence();
    }
    float* stats = tile_queries + STAGES * taken * Heads::QUERY_ROW;
    // Results of the warps lie in the stage that they come from, if it has room; the host knows it, too.
    bool apart = 16 * taken * D > T::BYTES;
    if (mine < MOST_ROWS) {
        RowCells info = {0, 0, 0, 0, 0, {0, 0}};
        if (mine < rows) {
            int span = row_spans[mine];
            Cells cells = cells_of(spans + max(span, 0) * SPAN, ranges);
            info = {span < 0 ? 0 : cells.total, 0, (int)(cells.ranges - ranges), cells.count, cells.first, sight(rule, number, positions[mine])};
        }
        ((int*)weights)[mine] = mine < rows ? info.weight() : 0;
        infos[mine] = info;
    }
    __syncthreads();
    int before = 0, whole = 0, most = 1;
#pragma unroll
    for (int i = 0; i < MOST_ROWS / 4; i++) {
        int4 four = weights[i];
        int each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            before += 4 * i + k < mine ? each[k] : 0;
            whole += each[k];
            most = max(most, each[k]);
        }
    }
    long long all = (long long)whole * per_row, share = (all + gridDim.x - 1) / gridDim.x;
    share = ((share > LEAST_SHARE ? share : LEAST_SHARE) + 15) / 16 * 16;
    // Where a block's share is about the cells of some heads it is just these, so that nothing has to be joined.
    int items = rows * per_row, count = (int)((share + most - 1) / most);
    bool joined = (long long)count * most * 10 > share * 11 || (long long)count * gridDim.x < items;
    if (mine < rows) infos[mine].before = before;
    __syncthreads();
    auto before_item = [&](int item) { return item >= items ? all : (long long)infos[item / per_row].before * per_row + (long long)(item % per_row) * infos[item / per_row].weight(); };
    long long first = joined ? share * blockIdx.x : before_item(min(items, count * (int)blockIdx.x));
    long long last = joined ? (first + share < all ? first + share : all) : before_item(min(items, count * (int)(blockIdx.x + 1)));
    if (first >= all) return;
    if (mine < rows) {
        long long from = (long long)before * per_row;
        if (from <= first && first < from + (long long)infos[mine].weight() * per_row) first_row = mine;
    }
    __syncthreads();
    RowPlace place;
    place.row = first_row;
    place.left = (int)(last - first);
    {
        int offset = (int)(first - (long long)infos[first_row].before * per_row), weight = infos[first_row].weight();
        place.kv_head = offset / weight / blocks;
        place.block = offset / weight % blocks;
        place.enter(infos, offset % weight);
    }
    auto cells_of_row = [&](const RowCells& info) {
        Cells cells;
        cells.ranges = ranges + info.first_range;
        cells.count = info.ranges;
        cells.total = info.total;
        cells.first = info.first;
        return cells;
    };
    wait_for_previous();
    // The first head of a block of them, and how many it has.
    auto first_of = [&](const RowPlace& at) { return at.kv_head * group + at.block * ROW_HEADS; };
    auto count_of = [&](const RowPlace& at) { return min(ROW_HEADS, group - at.block * ROW_HEADS); };
    int stage = 0, round = 0;
    auto next_stage = [&] {
        if (++stage == STAGES) {
            stage = 0;
            round ^= 1;
        }
    };
    if (mine < FLASH_THREADS) {
        // Copying; a stage that was filled before is waited for.
        for (int number = 0; place.left > 0; place.advance(infos, kv_heads, blocks), number++, next_stage()) {
            if (number >= STAGES) barrier_wait(empty_place + 8 * stage, round ^ 1);
            const RowCells& info = infos[place.row];
            Cells cells = cells_of_row(info);
            int end = min(place.end, info.total);
            T::copy(shared + stage * T::BYTES, keys, values, cells, place.at, end, kv_heads, place.kv_head);
            F::copy_positions(tile_positions + stage * FLASH_TILE, cell_positions, cells, place.at, end);
            if (place.at == place.start) {
                const float* from = queries + ((long long)place.row * heads + first_of(place)) * D;
                float* row = tile_queries + stage * taken * Heads::QUERY_ROW;
                for (int i = mine; i < count_of(place) * (D / 4); i += FLASH_THREADS) copy_async(row + i / (D / 4) * Heads::QUERY_ROW + i % (D / 4) * 4, from + i * 4, true);
            }
            barrier_arrive_after_copies(full_place + 8 * stage);
        }
        copy_commit();
        copy_wait<0>();
        return;
    }
    int warp = mine / 32 - FLASH_THREADS / 32, lane = mine % 32;
    float* part_stats = partial + (long long)gridDim.x * 2 * taken * D;
    Heads attention;
    // A block has at most two parts of what others have parts of, too: the end of one row's heads, and then the start of another's.
    int part_rows[2] = {-1, -1}, part_kv_heads[2] = {0, 0}, part_blocks[2] = {0, 0};
    auto number_of = [&](long long block, bool starts, int h) { return (block * 2 + (starts ? 1 : 0)) * taken + h; };
    auto leave_stage = [&] {
        __syncwarp();
        if (lane == 0) barrier_arrive(empty_place + 8 * stage);
        next_stage();
    };
    for (; place.left > 0; place.advance(infos, kv_heads, blocks)) {
        const RowCells& info = infos[place.row];
        barrier_wait(full_place + 8 * stage, round);
        int first_head = first_of(place), used = count_of(place);
        if (place.at == place.start) attention.start(tile_queries + stage * taken * Heads::QUERY_ROW, used, scale * 1.4426950408889634f);
        int limit = min(place.end, info.total) - place.at;
        if (warp * 16 < limit) {
            const unsigned char* tile = shared + stage * T::BYTES + (T::DIRECT ? 0 : F::offset(kv_heads, place.kv_head));
            attention.attend(tile, tile + T::BYTES / 2, tile_positions + stage * FLASH_TILE, warp * 16, limit, info.sight, soft_cap);
        }
        if (place.at + FLASH_TILE < place.end) {
            leave_stage();
            continue;
        }
        // The last tile of these heads: the warps' results in shared memory, then a warp for each head, whose lanes take elements.
        float* results = apart ? stats + 8 * taken : (float*)(shared + stage * T::BYTES);
        sync_some(FLASH_THREADS);
        attention.leave(results + warp * taken * D, stats + warp * taken * 2, used);
        sync_some(FLASH_THREADS);
        bool alone = place.start == 0 && place.end == info.weight();
        if (!alone) {
            int side = place.start > 0 ? 0 : 1;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (i != side) continue;
                part_rows[i] = place.row;
                part_kv_heads[i] = place.kv_head;
                part_blocks[i] = place.block;
            }
        }
        for (int h = warp; h < used; h += 4) {
            float best = -INFINITY, total = 0.0f, factors[4];
            for (int w = 0; w < 4; w++) best = fmaxf(best, stats[(w * taken + h) * 2]);
            for (int w = 0; w < 4; w++) {
                float most = stats[(w * taken + h) * 2];
                factors[w] = most == -INFINITY ? 0.0f : exp2f(most - best);
                total += factors[w] * stats[(w * taken + h) * 2 + 1];
            }
            float* to = out + ((long long)place.row * heads + first_head + h) * D;
            float inverse = 1.0f;
            if (alone) {
                float sink = sinks ? sinks[first_head + h] * 1.4426950408889634f : -INFINITY, top = fmaxf(best, sink);
                float rest = best == -INFINITY ? 0.0f : exp2f(best - top);
                inverse = best == -INFINITY ? 0.0f : rest / (total * rest + (sinks ? exp2f(sink - top) : 0.0f));
            } else {
                long long own = number_of(blockIdx.x, place.start == 0, h);
                to = partial + own * D;
                if (lane == 0) *(float2*)(part_stats + own * 2) = make_float2(best, total);
            }
#pragma unroll
            for (int d = lane; d < D; d += 32) {
                float sum = 0.0f;
                for (int w = 0; w < 4; w++) sum += factors[w] * results[(w * taken + h) * D + d];
                to[d] = sum * inverse;
            }
        }
        leave_stage();
    }
    if (part_rows[0] < 0 && part_rows[1] < 0) return;
    __threadfence();
    sync_some(FLASH_THREADS);
    long long first_blocks[2];
    int parts[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        if (part_rows[side] < 0) continue;
        const RowCells& info = infos[part_rows[side]];
        long long begins = (long long)info.before * per_row + (long long)(part_kv_heads[side] * blocks + part_blocks[side]) * info.weight();
        first_blocks[side] = begins / share;
        parts[side] = (int)((begins + info.weight() - 1) / share - first_blocks[side]) + 1;
        if (warp == side && lane == 0) {
            int* counter = counters + part_rows[side] * per_row + part_kv_heads[side] * blocks + part_blocks[side];
            is_last[side] = atomicAdd(counter, 1) == parts[side] - 1;
            // Nobody else comes.
            if (is_last[side]) *counter = 0;
        }
    }
    sync_some(FLASH_THREADS);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        if (part_rows[side] < 0 || !is_last[side]) continue;
        __threadfence();
        place.row = part_rows[side];
        place.kv_head = part_kv_heads[side];
        place.block = part_blocks[side];
        int first_head = first_of(place), used = count_of(place);
        for (int h = warp; h < used; h += 4) {
            auto found = [&](int i) { return *(const float2*)(part_stats + number_of(first_blocks[side] + i, i == 0, h) * 2); };
            float best = -INFINITY, total = 0.0f;
            for (int i = lane; i < parts[side]; i += 32) best = fmaxf(best, found(i).x);
            best = warp_max(best);
            float sink = sinks ? sinks[first_head + h] * 1.4426950408889634f : -INFINITY, top = fmaxf(best, sink);
            float sums[D / 64][2];
#pragma unroll
            for (int k = 0; k < D / 64; k++) sums[k][0] = sums[k][1] = 0.0f;
#pragma unroll 4
            for (int i = 0; i < parts[side]; i++) {
                float2 part = found(i);
                float weight = part.x == -INFINITY ? 0.0f : exp2f(part.x - top);
                total += weight * part.y;
                const float* from = partial + number_of(first_blocks[side] + i, i == 0, h) * D + lane * 2;
#pragma unroll
                for (int k = 0; k < D / 64; k++) {
                    float2 v = *(const float2*)(from + k * 64);
                    sums[k][0] += weight * v.x;
                    sums[k][1] += weight * v.y;
                }
            }
            total += sinks ? exp2f(sink - top) : 0.0f;
            float inverse = best == -INFINITY ? 0.0f : 1.0f / total;
            float* to = out + ((long long)place.row * heads + first_head + h) * D + lane * 2;
#pragma unroll
            for (int k = 0; k < D / 64; k++) *(float2*)(to + k * 64) = make_float2(sums[k][0] * inverse, sums[k][1] * inverse);
        }
    }
}

#define FLASH_ROWS(NAME, D, CELLS, EIGHTS, BLOCKS)                                                                               \
    KERNEL BOUNDED(2 * FLASH_THREADS, BLOCKS) flash_rows_##NAME(                                                                 \
        const float* queries, const unsigned char* keys, const unsigned char* values, float* partial, float* result,             \
        const float* sinks, int* counters, const int* positions, const int* row_spans, const int* spans, const int* ranges,      \
        const int* cell_positions, int rows, int heads, int kv_heads, int rule, int number, float scale, float soft_cap) {       \
        GROUP_BODY((flash_rows<D, CELLS, EIGHTS>(queries, keys, values, partial, result, sinks, counters, positions, row_spans,  \
                                                 spans, ranges, cell_positions, rows, heads, kv_heads, rule, number, scale,      \
                                                 soft_cap)))                                                                     \
    }                                                                                                                            \
    REGISTER(flash_rows_##NAME)
// For up to 8 heads that share a key head, and for up to 16 of more; the last number is that of blocks that a processor runs, as the host
// counts on.
FLASH_ROWS(8_64, 64, HalfCells, 1, 2)
FLASH_ROWS(8_128, 128, HalfCells, 1, 2)
FLASH_ROWS(8_256, 256, HalfCells, 1, 1)
FLASH_ROWS(8_bytes_64, 64, ByteCells, 1, 2)
FLASH_ROWS(8_bytes_128, 128, ByteCells, 1, 2)
FLASH_ROWS(8_bytes_256, 256, ByteCells, 1, 1)
FLASH_ROWS(16_64, 64, HalfCells, 2, 1)
FLASH_ROWS(16_128, 128, HalfCells, 2, 1)
FLASH_ROWS(16_256, 256, HalfCells, 2, 1)
FLASH_ROWS(16_bytes_64, 64, ByteCells, 2, 1)
FLASH_ROWS(16_bytes_128, 128, ByteCells, 2, 1)
FLASH_ROWS(16_bytes_256, 256, ByteCells, 2, 1)
