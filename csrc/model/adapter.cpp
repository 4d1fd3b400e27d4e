#include "model/adapter.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

namespace stretto {

namespace {

constexpr size_t kAdapterBytes = size_t{2} << 20;  // a huge page: each step reads all of it once, and small pages miss the TLB

bool comes_before(const LowRank& change, const Matrix* matrix) { return std::less<const Matrix*>()(change.matrix, matrix); }

}  // namespace

Matrix narrow_matrix(size_t rows, size_t rank, int format) {
    Matrix matrix = matrix_for(Layout::kBytes, rows, (rank + kBlock - 1) / kBlock * kBlock, format);
    matrix.panel_bytes = narrow_panel_bytes(rank);
    matrix.format = format;
    matrix.ready = rows;
    return matrix;
}

void pack_narrow(const uint8_t* source, const Matrix& matrix, uint8_t* out) {
    const Matrix whole = matrix_for(Layout::kBytes, matrix.rows, matrix.columns, matrix.format);
    std::vector<uint8_t> panel(whole.panel_bytes);
    for (size_t i = 0; i < matrix.panels(); ++i, out += matrix.panel_bytes) {
        pack_panels(matrix.format, source, whole, i, i + 1, panel.data());
        std::copy_n(panel.data(), matrix.panel_bytes, out);
    }
}

Matrix Adapter::packed(int format, size_t rows, size_t columns, const uint8_t* data) {
    Layout layout;
    if (!layout_of(format, &layout) || !(is_float(layout) || layout == Layout::kBytes)) {
        throw std::invalid_argument("an adapter's matrices are of floats or bytes");
    }
    Matrix matrix = matrix_for(layout, rows, columns, format);
    uint8_t* at = room(matrix.bytes());
    pack_panels(format, data, matrix, 0, matrix.panels(), at);
    matrix.data = at;
    matrix.format = format;
    matrix.ready = rows;
    return matrix;
}

Matrix Adapter::packed_narrow(int format, size_t rows, size_t rank, const uint8_t* data) {
    Layout layout;
    if (!layout_of(format, &layout) || layout != Layout::kBytes) return packed(format, rows, rank, data);
    Matrix matrix = narrow_matrix(rows, rank, format);
    uint8_t* at = room(matrix.bytes());
    pack_narrow(data, matrix, at);
    matrix.data = at;
    return matrix;
}

uint8_t* Adapter::room(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (memory_.empty() || memory_.back().size() - used_ < bytes) {
        memory_.emplace_back(std::max(bytes, kAdapterBytes));
        used_ = 0;
    }
    used_ += bytes;
    return memory_.back().data() + used_ - bytes;
}

void Adapter::add(const Matrix* matrix, size_t rows, size_t columns, size_t rank, float scale, int a_format,
                  const uint8_t* a, int b_format, const uint8_t* b) {
    LowRank change{matrix, packed(a_format, rank, columns, a), packed_narrow(b_format, rows, rank, b), scale};
    const auto at = std::lower_bound(changes_.begin(), changes_.end(), matrix, comes_before);
    if (at != changes_.end() && at->matrix == matrix) {
        *at = change;
    } else {
        changes_.insert(at, change);
    }
    rank_ = std::max(rank_, (rank + kBlock - 1) / kBlock * kBlock);
}

const LowRank* Adapter::find(const Matrix* matrix, size_t& at) const {
    if (at >= changes_.size() || changes_[at].matrix != matrix) {
        const auto found = std::lower_bound(changes_.begin(), changes_.end(), matrix, comes_before);
        at = static_cast<size_t>(found - changes_.begin());
        if (found == changes_.end() || found->matrix != matrix) return nullptr;
    }
    return &changes_[at++];
}

size_t Adapter::columns_of(int format, size_t rank) {
    Layout layout;
    return layout_of(format, &layout) && is_float(layout) ? rank : (rank + kBlock - 1) / kBlock * kBlock;
}

AdaptedRows::AdaptedRows(const Adapter* adapter, std::vector<float> scales, const Kernels& kernels)
    : adapter(adapter), scales(std::move(scales)) {
    const std::vector<float>& each = this->scales;
    for (size_t row = 0; row < each.size(); ++row) {
        if (each[row] == 0.0f) continue;
        if (chunks.empty() || chunks.back().last != row || row % kAdaptedRows == 0) chunks.push_back({row, row, 0});
        chunks.back().last = row + 1;
    }
    for (AdaptedChunk& chunk : chunks) chunk.lanes = kernels.lanes(chunk.last - chunk.first);
}

}  // namespace stretto
