// Scalar functions by number; the numbers are those of `gpu::codes`.
#pragma once
#include "platform.cuh"

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float apply_function(int function, float x) {
    switch (function) {
    case 0: return x * sigmoid(x);
    case 1: return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * x * (1.0f + 0.044715f * x * x)));
    case 2: return fmaxf(x, 0.0f);
    case 3: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    case 4: return sigmoid(x);
    case 5: return tanhf(x);
    case 6: return expf(x);
    default: return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    }
}

// Sum, product, quotient, gated unit (16 + function), bounded gated units (32 to 34: `a` the steepness, `b` the limit).
DEVICE float apply_binary(int operation, float x, float y, float a, float b) {
    switch (operation) {
    case 0: return x + y;
    case 1: return x * y;
    case 2: return x / y;
    case 32: {
        float gate = fminf(x, b);
        return gate * sigmoid(gate) * fminf(fmaxf(y, -b), b);
    }
    case 33: return fminf(x * sigmoid(x), b) * fminf(fmaxf(y, -b), b);
    case 34: {
        float gate = fminf(x, b);
        return gate * sigmoid(a * gate) * (fminf(fmaxf(y, -b), b) + 1.0f);
    }
    default: return apply_function(operation - 16, x) * y;
    }
}
