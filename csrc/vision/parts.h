// What the halves of an encoder's block share, in vision.cpp and block.cpp only.
#pragma once

#include <algorithm>

#include "vision/vision.h"

namespace stretto {

// What each thread has for itself.
struct Vision::Scratch {
    float* attention;
    Partial partial, total;
    float* constant;      // [widest], what an activation multiplies with
    ProductScratch product;
    const size_t* places;  // of the positions, one behind the other
};

inline void clamp_row(float low, float high, const float* x, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i) out[i] = std::min(std::max(x[i], low), high);
}

}  // namespace stretto
