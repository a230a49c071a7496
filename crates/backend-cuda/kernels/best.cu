// The highest numbers of each row, in order, of equal ones the lower column first: those of slices of a row, then those of what
// the slices have left. What a block looks at stays in registers.
#include "platform.cuh"

// Threads of a block; what each keeps of a slice, and of what slices have left; the most numbers that are asked for; room for those
// that a block looks at closely.
constexpr int THREADS = 512, OF_SLICE = 16, OF_ROW = 32, MOST = 256, ROOM = 1024;
// The most columns: as many slices as leave what a block can look at.
constexpr uint32_t MOST_COLUMNS = THREADS * OF_ROW / MOST * OF_SLICE * THREADS;
constexpr int NOWHERE = 0x7fffffff;

// Floats as integers of the same order; zeros are equal, and 0 is below all.
DEVICE uint32_t order_of(float x) {
    uint32_t bits = float_to_bits(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE float float_of(uint32_t order) { return bits_to_float(order & 0x80000000u ? order & 0x7fffffffu : ~order); }

// A number and its column as one number, greater for what comes first.
DEVICE uint64_t pair_of_order(uint32_t order, uint32_t column) { return (uint64_t)order << 32 | (uint32_t)~column; }

struct Sum {
    static DEVICE_MEMBER int join(int a, int b) { return a + b; }
};
struct Least {
    static DEVICE_MEMBER int join(int a, int b) { return a < b ? a : b; }
};
template <class F> DEVICE int warp_join(int x) {
    for (int mask = 16; mask > 0; mask >>= 1) x = F::join(x, shuffle_xor(x, mask));
    return x;
}
// Joins a number of each thread of the block; every thread gets the result. `turn` changes from call to call, so that one barrier
// a call is enough.
template <class F> DEVICE int block_join(int x, int none, int& turn) {
    __shared__ int parts[2][32];
    turn ^= 1;
    x = warp_join<F>(x);
    if (threadIdx.x % 32 == 0) parts[turn][threadIdx.x / 32] = x;
    __syncthreads();
    return warp_join<F>(threadIdx.x % 32 < blockDim.x / 32 ? parts[turn][threadIdx.x % 32] : none);
}

// A bound that as many numbers reach as are wanted, or some more: so many threads have one. Where the best are spread over the
// threads, as they mostly are, there are few more.
template <int EACH> DEVICE uint32_t bound_of(const uint32_t order[EACH], int count) {
    uint32_t own = 0, bound = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) own = order[i] > own ? order[i] : own;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        int here = __syncthreads_count(own >= (bound | bit));
        if (here < count) continue;
        bound |= bit;
        if (here <= count + count / 4) break;
    }
    return bound;
}

// The highest of any numbers, bit by bit: those above `lowest`, or equal to it in a column up to `last`.
template <int EACH, class C> DEVICE void lowest_that_stays(const uint32_t order[EACH], C column, int count, uint32_t& lowest, uint32_t& last) {
    int turn = 0;
    lowest = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        int here = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) here += order[i] >= (lowest | bit);
        if (block_join<Sum>(here, 0, turn) >= count) lowest |= bit;
    }
    int above = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) above += order[i] > lowest;
    int wanted = count - block_join<Sum>(above, 0, turn);
    // Of those equal to the lowest so many of the first columns: before `last` there are fewer.
    last = 0;
    for (uint32_t bit = MOST_COLUMNS / 2; bit != 0; bit >>= 1) {
        int here = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) here += order[i] == lowest && column(i) < (last | bit);
        if (block_join<Sum>(here, 0, turn) < wanted) last |= bit;
    }
}

// Gathers numbers of the block with their columns, all from some number on and among them the `count` highest; returns how many.
template <int EACH, class C> DEVICE int gather(const uint32_t order[EACH], C column, int count, uint64_t* kept) {
    __shared__ int found;
    auto add = [&](int i) {
        int place = atomicAdd(&found, 1);
        if (place < ROOM) kept[place] = pair_of_order(order[i], column(i));
    };
    if (threadIdx.x == 0) found = 0;
    uint32_t bound = bound_of<EACH>(order, count);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (order[i] >= bound) add(i);
    __syncthreads();
    int all = found;
    if (all <= ROOM) return all;
    // Many are equal, or the best lie together.
    __syncthreads();
    if (threadIdx.x == 0) found = 0;
    uint32_t lowest, last;
    lowest_that_stays<EACH>(order, column, count, lowest, last);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (order[i] > lowest || (order[i] == lowest && column(i) <= last)) add(i);
    __syncthreads();
    return count;
}

// How many of those that were gathered come before one of them.
DEVICE int rank_of(const uint64_t* kept, int all, uint64_t own) {
    int rank = all % 2 && kept[all - 1] > own;
#pragma unroll 8
    for (int i = 0; i < all / 2; i++) {
        uint4 two = ((const uint4*)kept)[i];
        rank += ((uint64_t)two.y << 32 | two.x) > own;
        rank += ((uint64_t)two.w << 32 | two.z) > own;
    }
    return rank;
}

// A block for each slice of each row: its `count` highest in order, and the column of its first number that is not finite upwards.
KERNEL BOUNDED(THREADS, 2) best_of_slices(const float* rows, uint64_t* best, int* bad, int width, int count) {
    wait_for_previous();
    __shared__ uint4 room[ROOM / 2];
    uint64_t* kept = (uint64_t*)room;
    int first = blockIdx.x * OF_SLICE * THREADS;
    const float* row = rows + (long long)blockIdx.y * width;
    uint32_t order[OF_SLICE];
    auto column = [&](int i) { return (uint32_t)first + i * THREADS + threadIdx.x; };
    int wrong = NOWHERE, turn = 0;
#pragma unroll
    for (int i = 0; i < OF_SLICE; i++) {
        bool there = column(i) < width;
        float x = there ? row[column(i)] : 0.0f;
        order[i] = there ? order_of(x) : 0;
        if (!(x < INFINITY)) wrong = min(wrong, (int)column(i));
    }
    wrong = block_join<Least>(wrong, NOWHERE, turn);
    if (threadIdx.x == 0) bad[(long long)blockIdx.y * gridDim.x + blockIdx.x] = wrong;
    int all = gather<OF_SLICE>(order, column, count, kept);
    for (int i = threadIdx.x; i < all; i += THREADS) {
        int rank = rank_of(kept, all, kept[i]);
        // The first of all slices, then the second ones: so the best are spread over the threads that look at them next.
        if (rank < count) best[((long long)blockIdx.y * count + rank) * gridDim.x + blockIdx.x] = kept[i];
    }
}
REGISTER(best_of_slices)

// A block for each row: of what its slices have left the highest in order. Gives for each row the column and the bits of its first
// number that is not finite upwards (or -1), then columns and bits of the highest.
KERNEL BOUNDED(THREADS, 1) best_of_rows(const float* rows, const uint64_t* best, const int* bad, int* out, int width, int count, int slices) {
    wait_for_previous();
    __shared__ uint4 room[ROOM / 2];
    uint64_t* kept = (uint64_t*)room;
    best += (long long)blockIdx.x * slices * count;
    bad += (long long)blockIdx.x * slices;
    out += (long long)blockIdx.x * (2 + 2 * count);
    uint32_t order[OF_ROW], columns[OF_ROW];
#pragma unroll
    for (int i = 0; i < OF_ROW; i++) {
        int place = i * THREADS + threadIdx.x;
        uint64_t pair = place < slices * count ? best[place] : 0;
        order[i] = (uint32_t)(pair >> 32);
        columns[i] = ~(uint32_t)pair;
    }
    int all = gather<OF_ROW>(order, [&](int i) { return columns[i]; }, count, kept);
    for (int i = threadIdx.x; i < all; i += THREADS) {
        int rank = rank_of(kept, all, kept[i]);
        if (rank >= count) continue;
        out[2 + 2 * rank] = (int)~(uint32_t)kept[i];
        out[3 + 2 * rank] = (int)float_to_bits(float_of((uint32_t)(kept[i] >> 32)));
    }
    if (threadIdx.x == 0) {
        int wrong = NOWHERE;
        for (int i = 0; i < slices; i++) wrong = min(wrong, bad[i]);
        out[0] = wrong == NOWHERE ? -1 : wrong;
        out[1] = wrong == NOWHERE ? 0 : (int)float_to_bits(rows[(long long)blockIdx.x * width + wrong]);
    }
}
REGISTER(best_of_rows)
