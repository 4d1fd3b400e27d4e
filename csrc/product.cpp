#include "product.h"

namespace stretto {

namespace {

// Panels [begin, end) of w × n pairs of columns: what both make is added.
void multiply_pairs(const Kernels& kernels, const Matrix& w, const Quantized& a, size_t n, size_t begin, size_t end,
                    float* out, size_t stride, float* pairs) {
    for (size_t first = 0; first < 2 * n; first += kPairColumns) {
        const size_t columns = std::min(kPairColumns, 2 * n - first);
        const size_t step = kPairFloats / (kPanelRows * columns);
        for (size_t at = begin; at < end; at += step) {
            const size_t last = std::min(at + step, end);
            const size_t from = at * kPanelRows, width = std::min(last * kPanelRows, w.rows) - from;
            Matrix part = w;
            part.data = w.data + at * w.panel_bytes;
            part.rows = w.rows - from;
            kernels.matmul(part, a.from(first, w.columns), nullptr, columns, 0, last - at, pairs, width);
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

// Weights that were not packed are packed a few panels at a time, into memory that stays in the cache: the same
// kernels, the same bits.
void multiply_activations(const Kernels& kernels, Precision precision, const Matrix& w, const Rows& rows, size_t begin,
                          size_t end, float* out, const ProductScratch& scratch) {
    const size_t n = rows.last - rows.first;
    const bool floats = is_float(w.layout), pairs = precision == Precision::kHigh && !floats;
    const Quantized a = floats ? rows.quantized : rows.quantized.from(columns_of(precision) * rows.first, w.columns);
    const float* x = rows.floats + rows.first * w.columns;
    out += rows.first * w.rows;
    auto packed = [&](const Matrix& part, size_t from, size_t to, float* at) {
        if (pairs) return multiply_pairs(kernels, part, a, n, from, to, at, w.rows, scratch.pairs);
        kernels.matmul(part, a, x, n, from, to, at, w.rows);
    };
    if (w.data) return packed(w, begin, end, out);
    for (size_t at = begin; at < end; at += kTilePanels) {
        const size_t count = std::min(kTilePanels, end - at);
        pack_panels(w.format, w.source, w, at, at + count, scratch.tile);
        Matrix part = w;
        part.data = scratch.tile;
        part.rows = w.rows - at * kPanelRows;
        packed(part, 0, count, out + at * kPanelRows);
    }
}

}  // namespace stretto
