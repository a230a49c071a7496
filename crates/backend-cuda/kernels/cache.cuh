// Rows of keys and values in the formats a cache may have, numbered as GGUF types.
#pragma once
#include "platform.cuh"

enum CacheFormat { CACHE_F32 = 0, CACHE_F16 = 1, CACHE_Q4_0 = 2, CACHE_Q4_1 = 3, CACHE_Q5_0 = 6, CACHE_Q5_1 = 7, CACHE_Q8_0 = 8, CACHE_IQ4_NL = 20, CACHE_BF16 = 30 };

DEVICE uint32_t unaligned(const unsigned char* at) { return *(const uint16_t*)at | (uint32_t)*(const uint16_t*)(at + 2) << 16; }
DEVICE float iq4_value(int code) {
    // Four values to a word.
    uint32_t words[4] = {0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u};
    return (float)(int8_t)(words[code / 4] >> (8 * (code % 4)));
}

// Element `i` of a row.
DEVICE float cache_element(const unsigned char* row, int format, int i) {
    switch (format) {
    case CACHE_F32: return ((const float*)row)[i];
    case CACHE_F16: return half_to_float(((const uint16_t*)row)[i]);
    case CACHE_BF16: return brain_to_float(((const uint16_t*)row)[i]);
    }
    int block = i / 32, at = i % 32, nibble = at % 16, shift = at / 16 * 4;
    switch (format) {
    case CACHE_Q8_0: {
        const unsigned char* b = row + block * 34;
        return half_to_float(*(const uint16_t*)b) * (float)(int8_t)b[2 + at];
    }
    case CACHE_Q4_0: {
        const unsigned char* b = row + block * 18;
        return half_to_float(*(const uint16_t*)b) * (float)(((b[2 + nibble] >> shift) & 15) - 8);
    }
    case CACHE_IQ4_NL: {
        const unsigned char* b = row + block * 18;
        return half_to_float(*(const uint16_t*)b) * iq4_value((b[2 + nibble] >> shift) & 15);
    }
    case CACHE_Q4_1: {
        const unsigned char* b = row + block * 20;
        return half_to_float(*(const uint16_t*)b) * (float)((b[4 + nibble] >> shift) & 15) + half_to_float(*(const uint16_t*)(b + 2));
    }
    case CACHE_Q5_0: {
        const unsigned char* b = row + block * 22;
        int high = (unaligned(b + 2) >> at) & 1;
        return half_to_float(*(const uint16_t*)b) * (float)((((b[6 + nibble] >> shift) & 15) | high << 4) - 16);
    }
    default: {
        const unsigned char* b = row + block * 24;
        int high = (unaligned(b + 4) >> at) & 1;
        return half_to_float(*(const uint16_t*)b) * (float)(((b[8 + nibble] >> shift) & 15) | high << 4) + half_to_float(*(const uint16_t*)(b + 2));
    }
    }
}

DEVICE int clamped(float x, int most) { return min(max((int)x, 0), most); }

// Encodes 32 numbers `x[at]`, one for each lane of a warp, as block `block` of a row.
DEVICE void store_block(unsigned char* row, int format, int block, float x) {
    int lane = threadIdx.x % 32;
    float low = x, high = x;
    for (int mask = 16; mask > 0; mask >>= 1) {
        low = fminf(low, shuffle_xor(low, mask));
        high = fmaxf(high, shuffle_xor(high, mask));
    }
    float peak = fmaxf(-low, high), end = -low >= high ? low : high;
    bool affine = format == CACHE_Q4_1 || format == CACHE_Q5_1;
    int levels = format == CACHE_Q5_0 || format == CACHE_Q5_1 ? 31 : 15;
    if (format == CACHE_Q8_0) {
        float d = peak / 127.0f, back = d == 0.0f ? 0.0f : 1.0f / d;
        unsigned char* b = row + block * 34;
        b[2 + lane] = (unsigned char)(int8_t)(int)roundf(x * back);
        if (lane == 0) *(uint16_t*)b = float_to_half(d);
        return;
    }
    float d = affine ? (high - low) / levels : end / -((levels + 1) / 2);
    float minimum = affine ? low : 0.0f;
    int code;
    if (format == CACHE_IQ4_NL) {
        d = end / -127.0f;
        float back = d == 0.0f ? 0.0f : 1.0f / d, best = INFINITY;
        code = 0;
        for (int i = 0; i < 16; i++) {
            float error = fabsf(x * back - iq4_value(i));
            if (error < best) {
                best = error;
                code = i;
            }
        }
    } else {
        float back = d == 0.0f ? 0.0f : 1.0f / d;
        code = affine ? clamped((x - minimum) * back + 0.5f, levels) : clamped(x * back + (levels + 1) / 2 + 0.5f, levels);
    }
    int partner = shuffle_xor(code, 16);
    uint32_t bits = code >> 4 << lane;
    for (int mask = 16; mask > 0; mask >>= 1) bits |= (uint32_t)shuffle_xor((int)bits, mask);
    int head = format == CACHE_Q4_0 || format == CACHE_IQ4_NL ? 2 : format == CACHE_Q4_1 ? 4 : format == CACHE_Q5_0 ? 6 : 8;
    unsigned char* b = row + block * (head + 16);
    if (lane < 16) b[head + lane] = (unsigned char)((code & 15) | (partner & 15) << 4);
    if (lane == 0) {
        *(uint16_t*)b = float_to_half(d);
        if (affine) *(uint16_t*)(b + 2) = float_to_half(minimum);
        if (levels == 31) {
            *(uint16_t*)(b + head - 4) = (uint16_t)bits;
            *(uint16_t*)(b + head - 2) = (uint16_t)(bits >> 16);
        }
    }
}

DEVICE void store_element(unsigned char* row, int format, int i, float x) {
    if (format == CACHE_F32) ((float*)row)[i] = x;
    else if (format == CACHE_F16) ((uint16_t*)row)[i] = float_to_half(fminf(fmaxf(x, -65504.0f), 65504.0f));
    else ((uint16_t*)row)[i] = float_to_brain(x);
}

// The cells of one sequence of the step. A span is seven integers: first row, end row, first range, ranges, cells, and for
// recurrences two more; a range is first cell and end cell.
#define SPAN 7
struct Cells {
    const int* ranges;
    int count, total, first;
    // The cell at a place in the list of the span's cells.
    DEVICE_MEMBER int at(int index) const { return count == 1 ? first + index : search(ranges, count, index); }
    // The place of a cell in the list, or -1.
    DEVICE_MEMBER int index_of(int cell) const {
        int before = 0;
        for (int i = 0; i < count; i++) {
            if (cell >= ranges[2 * i] && cell < ranges[2 * i + 1]) return before + cell - ranges[2 * i];
            before += ranges[2 * i + 1] - ranges[2 * i];
        }
        return -1;
    }
    static NOT_INLINE int search(const int* ranges, int count, int index) {
        for (int i = 0; i < count; i++) {
            int length = ranges[2 * i + 1] - ranges[2 * i];
            if (index < length) return ranges[2 * i] + index;
            index -= length;
        }
        return 0;
    }
};
DEVICE Cells cells_of(const int* span, const int* ranges) {
    Cells cells;
    cells.ranges = ranges + 2 * span[2];
    cells.count = span[3];
    cells.total = span[4];
    cells.first = cells.count > 0 ? cells.ranges[0] : 0;
    return cells;
}

// The positions that a query sees, first and last.
struct Sight {
    int low, high;
    DEVICE_MEMBER bool sees(int key) const { return key >= low && key <= high; }
};
#define LEAST_POSITION (-2147483647 - 1)
// Rules as in `gpu::codes`.
DEVICE Sight sight(int rule, int number, int query) {
    Sight s = {LEAST_POSITION, query};
    if (rule == 1 && number > 0 && query >= LEAST_POSITION + number) s.low = query - number + 1;
    if (rule == 2) {
        int size = number > 1 ? number : number < 0 ? 2147483647 : 1;
        s.low = query >= 0 ? query / size * size : -((-query + size - 1) / size) * size;
    }
    if (rule == 3) s.high = 2147483647;
    return s;
}
