// Row-wise steps: quantising, norms, activations. Included by impl.h, within the namespace of an instruction set.

size_t lanes(size_t n) { return n > 1 ? kLanes : 1; }

void quantize(const float* x, size_t columns, size_t row, const Quantized& out) {
    const size_t last = out.block_of(row, columns) + columns / kBlock * out.lanes;
    for (size_t at = out.block_of(row, columns); at < last; at += out.lanes, x += kBlock) {
        int8_t* q = out.q + at * kBlock;
        int32_t* sums = out.sums + 2 * at;
        const Floats a = load(x), b = load(x + 16);
        const float largest = largest_magnitude(a, b), inverse = 127.0f / largest;
        if (!(largest <= FLT_MAX && inverse <= FLT_MAX)) {
            // Zeros and what is next to them; or the scale says that there was an infinity or NaN.
            std::memset(q, 0, kBlock);
            sums[0] = sums[1] = 0;
            out.scale[at] = largest <= FLT_MAX ? 0.0f : largest;
            out.scaled[at] = out.scale[at] * 0.0f;
            continue;
        }
        const float d = largest / 127.0f;
        const Ints first = round_to_int(mul(a, splat(inverse))), second = round_to_int(mul(b, splat(inverse)));
        store_int8(q, first);
        store_int8(q + 16, second);
        sums[0] = reduce_add_int(first);
        sums[1] = reduce_add_int(second);
        out.scale[at] = d;
        out.scaled[at] = d * static_cast<float>(sums[0] + sums[1]);
    }
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
        store_some(gate + i, mul(mul(g, sigmoid(g)), load_some(up + i, m)), m);
    });
}

// The tanh form: 0.5 (1 + tanh u) = sigmoid(2u)
void gelu(float* gate, const float* up, size_t n) {
    each_vector(n, [&](size_t i, size_t m) {
        const Floats g = load_some(gate + i, m);
        const Floats cubed = fma(mul(mul(g, g), g), splat(0.044715f), g);
        store_some(gate + i, mul(mul(g, sigmoid(mul(cubed, splat(1.5957691216f)))), load_some(up + i, m)), m);
    });
}

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
    const auto weights = [&](const float* p) { return exponential(mul(sub(load(p), splat(top)), splat(factor))); };
    Floats sum = splat(0.0f);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) sum = add(sum, weights(x + i));
    if (i < n) {
        float filled[16];
        store(filled, splat(-FLT_MAX));  // weighs nothing
        std::memcpy(filled, x + i, (n - i) * sizeof(float));
        sum = add(sum, weights(filled));
    }
    return reduce_add(sum);
}
