// Number formats of matrices. A row is planes of equal parts for each *chunk* of 32 columns: codes, their upper bits,
// scales, and numbers for each eight chunks. `src/layout.rs` writes it; the order of codes is said there.
#pragma once
#include "platform.cuh"

// What codes are made of.
enum Code { CODE2, CODE3, CODE4, CODE5, CODE6, CODE8, TABLE4 };
// How they are scaled: by an F16 number a chunk; with a minimum; 8-bit scale and minimum a chunk and two F16 for eight
// chunks; 8-bit scales for half a chunk or a whole one and an F16 for eight; 4-bit scale and minimum for half a
// chunk; a power of two; an E4M3 for half a chunk.
enum Scale { HALF, AFFINE, SUPER_AFFINE, SUPER_HALVES, SUPER_SINGLE, SUPER_NIBBLES, EXPONENT, MINIFLOAT };

// What a table format's codes stand for, and a factor of its scales.
struct Constants {
    uint32_t table[4];
    float factor;
};

// A chunk as it is in memory.
struct Raw {
    uint32_t codes[8];
    uint32_t high[2];
    uint32_t scale, super;
};

// A value is scale * code + minimum, with a pair for each half of a chunk.
struct Scales {
    float scale[2], minimum[2];
};

template <int CODE, int SCALE, int OFFSET> struct Format {
    static constexpr int CODE_BYTES = CODE == CODE8 ? 32 : CODE == CODE2 || CODE == CODE3 ? 8 : 16;
    static constexpr int HIGH_BYTES = CODE == CODE3 || CODE == CODE5 ? 4 : CODE == CODE6 ? 8 : 0;
    static constexpr int SCALE_BYTES = SCALE == AFFINE ? 4 : SCALE == EXPONENT || SCALE == SUPER_SINGLE ? 1 : 2;
    static constexpr int SUPER_BYTES = SCALE == SUPER_AFFINE || SCALE == SUPER_NIBBLES ? 4
                                       : SCALE == SUPER_HALVES || SCALE == SUPER_SINGLE ? 2 : 0;
    // Whether the two halves of a chunk are summed apart.
    static constexpr bool HALVES = SCALE == SUPER_HALVES || SCALE == SUPER_NIBBLES || SCALE == MINIFLOAT;
    static constexpr bool MINIMUM = SCALE == AFFINE || SCALE == SUPER_AFFINE || SCALE == SUPER_NIBBLES;
    static constexpr bool TABLE = CODE == TABLE4;
    // Subtracted from codes.
    static constexpr int SHIFT = OFFSET;

    static DEVICE_MEMBER Raw load(const unsigned char* row, int chunks, int chunk) {
        Raw raw;
        const unsigned char* at = row + (long long)chunk * CODE_BYTES;
        if (CODE_BYTES == 8) {
            uint2 v = *(const uint2*)at;
            raw.codes[0] = v.x;
            raw.codes[1] = v.y;
        } else {
            uint4 v = load_once((const uint4*)at);
            raw.codes[0] = v.x;
            raw.codes[1] = v.y;
            raw.codes[2] = v.z;
            raw.codes[3] = v.w;
        }
        if (CODE_BYTES == 32) {
            uint4 v = load_once((const uint4*)(at + 16));
            raw.codes[4] = v.x;
            raw.codes[5] = v.y;
            raw.codes[6] = v.z;
            raw.codes[7] = v.w;
        }
        const unsigned char* high = row + chunks * CODE_BYTES + chunk * HIGH_BYTES;
        if (HIGH_BYTES == 4) raw.high[0] = *(const uint32_t*)high;
        if (HIGH_BYTES == 8) {
            uint2 v = *(const uint2*)high;
            raw.high[0] = v.x;
            raw.high[1] = v.y;
        }
        const unsigned char* scales = row + chunks * (CODE_BYTES + HIGH_BYTES);
        const unsigned char* scale = scales + chunk * SCALE_BYTES;
        raw.scale = SCALE_BYTES == 4 ? *(const uint32_t*)scale : SCALE_BYTES == 2 ? *(const uint16_t*)scale : *scale;
        if (SUPER_BYTES > 0) {
            const unsigned char* super = scales + chunks * SCALE_BYTES + chunk / 8 * SUPER_BYTES;
            raw.super = SUPER_BYTES == 4 ? *(const uint32_t*)super : *(const uint16_t*)super;
        }
        return raw;
    }

    // Codes as bytes, four to a word, in the order of the columns; signed for tables and codes of eight bits.
    static DEVICE_MEMBER void codes(const Raw& raw, const Constants& constants, uint32_t q[8]) {
#pragma unroll
        for (int w = 0; w < 8; w++) {
            if (CODE == CODE8) q[w] = raw.codes[w];
            else if (CODE == CODE2 || CODE == CODE3) q[w] = (raw.codes[w / 4] >> (2 * (w % 4))) & 0x03030303u;
            else q[w] = (raw.codes[w % 4] >> (4 * (w / 4))) & 0x0f0f0f0fu;
            if (CODE == CODE3) q[w] |= ((raw.high[0] >> w) & 0x01010101u) << 2;
            if (CODE == CODE5) q[w] |= ((raw.high[0] >> w) & 0x01010101u) << 4;
            if (CODE == CODE6) q[w] |= ((raw.high[w / 4] >> (2 * (w % 4))) & 0x03030303u) << 4;
        }
        if (CODE == TABLE4) {
#pragma unroll
            for (int w = 0; w < 4; w++) {
                // Selectors of four neighbours: nibbles of the word, even ones are columns 4 w.., odd ones 16 + 4 w...
                uint32_t low = raw.codes[w] & 0x77777777u, side = (raw.codes[w] & 0x88888888u) >> 1;
                uint32_t pick = side | 0x32103210u;
                uint32_t first = __byte_perm(__byte_perm(constants.table[0], constants.table[1], low),
                                             __byte_perm(constants.table[2], constants.table[3], low), pick);
                low >>= 16;
                pick = (side >> 16) | 0x32103210u;
                uint32_t second = __byte_perm(__byte_perm(constants.table[0], constants.table[1], low),
                                              __byte_perm(constants.table[2], constants.table[3], low), pick);
                q[w] = __byte_perm(first, second, 0x6420);
                q[4 + w] = __byte_perm(first, second, 0x7531);
            }
        }
    }

    static DEVICE_MEMBER Scales scales(const Raw& raw, const Constants& constants) {
        Scales s;
        s.minimum[0] = s.minimum[1] = 0.0f;
        if (SCALE == HALF) s.scale[0] = s.scale[1] = half_to_float((uint16_t)raw.scale);
        if (SCALE == AFFINE) {
            s.scale[0] = s.scale[1] = half_to_float((uint16_t)raw.scale);
            s.minimum[0] = s.minimum[1] = half_to_float((uint16_t)(raw.scale >> 16));
        }
        if (SCALE == SUPER_AFFINE) {
            s.scale[0] = s.scale[1] = half_to_float((uint16_t)raw.super) * (float)(raw.scale & 255);
            s.minimum[0] = s.minimum[1] = -half_to_float((uint16_t)(raw.super >> 16)) * (float)(raw.scale >> 8);
        }
        if (SCALE == SUPER_HALVES) {
            float d = half_to_float((uint16_t)raw.super) * constants.factor;
            s.scale[0] = d * (float)(int8_t)raw.scale;
            s.scale[1] = d * (float)(int8_t)(raw.scale >> 8);
        }
        if (SCALE == SUPER_SINGLE)
            s.scale[0] = s.scale[1] = half_to_float((uint16_t)raw.super) * constants.factor * (float)(int8_t)raw.scale;
        if (SCALE == SUPER_NIBBLES) {
            float d = half_to_float((uint16_t)raw.super), m = -half_to_float((uint16_t)(raw.super >> 16));
            s.scale[0] = d * (float)(raw.scale & 15);
            s.minimum[0] = m * (float)((raw.scale >> 4) & 15);
            s.scale[1] = d * (float)((raw.scale >> 8) & 15);
            s.minimum[1] = m * (float)(raw.scale >> 12);
        }
        // Values are doubled, so the power is halved; the two lowest are subnormal.
        if (SCALE == EXPONENT)
            s.scale[0] = s.scale[1] = bits_to_float(raw.scale < 2 ? 0x00200000u << raw.scale : (raw.scale - 1) << 23);
        // E4M3 read as F16 is 2^8 too small, and the values are doubled.
        if (SCALE == MINIFLOAT) {
            s.scale[0] = half_to_float((uint16_t)((raw.scale & 255) << 7)) * constants.factor;
            s.scale[1] = half_to_float((uint16_t)((raw.scale >> 8) << 7)) * constants.factor;
        }
        return s;
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
