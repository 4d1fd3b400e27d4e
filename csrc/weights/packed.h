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
// The layouts of most K-quants are about as small as the file. Eight blocks share a head:
//
//     d, m               16 half floats each; a scale is d × its code, a minimum m × its code
//     codes              16 bytes for each group of each block, followed by those of its minima if there are any
//     quants             of block after block: nibbles, then fifth bits, 16 rows × 4 bytes at a time; of a byte the
//                        lowest bit belongs to the first of its columns' fours. Of six bits, three times four columns,
//                        and above them the next four, whose lowest bits are above the first
//
// A scale is a half float times an integer of 8 bits at most, so it has 19 significant bits at most, also where
// it is a float. Kernels rely on that.
//
// Where no such layout would be as small as the file and quick to read, rows stay as they are: kernels/direct.h
// multiplies them. There a format costs a reader in direct_formats.h, here one in pack.cpp; neither costs a kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stretto {

// Twice the floats of four bits that MXFP4 and NVFP4 have, and 128 more.
constexpr uint8_t kE2m1Bytes[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

// Changes with any layout below: bytes packed by another version are packed again.
constexpr int kPackedVersion = 1;

constexpr size_t kPanelRows = 16;
constexpr size_t kBlock = 32;

enum class Layout {
    kNibbles,       // half scales, offset 8                          Q4_0
    kNibblesMin,    // half scales and minima                         Q4_1
    kNibblesK,      // coded scales and minima                        Q4_K
    kFivesK,        // the same with five bits                        Q5_K
    kSixesK,        // coded scales for 16 columns, offset 32         Q6_K Q3_K
    kBytes,         // half scales, offset 128                        Q8_0
    kLevels,        // nibbles that choose a level, short scales      MXFP4
    kBytesF,        // float scales, offset 128                     } rows of the file become
    kBytesMinF,     // float scales and minima, offset 128          } one of these while they
    kBytes16F,      // float scales for 16 columns, offset 128      } are multiplied
    kBytes16MinF,   // the same with minima                         }
    kF32,
    kF16,
    kBF16,
    kRows,          // rows as in the file, one after the other       all others
};

// How the scales of a layout are kept. A short one is the upper half of a float, which is all that a power of two has.
enum class Scales { kCoded, kHalf, kShort, kFloat };

// What is particular to a quantised layout.
struct Shape {
    int bits;           // 4, 5, 6 or 8
    Scales scales;
    size_t groups;      // of a block, each with a scale
    bool min;
    int offset;
    bool levels = false;  // quants choose one of kE2m1Bytes

    // Whether quants are bytes once they have been read, and not what is packed.
    constexpr bool bytes() const { return bits == 8 || levels; }
    // Blocks that share a head, and where things are in such a unit.
    constexpr size_t blocks() const { return scales == Scales::kCoded ? 8 : 1; }
    constexpr size_t scale_size() const {  // of one row
        return scales == Scales::kFloat ? 4 : scales == Scales::kCoded ? 1 : 2;
    }
    constexpr size_t scale_bytes() const { return kPanelRows * scale_size(); }    // of a group
    constexpr size_t codes() const { return scales == Scales::kCoded ? 4 * kPanelRows : 0; }
    constexpr size_t head_bytes() const { return codes() + blocks() * groups * scale_bytes() * (min ? 2 : 1); }
    constexpr size_t quant_bytes() const { return kPanelRows * kBlock * static_cast<size_t>(bits) / 8; }  // of a block
    constexpr size_t unit_bytes() const { return head_bytes() + blocks() * quant_bytes(); }
    // The scales of a block's group; those of its minima are at min_at.
    constexpr size_t scale_at(size_t block, size_t group) const {
        if (scales != Scales::kCoded) return group * scale_bytes();
        return codes() + (block * groups + group) * scale_bytes() * (min ? 2 : 1);
    }
    constexpr size_t min_at(size_t block, size_t group) const {
        return scale_at(block, group) + scale_bytes() * (scales == Scales::kCoded ? 1 : groups);
    }
    constexpr size_t quants_at(size_t block) const { return head_bytes() + block * quant_bytes(); }
};

constexpr bool is_float(Layout layout) {
    return layout == Layout::kF32 || layout == Layout::kF16 || layout == Layout::kBF16;
}

// The shape of a quantised layout.
constexpr Shape shape_of(Layout layout) {
    switch (layout) {
        case Layout::kNibbles: return {4, Scales::kHalf, 1, false, 8};
        case Layout::kNibblesMin: return {4, Scales::kHalf, 1, true, 0};
        case Layout::kNibblesK: return {4, Scales::kCoded, 1, true, 0};
        case Layout::kFivesK: return {5, Scales::kCoded, 1, true, 0};
        case Layout::kSixesK: return {6, Scales::kCoded, 2, false, 32};
        case Layout::kBytes: return {8, Scales::kHalf, 1, false, 128};
        case Layout::kLevels: return {4, Scales::kShort, 1, false, 128, true};
        case Layout::kBytesF: return {8, Scales::kFloat, 1, false, 128};
        case Layout::kBytesMinF: return {8, Scales::kFloat, 1, true, 128};
        case Layout::kBytes16F: return {8, Scales::kFloat, 2, false, 128};
        default: return {8, Scales::kFloat, 2, true, 128};
    }
}

// Memory that is read after a product, some of it for each panel.
struct Ahead {
    const uint8_t* at;
    size_t step;   // bytes for a panel
};

struct Matrix {
    Layout layout = Layout::kF32;
    size_t rows = 0;
    size_t columns = 0;
    size_t panel_bytes = 0;
    const uint8_t* data = nullptr;     // packed, or null:
    const uint8_t* source = nullptr;   // the file's own rows, wherever they are
    int format = 0;                    // of rows that are not packed
    size_t ready = 0;                  // rows that have been packed so far
    const Ahead* ahead = nullptr;      // what kernels may ask for while they multiply, panel by panel
    size_t n_ahead = 0;

    size_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
    size_t bytes() const { return panels() * panel_bytes; }
    // The file's rows, or null where they have been packed into another layout.
    const uint8_t* file_rows() const { return layout == Layout::kRows && data ? data : source; }
};

// The layout for a format of the file; false if there is none.
bool layout_of(int format_code, Layout* layout);
// A matrix of that layout and size, without data. Rows of the file have the size that their format says.
Matrix matrix_for(Layout layout, size_t rows, size_t columns, int format_code = -1);
// Bytes of a row in the file.
size_t file_row_bytes(int format_code, size_t columns);
// Packs panels [begin, end) of a matrix from the file's bytes into `out`, the start of panel `begin`.
void pack_panels(int format_code, const uint8_t* source, const Matrix& matrix, size_t begin, size_t end,
                 uint8_t* out);
// A row as floats, exactly as the file's format means it.
void read_row(const Matrix& matrix, size_t row, float* out);

}  // namespace stretto
