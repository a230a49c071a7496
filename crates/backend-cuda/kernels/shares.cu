// What the members of a divided device made of a value, put together.
#include "platform.cuh"

// Member j made the columns from firsts[j] to firsts[j + 1]; its block begins at `apart` rows of firsts[j] numbers and has its
// rows one after the other. A residual is added on the way. Columns of members begin at multiples of 4.
KERNEL join_shares(const float* blocks, const int* firsts, int apart, const float* residual, float* out, int rows, int width) {
    wait_for_previous();
    long long all = (long long)rows * width, step = (long long)gridDim.x * blockDim.x * 4;
    for (long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 4; at < all; at += step) {
        long long row = at / width;
        int column = (int)(at % width), member = 0;
        while (column >= firsts[member + 1]) member++;
        int first = firsts[member], own = firsts[member + 1] - first;
        const float* from = blocks + (long long)apart * first + row * own + (column - first);
        if (width % 4 == 0) {
            float4 v = *(const float4*)from;
            if (residual) {
                float4 r = *(const float4*)(residual + at);
                v = make_float4(v.x + r.x, v.y + r.y, v.z + r.z, v.w + r.w);
            }
            *(float4*)(out + at) = v;
            continue;
        }
        // Here four numbers may end in the next member's columns, or in the next row.
        for (int i = 0; i < 4 && at + i < all; i++) {
            row = (at + i) / width;
            column = (int)((at + i) % width);
            member = 0;
            while (column >= firsts[member + 1]) member++;
            first = firsts[member];
            own = firsts[member + 1] - first;
            float v = blocks[(long long)apart * first + row * own + (column - first)];
            out[at + i] = residual ? v + residual[at + i] : v;
        }
    }
}
REGISTER(join_shares)
