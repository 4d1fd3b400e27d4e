// What the kernel set "i8mm" has of its own; the rest is NEON's.
#pragma once

#include "kernels/kernels.h"

namespace stretto {
namespace i8mm {

constexpr size_t kLeastColumns = 8;  // from which on panels are expanded, as NEON's are

size_t lanes(size_t n);
void quantize(const float* x, size_t columns, size_t row, const Quantized& out);
void matmul(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end, float* out,
            size_t stride);

}  // namespace i8mm
}  // namespace stretto
