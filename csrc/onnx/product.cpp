#include "onnx/product.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "memory/carver.h"

namespace stretto {

namespace {

constexpr size_t kRowsOfPart = 8;  // activations that are worth a thread of their own

using Matrices = std::map<int64_t, std::shared_ptr<const OnnxMatrix>>;

std::mutex mutex;
int64_t last_number = 0;

// Never freed: sessions may end after everything that is static.
Matrices& matrices() {
    static auto* found = new Matrices;
    return *found;
}

}  // namespace

OnnxMatrix::OnnxMatrix(const Kernels& kernels, int code, const uint8_t* data, size_t rows, size_t columns, size_t threads)
    : kernels_(kernels), threads_(threads) {
    Layout layout;
    if (!layout_of(code, &layout)) throw std::invalid_argument("this format cannot be multiplied");
    matrix_ = matrix_for(layout, rows, columns, code);
    bytes_ = Buffer(matrix_.bytes());
    matrix_.data = bytes_.data();
    pack_panels(code, data, matrix_, 0, matrix_.panels(), bytes_.data());
}

OnnxProduct::OnnxProduct(const OnnxMatrix& matrix, const float* x, size_t n, float* out, Buffer& scratch)
    : matrix_(matrix), x_(x), n_(n), out_(out) {
    auto take_all = [&](uint8_t* base) {
        Carver carver(base);
        quantized_ = carver.quantized(n, matrix.columns(), matrix.kernels_.lanes(n));
        return carver.used();
    };
    take_all(scratch.reserve(take_all(nullptr)));
}

size_t OnnxProduct::quantize_parts() const { return std::clamp<size_t>(n_ / kRowsOfPart, 1, matrix_.threads_); }

void OnnxProduct::quantize(size_t part) const {
    const size_t parts = quantize_parts(), columns = matrix_.columns();
    for (size_t row = n_ * part / parts; row < n_ * (part + 1) / parts; ++row) {
        matrix_.kernels_.quantize(x_ + row * columns, columns, row, quantized_);
    }
}

size_t OnnxProduct::multiply_parts() const { return std::min(matrix_.matrix_.panels(), matrix_.threads_); }

void OnnxProduct::multiply(size_t part) const {
    const size_t parts = multiply_parts(), panels = matrix_.matrix_.panels();
    multiply_activations(matrix_.kernels_, Precision::kStandard, matrix_.matrix_, {quantized_, x_, 0, n_},
                         panels * part / parts, panels * (part + 1) / parts, out_, {});
}

int64_t register_onnx_matrix(std::shared_ptr<const OnnxMatrix> matrix) {
    const std::lock_guard<std::mutex> lock(mutex);
    matrices()[++last_number] = std::move(matrix);
    return last_number;
}

void forget_onnx_matrix(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex);
    matrices().erase(number);
}

std::shared_ptr<const OnnxMatrix> find_onnx_matrix(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = matrices().find(number);
    return found == matrices().end() ? nullptr : found->second;
}

}  // namespace stretto
