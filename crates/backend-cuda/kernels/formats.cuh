// Number formats of matrices. A matrix is cut into *tiles* of 16 rows, a tile into *blocks* of 256 columns (the last ones
// filled up with zeros), which follow each other: a tile is read from its start to its end. In a block are planes: codes,
// their upper bits, scales of each *chunk* of 32 columns, and numbers of the group of 256 columns; `src/layout.rs` writes it.
// Codes lie as lanes of a warp want them: lane `4 g + t` has of rows g and g + 8 the columns `4 t` to `4 t + 3` and
// `16 + 4 t` to `16 + 4 t + 3` of all chunks, two *quads* of codes for each; in 16 bytes is what it has of as many chunks as
// fit. The other planes have the rows one after the other, in these of upper bits again the lanes.
#pragma once
#include "platform.cuh"

// What codes are made of.
enum Code { CODE2, CODE3, CODE4, CODE5, CODE6, CODE8, TABLE4 };
// How they are scaled: by an F16 number a chunk; with a minimum; 8-bit scale and minimum a chunk and two F16 for a
// group; 8-bit scales for half a chunk or a whole one and an F16 for a group; 4-bit scale and minimum for half a
// chunk; a power of two; an E4M3 for half a chunk.
enum Scale { HALF, AFFINE, SUPER_AFFINE, SUPER_HALVES, SUPER_SINGLE, SUPER_NIBBLES, EXPONENT, MINIFLOAT };

// What a table format's codes stand for, negative numbers those below 8 and the others those from 8 on, and a factor of its scales.
struct Constants {
    uint32_t table[4];
    float factor;
};

// A value is scale * code + minimum, with a pair for each half of a chunk.
struct Scales {
    float scale[2], minimum[2];
};

DEVICE int groups_of(int chunks) { return (chunks + 7) / 8; }
// Memory that blocks are read from: weights as they lie there, or a copy in shared memory.
struct FromMemory {
    static DEVICE_MEMBER uint4 load(const uint4* from) { return load_once(from); }
};
struct FromShared {
    static DEVICE_MEMBER uint4 load(const uint4* from) { return *from; }
};
template <class M> DEVICE void words4(uint32_t to[4], const unsigned char* from) {
    uint4 v = M::load((const uint4*)from);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}
DEVICE void words2(uint32_t to[2], const unsigned char* from) {
    uint2 v = *(const uint2*)from;
    to[0] = v.x;
    to[1] = v.y;
}

template <int CODE, int SCALE, int OFFSET> struct Format {
    static constexpr bool NIBBLES = CODE == CODE4 || CODE == CODE5 || CODE == CODE6 || CODE == TABLE4;
    // Bytes of a group's codes, and of their upper bits.
    static constexpr int CODE_BYTES = CODE == CODE8 ? 256 : NIBBLES ? 128 : 64;
    static constexpr int HIGH_BYTES = CODE == CODE3 || CODE == CODE5 ? 32 : CODE == CODE6 ? 64 : 0;
    static constexpr int SCALE_BYTES = SCALE == AFFINE ? 4 : SCALE == EXPONENT || SCALE == SUPER_SINGLE ? 1 : 2;
    static constexpr int SUPER_BYTES = SCALE == SUPER_AFFINE || SCALE == SUPER_NIBBLES ? 4
                                       : SCALE == SUPER_HALVES || SCALE == SUPER_SINGLE ? 2 : 0;
    // Words of half a group that a lane has: codes, upper bits; of four chunks' scales.
    static constexpr int CODE_WORDS = CODE_BYTES / 32, HIGH_WORDS = HIGH_BYTES > 0 ? 2 : 0, SCALE_WORDS = SCALE_BYTES;
    // Two halves of 256, by which small scales are kept from vanishing.
    static constexpr uint32_t TIMES_256 = 0x5c005c00u;
    // Whether the two halves of a chunk are summed apart.
    static constexpr bool HALVES = SCALE == SUPER_HALVES || SCALE == SUPER_NIBBLES || SCALE == MINIFLOAT;
    static constexpr bool MINIMUM = SCALE == AFFINE || SCALE == SUPER_AFFINE || SCALE == SUPER_NIBBLES;
    // Signed codes; others are unsigned, and SHIFT is subtracted from them.
    static constexpr bool SIGNED = CODE == CODE8 || CODE == TABLE4;
    static constexpr int SHIFT = OFFSET;
    static constexpr int CODES = CODE;
    static constexpr bool TABLE = CODE == TABLE4;
    static constexpr bool SUPER_AFFINE_SCALES = SCALE == SUPER_AFFINE, SUPER_HALVES_SCALES = SCALE == SUPER_HALVES;

    // Bytes of a block; where planes begin in it; pieces of 16 bytes that a lane has of a row's codes.
    static constexpr int BLOCK = 16 * (CODE_BYTES + HIGH_BYTES + 8 * SCALE_BYTES + SUPER_BYTES);
    static constexpr int HIGH_AT = 16 * CODE_BYTES, SCALE_AT = HIGH_AT + 16 * HIGH_BYTES, SUPER_AT = SCALE_AT + 128 * SCALE_BYTES;
    static constexpr int PIECES = CODE_BYTES / 64;

    // The block of a row and a group.
    static DEVICE_MEMBER const unsigned char* block_of(const unsigned char* matrix, int row, int row_bytes, int group) {
        return matrix + (long long)(row / 16 * 16) * row_bytes + group * BLOCK;
    }
    // Codes and upper bits of half a group for lane 4 g + t, of row g or 8 + g.
    template <class M> static DEVICE_MEMBER void load_half(uint32_t* codes, uint32_t* high, const unsigned char* block, int lane, int side, int half) {
        const unsigned char* from = block + (side * PIECES * 32 + lane) * 16;
        if (CODE == CODE8) {
            words4<M>(codes, from + half * 1024);
            words4<M>(codes + 4, from + half * 1024 + 512);
        } else if (NIBBLES) {
            words4<M>(codes, from + half * 512);
        } else {
            words2(codes, from + half * 8);
        }
        const unsigned char* upper = block + HIGH_AT + side * 8 * HIGH_BYTES + lane * (HIGH_BYTES / 4);
        if (HIGH_BYTES == 32) words2(high, upper);
        if (HIGH_BYTES == 64) words2(high, upper + half * 8);
    }
    // Scales of COUNT chunks from `chunk` on, a multiple of COUNT, and the group's numbers.
    template <int COUNT, class M> static DEVICE_MEMBER void load_scales(uint32_t* words, uint32_t& super, const unsigned char* block, int row, int chunk) {
        constexpr int BYTES = COUNT * SCALE_BYTES;
        const unsigned char* from = block + SCALE_AT + (row * 8 + chunk) * SCALE_BYTES;
        if (BYTES == 2) words[0] = *(const uint16_t*)from;
        if (BYTES == 4) words[0] = *(const uint32_t*)from;
        if (BYTES == 8) words2(words, from);
        if (BYTES >= 16) words4<M>(words, from);
        if (BYTES == 32) words4<M>(words + 4, from + 16);
        const unsigned char* numbers = block + SUPER_AT + row * SUPER_BYTES;
        super = SUPER_BYTES == 4 ? *(const uint32_t*)numbers : SUPER_BYTES == 2 ? *(const uint16_t*)numbers : 0;
    }

    // Two quads of chunk `c` (0 to 3) of a half group from the words that have them; `second` says which half it is.
    static DEVICE_MEMBER void quads_of(uint32_t q[2], uint32_t w0, uint32_t w1, const uint32_t* high, int c, int second, const Constants& constants) {
        if (CODE == CODE8) {
            q[0] = w0;
            q[1] = w1;
        } else if (CODE == TABLE4) {
            // Selectors of four neighbours: those of the first quad are in the lower half of the word.
            uint32_t low = w0 & 0x77777777u, side = (w0 & 0x88888888u) >> 1;
            uint32_t pick = side | 0x32103210u;
            q[0] = __byte_perm(__byte_perm(constants.table[0], constants.table[1], low),
                               __byte_perm(constants.table[2], constants.table[3], low), pick);
            low >>= 16;
            pick = (side >> 16) | 0x32103210u;
            q[1] = __byte_perm(__byte_perm(constants.table[0], constants.table[1], low),
                               __byte_perm(constants.table[2], constants.table[3], low), pick);
        } else if (NIBBLES) {
            q[0] = w0 & 0x0f0f0f0fu;
            q[1] = (w0 >> 4) & 0x0f0f0f0fu;
        } else {
            q[0] = (w0 >> (2 * c)) & 0x03030303u;
            q[1] = (w1 >> (2 * c)) & 0x03030303u;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (CODE == CODE3) q[i] |= ((high[i] >> (second * 4 + c)) & 0x01010101u) << 2;
            if (CODE == CODE5) q[i] |= ((high[i] >> (second * 4 + c)) & 0x01010101u) << 4;
            if (CODE == CODE6) q[i] |= ((high[i] >> (2 * c)) & 0x03030303u) << 4;
        }
    }
    // The same from the words of a lane.
    static DEVICE_MEMBER void quads(uint32_t q[2], const uint32_t* codes, const uint32_t* high, int c, int second, const Constants& constants) {
        constexpr int FIRST = CODE == CODE8 ? 2 : NIBBLES ? 1 : 0, NEXT = NIBBLES ? 0 : 1;
        quads_of(q, codes[FIRST * c], codes[FIRST * c + NEXT], high, c, second, constants);
    }

    static DEVICE_MEMBER uint32_t scale_of(const uint32_t* words, int index) {
        return SCALE_BYTES == 4   ? words[index]
               : SCALE_BYTES == 2 ? (words[index / 2] >> (16 * (index % 2))) & 0xffff
                                  : (words[index / 4] >> (8 * (index % 4))) & 0xff;
    }
    static DEVICE_MEMBER Scales scales(uint32_t scale, uint32_t super, const Constants& constants) {
        Scales s;
        s.minimum[0] = s.minimum[1] = 0.0f;
        if (SCALE == HALF) s.scale[0] = s.scale[1] = half_to_float((uint16_t)scale);
        if (SCALE == AFFINE) {
            s.scale[0] = s.scale[1] = half_to_float((uint16_t)scale);
            s.minimum[0] = s.minimum[1] = half_to_float((uint16_t)(scale >> 16));
        }
        if (SCALE == SUPER_AFFINE) {
            s.scale[0] = s.scale[1] = half_to_float((uint16_t)super) * (float)(scale & 255);
            s.minimum[0] = s.minimum[1] = -half_to_float((uint16_t)(super >> 16)) * (float)(scale >> 8);
        }
        if (SCALE == SUPER_HALVES) {
            float d = half_to_float((uint16_t)super) * constants.factor;
            s.scale[0] = d * (float)(int8_t)scale;
            s.scale[1] = d * (float)(int8_t)(scale >> 8);
        }
        if (SCALE == SUPER_SINGLE)
            s.scale[0] = s.scale[1] = half_to_float((uint16_t)super) * constants.factor * (float)(int8_t)scale;
        if (SCALE == SUPER_NIBBLES) {
            float d = half_to_float((uint16_t)super), m = -half_to_float((uint16_t)(super >> 16));
            s.scale[0] = d * (float)(scale & 15);
            s.minimum[0] = m * (float)((scale >> 4) & 15);
            s.scale[1] = d * (float)((scale >> 8) & 15);
            s.minimum[1] = m * (float)(scale >> 12);
        }
        // Values are doubled, so the power is halved; the two lowest are subnormal.
        if (SCALE == EXPONENT)
            s.scale[0] = s.scale[1] = bits_to_float(scale < 2 ? 0x00200000u << scale : (scale - 1) << 23);
        // E4M3 read as F16 is 2^8 too small, and the values are doubled.
        if (SCALE == MINIFLOAT) {
            s.scale[0] = half_to_float((uint16_t)((scale & 255) << 7)) * constants.factor;
            s.scale[1] = half_to_float((uint16_t)((scale >> 8) << 7)) * constants.factor;
        }
        return s;
    }

    // Scales in fewer instructions: products of halves.
    static DEVICE_MEMBER Scales quick_scales(uint32_t scale, uint32_t super, const Constants& constants) {
        if (SCALE != SUPER_AFFINE) return scales(scale, super, constants);
        uint32_t bytes = subtract_halves(bytes_as_halves(scale, 0), 0x64006400u);
        uint32_t both = scale_halves(bytes, scale_halves(super, TIMES_256, 0), 0);
        Scales s;
        s.scale[0] = s.scale[1] = half_to_float((uint16_t)both) * (1.0f / 256.0f);
        s.minimum[0] = s.minimum[1] = half_to_float((uint16_t)(both >> 16)) * (-1.0f / 256.0f);
        return s;
    }

    // Scales and minima of both halves of a chunk, times 256, as pairs of equal halves; the same numbers as above, rounded.
    static DEVICE_MEMBER void half_scales(uint32_t factor[2], uint32_t minimum[2], uint32_t scale, uint32_t super, const Constants& constants) {
        if (SCALE == SUPER_AFFINE) {
            // Bytes as 1024 and more, then both products at once; the minimum is negative.
            uint32_t bytes = subtract_halves(bytes_as_halves(scale, 0), 0x64006400u);
            uint32_t both = scale_halves(bytes, scale_halves(super ^ 0x80000000u, TIMES_256, 0), 0);
            factor[0] = factor[1] = pair_of(both, 0);
            minimum[0] = minimum[1] = pair_of(both, 1);
        } else if (SCALE == HALF || SCALE == AFFINE) {
            uint32_t both = scale_halves(scale, TIMES_256, 0);
            factor[0] = factor[1] = pair_of(both, 0);
            minimum[0] = minimum[1] = SCALE == AFFINE ? pair_of(both, 1) : 0;
        } else {
            Scales s = scales(scale, super, constants);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                factor[i] = same_halves(s.scale[i] * 256.0f);
                minimum[i] = MINIMUM ? same_halves(s.minimum[i] * 256.0f) : 0;
            }
        }
    }

    // A whole chunk, for kernels that give one to a thread.
    struct Chunk {
        uint32_t codes[4][2];
        uint32_t high[4][2];
        uint32_t scale, super;
        int place;
    };
    static DEVICE_MEMBER Chunk load_chunk(const unsigned char* matrix, int row, int row_bytes, int chunk) {
        const unsigned char* block = block_of(matrix, row, row_bytes, chunk / 8);
        int half = chunk / 4 % 2, c = chunk % 4, side = row % 16 / 8, first = row % 8 * 4;
        Chunk loaded;
        loaded.place = chunk % 8;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const unsigned char* codes = block + (side * PIECES * 32 + first + t) * 16;
            if (CODE == CODE8) words2(loaded.codes[t], codes + half * 1024 + c / 2 * 512 + c % 2 * 8);
            else if (NIBBLES) loaded.codes[t][0] = loaded.codes[t][1] = *(const uint32_t*)(codes + half * 512 + c * 4);
            else words2(loaded.codes[t], codes + half * 8);
            const unsigned char* upper = block + HIGH_AT + side * 8 * HIGH_BYTES + (first + t) * (HIGH_BYTES / 4);
            if (HIGH_BYTES == 32) words2(loaded.high[t], upper);
            if (HIGH_BYTES == 64) words2(loaded.high[t], upper + half * 8);
        }
        const unsigned char* scale = block + SCALE_AT + (row % 16 * 8 + chunk % 8) * SCALE_BYTES;
        const unsigned char* super = block + SUPER_AT + row % 16 * SUPER_BYTES;
        loaded.scale = SCALE_BYTES == 4 ? *(const uint32_t*)scale : SCALE_BYTES == 2 ? *(const uint16_t*)scale : *scale;
        loaded.super = SUPER_BYTES == 4 ? *(const uint32_t*)super : SUPER_BYTES == 2 ? *(const uint16_t*)super : 0;
        return loaded;
    }
    // Its codes as bytes, four to a word, in the order of the columns.
    static DEVICE_MEMBER void chunk_codes(const Chunk& chunk, const Constants& constants, uint32_t q[8]) {
        int c = chunk.place % 4;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            uint32_t pair[2];
            quads_of(pair, chunk.codes[t][0], chunk.codes[t][1], chunk.high[t], c, chunk.place / 4, constants);
            q[t] = pair[0];
            q[4 + t] = pair[1];
        }
    }
};

// Name, layout.
#define QUANTISED_FORMATS(_)                              \
    _(code2_half, CODE2, HALF, 1)                         \
    _(code2_nibbles, CODE2, SUPER_NIBBLES, 0)             \
    _(code3_halves, CODE3, SUPER_HALVES, 4)               \
    _(code4_half, CODE4, HALF, 8)                         \
    _(code4_affine, CODE4, AFFINE, 0)                     \
    _(code4_super, CODE4, SUPER_AFFINE, 0)                \
    _(code5_half, CODE5, HALF, 16)                        \
    _(code5_affine, CODE5, AFFINE, 0)                     \
    _(code5_super, CODE5, SUPER_AFFINE, 0)                \
    _(code6_halves, CODE6, SUPER_HALVES, 32)              \
    _(code8_half, CODE8, HALF, 0)                         \
    _(table4_half, TABLE4, HALF, 0)                       \
    _(table4_single, TABLE4, SUPER_SINGLE, 0)             \
    _(table4_halves, TABLE4, SUPER_HALVES, 0)             \
    _(table4_exponent, TABLE4, EXPONENT, 0)               \
    _(table4_minifloat, TABLE4, MINIFLOAT, 0)

#define QUANTISED_TYPE(name, code, scale, offset) using F_##name = Format<code, scale, offset>;
QUANTISED_FORMATS(QUANTISED_TYPE)

// Formats of plain numbers.
struct Single {
    typedef float T;
    static DEVICE_MEMBER float value(T x) { return x; }
};
struct Half {
    typedef uint16_t T;
    static DEVICE_MEMBER float value(T x) { return half_to_float(x); }
};
struct Brain {
    typedef uint16_t T;
    static DEVICE_MEMBER float value(T x) { return brain_to_float(x); }
};
