// From the file's formats to the packed layouts, without losing a bit.

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/direct.h"
#include "weights/blocks.h"
#include "weights/formats.h"
#include "weights/half.h"
#include "weights/packed.h"

namespace stretto {

namespace {

// Readers of formats that have packed layouts: block `index` (of 32 columns) of a row.

void nibbles(const uint8_t* bytes, Block* out) {
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
void k_scale_min(const uint8_t* row, size_t g, Block* out) {
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
void sixes(const uint8_t* low, const uint8_t* high, uint8_t* out) {
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

size_t float_bytes(Layout layout) { return layout == Layout::kF32 ? 4 : 2; }

void put_scale(uint8_t* at, Scales scales, float value) {
    if (scales == Scales::kHalf) {
        store16(at, float_to_half(value));  // it came from a half: exact
    } else if (scales == Scales::kShort) {
        store16(at, static_cast<uint16_t>(bits_of_float(value) >> 16));
    } else {
        std::memcpy(at, &value, 4);
    }
}

// The scales and minima of block `index` of a unit.
template <Layout L>
void put_scales(const Block& block, size_t index, size_t lane, uint8_t* unit) {
    constexpr Shape shape = shape_of(L);
    for (size_t group = 0; group < shape.groups; ++group) {
        uint8_t* scale = unit + shape.scale_at(index, group) + lane * shape.scale_size();
        uint8_t* min = unit + shape.min_at(index, group) + lane * shape.scale_size();
        if constexpr (shape.scales == Scales::kCoded) {
            *scale = static_cast<uint8_t>(block.code[group]);
            if (shape.min) *min = static_cast<uint8_t>(block.min_code[group]);
        } else {
            put_scale(scale, shape.scales, block.d[group]);
            if (shape.min) put_scale(min, shape.scales, block.m[group]);
        }
    }
    if (shape.scales != Scales::kCoded || index) return;
    store16(unit + 2 * lane, block.unit_d);
    if (shape.min) store16(unit + 2 * (kPanelRows + lane), block.unit_m);
}

float get_scale(const uint8_t* unit, const Shape& shape, size_t at, size_t lane, bool min) {
    const uint8_t* found = unit + at + lane * shape.scale_size();
    if (shape.scales == Scales::kHalf) return half_to_float(load16(found));
    if (shape.scales == Scales::kShort) return bf16_to_float(load16(found));
    if (shape.scales == Scales::kCoded) {
        const float times = half_to_float(load16(unit + 2 * (min ? kPanelRows + lane : lane)));
        return times * static_cast<float>(static_cast<int8_t>(*found));
    }
    float value;
    std::memcpy(&value, found, 4);
    return value;
}

// Whether column k is of those whose six bits stand above the others.
bool is_fourth(size_t k) { return k % 16 >= 12; }
// Column k of a row within a block's quants: the byte with its nibble (or all of it), and the one with its fifth bit.
size_t low_at(size_t k, size_t lane, int bits) { return (bits == 8 ? k : k % 16) / 4 * 64 + lane * 4 + k % 4; }
size_t fifth_at(size_t k, size_t lane) { return 256 + lane * 4 + k % 4; }
// Of six bits: column k of a row, or the first of the three bytes that share the fourth.
size_t six_at(size_t k, size_t lane) { return (k / 16 * 3 + (is_fourth(k) ? 0 : k / 4 % 4)) * 64 + lane * 4 + k % 4; }

// A row's quants as low_at, fifth_at and six_at find them, four columns at a time.
template <int Bits>
void put_quants(const uint8_t* q, size_t lane, uint8_t* out) {
    constexpr uint32_t kNibbles = 0x0f0f0f0f, kPairs = 0x03030303, kOnes = 0x01010101;
    const auto four = [q](size_t i) { return load32(q + 4 * i); };
    const auto put = [out, lane](size_t i, uint32_t bytes) { store32(out + 64 * i + 4 * lane, bytes); };
    if constexpr (Bits == 8) {
        for (size_t i = 0; i < 8; ++i) put(i, four(i));
    } else if constexpr (Bits == 6) {
        for (size_t half = 0; half < 2; ++half) {
            const uint32_t fourth = four(4 * half + 3);
            for (size_t i = 0; i < 3; ++i) put(3 * half + i, four(4 * half + i) | (fourth >> 2 * i & kPairs) << 6);
        }
    } else {
        for (size_t i = 0; i < 4; ++i) put(i, (four(i) & kNibbles) | (four(i + 4) & kNibbles) << 4);
        if constexpr (Bits == 5) {
            uint32_t fifths = 0;
            for (size_t i = 0; i < 8; ++i) fifths |= (four(i) >> 4 & kOnes) << i;
            put(4, fifths);
        }
    }
}

// A panel of floats, column after column, so that what is written lies in a row.
template <typename T>
void pack_floats(const uint8_t* rows, size_t row_bytes, size_t lanes, size_t columns, uint8_t* out) {
    for (size_t k = 0; k < columns; ++k) {
        T column[kPanelRows] = {};
        for (size_t lane = 0; lane < lanes; ++lane) std::memcpy(column + lane, rows + lane * row_bytes + k * sizeof(T), sizeof(T));
        std::memcpy(out + k * sizeof column, column, sizeof column);
    }
}

// A panel of quants, unit after unit: what a unit is made of stands together in each row of the file.
template <Layout L, Reader Read>
void pack_quants(const uint8_t* rows, size_t row_bytes, size_t lanes, size_t columns, uint8_t* unit) {
    constexpr Shape shape = shape_of(L);
    constexpr size_t blocks = shape.blocks();
    const size_t units = columns / kBlock / blocks;
    if (lanes < kPanelRows) std::memset(unit, 0, units * shape.unit_bytes());  // rows that are not there
    for (size_t i = 0; i < units; ++i, unit += shape.unit_bytes()) {
        for (size_t lane = 0; lane < lanes; ++lane) {
            const uint8_t* from = rows + lane * row_bytes + i * (row_bytes / units);
#pragma GCC unroll 8  // so that `index` is a constant in the readers
            for (size_t index = 0; index < blocks; ++index) {
                Block block;
                Read(from, index, &block);
                put_scales<L>(block, index, lane, unit);
                put_quants<shape.bits>(block.q, lane, unit + shape.quants_at(index));
            }
        }
    }
}

struct Row {
    int code;
    Layout layout;
    Layout staged;  // what the file's rows become where they are multiplied with many columns
    // Packs a panel of `lanes` rows; null where rows stay as they are.
    void (*pack)(const uint8_t* rows, size_t row_bytes, size_t lanes, size_t columns, uint8_t* out);
};

const Row kRows[] = {
    {0, Layout::kF32, Layout::kF32, pack_floats<uint32_t>},
    {1, Layout::kF16, Layout::kF16, pack_floats<uint16_t>},
    {30, Layout::kBF16, Layout::kBF16, pack_floats<uint16_t>},
    {2, Layout::kNibbles, Layout::kBytesF, pack_quants<Layout::kNibbles, read_q4_0>},
    {3, Layout::kNibblesMin, Layout::kBytesMinF, pack_quants<Layout::kNibblesMin, read_q4_1>},
    {12, Layout::kNibblesK, Layout::kBytesMinF, pack_quants<Layout::kNibblesK, read_q4_k>},
    {13, Layout::kFivesK, Layout::kBytesMinF, pack_quants<Layout::kFivesK, read_q5_k>},
    {14, Layout::kSixesK, Layout::kBytes16F, pack_quants<Layout::kSixesK, read_q6_k>},
    {8, Layout::kBytes, Layout::kBytesF, pack_quants<Layout::kBytes, read_q8_0>},
    {39, Layout::kLevels, Layout::kBytesF, pack_quants<Layout::kLevels, read_mxfp4>},
    {6, Layout::kRows, Layout::kBytesF, nullptr},           // Q5_0
    {7, Layout::kRows, Layout::kBytesMinF, nullptr},        // Q5_1
    {10, Layout::kRows, Layout::kBytes16MinF, nullptr},     // Q2_K
    {11, Layout::kRows, Layout::kBytes16F, nullptr},        // Q3_K
    {16, Layout::kRows, Layout::kBytesF, nullptr},          // IQ2_XXS
    {17, Layout::kRows, Layout::kBytes16F, nullptr},        // IQ2_XS
    {18, Layout::kRows, Layout::kBytesF, nullptr},          // IQ3_XXS
    {19, Layout::kRows, Layout::kBytesF, nullptr},          // IQ1_S
    {20, Layout::kRows, Layout::kBytesF, nullptr},          // IQ4_NL
    {21, Layout::kRows, Layout::kBytesF, nullptr},          // IQ3_S
    {22, Layout::kRows, Layout::kBytes16F, nullptr},        // IQ2_S
    {23, Layout::kRows, Layout::kBytesF, nullptr},          // IQ4_XS
    {29, Layout::kRows, Layout::kBytes16F, nullptr},        // IQ1_M
    {34, Layout::kRows, Layout::kBytesF, nullptr},          // TQ1_0
    {35, Layout::kRows, Layout::kBytesF, nullptr},          // TQ2_0
    {40, Layout::kRows, Layout::kBytes16F, nullptr},        // NVFP4
    {41, Layout::kRows, Layout::kBytesF, nullptr},          // Q1_0
};

const Row* row_of(int code) {
    for (const Row& row : kRows) {
        if (row.code == code) return &row;
    }
    return nullptr;
}

int get_quant(const uint8_t* quants, size_t k, size_t lane, int bits) {
    if (bits == 6) {
        const uint8_t* three = quants + six_at(k, lane);
        return is_fourth(k) ? three[0] >> 6 | three[64] >> 6 << 2 | three[128] >> 6 << 4 : *three & 63;
    }
    const int low = quants[low_at(k, lane, bits)];
    if (bits == 8) return low;
    const int nibble = low >> (k / 16 * 4) & 15;
    return bits == 4 ? nibble : nibble | (quants[fifth_at(k, lane)] >> k / 4 & 1) << 4;
}

}  // namespace

bool layout_of(int format_code, Layout* layout) {
    const Row* row = row_of(format_code);
    if (row) *layout = row->layout;
    return row != nullptr;
}

Layout staged_layout(int format) { return row_of(format)->staged; }

size_t file_row_bytes(int format_code, size_t columns) {
    const Format& format = *find_format(format_code);
    return columns / format.block * format.size;
}

Matrix matrix_for(Layout layout, size_t rows, size_t columns, int format_code) {
    Matrix matrix;
    matrix.layout = layout;
    matrix.rows = rows;
    matrix.columns = columns;
    if (layout == Layout::kRows) {
        if (!find_format(format_code)) throw std::invalid_argument("rows of the file need their format");
        matrix.format = format_code;
        matrix.panel_bytes = kPanelRows * file_row_bytes(format_code, columns);
        return matrix;
    }
    matrix.panel_bytes = is_float(layout) ? columns * kPanelRows * float_bytes(layout)
                                          : columns / kBlock / shape_of(layout).blocks() * shape_of(layout).unit_bytes();
    return matrix;
}

void pack_panels(int format_code, const uint8_t* source, const Matrix& matrix, size_t begin, size_t end,
                 uint8_t* out) {
    const Row& row = *row_of(format_code);
    const size_t row_bytes = file_row_bytes(format_code, matrix.columns);
    if (matrix.layout == Layout::kRows) {
        const size_t first = begin * kPanelRows, last = std::min(end * kPanelRows, matrix.rows);
        std::memcpy(out, source + first * row_bytes, (last - first) * row_bytes);
        std::memset(out + (last - first) * row_bytes, 0, ((end - begin) * kPanelRows - (last - first)) * row_bytes);
        return;
    }
    for (size_t panel = begin; panel < end; ++panel, out += matrix.panel_bytes) {
        const uint8_t* rows = source + panel * kPanelRows * row_bytes;
        row.pack(rows, row_bytes, std::min(kPanelRows, matrix.rows - panel * kPanelRows), matrix.columns, out);
    }
}

void read_row(const Matrix& matrix, size_t row, float* out) {
    if (const uint8_t* rows = matrix.file_rows()) {
        const Format& format = *find_format(matrix.format);
        const uint8_t* bytes = rows + row * file_row_bytes(matrix.format, matrix.columns);
        for (size_t k = 0; k < matrix.columns; k += format.block, bytes += format.size) {
            format.dequantize(bytes, out + k);
        }
        return;
    }
    const uint8_t* panel = matrix.data + row / kPanelRows * matrix.panel_bytes;
    const size_t lane = row % kPanelRows;
    if (is_float(matrix.layout)) {
        const size_t size = float_bytes(matrix.layout);
        for (size_t k = 0; k < matrix.columns; ++k) {
            const uint8_t* at = panel + (k * kPanelRows + lane) * size;
            if (matrix.layout == Layout::kF32) {
                std::memcpy(out + k, at, 4);
            } else {
                out[k] = matrix.layout == Layout::kF16 ? half_to_float(load16(at)) : bf16_to_float(load16(at));
            }
        }
        return;
    }
    const Shape shape = shape_of(matrix.layout);
    for (size_t index = 0; index < matrix.columns / kBlock; ++index) {
        const uint8_t* unit = panel + index / shape.blocks() * shape.unit_bytes();
        const size_t block = index % shape.blocks();
        for (size_t k = 0; k < kBlock; ++k) {
            const size_t group = k / (kBlock / shape.groups);
            const float d = get_scale(unit, shape, shape.scale_at(block, group), lane, false);
            const int found = get_quant(unit + shape.quants_at(block), k, lane, shape.bits);
            const int q = (shape.levels ? kE2m1Bytes[found] : found) - shape.offset;
            float& to = out[index * kBlock + k];
            to = d * static_cast<float>(q);
            if (shape.min) to += get_scale(unit, shape, shape.min_at(block, group), lane, true);
        }
    }
}

}  // namespace stretto
