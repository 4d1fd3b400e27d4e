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

// The scale and minimum of group `g` of Q4_K and Q5_K, as floats.
void k_scale_min(const uint8_t* packed, size_t g, float d, float dmin, Block* out) {
    const ScaleMin found = scale_min(packed, g);
    out->scale(d * found.scale, -(dmin * found.min));
}

void read_q4_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 144;
    const size_t g = index % 8;
    k_scale_min(row + 4, g, half_to_float(load16(row)), half_to_float(load16(row + 2)), out);
    for (size_t j = 0; j < kBlock; ++j) out->q[j] = row[16 + g / 2 * 32 + j] >> (g % 2 * 4) & 15;
}

void read_q5_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 176;
    const size_t g = index % 8;
    k_scale_min(row + 4, g, half_to_float(load16(row)), half_to_float(load16(row + 2)), out);
    for (size_t j = 0; j < kBlock; ++j) {
        const int low = row[48 + g / 2 * 32 + j] >> (g % 2 * 4) & 15;
        out->q[j] = static_cast<uint8_t>((low | (row[16 + j] >> g & 1) << 4) + 128);
    }
}

void read_q6_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 210;
    const size_t half = index % 8 / 4, run = index % 4;
    const float d = half_to_float(load16(row + 208));
    for (size_t i = 0; i < 2; ++i) {
        out->d[i] = d * static_cast<float>(static_cast<int8_t>(row[192 + index % 8 * 2 + i]));
        out->m[i] = 0.0f;
    }
    const uint8_t* low = row + half * 64 + run % 2 * 32;
    const uint8_t* high = row + 128 + half * 32;
    for (size_t j = 0; j < kBlock; ++j) {
        const int value = (low[j] >> (run / 2 * 4) & 15) | (high[j] >> (run * 2) & 3) << 4;
        out->q[j] = static_cast<uint8_t>(value - 32 + 128);
    }
}

void read_q3_k(const uint8_t* row, size_t index, Block* out) {
    row += index / 8 * 110;
    const uint8_t* scales = row + 96;
    const float d = half_to_float(load16(row + 108));
    const size_t run = index % 8;
    for (size_t i = 0; i < 2; ++i) {
        const size_t group = run * 2 + i;
        const int low = scales[group % 8] >> (group / 8 * 4) & 15;
        const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        out->d[i] = d * static_cast<float>((low | high << 4) - 32);
        out->m[i] = 0.0f;
    }
    const uint8_t* q = row + 32 + run / 4 * 32;
    for (size_t j = 0; j < kBlock; ++j) {
        const int value = (q[j] >> (run % 4 * 2) & 3) - (row[j] >> run & 1 ? 0 : 4);
        out->q[j] = static_cast<uint8_t>(value + 128);
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
    {12, Layout::kNibblesMinF, read_q4_k},
    {8, Layout::kBytes, read_q8_0},
    {6, Layout::kBytes, read_q5_0},
    {20, Layout::kBytes, read_iq4_nl},
    {7, Layout::kBytesMinF, read_q5_1},
    {13, Layout::kBytesMinF, read_q5_k},
    {14, Layout::kBytes16F, read_q6_k},
    {11, Layout::kBytes16F, read_q3_k},
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

void put_scale(uint8_t* at, size_t index, bool half, float value) {
    if (half) {
        store16(at + 2 * index, float_to_half(value));  // it came from a half: exact
    } else {
        std::memcpy(at + 4 * index, &value, 4);
    }
}

float get_scale(const uint8_t* at, size_t index, bool half) {
    if (half) return half_to_float(load16(at + 2 * index));
    float value;
    std::memcpy(&value, at + 4 * index, 4);
    return value;
}

void put_block(const Block& block, const Shape& shape, size_t lane, uint8_t* out) {
    for (size_t group = 0; group < shape.groups; ++group) {
        put_scale(out, group * kPanelRows + lane, shape.half, block.d[group]);
        if (shape.min) put_scale(out + shape.scale_bytes(), group * kPanelRows + lane, shape.half, block.m[group]);
    }
    uint8_t* quants = out + shape.head_bytes();
    for (size_t k = 0; k < kBlock; ++k) {
        if (shape.bits == 8) {
            quants[k / 4 * 64 + lane * 4 + k % 4] = block.q[k];
        } else {
            quants[k % 16 / 4 * 64 + lane * 4 + k % 4] |= static_cast<uint8_t>(block.q[k] << (k / 16 * 4));
        }
    }
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
                                          : columns / kBlock * shape_of(layout).block_bytes();
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
                put_block(block, shape, lane, out + index * shape.block_bytes());
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
    for (size_t index = 0; index < matrix.columns / kBlock; ++index, panel += shape.block_bytes()) {
        const uint8_t* quants = panel + shape.head_bytes();
        for (size_t k = 0; k < kBlock; ++k) {
            const size_t at = k / (kBlock / shape.groups) * kPanelRows + lane;
            const int q = shape.bits == 8 ? quants[k / 4 * 64 + lane * 4 + k % 4]
                                          : quants[k % 16 / 4 * 64 + lane * 4 + k % 4] >> (k / 16 * 4) & 15;
            const float value = get_scale(panel, at, shape.half) * static_cast<float>(q - shape.offset);
            const float min = shape.min ? get_scale(panel + shape.scale_bytes(), at, shape.half) : 0.0f;
            out[index * kBlock + k] = shape.min ? value + min : value;
        }
    }
}

}  // namespace stretto
