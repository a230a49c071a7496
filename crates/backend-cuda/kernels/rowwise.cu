// Elementwise operations and those that treat each row alone.
#include "functions.cuh"

#define EACH(index, count)                                                                       \
    for (long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x; index < (count);    \
         index += (long long)gridDim.x * blockDim.x)

// `function` 0 to 7 as in functions.cuh; 8: x a; 9: a tanh(x / a); 10: between a and b; 11: xIELU with the curvatures
// a and b, slope c and bound d.
KERNEL unary(const float* x, float* out, int rows, int width, int function, float a, float b, float c, float d) {
    wait_for_previous();
    EACH(i, (long long)rows * width) {
        float v = x[i];
        switch (function) {
        case 8: v = v * a; break;
        case 9: v = a * tanhf(v / a); break;
        case 10: v = fminf(fmaxf(v, a), b); break;
        case 11: v = (v > 0.0f ? a * v * v : (expm1f(fminf(v, d)) - v) * b) + c * v; break;
        default: v = apply_function(function, v);
        }
        out[i] = v;
    }
}
REGISTER(unary)

// `period` elements of y are repeated over x.
KERNEL binary(const float* x, const float* y, float* out, int rows, int width, int period, int operation, float a, float b) {
    wait_for_previous();
    EACH(i, (long long)rows * width) {
        float v = period == 0 ? y[i] : y[i % period];
        out[i] = apply_binary(operation, x[i], v, a, b);
    }
}
REGISTER(binary)

// One block for each group of `width` numbers. Weight and bias repeat after `period`.
KERNEL normalise(const float* x, const float* weight, const float* bias, float* out, int width, int weight_period,
                 int bias_period, float epsilon, int centred) {
    wait_for_previous();
    long long start = (long long)blockIdx.x * width;
    float centre = 0.0f;
    if (centred) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < width; i += blockDim.x) sum += x[start + i];
        centre = block_sum(sum) / width;
    }
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = x[start + i] - centre;
        squares += v * v;
    }
    float inverse = 1.0f / sqrtf(block_sum(squares) / width + epsilon);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = (x[start + i] - centre) * inverse;
        if (weight) v *= weight[(start + i) % weight_period];
        if (bias) v += bias[(start + i) % bias_period];
        out[start + i] = v;
    }
}
REGISTER(normalise)

// The first `dimensions` elements of each head rotated by position times frequency; angles are exact in double.
KERNEL rope(const float* x, const int* positions, const double* frequencies, float* out, int rows, int heads, int width,
            int dimensions, int split, float magnitude) {
    wait_for_previous();
    int pairs = dimensions / 2, per_row = heads * (pairs + width - dimensions);
    EACH(i, (long long)rows * per_row) {
        int row = (int)(i / per_row), rest = (int)(i % per_row), head = rest / (per_row / heads), pair = rest % (per_row / heads);
        long long start = ((long long)row * heads + head) * width;
        if (pair >= pairs) {
            long long at = start + dimensions + (pair - pairs);
            out[at] = x[at];
            continue;
        }
        double turns = positions[row] * frequencies[pair] * 0.15915494309189535;
        float sine, cosine;
        sincospif((float)(2.0 * (turns - rint(turns))), &sine, &cosine);
        sine *= magnitude;
        cosine *= magnitude;
        long long first = split ? start + pair : start + 2 * pair, second = split ? first + pairs : first + 1;
        float p = x[first], q = x[second];
        out[first] = p * cosine - q * sine;
        out[second] = p * sine + q * cosine;
    }
}
REGISTER(rope)

// Elements `start..start + length` of each group of `width`.
KERNEL slice(const float* x, float* out, int rows, int groups, int width, int start, int length) {
    wait_for_previous();
    EACH(i, (long long)rows * groups * length) out[i] = x[i / length * width + start + i % length];
}
REGISTER(slice)

KERNEL concat(const float* x, const float* y, float* out, int rows, int groups, int x_width, int y_width) {
    wait_for_previous();
    int width = x_width + y_width;
    EACH(i, (long long)rows * groups * width) {
        long long group = i / width;
        int at = (int)(i % width);
        out[i] = at < x_width ? x[group * x_width + at] : y[group * y_width + at - x_width];
    }
}
REGISTER(concat)

KERNEL repeat_heads(const float* x, float* out, int rows, int heads, int width, int times) {
    wait_for_previous();
    EACH(i, (long long)rows * heads * times * width) out[i] = x[i / width / times * width + i % width];
}
REGISTER(repeat_heads)

// Each group of `width` times its factor; factors repeat after `period`.
KERNEL scale_rows(const float* x, const float* factors, float* out, int rows, int groups, int width, int period) {
    wait_for_previous();
    EACH(i, (long long)rows * groups * width) {
        long long factor = i / width;
        out[i] = x[i] * factors[period == 0 ? factor : factor % period];
    }
}
REGISTER(scale_rows)

KERNEL position_scale(const float* x, const int* positions, float* out, int rows, int width, float slope, int length, int offset) {
    wait_for_previous();
    EACH(i, (long long)rows * width) {
        long long position = (long long)positions[i / width] + offset;
        long long steps = position / length - (position % length < 0);
        out[i] = x[i] * (1.0f + slope * logf(1.0f + (float)steps));
    }
}
REGISTER(position_scale)

// One block for each group of `width`: 0: its sum; 1: its softmax; 2: what exceeds mean + a deviations; 3: scaled to
// the length of the group of y.
KERNEL reduce_rows(const float* x, const float* y, float* out, int width, int operation, float a) {
    wait_for_previous();
    long long start = (long long)blockIdx.x * width;
    const float* row = x + start;
    if (operation == 1) {
        float most = -INFINITY, total = 0.0f;
        for (int i = threadIdx.x; i < width; i += blockDim.x) most = fmaxf(most, row[i]);
        most = block_max(most);
        for (int i = threadIdx.x; i < width; i += blockDim.x) total += expf(row[i] - most);
        total = block_sum(total);
        for (int i = threadIdx.x; i < width; i += blockDim.x) out[start + i] = expf(row[i] - most) / total;
        return;
    }
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += operation == 3 ? row[i] * row[i] : row[i];
    sum = block_sum(sum);
    if (operation == 0) {
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
        return;
    }
    float other = 0.0f, mean = sum / width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float v = operation == 3 ? y[start + i] : row[i] - mean;
        other += v * v;
    }
    other = block_sum(other);
    if (operation == 2) {
        float cut = mean + a * sqrtf(other / fmaxf(width - 1.0f, 1.0f));
        for (int i = threadIdx.x; i < width; i += blockDim.x) out[start + i] = fmaxf(row[i] - cut, 0.0f);
    } else {
        float factor = sum > 0.0f ? sqrtf(other) / sqrtf(sum) : 0.0f;
        for (int i = threadIdx.x; i < width; i += blockDim.x) out[start + i] = row[i] * factor;
    }
}
REGISTER(reduce_rows)

// out = or += weights[row, column] x, for the weights of `columns` a row.
KERNEL weighted_add(const float* weights, const float* x, float* out, int rows, int width, int columns, int column) {
    wait_for_previous();
    EACH(i, (long long)rows * width) {
        float v = weights[i / width * columns + column] * x[i];
        out[i] = column == 0 ? v : out[i] + v;
    }
}
REGISTER(weighted_add)

// For each mixture a + share (b - a); shares of `per_row` numbers for each row, or the same for all rows if it is 0.
KERNEL interpolate(const float* a, const float* b, const float* shares, float* out, int rows, int width, int mixtures, int per_row) {
    wait_for_previous();
    int out_width = width * mixtures;
    EACH(i, (long long)rows * out_width) {
        long long row = i / out_width;
        int at = (int)(i % out_width);
        float x = a[row * width + at % width], y = b[row * width + at % width];
        out[i] = x + shares[row * per_row + at] * (y - x);
    }
}
REGISTER(interpolate)

// Rows of a table of floats; an index past the end counts as the last.
KERNEL gather_rows(const float* table, const int* indexes, float* out, int rows, int width, int table_rows) {
    wait_for_previous();
    EACH(i, (long long)rows * width) {
        int index = indexes[i / width];
        if (index < 0 || index >= table_rows) index = table_rows - 1;
        out[i] = table[(long long)index * width + i % width];
    }
}
REGISTER(gather_rows)

// Rows of the step, which are always there.
KERNEL output_rows(const float* x, const int* indexes, float* out, int rows, int width) {
    wait_for_previous();
    EACH(i, (long long)rows * width) out[i] = x[(long long)indexes[i / width] * width + i % width];
}
REGISTER(output_rows)

// Small writes of the host, from its memory to their places: their number, then each as address (two words), number of words, words.
#define MAIL_WORDS 512
KERNEL deliver(const uint32_t* mail) {
    __shared__ uint32_t words[MAIL_WORDS];
    for (int i = threadIdx.x; i < MAIL_WORDS; i += blockDim.x) words[i] = ((volatile const uint32_t*)mail)[i];
    __syncthreads();
    int at = 1;
    for (uint32_t letter = 0; letter < words[0]; letter++) {
        uint32_t* to = (uint32_t*)(words[at] | (unsigned long long)words[at + 1] << 32);
        int count = (int)words[at + 2];
        for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = words[at + 3 + i];
        at += 3 + count;
    }
}
REGISTER(deliver)
