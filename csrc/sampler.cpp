#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <vector>

namespace stretto {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 16;

struct Candidate {
    float logit;  // tempered
    int32_t id;
    double weight;
};

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

// The largest logit, and whether there is a NaN. Lanes, so that the compiler makes vectors of them.
float largest(const float* row, size_t n, bool* nan) {
    float best[kLanes];
    int bad[kLanes] = {};
    std::fill(best, best + kLanes, kMinusInfinity);
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (size_t j = 0; j < kLanes; ++j) {
            const float x = row[i + j];
            best[j] = x > best[j] ? x : best[j];
            bad[j] |= x != x;
        }
    }
    for (; i < n; ++i) {
        best[0] = row[i] > best[0] ? row[i] : best[0];
        bad[0] |= row[i] != row[i];
    }
    *nan = std::any_of(bad, bad + kLanes, [](int b) { return b != 0; });
    return *std::max_element(best, best + kLanes);
}

// Whether a comes before b: more probable, or the lower id of equals.
bool before(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The k best of the row. A heap whose front is the worst kept one; most logits fail one comparison with it.
void top_k(const float* row, size_t n, size_t k, float temperature, std::vector<Candidate>& heap) {
    heap.clear();
    size_t i = 0;
    for (; i < n && heap.size() < k; ++i) {
        if (row[i] > kMinusInfinity) heap.push_back({row[i] / temperature, static_cast<int32_t>(i), 0.0});
    }
    std::make_heap(heap.begin(), heap.end(), before);
    auto offer = [&](size_t at) {
        const Candidate candidate{row[at] / temperature, static_cast<int32_t>(at), 0.0};
        if (candidate.logit > heap.front().logit) {
            std::pop_heap(heap.begin(), heap.end(), before);
            heap.back() = candidate;
            std::push_heap(heap.begin(), heap.end(), before);
        }
    };
    if (heap.size() < k) return;
    for (; i + kLanes <= n; i += kLanes) {
        // Untempered, the border may be off by a rounding: a little below it is certainly low enough.
        const float border = heap.front().logit * temperature;
        const float low = border - std::fabs(border) * 1e-5f;
        int any = 0;
        for (size_t j = 0; j < kLanes; ++j) any |= row[i + j] > low;
        if (any) {
            for (size_t j = 0; j < kLanes; ++j) {
                if (row[i + j] > low) offer(i + j);
            }
        }
    }
    for (; i < n; ++i) offer(i);
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
    std::vector<float> changed;
    const bool penalized = params.repetition != 1.0f || params.presence != 0.0f || params.frequency != 0.0f;
    if (penalized || history.n_bias) {
        changed.assign(logits, logits + n);
        adjust(changed, params, history);
        logits = changed.data();
    }
    bool nan;
    const float best = largest(logits, n, &nan);
    if (nan) return kHasNaN;
    if (best == kMinusInfinity) return kNothingLeft;
    if (best == std::numeric_limits<float>::infinity()) return kHasInfinity;
    if (params.temperature == 0.0f) return static_cast<int>(std::find(logits, logits + n, best) - logits);

    static thread_local std::vector<Candidate> kept;  // its memory is used again
    bool in_order = false;                            // of ids
    if (params.top_k > 0 && params.top_k < n) {
        top_k(logits, n, params.top_k, params.temperature, kept);
    } else {
        in_order = params.top_p >= 1.0;
        kept.clear();
        for (size_t i = 0; i < n; ++i) {
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
