#include "quantize/quantize.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "weights/formats.h"
#include "weights/half.h"

namespace stretto {

namespace {

struct Entry {
    int code;
    Write write;
};

const Entry kWriters[] = {
    {0, write_f32},     {1, write_f16},    {2, write_q4_0},     {3, write_q4_1},  {6, write_q5_0},  {7, write_q5_1},
    {8, write_q8_0},    {10, write_q2_k},  {11, write_q3_k},    {12, write_q4_k}, {13, write_q5_k}, {14, write_q6_k},
    {20, write_iq4_nl}, {23, write_iq4_xs}, {30, write_bf16},   {39, write_mxfp4}, {40, write_nvfp4},
    {16, write_iq2_xxs}, {17, write_iq2_xs}, {18, write_iq3_xxs}, {21, write_iq3_s}, {22, write_iq2_s},
    {19, write_iq1_s},  {29, write_iq1_m}, {34, write_tq1_0},  {35, write_tq2_0}, {41, write_q1_0},
};

constexpr size_t kPieceNumbers = 1 << 16;  // that a thread takes at a time, at least a row

// Half floats, as half_to_float has them, without a branch.
void widen_halves(const uint8_t* data, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i) {
        uint16_t half;
        std::memcpy(&half, data + 2 * i, sizeof half);
        const uint32_t size = static_cast<uint32_t>(half & 0x7fff) << 13, sign = static_cast<uint32_t>(half & 0x8000) << 16;
        const uint32_t number = bits_of_float(float_of_bits(size) * 0x1p112f);
        const uint32_t special = -static_cast<uint32_t>(size >= 0x0f800000) & 0x7f800000;  // infinity, NaN
        out[i] = float_of_bits(sign | number | special);
    }
}

void widen_bf16(const uint8_t* data, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i) {
        uint16_t bits;
        std::memcpy(&bits, data + 2 * i, sizeof bits);
        out[i] = bf16_to_float(bits);
    }
}

// The numbers of a row. Plain floats are blocks of one, for which a call each would take longest.
void read_row(const Format& format, const uint8_t* data, size_t columns, float* out) {
    if (format.code == 0) {
        std::memcpy(out, data, columns * sizeof(float));
    } else if (format.code == 1) {
        widen_halves(data, columns, out);
    } else if (format.code == 30) {
        widen_bf16(data, columns, out);
    } else {
        for (size_t i = 0; i < columns / format.block; ++i) format.dequantize(data + i * format.size, out + i * format.block);
    }
}

bool is_finite(const float* x, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; ++i) most |= (bits_of_float(x[i]) & 0x7f800000) + 0x00800000;  // carries where the exponent is full
    return most < 0x80000000;
}

}  // namespace

Write find_writer(int code) {
    for (const Entry& entry : kWriters) {
        if (entry.code == code) return entry.write;
    }
    return nullptr;
}

size_t convert_rows(const Conversion& c, uint8_t* out, Pool* pool) {
    const Format &from = *find_format(c.from), &to = *find_format(c.to);
    const Write write = find_writer(c.to);
    const size_t in_bytes = c.columns / from.block * from.size, out_bytes = c.columns / to.block * to.size;
    const size_t step = kPieceNumbers / c.columns ? kPieceNumbers / c.columns : 1;
    std::atomic<size_t> next{0}, wrong{c.rows};
    const auto work = [&](int) {
        std::vector<float> floats(c.columns);
        for (size_t first; (first = next.fetch_add(step)) < c.rows;) {
            for (size_t row = first; row < std::min(first + step, c.rows); ++row) {
                const uint8_t* data = c.data + row * in_bytes;
                read_row(from, data, c.columns, floats.data());
                if (!is_finite(floats.data(), c.columns)) {
                    for (size_t known = wrong; row < known && !wrong.compare_exchange_weak(known, row);) {}
                    continue;
                }
                write(floats.data(), c.importance, c.columns / to.block, out + row * out_bytes);
            }
        }
    };
    if (pool) {
        pool->run(work);
    } else {
        work(0);
    }
    return wrong;
}

}  // namespace stretto
