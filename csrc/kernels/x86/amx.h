// What the kernel set "amx" has of its own; the rest is AVX-512's.
#pragma once

#include "kernels/kernels.h"

namespace stretto {
namespace amx {

constexpr size_t kTileColumns = 16;
constexpr size_t kLeastColumns = 25;  // from which on tiles are quicker than vectors

size_t lanes(size_t n);
void matmul(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end, float* out,
            size_t stride);

}  // namespace amx
}  // namespace stretto
