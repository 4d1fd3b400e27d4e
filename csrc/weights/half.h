// Half-precision and bfloat16 numbers as bits: portable conversions, the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stretto {

inline float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Whether none of n halves is infinite or NaN.
inline bool finite_halves(const uint8_t* halves, size_t n) {
    uint16_t most = 0;
    for (size_t i = 0; i < n; ++i) {
        uint16_t half;
        std::memcpy(&half, halves + 2 * i, sizeof half);
        most |= static_cast<uint16_t>((half & 0x7fff) + 0x400);  // carries where the exponent is 31
    }
    return most < 0x8000;
}

// Little-endian loads and stores from any address.
inline uint16_t load16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

inline uint32_t load32(const uint8_t* p) {
    return static_cast<uint32_t>(load16(p)) | static_cast<uint32_t>(load16(p + 2)) << 16;
}

inline void store16(uint8_t* p, uint16_t v) {
    p[0] = static_cast<uint8_t>(v);
    p[1] = static_cast<uint8_t>(v >> 8);
}

inline void store32(uint8_t* p, uint32_t v) {
    store16(p, static_cast<uint16_t>(v));
    store16(p + 2, static_cast<uint16_t>(v >> 16));
}

inline float bf16_to_float(uint16_t h) { return float_of_bits(static_cast<uint32_t>(h) << 16); }

inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    const uint32_t exponent = (h >> 10) & 31;
    const uint32_t fraction = h & 0x3ff;
    if (exponent == 31) {  // infinity, NaN
        return float_of_bits(sign | 0x7f800000 | fraction << 13);
    }
    if (exponent == 0) {  // zero and subnormals: fraction × 2^-24, exact in float
        const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        return float_of_bits(sign | bits_of_float(magnitude));
    }
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

// Rounds to nearest, ties to even; too large becomes infinity.
inline uint16_t float_to_half(float value) {
    const uint32_t bits = bits_of_float(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
    if (magnitude >= 0x47800000) return sign | 0x7c00;  // 65536 and above
    if (magnitude < 0x38800000) {
        // Below the smallest normal half. Adding 0.5 puts the wanted bits at the bottom of the float,
        // rounded by the addition itself.
        const float shifted = float_of_bits(magnitude) + 0.5f;
        return sign | static_cast<uint16_t>(bits_of_float(shifted) - 0x3f000000);
    }
    const uint32_t odd = magnitude >> 13 & 1;
    // May carry into the exponent, and from the largest half into infinity: both are right.
    return sign | static_cast<uint16_t>((magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

}  // namespace stretto
