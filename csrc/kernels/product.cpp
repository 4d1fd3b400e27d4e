#include "kernels/product.h"

#include <vector>

#include "kernels/direct.h"

namespace stretto {

namespace {

constexpr size_t kStageFrom = 8;    // columns for which the file's rows are made panels of bytes
constexpr size_t kDirectLanes = 4;  // activations that stand together in ways of matrix units are not for rows

// The file's rows in the layouts that packed kernels read, a few panels at a time, in memory that stays in the cache.
void multiply_staged(const Kernels& kernels, const Matrix& file, const Quantized& a, const float* x, size_t n, size_t begin,
                     size_t end, float* out, size_t stride) {
    static thread_local std::vector<uint8_t> room;
    Matrix staged = matrix_for(staged_layout(file.format), kTilePanels * kPanelRows, file.columns);
    room.resize(staged.bytes());
    staged.data = room.data();
    for (size_t at = begin; at < end; at += kTilePanels) {
        const size_t count = std::min(kTilePanels, end - at);
        staged.rows = file.rows - at * kPanelRows;
        if (is_float(staged.layout)) {
            pack_panels(file.format, file.data, matrix_for(staged.layout, file.rows, file.columns), at, at + count, room.data());
        } else {
            for (size_t i = 0; i < count; ++i) kernels.direct->stage(file, at + i, room.data() + i * staged.panel_bytes);
        }
        kernels.matmul(staged, a, x, n, 0, count, out + at * kPanelRows, stride);
    }
}

// Panels [begin, end) of w × n columns: packed ones, or rows of the file. All give the same bits.
void multiply_columns(const Kernels& kernels, const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin,
                      size_t end, float* out, size_t stride) {
    if (!w.file_rows()) return kernels.matmul(w, a, x, n, begin, end, out, stride);
    Matrix file = w;
    file.data = w.file_rows();
    const bool few = n < kStageFrom && (is_float(w.layout) || a.lanes <= kDirectLanes);
    if (few) return kernels.direct->multiply(file, a, x, n, begin, end, out, stride);
    multiply_staged(kernels, file, a, x, n, begin, end, out, stride);
}

// The matrix from a panel on.
Matrix from_panel(Matrix w, size_t panel) {
    if (w.data) w.data += panel * w.panel_bytes;
    if (w.source) w.source += panel * kPanelRows * file_row_bytes(w.format, w.columns);
    w.rows -= panel * kPanelRows;
    return w;
}

// Panels [begin, end) of w × n pairs of columns: what both make is added.
void multiply_pairs(const Kernels& kernels, const Matrix& w, const Quantized& a, size_t n, size_t begin, size_t end,
                    float* out, size_t stride, float* pairs) {
    for (size_t first = 0; first < 2 * n; first += kPairColumns) {
        const size_t columns = std::min(kPairColumns, 2 * n - first);
        const size_t step = kPairFloats / (kPanelRows * columns);
        for (size_t at = begin; at < end; at += step) {
            const size_t last = std::min(at + step, end);
            const size_t from = at * kPanelRows, width = std::min(last * kPanelRows, w.rows) - from;
            const Quantized columns_from = a.from(first, w.columns);
            multiply_columns(kernels, from_panel(w, at), columns_from, nullptr, columns, 0, last - at, pairs, width);
            for (size_t c = 0; c < columns; c += 2) {
                const float* coarse = pairs + c * width;
                const float* fine = coarse + width;
                float* to = out + (first + c) / 2 * stride + from;
                for (size_t i = 0; i < width; ++i) to[i] = coarse[i] + fine[i];
            }
        }
    }
}

}  // namespace

void quantize_activations(const Kernels& kernels, Precision precision, const float* x, size_t columns, size_t row,
                          const Quantized& out) {
    (precision == Precision::kHigh ? kernels.quantize_pair : kernels.quantize)(x, columns, row, out);
}

void multiply_activations(const Kernels& kernels, Precision precision, const Matrix& w, const Rows& rows, size_t begin,
                          size_t end, float* out, const ProductScratch& scratch) {
    const size_t n = rows.last - rows.first;
    const bool floats = is_float(w.layout);
    const Quantized a = floats ? rows.quantized : rows.quantized.from(columns_of(precision) * rows.first, w.columns);
    const float* x = rows.floats + rows.first * w.columns;
    out += rows.first * w.rows;
    if (precision == Precision::kHigh && !floats) {
        return multiply_pairs(kernels, w, a, n, begin, end, out, w.rows, scratch.pairs);
    }
    multiply_columns(kernels, w, a, x, n, begin, end, out, w.rows);
}

}  // namespace stretto
