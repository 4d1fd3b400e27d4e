// What adapters add to the products of a forward pass.
//
// A x is computed first, for all matrices that read the same rows; B (A x) is added to a piece of the product by the thread
// that has just computed it, before biases and activations, as if the matrix were another one.

#include <algorithm>
#include <cstring>

#include "walk.h"

namespace stretto {

namespace {

constexpr size_t kAddedRows = 16;  // of B (A x), of which a thread holds a few numbers:
constexpr size_t kAddedFloats = 2048;
static_assert(kAdaptedRows % kMostLanes == 0 && kAddedRows % kMostLanes == 0, "rows are cut between lanes");

// The matrix from a panel on.
Matrix from_panel(Matrix w, size_t panel) {
    w.data += panel * w.panel_bytes;
    w.rows -= panel * kPanelRows;
    return w;
}

}  // namespace

void Decoder::Walk::prepare_changes(std::initializer_list<const Matrix*> matrices, const float* floats, const Quantized& in,
                                    size_t n, const std::vector<AdaptedRows>& adapted) {
    changes_.clear();
    if (adapted.empty()) return;
    // Two buffers by turns: threads may still read the last product's.
    float* at = plan_.low_rank[changes_turn_];
    size_t block = 0;  // of the integers
    for (const Matrix* matrix : matrices) {
        for (const AdaptedRows& rows : adapted) {
            const LowRank* pair = matrix ? rows.adapter->find(matrix) : nullptr;
            if (!pair) continue;
            changes_.push_back({matrix, pair, &rows, at, plan_.low_rank_bytes[changes_turn_].from(block, kBlock)});
            at += n * pair->a.rows;
            block += rows.padded * pair->b.columns / kBlock;
        }
    }
    if (changes_.empty()) return;
    changes_turn_ = 1 - changes_turn_;
    size_t task = 0;
    for (const Change& change : changes_) {
        for (const AdaptedChunk& chunk : change.rows->chunks) {
            if (task++ % n_threads_ == static_cast<size_t>(thread_)) narrow_rows(change, chunk, floats, in);
        }
    }
    meet();
}

// A × some rows, times the scale of each. Rows as integers are made anew where those of the product stand between others.
void Decoder::Walk::narrow_rows(const Change& change, const AdaptedChunk& chunk, const float* floats, const Quantized& in) {
    const Matrix &a = change.pair->a, &b = change.pair->b;
    const size_t count = chunk.last - chunk.first;
    const float* x = floats + chunk.first * a.columns;
    Quantized rows = in;
    if (!is_float(a.layout) && in.lanes == 1) rows = in.from(chunk.first, a.columns);
    if (!is_float(a.layout) && in.lanes != 1) {
        rows = mine_.adapted;
        rows.lanes = chunk.lanes;
        for (size_t i = 0; i < count; ++i) kernel_.quantize(x + i * a.columns, a.columns, i, rows);
    }
    float* narrow = change.narrow + chunk.first * a.rows;
    kernel_.matmul(a, rows, x, count, 0, a.panels(), narrow, a.rows);
    const Quantized bytes = change.bytes_of(chunk, 0);
    if (change.pair->of_bytes()) whole_blocks_.assign(b.columns, 0.0f);
    for (size_t i = 0; i < count; ++i, narrow += a.rows) {
        const float scale = change.rows->scales[chunk.first + i] * change.pair->scale;
        for (size_t k = 0; k < a.rows; ++k) narrow[k] *= scale;
        if (!change.pair->of_bytes()) continue;
        std::copy_n(narrow, a.rows, whole_blocks_.begin());
        kernel_.quantize(whole_blocks_.data(), b.columns, i, bytes);
    }
}

void Decoder::Walk::add_changes(const Matrix& w, const Rows& rows, size_t begin, size_t end, float* out) const {
    float added[kAddedFloats];
    for (const Change& change : changes_) {
        if (change.matrix != &w) continue;
        const Matrix& b = change.pair->b;
        for (const AdaptedChunk& chunk : change.rows->chunks) {
            if (chunk.first < rows.first || chunk.first >= rows.last) continue;
            for (size_t row = chunk.first; row < chunk.last; row += kAddedRows) {
                const size_t count = std::min(kAddedRows, chunk.last - row), step = kAddedFloats / (kPanelRows * count);
                const Quantized in = change.bytes_of(chunk, row - chunk.first);
                for (size_t panel = begin; panel < end; panel += step) {
                    const size_t stop = std::min(panel + step, end), from = panel * kPanelRows;
                    const size_t width = std::min(stop * kPanelRows, w.rows) - from;
                    kernel_.matmul(from_panel(b, panel), in, change.narrow + row * change.pair->a.rows, count, 0, stop - panel,
                                   added, width);
                    for (size_t i = 0; i < count; ++i) kernel_.add(out + (row + i) * w.rows + from, added + i * width, width);
                }
            }
        }
    }
}

// Vectors are added to the residual stream at the end of a layer, in the order of the batch's adapters.
void Decoder::Walk::steer(size_t index) {
    for (const AdaptedRows& rows : plan_.adapted) {
        const float* vector = rows.adapter->vector(index);
        for (size_t row = first_; vector && row < last_; ++row) {
            const float scale = rows.scales[row];
            float* x = row_of(x_, row);
            if (scale != 0.0f) for (size_t i = 0; i < c_.n_embd; ++i) x[i] += scale * vector[i];
        }
    }
    if (alone_ && thread_ != 0) return;
    for (size_t k = 0; k < input_.kept.size(); ++k) {
        if (input_.kept[k] != index) continue;
        for (size_t row = first_; row < last_; ++row) {
            std::memcpy(input_.states + (k * n_ + row) * c_.n_embd, row_of(x_, row), c_.n_embd * sizeof(float));
        }
    }
}

}  // namespace stretto
