// Adapters: low-rank changes to matrices of a decoder. W x becomes W x + scale × B (A x).
//
// Narrow matrices are of floats, or of bytes where the matrix that they change is quantised. Each number of a product is one
// reduction in one order, and a row's changes are added in the order of the batch's adapters, which its caller keeps the
// same for all batches. So a row's bits do not depend on other rows.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include "memory.h"
#include "packed.h"

namespace stretto {

struct LowRank {
    Matrix a, b;  // [rank][columns], [rows][rank, made up to whole blocks where numbers are bytes]
    float scale = 1.0f;

    bool of_bytes() const { return !is_float(b.layout); }
};

class Adapter {
public:
    void add(const Matrix* matrix, size_t rows, size_t columns, size_t rank, float scale, int a_format, const uint8_t* a,
             int b_format, const uint8_t* b);
    // The change of a matrix, or null.
    const LowRank* find(const Matrix* matrix) const {
        const auto at = changes_.find(matrix);
        return at == changes_.end() ? nullptr : &at->second;
    }
    size_t rank() const { return rank_; }  // the largest, in whole blocks
    // Columns of B for a rank: whole blocks of what is not floats.
    static size_t columns_of(int format, size_t rank);

private:
    Matrix packed(int format, size_t rows, size_t columns, const uint8_t* data);

    std::unordered_map<const Matrix*, LowRank> changes_;
    std::vector<Buffer> memory_;  // chunks, each with many matrices
    size_t used_ = 0;             // of the last chunk
    size_t rank_ = 0;
};

// The rows of a product that an adapter changes.
struct AdaptedRows {
    const Adapter* adapter;
    std::vector<float> scales;                     // of each row; 0: unchanged
    std::vector<std::pair<size_t, size_t>> runs;   // [first, last) of rows that follow each other and are changed

    AdaptedRows(const Adapter* adapter, std::vector<float> scales);
};

}  // namespace stretto
