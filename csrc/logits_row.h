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

private:
    enum class Words { kEmpty, kMixed, kFull };
    Words words(size_t s) const;
    const float* allowed_only(size_t s, float* room) const;
    float peak(size_t s) const;
};

}  // namespace stretto
