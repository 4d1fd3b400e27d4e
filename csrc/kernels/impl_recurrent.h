// Recurrent layers: convolutions, and states that tokens read and change. Included by impl.h.
//
// A state's tile stays in the first-level cache while all tokens pass over it. Each output is a sum over the rows of
// the tile in one order, and each number of the state is changed by one token after the other, so that it does not
// matter in how many calls the tokens come.

void convolve(const Convolution& c, const float* x, float* out) {
    each_vector(c.channels, [&](size_t i, size_t m) {
        Floats sum = c.bias ? load_some(c.bias + i, m) : splat(0.0f);
        for (size_t j = 0; j + 1 < c.kernel; ++j) {
            const Floats old = load_some(c.history + j * c.stride + i, m);
            sum = fma(old, load_some(c.taps + j * c.stride + i, m), sum);
            if (j) store_some(c.history + (j - 1) * c.stride + i, old, m);
        }
        const Floats now = load_some(x + i, m);
        sum = fma(now, load_some(c.taps + (c.kernel - 1) * c.stride + i, m), sum);
        store_some(c.history + (c.kernel - 2) * c.stride + i, now, m);
        store_some(out + i, c.silu ? mul(sum, sigmoid(sum)) : sum, m);
    });
}

// Sums over the rows of a tile: row r goes to sum r mod kStateSums.
struct RowSums {
    Floats sums[kStateSums];

    RowSums() {
        for (Floats& sum : sums) sum = splat(0.0f);
    }
    Floats total() const {
        Floats all = sums[0];
        for (size_t i = 1; i < kStateSums; ++i) all = add(all, sums[i]);
        return all;
    }
};

// Calls f(row, its sum) for all rows.
template <typename F>
inline void each_row(size_t rows, F f) {
    size_t row = 0;
    for (; row + kStateSums <= rows; row += kStateSums) {
        UNROLL
        for (size_t i = 0; i < kStateSums; ++i) f(row + i, i);
    }
    for (size_t i = 0; row + i < rows; ++i) f(row + i, i);
}

// A state's row after a token: decay × row + key × change.
inline Floats changed(Floats row, Floats decay, float key, Floats change) {
    return fma(splat(key), change, mul(decay, row));
}

void correct_state(const StateTile& tile) {
    Floats decay{}, change{};  // of the token before, which has not changed the state yet
    for (size_t t = 0; t < tile.n; ++t) {
        const float* key = tile.write[t];
        const float* query = tile.read[t];
        RowSums keys, queries;
        if (t == 0) {
            each_row(tile.rows, [&](size_t r, size_t i) {
                const Floats row = load(tile.state + r * kStateLanes);
                keys.sums[i] = fma(splat(key[r]), row, keys.sums[i]);
                queries.sums[i] = fma(splat(query[r]), row, queries.sums[i]);
            });
        } else {  // the same, and the change of the token before on the way
            const float* last = tile.write[t - 1];
            each_row(tile.rows, [&](size_t r, size_t i) {
                const Floats row = changed(load(tile.state + r * kStateLanes), decay, last[r], change);
                store(tile.state + r * kStateLanes, row);
                keys.sums[i] = fma(splat(key[r]), row, keys.sums[i]);
                queries.sums[i] = fma(splat(query[r]), row, queries.sums[i]);
            });
        }
        decay = splat(tile.decay[t]);
        const Floats error = sub(load_some(tile.values[t], tile.lanes), mul(decay, keys.total()));
        change = mul(splat(tile.gain[t]), error);
        const Floats out = fma(splat(tile.overlap[t]), change, mul(decay, queries.total()));
        store_some(tile.out[t], out, tile.lanes);
    }
    if (!tile.n) return;
    const float* last = tile.write[tile.n - 1];
    for (size_t r = 0; r < tile.rows; ++r) {
        float* row = tile.state + r * kStateLanes;
        store(row, changed(load(row), decay, last[r], change));
    }
}

// `Count` tokens from t on, in one pass over the tile: each of its rows is read and written once.
template <size_t Count>
inline void add_tokens(const StateTile& tile, size_t t) {
    Floats decay[Count], added[Count];
    const float *write[Count], *read[Count];
    RowSums sums[Count];
    float* state = tile.state;
    UNROLL
    for (size_t k = 0; k < Count; ++k) {
        decay[k] = splat(tile.decay[t + k]);
        added[k] = mul(splat(tile.gain[t + k]), load_some(tile.values[t + k], tile.lanes));
        write[k] = tile.write[t + k];
        read[k] = tile.read[t + k];
    }
    each_row(tile.rows, [&](size_t r, size_t i) {
        Floats row = load(state + r * kStateLanes);
        UNROLL
        for (size_t k = 0; k < Count; ++k) {
            row = changed(row, decay[k], write[k][r], added[k]);
            sums[k].sums[i] = fma(splat(read[k][r]), row, sums[k].sums[i]);
        }
        store(state + r * kStateLanes, row);
    });
    UNROLL
    for (size_t k = 0; k < Count; ++k) {
        const Floats value = load_some(tile.values[t + k], tile.lanes);
        store_some(tile.out[t + k], fma(splat(tile.skip), value, sums[k].total()), tile.lanes);
    }
}

void add_to_state(const StateTile& tile) {
    size_t t = 0;
    for (; t + 2 <= tile.n; t += 2) add_tokens<2>(tile, t);
    if (t < tile.n) add_tokens<1>(tile, t);
}
