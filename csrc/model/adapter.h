// Adapters: low-rank changes to matrices of a decoder. W x becomes W x + scale × B (A x).
//
// Narrow matrices are of floats, or of bytes where the matrix that they change is quantised. Each number of a product is one
// reduction in one order, and a row's changes are added in the order of the batch's adapters, which its caller keeps the
// same for all batches. So a row's bits do not depend on other rows.
#pragma once

#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "memory/memory.h"

namespace stretto {

struct LowRank {
    const Matrix* matrix;  // which is changed
    Matrix a, b;  // [rank][columns], [rows][rank, made up to whole blocks where numbers are bytes]
    float scale = 1.0f;

    bool of_bytes() const { return !is_float(b.layout); }
};

// B of bytes as Kernels::add_narrow reads it: without most of the columns that the last block is made up with.
Matrix narrow_matrix(size_t rows, size_t rank, int format);
// Packs all panels of such a matrix from the file's bytes, rows of whole blocks.
void pack_narrow(const uint8_t* source, const Matrix& matrix, uint8_t* out);

class Adapter {
public:
    void add(const Matrix* matrix, size_t rows, size_t columns, size_t rank, float scale, int a_format, const uint8_t* a,
             int b_format, const uint8_t* b);
    // A vector that is added to rows after a layer.
    void add_vector(size_t layer, const float* vector, size_t n) { vectors_[layer].assign(vector, vector + n); }
    const float* vector(size_t layer) const {
        const auto at = vectors_.find(layer);
        return at == vectors_.end() ? nullptr : at->second.data();
    }
    // The change of a matrix, or null. `at` is where to look first, and becomes what is behind it: layers ask in order.
    const LowRank* find(const Matrix* matrix, size_t& at) const;
    size_t rank() const { return rank_; }  // the largest, in whole blocks
    // Columns of B for a rank: whole blocks of what is not floats.
    static size_t columns_of(int format, size_t rank);

private:
    Matrix packed(int format, size_t rows, size_t columns, const uint8_t* data);
    Matrix packed_narrow(int format, size_t rows, size_t rank, const uint8_t* data);
    uint8_t* room(size_t bytes);

    std::vector<LowRank> changes_;  // in the order of the matrices' addresses, which is that of layers
    std::unordered_map<size_t, std::vector<float>> vectors_;  // by layer
    std::vector<Buffer> memory_;  // chunks, each with many matrices
    size_t used_ = 0;             // of the last chunk
    size_t rank_ = 0;
};

constexpr size_t kAdaptedRows = 48;  // rows that are changed together; pieces of products begin with multiples of it

// Rows that follow each other and have an adapter, kAdaptedRows at most.
struct AdaptedChunk {
    size_t first, last;
    size_t lanes;  // how many rows stand together as integers that A is multiplied with
};

// The rows of a product that an adapter changes.
struct AdaptedRows {
    const Adapter* adapter;
    std::vector<float> scales;  // of each row; 0: unchanged
    std::vector<AdaptedChunk> chunks;

    AdaptedRows(const Adapter* adapter, std::vector<float> scales, const Kernels& kernels);
};

}  // namespace stretto
