#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"

namespace stretto {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kStride = 16;

struct Candidate {
    float logit;  // tempered
    int32_t id;
    double weight;
};

// For each byte of a mask eight words, all ones where its bit is set: vectors can be masked without shifting bits.
struct Lanes {
    uint32_t of[256][8];

    Lanes() {
        for (uint32_t byte = 0; byte < 256; ++byte) {
            for (uint32_t bit = 0; bit < 8; ++bit) of[byte][bit] = byte >> bit & 1 ? ~uint32_t{0} : 0;
        }
    }
};

// A copy of the row in which tokens that may not come have −inf.
void copy_allowed(const float* row, size_t n, const uint32_t* mask, std::vector<float>& out) {
    static const Lanes lanes;
    uint32_t infinity;
    std::memcpy(&infinity, &kMinusInfinity, sizeof infinity);
    out.resize(n);
    float* to = out.data();
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const uint32_t word = mask[i / 32];
        if (word == 0) {
            std::fill(to + i, to + i + 32, kMinusInfinity);
        } else if (word == ~uint32_t{0}) {
            std::copy(row + i, row + i + 32, to + i);
        } else {
            uint32_t bits[32];
            std::memcpy(bits, row + i, sizeof bits);
            for (size_t byte = 0; byte < 4; ++byte) {
                const uint32_t* keep = lanes.of[word >> 8 * byte & 255];
                for (size_t k = 0; k < 8; ++k) {
                    bits[8 * byte + k] = (bits[8 * byte + k] & keep[k]) | (infinity & ~keep[k]);
                }
            }
            std::memcpy(to + i, bits, sizeof bits);
        }
    }
    for (; i < n; ++i) to[i] = mask[i / 32] >> (i % 32) & 1 ? row[i] : kMinusInfinity;
}

// Penalties and bias on a copy of the row.
void adjust(std::vector<float>& row, const SamplerParams& params, const SamplerHistory& history) {
    if (params.repetition != 1.0f) {
        std::vector<int32_t> seen(history.tokens, history.tokens + history.n);
        std::sort(seen.begin(), seen.end());
        seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
        for (int32_t token : seen) {
            float& x = row[token];
            x = x > 0.0f ? x / params.repetition : x * params.repetition;
        }
    }
    if (params.presence != 0.0f || params.frequency != 0.0f) {
        std::unordered_map<int32_t, int64_t> counts;
        for (size_t i = history.n_prompt; i < history.n; ++i) ++counts[history.tokens[i]];
        for (const auto& [token, count] : counts) {
            row[token] -= static_cast<float>(params.presence + double{params.frequency} * static_cast<double>(count));
        }
    }
    for (size_t i = 0; i < history.n_bias; ++i) row[history.biased[i]] += history.bias[i];
}

// Whether a comes before b: more probable, or the lower id of equals.
bool before(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The k best of the row. Each of the k highest peaks is one of its numbers, so the lowest of them is no higher than
// the k-th best number: what is below it need not be looked at, and stretches whose peak is below it are passed over.
void top_k(const float* row, size_t n, const std::vector<float>& peaks, size_t k, float temperature,
           std::vector<Candidate>& best) {
    static thread_local std::vector<float> order;  // its memory is used again
    float low = kMinusInfinity;
    if (k <= peaks.size()) {
        order.assign(peaks.begin(), peaks.end());
        const auto kth = order.begin() + static_cast<std::ptrdiff_t>(k - 1);
        std::nth_element(order.begin(), kth, order.end(), std::greater<float>());
        // Numbers that differ by a rounding may be equals when tempered: a little lower is certainly low enough.
        low = *kth - std::fabs(*kth) * 1e-5f;
        if (low != low) low = kMinusInfinity;
    }
    best.clear();
    for (size_t start = 0; start < n; start += kPeak) {
        const float peak = peaks[start / kPeak];
        if (peak < low || peak == kMinusInfinity) continue;
        const size_t end = std::min(n, start + kPeak);
        for (size_t i = start; i < end; i += kStride) {
            const size_t stop = std::min(end, i + kStride);
            bool any = false;  // most have nothing, which vectors find out
            for (size_t j = i; j < stop; ++j) any |= row[j] >= low;
            if (!any) continue;
            for (size_t j = i; j < stop; ++j) {
                if (row[j] >= low && row[j] > kMinusInfinity) {
                    best.push_back({row[j] / temperature, static_cast<int32_t>(j), 0.0});
                }
            }
        }
    }
    if (best.size() > k) {
        std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(k), best.end(), before);
        best.resize(k);
    }
}

// Keeps the smallest set of most probable candidates whose weights reach p of the total.
void top_p(std::vector<Candidate>& all, double p) {
    double total = 0.0;
    for (const Candidate& c : all) total += c.weight;
    // The set is small as a rule: sort the head only, and more if it does not suffice.
    for (size_t head = 256;; head *= 8) {
        const bool whole = head >= all.size();
        if (whole) {
            std::sort(all.begin(), all.end(), before);
        } else {
            std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(head), all.end(), before);
        }
        double sum = 0.0;
        for (size_t i = 0; i < (whole ? all.size() : head); ++i) {
            sum += all[i].weight;
            if (sum >= p * total) {
                all.resize(i + 1);
                return;
            }
        }
        if (whole) return;
    }
}

}  // namespace

int sample(const float* logits, size_t n, const SamplerParams& params, const SamplerHistory& history,
           double uniform) {
    static thread_local std::vector<float> changed;  // its memory is used again
    const bool penalized = params.repetition != 1.0f || params.presence != 0.0f || params.frequency != 0.0f;
    if (penalized || history.n_bias || history.mask) {
        if (history.mask) {
            copy_allowed(logits, n, history.mask, changed);
        } else {
            changed.assign(logits, logits + n);
        }
        adjust(changed, params, history);
        logits = changed.data();
    }
    static thread_local std::vector<float> peaks;  // its memory is used again
    peaks.resize((n + kPeak - 1) / kPeak);
    best_kernels()->peaks(logits, n, peaks.data());
    if (std::any_of(peaks.begin(), peaks.end(), [](float x) { return x != x; })) return kHasNaN;
    const auto highest = std::max_element(peaks.begin(), peaks.end());
    const float best = *highest;
    if (best == kMinusInfinity) return kNothingLeft;
    if (best == std::numeric_limits<float>::infinity()) return kHasInfinity;
    if (params.temperature == 0.0f) {
        const float* first = logits + static_cast<size_t>(highest - peaks.begin()) * kPeak;
        return static_cast<int>(std::find(first, logits + n, best) - logits);
    }

    static thread_local std::vector<Candidate> kept;  // its memory is used again
    bool in_order = false;                            // of ids
    if (params.top_k > 0 && params.top_k < n) {
        top_k(logits, n, peaks, params.top_k, params.temperature, kept);
    } else {
        in_order = params.top_p >= 1.0;
        kept.clear();
        for (size_t i = 0; i < n; ++i) {
            if (i % kPeak == 0 && peaks[i / kPeak] == kMinusInfinity) {
                i += kPeak - 1;
                continue;
            }
            if (logits[i] > kMinusInfinity) kept.push_back({logits[i] / params.temperature, static_cast<int32_t>(i), 0.0});
        }
    }
    const float top = best / params.temperature;
    // Below e^-60 a weight cannot change a sum that has a 1 in it.
    for (Candidate& c : kept) {
        const double x = double{c.logit} - double{top};
        c.weight = x < -60.0 ? 0.0 : std::exp(x);
    }
    if (params.top_p < 1.0) top_p(kept, params.top_p);
    if (params.min_p > 0.0) {
        const float least = top + static_cast<float>(std::log(params.min_p));
        kept.erase(std::remove_if(kept.begin(), kept.end(), [&](const Candidate& c) { return c.logit < least; }),
                   kept.end());
    }
    if (!in_order) {
        std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    }
    double total = 0.0;
    for (const Candidate& c : kept) total += c.weight;
    double sum = 0.0;
    for (const Candidate& c : kept) {
        sum += c.weight;
        if (sum > uniform * total) return c.id;
    }
    return kept.back().id;
}

}  // namespace stretto
