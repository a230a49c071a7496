// Products of a matrix with up to eight rows of activations: every weight is read once, at the speed of memory. A block first
// makes its own eight-bit copy of the activations, normalised if asked for; then its warps take turns at tiles of 16 rows
// and groups of 256 columns, on the matrix units for integers.
#include "bytes.cuh"
#include "functions.cuh"

#define MATVEC_THREADS 512
#define MATVEC_WARPS 16

// Up to three matrices of one width; those from number `split` on have the second format. With `glu` the first two are
// gate and value, and the result is function(gate) value. With `experts` the second grid axis is a slot whose matrix is the
// chosen one; its activations are row slot / used, or row slot if `spread`. A null `chosen` means slot modulo `used`.
template <class F, class G, int N>
DEVICE void matvec(const unsigned char* w0, const unsigned char* w1, const unsigned char* w2, int n0, int n1, int n2, int split,
                   int row_bytes, int other_row_bytes, int chunks, const float* x, int rows, const float* norm, float epsilon,
                   float* out0, float* out1, float* out2, const float* bias0, const float* bias1, const float* bias2,
                   const float* residual, int glu, int experts, const int* chosen, long long expert_bytes, int spread,
                   Constants constants) {
    SHARED_BYTES(shared);
    // Tiles whose sums wait to be joined, twice; parts that a tile's groups are cut into at most; numbers of a tile.
    constexpr int TILES = N == 1 ? 8 : 2, PARTS = 16, NUMBERS = 16 * N;
    int groups = groups_of(chunks);
    Activations a;
    a.quads = (uint2*)shared;
    a.meta = (float4*)(a.quads + groups * 32 * N);
    float* partial = (float*)(a.meta + groups * 8 * N);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    // A block's tiles follow each other; of a gated unit, those of gate and value take turns.
    int tiles0 = (n0 + 15) / 16, tiles1 = (n1 + 15) / 16, all = glu ? tiles0 : tiles0 + tiles1 + (n2 + 15) / 16;
    int first_item = (int)((long long)all * blockIdx.x / gridDim.x), end_item = (int)((long long)all * (blockIdx.x + 1) / gridDim.x);
    int count = (end_item - first_item) * (glu ? 2 : 1);
    // As many parts as make warps end together, in powers of two; each has a cost of its own.
    int shift = 0, least = 1 << 30;
    for (int s = 0; s <= 4 && 1 << s <= groups; s++) {
        int cost = ((count << s) + MATVEC_WARPS - 1) / MATVEC_WARPS * (((groups - 1) >> s) + 3);
        if (cost < least) {
            least = cost;
            shift = s;
        }
    }
    int parts = 1 << shift, pieces = count << shift;
    let_next_start();
    long long slot = blockIdx.y;
    if (experts) {
        // Which matrix it is may come from the kernel before.
        wait_for_previous();
        int expert = chosen ? chosen[slot] : (int)(slot % experts);
        w0 += expert * expert_bytes;
        if (glu) w1 += expert * expert_bytes;
        x += (spread ? slot : slot / experts) * (long long)chunks * 32;
        out0 += slot * n0;
    }
    // Where tile `index` of this block begins: matrix, its first row there.
    auto matrix_of = [&](int index, int& row) {
        if (glu) {
            row = (first_item + index / 2) * 16;
            return index % 2;
        }
        int tile = first_item + index, matrix = tile < tiles0 ? 0 : tile < tiles0 + tiles1 ? 1 : 2;
        row = (tile - (matrix == 0 ? 0 : matrix == 1 ? tiles0 : tiles0 + tiles1)) * 16;
        return matrix;
    };
    // A warp's pieces: a part of a tile, groups from `group` to `end`.
    struct Piece {
        int index, group, end;
        bool first;
    };
    auto piece_of = [&](int index) {
        int part = index & (parts - 1), row;
        bool first = std_is_same<F, G>::value || index >= pieces || matrix_of(index >> shift, row) < split;
        return Piece{index, (groups * part) >> shift, (groups * (part + 1)) >> shift, first};
    };
    // What is fetched next and where it lies. Rows past the last one are read, but their sums are not written.
    Piece ahead = piece_of(warp), now = ahead;
    const unsigned char* from = w0;
    auto find = [&]() {
        int row, matrix = matrix_of(ahead.index >> shift, row);
        const unsigned char* start = matrix == 0 ? w0 : matrix == 1 ? w1 : w2;
        if (ahead.first) from = F::block_of(start, row, row_bytes, ahead.group);
        else from = G::block_of(start, row, other_row_bytes, ahead.group);
    };
    if (ahead.index < pieces) find();
    Group<F, G, N> raw[2];
    auto fetch = [&](Group<F, G, N>& to) {
        if (ahead.index >= pieces) return;
        if (ahead.first) {
            to.template load<F, FromMemory>(from);
            from += F::BLOCK;
        } else {
            to.template load<G, FromMemory>(from);
            from += G::BLOCK;
        }
        if (++ahead.group == ahead.end) {
            ahead = piece_of(ahead.index + MATVEC_WARPS);
            if (ahead.index < pieces) find();
        }
    };
    fetch(raw[0]);
    fetch(raw[1]);
    quantise_rows<MATVEC_WARPS>(a, x, rows, N, chunks, norm, epsilon, [&]() {
        if (!experts) wait_for_previous();
    });
    // A residual of the first tiles is on its way while they are multiplied.
    float early = 0.0f;
    if (residual) {
        int i = threadIdx.x / NUMBERS, column = threadIdx.x % NUMBERS % N, row;
        if (i < min(count, TILES)) {
            int matrix = matrix_of(i, row), width = matrix == 0 ? n0 : matrix == 1 ? n1 : n2;
            row += threadIdx.x % NUMBERS / N;
            if (row < width && column < rows) early = residual[(long long)column * width + row];
        }
    }

    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    // Adds up what the warps found for tiles from `begin` to `end`, in the order of the parts, and writes it.
    auto join = [&](int begin, int end) {
        __syncthreads();
        const float* found = partial + begin / TILES % 2 * (TILES * PARTS * NUMBERS);
        int step = glu ? 2 : 1, total = (end - begin) / step * NUMBERS;
        for (int i = threadIdx.x; i < total; i += MATVEC_THREADS) {
            int index = i / NUMBERS * step, number = i % NUMBERS;
            int row, matrix = matrix_of(begin + index, row), column = number % N;
            row += number / N;
            float sum = 0.0f, value = 0.0f;
#pragma unroll 4
            for (int p = 0; p < parts; p++) {
                sum += found[(index * PARTS + p) * NUMBERS + number];
                if (glu) value += found[((index + 1) * PARTS + p) * NUMBERS + number];
            }
            int width = matrix == 0 ? n0 : matrix == 1 ? n1 : n2;
            if (row >= width || column >= rows) continue;
            const float* bias = matrix == 0 ? bias0 : matrix == 1 ? bias1 : bias2;
            float* out = matrix == 0 ? out0 : matrix == 1 ? out1 : out2;
            if (bias) sum += bias[row];
            if (glu) sum = apply_function(glu - 1, sum) * value;
            long long at = (long long)column * width + row;
            if (residual) sum += begin == 0 && i == (int)threadIdx.x ? early : residual[at];
            out[at] = sum;
        }
    };
    int joined = 0;
    auto join_before = [&](int tile) {
        while (joined < count && (tile >= count || tile / TILES > joined / TILES)) {
            int end = min(count, joined + TILES);
            join(joined, end);
            joined = end;
        }
    };
    while (now.index < pieces) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (now.index < pieces) {
                if (now.first) add_group<F, F, G, N>(sums, raw[i], constants, a, now.group);
                else add_group<G, F, G, N>(sums, raw[i], constants, a, now.group);
                fetch(raw[i]);
                if (++now.group == now.end) {
                    int tile = now.index >> shift;
                    join_before(tile);
                    float* to = partial + ((tile / TILES % 2 * TILES + tile % TILES) * PARTS + (now.index & (parts - 1))) * NUMBERS;
                    if (N == 1) {
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            sums[r] += shuffle_xor(sums[r], 1);
                            sums[r] += shuffle_xor(sums[r], 2);
                            if (t == 0) to[g + 8 * r] = sums[r];
                        }
                    } else {
                        *(float2*)(to + g * N + 2 * t) = make_float2(sums[0], sums[1]);
                        *(float2*)(to + (g + 8) * N + 2 * t) = make_float2(sums[2], sums[3]);
                    }
#pragma unroll
                    for (int k = 0; k < 4; k++) sums[k] = 0.0f;
                    now = piece_of(now.index + MATVEC_WARPS);
                }
            }
        }
    }
    join_before(count);
}

#define MATVEC_PARAMETERS                                                                                            \
    const unsigned char *w0, const unsigned char *w1, const unsigned char *w2, int n0, int n1, int n2, int split,    \
        int row_bytes, int other_row_bytes, int chunks, const float *x, int rows, const float *norm, float epsilon,  \
        float *out0, float *out1, float *out2, const float *bias0, const float *bias1, const float *bias2,           \
        const float *residual, int glu, int experts, const int *chosen, long long expert_bytes, int spread,          \
        int t0, int t1, int t2, int t3, float factor
#define MATVEC_ARGUMENTS                                                                                             \
    w0, w1, w2, n0, n1, n2, split, row_bytes, other_row_bytes, chunks, x, rows, norm, epsilon, out0, out1, out2,     \
        bias0, bias1, bias2, residual, glu, experts, chosen, expert_bytes, spread,                                   \
        Constants { {(uint32_t)t0, (uint32_t)t1, (uint32_t)t2, (uint32_t)t3}, factor }

#define ANY_BODY(call) call;
#define MATVEC(name, F, G, N, BODY)                                              \
    KERNEL BOUNDED(MATVEC_THREADS, 1) matvec_##name##_##N(MATVEC_PARAMETERS) {    \
        BODY((matvec<F, G, N>(MATVEC_ARGUMENTS)))                                \
    }                                                                            \
    REGISTER(matvec_##name##_##N)
#define MATVECS(name, code, scale, offset)      \
    MATVEC(name, F_##name, F_##name, 1, ANY_BODY)  \
    MATVEC(name, F_##name, F_##name, 8, OTHER_BODY)
QUANTISED_FORMATS(MATVECS)

// The pairs of formats that a file's mixtures put side by side.
#define MATVEC_PAIRS(name, F, G) MATVEC(name, F, G, 1, ANY_BODY) MATVEC(name, F, G, 8, OTHER_BODY)
MATVEC_PAIRS(code4_super_code6_halves, F_code4_super, F_code6_halves)
MATVEC_PAIRS(code5_super_code6_halves, F_code5_super, F_code6_halves)
