// From a row of logits to a token: the chain of stretto/sampling/sampler.py, which defines it, in native code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "threads/pool.h"

namespace stretto {

struct SamplerParams {
    float temperature = 1.0f;   // 0: the best token
    size_t top_k = 0;           // 0: all
    double top_p = 1.0;
    double min_p = 0.0;
    float repetition = 1.0f;
    float presence = 0.0f;
    float frequency = 0.0f;
};

// Tokens so far, the first n_prompt of them the prompt; and what is added to single logits.
struct SamplerHistory {
    const int32_t* tokens = nullptr;
    size_t n = 0;
    size_t n_prompt = 0;
    const int32_t* biased = nullptr;
    const float* bias = nullptr;
    size_t n_bias = 0;
    const uint32_t* mask = nullptr;  // a bit for each token, set where it may come; null: all may
};

// What is wrong with a row.
enum : int { kHasNaN = -1, kNothingLeft = -2, kHasInfinity = -3 };

// The token that `uniform` (from 0 up to 1) picks, or one of the codes above. `history` has been checked. Who knows
// the peaks of the row already (as the kernels find them) saves a pass over it.
int sample(const float* logits, size_t n, const SamplerParams& params, const SamplerHistory& history,
           double uniform, const std::vector<float>* known_peaks = nullptr);

// The log-probability of a token in the distribution of a row.
double log_probability(const float* logits, size_t n, size_t token);

// What was drawn from a row: a token and its log-probability, or one of the codes above.
struct Drawn {
    int token = 0;
    double log_probability = 0.0;
};

// `sample` and `log_probability` of rows of n logits, with a number of each. A pool shares the work; the results are the same
// without one.
std::vector<Drawn> draw_each(const std::vector<const float*>& rows, size_t n, const SamplerParams& params,
                             const std::vector<double>& uniforms, Pool* pool);

// `sample` of rows with parameters of their own.
std::vector<int> sample_each(const std::vector<const float*>& rows, size_t n, const std::vector<SamplerParams>& params,
                             const std::vector<double>& uniforms, Pool* pool);

}  // namespace stretto
