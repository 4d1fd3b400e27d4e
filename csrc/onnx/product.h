// Quantised matrices that ONNX Runtime multiplies with our kernels: packed here, and found by a number in the graph.
//
// A matrix is registered while a session is opened. The session's kernels share it, so it is freed with the last of them.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/product.h"
#include "memory/memory.h"

namespace stretto {

class OnnxMatrix {
public:
    // Packs a matrix of the file format `code`, whose shape has been checked. Products are cut into parts for `threads`.
    OnnxMatrix(const Kernels& kernels, int code, const uint8_t* data, size_t rows, size_t columns, size_t threads);

    size_t rows() const { return matrix_.rows; }
    size_t columns() const { return matrix_.columns; }

private:
    friend class OnnxProduct;
    const Kernels& kernels_;
    size_t threads_;
    Buffer bytes_;
    Matrix matrix_;
};

// One product: n rows of x times a matrix. First all parts of `quantize`, in any order and by any threads, then all of
// `multiply`; the bits do not depend on how many there are.
class OnnxProduct {
public:
    OnnxProduct(const OnnxMatrix& matrix, const float* x, size_t n, float* out, Buffer& scratch);

    size_t quantize_parts() const;
    void quantize(size_t part) const;
    size_t multiply_parts() const;
    void multiply(size_t part) const;

private:
    const OnnxMatrix& matrix_;
    const float* x_;    // [n][columns]
    size_t n_;
    float* out_;        // [n][rows]
    Quantized quantized_;
};

// Matrices by number: each gets one that was never used before.
int64_t register_onnx_matrix(std::shared_ptr<const OnnxMatrix> matrix);
void forget_onnx_matrix(int64_t number);
std::shared_ptr<const OnnxMatrix> find_onnx_matrix(int64_t number);  // null: there is none

}  // namespace stretto
