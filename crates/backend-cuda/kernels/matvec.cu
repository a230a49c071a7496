// Products of a matrix with up to eight rows of activations: every weight is read once, at the speed of memory. A block first
// makes its own eight-bit copy of the activations, normalised if asked for; then its warps take turns at tiles of 16 rows
// and groups of 256 columns, on the matrix units for integers.
#include "formats.cuh"
#include "functions.cuh"

#define MATVEC_THREADS 512
#define MATVEC_WARPS 16

// Activations in shared memory. `quads` has for each chunk and each row of activations four lanes with the two quads of
// bytes that a lane multiplies; `meta` scale, scaled sums of both halves, and of the whole chunk.
struct Activations {
    uint2* quads;
    float4* meta;
};

// Four numbers of eight lanes each are made the bytes of a chunk.
DEVICE void quantise_chunk(Activations to, float4 v, int at) {
    float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    for (int mask = 1; mask < 8; mask <<= 1) most = fmaxf(most, shuffle_xor(most, mask));
    float scale = most * (1.0f / 127.0f), back = most > 0.0f ? __fdividef(127.0f, most) : 0.0f;
    int a = __float2int_rn(v.x * back), b = __float2int_rn(v.y * back), c = __float2int_rn(v.z * back), d = __float2int_rn(v.w * back);
    int sum = a + b + c + d;
    for (int mask = 1; mask < 4; mask <<= 1) sum += shuffle_xor(sum, mask);
    int other = shuffle_xor(sum, 4), quad = threadIdx.x % 8;
    uint32_t packed = (uint32_t)((a & 255) | (b & 255) << 8 | (c & 255) << 16) | (uint32_t)d << 24;
    ((uint32_t*)to.quads)[at * 8 + quad % 4 * 2 + quad / 4] = packed;
    if (quad == 0) to.meta[at] = make_float4(scale, scale * (float)sum, scale * (float)other, scale * (float)(sum + other));
}

DEVICE float4 times(float4 v, float4 w, float factor) {
    return make_float4(v.x * w.x * factor, v.y * w.y * factor, v.z * w.z * factor, v.w * w.w * factor);
}

// Quantises `rows` rows of `chunks` chunks, kept `apart` rows of each chunk apart; with a norm weight they are normalised
// first. Until `wait` only weights are read.
template <class W>
DEVICE void quantise_rows(Activations to, const float* x, int rows, int apart, int chunks, const float* norm, float epsilon, W wait) {
    __shared__ float squares[MATVEC_WARPS];
    // What a lane keeps of a row while its norm is found.
    constexpr int KEPT = 4, BATCH = 8;
    int width = chunks * 32, whole = groups_of(chunks) * 256, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Each row has as many warps as there are for it.
    int share = MATVEC_WARPS / rows, row = warp / share, part = warp % share, first = part * 128 + lane * 4, step = share * 128;
    const float* from = x + (long long)row * width;
    if (norm && whole <= KEPT * step) {
        float4 v[KEPT], w[KEPT];
#pragma unroll
        for (int i = 0; i < KEPT; i++) w[i] = first + i * step < width ? *(const float4*)(norm + first + i * step) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        wait();
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            v[i] = first + i * step < width ? *(const float4*)(from + first + i * step) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
        }
        sum = warp_sum(sum);
        if (lane == 0) squares[warp] = sum;
        __syncthreads();
        sum = 0.0f;
        for (int i = 0; i < share; i++) sum += squares[row * share + i];
        float inverse = rsqrtf(sum / width + epsilon);
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            if (part * 128 + i * step < whole) quantise_chunk(to, times(v[i], w[i], inverse), (first + i * step) / 32 * apart + row);
    } else {
        wait();
        float inverse = 1.0f;
        if (norm) {
            float sum = 0.0f;
#pragma unroll 4
            for (int i = first; i < width; i += step) {
                float4 v = *(const float4*)(from + i);
                sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            }
            sum = warp_sum(sum);
            if (lane == 0) squares[warp] = sum;
            __syncthreads();
            sum = 0.0f;
            for (int i = 0; i < share; i++) sum += squares[row * share + i];
            inverse = rsqrtf(sum / width + epsilon);
        }
        for (int base = first; base - lane * 4 < whole; base += BATCH * step) {
            float4 v[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) v[i] = base + i * step < width ? *(const float4*)(from + base + i * step) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int at = base + i * step;
                if (at - lane * 4 >= whole) break;
                if (norm && at < width) v[i] = times(v[i], *(const float4*)(norm + at), inverse);
                quantise_chunk(to, v[i], at / 32 * apart + row);
            }
        }
    }
    __syncthreads();
}

// What a lane has of a group: two rows, in them both halves. With one row of activations it needs the scales of two
// chunks, else of all.
template <class F, class G, int N> struct Group {
    static constexpr int COUNT = N == 1 ? 2 : 8;
    static constexpr int CODES = most_of<F::CODE_WORDS, G::CODE_WORDS>::value;
    static constexpr int HIGH = most_of<most_of<F::HIGH_WORDS, G::HIGH_WORDS>::value, 1>::value;
    static constexpr int SCALES = most_of<COUNT * most_of<F::SCALE_BYTES, G::SCALE_BYTES>::value / 4, 1>::value;
    uint32_t codes[2][2][CODES], high[2][2][HIGH], scale[2][SCALES], super[2];
    template <class L> DEVICE_MEMBER void load(const Place from[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int half = 0; half < 2; half++) L::load_half(codes[r][half], high[r][half], from[r], half);
            L::template load_scales<COUNT>(scale[r], super[r], from[r]);
        }
    }
};

// Adds products of a group. For one row of activations its eight chunks are the columns of the other operand, and lane `t`
// gets the sums of chunks 2 t and 2 t + 1, so that each scale is applied by one lane. For more, it has those of
// activations 2 t and 2 t + 1, chunk by chunk.
template <class L, class F, class G, int N>
DEVICE void add_group(float sums[4], const Group<F, G, N>& raw, const Constants& constants, const Activations& x, int group) {
    int lane = threadIdx.x % 32, t = lane % 4;
    int first[4] = {0, 0, 0, 0}, second[4] = {0, 0, 0, 0};
    uint2 b;
    if (N == 1) b = x.quads[group * 32 + lane];
#pragma unroll
    for (int c = 0; c < 8; c++) {
        uint32_t low[2], high[2];
        L::quads(low, raw.codes[0][c / 4], raw.high[0][c / 4], c % 4, c / 4, constants);
        L::quads(high, raw.codes[1][c / 4], raw.high[1][c / 4], c % 4, c / 4, constants);
        uint32_t a[4] = {low[0], high[0], low[1], high[1]};
        if (N > 1) b = x.quads[(group * 8 + c) * 32 + lane];
        int d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
        if (L::HALVES) {
            mma_bytes_half(d, a[0], a[1], b.x);
            mma_bytes_half(e, a[2], a[3], b.y);
        } else {
            mma_bytes(d, a, b.x, b.y);
        }
        if (N == 1) {
            if (t == c / 2) {
                first[c % 2] = d[c % 2];
                first[2 + c % 2] = d[2 + c % 2];
                if (L::HALVES) {
                    second[c % 2] = e[c % 2];
                    second[2 + c % 2] = e[2 + c % 2];
                }
            }
        } else {
            float4 meta[2] = {x.meta[(group * 8 + c) * 8 + 2 * t], x.meta[(group * 8 + c) * 8 + 2 * t + 1]};
#pragma unroll
            for (int r = 0; r < 2; r++) {
                Scales s = L::scales(L::scale_of(raw.scale[r], c), raw.super[r], constants);
                s.minimum[0] -= L::SHIFT * s.scale[0];
                s.minimum[1] -= L::SHIFT * s.scale[1];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float product = s.scale[0] * (float)d[2 * r + i];
                    if (L::HALVES) product += s.scale[1] * (float)e[2 * r + i];
                    float sum = meta[i].x * product;
                    if (L::MINIMUM || L::SHIFT != 0)
                        sum += L::HALVES ? s.minimum[0] * meta[i].y + s.minimum[1] * meta[i].z : s.minimum[0] * meta[i].w;
                    sums[2 * r + i] += sum;
                }
            }
        }
    }
    if (N == 1) {
        float4 meta[2] = {x.meta[group * 8 + 2 * t], x.meta[group * 8 + 2 * t + 1]};
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                Scales s = L::quick_scales(L::scale_of(raw.scale[r], i), raw.super[r], constants);
                float product = s.scale[0] * (float)first[2 * r + i];
                if (L::HALVES) product += s.scale[1] * (float)second[2 * r + i];
                float sum = meta[i].x * product;
                if (L::MINIMUM || L::SHIFT != 0) {
                    s.minimum[0] -= L::SHIFT * s.scale[0];
                    s.minimum[1] -= L::SHIFT * s.scale[1];
                    sum += L::HALVES ? s.minimum[0] * meta[i].y + s.minimum[1] * meta[i].z : s.minimum[0] * meta[i].w;
                }
                sums[r] += sum;
            }
    }
}

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
    Place from[2];
    auto find = [&]() {
        int row, matrix = matrix_of(ahead.index >> shift, row), chunk = N == 1 ? 2 * t : 0;
        int bytes = matrix < split ? row_bytes : other_row_bytes;
        const unsigned char* start = (matrix == 0 ? w0 : matrix == 1 ? w1 : w2) + (long long)(row + g) * bytes;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (ahead.first) from[r] = F::place(start + r * 8 * bytes, groups, ahead.group, t, chunk);
            else from[r] = G::place(start + r * 8 * bytes, groups, ahead.group, t, chunk);
        }
    };
    if (ahead.index < pieces) find();
    Group<F, G, N> raw[2];
    auto fetch = [&](Group<F, G, N>& to) {
        if (ahead.index >= pieces) return;
        if (ahead.first) {
            to.template load<F>(from);
            F::next(from[0]);
            F::next(from[1]);
        } else {
            to.template load<G>(from);
            G::next(from[0]);
            G::next(from[1]);
        }
        if (++ahead.group == ahead.end) {
            ahead = piece_of(ahead.index + MATVEC_WARPS);
            if (ahead.index < pieces) find();
        }
    };
    fetch(raw[0]);
    fetch(raw[1]);
    quantise_rows(a, x, rows, N, chunks, norm, epsilon, [&]() {
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

#define MATVEC(name, F, G, N)                                                    \
    KERNEL BOUNDED(MATVEC_THREADS, 1) matvec_##name##_##N(MATVEC_PARAMETERS) {    \
        matvec<F, G, N>(MATVEC_ARGUMENTS);                                       \
    }                                                                            \
    REGISTER(matvec_##name##_##N)
#define MATVECS(name, code, scale, offset)      \
    MATVEC(name, F_##name, F_##name, 1)         \
    MATVEC(name, F_##name, F_##name, 8)
QUANTISED_FORMATS(MATVECS)

// The pairs of formats that a file's mixtures put side by side.
#define MATVEC_PAIRS(name, F, G) MATVEC(name, F, G, 1) MATVEC(name, F, G, 8)
MATVEC_PAIRS(code4_super_code6_halves, F_code4_super, F_code6_halves)
MATVEC_PAIRS(code5_super_code6_halves, F_code5_super, F_code6_halves)
