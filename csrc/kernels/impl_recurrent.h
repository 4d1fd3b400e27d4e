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

// Calls f(row, its sum) for rows [row, rows); the first has the first sum.
template <typename F>
inline void each_row(size_t row, size_t rows, F f) {
    for (; row + kStateSums <= rows; row += kStateSums) {
        UNROLL
        for (size_t i = 0; i < kStateSums; ++i) f(row + i, i);
    }
    for (size_t i = 0; row + i < rows; ++i) f(row + i, i);
}

// A row of a tile: with the change of the token before if `Pending`, and multiplied if `Scaled`.
template <bool Pending, bool Scaled>
inline Floats next_row(const float* row, [[maybe_unused]] Floats change, [[maybe_unused]] const float* write,
                       [[maybe_unused]] Floats factor) {
    Floats x = load(row);
    if constexpr (Pending) x = fma(splat(*write), change, x);
    if constexpr (Scaled) x = mul(x, factor);
    return x;
}

// What a token's key and query find in a tile.
struct Found {
    RowSums key, query;
};

#ifdef STRETTO_HAS_TILES
// z + x × one of four numbers. It is taken by its lane: a register for itself would cost an operation as long as a product.
template <int Lane>
inline Floats fma_by(float32x4_t four, Floats x, Floats z) {
    UNROLL for (int i = 0; i < 4; ++i) z.v[i] = vfmaq_laneq_f32(z.v[i], x.v[i], four, Lane);
    return z;
}

// Most rows of `find`, four at a time; returns how many.
template <bool Pending, bool Scaled>
inline size_t find_fours(const StateTile& s, size_t t, Floats change, Found* found) {
    const float *key = s.write[t], *query = s.read[t], *last = Pending ? s.write[t - 1] : key;
    const Floats factor = splat(s.factor[t]);
    Floats keys = found->key.sums[0], queries = found->query.sums[0];
    float* tile = s.tile;
    const size_t rows = s.rows / 4 * 4;
    for (size_t r = 0; r < rows; r += 4, tile += 4 * kStateLanes) {
        const float32x4_t k = vld1q_f32(key + r), q = vld1q_f32(query + r), w = vld1q_f32(last + r);
        each<4>([&](auto i) ALWAYS_LAMBDA {
            Floats row = load(tile + i * kStateLanes);
            if constexpr (Pending) row = fma_by<i>(w, change, row);
            if constexpr (Scaled) row = mul(row, factor);
            if constexpr (Pending || Scaled) store(tile + i * kStateLanes, row);
            keys = fma_by<i>(k, row, keys);
            queries = fma_by<i>(q, row, queries);
        });
    }
    found->key.sums[0] = keys;
    found->query.sums[0] = queries;
    return rows;
}

// Most rows of the last token's change, four at a time; returns how many. The next tile is asked for meanwhile: nobody else
// foresees that this one is not read a third time.
inline size_t change_fours(const StateTile& s, const float* last, Floats change) {
    float* tile = s.tile;
    const size_t rows = s.rows / 4 * 4;
    const float* next = tile + s.rows * kStateLanes;
    for (size_t r = 0; r < rows; r += 4, tile += 4 * kStateLanes, next += 4 * kStateLanes) {
        const float32x4_t w = vld1q_f32(last + r);
        each<4>([&](auto i) ALWAYS_LAMBDA {
            __builtin_prefetch(next + i * kStateLanes);
            store(tile + i * kStateLanes, fma_by<i>(w, change, load(tile + i * kStateLanes)));
        });
    }
    return rows;
}
#else
template <bool Pending, bool Scaled>
inline size_t find_fours(const StateTile&, size_t, Floats, Found*) { return 0; }
inline size_t change_fours(const StateTile&, const float*, Floats) { return 0; }
#endif

// Token t's pass over a tile, which also makes the change of the token before.
template <bool Pending, bool Scaled>
inline Found find(const StateTile& s, size_t t, Floats change) {
    Found found;
    float* tile = s.tile;
    const float *key = s.write[t], *query = s.read[t], *last = Pending ? s.write[t - 1] : nullptr;
    const Floats factor = splat(s.factor[t]);
    each_row(find_fours<Pending, Scaled>(s, t, change, &found), s.rows, [&](size_t r, size_t i) {
        const Floats row = next_row<Pending, Scaled>(tile + r * kStateLanes, change, last + r, factor);
        if constexpr (Pending || Scaled) store(tile + r * kStateLanes, row);
        found.key.sums[i] = fma(splat(key[r]), row, found.key.sums[i]);
        found.query.sums[i] = fma(splat(query[r]), row, found.query.sums[i]);
    });
    return found;
}

void correct_state(const StateTile& s) {
    Floats change = splat(0.0f);  // of the token before, which is not in the tile yet
    for (size_t t = 0; t < s.n; ++t) {
        const bool scaled = s.factor[t] != 1.0f;
        const Found found = t == 0 ? scaled ? find<false, true>(s, t, change) : find<false, false>(s, t, change)
                                   : scaled ? find<true, true>(s, t, change) : find<true, false>(s, t, change);
        const Floats scale = splat(s.scale[t]);
        const Floats error = sub(load_some(s.values[t], s.lanes), mul(scale, found.key.total()));
        const Floats correction = mul(splat(s.gain[t]), error);
        const Floats out = fma(splat(s.overlap[t]), correction, mul(scale, found.query.total()));
        store_some(s.out[t], out, s.lanes);
        change = mul(correction, splat(s.inverse[t]));
    }
    if (!s.n) return;
    const float* last = s.write[s.n - 1];
    for (size_t r = change_fours(s, last, change); r < s.rows; ++r) {
        float* row = s.tile + r * kStateLanes;
        store(row, next_row<true, false>(row, change, last + r, change));
    }
}

// `Count` tokens from t on, in one pass over the tile: each of its rows is read and written once.
template <size_t Count, bool Scaled>
inline void add_tokens(const StateTile& s, size_t t) {
    float* tile = s.tile;
    const Floats factor = splat(s.factor[t]);
    Floats added[Count];
    const float *write[Count], *read[Count];
    RowSums sums[Count];
    UNROLL
    for (size_t k = 0; k < Count; ++k) {
        added[k] = mul(splat(s.gain[t + k] * s.inverse[t + k]), load_some(s.values[t + k], s.lanes));
        write[k] = s.write[t + k];
        read[k] = s.read[t + k];
    }
    each_row(0, s.rows, [&](size_t r, size_t i) {
        Floats row = next_row<false, Scaled>(tile + r * kStateLanes, factor, nullptr, factor);
        UNROLL
        for (size_t k = 0; k < Count; ++k) {
            row = fma(splat(write[k][r]), added[k], row);
            sums[k].sums[i] = fma(splat(read[k][r]), row, sums[k].sums[i]);
        }
        store(tile + r * kStateLanes, row);
    });
    UNROLL
    for (size_t k = 0; k < Count; ++k) {
        const Floats skipped = mul(splat(s.skip), load_some(s.values[t + k], s.lanes));
        store_some(s.out[t + k], fma(splat(s.scale[t + k]), sums[k].total(), skipped), s.lanes);
    }
}

void add_to_state(const StateTile& s) {
    for (size_t t = 0; t < s.n;) {
        if (s.factor[t] != 1.0f) {
            add_tokens<1, true>(s, t++);
        } else if (t + 1 < s.n && s.factor[t + 1] == 1.0f) {
            add_tokens<2, false>(s, t);
            t += 2;
        } else {
            add_tokens<1, false>(s, t++);
        }
    }
}

// One pass over the tile for each token, which also finds what the next one looks for.
void decay_state(const DecayingTile& s) {
    Floats found = splat(0.0f);
    for (size_t r = 0; s.n && r < s.rows; ++r) found = fma(splat(s.find[0][r]), load(s.tile + r * kStateLanes), found);
    for (size_t t = 0; t < s.n; ++t) {
        const float *decay = s.decay[t], *correct = s.correct[t], *write = s.write[t], *read = s.read[t];
        const float* find = t + 1 < s.n ? s.find[t + 1] : nullptr;
        const Floats value = load_some(s.values[t], s.lanes);
        Floats sum = splat(0.0f), next = splat(0.0f);
        float* tile = s.tile;
        for (size_t r = 0; r < s.rows; ++r, tile += kStateLanes) {
            Floats row = mul(load(tile), splat(decay[r]));
            row = fma(splat(correct[r]), found, row);
            row = fma(splat(write[r]), value, row);
            store(tile, row);
            sum = fma(splat(read[r]), row, sum);
            if (find) next = fma(splat(find[r]), row, next);
        }
        store_some(s.out[t], sum, s.lanes);
        found = next;
    }
}
