// The distributions after the members of a set of tokens at one position, and the best tokens of their mixture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampling/logits_row.h"
#include "threads/pool.h"

namespace stretto {

// The most probable tokens of a mixture, the most probable first, and of equals the best or the one with the lower id.
struct Picked {
    int32_t best = 0;  // before rounding to a float, which may make others its equals
    std::vector<int32_t> tokens;
    std::vector<float> probabilities;
};

class Mixture {
public:
    // Of rows of n logits, which have to stay where they are. A pool shares the work; the numbers are the same without one.
    Mixture(const std::vector<const float*>& rows, size_t n, float temperature, Pool* pool = nullptr);

    size_t members() const { return rows_.size(); }
    size_t n_vocab() const { return n_; }
    // 0, or what is wrong with the first row that is no distribution (sampler.h).
    int error() const { return error_; }
    const std::vector<float>& peaks(size_t member) const { return rows_[member].peaks; }
    double probability(size_t member, size_t token) const;
    double log_probability(size_t member, size_t token) const;
    // The tokens that are at least as probable as `threshold` in the mixture with these weights, at most `most`; the
    // best one if there is none. Without an error, and with a weight above 0.
    Picked pick(const std::vector<double>& weights, float threshold, size_t most) const;

private:
    void find_peaks(size_t thread, size_t threads);
    void weigh(size_t thread, size_t threads, float* parts) const;
    double least_of_most(const std::vector<double>& weights, size_t most) const;
    std::vector<int32_t> candidates(const std::vector<double>& weights, double least) const;

    size_t n_;
    std::vector<LogitsRow> rows_;
    std::vector<double> totals_;  // of each row
    int error_ = 0;
};

}  // namespace stretto
