// Weights in the layouts the kernels want.
//
// A matrix is cut into panels of 16 rows. In a panel the numbers of the 16 rows stand interleaved, so that
// one vector instruction works on all of them: quantised layouts in blocks of 32 columns, each
//
//     scales, minima     16 numbers each (one per row), for each group of the block
//     quants             for each four columns: 16 rows × 4 bytes
//
// where the nibble layouts keep columns 4g…4g+3 in the low halves and 16+4g… in the high halves of the
// same bytes. A number is scale × (quant − offset) + minimum. Float layouts have 16 numbers a column.
//
// A scale is a half float times an integer of 8 bits at most, so it has 19 significant bits at most, also where
// it is a float. Kernels rely on that.
//
// A format of the file costs a reader in pack.cpp, not a kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stretto {

constexpr size_t kPanelRows = 16;
constexpr size_t kBlock = 32;

enum class Layout {
    kNibbles,       // half scales, offset 8                          Q4_0
    kNibblesMin,    // half scales and minima                         Q4_1
    kNibblesMinF,   // float scales and minima                        Q4_K
    kBytes,         // half scales, offset 128                        Q8_0 Q5_0 IQ4_NL
    kBytesMinF,     // float scales and minima, offset 128            Q5_1 Q5_K
    kBytes16F,      // float scales for 16 columns, offset 128        Q6_K Q3_K IQ4_XS
    kBytes16MinF,   // the same with minima                           Q2_K
    kF32,
    kF16,
    kBF16,
};

// What is particular to a quantised layout.
struct Shape {
    int bits;           // 4 or 8
    bool half;          // scales are half floats, else floats
    size_t groups;      // of a block, each with a scale
    bool min;
    int offset;

    constexpr size_t scale_bytes() const { return groups * kPanelRows * (half ? 2 : 4); }
    constexpr size_t head_bytes() const { return scale_bytes() * (min ? 2 : 1); }
    constexpr size_t block_bytes() const { return head_bytes() + kPanelRows * kBlock * bits / 8; }
};

constexpr bool is_float(Layout layout) {
    return layout == Layout::kF32 || layout == Layout::kF16 || layout == Layout::kBF16;
}

// The shape of a quantised layout.
constexpr Shape shape_of(Layout layout) {
    switch (layout) {
        case Layout::kNibbles: return {4, true, 1, false, 8};
        case Layout::kNibblesMin: return {4, true, 1, true, 0};
        case Layout::kNibblesMinF: return {4, false, 1, true, 0};
        case Layout::kBytes: return {8, true, 1, false, 128};
        case Layout::kBytesMinF: return {8, false, 1, true, 128};
        case Layout::kBytes16F: return {8, false, 2, false, 128};
        default: return {8, false, 2, true, 128};
    }
}

struct Matrix {
    Layout layout = Layout::kF32;
    size_t rows = 0;
    size_t columns = 0;
    size_t panel_bytes = 0;
    const uint8_t* data = nullptr;     // packed, or null:
    const uint8_t* source = nullptr;   // the file's bytes, packed panel by panel when they are used
    int format = 0;                    // of `source`
    size_t ready = 0;                  // rows that have been packed so far

    size_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
    size_t bytes() const { return panels() * panel_bytes; }
};

// The layout for a format of the file; false if there is none.
bool layout_of(int format_code, Layout* layout);
// A matrix of that layout and size, without data.
Matrix matrix_for(Layout layout, size_t rows, size_t columns);
// Packs panels [begin, end) of a matrix from the file's bytes into `out`, the start of panel `begin`.
void pack_panels(int format_code, const uint8_t* source, const Matrix& matrix, size_t begin, size_t end,
                 uint8_t* out);
// A row as floats, exactly as the file's format means it.
void read_row(const Matrix& matrix, size_t row, float* out);

}  // namespace stretto
