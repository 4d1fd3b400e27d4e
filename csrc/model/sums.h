// Sums of many numbers in one order.
#pragma once

#include <cstddef>

namespace stretto {

// term(0) + … + term(n − 1): eight sums side by side, which the compiler can vectorise, and then their sum.
template <typename F>
double sum_of(size_t n, F term) {
    double sums[8] = {};
    for (size_t i = 0; i < n; ++i) sums[i % 8] += term(i);
    double sum = 0.0;
    for (double part : sums) sum += part;
    return sum;
}

inline double dot(const float* a, const float* b, size_t n) {
    return sum_of(n, [&](size_t i) { return double{a[i]} * double{b[i]}; });
}

}  // namespace stretto
