// From the file's formats to the packed layouts, without losing a bit.

#include <cstring>

#include "formats.h"
#include "half.h"
#include "packed.h"

namespace stretto {

namespace {

// 32 columns of one row in the terms of a packed layout.
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
};

// Reads block `index` (of 32 columns) of a row.
using Reader = void (*)(const uint8_t* row, size_t index, Block* out);

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

void fifth_bits(uint32_t high, int add, Block* out) {
    for (size_t j = 0; j < kBlock; ++j) {
        out->q[j] = static_cast<uint8_t>((out->q[j] | (high >> j & 1) << 4) + add);
    }
}

void read_q5_0(const uint8_t* row, size_t index, Block* out) {
    row += index * 22;
    out->scale(half_to_float(load16(row)));
    nibbles(row + 6, out);
    fifth_bits(load32(row + 2), 128 - 16, out);
}

void read_q5_1(const uint8_t* row, size_t index, Block* out) {
    row += index * 24;
    out->scale(half_to_float(load16(row)), half_to_float(load16(row + 2)));
    nibbles(row + 8, out);
    fifth_bits(load32(row + 4), 128, out);
}

void read_iq4_nl(const uint8_t* row, size_t index, Block* out) {
    row += index * 18;
    out->scale(half_to_float(load16(row)));
    nibbles(row + 2, out);
    for (uint8_t& q : out->q) q = static_cast<uint8_t>(kIq4Levels[q] + 128);
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
    for (size_t j = 0; j < kBlock; ++j) out->q[j] = row[16 + g / 2 * 32 + j] >> (g % 2 * 4) & 15;
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

void read_q6_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 210;
    const size_t half = index % 8 / 4, run = index % 4;
    out->unit_d = load16(row + 208);
    for (size_t i = 0; i < 2; ++i) out->code[i] = static_cast<int8_t>(row[192 + index % 8 * 2 + i]);
    const uint8_t* low = row + half * 64 + run % 2 * 32;
    const uint8_t* high = row + 128 + half * 32;
    for (size_t j = 0; j < kBlock; ++j) {
        out->q[j] = static_cast<uint8_t>((low[j] >> (run / 2 * 4) & 15) | (high[j] >> (run * 2) & 3) << 4);
    }
}

void read_q3_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 110;
    const uint8_t* scales = row + 96;
    out->unit_d = load16(row + 108);
    const size_t run = index % 8;
    for (size_t i = 0; i < 2; ++i) {
        const size_t group = run * 2 + i;
        const int low = scales[group % 8] >> (group / 8 * 4) & 15;
        const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        out->code[i] = static_cast<int8_t>((low | high << 4) - 32);
    }
    const uint8_t* q = row + 32 + run / 4 * 32;
    for (size_t j = 0; j < kBlock; ++j) {
        const int value = (q[j] >> (run % 4 * 2) & 3) - (row[j] >> run & 1 ? 0 : 4);
        out->q[j] = static_cast<uint8_t>(value + 32);
    }
}

void read_q2_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 84;
    const float d = half_to_float(load16(row + 80)), dmin = half_to_float(load16(row + 82));
    const size_t run = index % 8;
    for (size_t i = 0; i < 2; ++i) {
        const uint8_t packed = row[run * 2 + i];
        out->d[i] = d * static_cast<float>(packed & 15);
        out->m[i] = -(dmin * static_cast<float>(packed >> 4));
    }
    const uint8_t* q = row + 16 + run / 4 * 32;
    for (size_t j = 0; j < kBlock; ++j) out->q[j] = static_cast<uint8_t>((q[j] >> (run % 4 * 2) & 3) + 128);
}

void read_iq4_xs(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 136;
    const size_t g = index % 8;
    const int low = row[4 + g / 2] >> (g % 2 * 4) & 15;
    const int high = load16(row + 2) >> (g * 2) & 3;
    out->scale(half_to_float(load16(row)) * static_cast<float>((low | high << 4) - 32));
    nibbles(row + 8 + g * 16, out);
    for (uint8_t& q : out->q) q = static_cast<uint8_t>(kIq4Levels[q] + 128);
}

struct Row {
    int code;
    Layout layout;
    Reader read;
};

const Row kReaders[] = {
    {0, Layout::kF32, nullptr},
    {1, Layout::kF16, nullptr},
    {30, Layout::kBF16, nullptr},
    {2, Layout::kNibbles, read_q4_0},
    {3, Layout::kNibblesMin, read_q4_1},
    {12, Layout::kNibblesK, read_q4_k},
    {8, Layout::kBytes, read_q8_0},
    {6, Layout::kBytes, read_q5_0},
    {20, Layout::kBytes, read_iq4_nl},
    {7, Layout::kBytesMinF, read_q5_1},
    {13, Layout::kFivesK, read_q5_k},
    {14, Layout::kSixesK, read_q6_k},
    {11, Layout::kSixesK, read_q3_k},
    {23, Layout::kBytes16F, read_iq4_xs},
    {10, Layout::kBytes16MinF, read_q2_k},
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
    if (shape.scales == Scales::kCoded) {
        const float times = half_to_float(load16(unit + 2 * (min ? kPanelRows + lane : lane)));
        return times * static_cast<float>(static_cast<int8_t>(*found));
    }
    float value;
    std::memcpy(&value, found, 4);
    return value;
}

// Column k of a row within a block's quants: the byte with its low bits (or all of them), and the one with the
// bits above the nibbles.
size_t low_at(size_t k, size_t lane, int bits) { return (bits == 8 ? k : k % 16) / 4 * 64 + lane * 4 + k % 4; }
size_t high_at(size_t k, size_t lane, int bits) { return 256 + (bits == 6 ? k / 16 * 64 : 0) + lane * 4 + k % 4; }
// By how much those are moved up in their byte.
size_t high_shift(size_t k, int bits) { return bits == 6 ? k % 16 / 4 * 2 : k / 4; }

void put_quants(const uint8_t* q, int bits, size_t lane, uint8_t* out) {
    for (size_t k = 0; k < kBlock; ++k) {
        if (bits == 8) {
            out[low_at(k, lane, bits)] = q[k];
            continue;
        }
        out[low_at(k, lane, bits)] |= static_cast<uint8_t>((q[k] & 15) << (k / 16 * 4));
        if (bits > 4) out[high_at(k, lane, bits)] |= static_cast<uint8_t>(q[k] >> 4 << high_shift(k, bits));
    }
}

int get_quant(const uint8_t* quants, size_t k, size_t lane, int bits) {
    const int low = quants[low_at(k, lane, bits)];
    if (bits == 8) return low;
    const int nibble = low >> (k / 16 * 4) & 15;
    if (bits == 4) return nibble;
    const int high = quants[high_at(k, lane, bits)] >> high_shift(k, bits);
    return nibble | (high & ((1 << (bits - 4)) - 1)) << 4;
}

}  // namespace

bool layout_of(int format_code, Layout* layout) {
    const Row* row = reader_of(format_code);
    if (row) *layout = row->layout;
    return row != nullptr;
}

Matrix matrix_for(Layout layout, size_t rows, size_t columns) {
    Matrix matrix;
    matrix.layout = layout;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.panel_bytes = is_float(layout) ? columns * kPanelRows * float_bytes(layout)
                                          : columns / kBlock / shape_of(layout).blocks() * shape_of(layout).unit_bytes();
    return matrix;
}

void pack_panels(int format_code, const uint8_t* source, const Matrix& matrix, size_t begin, size_t end,
                 uint8_t* out) {
    const Row& reader = *reader_of(format_code);
    const Format& format = *find_format(format_code);
    const size_t row_bytes = matrix.columns / format.block * format.size;
    std::memset(out, 0, (end - begin) * matrix.panel_bytes);
    for (size_t panel = begin; panel < end; ++panel, out += matrix.panel_bytes) {
        for (size_t lane = 0; lane < kPanelRows && panel * kPanelRows + lane < matrix.rows; ++lane) {
            const uint8_t* row = source + (panel * kPanelRows + lane) * row_bytes;
            if (!reader.read) {
                const size_t size = float_bytes(matrix.layout);
                for (size_t k = 0; k < matrix.columns; ++k) {
                    std::memcpy(out + (k * kPanelRows + lane) * size, row + k * size, size);
                }
                continue;
            }
            const Shape shape = shape_of(matrix.layout);
            Block block;
            for (size_t index = 0; index < matrix.columns / kBlock; ++index) {
                reader.read(row, index, &block);
                uint8_t* unit = out + index / shape.blocks() * shape.unit_bytes();
                put_scales(block, shape, index % shape.blocks(), lane, unit);
                put_quants(block.q, shape.bits, lane, unit + shape.quants_at(index % shape.blocks()));
            }
        }
    }
}

void read_row(const Matrix& matrix, size_t row, float* out) {
    if (!matrix.data) {
        const Format& format = *find_format(matrix.format);
        const uint8_t* bytes = matrix.source + row * (matrix.columns / format.block * format.size);
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
            const int q = get_quant(unit + shape.quants_at(block), k, lane, shape.bits) - shape.offset;
            float& to = out[index * kBlock + k];
            to = d * static_cast<float>(q);
            if (shape.min) to += get_scale(unit, shape, shape.min_at(block, group), lane, true);
        }
    }
}

}  // namespace stretto
