#include "sampling/mixture.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "sampling/sampler.h"

namespace stretto {

namespace {

struct MixtureCandidate {
    int32_t id;
    double exact;
    float probability;
};

// What is wrong with a row, or 0.
int error_of(const LogitsRow& row) {
    if (std::any_of(row.peaks.begin(), row.peaks.end(), [](float x) { return x != x; })) return kHasNaN;
    if (row.best == kMinusInfinity) return kNothingLeft;
    return row.best == std::numeric_limits<float>::infinity() ? kHasInfinity : 0;
}

}  // namespace

Mixture::Mixture(const std::vector<const float*>& rows, size_t n, float temperature, Pool* pool)
    : n_(n), rows_(rows.size()), totals_(rows.size()) {
    const size_t count = stretches(n);
    for (size_t i = 0; i < rows.size(); ++i) {
        rows_[i].logits = rows[i];
        rows_[i].n = n;
        rows_[i].temperature = temperature;
        rows_[i].peaks.resize(count);
    }
    std::vector<float> parts(rows.size() * count);
    const auto find_best = [&] {
        for (LogitsRow& row : rows_) row.best = *std::max_element(row.peaks.begin(), row.peaks.end());
    };
    if (pool) {
        pool->run(
            [&](int thread) {
                const auto at = static_cast<size_t>(thread), threads = static_cast<size_t>(pool->active());
                find_peaks(at, threads);
                pool->barrier(thread);
                if (thread == 0) find_best();
                pool->barrier(thread);
                weigh(at, threads, parts.data());
            },
            Measured::kNo);
    } else {
        find_peaks(0, 1);
        find_best();
        weigh(0, 1, parts.data());
    }
    for (size_t i = 0; i < rows.size(); ++i) {
        if (!error_) error_ = error_of(rows_[i]);
        for (size_t s = 0; s < count; ++s) totals_[i] += double{parts[i * count + s]};
    }
}

// The peaks of a thread's stretches of all rows.
void Mixture::find_peaks(size_t thread, size_t threads) {
    const size_t count = stretches(n_), first = count * thread / threads, last = count * (thread + 1) / threads;
    if (first == last) return;
    const size_t begin = first * kPeak, end = std::min(last * kPeak, n_);
    for (LogitsRow& row : rows_) best_kernels()->peaks(row.logits + begin, end - begin, row.peaks.data() + first);
}

// The weights of a thread's stretches: [row][stretch].
void Mixture::weigh(size_t thread, size_t threads, float* parts) const {
    const size_t count = stretches(n_), first = count * thread / threads, last = count * (thread + 1) / threads;
    for (size_t i = 0; i < rows_.size(); ++i) {
        for (size_t s = first; s < last; ++s) parts[i * count + s] = rows_[i].part(s);
    }
}

double Mixture::probability(size_t member, size_t token) const {
    const LogitsRow& row = rows_[member];
    return std::exp((double{row.logits[token]} - double{row.best}) / double{row.temperature}) / totals_[member];
}

double Mixture::log_probability(size_t member, size_t token) const {
    const LogitsRow& row = rows_[member];
    return (double{row.logits[token]} - double{row.best}) / double{row.temperature} - std::log(totals_[member]);
}

// A probability that `most` tokens reach at least, or 0. Each of a row's highest peaks is the logit of another token.
double Mixture::least_of_most(const std::vector<double>& weights, size_t most) const {
    double least = 0.0;
    std::vector<float> peaks;
    for (size_t i = 0; i < rows_.size(); ++i) {
        if (most > rows_[i].peaks.size()) return 0.0;
        peaks = rows_[i].peaks;
        const auto last = peaks.begin() + static_cast<std::ptrdiff_t>(most - 1);
        std::nth_element(peaks.begin(), last, peaks.end(), std::greater<float>());
        const double below = (double{*last} - double{rows_[i].best}) / double{rows_[i].temperature};
        least = std::max(least, weights[i] * std::exp(below) / totals_[i]);
    }
    return least;
}

// All tokens that reach `least` in the mixture, and perhaps others: one of n members gives them an n-th of it or more.
std::vector<int32_t> Mixture::candidates(const std::vector<double>& weights, double least) const {
    std::vector<int32_t> found;
    for (size_t i = 0; i < rows_.size(); ++i) {
        if (weights[i] <= 0.0) continue;
        const double share = least / static_cast<double>(rows_.size()) / weights[i];
        const double low = double{rows_[i].best} + std::log(share * totals_[i]) * double{rows_[i].temperature};
        const double rounding = 1e-5 * (1.0 + std::fabs(low));
        each_at_least(rows_[i], static_cast<float>(low - rounding), [&](int32_t id, float) { found.push_back(id); });
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
}

Picked Mixture::pick(const std::vector<double>& weights, float threshold, size_t most) const {
    const double least = std::min(std::max(double{threshold}, least_of_most(weights, most)), least_of_most(weights, 1));
    std::vector<MixtureCandidate> found;
    for (const int32_t id : candidates(weights, least)) {
        double sum = 0.0;
        for (size_t i = 0; i < rows_.size(); ++i) {
            if (weights[i] > 0.0) sum += weights[i] * probability(i, static_cast<size_t>(id));
        }
        found.push_back({id, sum, static_cast<float>(sum)});
    }
    const auto best = std::max_element(found.begin(), found.end(),
                                       [](const MixtureCandidate& a, const MixtureCandidate& b) { return a.exact < b.exact; });
    Picked picked;
    picked.best = best->id;
    const MixtureCandidate only = *best;
    found.erase(std::remove_if(found.begin(), found.end(),
                               [&](const MixtureCandidate& c) { return c.probability < threshold; }),
                found.end());
    if (found.empty()) found.push_back(only);
    const size_t n = std::min(most, found.size());
    std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(n), found.end(),
                      [&](const MixtureCandidate& a, const MixtureCandidate& b) {
                          if (a.probability != b.probability) return a.probability > b.probability;
                          return a.id != b.id && (a.id == only.id || (b.id != only.id && a.id < b.id));
                      });
    for (size_t i = 0; i < n; ++i) {
        picked.tokens.push_back(found[i].id);
        picked.probabilities.push_back(found[i].probability);
    }
    return picked;
}

}  // namespace stretto
