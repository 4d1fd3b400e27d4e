// Groups of numbers that follow each other in a row: loaded into lanes, with weights, and their quants written.
#pragma once

#include <algorithm>
#include <cmath>

#include "quantize/fit.h"
#include "weights/half.h"

namespace stretto {

// Beyond what any format with half floats for scales can express, and its fourth power is still a float.
constexpr float kMostValue = 1e7f;

// How much an error counts by the size of the number, beside the column's importance. Large numbers make most of a product.
enum class Emphasis { kNone, kRoot, kSize, kSquare };

inline Lanes root(Lanes x) {
    Lanes out;
    for (size_t i = 0; i < 4; ++i) {
        out.a[i] = std::sqrt(x.a[i]);
        out.b[i] = std::sqrt(x.b[i]);
    }
    return out;
}

// Eight groups of N numbers that follow each other, by lanes.
template <size_t N>
void gather(const float* x, Lanes* out) {
    static_assert(N % 4 == 0, "numbers are loaded four at a time");
    for (size_t j = 0; j < N; j += 4) {
        Float4 first[4], last[4];
        for (size_t g = 0; g < 4; ++g) {
            std::memcpy(&first[g], x + g * N + j, sizeof first[g]);
            std::memcpy(&last[g], x + (g + 4) * N + j, sizeof last[g]);
        }
        transpose(first);
        transpose(last);
        for (size_t i = 0; i < 4; ++i) out[j + i] = {first[i], last[i]};
    }
}

// Up to eight groups of N numbers; those that are missing are zeros.
template <size_t N>
void load_groups(const float* x, const float* importance, size_t count, Emphasis emphasis, Groups<N>* out) {
    float numbers[N * kLanes], weights[N * kLanes];
    if (count < kLanes) {
        std::fill(std::copy(x, x + count * N, numbers), numbers + N * kLanes, 0.0f);
        x = numbers;
        if (importance) std::fill(std::copy(importance, importance + count * N, weights), weights + N * kLanes, 0.0f);
        importance = importance ? weights : nullptr;
    }
    gather<N>(x, out->x);
    for (size_t j = 0; j < N; ++j) out->x[j] = cut(out->x[j], -kMostValue, kMostValue);
    if (importance) gather<N>(importance, out->w);
    else std::fill(out->w, out->w + N, Lanes(1.0f));
    if (emphasis == Emphasis::kNone) return;
    Lanes squares(0.0f);
    for (size_t j = 0; j < N; ++j) squares = squares + out->x[j] * out->x[j];
    const Lanes mean = squares * Lanes(1.0f / N), size = root(mean);
    for (size_t j = 0; j < N; ++j) {
        const Lanes x = out->x[j];
        Lanes by = magnitude(x) + size;
        if (emphasis == Emphasis::kRoot) by = root(mean + x * x);
        if (emphasis == Emphasis::kSquare) by = x * x;
        out->w[j] = out->w[j] * by;
    }
}

// Numbers from 0 to 255 as bytes, group after group.
template <size_t N>
struct Quants {
    uint8_t q[kLanes][N];

    void put(size_t j, Lanes values) {
        const Int4 a = __builtin_convertvector(values.a, Int4), b = __builtin_convertvector(values.b, Int4);
        for (size_t g = 0; g < 4; ++g) {
            q[g][j] = static_cast<uint8_t>(a[g]);
            q[g + 4][j] = static_cast<uint8_t>(b[g]);
        }
    }

    // Numbers j to j + 3 of all groups: a word of each.
    void put4(size_t j, const Lanes* values) {
        Int4 a{}, b{};
        for (size_t i = 4; i-- > 0;) {
            a = a << 8 | (__builtin_convertvector(values[i].a, Int4) & 255);
            b = b << 8 | (__builtin_convertvector(values[i].b, Int4) & 255);
        }
        for (size_t g = 0; g < 4; ++g) {
            store32(&q[g][j], static_cast<uint32_t>(a[g]));
            store32(&q[g + 4][j], static_cast<uint32_t>(b[g]));
        }
    }
};

// Half floats that are scales; too large ones become the largest.
inline uint16_t half_scale(float value) { return float_to_half(std::min(std::max(value, -65504.0f), 65504.0f)); }

inline Lanes half_scales(Lanes values, uint16_t* halves) {
    Lanes rounded(0.0f);
    for (size_t g = 0; g < kLanes; ++g) {
        halves[g] = half_scale(values[g]);
        rounded.set(g, half_to_float(halves[g]));
    }
    return rounded;
}

}  // namespace stretto
