// Number formats of matrices. A row is planes of equal parts for each *group* of 256 columns, the last one filled up with
// zeros: codes, their upper bits, scales of each *chunk* of 32 columns, and numbers of the group. `src/layout.rs` writes it.
// The planes of codes lie as lanes of a warp want them: a quarter of a group belongs to the columns `4 t` to `4 t + 3` and
// `16 + 4 t` to `16 + 4 t + 3` of all chunks, two *quads* of codes for each.
#pragma once
#include "platform.cuh"

// What codes are made of.
enum Code { CODE2, CODE3, CODE4, CODE5, CODE6, CODE8, TABLE4 };
// How they are scaled: by an F16 number a chunk; with a minimum; 8-bit scale and minimum a chunk and two F16 for a
// group; 8-bit scales for half a chunk or a whole one and an F16 for a group; 4-bit scale and minimum for half a
// chunk; a power of two; an E4M3 for half a chunk.
enum Scale { HALF, AFFINE, SUPER_AFFINE, SUPER_HALVES, SUPER_SINGLE, SUPER_NIBBLES, EXPONENT, MINIFLOAT };

// What a table format's codes stand for, and a factor of its scales.
struct Constants {
    uint32_t table[4];
    float factor;
};

// A value is scale * code + minimum, with a pair for each half of a chunk.
struct Scales {
    float scale[2], minimum[2];
};

// Where a lane finds what it needs of a group: codes, upper bits, scales from a chunk on, numbers of the group.
struct Place {
    const unsigned char *codes, *high, *scale, *super;
};

DEVICE int groups_of(int chunks) { return (chunks + 7) / 8; }
DEVICE void words4(uint32_t to[4], const unsigned char* from) {
    uint4 v = load_once((const uint4*)from);
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

    static DEVICE_MEMBER void next(Place& place) {
        place.codes += CODE_BYTES;
        place.high += HIGH_BYTES;
        place.scale += 8 * SCALE_BYTES;
        place.super += SUPER_BYTES;
    }
    static DEVICE_MEMBER Place place(const unsigned char* row, int groups, int group, int t, int chunk) {
        const unsigned char* high = row + groups * CODE_BYTES;
        const unsigned char* scale = high + groups * HIGH_BYTES;
        return {row + group * CODE_BYTES + t * 16, high + group * HIGH_BYTES + t * (HIGH_BYTES / 4),
                scale + (group * 8 + chunk) * SCALE_BYTES, scale + groups * 8 * SCALE_BYTES + group * SUPER_BYTES};
    }
    // Codes and upper bits of half a group; scales of COUNT chunks, its multiples being the first, and the group's numbers.
    static DEVICE_MEMBER void load_half(uint32_t* codes, uint32_t* high, const Place& from, int half) {
        if (CODE == CODE8) {
            words4(codes, from.codes + half * 128);
            words4(codes + 4, from.codes + half * 128 + 64);
        } else if (NIBBLES) {
            words4(codes, from.codes + half * 64);
        } else {
            words2(codes, from.codes + half * 8);
        }
        if (HIGH_BYTES == 32) words2(high, from.high);
        if (HIGH_BYTES == 64) words2(high, from.high + half * 8);
    }
    template <int COUNT> static DEVICE_MEMBER void load_scales(uint32_t* words, uint32_t& super, const Place& from) {
        constexpr int BYTES = COUNT * SCALE_BYTES;
        if (BYTES == 2) words[0] = *(const uint16_t*)from.scale;
        if (BYTES == 4) words[0] = *(const uint32_t*)from.scale;
        if (BYTES == 8) words2(words, from.scale);
        if (BYTES >= 16) words4(words, from.scale);
        if (BYTES == 32) words4(words + 4, from.scale + 16);
        super = SUPER_BYTES == 4 ? *(const uint32_t*)from.super : SUPER_BYTES == 2 ? *(const uint16_t*)from.super : 0;
    }

    // Two quads of chunk `c` (0 to 3) of a half group from the words that have them; `second` says which half it is.
    static DEVICE_MEMBER void quads_of(uint32_t q[2], uint32_t w0, uint32_t w1, const uint32_t* high, int c, int second, const Constants& constants) {
        if (CODE == CODE8) {
            q[0] = w0;
            q[1] = w1;
        } else if (CODE == TABLE4) {
            // Selectors of four neighbours: nibbles of the word, even ones are of the first quad, odd ones of the second.
            uint32_t low = w0 & 0x77777777u, side = (w0 & 0x88888888u) >> 1;
            uint32_t pick = side | 0x32103210u;
            uint32_t first = __byte_perm(__byte_perm(constants.table[0], constants.table[1], low),
                                         __byte_perm(constants.table[2], constants.table[3], low), pick);
            low >>= 16;
            pick = (side >> 16) | 0x32103210u;
            uint32_t last = __byte_perm(__byte_perm(constants.table[0], constants.table[1], low),
                                        __byte_perm(constants.table[2], constants.table[3], low), pick);
            q[0] = __byte_perm(first, last, 0x6420);
            q[1] = __byte_perm(first, last, 0x7531);
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
    static DEVICE_MEMBER Chunk load_chunk(const unsigned char* row, int chunks, int chunk) {
        int groups = groups_of(chunks), half = chunk / 4, c = chunk % 4;
        Chunk loaded;
        loaded.place = chunk % 8;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            if (CODE == CODE8) words2(loaded.codes[t], row + half * 128 + c / 2 * 64 + t * 16 + c % 2 * 8);
            else if (NIBBLES) loaded.codes[t][0] = loaded.codes[t][1] = *(const uint32_t*)(row + half * 64 + t * 16 + c * 4);
            else words2(loaded.codes[t], row + half / 2 * 64 + t * 16 + half % 2 * 8);
            const unsigned char* upper = row + groups * CODE_BYTES;
            if (HIGH_BYTES == 32) words2(loaded.high[t], upper + half / 2 * 32 + t * 8);
            if (HIGH_BYTES == 64) words2(loaded.high[t], upper + half / 2 * 64 + t * 16 + half % 2 * 8);
        }
        const unsigned char* scales = row + groups * (CODE_BYTES + HIGH_BYTES);
        const unsigned char* scale = scales + chunk * SCALE_BYTES;
        const unsigned char* super = scales + groups * 8 * SCALE_BYTES + chunk / 8 * SUPER_BYTES;
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
