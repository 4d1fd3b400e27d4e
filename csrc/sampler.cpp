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
constexpr size_t kWords = kPeak / 32;  // of a mask, for a stretch

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

// Copies logits; tokens that may not come get −inf.
void copy_allowed(const float* row, size_t n, const uint32_t* mask, float* to) {
    static const Lanes lanes;
    uint32_t infinity;
    std::memcpy(&infinity, &kMinusInfinity, sizeof infinity);
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

// A row of logits in stretches of kPeak, and which tokens may come. Most stretches need not be looked at: their peaks
// say that there is nothing in them.
struct Row {
    const float* logits = nullptr;
    size_t n = 0;
    const uint32_t* mask = nullptr;  // a bit for each, set where it may come; null: all may
    float temperature = 1.0f;
    std::vector<float> peaks;        // of each stretch the largest that may come; if `loose`, no less than that
    bool loose = false;
    float best = kMinusInfinity;     // the largest of all that may come

    float tempered(float logit) const { return logit / temperature; }
    float top() const { return tempered(best); }
    // Relative to the best one's. Below e^-60 a weight cannot change a sum that has a 1 in it.
    bool negligible(float tempered) const { return double{tempered} - double{top()} < -60.0; }
    double weight(float tempered) const {
        return negligible(tempered) ? 0.0 : std::exp(double{tempered} - double{top()});
    }
    size_t length(size_t s) const { return std::min(kPeak, n - s * kPeak); }
    // The logits of a stretch: those of the row, or in `room` a copy with −inf where a token may not come.
    const float* stretch(size_t s, float* room) const {
        const float* from = logits + s * kPeak;
        if (!mask || words(s) == Words::kFull) return from;
        copy_allowed(from, length(s), mask + s * kWords, room);
        return room;
    }
    enum class Words { kEmpty, kMixed, kFull };
    Words words(size_t s) const {
        if (length(s) < kPeak) return Words::kMixed;
        uint32_t any = 0, all = ~uint32_t{0};
        for (size_t i = 0; i < kWords; ++i) {
            any |= mask[s * kWords + i];
            all &= mask[s * kWords + i];
        }
        return !any ? Words::kEmpty : all == ~uint32_t{0} ? Words::kFull : Words::kMixed;
    }
    float peak(size_t s) const {
        float room[kPeak], found;
        best_kernels()->peaks(stretch(s, room), length(s), &found);
        return found;
    }
    void find_peaks(const std::vector<float>* known);
    void tighten();
};

// `known` are the peaks of the whole row, whatever may come: where some may not, they are still no less than the true
// ones, and only the highest have to be looked at.
void Row::find_peaks(const std::vector<float>* known) {
    peaks.resize(stretches(n));
    loose = known && mask;
    if (!mask && !known) best_kernels()->peaks(logits, n, peaks.data());
    if (known) peaks = *known;
    for (size_t s = 0; mask && s < peaks.size(); ++s) {
        const Words allowed = words(s);
        if (allowed == Words::kEmpty) {
            peaks[s] = kMinusInfinity;
        } else if (!known || (allowed == Words::kMixed && peaks[s] != peaks[s])) {
            peaks[s] = peak(s);
        }
    }
    for (;;) {
        const auto highest = std::max_element(peaks.begin(), peaks.end());
        best = *highest;
        if (!loose || best == kMinusInfinity) return;
        const float exact = peak(static_cast<size_t>(highest - peaks.begin()));
        if (!(exact < best)) return;
        *highest = exact;
    }
}

// Makes all peaks what they should be.
void Row::tighten() {
    for (size_t s = 0; loose && s < peaks.size(); ++s) {
        if (words(s) == Words::kMixed) peaks[s] = peak(s);
    }
    loose = false;
}

// What the logits of every kPeak weigh, and the sum of that.
double weigh(const Row& row, std::vector<float>& weights) {
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
double weigh(const Row& row, std::vector<Candidate>& all) {
    double total = 0.0;
    for (Candidate& c : all) total += c.weight = row.weight(c.logit);
    return total;
}

// How many of kStride numbers are not below `low`. The number is fixed and the sum one of integers, so compilers make
// vectors of it.
int count_at_least(const float* x, float low) {
    int n = 0;
    for (size_t i = 0; i < kStride; ++i) n += x[i] >= low ? 1 : 0;
    return n;
}

// All that are not below `low`, which is a logit, in order of ids.
void at_least(const Row& row, float low, std::vector<Candidate>& found) {
    found.clear();
    float room[kPeak];
    for (size_t s = 0; s < row.peaks.size(); ++s) {
        if (row.peaks[s] < low || row.peaks[s] == kMinusInfinity) continue;
        const float* logits = row.stretch(s, room);
        const size_t n = row.length(s);
        for (size_t i = 0; i < n; i += kStride) {
            const size_t stop = std::min(n, i + kStride);
            if (stop - i == kStride && !count_at_least(logits + i, low)) continue;  // most have nothing
            for (size_t j = i; j < stop; ++j) {
                if (logits[j] >= low && logits[j] > kMinusInfinity) {
                    found.push_back({row.tempered(logits[j]), static_cast<int32_t>(s * kPeak + j), 0.0});
                }
            }
        }
    }
}

// Numbers that differ by a rounding may be equals when tempered: a little lower is certainly low enough.
float a_little_below(float x) {
    const float low = x - std::fabs(x) * 1e-5f;
    return low == low ? low : kMinusInfinity;
}

// The k best of the row. Each of the k highest peaks is one of its numbers, so the lowest of them is no higher than
// the k-th best number: what is below it need not be looked at.
void top_k(const Row& row, size_t k, std::vector<Candidate>& best) {
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
bool few_enough(const Row& row, float least, size_t most, double p, std::vector<Candidate>& found) {
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
void top_p(const Row& row, double enough, float least, std::vector<Candidate>& found) {
    for (float depth = 4.0f;; depth *= 2.0f) {
        const float low = std::max(row.top() - depth, least);
        at_least(row, a_little_below(low * row.temperature), found);
        if (weigh(row, found) >= enough || low == least || row.negligible(low)) break;
    }
    keep_heaviest(found, enough);
}

// The first of the largest.
int first_best(const Row& row) {
    float room[kPeak];
    const auto s = static_cast<size_t>(std::find(row.peaks.begin(), row.peaks.end(), row.best) - row.peaks.begin());
    const float* logits = row.stretch(s, room);
    return static_cast<int>(s * kPeak) + static_cast<int>(std::find(logits, logits + row.length(s), row.best) - logits);
}

// The token at `uniform` on the line of all weights, in order of ids.
int draw_from_all(const Row& row, double uniform) {
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

// The same of some, which are in order of ids.
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
    static thread_local Row row;  // its memory is used again
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
    const Kernels* kernels = best_kernels();
    std::vector<float> peaks(stretches(n));
    kernels->peaks(logits, n, peaks.data());
    const float top = *std::max_element(peaks.begin(), peaks.end());
    constexpr float kNegligible = 25.0f;  // a whole vocabulary that lies so far below weighs less than 1e-5
    double sum = 0.0;
    for (size_t start = 0; start < n; start += kPeak) {
        if (peaks[start / kPeak] < top - kNegligible) continue;
        sum += double{kernels->weigh(logits + start, std::min(n - start, kPeak), top, 1.0f)};
    }
    return double{logits[token]} - double{top} - std::log(sum);
}

}  // namespace stretto
