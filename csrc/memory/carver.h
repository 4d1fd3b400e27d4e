// Several arrays in one allocation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace stretto {

// Carves aligned arrays out of one allocation: first to count, then for real.
class Carver {
public:
    explicit Carver(uint8_t* base) : base_(base) {}
    template <typename T>
    T* take(size_t n) {
        T* at = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
        used_ += (n * sizeof(T) + 63) / 64 * 64;
        return at;
    }
    Quantized quantized(size_t n, size_t columns, size_t lanes) {
        const size_t blocks = (n + lanes - 1) / lanes * lanes * (columns / kBlock);
        Quantized q;
        q.q = take<int8_t>(blocks * kBlock);
        q.scale = take<float>(blocks);
        q.scaled = take<float>(blocks);
        q.sums = take<int32_t>(2 * blocks);
        q.lanes = lanes;
        return q;
    }
    size_t used() const { return used_; }

private:
    uint8_t* base_;
    size_t used_ = 0;
};

}  // namespace stretto
