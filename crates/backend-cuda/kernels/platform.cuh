// What the kernels need of their platform: the compiler of CUDA, or the emulation on the processor that tests use.
#pragma once

#ifdef PUNA_EMULATION
#include "emulation.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define NOT_INLINE __device__ __noinline__
#define KERNEL extern "C" __global__ void
#define BOUNDED(threads, blocks) __launch_bounds__(threads, blocks)
#define WITH_REGISTERS(count) __maxnreg__(count)
// Names a kernel for the emulation.
#define REGISTER(name)
#define SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]

DEVICE float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
DEVICE uint16_t float_to_half(float x) { return __half_as_ushort(__float2half_rn(x)); }
DEVICE float brain_to_float(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }
DEVICE uint16_t float_to_brain(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
// Two floats as bfloat16, the first in the low half.
DEVICE uint32_t pack_brain(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
}
DEVICE uint32_t pack_half(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
}
DEVICE uint32_t float_to_bits(float x) { return __float_as_uint(x); }
// Pairs of halves: two bytes of a word as 1024 + byte each; sums and products of pairs.
DEVICE uint32_t bytes_as_halves(uint32_t word, int side) { return __byte_perm(word, 0x64646464u, side ? 0x4342 : 0x4140); }
// One of two halves, twice.
DEVICE uint32_t pair_of(uint32_t pair, int side) { return __byte_perm(pair, 0, side ? 0x3232 : 0x1010); }
DEVICE uint32_t same_halves(float x) {
    __half2 pair = __float2half2_rn(x);
    return *reinterpret_cast<uint32_t*>(&pair);
}
DEVICE uint32_t subtract_halves(uint32_t a, uint32_t b) {
    __half2 r = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
    return *reinterpret_cast<uint32_t*>(&r);
}
DEVICE uint32_t scale_halves(uint32_t a, uint32_t b, uint32_t c) {
    __half2 r = __hfma2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b), *reinterpret_cast<__half2*>(&c));
    return *reinterpret_cast<uint32_t*>(&r);
}
DEVICE float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE int shuffle_xor(int x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE float fast_exp(float x) { return __expf(x); }
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Kernels of a step may start before the one they follow has ended; until this returns they touch only weights.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// From here on the next kernel may take what room there is.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Weights are read once: they need not stay in the first cache.
DEVICE uint4 load_once(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}
// Tells other blocks of the launch that what this thread's block wrote before is there, and waits until so many have told.
DEVICE void tell_blocks(int* counter) {
#if __CUDA_ARCH__ >= 700
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
#endif
}
DEVICE void wait_for_blocks(const int* counter, int count) {
#if __CUDA_ARCH__ >= 700
    int told;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(told) : "l"(counter) : "memory");
    while (told < count);
#endif
}
// A word in shared memory by which one warp tells another that what it read before may be written over.
DEVICE uint32_t load_acquired(const uint32_t* word) {
    uint32_t value;
#if __CUDA_ARCH__ >= 700
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"((uint32_t)__cvta_generic_to_shared(word)) : "memory");
#endif
    return value;
}
DEVICE void store_released(uint32_t* word, uint32_t value) {
#if __CUDA_ARCH__ >= 700
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(word)), "r"(value) : "memory");
#endif
}
// Waits for so many threads of the block.
DEVICE void sync_some(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }
// In a loop that waits for other threads.
DEVICE void let_others_run() {
#if __CUDA_ARCH__ >= 700
    __nanosleep(20);
#endif
}
// Fetches memory to the second cache; whole pieces of 16 bytes.
DEVICE void prefetch_bulk(const void* from, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
DEVICE void prefetch(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// c += a b for 16 x 32 and 32 x 8 signed bytes, in the fragments of `mma.m16n8k32`; and for 16 columns of these.
DEVICE void mma_bytes_half(int c[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
#else
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[0]), "+r"(c[1]) : "r"(a0), "r"(b));
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[2]), "+r"(c[3]) : "r"(a1), "r"(b));
#endif
}
DEVICE void mma_bytes(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    mma_bytes_half(c, a[0], a[1], b0);
    mma_bytes_half(c, a[2], a[3], b1);
#endif
}

// The same with unsigned bytes in the first.
DEVICE void mma_codes_half(int c[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(b));
#endif
}
DEVICE void mma_codes(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
// Adds the signed bytes of a word.
DEVICE int sum_of_bytes(uint32_t bytes, int sum) { return __dp4a((int)bytes, 0x01010101, sum); }
// Bytes of two words by the nibbles of the lower half of the last one; where a nibble is 8 or more, the sign of the byte instead.
DEVICE uint32_t permute_signed(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
    return result;
}

// c += a b for 16 x 16 and 16 x 8 elements of bfloat16, in the fragments of `mma.m16n8k16`.
DEVICE void mma_brain(float c[4], const uint32_t a[4], const uint32_t b[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}
// The same with half precision.
DEVICE void mma_half(float c[4], const uint32_t a[4], const uint32_t b[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}
// Four 8 x 8 matrices of 16-bit elements; lane `i` names row `i % 8` of matrix `i / 8`.
DEVICE void load_matrices(uint32_t r[4], const void* row) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
// The same, each transposed.
DEVICE void load_matrices_transposed(uint32_t r[4], const void* row) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
// An 8 x 8 matrix of 16-bit elements, of which lanes have pairs, transposed.
DEVICE uint32_t transposed_matrix(uint32_t pair) {
    uint32_t result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}
// 16 bytes from global to shared memory, on their own; zeros if not `valid`.
DEVICE void copy_async(void* to, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
#else
    *(uint4*)to = valid ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
#endif
}
// The same for the first `bytes` bytes; the others are zeros.
DEVICE void copy_async_bytes(void* to, const void* from, int bytes) {
#if __CUDA_ARCH__ >= 800
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
#else
    for (int i = 0; i < 4; i++) ((uint32_t*)to)[i] = 4 * i < bytes ? ((const uint32_t*)from)[i] : 0;
#endif
}
// The same for 4, 8 or 16 bytes.
template <int BYTES> DEVICE void copy_async_piece(void* to, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0));
#else
    for (int i = 0; i < BYTES / 4; i++) ((uint32_t*)to)[i] = valid ? ((const uint32_t*)from)[i] : 0;
#endif
}
// One word.
DEVICE void copy_async_word(int* to, const int* from) {
#if __CUDA_ARCH__ >= 800
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from));
#else
    *to = *from;
#endif
}
DEVICE void copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::);
#endif
}
template <int PENDING> DEVICE void copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
#endif
}
#include "group.cuh"
#endif

// Bodies of kernels that only devices with units for groups of warps are asked for, and of those that they are not asked for.
#if defined(PUNA_EMULATION)
#define GROUP_BODY(call) call;
#define OTHER_BODY(call) call;
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GROUP_BODY(call) call;
#define OTHER_BODY(call)
#else
#define GROUP_BODY(call)
#define OTHER_BODY(call) call;
#endif

// Small helpers of templates.
template <class A, class B> struct std_is_same {
    static constexpr bool value = false;
};
template <class A> struct std_is_same<A, A> {
    static constexpr bool value = true;
};
template <bool FIRST, class A, class B> struct chosen {
    typedef A type;
};
template <class A, class B> struct chosen<false, A, B> {
    typedef B type;
};
template <int A, int B> struct most_of {
    static constexpr int value = A > B ? A : B;
};
template <class T> struct pointed_by;
template <class T> struct pointed_by<T*> {
    typedef T type;
};

DEVICE float warp_sum(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
    return x;
}
DEVICE float warp_max(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}
// Sum over the threads of a block, at most 32 warps; every thread gets it.
DEVICE float block_sum(float x) {
    __shared__ float parts[32];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0.0f;
    return warp_sum(x);
}
DEVICE float block_max(float x) {
    __shared__ float parts[32];
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : -INFINITY;
    return warp_max(x);
}
// The sum of one number and the largest of another.
DEVICE void block_sum_max(float& sum, float& most) {
    __shared__ float2 parts[32];
    sum = warp_sum(sum);
    most = warp_max(most);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = make_float2(sum, most);
    __syncthreads();
    float2 part = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : make_float2(0.0f, -INFINITY);
    sum = warp_sum(part.x);
    most = warp_max(part.y);
}
