// Row-wise steps: quantising, norms, activations. Included by impl.h, within the namespace of an instruction set.

size_t lanes(size_t n) { return n > 1 ? kLanes : 1; }

// Block `at` of 32 numbers, first × d and second × d.
inline void store_block(const Quantized& out, size_t at, Ints first, Ints second, float d) {
    int32_t* sums = out.sums + 2 * at;
    store_int8(out.q + at * kBlock, first);
    store_int8(out.q + at * kBlock + 16, second);
    sums[0] = reduce_add_int(first);
    sums[1] = reduce_add_int(second);
    out.scale[at] = d;
    out.scaled[at] = d * static_cast<float>(sums[0] + sums[1]);
}

// Block `at` without quants; a scale that is not finite says that there was an infinity or NaN.
inline void store_empty(const Quantized& out, size_t at, float d) {
    std::memset(out.q + at * kBlock, 0, kBlock);
    out.sums[2 * at] = out.sums[2 * at + 1] = 0;
    out.scale[at] = d;
    out.scaled[at] = d * 0.0f;
}

// What rounding leaves of a number is half its scale at most, so this many times finer steps take a byte as well.
constexpr float kFiner = 254.0f;

template <bool Pair>
inline void quantize_row(const float* x, size_t columns, size_t row, const Quantized& out) {
    const size_t last = out.block_of(row, columns) + columns / kBlock * out.lanes;
    const size_t next = Pair ? out.block_of(row + 1, columns) - out.block_of(row, columns) : 0;
    for (size_t at = out.block_of(row, columns); at < last; at += out.lanes, x += kBlock) {
        const Floats a = load(x), b = load(x + 16);
        const float largest = largest_magnitude(a, b), inverse = 127.0f / largest;
        if (!(largest <= FLT_MAX && inverse <= FLT_MAX)) {  // zeros and what is next to them, or not finite
            store_empty(out, at, largest <= FLT_MAX ? 0.0f : largest);
            if constexpr (Pair) store_empty(out, at + next, 0.0f);
            continue;
        }
        const float d = largest / 127.0f;
        const Floats p = mul(a, splat(inverse)), q = mul(b, splat(inverse));
        const Ints first = round_to_int(p), second = round_to_int(q);
        store_block(out, at, first, second, d);
        if constexpr (Pair) {
            // These differences are exact.
            const Floats rest = mul(sub(p, to_float(first)), splat(kFiner));
            const Floats other = mul(sub(q, to_float(second)), splat(kFiner));
            store_block(out, at + next, round_to_int(rest), round_to_int(other), d * (1.0f / kFiner));
        }
    }
}

void quantize(const float* x, size_t columns, size_t row, const Quantized& out) {
    quantize_row<false>(x, columns, row, out);
}
void quantize_pair(const float* x, size_t columns, size_t row, const Quantized& out) {
    quantize_row<true>(x, columns, 2 * row, out);
}

void rms_norm(const float* x, const float* weight, size_t n, float eps, float* out) {
    Floats squares = splat(0.0f);
    each_vector(n, [&](size_t i, size_t m) {
        const Floats v = load_some(x + i, m);
        squares = fma(v, v, squares);
    });
    const float factor = 1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(n) + eps);
    each_vector(n, [&](size_t i, size_t m) {
        store_some(out + i, mul(mul(load_some(x + i, m), splat(factor)), load_some(weight + i, m)), m);
    });
}

void add_rows(float* x, const float* y, size_t n) {
    each_vector(n, [&](size_t i, size_t m) { store_some(x + i, add(load_some(x + i, m), load_some(y + i, m)), m); });
}

// 1 / (1 + e^−x); NaN stays NaN here too.
inline Floats sigmoid(Floats x) {
    return div(splat(1.0f), add(splat(1.0f), exponential(min(splat(87.0f), sub(splat(0.0f), x)))));
}

void silu(float* gate, const float* up, size_t n) {
    each_vector(n, [&](size_t i, size_t m) {
        const Floats g = load_some(gate + i, m);
        const Floats result = mul(g, sigmoid(g));
        store_some(gate + i, up ? mul(result, load_some(up + i, m)) : result, m);
    });
}

// The tanh form: 0.5 (1 + tanh u) = sigmoid(2u)
void gelu(float* gate, const float* up, size_t n) {
    each_vector(n, [&](size_t i, size_t m) {
        const Floats g = load_some(gate + i, m);
        const Floats cubed = fma(mul(mul(g, g), g), splat(0.044715f), g);
        const Floats result = mul(g, sigmoid(mul(cubed, splat(1.5957691216f))));
        store_some(gate + i, up ? mul(result, load_some(up + i, m)) : result, m);
    });
}

#ifndef STRETTO_HAS_TILES
// x Φ(x) = max(x, 0) − |x| Φ(−|x|), where Φ(−|x|) = t (c1 + t (c2 + …)) e^(−x²/2) / 2 to 8e-8 (Hastings, 1955). Two vectors
// at once: of one alone the processor would wait for results.
void gelu_erf(float* gate, const float* up, size_t n) {
    constexpr float kSeriesOfTail[] = {0.5307027145f, -0.7265760135f, 0.7107068705f, -0.142248368f, 0.127414796f};
    constexpr size_t kTwo = 2;
    for (size_t at = 0; at < n; at += 16 * kTwo) {
        size_t count[kTwo];
        Floats g[kTwo], t[kTwo], p[kTwo], e[kTwo];
        UNROLL for (size_t i = 0; i < kTwo; ++i) {
            const size_t from = at + 16 * i;
            count[i] = from >= n ? 0 : n - from < 16 ? n - from : 16;
            g[i] = count[i] ? load_some(gate + from, count[i]) : splat(0.0f);
        }
        UNROLL for (size_t i = 0; i < kTwo; ++i) t[i] = fma(abs(g[i]), splat(0.231641888f), splat(1.0f));
        UNROLL for (size_t i = 0; i < kTwo; ++i) t[i] = div(splat(1.0f), t[i]);
        UNROLL for (size_t i = 0; i < kTwo; ++i) e[i] = mul(mul(g[i], g[i]), splat(-0.5f));
        exponentials<kTwo>(e);
        UNROLL for (size_t i = 0; i < kTwo; ++i) p[i] = splat(kSeriesOfTail[0]);
        UNROLL for (size_t k = 1; k < 5; ++k) {
            UNROLL for (size_t i = 0; i < kTwo; ++i) p[i] = fma(p[i], t[i], splat(kSeriesOfTail[k]));
        }
        UNROLL for (size_t i = 0; i < kTwo; ++i) {
            if (!count[i]) continue;
            const Floats tail = mul(mul(p[i], t[i]), e[i]);
            Floats result = sub(max(splat(0.0f), g[i]), mul(abs(g[i]), tail));
            if (up) result = mul(result, load_some(up + at + 16 * i, count[i]));
            store_some(gate + at + 16 * i, result, count[i]);
        }
    }
}
#endif

void peaks(const float* x, size_t n, float* out) {
    for (size_t begin = 0; begin < n; begin += kPeak, x += kPeak, ++out) {
        const size_t count = n - begin < kPeak ? n - begin : kPeak;
        Floats best = splat(x[0]), bad = splat(0.0f);
        each_vector(count, [&](size_t i, size_t m) {
            Floats v = load_some(x + i, m);
            if (m < 16) {  // its zeros are not among the numbers
                float filled[16];
                store(filled, v);
                for (size_t j = m; j < 16; ++j) filled[j] = x[0];
                v = load(filled);
            }
            best = max(v, best);
            // What is not finite becomes finite, but NaN stays (the second operand), and 0 × NaN is NaN.
            bad = fma(min(splat(FLT_MAX), max(splat(-FLT_MAX), v)), splat(0.0f), bad);
        });
        const float nan = reduce_add(bad);
        *out = nan == 0.0f ? reduce_max(best) : nan;
    }
}

float weigh(const float* x, size_t n, float top, float factor) {
    const auto scaled = [&](const float* p) { return mul(sub(load(p), splat(top)), splat(factor)); };
    Floats sum = splat(0.0f);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) sum = add(sum, exponential(scaled(x + i)));
    if (i < n) {
        float filled[16];
        store(filled, splat(-FLT_MAX));  // weighs nothing
        std::memcpy(filled, x + i, (n - i) * sizeof(float));
        sum = add(sum, exponential(scaled(filled)));
    }
    return reduce_add(sum);
}
