// A row of logits as the sampler goes through it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/kernels.h"

namespace stretto {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A row of logits in stretches of kPeak, and which tokens may come. Most stretches need not be looked at: their peaks
// say that there is nothing in them.
struct LogitsRow {
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
    const float* stretch(size_t s, float* room) const { return mask ? allowed_only(s, room) : logits + s * kPeak; }
    // `known` are the peaks of the whole row, whatever may come.
    void find_peaks(const std::vector<float>* known);
    // Makes all peaks what they should be.
    void tighten();
    // The sum of e^((x − best) / temperature) over a stretch; its peaks are known, and it has no mask.
    float part(size_t s) const;
    double total() const;  // of the whole row

private:
    enum class Words { kEmpty, kMixed, kFull };
    Words words(size_t s) const;
    const float* allowed_only(size_t s, float* room) const;
    float peak(size_t s) const;
};

// How many of kStride numbers are not below `low`. The number is fixed and the sum one of integers, so compilers make
// vectors of it.
constexpr size_t kStride = 16;
inline int count_at_least(const float* x, float low) {
    int n = 0;
    for (size_t i = 0; i < kStride; ++i) n += x[i] >= low ? 1 : 0;
    return n;
}

// Calls f(id, logit) for all that are not below `low`, in order of ids.
template <typename F>
void each_at_least(const LogitsRow& row, float low, F f) {
    float room[kPeak];
    for (size_t s = 0; s < row.peaks.size(); ++s) {
        if (row.peaks[s] < low || row.peaks[s] == kMinusInfinity) continue;
        const float* logits = row.stretch(s, room);
        const size_t n = row.length(s);
        for (size_t i = 0; i < n; i += kStride) {
            const size_t stop = std::min(n, i + kStride);
            if (stop - i == kStride && !count_at_least(logits + i, low)) continue;  // most have nothing
            for (size_t j = i; j < stop; ++j) {
                if (logits[j] >= low && logits[j] > kMinusInfinity) f(static_cast<int32_t>(s * kPeak + j), logits[j]);
            }
        }
    }
}

}  // namespace stretto
