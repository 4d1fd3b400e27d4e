// Sums of squares of what matrices multiply: how strong each column's input is, for importance matrices.
#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/product.h"

namespace stretto {

class Collector {
public:
    struct Sums {
        std::vector<double> squares;  // of each column
        size_t rows = 0;
    };

    // Adds rows of floats that a matrix multiplies. Threads may call it for different rows.
    void add(const Matrix& w, const Rows& rows) {
        const std::lock_guard<std::mutex> lock(mutex_);
        Sums& sums = sums_[&w];
        sums.squares.resize(w.columns);
        for (size_t row = rows.first; row < rows.last; ++row) {
            const float* x = rows.floats + row * w.columns;
            for (size_t i = 0; i < w.columns; ++i) sums.squares[i] += double{x[i]} * double{x[i]};
        }
        sums.rows += rows.last - rows.first;
    }

    // What was added for a matrix, or null.
    const Sums* find(const Matrix& w) const {
        const auto found = sums_.find(&w);
        return found == sums_.end() ? nullptr : &found->second;
    }

private:
    std::mutex mutex_;
    std::unordered_map<const Matrix*, Sums> sums_;
};

}  // namespace stretto
