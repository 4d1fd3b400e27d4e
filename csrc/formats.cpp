// Formats in blocks of 32 numbers, and plain floats.

#include "formats.h"

#include <algorithm>
#include <cmath>

#include "blocks.h"
#include "half.h"

namespace stretto {

const int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

namespace {

constexpr int kBlock = 32;
constexpr int kHalf = kBlock / 2;

// Blocks of N numbers, by the reader of 32 of them: every product of scale and quant is exact.
template <Reader Read, size_t N>
void dequantize_blocks(const uint8_t* bytes, float* out) {
    Block block;
    for (size_t index = 0; index < N / kBlock; ++index) {
        Read(bytes, index, &block);
        for (int k = 0; k < kBlock; ++k) *out++ = block.d[k / kHalf] * static_cast<float>(block.q[k] - 128);
    }
}

// exponent, 16 bytes; value = 2^(exponent − 128) × level[q]
void dequantize_mxfp4(const uint8_t* bytes, float* out) {
    const float d = e8m0_half(bytes[0]);
    for (int j = 0; j < kHalf; ++j) {
        out[j] = d * static_cast<float>(kE2m1Bytes[bytes[1 + j] & 15] - 128);
        out[j + kHalf] = d * static_cast<float>(kE2m1Bytes[bytes[1 + j] >> 4] - 128);
    }
}

// In every 4-bit format byte j holds number j in its low half and number j + 16 in its high half.

void dequantize_f32(const uint8_t* bytes, float* out) { *out = float_of_bits(load32(bytes)); }
void dequantize_f16(const uint8_t* bytes, float* out) { *out = half_to_float(load16(bytes)); }
void dequantize_bf16(const uint8_t* bytes, float* out) { *out = bf16_to_float(load16(bytes)); }

// d: f16, 32 × int8
void dequantize_q8_0(const uint8_t* bytes, float* out) {
    const float d = half_to_float(load16(bytes));
    for (int j = 0; j < kBlock; ++j) out[j] = static_cast<float>(static_cast<int8_t>(bytes[2 + j])) * d;
}

// d: f16, 16 bytes; value = d × (q − 8)
void dequantize_q4_0(const uint8_t* bytes, float* out) {
    const float d = half_to_float(load16(bytes));
    for (int j = 0; j < kHalf; ++j) {
        const uint8_t q = bytes[2 + j];
        out[j] = d * static_cast<float>((q & 15) - 8);
        out[j + kHalf] = d * static_cast<float>((q >> 4) - 8);
    }
}

// d, m: f16, 16 bytes; value = d × q + m
void dequantize_q4_1(const uint8_t* bytes, float* out) {
    const float d = half_to_float(load16(bytes));
    const float m = half_to_float(load16(bytes + 2));
    for (int j = 0; j < kHalf; ++j) {
        const uint8_t q = bytes[4 + j];
        out[j] = d * static_cast<float>(q & 15) + m;
        out[j + kHalf] = d * static_cast<float>(q >> 4) + m;
    }
}

// The fifth bit of number j is bit j of a 32-bit word.
inline int fifth_bit(uint32_t high, int j) { return static_cast<int>(high >> j & 1) << 4; }

// d: f16, high bits: u32, 16 bytes; value = d × (q − 16)
void dequantize_q5_0(const uint8_t* bytes, float* out) {
    const float d = half_to_float(load16(bytes));
    const uint32_t high = load32(bytes + 2);
    for (int j = 0; j < kHalf; ++j) {
        const uint8_t q = bytes[6 + j];
        out[j] = d * static_cast<float>(((q & 15) | fifth_bit(high, j)) - 16);
        out[j + kHalf] = d * static_cast<float>(((q >> 4) | fifth_bit(high, j + kHalf)) - 16);
    }
}

// d, m: f16, high bits: u32, 16 bytes; value = d × q + m
void dequantize_q5_1(const uint8_t* bytes, float* out) {
    const float d = half_to_float(load16(bytes));
    const float m = half_to_float(load16(bytes + 2));
    const uint32_t high = load32(bytes + 4);
    for (int j = 0; j < kHalf; ++j) {
        const uint8_t q = bytes[8 + j];
        out[j] = d * static_cast<float>((q & 15) | fifth_bit(high, j)) + m;
        out[j + kHalf] = d * static_cast<float>((q >> 4) | fifth_bit(high, j + kHalf)) + m;
    }
}

// d: f16, 16 bytes; value = d × level[q]
void dequantize_iq4_nl(const uint8_t* bytes, float* out) {
    const float d = half_to_float(load16(bytes));
    for (int j = 0; j < kHalf; ++j) {
        const uint8_t q = bytes[2 + j];
        out[j] = d * static_cast<float>(kIq4Levels[q & 15]);
        out[j + kHalf] = d * static_cast<float>(kIq4Levels[q >> 4]);
    }
}

inline float inverse(float d) { return d == 0.0f ? 0.0f : 1.0f / d; }

// Cuts to 0…15. A subnormal scale may have an infinite inverse: the comparison also catches NaN.
inline uint8_t nibble(float q) { return q >= 0.0f ? static_cast<uint8_t>(std::min(q, 15.0f)) : 0; }

// d: f16; the largest magnitude becomes ±127
void quantize_q8_0(const float* values, uint8_t* out) {
    float largest = 0.0f;
    for (int j = 0; j < kBlock; ++j) largest = std::max(largest, std::fabs(values[j]));
    const float d = largest / 127.0f;
    const float id = inverse(d);
    store16(out, float_to_half(d));
    for (int j = 0; j < kBlock; ++j) {
        const float q = std::round(values[j] * id);  // half away from zero
        const float cut = q >= -127.0f ? std::min(q, 127.0f) : (q < 0.0f ? -127.0f : 0.0f);
        out[2 + j] = static_cast<uint8_t>(static_cast<int8_t>(cut));
    }
}

// The number of largest magnitude becomes −8, so its sign is the sign of −d.
void quantize_q4_0(const float* values, uint8_t* out) {
    float extreme = 0.0f;
    for (int j = 0; j < kBlock; ++j) {
        if (std::fabs(values[j]) > std::fabs(extreme)) extreme = values[j];
    }
    const float d = extreme / -8.0f;
    const float id = inverse(d);
    store16(out, float_to_half(d));
    for (int j = 0; j < kHalf; ++j) {
        const uint8_t low = nibble(values[j] * id + 8.5f);
        const uint8_t high = nibble(values[j + kHalf] * id + 8.5f);
        out[2 + j] = static_cast<uint8_t>(low | high << 4);
    }
}

// The smallest number becomes 0, the largest 15.
void quantize_q4_1(const float* values, uint8_t* out) {
    const auto ends = std::minmax_element(values, values + kBlock);
    const float m = *ends.first;
    const float d = (*ends.second - m) / 15.0f;
    const float id = inverse(d);
    store16(out, float_to_half(d));
    store16(out + 2, float_to_half(m));
    for (int j = 0; j < kHalf; ++j) {
        const uint8_t low = nibble((values[j] - m) * id + 0.5f);
        const uint8_t high = nibble((values[j + kHalf] - m) * id + 0.5f);
        out[4 + j] = static_cast<uint8_t>(low | high << 4);
    }
}

const Format kFormats[] = {
    {0, 1, 4, dequantize_f32, nullptr},
    {1, 1, 2, dequantize_f16, nullptr},
    {2, 32, 18, dequantize_q4_0, quantize_q4_0},
    {3, 32, 20, dequantize_q4_1, quantize_q4_1},
    {6, 32, 22, dequantize_q5_0, nullptr},
    {7, 32, 24, dequantize_q5_1, nullptr},
    {8, 32, 34, dequantize_q8_0, quantize_q8_0},
    {10, 256, 84, dequantize_q2_k, nullptr},
    {11, 256, 110, dequantize_q3_k, nullptr},
    {12, 256, 144, dequantize_q4_k, nullptr},
    {13, 256, 176, dequantize_q5_k, nullptr},
    {14, 256, 210, dequantize_q6_k, nullptr},
    {16, 256, 66, dequantize_blocks<read_iq2_xxs, 256>, nullptr},
    {17, 256, 74, dequantize_blocks<read_iq2_xs, 256>, nullptr},
    {18, 256, 98, dequantize_blocks<read_iq3_xxs, 256>, nullptr},
    {19, 256, 50, dequantize_blocks<read_iq1_s, 256>, nullptr},
    {20, 32, 18, dequantize_iq4_nl, nullptr},
    {21, 256, 110, dequantize_blocks<read_iq3_s, 256>, nullptr},
    {22, 256, 82, dequantize_blocks<read_iq2_s, 256>, nullptr},
    {23, 256, 136, dequantize_iq4_xs, nullptr},
    {29, 256, 56, dequantize_blocks<read_iq1_m, 256>, nullptr},
    {30, 1, 2, dequantize_bf16, nullptr},
    {34, 256, 54, dequantize_blocks<read_tq1_0, 256>, nullptr},
    {35, 256, 66, dequantize_blocks<read_tq2_0, 256>, nullptr},
    {39, 32, 17, dequantize_mxfp4, nullptr},
    {40, 64, 36, dequantize_blocks<read_nvfp4, 64>, nullptr},
    {41, 128, 18, dequantize_blocks<read_q1_0, 128>, nullptr},
};

}  // namespace

const Format* formats(size_t* count) {
    *count = sizeof kFormats / sizeof kFormats[0];
    return kFormats;
}

const Format* find_format(int code) {
    for (const Format& format : kFormats) {
        if (format.code == code) return &format;
    }
    return nullptr;
}

size_t bytes_of(int code, size_t rows, size_t columns) {
    const Format& format = *find_format(code);
    return rows * (columns / format.block) * format.size;
}

}  // namespace stretto
