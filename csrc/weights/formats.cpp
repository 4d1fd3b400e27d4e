// Formats in blocks of 32 numbers, and plain floats.

#include "weights/formats.h"

#include <algorithm>
#include <cmath>

#include "weights/blocks.h"
#include "weights/half.h"

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

const Format kFormats[] = {
    {0, 1, 4, dequantize_f32},
    {1, 1, 2, dequantize_f16},
    {2, 32, 18, dequantize_q4_0},
    {3, 32, 20, dequantize_q4_1},
    {6, 32, 22, dequantize_q5_0},
    {7, 32, 24, dequantize_q5_1},
    {8, 32, 34, dequantize_q8_0},
    {10, 256, 84, dequantize_q2_k},
    {11, 256, 110, dequantize_q3_k},
    {12, 256, 144, dequantize_q4_k},
    {13, 256, 176, dequantize_q5_k},
    {14, 256, 210, dequantize_q6_k},
    {16, 256, 66, dequantize_blocks<read_iq2_xxs, 256>},
    {17, 256, 74, dequantize_blocks<read_iq2_xs, 256>},
    {18, 256, 98, dequantize_blocks<read_iq3_xxs, 256>},
    {19, 256, 50, dequantize_blocks<read_iq1_s, 256>},
    {20, 32, 18, dequantize_iq4_nl},
    {21, 256, 110, dequantize_blocks<read_iq3_s, 256>},
    {22, 256, 82, dequantize_blocks<read_iq2_s, 256>},
    {23, 256, 136, dequantize_iq4_xs},
    {29, 256, 56, dequantize_blocks<read_iq1_m, 256>},
    {30, 1, 2, dequantize_bf16},
    {34, 256, 54, dequantize_blocks<read_tq1_0, 256>},
    {35, 256, 66, dequantize_blocks<read_tq2_0, 256>},
    {39, 32, 17, dequantize_mxfp4},
    {40, 64, 36, dequantize_blocks<read_nvfp4, 64>},
    {41, 128, 18, dequantize_blocks<read_q1_0, 128>},
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
