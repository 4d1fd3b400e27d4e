// The number formats of GGUF tensors: how a block of bytes becomes floats. quantize/quantize.h has the way back.
//
// A format is a row of the table in formats.cpp. The file's codes are used as they are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stretto {

// Turns one block into floats: `bytes` may lie at any address, `out` has room for `block` numbers.
using Dequantize = void (*)(const uint8_t* bytes, float* out);

struct Format {
    int code;               // as in the file
    size_t block;           // numbers in a block
    size_t size;            // bytes of a block
    Dequantize dequantize;
};

// The table, and how many rows it has.
const Format* formats(size_t* count);
// The row for `code`, or null.
const Format* find_format(int code);
// The bytes that rows of a format take in a file; the format is known, and columns are whole blocks of it.
size_t bytes_of(int code, size_t rows, size_t columns);

// Blocks of 256 numbers, in kquants.cpp.
void dequantize_q2_k(const uint8_t* bytes, float* out);
void dequantize_q3_k(const uint8_t* bytes, float* out);
void dequantize_q4_k(const uint8_t* bytes, float* out);
void dequantize_q5_k(const uint8_t* bytes, float* out);
void dequantize_q6_k(const uint8_t* bytes, float* out);
void dequantize_iq4_xs(const uint8_t* bytes, float* out);

// Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minima into 12 bytes. The first four of each
// stand in the low six bits of bytes 0–3 and 4–7; the others have their low four bits in bytes 8–11
// (scale in the low half, minimum in the high half) and their upper two in the top of bytes 0–3 and 4–7.
struct ScaleMin {
    int scale, min;
};
inline ScaleMin scale_min(const uint8_t* packed, size_t group) {
    if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
    return {(packed[group + 4] & 15) | packed[group - 4] >> 6 << 4, packed[group + 4] >> 4 | packed[group] >> 6 << 4};
}

// The sixteen levels of IQ4_NL and IQ4_XS.
extern const int8_t kIq4Levels[16];

}  // namespace stretto
