// Products of whole batches: packed and unpacked weights, activations in 8 or 16 bits. For decoder and image encoder.
//
// In 16 bits a row of activations is two columns of the integer kernels, the second with what rounding took from the
// first, and a product the sum of both columns' results. So every kernel set has it, and weights are read once. Each
// column's result is one reduction in one order, and both are added once: the bits depend on nothing else.
#pragma once

#include <algorithm>

#include "kernels/kernels.h"

namespace stretto {

enum class Precision { kStandard, kHigh };  // activations in 8 bits, in 16

// Columns of the integer kernels that a row of activations takes.
inline size_t columns_of(Precision precision) { return precision == Precision::kHigh ? 2 : 1; }

constexpr size_t kTilePanels = 4;     // panels of a matrix that are packed on the spot
constexpr size_t kPairColumns = 96;   // columns whose pairs are added together, whole tiles of every kernel set
constexpr size_t kPairFloats = 8 * kPanelRows * kPairColumns;

// One thread's memory for products.
struct ProductScratch {
    float* pairs = nullptr;    // kPairFloats, for high precision
};

// Rows of activations as integers and as floats, which float layouts read.
struct Rows {
    const Quantized& quantized;
    const float* floats;
    size_t first, last;   // of them
};

void quantize_activations(const Kernels& kernels, Precision precision, const float* x, size_t columns, size_t row,
                          const Quantized& out);

// Panels [begin, end) × some rows of activations; `out` is where the whole product begins.
void multiply_activations(const Kernels& kernels, Precision precision, const Matrix& w, const Rows& rows, size_t begin,
                          size_t end, float* out, const ProductScratch& scratch);

}  // namespace stretto
