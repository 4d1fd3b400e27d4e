#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <unordered_map>
#include <vector>

#include "sampling/logits_row.h"
#include "sampling/mixture.h"

namespace stretto {

namespace {

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

// Whether a comes before b: more probable, or the lower id of equals.
bool before(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// What the logits of every kPeak weigh, and the sum of that.
double weigh(const LogitsRow& row, std::vector<float>& weights) {
    const auto kernel = best_kernels()->weigh;
    const float factor = 1.0f / row.temperature;
    weights.resize(row.peaks.size());
    float room[kPeak];
    double total = 0.0;
    for (size_t s = 0; s < weights.size(); ++s) {
        weights[s] = row.negligible(row.tempered(row.peaks[s]))
                         ? 0.0f
                         : kernel(row.stretch(s, room), row.length(s), row.best, factor);
        total += double{weights[s]};
    }
    return total;
}

// Gives all of them their weights; the sum of these.
double weigh(const LogitsRow& row, std::vector<Candidate>& all) {
    double total = 0.0;
    for (Candidate& c : all) total += c.weight = row.weight(c.logit);
    return total;
}

// All that are not below `low`, which is a logit, in order of ids.
void at_least(const LogitsRow& row, float low, std::vector<Candidate>& found) {
    found.clear();
    each_at_least(row, low, [&](int32_t id, float logit) { found.push_back({row.tempered(logit), id, 0.0}); });
}

// Numbers that differ by a rounding may be equals when tempered: a little lower is certainly low enough.
float a_little_below(float x) {
    const float low = x - std::fabs(x) * 1e-5f;
    return low == low ? low : kMinusInfinity;
}

// The k best of the row. Each of the k highest peaks is one of its numbers, so the lowest of them is no higher than
// the k-th best number: what is below it need not be looked at.
void top_k(const LogitsRow& row, size_t k, std::vector<Candidate>& best) {
    static thread_local std::vector<float> order;  // its memory is used again
    float low = kMinusInfinity;
    if (k <= row.peaks.size()) {
        order.assign(row.peaks.begin(), row.peaks.end());
        const auto kth = order.begin() + static_cast<std::ptrdiff_t>(k - 1);
        std::nth_element(order.begin(), kth, order.end(), std::greater<float>());
        low = a_little_below(*kth);
    }
    at_least(row, low, best);
    if (best.size() > k) {
        std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(k), best.end(), before);
        best.resize(k);
    }
}

// Keeps the smallest set of most probable candidates that weighs `enough`, or all.
void keep_heaviest(std::vector<Candidate>& all, double enough) {
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
            if (sum >= enough) {
                all.resize(i + 1);
                return;
            }
        }
        if (whole) return;
    }
}

void drop_below(std::vector<Candidate>& all, float least) {
    all.erase(std::remove_if(all.begin(), all.end(), [&](const Candidate& c) { return c.logit < least; }), all.end());
}

// Those not below `least` (tempered), with their weights, if no more than `most` and if top-p takes none of them away:
// then that is all that top-k, top-p and min-p leave, and the others need not be looked at.
bool few_enough(const LogitsRow& row, float least, size_t most, double p, std::vector<Candidate>& found) {
    at_least(row, a_little_below(least * row.temperature), found);
    drop_below(found, least);
    if (found.size() > most) return false;
    const double total = weigh(row, found);
    if (p >= 1.0) return true;
    const auto lightest = std::min_element(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
        return a.weight < b.weight;
    });
    // What top-k leaves weighs at least as much as these. Are all but the lightest less than p of it, then that stays too.
    return total - lightest->weight < p * total * (1.0 - 1e-12);
}

// Of the whole row the smallest set of most probable tokens that weighs `enough`, or those of it that are not below
// `least`. Most of them are near the best one: the rest is looked at only if they do not suffice.
void top_p(const LogitsRow& row, double enough, float least, std::vector<Candidate>& found) {
    for (float depth = 4.0f;; depth *= 2.0f) {
        const float low = std::max(row.top() - depth, least);
        at_least(row, a_little_below(low * row.temperature), found);
        if (weigh(row, found) >= enough || low == least || row.negligible(low)) break;
    }
    keep_heaviest(found, enough);
}

// The first of the largest.
int first_best(const LogitsRow& row) {
    float room[kPeak];
    const auto s = static_cast<size_t>(std::find(row.peaks.begin(), row.peaks.end(), row.best) - row.peaks.begin());
    const float* logits = row.stretch(s, room);
    return static_cast<int>(s * kPeak) + static_cast<int>(std::find(logits, logits + row.length(s), row.best) - logits);
}

// The token at `uniform` on the line of all weights, in order of ids.
int draw_from_all(const LogitsRow& row, double uniform) {
    static thread_local std::vector<float> weights;  // its memory is used again
    const double target = uniform * weigh(row, weights);
    double sum = 0.0, before = 0.0;  // up to the end of a stretch, and up to its start
    size_t stretch = 0;
    for (size_t s = 0; s < weights.size() && sum <= target; ++s) {
        if (weights[s] == 0.0f) continue;
        stretch = s;
        before = sum;
        sum += double{weights[s]};
    }
    int token = kNothingLeft;
    sum = before;
    float room[kPeak];
    const float* logits = row.stretch(stretch, room);
    for (size_t i = 0; i < row.length(stretch); ++i) {
        const double weight = row.weight(row.tempered(logits[i]));
        if (weight == 0.0) continue;
        token = static_cast<int>(stretch * kPeak + i);
        sum += weight;
        if (sum > target) break;
    }
    return token;
}

// Calls f(i) for all i below n, by the threads of a pool if there is one and it is worth waking them.
template <typename F>
void for_each(size_t n, Pool* pool, F f) {
    if (!pool || n < 2) {
        for (size_t i = 0; i < n; ++i) f(i);
        return;
    }
    pool->run(
        [&](int thread) {
            const auto threads = static_cast<size_t>(pool->active());
            for (size_t i = static_cast<size_t>(thread); i < n; i += threads) f(i);
        },
        Measured::kNo);
}

// The token at `uniform` on the line of the weights of some, which are in order of ids.
int draw(const std::vector<Candidate>& some, double uniform) {
    double total = 0.0;
    for (const Candidate& c : some) total += c.weight;
    const double target = uniform * total;
    double sum = 0.0;
    for (const Candidate& c : some) {
        sum += c.weight;
        if (sum > target) return c.id;
    }
    return some.back().id;
}

}  // namespace

int sample(const float* logits, size_t n, const SamplerParams& params, const SamplerHistory& history,
           double uniform, const std::vector<float>* known_peaks) {
    static thread_local std::vector<float> changed;  // its memory is used again
    const bool penalized = params.repetition != 1.0f || params.presence != 0.0f || params.frequency != 0.0f;
    if (penalized || history.n_bias) {
        changed.assign(logits, logits + n);
        adjust(changed, params, history);
        logits = changed.data();
        known_peaks = nullptr;
    }
    static thread_local LogitsRow row;  // its memory is used again
    row.logits = logits;
    row.n = n;
    row.mask = history.mask;
    row.temperature = params.temperature;
    row.find_peaks(known_peaks);
    if (std::any_of(row.peaks.begin(), row.peaks.end(), [](float x) { return x != x; })) return kHasNaN;
    if (row.best == kMinusInfinity) return kNothingLeft;
    if (row.best == std::numeric_limits<float>::infinity()) return kHasInfinity;
    if (params.temperature == 0.0f) return first_best(row);

    const bool few = params.top_k > 0 && params.top_k < n;
    if (!few && params.top_p >= 1.0 && params.min_p <= 0.0) {
        row.tighten();
        return draw_from_all(row, uniform);
    }
    static thread_local std::vector<Candidate> kept;  // its memory is used again
    const float least = params.min_p > 0.0 ? row.top() + static_cast<float>(std::log(params.min_p)) : kMinusInfinity;
    if (few && params.min_p > 0.0 && few_enough(row, least, params.top_k, params.top_p, kept)) {
        return draw(kept, uniform);
    }
    if (few || params.top_p < 1.0) row.tighten();
    if (few) {
        top_k(row, params.top_k, kept);
        const double total = weigh(row, kept);
        if (params.top_p < 1.0) keep_heaviest(kept, params.top_p * total);
    } else if (params.top_p < 1.0) {
        static thread_local std::vector<float> weights;
        top_p(row, params.top_p * weigh(row, weights), least, kept);
    } else {
        at_least(row, a_little_below(least * row.temperature), kept);
        weigh(row, kept);
    }
    drop_below(kept, least);
    std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    return draw(kept, uniform);
}

double log_probability(const float* logits, size_t n, size_t token) {
    LogitsRow row;
    row.logits = logits;
    row.n = n;
    row.find_peaks(nullptr);
    return double{logits[token]} - double{row.best} - std::log(row.total());
}

std::vector<Drawn> draw_each(const std::vector<const float*>& rows, size_t n, const SamplerParams& params,
                             const std::vector<double>& uniforms, Pool* pool) {
    const Mixture all(rows, n, 1.0f, pool);
    std::vector<Drawn> drawn(rows.size());
    for_each(rows.size(), pool, [&](size_t i) {
        const int token = sample(rows[i], n, params, {}, uniforms[i], &all.peaks(i));
        drawn[i] = {token, token < 0 ? 0.0 : all.log_probability(i, static_cast<size_t>(token))};
    });
    return drawn;
}

std::vector<int> sample_each(const std::vector<const float*>& rows, size_t n, const std::vector<SamplerParams>& params,
                             const std::vector<double>& uniforms, Pool* pool) {
    std::vector<int> tokens(rows.size());
    for_each(rows.size(), pool, [&](size_t i) { tokens[i] = sample(rows[i], n, params[i], {}, uniforms[i]); });
    return tokens;
}

}  // namespace stretto
