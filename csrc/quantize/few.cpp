// Writers of formats with two or three levels: Q1_0, TQ1_0 and TQ2_0.

#include "quantize/groups.h"
#include "quantize/quantize.h"
#include "weights/formats.h"

namespace stretto {

namespace {

constexpr size_t kSuper = 256;

// The best scale of numbers that become −1, 0 or 1, and these plus one.
uint16_t fit_thirds(const float* x, const float* importance, uint8_t* q) {
    float most_value = 0.0f, best = 0.0f, best_gain = 0.0f;
    for (size_t i = 0; i < kSuper; ++i) most_value = std::max(most_value, std::min(std::fabs(x[i]), kMostValue));
    for (int k = 1; k <= 20; ++k) {
        const float edge = most_value * static_cast<float>(k) / 20.0f * 0.9f;  // numbers above are not zero
        float sum = 0.0f, weights = 0.0f;
        for (size_t i = 0; i < kSuper; ++i) {
            const float size = std::min(std::fabs(x[i]), kMostValue), w = size > edge ? (importance ? importance[i] : 1.0f) : 0.0f;
            sum += w * size;
            weights += w;
        }
        if (weights > 0.0f && sum * sum > best_gain * weights) {
            best = sum / weights;
            best_gain = sum * sum / weights;
        }
    }
    const uint16_t bits = half_scale(best);
    const float scale = half_to_float(bits);
    for (size_t i = 0; i < kSuper; ++i) {
        q[i] = std::fabs(x[i]) > scale / 2 && scale > 0.0f ? (x[i] < 0.0f ? 0 : 2) : 1;
    }
    return bits;
}

// Five digits of base three, the first most significant, as a fraction of 256.
uint8_t five(const uint8_t* q, size_t step, size_t count) {
    unsigned value = 0;
    for (size_t n = 0; n < 5; ++n) value = value * 3 + (n < count ? q[n * step] : 0);
    return static_cast<uint8_t>((value * 256 + 242) / 243);
}

}  // namespace

void write_tq1_0(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 54) {
        uint8_t q[kSuper];
        store16(out + 52, fit_thirds(x, importance ? importance + i * kSuper : nullptr, q));
        for (size_t j = 0; j < 32; ++j) out[j] = five(q + j, 32, 5);
        for (size_t j = 0; j < 16; ++j) out[32 + j] = five(q + 160 + j, 16, 5);
        for (size_t j = 0; j < 4; ++j) out[48 + j] = five(q + 240 + j, 4, 4);
    }
}

void write_tq2_0(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 66) {
        uint8_t q[kSuper];
        store16(out + 64, fit_thirds(x, importance ? importance + i * kSuper : nullptr, q));
        for (size_t j = 0; j < 64; ++j) {
            const uint8_t* from = q + j / 32 * 128 + j % 32;
            out[j] = static_cast<uint8_t>(from[0] | from[32] << 2 | from[64] << 4 | from[96] << 6);
        }
    }
}

void write_q1_0(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    for (size_t i = 0; i < blocks; ++i, x += 128, out += 18) {
        float sum = 0.0f, weights = 0.0f;
        std::memset(out + 2, 0, 16);
        for (size_t j = 0; j < 128; ++j) {
            const float w = importance ? importance[i * 128 + j] : 1.0f;
            sum += w * std::min(std::fabs(x[j]), kMostValue);
            weights += w;
            if (x[j] >= 0.0f) out[2 + j / 8] |= static_cast<uint8_t>(1u << j % 8);
        }
        store16(out, half_scale(weights > 0.0f ? sum / weights : 0.0f));
    }
}

}  // namespace stretto
