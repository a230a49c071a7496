// Attention over a cache of any format and heads of any width, and what goes before and after it.
#include "cache.cuh"

// Stores rows of keys or values in cells; rows without a cell have -1. A warp for each head of each row.
KERNEL store_cells(const float* x, unsigned char* cache, const int* write_cells, int rows, int heads, int width, int format, int head_bytes) {
    wait_for_previous();
    int index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (index >= rows * heads) return;
    int cell = write_cells[index / heads];
    if (cell < 0) return;
    unsigned char* row = cache + ((long long)cell * heads + index % heads) * head_bytes;
    const float* from = x + (long long)index * width;
    if (format <= 1 || format == CACHE_BF16)
        for (int i = lane; i < width; i += 32) store_element(row, format, i, from[i]);
    else
        for (int block = 0; block < width / 32; block++) store_block(row, format, block, from[block * 32 + lane]);
}
REGISTER(store_cells)

// Turns keys in cells by a change of position: pairs of (cell, change). A warp for each head of each cell; the row is
// decoded to shared memory, turned and encoded again.
KERNEL shift_cells(unsigned char* cache, const int* moves, const double* frequencies, int count, int heads, int width, int format,
                   int head_bytes, int offset, int dimensions, int split) {
    SHARED_BYTES(shared);
    wait_for_previous();
    int index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (index >= count * heads) return;
    float* key = (float*)shared + threadIdx.x / 32 * width;
    unsigned char* row = cache + ((long long)moves[index / heads * 2] * heads + index % heads) * head_bytes;
    int change = moves[index / heads * 2 + 1];
    for (int i = lane; i < width; i += 32) key[i] = cache_element(row, format, i);
    __syncwarp();
    int pairs = dimensions / 2;
    for (int pair = lane; pair < pairs; pair += 32) {
        double turns = change * frequencies[pair] * 0.15915494309189535;
        float sine, cosine;
        sincospif((float)(2.0 * (turns - rint(turns))), &sine, &cosine);
        int first = offset + (split ? pair : 2 * pair), second = split ? first + pairs : first + 1;
        float p = key[first], q = key[second];
        key[first] = p * cosine - q * sine;
        key[second] = p * sine + q * cosine;
    }
    __syncwarp();
    if (format <= 1 || format == CACHE_BF16)
        for (int i = lane; i < width; i += 32) store_element(row, format, i, key[i]);
    else
        for (int block = 0; block < width / 32; block++) store_block(row, format, block, key[block * 32 + lane]);
}
REGISTER(shift_cells)

#define ATTENTION_THREADS 128
#define ATTENTION_TILE 64
#define ATTENTION_HEADS 8

// Every format, width and rule. A block attends with up to ATTENTION_HEADS query heads of a row that share a key head, to
// one part of the row's cells (third grid axis). Each part leaves its values, not yet divided, its largest score
// and its sum of weights in `partial`.
KERNEL attention_any(const float* queries, const unsigned char* keys, const unsigned char* values, float* partial,
                     const int* positions, const int* row_spans, const int* spans, const int* ranges, const int* cell_positions,
                     int heads, int kv_heads, int key_dim, int value_dim, int key_format, int value_format, int key_bytes,
                     int value_bytes, int rule, int number, float scale, float soft_cap, float alibi, int splits) {
    SHARED_BYTES(shared);
    wait_for_previous();
    int group = heads / kv_heads, blocks = (group + ATTENTION_HEADS - 1) / ATTENTION_HEADS;
    int row = blockIdx.x, kv_head = blockIdx.y / blocks, first = blockIdx.y % blocks * ATTENTION_HEADS;
    int used = min(ATTENTION_HEADS, group - first), head = kv_head * group + first;
    float* query = (float*)shared;
    float* result = query + used * key_dim;
    float* scores = result + used * value_dim;
    float* most = scores + used * ATTENTION_TILE;
    float* total = most + used;
    float* rescale = total + used;
    int* tile_cells = (int*)(rescale + used);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, position = positions[row];
    Sight sighted = sight(rule, number, position);
    for (int i = threadIdx.x; i < used * key_dim; i += blockDim.x) query[i] = queries[((long long)row * heads + head) * key_dim + i];
    for (int i = threadIdx.x; i < used * value_dim; i += blockDim.x) result[i] = 0.0f;
    if (threadIdx.x < used) {
        most[threadIdx.x] = -INFINITY;
        total[threadIdx.x] = 0.0f;
    }
    int span = row_spans[row];
    Cells cells = cells_of(spans + max(span, 0) * SPAN, ranges);
    int all = span < 0 ? 0 : cells.total, part = (all + splits - 1) / splits;
    int begin = min(all, (int)blockIdx.z * part), end = min(all, begin + part);
    __syncthreads();
    for (int base = begin; base < end; base += ATTENTION_TILE) {
        int count = min(ATTENTION_TILE, end - base);
        for (int i = threadIdx.x; i < count; i += blockDim.x) tile_cells[i] = cells.at(base + i);
        __syncthreads();
        for (int i = warp; i < count; i += blockDim.x / 32) {
            int cell = tile_cells[i];
            const unsigned char* key = keys + ((long long)cell * kv_heads + kv_head) * key_bytes;
            float sums[ATTENTION_HEADS];
            for (int h = 0; h < ATTENTION_HEADS; h++) sums[h] = 0.0f;
            for (int d = lane; d < key_dim; d += 32) {
                float k = cache_element(key, key_format, d);
                for (int h = 0; h < ATTENTION_HEADS; h++)
                    if (h < used) sums[h] += k * query[h * key_dim + d];
            }
            bool visible = sighted.sees(cell_positions[cell]);
            for (int h = 0; h < ATTENTION_HEADS; h++) {
                if (h >= used) break;
                float score = warp_sum(sums[h]) * scale;
                if (soft_cap > 0.0f) score = soft_cap * tanhf(score / soft_cap);
                if (alibi > 0.0f) {
                    int power = 1;
                    while (power * 2 <= heads) power *= 2;
                    int at = head + h;
                    float exponent = at < power ? -alibi / power * (at + 1) : -alibi / 2.0f / power * (2 * (at - power) + 1);
                    score -= exp2f(exponent) * fabsf((float)position - (float)cell_positions[cell]);
                }
                if (lane == 0) scores[h * ATTENTION_TILE + i] = visible ? score : -INFINITY;
            }
        }
        __syncthreads();
        for (int h = warp; h < used; h += blockDim.x / 32) {
            float* row_scores = scores + h * ATTENTION_TILE;
            float best = most[h];
            for (int i = lane; i < count; i += 32) best = fmaxf(best, row_scores[i]);
            best = warp_max(best);
            float sum = 0.0f;
            for (int i = lane; i < count; i += 32) {
                float weight = row_scores[i] == -INFINITY ? 0.0f : expf(row_scores[i] - best);
                row_scores[i] = weight;
                sum += weight;
            }
            sum = warp_sum(sum);
            if (lane == 0) {
                float factor = most[h] == -INFINITY ? 0.0f : expf(most[h] - best);
                rescale[h] = factor;
                total[h] = total[h] * factor + sum;
                most[h] = best;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < used * value_dim; i += blockDim.x) {
            int h = i / value_dim, d = i % value_dim;
            float sum = result[i] * rescale[h];
            for (int j = 0; j < count; j++) {
                float weight = scores[h * ATTENTION_TILE + j];
                if (weight != 0.0f)
                    sum += weight * cache_element(values + ((long long)tile_cells[j] * kv_heads + kv_head) * value_bytes, value_format, d);
            }
            result[i] = sum;
        }
        __syncthreads();
    }
    for (int h = 0; h < used; h++) {
        float* to = partial + (((long long)row * heads + head + h) * splits + blockIdx.z) * (value_dim + 2);
        for (int d = threadIdx.x; d < value_dim; d += blockDim.x) to[d] = result[h * value_dim + d];
        if (threadIdx.x == 0) {
            to[value_dim] = most[h];
            to[value_dim + 1] = total[h];
        }
    }
}
REGISTER(attention_any)

// The parts of each head of each row put together; a sink takes part in the sum but has no value.
KERNEL attention_join(const float* partial, const float* sinks, float* out, int heads, int value_dim, int splits) {
    wait_for_previous();
    const float* from = partial + (long long)blockIdx.x * splits * (value_dim + 2);
    float best = -INFINITY;
    for (int i = 0; i < splits; i++) best = fmaxf(best, from[(long long)i * (value_dim + 2) + value_dim]);
    bool nothing = best == -INFINITY;
    float sink = sinks ? sinks[blockIdx.x % heads] : -INFINITY, top = fmaxf(best, sink), total = sinks ? expf(sink - top) : 0.0f;
    for (int i = 0; i < splits; i++) {
        const float* part = from + (long long)i * (value_dim + 2);
        if (part[value_dim] != -INFINITY) total += part[value_dim + 1] * expf(part[value_dim] - top);
    }
    for (int d = threadIdx.x; d < value_dim; d += blockDim.x) {
        float sum = 0.0f;
        for (int i = 0; i < splits; i++) {
            const float* part = from + (long long)i * (value_dim + 2);
            if (part[value_dim] != -INFINITY) sum += part[d] * expf(part[value_dim] - top);
        }
        out[(long long)blockIdx.x * value_dim + d] = nothing ? 0.0f : sum / total;
    }
}
REGISTER(attention_join)

// What comes before attention with an F16 cache: queries turned to `turned`, keys turned into their cells, values into
// theirs. A thread for each pair of elements.
KERNEL rope_store(const float* queries, const float* keys, const float* values, float* turned, uint16_t* key_cache, uint16_t* value_cache,
                  const int* positions, const int* write_cells, const double* frequencies, int rows, int heads, int kv_heads,
                  int width, int value_width, int dimensions, int split, float magnitude) {
    let_next_start();
    wait_for_previous();
    int pairs = width / 2, value_pairs = value_width / 2, per_row = (heads + kv_heads) * pairs + kv_heads * value_pairs;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (long long)rows * per_row; i += (long long)gridDim.x * blockDim.x) {
        int row = (int)(i / per_row), rest = (int)(i % per_row), cell = write_cells[row];
        if (rest >= (heads + kv_heads) * pairs) {
            rest -= (heads + kv_heads) * pairs;
            if (cell < 0) continue;
            const float* from = values + (long long)row * kv_heads * value_width + rest * 2;
            *(uint32_t*)(value_cache + (long long)cell * kv_heads * value_width + rest * 2) = pack_half(from[0], from[1]);
            continue;
        }
        int head = rest / pairs, pair = rest % pairs;
        bool is_key = head >= heads;
        const float* from = is_key ? keys + ((long long)row * kv_heads + head - heads) * width : queries + ((long long)row * heads + head) * width;
        int first = 2 * pair, second = first + 1;
        float p, q;
        if (pair < dimensions / 2) {
            if (split) {
                first = pair;
                second = pair + dimensions / 2;
            }
            double turns = positions[row] * frequencies[pair] * 0.15915494309189535;
            float sine, cosine;
            sincospif((float)(2.0 * (turns - rint(turns))), &sine, &cosine);
            sine *= magnitude;
            cosine *= magnitude;
            p = from[first] * cosine - from[second] * sine;
            q = from[first] * sine + from[second] * cosine;
        } else {
            p = from[first];
            q = from[second];
        }
        if (!is_key) {
            float* to = turned + ((long long)row * heads + head) * width;
            to[first] = p;
            to[second] = q;
        } else if (cell >= 0) {
            uint16_t* to = key_cache + ((long long)cell * kv_heads + head - heads) * width;
            to[first] = float_to_half(p);
            to[second] = float_to_half(q);
        }
    }
}
REGISTER(rope_store)
