// What adapters add to the products of a forward pass.
//
// A x is computed first, for all matrices that read the same rows; B (A x) is added to a piece of the product by the thread
// that has just computed it, before biases and activations, as if the matrix were another one. With few rows a barrier
// between the two would cost as much as they do: threads go on with the product, and add when all parts of A x are there.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "model/walk.h"
#include "threads/wake.h"

namespace stretto {

namespace {

constexpr size_t kWaitingRows = 16;  // with more of them products take long, and leave the cache before they are added to
constexpr size_t kLooks = 1000;
constexpr size_t kAheadBytes = 1024;  // of B that a panel asks for: of more at once only a part would come
constexpr size_t kMostAhead = 4;
constexpr size_t kAddedRows = 16;  // of B (A x), of which a thread holds a few numbers:
constexpr size_t kAddedFloats = 2048;
static_assert(kAdaptedRows % kMostLanes == 0, "rows are cut between lanes");

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
    changes_wait_ = false;
    if (adapted.empty()) return;
    // Two buffers by turns: threads may still read the last product's.
    float* at = plan_.low_rank[changes_turn_];
    size_t block = 0;  // of the integers
    changes_at_.resize(adapted.size());
    for (const Matrix* matrix : matrices) {
        for (size_t i = 0; i < adapted.size(); ++i) {
            const AdaptedRows& rows = adapted[i];
            const LowRank* pair = matrix ? rows.adapter->find(matrix, changes_at_[i]) : nullptr;
            if (!pair) continue;
            changes_.push_back({matrix, pair, &rows, at, plan_.low_rank_bytes[changes_turn_].from(block, kBlock)});
            at += n * pair->a.rows;
            block += n * pair->b.columns / kBlock;
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
    changes_wait_ = n <= kWaitingRows;
    if (!changes_wait_) return meet();
    ++narrowed_;
    plan_.narrowed.fetch_add(1, std::memory_order_release);
}

// Until all threads have computed their parts of A x: long ago, unless one of them does not run.
void Decoder::Walk::wait_for_changes() const {
    for (size_t looks = 0; plan_.narrowed.load(std::memory_order_acquire) < narrowed_ * n_threads_; ++looks) {
        if (looks < kLooks) {
            relax();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }
}

void Decoder::Walk::multiply_ahead(const Matrix& w, const Rows& rows, size_t begin, size_t end, float* out) const {
    Ahead ahead[kMostAhead];
    size_t count = 0, bytes = 0;
    for (const Change& change : changes_) {
        const Matrix& b = change.pair->b;
        if (change.matrix != &w || count == kMostAhead || bytes + b.panel_bytes > kAheadBytes) continue;
        ahead[count++] = {b.data, b.panel_bytes};
        bytes += b.panel_bytes;
    }
    Matrix asking = w;
    asking.ahead = ahead;
    asking.n_ahead = count;
    d_.multiply(asking, rows, begin, end, out, mine_.product);
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
    if (change.pair->of_bytes()) whole_blocks_.assign(b.columns, 0.0f);
    for (size_t row = chunk.first; row < chunk.last; ++row, narrow += a.rows) {
        const float scale = change.rows->scales[row] * change.pair->scale;
        for (size_t k = 0; k < a.rows; ++k) narrow[k] *= scale;
        if (!change.pair->of_bytes()) continue;
        std::copy_n(narrow, a.rows, whole_blocks_.begin());
        kernel_.quantize(whole_blocks_.data(), b.columns, row, change.bytes);
    }
}

void Decoder::Walk::add_changes(const Matrix& w, const Rows& rows, size_t begin, size_t end, float* out) const {
    for (const Change& change : changes_) {
        if (change.matrix != &w) continue;
        for (const AdaptedChunk& chunk : change.rows->chunks) {
            if (chunk.first < rows.first || chunk.first >= rows.last) continue;
            if (!change.pair->of_bytes()) {
                add_floats(change, chunk, begin, end, out);
                continue;
            }
            const size_t rank = change.pair->a.rows;
            for (size_t row = chunk.first; row < chunk.last; ++row) {
                kernel_.add_narrow(change.pair->b, change.bytes, row, rank, begin, end, out + row * w.rows);
            }
        }
    }
}

// The same for a chunk of rows, with B of floats.
void Decoder::Walk::add_floats(const Change& change, const AdaptedChunk& chunk, size_t begin, size_t end, float* out) const {
    float added[kAddedFloats];
    const Matrix& b = change.pair->b;
    for (size_t row = chunk.first; row < chunk.last; row += kAddedRows) {
        const size_t count = std::min(kAddedRows, chunk.last - row), step = kAddedFloats / (kPanelRows * count);
        for (size_t panel = begin; panel < end; panel += step) {
            const size_t stop = std::min(panel + step, end), from = panel * kPanelRows;
            const size_t width = std::min(stop * kPanelRows, b.rows) - from;
            kernel_.matmul(from_panel(b, panel), {}, change.narrow + row * change.pair->a.rows, count, 0, stop - panel, added,
                           width);
            for (size_t i = 0; i < count; ++i) kernel_.add(out + (row + i) * b.rows + from, added + i * width, width);
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
}

}  // namespace stretto
