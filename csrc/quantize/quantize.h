// Numbers to blocks of a file's formats: the way back from weights/formats.h.
//
// Scales are searched for (fit.h), with weights that say how much each column matters, where they are known. A row's
// bytes depend on the row and its weights only, not on threads or machine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "threads/pool.h"

namespace stretto {

// Writes `blocks` blocks that follow each other in a row. `importance` has a weight for each number, or is null.
using Write = void (*)(const float* x, const float* importance, size_t blocks, uint8_t* out);

// The writer of a format, or null for one that cannot be written.
Write find_writer(int code);

// A matrix in one format, and the format it is wanted in. Rows are whole blocks of both.
struct Conversion {
    int from, to;
    size_t rows, columns;
    const uint8_t* data;
    const float* importance;  // [columns], or null
};

// Writes all rows. Returns the first row with a number that is infinite or NaN, or `rows` if there is none.
size_t convert_rows(const Conversion& conversion, uint8_t* out, Pool* pool);

// -- writers, by the files they are in --

// flat.cpp
void write_f32(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_f16(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_bf16(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_q4_0(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_q4_1(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_q5_0(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_q5_1(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_q8_0(const float* x, const float* importance, size_t blocks, uint8_t* out);

// k.cpp
void write_q2_k(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_q4_k(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_q5_k(const float* x, const float* importance, size_t blocks, uint8_t* out);

// k_signed.cpp
void write_q3_k(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_q6_k(const float* x, const float* importance, size_t blocks, uint8_t* out);

// levels.cpp
void write_iq4_nl(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_iq4_xs(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_mxfp4(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_nvfp4(const float* x, const float* importance, size_t blocks, uint8_t* out);

// grid.cpp
void write_iq1_s(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_iq1_m(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_iq2_xxs(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_iq2_xs(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_iq2_s(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_iq3_xxs(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_iq3_s(const float* x, const float* importance, size_t blocks, uint8_t* out);

// few.cpp
void write_q1_0(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_tq1_0(const float* x, const float* importance, size_t blocks, uint8_t* out);
void write_tq2_0(const float* x, const float* importance, size_t blocks, uint8_t* out);

}  // namespace stretto
