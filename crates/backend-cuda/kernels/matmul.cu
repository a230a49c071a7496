// Products of a matrix with many rows of activations, on the matrix units in half precision. Activations come scaled by
// a power of two for each row (prepare_half), weights are scaled by 256 as they are decoded, so that neither overflows or
// vanishes; sums are floats.
#include "formats.cuh"
#include "functions.cuh"

#define TILE_ROWS 128
#define TILE_DEPTH 64
#define MATMUL_THREADS 256
// Floats from one token to the next where sums are handed over.
#define TILE_PITCH (TILE_ROWS + 4)
#define WEIGHT_SCALE 256.0f

// A row of activations in half precision, and the power of two it was divided by. With `up` the row is
// function(x) up; with `norm` it is normalised.
KERNEL prepare_half(const float* x, const float* up, const float* norm, uint16_t* out, float* scales, int width, int function, float epsilon) {
    wait_for_previous();
    long long start = (long long)blockIdx.x * width;
    float squares = 0.0f, most = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = x[start + i];
        if (up) v = apply_function(function, v) * up[start + i];
        if (norm) {
            squares += v * v;
            v *= norm[i];
        }
        most = fmaxf(most, fabsf(v));
    }
    float inverse = norm ? 1.0f / sqrtf(block_sum(squares) / width + epsilon) : 1.0f;
    most = block_max(most) * inverse;
    int exponent = 0;
    if (most > 0.0f && most < 1e30f) frexpf(most, &exponent);
    // The largest is put just below 2^10.
    float factor = ldexpf(1.0f, 10 - exponent);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = x[start + i];
        if (up) v = apply_function(function, v) * up[start + i];
        if (norm) v *= inverse * norm[i];
        out[start + i] = float_to_half(v * factor);
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = 1.0f / factor;
}
REGISTER(prepare_half)

// Place of 16 bytes of a row of TILE_DEPTH halves, so that eight rows use all banks.
DEVICE int place(int row, int unit) { return row * TILE_DEPTH + ((unit ^ (row & 7)) * 8); }

// A chunk as 32 halves, scaled by WEIGHT_SCALE, in four units of 16 bytes.
template <class F> struct QuantisedTile {
    typedef typename F::Chunk Loaded;
    static DEVICE_MEMBER Loaded load(const unsigned char* matrix, int row, int row_bytes, int chunk) {
        return F::load_chunk(matrix, row, row_bytes, chunk);
    }
    static DEVICE_MEMBER void store(const Loaded& loaded, uint16_t* tile, int row, int part, const Constants& constants) {
        uint32_t q[8];
        F::chunk_codes(loaded, constants, q);
        Scales s = F::scales(loaded.scale, loaded.super, constants);
#pragma unroll
        for (int unit = 0; unit < 4; unit++) {
            uint32_t words[4];
            uint32_t scale = same_halves(s.scale[unit / 2] * WEIGHT_SCALE), minimum = same_halves(s.minimum[unit / 2] * WEIGHT_SCALE);
#pragma unroll
            for (int w = 0; w < 4; w++) {
                uint32_t pair = bytes_as_halves(q[unit * 2 + w / 2] ^ FLIP, w % 2);
                words[w] = scale_halves(subtract_halves(pair, OFFSET), scale, minimum);
            }
            *(uint4*)(tile + place(row, part * 4 + unit)) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
    // Signed bytes are made unsigned first; 1024 and what codes are too large are taken off again.
    static constexpr uint32_t FLIP = F::SIGNED ? 0x80808080u : 0;
    static constexpr uint32_t OFFSET = 0x64006400u + (F::SIGNED ? 128 : F::SHIFT) * 0x00010001u;
};
struct Halves32 {
    uint4 v[4];
};
template <class F> struct PlainTile {
    typedef Halves32 Loaded;
    static DEVICE_MEMBER Loaded load(const unsigned char* matrix, int row, int row_bytes, int chunk) {
        Loaded loaded;
        const unsigned char* from = matrix + (long long)row * row_bytes + chunk * 64;
#pragma unroll
        for (int i = 0; i < 4; i++) loaded.v[i] = load_once((const uint4*)from + i);
        return loaded;
    }
    static DEVICE_MEMBER uint32_t scaled(uint32_t pair) {
        return pack_half(F::value((uint16_t)pair) * WEIGHT_SCALE, F::value((uint16_t)(pair >> 16)) * WEIGHT_SCALE);
    }
    static DEVICE_MEMBER void store(const Loaded& loaded, uint16_t* tile, int row, int part, const Constants&) {
#pragma unroll
        for (int unit = 0; unit < 4; unit++) {
            uint4 v = loaded.v[unit];
            *(uint4*)(tile + place(row, part * 4 + unit)) = make_uint4(scaled(v.x), scaled(v.y), scaled(v.z), scaled(v.w));
        }
    }
};

// A tile of TILE_ROWS rows of the matrix and TOKENS rows of activations; the third grid axis cuts the width into parts,
// whose sums the last block of a tile to end adds up in their order.
template <class L, int TOKENS>
DEVICE void matmul(const unsigned char* weights, int rows, int row_bytes, int chunks, const uint16_t* x, const float* scales,
                   int tokens, float* out, const float* bias, const float* residual, float* partial, int* counters, Constants constants) {
    SHARED_BYTES(shared);
    constexpr int A_SIZE = TILE_ROWS * TILE_DEPTH, B_SIZE = TOKENS * TILE_DEPTH;
    // Eight warps: in tiles of 256 tokens each takes 64 rows and 64 tokens, else 32 rows and half of the tokens.
    constexpr int ROW_TILES = TOKENS == 256 ? 4 : 2, WARP_TOKENS = TOKENS == 256 ? 64 : TOKENS / 2, COLUMNS = WARP_TOKENS / 8;
    constexpr int ACROSS = TOKENS / WARP_TOKENS;
    uint16_t* a_tiles = (uint16_t*)shared;
    uint16_t* b_tiles = a_tiles + 2 * A_SIZE;
    let_next_start();
    wait_for_previous();
    int first_row = blockIdx.x * TILE_ROWS, first_token = blockIdx.y * TOKENS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp / ACROSS * (16 * ROW_TILES), warp_token = warp % ACROSS * WARP_TOKENS;
    int width = chunks * 32, steps = (chunks + 1) / 2;
    int begin = (int)((long long)steps * blockIdx.z / gridDim.z), end = (int)((long long)steps * (blockIdx.z + 1) / gridDim.z);
    float sums[ROW_TILES][COLUMNS][4];
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) sums[i][j][k] = 0.0f;

    // One thread decodes one chunk of a step, and copies some units of activations.
    int my_row = threadIdx.x / 2, my_part = threadIdx.x % 2;
    int weights_row = first_row + my_row < rows ? first_row + my_row : rows - 1;
    auto copy = [&](int step) {
        uint16_t* b = b_tiles + step % 2 * B_SIZE;
        for (int i = threadIdx.x; i < TOKENS * 8; i += MATMUL_THREADS) {
            int token = i / 8, unit = i % 8, column = step * TILE_DEPTH + unit * 8;
            bool valid = first_token + token < tokens && column < width;
            copy_async(b + place(token, unit), x + (valid ? (long long)(first_token + token) * width + column : 0), valid);
        }
        copy_commit();
    };
    auto fetch = [&](int step) {
        int chunk = step * 2 + my_part;
        return L::load(weights, weights_row, row_bytes, chunk < chunks ? chunk : chunks - 1);
    };
    typename L::Loaded loaded;
    if (begin < end) {
        copy(begin);
        loaded = fetch(begin);
    }
    for (int step = begin; step < end; step++) {
        uint16_t* a = a_tiles + step % 2 * A_SIZE;
        uint16_t* b = b_tiles + step % 2 * B_SIZE;
        L::store(loaded, a, my_row, my_part, constants);
        copy_wait<0>();
        __syncthreads();
        if (step + 1 < end) {
            copy(step + 1);
            loaded = fetch(step + 1);
        }
#pragma unroll
        for (int k = 0; k < TILE_DEPTH / 16; k++) {
            uint32_t fragments[ROW_TILES][4];
#pragma unroll
            for (int i = 0; i < ROW_TILES; i++)
                load_matrices(fragments[i], a + place(warp_row + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < COLUMNS / 2; j++) {
                uint32_t pair[4];
                load_matrices(pair, b + place(warp_token + j * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
                for (int i = 0; i < ROW_TILES; i++) {
                    mma_half(sums[i][2 * j], fragments[i], pair);
                    mma_half(sums[i][2 * j + 1], fragments[i], pair + 2);
                }
            }
        }
    }
    // By way of shared memory, so that neighbours write neighbours.
    __syncthreads();
    float* tile = (float*)shared;
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                tile[(warp_token + j * 8 + lane % 4 * 2 + k % 2) * TILE_PITCH + warp_row + i * 16 + lane / 4 + k / 2 * 8] = sums[i][j][k];
    __syncthreads();
    int row = threadIdx.x % TILE_ROWS;
    bool row_inside = first_row + row < rows;
    int last_token = min(TOKENS, tokens - first_token);
    if (gridDim.z > 1) {
        __shared__ int is_last;
        long long part = (long long)tokens * rows, at = (long long)first_token * rows + first_row + row;
        if (row_inside)
            for (int token = threadIdx.x / TILE_ROWS; token < last_token; token += MATMUL_THREADS / TILE_ROWS)
                partial[blockIdx.z * part + at + (long long)token * rows] = tile[token * TILE_PITCH + row];
        __threadfence();
        __syncthreads();
        int counter = blockIdx.y * gridDim.x + blockIdx.x;
        if (threadIdx.x == 0) is_last = atomicAdd(counters + counter, 1) == (int)gridDim.z - 1;
        __syncthreads();
        if (!is_last) return;
        __threadfence();
        if (row_inside)
            for (int token = threadIdx.x / TILE_ROWS; token < last_token; token += MATMUL_THREADS / TILE_ROWS) {
                float sum = 0.0f;
                for (int z = 0; z < (int)gridDim.z; z++) sum += partial[z * part + at + (long long)token * rows];
                tile[token * TILE_PITCH + row] = sum;
            }
        if (threadIdx.x == 0) counters[counter] = 0;
    }
    if (!row_inside) return;
    float add = bias ? bias[first_row + row] : 0.0f;
    for (int token = threadIdx.x / TILE_ROWS; token < last_token; token += MATMUL_THREADS / TILE_ROWS) {
        long long at = (long long)(first_token + token) * rows + first_row + row;
        float v = tile[token * TILE_PITCH + row] * scales[first_token + token] * (1.0f / WEIGHT_SCALE) + add;
        if (residual) v += residual[at];
        out[at] = v;
    }
}

#define MATMUL(name, L, TOKENS)                                                                                            \
    KERNEL BOUNDED(MATMUL_THREADS, TOKENS >= 128 ? 1 : 2) matmul_##name##_##TOKENS(                                        \
        const unsigned char* weights, int rows, int row_bytes, int chunks, const uint16_t* x, const float* scales,         \
        int tokens, float* out, const float* bias, const float* residual, float* partial, int* counters, int t0, int t1,   \
        int t2, int t3, float factor) {                                                                                    \
        OTHER_BODY((matmul<L, TOKENS>(weights, rows, row_bytes, chunks, x, scales, tokens, out, bias, residual, partial,   \
                                      counters, Constants{{(uint32_t)t0, (uint32_t)t1, (uint32_t)t2, (uint32_t)t3}, factor}))) \
    }                                                                                                                      \
    REGISTER(matmul_##name##_##TOKENS)
#define MATMULS(name, code, scale, offset)                  \
    MATMUL(name, QuantisedTile<F_##name>, 32)               \
    MATMUL(name, QuantisedTile<F_##name>, 64)               \
    MATMUL(name, QuantisedTile<F_##name>, 128)              \
    MATMUL(name, QuantisedTile<F_##name>, 256)
QUANTISED_FORMATS(MATMULS)
#define PLAIN(name, F) MATMUL(name, PlainTile<F>, 32) MATMUL(name, PlainTile<F>, 64) MATMUL(name, PlainTile<F>, 128) MATMUL(name, PlainTile<F>, 256)
PLAIN(half, Half)
PLAIN(brain, Brain)

// Floats by floats, exactly: tiles of 64 rows by 64 tokens, any width.
KERNEL matmul_single(const float* weights, int rows, int width, const float* x, int tokens, float* out, const float* bias, const float* residual) {
    __shared__ float a[16][68];
    __shared__ float b[16][68];
    wait_for_previous();
    int first_row = blockIdx.x * 64, first_token = blockIdx.y * 64, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sums[4][4];
#pragma unroll
    for (int i = 0; i < 16; i++) sums[i / 4][i % 4] = 0.0f;
    for (int base = 0; base < width; base += 16) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            int k = i % 16, at = i / 16;
            bool inside = base + k < width;
            a[k][at] = inside && first_row + at < rows ? weights[(long long)(first_row + at) * width + base + k] : 0.0f;
            b[k][at] = inside && first_token + at < tokens ? x[(long long)(first_token + at) * width + base + k] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++)
#pragma unroll
            for (int i = 0; i < 16; i++) sums[i / 4][i % 4] += b[k][ty * 4 + i / 4] * a[k][tx * 4 + i % 4];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int token = first_token + ty * 4 + i / 4, row = first_row + tx * 4 + i % 4;
        if (token >= tokens || row >= rows) continue;
        float v = sums[i / 4][i % 4];
        if (bias) v += bias[row];
        if (residual) v += residual[(long long)token * rows + row];
        out[(long long)token * rows + row] = v;
    }
}
REGISTER(matmul_single)
