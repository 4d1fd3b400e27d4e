// Rotary position embedding of one head.
#pragma once

#include <cmath>
#include <cstddef>

namespace stretto {

// The cosine and sine of each pair's angle at a position, times `magnitude`.
inline void angles(double position, const double* frequencies, size_t pairs, double magnitude, float* cos, float* sin) {
    for (size_t p = 0; p < pairs; ++p) {
        const double angle = position * frequencies[p];
        cos[p] = static_cast<float>(std::cos(angle) * magnitude);
        sin[p] = static_cast<float>(std::sin(angle) * magnitude);
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
