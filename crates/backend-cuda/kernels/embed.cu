// Rows of a matrix by index, as floats; an index past the end counts as the last. A block for each row.
#include "formats.cuh"

template <class F>
DEVICE void embed(const unsigned char* table, const int* indexes, float* out, int table_rows, int row_bytes, int chunks, Constants constants) {
    int index = indexes[blockIdx.x];
    if (index < 0 || index >= table_rows) index = table_rows - 1;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
        typename F::Chunk loaded = F::load_chunk(table, index, row_bytes, chunk);
        uint32_t q[8];
        F::chunk_codes(loaded, constants, q);
        Scales s = F::scales(loaded.scale, loaded.super, constants);
        float* to = out + ((long long)blockIdx.x * chunks + chunk) * 32;
#pragma unroll
        for (int i = 0; i < 32; i++)
            to[i] = s.scale[i / 16] * (float)((int)(int8_t)(q[i / 4] >> (8 * (i % 4))) - F::SHIFT) + s.minimum[i / 16];
    }
}

template <class F> DEVICE void embed_float(const unsigned char* table, const int* indexes, float* out, int table_rows, int row_bytes, int width) {
    int index = indexes[blockIdx.x];
    if (index < 0 || index >= table_rows) index = table_rows - 1;
    const typename F::T* row = (const typename F::T*)(table + (long long)index * row_bytes);
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[(long long)blockIdx.x * width + i] = F::value(row[i]);
}

#define PARAMETERS const unsigned char *table, const int *indexes, float *out, int table_rows, int row_bytes, int chunks, int t0, int t1, int t2, int t3, float factor
#define EMBED(name, code, scale, offset)                                                      \
    KERNEL embed_##name(PARAMETERS) {                                                         \
        wait_for_previous();                                                                  \
        embed<F_##name>(table, indexes, out, table_rows, row_bytes, chunks,                   \
                        Constants{{(uint32_t)t0, (uint32_t)t1, (uint32_t)t2, (uint32_t)t3}, factor}); \
    }                                                                                         \
    REGISTER(embed_##name)
#define EMBED_FLOAT(name, F)                                                                  \
    KERNEL embed_##name(PARAMETERS) {                                                         \
        wait_for_previous();                                                                  \
        embed_float<F>(table, indexes, out, table_rows, row_bytes, chunks);                   \
    }                                                                                         \
    REGISTER(embed_##name)
QUANTISED_FORMATS(EMBED)
EMBED_FLOAT(single, Single)
EMBED_FLOAT(half, Half)
EMBED_FLOAT(brain, Brain)
