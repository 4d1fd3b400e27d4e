// Readers of the formats that have packed layouts.

#include "weights/blocks.h"

#include "weights/formats.h"
#include "weights/half.h"

namespace stretto {

static void nibbles(const uint8_t* bytes, Block* out) {
    for (size_t j = 0; j < 16; ++j) {
        out->q[j] = bytes[j] & 15;
        out->q[j + 16] = bytes[j] >> 4;
    }
}

void read_q4_0(const uint8_t* row, size_t index, Block* out) {
    row += index * 18;
    out->scale(half_to_float(load16(row)));
    nibbles(row + 2, out);
}

void read_q4_1(const uint8_t* row, size_t index, Block* out) {
    row += index * 20;
    out->scale(half_to_float(load16(row)), half_to_float(load16(row + 2)));
    nibbles(row + 4, out);
}

void read_q8_0(const uint8_t* row, size_t index, Block* out) {
    row += index * 34;
    out->scale(half_to_float(load16(row)));
    for (size_t j = 0; j < kBlock; ++j) out->q[j] = row[2 + j] ^ 128;
}

// The scale and minimum of group `g` of Q4_K and Q5_K. The file subtracts minima, packed layouts add them.
static void k_scale_min(const uint8_t* row, size_t g, Block* out) {
    const ScaleMin found = scale_min(row + 4, g);
    out->unit_d = load16(row);
    out->unit_m = load16(row + 2) ^ 0x8000;
    out->code[0] = static_cast<int8_t>(found.scale);
    out->min_code[0] = static_cast<int8_t>(found.min);
}

void read_q4_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 144;
    const size_t g = index % 8;
    k_scale_min(row, g, out);
    // Shifts that are constants become vector operations on bytes.
    const uint8_t* from = row + 16 + g / 2 * 32;
    if (g % 2) {
        for (size_t j = 0; j < kBlock; ++j) out->q[j] = from[j] >> 4;
    } else {
        for (size_t j = 0; j < kBlock; ++j) out->q[j] = from[j] & 15;
    }
}

void read_q5_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 176;
    const size_t g = index % 8;
    k_scale_min(row, g, out);
    for (size_t j = 0; j < kBlock; ++j) {
        const int low = row[48 + g / 2 * 32 + j] >> (g % 2 * 4) & 15;
        out->q[j] = static_cast<uint8_t>(low | (row[16 + j] >> g & 1) << 4);
    }
}

template <int Run>
static void sixes(const uint8_t* low, const uint8_t* high, uint8_t* out) {
    for (size_t j = 0; j < kBlock; ++j) {
        out[j] = static_cast<uint8_t>((low[j] >> (Run / 2 * 4) & 15) | (high[j] >> (Run * 2) & 3) << 4);
    }
}

void read_q6_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 210;
    const size_t half = index % 8 / 4, run = index % 4;
    out->unit_d = load16(row + 208);
    for (size_t i = 0; i < 2; ++i) out->code[i] = static_cast<int8_t>(row[192 + index % 8 * 2 + i]);
    const uint8_t* low = row + half * 64 + run % 2 * 32;
    const uint8_t* high = row + 128 + half * 32;
    switch (run) {
        case 0: return sixes<0>(low, high, out->q);
        case 1: return sixes<1>(low, high, out->q);
        case 2: return sixes<2>(low, high, out->q);
        default: return sixes<3>(low, high, out->q);
    }
}

}  // namespace stretto
