// Readers of formats with at most four bits: floats of four bits, three values, two values, code books.

#include "weights/blocks.h"

#include "weights/formats.h"
#include "weights/grids.h"
#include "weights/half.h"

namespace stretto {

// 2^(exponent − 128); the two smallest are subnormal.
float e8m0_half(uint8_t exponent) {
    return float_of_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1u) << 23);
}

// Four bits of exponent and three of fraction; the sign is not looked at, and 127 stands for zero.
float e4m3_half(uint8_t bits) {
    if (bits == 0 || bits == 0x7f) return 0.0f;
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    if (exponent == 0) return static_cast<float>(fraction) * 0x1p-10f;
    return float_of_bits(static_cast<uint32_t>(exponent - 8 + 127) << 23 | static_cast<uint32_t>(fraction) << 20);
}

// exponent, 16 bytes
void read_mxfp4(const uint8_t* row, size_t index, Block* out) {
    row += index * 17;
    out->scale(e8m0_half(row[0]));
    for (size_t j = 0; j < 16; ++j) {
        out->q[j] = row[1 + j] & 15;
        out->q[j + 16] = row[1 + j] >> 4;
    }
}

// Of 64 numbers: four scales, each for 16; and for each of these 8 bytes
void read_nvfp4(const uint8_t* row, size_t index, Block* out) {
    row += index / 2 * 36;
    const size_t first = index % 2 * 2;
    out->scales(e4m3_half(row[first]), e4m3_half(row[first + 1]));
    for (size_t j = 0; j < 16; ++j) {
        const uint8_t byte = row[4 + first * 8 + j];
        const size_t at = j / 8 * 16 + j % 8;
        out->q[at] = kE2m1Bytes[byte & 15];
        out->q[at + 8] = kE2m1Bytes[byte >> 4];
    }
}

// A byte holds five digits of base three as a fraction: × 3^n brings digit n to where × 3 gives it in bits 8 and 9.
static int third(uint8_t byte, size_t digit) {
    const uint8_t powers[5] = {1, 3, 9, 27, 81};
    return (static_cast<uint8_t>(byte * powers[digit]) * 3 >> 8) - 1;
}

// 32 bytes with the first five blocks, 16 with the next 80 numbers, 4 with the last 16; d
void read_tq1_0(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 54;
    out->scale(half_to_float(load16(row + 52)));
    const size_t block = index % 8;
    for (size_t j = 0; j < kBlock; ++j) {
        const size_t k = block * kBlock + j;
        if (block < 5) {
            out->put(j, third(row[j], block));
        } else if (k < 240) {
            out->put(j, third(row[32 + (k - 160) % 16], (k - 160) / 16));
        } else {
            out->put(j, third(row[48 + (k - 240) % 4], (k - 240) / 4));
        }
    }
}

// 64 bytes, each with two bits of four blocks; d
void read_tq2_0(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 66;
    out->scale(half_to_float(load16(row + 64)));
    const size_t half = index % 8 / 4, run = index % 4;
    for (size_t j = 0; j < kBlock; ++j) out->put(j, (row[half * 32 + j] >> run * 2 & 3) - 1);
}

// Of 128 numbers: d, then a bit for each
void read_q1_0(const uint8_t* row, size_t index, Block* out) {
    row += index / 4 * 18;
    out->scale(half_to_float(load16(row)));
    const uint32_t bits = load32(row + 2 + index % 4 * 4);
    for (size_t j = 0; j < kBlock; ++j) out->put(j, bits >> j & 1 ? 1 : -1);
}

// -- code books: an index chooses eight numbers, or four --

// `count` numbers from k on, which have the bytes of `entry`, each negative where a bit of `signs` says so.
static void put_signed(Block* out, size_t k, size_t count, uint64_t entry, unsigned signs) {
    for (size_t j = 0; j < count; ++j) {
        const int value = static_cast<int>(entry >> 8 * j & 255);
        out->put(k + j, signs >> j & 1 ? -value : value);
    }
}

// d × (scale + ½) × by
static float halves(const uint8_t* d, unsigned scale, float by) {
    return half_to_float(load16(d)) * (0.5f + static_cast<float>(scale)) * by;
}

// d; of each block four indices, four times seven signs, a scale
void read_iq2_xxs(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 66;
    const uint8_t* at = row + 2 + index % 8 * 8;
    const uint32_t word = load32(at + 4);
    out->scale(halves(row, word >> 28, 0.25f));
    for (size_t i = 0; i < 4; ++i) put_signed(out, 8 * i, 8, grids().iq2_xxs[at[i]], grids().signs[word >> 7 * i & 127]);
}

// d; of each block four words with an index and seven signs; scales of four bits for 16 numbers
void read_iq2_xs(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 74;
    const uint8_t scale = row[66 + index % 8];
    out->scales(halves(row, scale & 15, 0.25f), halves(row, scale >> 4, 0.25f));
    for (size_t i = 0; i < 4; ++i) {
        const uint16_t word = load16(row + 2 + index % 8 * 8 + 2 * i);
        put_signed(out, 8 * i, 8, grids().iq2_xs[word & 511], grids().signs[word >> 9]);
    }
}

// d; indices[32], signs[32], two more bits of the indices[8], scales[8]
void read_iq2_s(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 82;
    const size_t block = index % 8;
    const uint8_t scale = row[74 + block];
    out->scales(halves(row, scale & 15, 0.25f), halves(row, scale >> 4, 0.25f));
    for (size_t i = 0; i < 4; ++i) {
        const size_t entry = row[2 + block * 4 + i] | (row[66 + block] >> 2 * i & 3) << 8;
        put_signed(out, 8 * i, 8, grids().iq2_s[entry], row[34 + block * 4 + i]);
    }
}

// d; indices[64]; of each block four times seven signs, a scale
void read_iq3_xxs(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 98;
    const size_t block = index % 8;
    const uint32_t word = load32(row + 66 + block * 4);
    out->scale(halves(row, word >> 28, 0.5f));
    for (size_t i = 0; i < 8; ++i) {
        const unsigned signs = grids().signs[word >> 7 * (i / 2) & 127];
        put_signed(out, 4 * i, 4, grids().iq3_xxs[row[2 + block * 8 + i]], signs >> i % 2 * 4);
    }
}

// d; indices[64], another bit of them[8], signs[32], scales[4]
void read_iq3_s(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 110;
    const size_t block = index % 8;
    const int scale = row[106 + block / 2] >> block % 2 * 4 & 15;
    out->scale(half_to_float(load16(row)) * static_cast<float>(1 + 2 * scale));
    for (size_t i = 0; i < 8; ++i) {
        const size_t entry = row[2 + block * 8 + i] | (row[66 + block] >> i & 1) << 8;
        put_signed(out, 4 * i, 4, grids().iq3_s[entry], row[74 + block * 4 + i / 2] >> i % 2 * 4);
    }
}

// IQ1: numbers are −1, 0 and 1 and an eighth more or less, so here they are in eighths.
static void put_eighths(Block* out, size_t k, uint64_t entry, int more) {
    for (size_t j = 0; j < 8; ++j) out->put(k + j, static_cast<int8_t>(entry >> 8 * j & 255) + more);
}

// d; indices[32]; of each block a word with three more bits of each, a scale and a sign of the eighth
void read_iq1_s(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 50;
    const size_t block = index % 8;
    const uint16_t word = load16(row + 34 + block * 2);
    out->scale(half_to_float(load16(row)) * static_cast<float>(2 * (word >> 12 & 7) + 1) * 0.125f);
    for (size_t i = 0; i < 4; ++i) {
        const size_t entry = row[2 + block * 4 + i] | (word >> 3 * i & 7) << 8;
        put_eighths(out, 8 * i, grids().iq1[entry], word & 0x8000 ? -1 : 1);
    }
}

// indices[32]; for each half a byte with three more bits and the eighth's sign[16]; four words, each with four
// scales and a quarter of d
void read_iq1_m(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 56;
    const size_t block = index % 8;
    const uint8_t* words = row + 48;
    const auto d = static_cast<uint16_t>(load16(words) >> 12 | (load16(words + 2) >> 12) << 4 |
                                         (load16(words + 4) >> 12) << 8 | (load16(words + 6) >> 12) << 12);
    float scale[2];
    for (size_t i = 0; i < 2; ++i) {
        const int code = load16(words + block / 2 * 2) >> 3 * (block % 2 * 2 + i) & 7;
        scale[i] = half_to_float(d) * static_cast<float>(2 * code + 1) * 0.125f;
    }
    out->scales(scale[0], scale[1]);
    for (size_t i = 0; i < 4; ++i) {
        const int more = row[32 + block * 2 + i / 2] >> i % 2 * 4;
        const size_t entry = row[block * 4 + i] | (more & 7) << 8;
        put_eighths(out, 8 * i, grids().iq1[entry], more & 8 ? -1 : 1);
    }
}

}  // namespace stretto
