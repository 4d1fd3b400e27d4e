// Products with the file's rows, written once over what the direct_*.h header of an instruction set provides. Included by
// direct_*.cpp, within a namespace of their own.

// Calls f(0), … f(N − 1), each with its number as a constant, or in a loop where all of it at once would take minutes to
// compile.
#ifdef STRETTO_NO_UNROLL
template <int N, typename F>
inline void each(F f) { for (int i = 0; i < N; ++i) f(i); }
#else
template <typename F, int... I>
ALWAYS void each_of(F f, std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
template <int N, typename F>
ALWAYS void each(F f) { each_of(f, std::make_integer_sequence<int, N>{}); }
#endif

#include "kernels/direct_formats.h"

// Block g of a unit.
template <typename F, int g>
ALWAYS Bytes32 quants_of(const F& format, std::integral_constant<int, g>, const uint8_t* p) {
    return format.template quants<g>(p);
}
#ifdef STRETTO_NO_UNROLL
template <typename F, int... I>
inline Bytes32 any_quants(const F& format, int g, const uint8_t* p, std::integer_sequence<int, I...>) {
    Bytes32 found;
    ((g == I ? void(found = format.template quants<I>(p)) : void()), ...);
    return found;
}
template <typename F>
inline Bytes32 quants_of(const F& format, int g, const uint8_t* p) {
    return any_quants(format, g, p, std::make_integer_sequence<int, F::kUnit>{});
}
#endif

constexpr size_t kAhead = 512;  // bytes of a row that are asked for in advance

// Four rows; those that are not there are the last one again.
struct FourRows {
    const uint8_t* p[4];
    size_t count;

    FourRows(const Matrix& w, size_t row, size_t row_bytes) {
        const size_t left = w.rows > row ? w.rows - row : 0;
        count = left < 4 ? left : 4;
        for (size_t i = 0; i < 4; ++i) p[i] = w.data + (row + i < w.rows ? row + i : w.rows - 1) * row_bytes;
    }
    void store(float* out, Four x) const {
        if (count == 4) return store4(out, x);
        float some[4];
        store4(some, x);
        for (size_t i = 0; i < count; ++i) out[i] = some[i];
    }
};

// What C columns of activations have for a block, and where the next one's is.
template <int C>
struct Columns {
    const int8_t* q[C];
    const float* scale[C];
    const float* scaled[C];
    const int32_t* sums[C];
    size_t lanes;

    Columns(const Quantized& a, size_t column, size_t columns) : lanes(a.lanes) {
        for (int c = 0; c < C; ++c) {
            const size_t at = a.block_of(column + static_cast<size_t>(c), columns);
            q[c] = a.q + at * kBlock;
            scale[c] = a.scale + at;
            scaled[c] = a.scaled + at;
            sums[c] = a.sums + 2 * at;
        }
    }
    ALWAYS void next() {
        for (int c = 0; c < C; ++c) {
            q[c] += lanes * kBlock;
            scale[c] += lanes;
            scaled[c] += lanes;
            sums[c] += 2 * lanes;
        }
    }
};

// Four rows × C columns.
template <typename F, int C>
void multiply_four(const F& format, const FourRows& rows, size_t units, Columns<C> a, float* out, size_t stride) {
    constexpr int kGroups = F::kGroups;
    Four total[C];
    for (int c = 0; c < C; ++c) total[c] = splat4(0.0f);
    const uint8_t* p[4] = {rows.p[0], rows.p[1], rows.p[2], rows.p[3]};
    for (size_t unit = 0; unit < units; ++unit) {
        Scales4<F::kUnit * kGroups> scales;
        format.scales(p, scales);
        each<F::kUnit>([&](auto block) ALWAYS_LAMBDA {
            int32_t start[C][2];
            Bytes32 x[C];
            each<C>([&](auto c) ALWAYS_LAMBDA {
                x[c] = load32(reinterpret_cast<const uint8_t*>(a.q[c]));
                const int32_t* s = a.sums[c];
                start[c][0] = kSumStart - F::kOffset * (kGroups == 1 ? s[0] + s[1] : s[0]);
                start[c][1] = kSumStart - F::kOffset * s[1];
            });
            Sums<kGroups> sums[C][4];
            each<4>([&](auto i) ALWAYS_LAMBDA {
                const Bytes32 w = quants_of(format, block, p[i]);
                each<C>([&](auto c) ALWAYS_LAMBDA {
                    sums[c][i] = begin_sums<kGroups>(start[c]);
                    add_products<F::kUnsigned>(sums[c][i], w, x[c]);
                });
            });
            each<C>([&](auto c) ALWAYS_LAMBDA {
                FourInts folded[kGroups];
                fold(sums[c], folded);
                const float by = *a.scale[c];
                each<kGroups>([&](auto group) ALWAYS_LAMBDA {
                    const int at = block * kGroups + group;
                    [[maybe_unused]] const float sum = kGroups == 1 ? *a.scaled[c] : by * static_cast<float>(a.sums[c][group]);
                    if constexpr (F::kMin && kMinimaFirst) total[c] = fma4(scales.m[at], splat4(sum), total[c]);
                    total[c] = fma4(scaled(folded[group], scales.d[at]), splat4(by), total[c]);
                    if constexpr (F::kMin && !kMinimaFirst) total[c] = fma4(scales.m[at], splat4(sum), total[c]);
                });
            });
            a.next();
        });
        for (int i = 0; i < 4; ++i) {
            if constexpr (F::kSize > 64) {
                for (int line = 0; line < F::kSize; line += 64) __builtin_prefetch(p[i] + kAhead + line);
            } else {
                if (unit % (64 / F::kSize) == 0) __builtin_prefetch(p[i] + kAhead);
            }
            p[i] += F::kSize;
        }
    }
    for (int c = 0; c < C; ++c) rows.store(out + static_cast<size_t>(c) * stride, total[c]);
}

// Four rows of floats × C columns.
template <int Kind, int C>
void multiply_floats(const Matrix& w, size_t row, size_t row_bytes, const float* x, float* out, size_t stride) {
    // 16 rows: fewer would wait for their own sums.
    const FourRows rows[4] = {{w, row, row_bytes}, {w, row + 4, row_bytes}, {w, row + 8, row_bytes}, {w, row + 12, row_bytes}};
    Four total[C][4];
    for (int c = 0; c < C; ++c) for (Four& t : total[c]) t = splat4(0.0f);
    const auto add = [&](int quad, const Four& column, size_t k) ALWAYS_LAMBDA {
        for (int c = 0; c < C; ++c) {
            total[c][quad] = fma4(column, splat4(x[static_cast<size_t>(c) * w.columns + k]), total[c][quad]);
        }
    };
    size_t k = 0;
    if constexpr (Kind != 0) {
        for (; k + 8 <= w.columns; k += 8) {
            each<4>([&](auto quad) ALWAYS_LAMBDA {
                Four columns[8];
                if constexpr (Kind == 1) eight_halves(rows[quad].p, k, columns);
                if constexpr (Kind == 30) eight_bf16(rows[quad].p, k, columns);
                for (size_t j = 0; j < 8; ++j) add(quad, columns[j], k + j);
            });
        }
    }
    for (; k < w.columns; ++k) {
        for (int quad = 0; quad < 4; ++quad) {
            float four[4];
            for (int i = 0; i < 4; ++i) {
                const uint8_t* at = rows[quad].p[i] + k * (Kind == 0 ? 4 : 2);
                if constexpr (Kind == 0) std::memcpy(four + i, at, 4);
                if constexpr (Kind == 1) four[i] = half_to_float(load16(at));
                if constexpr (Kind == 30) four[i] = bf16_to_float(load16(at));
            }
            add(quad, load4(four), k);
        }
    }
    for (int c = 0; c < C; ++c) {
        for (size_t quad = 0; quad < 4; ++quad) {
            rows[quad].store(out + static_cast<size_t>(c) * stride + 4 * quad, total[c][quad]);
        }
    }
}

template <int Kind>
void multiply_plain(const Matrix& w, const float* x, size_t n, size_t begin, size_t end, float* out, size_t stride) {
    const size_t row_bytes = w.columns * (Kind == 0 ? 4 : 2);
    for (size_t panel = begin; panel < end; ++panel) {
        size_t c = 0;
        for (; c + 2 <= n; c += 2) {
            multiply_floats<Kind, 2>(w, panel * kPanelRows, row_bytes, x + c * w.columns, out + c * stride + panel * kPanelRows, stride);
        }
        if (c < n) {
            multiply_floats<Kind, 1>(w, panel * kPanelRows, row_bytes, x + c * w.columns, out + c * stride + panel * kPanelRows, stride);
        }
    }
}

void multiply(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end, float* out,
              size_t stride) {
    const bool done = with_format(w.format, [&](const auto& format) {
        using F = std::decay_t<decltype(format)>;
        const size_t units = w.columns / (32 * F::kUnit), row_bytes = units * F::kSize;
        const size_t last = end * kPanelRows < w.rows ? end * kPanelRows : w.rows;
        for (size_t row = begin * kPanelRows; row < last; row += 4) {
            const FourRows rows(w, row, row_bytes);
            size_t c = 0;
            for (; c + 2 <= n; c += 2) multiply_four<F, 2>(format, rows, units, {a, c, w.columns}, out + c * stride + row, stride);
            if (c < n) multiply_four<F, 1>(format, rows, units, {a, c, w.columns}, out + c * stride + row, stride);
        }
    });
    if (done) return;
    if (w.format == 0) return multiply_plain<0>(w, x, n, begin, end, out, stride);
    if (w.format == 1) return multiply_plain<1>(w, x, n, begin, end, out, stride);
    multiply_plain<30>(w, x, n, begin, end, out, stride);
}

// Bytes of a panel: quants + 128, scales and minima as floats.
void stage(const Matrix& w, size_t panel, uint8_t* out) {
    with_format(w.format, [&](const auto& format) {
        using F = std::decay_t<decltype(format)>;
        constexpr Layout kLayout = F::kGroups == 1 ? (F::kMin ? Layout::kBytesMinF : Layout::kBytesF)
                                                   : (F::kMin ? Layout::kBytes16MinF : Layout::kBytes16F);
        constexpr Shape kShape = shape_of(kLayout);
        const size_t units = w.columns / (32 * F::kUnit), row_bytes = units * F::kSize;
        for (size_t quad = 0; quad < 4; ++quad) {
            const FourRows rows(w, panel * kPanelRows + 4 * quad, row_bytes);
            if (!rows.count) break;
            const uint8_t* p[4] = {rows.p[0], rows.p[1], rows.p[2], rows.p[3]};
            uint8_t* to = out;
            for (size_t unit = 0; unit < units; ++unit) {
                Scales4<F::kUnit * F::kGroups> scales;
                format.scales(p, scales);
                each<F::kUnit>([&](auto block) ALWAYS_LAMBDA {
                    Bytes32 bytes[4];
                    each<4>([&](auto i) ALWAYS_LAMBDA {
                        bytes[i] = add8(quants_of(format, block, p[i]), splat8(128 - F::kOffset));
                    });
                    interleave(bytes, to + kShape.quants_at(0) + quad * 16);
                    each<F::kGroups>([&](auto group) ALWAYS_LAMBDA {
                        const int at = block * F::kGroups + group;
                        store4(reinterpret_cast<float*>(to + kShape.scale_at(0, group)) + 4 * quad, scales.d[at]);
                        if constexpr (F::kMin) {
                            store4(reinterpret_cast<float*>(to + kShape.min_at(0, group)) + 4 * quad, scales.m[at]);
                        }
                    });
                    to += kShape.unit_bytes();
                });
                for (const uint8_t*& at : p) at += F::kSize;
            }
        }
    });
}
