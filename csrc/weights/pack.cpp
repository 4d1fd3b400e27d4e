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

struct Row {
    int code;
    Layout layout;
    Layout staged;  // what the file's rows become where they are multiplied with many columns
    Reader read;    // null where rows stay as they are
};

const Row kReaders[] = {
    {0, Layout::kF32, Layout::kF32, nullptr},
    {1, Layout::kF16, Layout::kF16, nullptr},
    {30, Layout::kBF16, Layout::kBF16, nullptr},
    {2, Layout::kNibbles, Layout::kBytesF, read_q4_0},
    {3, Layout::kNibblesMin, Layout::kBytesMinF, read_q4_1},
    {12, Layout::kNibblesK, Layout::kBytesMinF, read_q4_k},
    {13, Layout::kFivesK, Layout::kBytesMinF, read_q5_k},
    {14, Layout::kSixesK, Layout::kBytes16F, read_q6_k},
    {8, Layout::kBytes, Layout::kBytesF, read_q8_0},
    {39, Layout::kLevels, Layout::kBytesF, read_mxfp4},
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

const Row* reader_of(int code) {
    for (const Row& row : kReaders) {
        if (row.code == code) return &row;
    }
    return nullptr;
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
void put_scales(const Block& block, const Shape& shape, size_t index, size_t lane, uint8_t* unit) {
    for (size_t group = 0; group < shape.groups; ++group) {
        uint8_t* scale = unit + shape.scale_at(index, group) + lane * shape.scale_size();
        uint8_t* min = unit + shape.min_at(index, group) + lane * shape.scale_size();
        if (shape.scales == Scales::kCoded) {
            *scale = static_cast<uint8_t>(block.code[group]);
            if (shape.min) *min = static_cast<uint8_t>(block.min_code[group]);
        } else {
            put_scale(scale, shape.scales, block.d[group]);
            if (shape.min) put_scale(min, shape.scales, block.m[group]);
        }
    }
    if (shape.scales != Scales::kCoded) return;
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

// Fours of a row's bytes, one behind the other, to where they stand among those of the other rows.
void put_fours(const uint8_t* bytes, size_t fours, size_t lane, uint8_t* out) {
    for (size_t i = 0; i < fours; ++i) std::memcpy(out + 64 * i + 4 * lane, bytes + 4 * i, 4);
}

// A row's quants as low_at, fifth_at and six_at find them.
void put_quants(const uint8_t* q, int bits, size_t lane, uint8_t* out) {
    if (bits == 8) return put_fours(q, 8, lane, out);
    uint8_t bytes[kBlock];
    if (bits == 6) {
        for (size_t half = 0; half < 2; ++half) for (size_t i = 0; i < 3; ++i) for (size_t j = 0; j < 4; ++j) {
            const uint8_t* from = q + half * 16 + j;
            bytes[(half * 3 + i) * 4 + j] = static_cast<uint8_t>(from[4 * i] | from[12] >> 2 * i << 6);
        }
        return put_fours(bytes, 6, lane, out);
    }
    for (size_t i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>((q[i] & 15) | q[i + 16] << 4);
    if (bits == 5) {
        for (size_t j = 0; j < 4; ++j) {
            bytes[16 + j] = 0;
            for (size_t i = 0; i < 8; ++i) bytes[16 + j] |= static_cast<uint8_t>(q[4 * i + j] >> 4 << i);
        }
    }
    put_fours(bytes, bits == 5 ? 5 : 4, lane, out);
}

// A panel of floats, column after column, so that what is written lies in a row.
template <typename T>
void pack_floats(const uint8_t* rows, size_t row_bytes, size_t columns, size_t lanes, uint8_t* out) {
    for (size_t k = 0; k < columns; ++k) {
        T column[kPanelRows] = {};
        for (size_t lane = 0; lane < lanes; ++lane) std::memcpy(column + lane, rows + lane * row_bytes + k * sizeof(T), sizeof(T));
        std::memcpy(out + k * sizeof column, column, sizeof column);
    }
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
    const Row* row = reader_of(format_code);
    if (row) *layout = row->layout;
    return row != nullptr;
}

Layout staged_layout(int format) { return reader_of(format)->staged; }

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
    const Row& reader = *reader_of(format_code);
    const size_t row_bytes = file_row_bytes(format_code, matrix.columns);
    if (matrix.layout == Layout::kRows) {
        const size_t first = begin * kPanelRows, last = std::min(end * kPanelRows, matrix.rows);
        std::memcpy(out, source + first * row_bytes, (last - first) * row_bytes);
        std::memset(out + (last - first) * row_bytes, 0, ((end - begin) * kPanelRows - (last - first)) * row_bytes);
        return;
    }
    for (size_t panel = begin; panel < end; ++panel, out += matrix.panel_bytes) {
        if (!reader.read) {
            const uint8_t* first = source + panel * kPanelRows * row_bytes;
            const size_t lanes = std::min(kPanelRows, matrix.rows - panel * kPanelRows);
            if (matrix.layout == Layout::kF32) {
                pack_floats<uint32_t>(first, row_bytes, matrix.columns, lanes, out);
            } else {
                pack_floats<uint16_t>(first, row_bytes, matrix.columns, lanes, out);
            }
            continue;
        }
        std::memset(out, 0, matrix.panel_bytes);  // rows that are not there
        for (size_t lane = 0; lane < kPanelRows && panel * kPanelRows + lane < matrix.rows; ++lane) {
            const uint8_t* row = source + (panel * kPanelRows + lane) * row_bytes;
            const Shape shape = shape_of(matrix.layout);
            Block block;
            uint8_t* unit = out;
            for (size_t index = 0, in_unit = 0; index < matrix.columns / kBlock; ++index) {
                reader.read(row, index, &block);
                put_scales(block, shape, in_unit, lane, unit);
                put_quants(block.q, shape.bits, lane, unit + shape.quants_at(in_unit));
                if (++in_unit == shape.blocks()) {
                    in_unit = 0;
                    unit += shape.unit_bytes();
                }
            }
        }
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
