// 32 columns of a row of the file, as integers with scales: what packing reads, and what the small formats mean.
//
// Readers of formats that have a packed layout of their own (in pack.cpp, and that of MXFP4) give quants as that layout
// keeps them (packed.h); those of the small formats, whose rows stay as in the file, give value + 128.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/packed.h"

namespace stretto {

struct Block {
    uint8_t q[kBlock];
    float d[2];  // for each half of the block
    float m[2];
    uint16_t unit_d, unit_m;  // where scales are coded: half floats that the codes are multiplied with
    int8_t code[2], min_code[2];

    void scale(float value, float min = 0.0f) {
        d[0] = d[1] = value;
        m[0] = m[1] = min;
    }
    void scales(float first, float second) {
        d[0] = first;
        d[1] = second;
        m[0] = m[1] = 0.0f;
    }
    void put(size_t k, int value) { q[k] = static_cast<uint8_t>(value + 128); }
};

// Reads block `index` (of 32 columns) of a row.
using Reader = void (*)(const uint8_t* row, size_t index, Block* out);

// Of formats with four bits and less.
void read_mxfp4(const uint8_t* row, size_t index, Block* out);
void read_nvfp4(const uint8_t* row, size_t index, Block* out);
void read_tq1_0(const uint8_t* row, size_t index, Block* out);
void read_tq2_0(const uint8_t* row, size_t index, Block* out);
void read_q1_0(const uint8_t* row, size_t index, Block* out);
void read_iq2_xxs(const uint8_t* row, size_t index, Block* out);
void read_iq2_xs(const uint8_t* row, size_t index, Block* out);
void read_iq2_s(const uint8_t* row, size_t index, Block* out);
void read_iq3_xxs(const uint8_t* row, size_t index, Block* out);
void read_iq3_s(const uint8_t* row, size_t index, Block* out);
void read_iq1_s(const uint8_t* row, size_t index, Block* out);
void read_iq1_m(const uint8_t* row, size_t index, Block* out);

// The scales of MXFP4, an exponent, and of NVFP4, seven bits of a float; both for what kE2m1Bytes has.
float e8m0_half(uint8_t exponent);
float e4m3_half(uint8_t bits);

}  // namespace stretto
