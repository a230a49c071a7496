// Choice and weights of experts, and sums of what they make.
#include "functions.cuh"

#define MOST_EXPERTS 1024

// Scores of a row of logits in shared memory: 0 softmax, 1 sigmoid, 2 the logits, 3 square root of the softplus.
DEVICE void gate_scores(const float* logits, float* scores, int experts, int gating) {
    float most = -INFINITY, total = 0.0f;
    if (gating == 0) {
        for (int i = threadIdx.x; i < experts; i += blockDim.x) most = fmaxf(most, logits[i]);
        most = block_max(most);
        for (int i = threadIdx.x; i < experts; i += blockDim.x) total += expf(logits[i] - most);
        total = block_sum(total);
    }
    for (int i = threadIdx.x; i < experts; i += blockDim.x) {
        float x = logits[i];
        scores[i] = gating == 0   ? expf(x - most) / total
                    : gating == 1 ? sigmoid(x)
                    : gating == 2 ? x
                                  : sqrtf(apply_function(7, x));
    }
    __syncthreads();
}

// Index of the largest number, the first of equals, by one warp; never past the end whatever the numbers are.
DEVICE int largest(const float* numbers, int count) {
    int lane = threadIdx.x % 32, best = lane < count ? lane : 0;
    float most = lane < count ? numbers[lane] : -INFINITY;
    for (int i = lane + 32; i < count; i += 32)
        if (numbers[i] > most) {
            most = numbers[i];
            best = i;
        }
    for (int mask = 16; mask > 0; mask >>= 1) {
        float other = shuffle_xor(most, mask);
        int index = shuffle_xor(best, mask);
        if (other > most || (other == most && index < best)) {
            most = other;
            best = index;
        }
    }
    return best;
}

// One block of a warp for each row. With groups only the best `groups_used` of `groups` may be chosen from; a group is
// as good as its two best experts together.
KERNEL route_experts(const float* logits, const float* bias, int* chosen, int experts, int used, int gating, int groups, int groups_used) {
    wait_for_previous();
    __shared__ float scores[MOST_EXPERTS];
    __shared__ float strengths[MOST_EXPERTS];
    gate_scores(logits + (long long)blockIdx.x * experts, scores, experts, gating);
    if (bias)
        for (int i = threadIdx.x; i < experts; i += blockDim.x) scores[i] += bias[i];
    __syncthreads();
    if (groups > 0) {
        int size = experts / groups;
        for (int group = threadIdx.x; group < groups; group += blockDim.x) {
            float first = -INFINITY, second = -INFINITY;
            for (int i = 0; i < size; i++) {
                float x = scores[group * size + i];
                if (x > first) {
                    second = first;
                    first = x;
                } else if (x > second)
                    second = x;
            }
            strengths[group] = size > 1 ? first + second : first;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < experts; i += blockDim.x) {
            int group = i / size, better = 0;
            for (int other = 0; other < groups; other++)
                better += strengths[other] > strengths[group] || (strengths[other] == strengths[group] && other < group);
            if (better >= groups_used) scores[i] = -INFINITY;
        }
        __syncthreads();
    }
    for (int slot = 0; slot < used; slot++) {
        int best = largest(scores, experts);
        if (threadIdx.x == 0) {
            chosen[(long long)blockIdx.x * used + slot] = best;
            scores[best] = -INFINITY;
        }
        __syncthreads();
    }
}
REGISTER(route_experts)

KERNEL expert_weights(const float* logits, const int* chosen, const float* factors, float* out, int experts, int used, int gating, int normalise, float scale) {
    wait_for_previous();
    __shared__ float scores[MOST_EXPERTS];
    gate_scores(logits + (long long)blockIdx.x * experts, scores, experts, gating);
    const int* picks = chosen + (long long)blockIdx.x * used;
    float most = -INFINITY, total = 0.0f;
    if (gating == 2) {
        for (int i = threadIdx.x; i < used; i += 32) most = fmaxf(most, scores[picks[i]]);
        most = warp_max(most);
    }
    for (int i = threadIdx.x; i < used; i += 32) total += gating == 2 ? expf(scores[picks[i]] - most) : scores[picks[i]];
    total = warp_sum(total);
    for (int i = threadIdx.x; i < used; i += 32) {
        float share = gating == 2 ? expf(scores[picks[i]] - most) / total : scores[picks[i]];
        if (normalise) share /= gating == 2 ? 1.0f : fmaxf(total, 6.103515625e-5f);
        out[(long long)blockIdx.x * used + i] = share * scale * (factors ? factors[picks[i]] : 1.0f);
    }
}
REGISTER(expert_weights)

KERNEL sum_experts(const float* x, const float* shares, float* out, int rows, int used, int width) {
    wait_for_previous();
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (long long)rows * width; i += (long long)gridDim.x * blockDim.x) {
        long long row = i / width;
        float sum = 0.0f;
        for (int slot = 0; slot < used; slot++)
            sum += (shares ? shares[row * used + slot] : 1.0f) * x[(row * used + slot) * width + i % width];
        out[i] = sum;
    }
}
REGISTER(sum_experts)

KERNEL add_expert_bias(const float* x, const float* biases, const int* chosen, float* out, int slots, int width) {
    wait_for_previous();
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (long long)slots * width; i += (long long)gridDim.x * blockDim.x)
        out[i] = x[i] + biases[(long long)chosen[i / width] * width + i % width];
}
REGISTER(add_expert_bias)

KERNEL group_of_expert(const int* chosen, int* out, int count, int size) {
    wait_for_previous();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) out[i] = chosen[i] / size;
}
REGISTER(group_of_expert)
