#include "adapter.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace stretto {

namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

}  // namespace

Matrix Adapter::packed(int format, size_t rows, size_t columns, const uint8_t* data) {
    Layout layout;
    if (!layout_of(format, &layout) || !(is_float(layout) || layout == Layout::kBytes)) {
        throw std::invalid_argument("an adapter's matrices are of floats or bytes");
    }
    Matrix matrix = matrix_for(layout, rows, columns, format);
    const size_t bytes = (matrix.bytes() + 63) / 64 * 64;
    if (memory_.empty() || memory_.back().size() - used_ < bytes) {
        memory_.emplace_back(std::max(bytes, kChunkBytes));
        used_ = 0;
    }
    uint8_t* at = memory_.back().data() + used_;
    used_ += bytes;
    pack_panels(format, data, matrix, 0, matrix.panels(), at);
    matrix.data = at;
    matrix.format = format;
    matrix.ready = rows;
    return matrix;
}

void Adapter::add(const Matrix* matrix, size_t rows, size_t columns, size_t rank, float scale, int a_format,
                  const uint8_t* a, int b_format, const uint8_t* b) {
    changes_[matrix] = {packed(a_format, rank, columns, a), packed(b_format, rows, columns_of(b_format, rank), b), scale};
    rank_ = std::max(rank_, (rank + kBlock - 1) / kBlock * kBlock);
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
        if (chunks.empty() || chunks.back().last != row || row % kAdaptedRows == 0) chunks.push_back({row, row, 0, 0});
        chunks.back().last = row + 1;
    }
    for (AdaptedChunk& chunk : chunks) {
        const size_t count = chunk.last - chunk.first;
        chunk.lanes = kernels.lanes(count);
        chunk.at = padded;
        padded += (count + chunk.lanes - 1) / chunk.lanes * chunk.lanes;
    }
}

}  // namespace stretto
