// Rotary position embedding of one head.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "model/config.h"

namespace stretto {

// The cosine and sine of each pair's angle at a position, times `magnitude`.
inline void angles(double position, const double* frequencies, size_t pairs, double magnitude, float* cos, float* sin) {
    for (size_t p = 0; p < pairs; ++p) {
        const double angle = position * frequencies[p];
        cos[p] = static_cast<float>(std::cos(angle) * magnitude);
        sin[p] = static_cast<float>(std::sin(angle) * magnitude);
    }
}

// The frequencies of a text of so many tokens.
inline void stretched(const Rope& rope, size_t length, std::vector<double>& frequencies) {
    const double trained = static_cast<double>(rope.stretch_length);
    const double ratio = rope.stretch_factor * static_cast<double>(length) / trained - (rope.stretch_factor - 1.0);
    const size_t pairs = rope.frequencies.size();
    frequencies.resize(pairs);
    for (size_t p = 0; p < pairs; ++p) {
        const double share = -static_cast<double>(p) / static_cast<double>(pairs - 1);
        frequencies[p] = rope.frequencies[p] * std::pow(ratio, share);
    }
}

// Rotates the pairs (2p, 2p + 1) of x, or (p, p + pairs).
inline void rotate(float* x, const float* cos, const float* sin, size_t pairs, bool adjacent) {
    for (size_t p = 0; p < pairs; ++p) {
        float& a = x[adjacent ? 2 * p : p];
        float& b = x[adjacent ? 2 * p + 1 : p + pairs];
        const float turned = a * cos[p] - b * sin[p];
        b = a * sin[p] + b * cos[p];
        a = turned;
    }
}

}  // namespace stretto
