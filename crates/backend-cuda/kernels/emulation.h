// Kernels on the processor, for tests: every thread of a block is a fiber; blocks run one after the other.
// Collective operations switch to the next fiber until all that take part have arrived. x86-64 and g++ only.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tuple>
#include <utility>
#include <vector>

#define DEVICE static inline
#define DEVICE_MEMBER inline
#define NOT_INLINE
#define KERNEL static void
#define BOUNDED(threads, blocks)
#define WITH_REGISTERS(count)
#define __shared__ static
#define __restrict__
#define __constant__ static const
#define __device__ static
#define __grid_constant__
#define SHARED_BYTES(name) unsigned char* name = emulation::dynamic_shared

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
struct Index3 { unsigned x, y, z; };

namespace emulation {
enum State { READY, WARP, BLOCK, DONE };
struct Fiber {
    void* stack_pointer;
    State state;
    Index3 index;
    int parity;
};
constexpr int MOST = 1024;
constexpr size_t STACK = 96 * 1024;
inline unsigned char dynamic_shared[256 * 1024] __attribute__((aligned(128)));
inline Fiber fibers[MOST];
inline unsigned char* stacks = nullptr;
inline uint32_t slots[2][MOST][8];
inline void* scheduler_pointer;
inline int current;
// Threads that a barrier waits for, if not for all.
inline int wanted;
inline void (*body)(void**);
inline void** arguments;
}
inline Index3 threadIdx, blockIdx, blockDim, gridDim;

extern "C" void emulation_switch(void** save, void* load);
asm(R"(
.text
.weak emulation_switch
emulation_switch:
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    ret
)");

namespace emulation {
static inline void leave(State state) {
    Fiber& fiber = fibers[current];
    fiber.state = state;
    emulation_switch(&fiber.stack_pointer, scheduler_pointer);
}
static void entry() {
    body(arguments);
    leave(DONE);
    abort();
}
static inline void forget_copies(int threads);
// Runs the fibers of one block; false if they wait for each other for ever.
static inline bool run_block(int threads) {
    if (!stacks) stacks = (unsigned char*)aligned_alloc(4096, STACK * MOST);
    for (int i = 0; i < threads; i++) {
        void** top = (void**)(stacks + STACK * (i + 1)) - 2;
        *--top = nullptr;
        *--top = (void*)entry;
        for (int r = 0; r < 6; r++) *--top = nullptr;
        unsigned x = i % blockDim.x, y = i / blockDim.x % blockDim.y;
        fibers[i] = {top, READY, {x, y, i / (blockDim.x * blockDim.y)}, 0};
    }
    for (;;) {
        bool moved = false;
        int done = 0, at_block = 0;
        for (int first = 0; first < threads; first += 32) {
            int last = first + 32 < threads ? first + 32 : threads;
            for (int i = first; i < last; i++) {
                if (fibers[i].state != READY) continue;
                current = i;
                threadIdx = fibers[i].index;
                emulation_switch(&scheduler_pointer, fibers[i].stack_pointer);
                moved = true;
            }
            int waiting = 0, ended = 0;
            for (int i = first; i < last; i++) {
                waiting += fibers[i].state == WARP;
                ended += fibers[i].state == DONE;
                at_block += fibers[i].state == BLOCK;
            }
            done += ended;
            if (waiting > 0 && waiting + ended == last - first) {
                for (int i = first; i < last; i++)
                    if (fibers[i].state == WARP) fibers[i].state = READY;
                moved = true;
            }
        }
        if (done == threads) return true;
        if (at_block > 0 && (wanted > 0 ? at_block == wanted : at_block + done == threads)) {
            wanted = 0;
            for (int i = 0; i < threads; i++)
                if (fibers[i].state == BLOCK) fibers[i].state = READY;
            moved = true;
        }
        if (!moved) return false;
    }
}
// Gives each lane's words to all lanes of its warp; the result has 32 rows of 8 words.
static inline uint32_t (*exchange(const uint32_t* words, int count))[8] {
    Fiber& fiber = fibers[current];
    int parity = fiber.parity ^= 1;
    for (int i = 0; i < count; i++) slots[parity][current][i] = words[i];
    leave(WARP);
    return &slots[parity][current / 32 * 32];
}
static inline int lane() { return current % 32; }

template <class T> char kind() {
    return std::is_class<T>::value ? 's' : std::is_pointer<T>::value ? 'p' : std::is_same<T, float>::value ? 'f' : sizeof(T) == 8 ? 'l' : 'i';
}
template <class... A> struct Caller {
    template <void (*F)(A...), size_t... I> static void call(void** p, std::index_sequence<I...>) {
        F(*(A*)p[I]...);
    }
};
struct Entry {
    const char* name;
    void (*invoke)(void**);
    char kinds[64];
    Entry* next;
};
inline Entry* entries = nullptr;
template <class... A> struct Signature {
    template <void (*F)(A...)> static void invoke(void** p) {
        Caller<A...>::template call<F>(p, std::index_sequence_for<A...>());
    }
    static void kinds(char* out) {
        ((*out++ = kind<A>()), ...);
        *out = 0;
    }
};
template <class... A> Signature<A...> signature_of(void (*)(A...));
struct Registration {
    Entry entry;
    template <class S> Registration(const char* name, void (*invoke)(void**), S) {
        entry.name = name;
        entry.invoke = invoke;
        S::kinds(entry.kinds);
        entry.next = entries;
        entries = &entry;
    }
};
}
#define REGISTER(kernel)                                                                              \
    static emulation::Registration kernel##_registration(                                             \
        #kernel, &decltype(emulation::signature_of(kernel))::template invoke<kernel>,                 \
        decltype(emulation::signature_of(kernel))());

// Runs a kernel; gives null or what is wrong. `kinds` has a letter for each argument: p, l, i, f, s.
extern "C" inline __attribute__((used)) const char* emulation_launch(
    const char* name, const unsigned* grid, unsigned threads, unsigned shared, void** arguments, const char* kinds) {
    static char message[256];
    for (emulation::Entry* entry = emulation::entries; entry; entry = entry->next) {
        if (strcmp(entry->name, name)) continue;
        if (strcmp(entry->kinds, kinds)) {
            snprintf(message, sizeof message, "%s takes %s, got %s", name, entry->kinds, kinds);
            return message;
        }
        if (threads > 1024 || threads % 32 || shared > sizeof emulation::dynamic_shared) {
            snprintf(message, sizeof message, "%s: %u threads, %u bytes", name, threads, shared);
            return message;
        }
        blockDim = {threads, 1, 1};
        gridDim = {grid[0], grid[1], grid[2]};
        emulation::body = entry->invoke;
        emulation::arguments = arguments;
        for (unsigned z = 0; z < grid[2]; z++)
            for (unsigned y = 0; y < grid[1]; y++)
                for (unsigned x = 0; x < grid[0]; x++) {
                    blockIdx = {x, y, z};
                    memset(emulation::dynamic_shared, 0xff, shared);
                    emulation::forget_copies(threads);
                    if (!emulation::run_block(threads)) {
                        snprintf(message, sizeof message, "%s: threads wait for each other", name);
                        return message;
                    }
                }
        return nullptr;
    }
    snprintf(message, sizeof message, "no kernel %s", name);
    return message;
}

static inline void __syncthreads() { emulation::leave(emulation::BLOCK); }
static inline int __syncthreads_count(int predicate) {
    static int total;
    __syncthreads();
    total = 0;
    __syncthreads();
    total += predicate != 0;
    __syncthreads();
    return total;
}
static inline void sync_some(int threads) {
    emulation::wanted = threads;
    emulation::leave(emulation::BLOCK);
}
static inline uint32_t load_acquired(const uint32_t* word) { return *word; }
static inline void store_released(uint32_t* word, uint32_t value) { *word = value; }
static inline void let_others_run() { emulation::leave(emulation::READY); }
static inline void __syncwarp() { emulation::leave(emulation::WARP); }
static inline void __threadfence() {}
static inline float shuffle_xor(float x, int mask) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    auto rows = emulation::exchange(&bits, 1);
    float result;
    memcpy(&result, &rows[emulation::lane() ^ mask][0], 4);
    return result;
}
static inline int shuffle_xor(int x, int mask) {
    auto rows = emulation::exchange((uint32_t*)&x, 1);
    return (int)rows[emulation::lane() ^ mask][0];
}
static inline int atomicAdd(int* at, int x) {
    int old = *at;
    *at += x;
    return old;
}
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) result |= (uint32_t)(uint8_t)(both >> (8 * ((selector >> (4 * i)) & 7))) << (8 * i);
    return result;
}
static inline uint32_t permute_signed(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t result = __byte_perm(a, b, selector);
    for (int i = 0; i < 4; i++)
        if (selector >> (4 * i) & 8) result = (result & ~(255u << (8 * i))) | ((result >> (8 * i) & 128 ? 255u : 0) << (8 * i));
    return result;
}
static inline float bits_to_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint32_t float_to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
static inline float half_to_float(uint16_t bits) {
    _Float16 x;
    memcpy(&x, &bits, 2);
    return (float)x;
}
static inline uint16_t float_to_half(float x) {
    _Float16 h = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}
static inline float brain_to_float(uint16_t bits) { return bits_to_float((uint32_t)bits << 16); }
static inline uint16_t float_to_brain(float x) {
    uint32_t bits = float_to_bits(x);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static inline uint32_t pack_brain(float low, float high) {
    return float_to_brain(low) | (uint32_t)float_to_brain(high) << 16;
}
static inline uint32_t pack_half(float low, float high) {
    return float_to_half(low) | (uint32_t)float_to_half(high) << 16;
}
static inline uint32_t bytes_as_halves(uint32_t word, int side) { return __byte_perm(word, 0x64646464u, side ? 0x4342 : 0x4140); }
static inline uint32_t merge_bits(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }
static inline uint32_t pair_of(uint32_t pair, int side) { return __byte_perm(pair, 0, side ? 0x3232 : 0x1010); }
static inline uint32_t same_halves(float x) { return pack_half(x, x); }
static inline float half_of(uint32_t pair, int side) { return half_to_float((uint16_t)(pair >> (16 * side))); }
static inline uint32_t subtract_halves(uint32_t a, uint32_t b) {
    return pack_half(half_of(a, 0) - half_of(b, 0), half_of(a, 1) - half_of(b, 1));
}
static inline uint32_t scale_halves(uint32_t a, uint32_t b, uint32_t c) {
    return pack_half(half_of(a, 0) * half_of(b, 0) + half_of(c, 0), half_of(a, 1) * half_of(b, 1) + half_of(c, 1));
}
static inline float fast_exp(float x) { return expf(x); }
static inline float fast_exp2(float x) { return exp2f(x); }
static inline void sincospif(float x, float* s, float* c) { *s = (float)sin(M_PI * x); *c = (float)cos(M_PI * x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline void wait_for_previous() {}
static inline void let_next_start() {}
static inline void prefetch(const void*) {}
static inline void prefetch_bulk(const void*, int) {}
// Blocks run one after the other, so they may only wait for those before.
static inline void tell_blocks(int* counter) { ++*counter; }
static inline void wait_for_blocks(const int* counter, int count) {
    if (*counter < count) abort();
}
static inline int share_of_blocks(int* counter, int count) {
    static int share;
    if (threadIdx.x == 0) {
        share = ++*counter == count ? count : -1;
        if (share > 0) *counter = 0;
    }
    __syncthreads();
    return share;
}
static inline void leave_blocks(int*, int) {}
static inline uint4 load_once(const uint4* from) { return *from; }
template <class Convert> static void multiply(float c[4], const uint32_t a[4], const uint32_t b[2], Convert convert) {
    uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    auto rows = emulation::exchange(words, 6);
    int lane = emulation::lane();
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        float sum = 0.0f;
        for (int k = 0; k < 16; k++) {
            uint32_t wa = rows[row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)];
            uint32_t wb = rows[column * 4 + k % 8 / 2][4 + k / 8];
            sum += convert((uint16_t)(wa >> (16 * (k % 2)))) * convert((uint16_t)(wb >> (16 * (k % 2))));
        }
        c[i] += sum;
    }
}
static inline void mma_brain(float c[4], const uint32_t a[4], const uint32_t b[2]) { multiply(c, a, b, brain_to_float); }
static inline void mma_half(float c[4], const uint32_t a[4], const uint32_t b[2]) { multiply(c, a, b, half_to_float); }
static inline void load_matrices(uint32_t r[4], const void* row) {
    auto rows = emulation::exchange((const uint32_t*)&row, 2);
    int lane = emulation::lane();
    for (int i = 0; i < 4; i++) {
        const char* from;
        memcpy(&from, rows[8 * i + lane / 4], 8);
        memcpy(&r[i], from + lane % 4 * 4, 4);
    }
}
static inline void load_matrices_transposed(uint32_t r[4], const void* row) {
    auto rows = emulation::exchange((const uint32_t*)&row, 2);
    int lane = emulation::lane();
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int j = 0; j < 2; j++) {
            const char* from;
            memcpy(&from, rows[8 * i + lane % 4 * 2 + j], 8);
            memcpy(&pair[j], from + lane / 4 * 2, 2);
        }
        memcpy(&r[i], pair, 4);
    }
}
static inline uint32_t transposed_matrix(uint32_t pair) {
    auto rows = emulation::exchange(&pair, 1);
    int lane = emulation::lane(), side = lane / 4 % 2;
    // Element `lane / 4` of two neighbouring rows.
    uint32_t first = rows[lane % 4 * 8 + lane / 8][0], second = rows[lane % 4 * 8 + 4 + lane / 8][0];
    return (first >> 16 * side & 0xffff) | (second >> 16 * side) << 16;
}
// Copies that run on their own take their places at once, which then hold no numbers, and bring bytes as late as they may: when somebody
// waits for them and all others have gone on as far as they can. So what reads too early, or fills anew what is still read, goes wrong.
namespace emulation {
struct Copy {
    unsigned char* to;
    const unsigned char* from;
    // What is brought, and what is filled with zeros after it.
    int bytes, whole, group;
    void end() const {
        memcpy(to, from, bytes);
        memset(to + bytes, 0, whole - bytes);
    }
};
// Copies that end before an arrival at a barrier, or bytes that arrive there.
struct Arrival {
    unsigned char* barrier;
    int arrivals, bytes;
    std::vector<Copy> copies;
};
inline std::vector<Copy> copies[MOST];
inline int groups[MOST];
inline std::vector<Arrival> arrivals;
// Turns of all others before copies end.
constexpr int LATE = 3;

static inline void forget_copies(int threads) {
    for (int i = 0; i < threads; i++) {
        copies[i].clear();
        groups[i] = 0;
    }
    arrivals.clear();
}
static inline void start_copy(void* to, const void* from, int bytes, int whole) {
    memset(to, 0xff, whole);
    copies[current].push_back({(unsigned char*)to, (const unsigned char*)from, bytes, whole, groups[current]});
}
}
static inline void copy_async(void* to, const void* from, bool valid) { emulation::start_copy(to, from, valid ? 16 : 0, 16); }
static inline void copy_async_bytes(void* to, const void* from, int bytes) { emulation::start_copy(to, from, bytes, 16); }
template <int BYTES> static inline void copy_async_piece(void* to, const void* from, bool valid) {
    emulation::start_copy(to, from, valid ? BYTES : 0, BYTES);
}
static inline void copy_async_word(int* to, const int* from) { emulation::start_copy(to, from, 4, 4); }
static inline void copy_commit() { emulation::groups[emulation::current]++; }
template <int PENDING> static inline void copy_wait() {
    auto& copies = emulation::copies[emulation::current];
    int last = emulation::groups[emulation::current] - PENDING;
    if (copies.empty() || copies[0].group >= last) return;
    for (int i = 0; i < emulation::LATE; i++) emulation::leave(emulation::READY);
    size_t ended = 0;
    while (ended < copies.size() && copies[ended].group < last) copies[ended++].end();
    copies.erase(copies.begin(), copies.begin() + ended);
}

static inline int add_bytes(uint32_t a, uint32_t b, bool is_signed, int sum) {
    for (int i = 0; i < 4; i++) {
        int left = a >> (8 * i) & 255;
        sum += (is_signed ? (int8_t)left : left) * (int8_t)(b >> (8 * i));
    }
    return sum;
}
static inline int sum_of_bytes(uint32_t bytes, int sum) { return add_bytes(bytes, 0x01010101u, true, sum); }
static inline void multiply_bytes(int c[4], const uint32_t* a, const uint32_t* b, int halves, bool is_signed) {
    uint32_t words[6] = {a[0], a[1], halves == 2 ? a[2] : 0, halves == 2 ? a[3] : 0, b[0], halves == 2 ? b[1] : 0};
    auto rows = emulation::exchange(words, 6);
    int lane = emulation::lane();
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < halves; half++)
            for (int t = 0; t < 4; t++)
                c[i] = add_bytes(rows[lane / 4 * 4 + t][2 * half + i / 2], rows[(lane % 4 * 2 + i % 2) * 4 + t][4 + half], is_signed, c[i]);
}
static inline void mma_bytes(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    uint32_t b[2] = {b0, b1};
    multiply_bytes(c, a, b, 2, true);
}
static inline void mma_bytes_half(int c[4], uint32_t a0, uint32_t a1, uint32_t b) {
    uint32_t a[2] = {a0, a1};
    multiply_bytes(c, a, &b, 1, true);
}
static inline void mma_codes(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    uint32_t b[2] = {b0, b1};
    multiply_bytes(c, a, b, 2, false);
}
static inline void mma_codes_half(int c[4], uint32_t a0, uint32_t a1, uint32_t b) {
    uint32_t a[2] = {a0, a1};
    multiply_bytes(c, a, &b, 1, false);
}

// Barriers of 64 bits: phase, arrivals that are wanted, arrivals that are missing.
static inline unsigned char* aligned_shared(unsigned char* p) { return p + (-(uintptr_t)p & 1023u); }
typedef unsigned char* SharedPlace;
static inline SharedPlace shared_place(void* p) { return (unsigned char*)p; }
static inline uint64_t& barrier_at(SharedPlace barrier) { return *(uint64_t*)barrier; }
static inline void barrier_start(SharedPlace barrier, int count) { barrier_at(barrier) = (uint64_t)count << 16 | (uint64_t)count; }
static inline void barrier_fence() {}
// Of a barrier's state: arrivals that are missing, all arrivals of a phase, the phase's parity, bytes that are missing.
static inline void barrier_change(SharedPlace barrier, int arrivals, int bytes) {
    uint64_t& state = barrier_at(barrier);
    state += ((uint64_t)(int64_t)bytes << 33) - arrivals;
    if ((state & 0xffff) == 0 && state >> 33 == 0) state = (state ^ (uint64_t)1 << 32) | (state >> 16 & 0xffff);
}
static inline void barrier_arrive(SharedPlace barrier) { barrier_change(barrier, 1, 0); }
static inline void barrier_expect(SharedPlace barrier, int bytes) { barrier_change(barrier, 1, bytes); }
static inline void barrier_arrive_after_copies(SharedPlace barrier) {
    emulation::arrivals.push_back({barrier, 1, 0, std::move(emulation::copies[emulation::current])});
    emulation::copies[emulation::current].clear();
}
static inline void copy_bulk(SharedPlace to, const void* from, int bytes, SharedPlace barrier) {
    memset(to, 0xff, bytes);
    emulation::arrivals.push_back({barrier, 0, bytes, {{to, (const unsigned char*)from, bytes, bytes, 0}}});
}
// Ends what was to arrive at a barrier.
static inline void end_arrivals(SharedPlace barrier) {
    auto& all = emulation::arrivals;
    size_t kept = 0;
    for (size_t i = 0; i < all.size(); i++) {
        if (all[i].barrier == barrier) {
            for (auto& copy : all[i].copies) copy.end();
            barrier_change(barrier, all[i].arrivals, -all[i].bytes);
        } else {
            if (kept != i) all[kept] = std::move(all[i]);
            kept++;
        }
    }
    all.resize(kept);
}
static inline void barrier_wait(SharedPlace barrier, int parity) {
    for (int i = 0; (int)(barrier_at(barrier) >> 32 & 1) == parity; i++) {
        if (i > 1000000) abort();
        if (i >= emulation::LATE) end_arrivals(barrier);
        emulation::leave(emulation::READY);
    }
}
template <int COUNT, bool MORE> static inline void group_registers() {}
static inline void group_fence() {}
static inline void group_keep(uint32_t*, int) {}
static inline void group_commit() {}
template <int PENDING> static inline void group_wait() {}
template <int COLUMNS> static inline void multiply_tile(float* c, const uint32_t a[4], SharedPlace tile, int k) {
    auto rows = emulation::exchange(a, 4);
    int lane = emulation::lane(), t = lane % 4;
    float left[2][16];
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 16; i++)
            left[r][i] = half_of(rows[lane / 4 * 4 + i % 8 / 2][r + i / 8 * 2], i % 2);
    for (int column = 0; column < COLUMNS; column++) {
        if (column % 8 / 2 != t) continue;
        float right[16];
        for (int i = 0; i < 16; i++) {
            uint16_t bits;
            memcpy(&bits, tile + column * 128 + (((k * 2 + i / 8) ^ (column & 7)) * 16) + i % 8 * 2, 2);
            right[i] = half_to_float(bits);
        }
        for (int r = 0; r < 2; r++) {
            float sum = 0.0f;
            for (int i = 0; i < 16; i++) sum += left[r][i] * right[i];
            c[column / 8 * 4 + 2 * r + column % 2] += sum;
        }
    }
}
