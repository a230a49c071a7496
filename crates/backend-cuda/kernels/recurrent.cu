// Recurrences: a block walks the spans of the step in order and their tokens, its threads share the channels.
// A span is seven integers: first row, end row, first range, ranges, cells, start cell (or -1), end cell.
#include "functions.cuh"
#define SPAN 7

// One thread for each channel.
KERNEL token_shift(const float* x, float* out, float* state, const int* spans, const int* counts, int width) {
    wait_for_previous();
    int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= width) return;
    for (int s = 0; s < counts[0]; s++) {
        const int* span = spans + s * SPAN;
        if (span[0] >= span[1]) continue;
        float before = span[5] >= 0 ? state[(long long)span[5] * width + channel] : 0.0f;
        for (int row = span[0]; row < span[1]; row++) {
            float now = x[(long long)row * width + channel];
            out[(long long)row * width + channel] = before;
            before = now;
        }
        state[(long long)span[6] * width + channel] = before;
    }
}
REGISTER(token_shift)

// One thread for each channel; kernels of at most 16.
KERNEL short_convolution(const float* x, const float* weight, const float* bias, float* out, float* state, const int* spans, const int* counts, int channels, int kernel) {
    wait_for_previous();
    int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    float history[16];
    for (int s = 0; s < counts[0]; s++) {
        const int* span = spans + s * SPAN;
        if (span[0] >= span[1]) continue;
        for (int k = 0; k < kernel - 1; k++)
            history[k] = span[5] >= 0 ? state[((long long)span[5] * (kernel - 1) + k) * channels + channel] : 0.0f;
        for (int row = span[0]; row < span[1]; row++) {
            float now = x[(long long)row * channels + channel], sum = bias ? bias[channel] : 0.0f;
            for (int k = 0; k < kernel - 1; k++) sum += weight[channel * kernel + k] * history[k];
            out[(long long)row * channels + channel] = sum + weight[channel * kernel + kernel - 1] * now;
            for (int k = 0; k + 2 < kernel; k++) history[k] = history[k + 1];
            if (kernel > 1) history[kernel - 2] = now;
        }
        for (int k = 0; k < kernel - 1; k++) state[((long long)span[6] * (kernel - 1) + k) * channels + channel] = history[k];
    }
}
REGISTER(short_convolution)

// One warp for each element of a head, lanes share the state of `size` numbers.
KERNEL selective_scan(const float* u, const float* steps, const float* a, const float* b, const float* c, const float* skip,
                      float* out, float* state, const int* spans, const int* counts, int heads, int dim, int groups, int size, int rates) {
    wait_for_previous();
    int element = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (element >= heads * dim) return;
    int head = element / dim, group = head / (heads / groups);
    long long elements = (long long)heads * dim * size;
    for (int s = 0; s < counts[0]; s++) {
        const int* span = spans + s * SPAN;
        if (span[0] >= span[1]) continue;
        float* kept = state + span[6] * elements + (long long)element * size;
        const float* from = span[5] >= 0 ? state + span[5] * elements + (long long)element * size : nullptr;
        for (int i = lane; i < size; i += 32) kept[i] = from ? from[i] : 0.0f;
        for (int row = span[0]; row < span[1]; row++) {
            float step = steps[(long long)row * heads + head], value = u[(long long)row * heads * dim + element], sum = 0.0f;
            long long at = ((long long)row * groups + group) * size;
            for (int i = lane; i < size; i += 32) {
                float next = kept[i] * expf(step * a[head * rates + i % rates]) + step * value * b[at + i];
                sum += next * c[at + i];
                kept[i] = next;
            }
            sum = warp_sum(sum);
            if (lane == 0) out[(long long)row * heads * dim + element] = sum + skip[head] * value;
        }
    }
}
REGISTER(selective_scan)

// One block for each head, one thread for each value channel; the state of a head is [key_dim, value_dim].
// `cyclic`: head h reads key head h mod key_heads instead of its group's.
KERNEL gated_delta_rule(const float* queries, const float* keys, const float* values, const float* decays, const float* rates,
                        float* out, float* state, const int* spans, const int* counts, int key_heads, int key_dim, int heads,
                        int value_dim, int decay_dim, int cyclic, float scale) {
    wait_for_previous();
    int head = blockIdx.x;
    int key_head = cyclic ? head % key_heads : head / (heads / key_heads);
    long long matrix = (long long)key_dim * value_dim, elements = heads * matrix;
    for (int element = threadIdx.x; element < value_dim; element += blockDim.x)
        for (int s = 0; s < counts[0]; s++) {
            const int* span = spans + s * SPAN;
            if (span[0] >= span[1]) continue;
            float* kept = state + span[6] * elements + head * matrix + element;
            const float* from = span[5] >= 0 ? state + span[5] * elements + head * matrix + element : nullptr;
            for (int i = 0; i < key_dim; i++) kept[(long long)i * value_dim] = from ? from[(long long)i * value_dim] : 0.0f;
            for (int row = span[0]; row < span[1]; row++) {
                const float* key = keys + ((long long)row * key_heads + key_head) * key_dim;
                const float* query = queries + ((long long)row * key_heads + key_head) * key_dim;
                long long head_row = (long long)row * heads + head;
                const float* decay = decays + head_row * decay_dim;
                float known = 0.0f;
                for (int i = 0; i < key_dim; i++) {
                    float v = kept[(long long)i * value_dim] * expf(decay[decay_dim == 1 ? 0 : i]);
                    kept[(long long)i * value_dim] = v;
                    known += v * key[i];
                }
                float change = rates[head_row] * (values[head_row * value_dim + element] - known), sum = 0.0f;
                for (int i = 0; i < key_dim; i++) {
                    float next = kept[(long long)i * value_dim] + key[i] * change;
                    sum += next * query[i];
                    kept[(long long)i * value_dim] = next;
                }
                out[head_row * value_dim + element] = sum * scale;
            }
        }
}
REGISTER(gated_delta_rule)

// As above. Decays by `decays` for each key channel or by `head_decays` for each head; with a bonus the result reads the
// state before the token.
KERNEL gated_linear_attention(const float* queries, const float* keys, const float* values, const float* decays,
                              const float* head_decays, const float* bonus, float* out, float* state, const int* spans,
                              const int* counts, int heads, int key_dim, int value_dim, float scale) {
    wait_for_previous();
    int head = blockIdx.x;
    long long matrix = (long long)key_dim * value_dim, elements = heads * matrix;
    for (int element = threadIdx.x; element < value_dim; element += blockDim.x)
        for (int s = 0; s < counts[0]; s++) {
            const int* span = spans + s * SPAN;
            if (span[0] >= span[1]) continue;
            float* kept = state + span[6] * elements + head * matrix + element;
            const float* from = span[5] >= 0 ? state + span[5] * elements + head * matrix + element : nullptr;
            for (int i = 0; i < key_dim; i++) kept[(long long)i * value_dim] = from ? from[(long long)i * value_dim] : 0.0f;
            for (int row = span[0]; row < span[1]; row++) {
                long long head_row = (long long)row * heads + head;
                float value = values[head_row * value_dim + element], sum = 0.0f;
                for (int i = 0; i < key_dim; i++) {
                    long long place = head_row * key_dim + i;
                    float before = kept[(long long)i * value_dim], added = keys[place] * value;
                    float after = before * (head_decays ? head_decays[head] : decays[place]) + added;
                    sum += (bonus ? before + bonus[head * key_dim + i] * added : after) * queries[place];
                    kept[(long long)i * value_dim] = after;
                }
                out[head_row * value_dim + element] = sum * scale;
            }
        }
}
REGISTER(gated_linear_attention)

// One block for each head, one warp for each value channel in turn; the state of a head is a row per value channel.
KERNEL rwkv7(const float* receptances, const float* decays, const float* keys, const float* values, const float* removals,
             const float* rates, float* out, float* state, const int* spans, const int* counts, int heads, int dim) {
    wait_for_previous();
    int head = blockIdx.x, lane = threadIdx.x % 32;
    long long matrix = (long long)dim * dim, elements = heads * matrix;
    for (int element = threadIdx.x / 32; element < dim; element += blockDim.x / 32)
        for (int s = 0; s < counts[0]; s++) {
            const int* span = spans + s * SPAN;
            if (span[0] >= span[1]) continue;
            float* kept = state + span[6] * elements + head * matrix + (long long)element * dim;
            const float* from = span[5] >= 0 ? state + span[5] * elements + head * matrix + (long long)element * dim : nullptr;
            for (int i = lane; i < dim; i += 32) kept[i] = from ? from[i] : 0.0f;
            for (int row = span[0]; row < span[1]; row++) {
                long long at = ((long long)row * heads + head) * dim;
                float removed = 0.0f, sum = 0.0f;
                for (int i = lane; i < dim; i += 32) removed += kept[i] * removals[at + i];
                removed = warp_sum(removed);
                float value = values[at + element];
                for (int i = lane; i < dim; i += 32) {
                    float next = kept[i] * decays[at + i] - removed * removals[at + i] * rates[at + i] + value * keys[at + i];
                    kept[i] = next;
                    sum += next * receptances[at + i];
                }
                sum = warp_sum(sum);
                if (lane == 0) out[at + element] = sum;
            }
        }
}
REGISTER(rwkv7)
