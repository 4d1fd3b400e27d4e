// Products with rows as they stand in the file, for matrices that are not packed: what is mapped from a file that is
// larger than memory, and formats for which no packed layout would be smaller or quicker.
//
// With few columns every row's blocks are read as bytes and multiplied where they are; with many, panels are made the
// layouts of bytes that the other kernels read (`stage`), in memory that stays in the cache. Both do to every sum what
// packed kernels do, in the same order: exact integers in a block, one multiplication, one fused addition.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "weights/packed.h"

namespace stretto {

// In all of these w.data are the file's rows and w.format says how to read them.
struct DirectKernels {
    // As Kernels::matmul, for activations that stand one by one or four together.
    void (*multiply)(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end, float* out,
                     size_t out_stride);
    // A panel of quantised rows in the layout of staged_layout().
    void (*stage)(const Matrix& w, size_t panel, uint8_t* out);
};

// The layout that panels of a format become: one of bytes with float scales.
Layout staged_layout(int format);

extern const DirectKernels kDirectPortable;
#if defined(__x86_64__)
extern const DirectKernels kDirectAvx2;
extern const DirectKernels kDirectAvx512;
#elif defined(__aarch64__)
extern const DirectKernels kDirectNeon;
#endif

}  // namespace stretto
