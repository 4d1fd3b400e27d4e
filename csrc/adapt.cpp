// What adapters add to the products of a forward pass.
//
// A x is computed first, for all matrices that read the same rows; B (A x) is added to a piece of the product by the thread
// that has just computed it, before biases and activations, as if the matrix were another one.

#include <algorithm>

#include "walk.h"

namespace stretto {

namespace {

constexpr size_t kNarrowRows = 48;     // of A x that a thread computes at a time
constexpr size_t kAddedRows = 16;      // of B (A x), of which a thread holds a few numbers:
constexpr size_t kAddedFloats = 2048;

// The matrix from a panel on.
Matrix from_panel(Matrix w, size_t panel) {
    w.data += panel * w.panel_bytes;
    w.rows -= panel * kPanelRows;
    return w;
}

}  // namespace

void Decoder::Walk::prepare_changes(std::initializer_list<const Matrix*> matrices, const float* floats, size_t n,
                                    const std::vector<AdaptedRows>& adapted) {
    changes_.clear();
    if (adapted.empty()) return;
    // Two buffers by turns: threads may still read the last product's.
    float* at = plan_.low_rank[changes_turn_];
    for (const Matrix* matrix : matrices) {
        for (const AdaptedRows& rows : adapted) {
            const LowRank* pair = rows.adapter->find(matrix);
            if (!pair) continue;
            changes_.push_back({matrix, pair, &rows, at});
            at += n * pair->a.rows;
        }
    }
    if (changes_.empty()) return;
    changes_turn_ = 1 - changes_turn_;
    size_t task = 0;
    for (const Change& change : changes_) {
        for (const auto& [first, last] : change.rows->runs) {
            for (size_t row = first; row < last; row += kNarrowRows) {
                for (size_t panel = 0; panel < change.pair->a.panels(); ++panel) {
                    if (task++ % n_threads_ != static_cast<size_t>(thread_)) continue;
                    narrow_rows(change, floats, row, std::min(row + kNarrowRows, last), panel);
                }
            }
        }
    }
    meet();
}

// One panel of A × some rows, times the scale of each.
void Decoder::Walk::narrow_rows(const Change& change, const float* floats, size_t first, size_t last, size_t panel) const {
    const Matrix& a = change.pair->a;
    kernel_.matmul(a, quantized_, floats + first * a.columns, last - first, panel, panel + 1, change.narrow + first * a.rows,
                   a.rows);
    const size_t from = panel * kPanelRows, to = std::min(from + kPanelRows, a.rows);
    for (size_t row = first; row < last; ++row) {
        const float scale = change.rows->scales[row] * change.pair->scale;
        for (size_t i = from; i < to; ++i) change.narrow[row * a.rows + i] *= scale;
    }
}

void Decoder::Walk::add_changes(const Matrix& w, const Rows& rows, size_t begin, size_t end, float* out) const {
    float added[kAddedFloats];
    for (const Change& change : changes_) {
        if (change.matrix != &w) continue;
        const size_t rank = change.pair->b.columns;
        for (const auto& [run_first, run_last] : change.rows->runs) {
            const size_t last = std::min(run_last, rows.last);
            for (size_t row = std::max(run_first, rows.first); row < last; row += kAddedRows) {
                const size_t count = std::min(kAddedRows, last - row), step = kAddedFloats / (kPanelRows * count);
                for (size_t panel = begin; panel < end; panel += step) {
                    const size_t stop = std::min(panel + step, end), from = panel * kPanelRows;
                    const size_t width = std::min(stop * kPanelRows, w.rows) - from;
                    kernel_.matmul(from_panel(change.pair->b, panel), quantized_, change.narrow + row * rank, count, 0,
                                   stop - panel, added, width);
                    for (size_t i = 0; i < count; ++i) kernel_.add(out + (row + i) * w.rows + from, added + i * width, width);
                }
            }
        }
    }
}

}  // namespace stretto
