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

// Scales of four rows' blocks, and on to the next ones: `quants` are then those before p.
template <typename F, int Count, typename = decltype(&F::next)>
ALWAYS void next_scales(const F& format, const uint8_t* (&p)[4], Scales4<Count>& out, int) { format.next(p, out); }
template <typename F, int Count>
ALWAYS void next_scales(const F& format, const uint8_t* (&p)[4], Scales4<Count>& out, long) {
    format.scales(p, out);
    for (const uint8_t*& at : p) at += F::kSize;
}

// Four rows; those that are not there are the last one again.
struct FourRows {
    const uint8_t* p[4];
    size_t count;

    FourRows(const Matrix& w, size_t row, size_t row_bytes) {
        if (row + 4 <= w.rows) {
            count = 4;
            for (size_t i = 0; i < 4; ++i) p[i] = w.data + (row + i) * row_bytes;
            return;
        }
        count = w.rows > row ? w.rows - row : 0;
        for (size_t i = 0; i < 4; ++i) p[i] = w.data + (row + i < w.rows ? row + i : w.rows - 1) * row_bytes;
    }
    void store(float* out, Four x) const {
        if (count == 4) return store4(out, x);
        float some[4];
        store4(some, x);
        for (size_t i = 0; i < count; ++i) out[i] = some[i];
    }
};

// What sums begin with: kSumStart, less what an offset of the quants adds to them. For all columns, block after block. They
// have to be released: a destructor would need functions for exceptions that other files share (check_compilers.sh).
class Starts {
public:
    Starts(const Quantized& a, size_t n, size_t columns, int groups, int32_t offset)
        : blocks_(columns / kBlock), groups_(static_cast<size_t>(groups)),
          all_(static_cast<int32_t*>(std::malloc(n * blocks_ * groups_ * sizeof(int32_t)))) {
        if (!all_) std::abort();
        int32_t* to = all_;
        for (size_t c = 0; c < n; ++c) {
            const int32_t* s = a.sums + 2 * a.block_of(c, columns);
            for (size_t b = 0; b < blocks_; ++b, s += 2 * a.lanes, to += groups_) {
                to[0] = kSumStart - offset * (groups == 1 ? s[0] + s[1] : s[0]);
                if (groups == 2) to[1] = kSumStart - offset * s[1];
            }
        }
    }
    void release() { std::free(all_); }
    Starts(const Starts&) = delete;
    const int32_t* of(size_t column) const { return all_ + column * blocks_ * groups_; }

private:
    size_t blocks_, groups_;
    int32_t* all_;
};

// Columns of activations that a product takes, and where its results go.
struct Target {
    const Quantized& a;
    const Starts& starts;
    size_t column, count;  // the first, and how many of them are wanted
    float* out;            // of its first row
    size_t stride;
};

// Four rows × C columns that stand Lanes together.
template <int C, size_t Lanes, typename F>
void multiply_rows(const F& format, const Matrix& w, size_t row, const Target& t) {
    constexpr int kGroups = F::kGroups;
    const size_t units = w.columns / (32 * F::kUnit), row_bytes = units * F::kSize;
    const size_t first = t.a.block_of(t.column, w.columns);
    const int8_t* q = t.a.q + first * kBlock;
    const float *scale = t.a.scale + first, *scaled_sums = t.a.scaled + first;
    const int32_t* block_sums = t.a.sums + 2 * first;
    const int32_t* start[C];
    for (int c = 0; c < C; ++c) start[c] = t.starts.of(t.column + (static_cast<size_t>(c) < t.count ? c : 0));
    const FourRows rows(w, row, row_bytes);
    const uint8_t* p[4] = {rows.p[0], rows.p[1], rows.p[2], rows.p[3]};
    Four total[C];
    each<C>([&](auto c) ALWAYS_LAMBDA { total[c] = splat4(0.0f); });
    // Of short rows the next four are asked for, which lie behind these; of long ones what comes next in them, and near their
    // end the beginning of those behind.
    const bool is_short = row_bytes <= kShortUnits;
    const uint8_t* behind = rows.p[0] + 4 * row_bytes;
    const size_t near_end = units > kAhead / F::kSize ? units - kAhead / F::kSize : 0;
    for (size_t unit = 0; unit < units; ++unit) {
        Scales4<F::kUnit * kGroups> scales;
        next_scales(format, p, scales, 0);
        each<F::kUnit>([&](auto block) ALWAYS_LAMBDA {
            Bytes32 x[C];
            each<C>([&](auto c) ALWAYS_LAMBDA {
                x[c] = load32(reinterpret_cast<const uint8_t*>(q) + (block * Lanes + c) * kBlock);
            });
            Sums<kGroups> sums[C][4];
            each<4>([&](auto i) ALWAYS_LAMBDA {
                const Bytes32 quants = quants_of(format, block, p[i] - F::kSize);
                each<C>([&](auto c) ALWAYS_LAMBDA {
                    sums[c][i] = begin_sums<kGroups>(start[c] + block * kGroups);
                    add_products<F::kUnsigned>(sums[c][i], quants, x[c]);
                });
            });
            each<C>([&](auto c) ALWAYS_LAMBDA {
                FourInts folded[kGroups];
                fold(sums[c], folded);
                const size_t at = block * Lanes + c;
                each<kGroups>([&](auto group) ALWAYS_LAMBDA {
                    const Four d = scales.d[block * kGroups + group], m = scales.m[block * kGroups + group];
                    [[maybe_unused]] const float sum =
                        kGroups == 1 ? scaled_sums[at] : scale[at] * static_cast<float>(block_sums[2 * at + group]);
                    if constexpr (F::kMin && kMinimaFirst) total[c] = fma4(m, splat4(sum), total[c]);
                    total[c] = fma4(scaled(folded[group], d), splat4(scale[at]), total[c]);
                    if constexpr (F::kMin && !kMinimaFirst) total[c] = fma4(m, splat4(sum), total[c]);
                });
            });
        });
        q += F::kUnit * Lanes * kBlock;
        scale += F::kUnit * Lanes;
        scaled_sums += F::kUnit * Lanes;
        block_sums += F::kUnit * Lanes * 2;
        for (const int32_t*& at : start) at += F::kUnit * kGroups;
        if (is_short) {
            for (int line = 0; line < 4 * F::kSize; line += 64) __builtin_prefetch(behind + line);
            behind += 4 * F::kSize;
        } else if (F::kSize >= 64 || unit % 2 == 0) {
            const size_t ahead = kAhead + (unit < near_end ? 0 : 3 * row_bytes);
            each<4>([&](auto i) ALWAYS_LAMBDA {
                for (int line = 0; line < F::kSize; line += 64) __builtin_prefetch(p[i] + ahead + line);
            });
        }
    }
    each<C>([&](auto c) ALWAYS_LAMBDA {
        if (static_cast<size_t>(c) < t.count) rows.store(t.out + c * t.stride, total[c]);
    });
}

// Four rows × one column, for formats whose blocks are all there is: of the next blocks, quants are loaded before these are
// multiplied. A processor has room for few operations that wait for what they need.
template <typename F>
ALWAYS void multiply_plain_rows(const F& format, const Matrix& w, size_t row, const Target& t) {
    const size_t blocks = w.columns / kBlock, row_bytes = blocks * F::kSize;
    const size_t first = t.a.block_of(t.column, w.columns);
    const int8_t* q = t.a.q + first * kBlock;
    const float *scale = t.a.scale + first, *scaled_sums = t.a.scaled + first;
    const int32_t* start = t.starts.of(t.column);
    const FourRows rows(w, row, row_bytes);
    const uint8_t* p[4] = {rows.p[0], rows.p[1], rows.p[2], rows.p[3]};
    Four total = splat4(0.0f);
    struct Ahead {
        decltype(F::raw(nullptr)) quants[4];
        Scales4<1> scales;
    };
    // Scales and quants of four rows; p goes on to the next blocks.
    const auto load = [&](Ahead& to) ALWAYS_LAMBDA {
        format.next(p, to.scales);
        each<4>([&](auto i) ALWAYS_LAMBDA { to.quants[i] = format.raw(p[i] - F::kSize); });
    };
    // Sums of a block's products, folded.
    const auto products = [&](const Ahead& now) ALWAYS_LAMBDA {
        const Bytes32 x = load32(reinterpret_cast<const uint8_t*>(q));
        Sums<1> sums[4];
        each<4>([&](auto i) ALWAYS_LAMBDA {
            sums[i] = begin_sums<1>(start);
            add_products<F::kUnsigned>(sums[i], format.of_raw(now.quants[i]), x);
        });
        q += kBlock;
        ++start;
        FourInts folded[1];
        fold(sums, folded);
        return folded[0];
    };
    const auto add = [&](const Scales4<1>& scales, FourInts sum) ALWAYS_LAMBDA {
        if constexpr (F::kMin && kMinimaFirst) total = fma4(scales.m[0], splat4(*scaled_sums), total);
        total = fma4(scaled(sum, scales.d[0]), splat4(*scale), total);
        if constexpr (F::kMin && !kMinimaFirst) total = fma4(scales.m[0], splat4(*scaled_sums), total);
        ++scale;
        ++scaled_sums;
    };
    const auto multiply = [&](const Ahead& now) ALWAYS_LAMBDA { add(now.scales, products(now)); };
    Ahead even, odd;
    load(even);
    size_t block = 0;
    const bool is_short = row_bytes <= kShortRow;  // as above
    const uint8_t* behind = rows.p[0] + 4 * row_bytes;
    const size_t near_end = is_short ? 0 : blocks - kAhead / F::kSize;
    for (; block + 2 < blocks; block += 2) {
        load(odd);
        if constexpr (kTwoAtOnce) {
            const FourInts first = products(even);
            const Scales4<1> of_first = even.scales;
            load(even);
            const FourInts second = products(odd);
            add(of_first, first);
            add(odd.scales, second);
        } else {
            multiply(even);
            load(even);
            multiply(odd);
        }
        if (is_short) {
            each<(8 * F::kSize + 63) / 64>([&](auto line) ALWAYS_LAMBDA { __builtin_prefetch(behind + 64 * line); });
            behind += 8 * F::kSize;
            continue;
        }
        const size_t ahead = kAhead + (block < near_end ? 0 : 3 * row_bytes);
        each<4>([&](auto i) ALWAYS_LAMBDA {
            __builtin_prefetch(p[i] + ahead);
            if constexpr (F::kSize > 32) __builtin_prefetch(p[i] + ahead + 64);
        });
    }
    if (block + 1 < blocks) {
        load(odd);
        multiply(even);
        multiply(odd);
    } else {
        multiply(even);
    }
    rows.store(t.out, total);
}

// Four rows of floats × C columns.
template <int Kind, int C>
void multiply_floats(const Matrix& w, size_t row, size_t row_bytes, const float* x, float* out, size_t stride) {
    // 16 rows: fewer would wait for their own sums.
    const FourRows rows[4] = {{w, row, row_bytes}, {w, row + 4, row_bytes}, {w, row + 8, row_bytes}, {w, row + 12, row_bytes}};
    Four total[C][4];
    for (int c = 0; c < C; ++c) for (Four& t : total[c]) t = splat4(0.0f);
    const auto add = [&](auto quad, const Four& column, size_t k) ALWAYS_LAMBDA {
        each<C>([&](auto c) ALWAYS_LAMBDA { total[c][quad] = fma4(column, splat4(x[c * w.columns + k]), total[c][quad]); });
    };
    size_t k = 0;
    if constexpr (Kind != 0) {
        for (; k + 8 <= w.columns; k += 8) {
            each<4>([&](auto quad) ALWAYS_LAMBDA {
                Four columns[8];
                if constexpr (Kind == 1) eight_halves(rows[quad].p, k, columns);
                if constexpr (Kind == 30) eight_bf16(rows[quad].p, k, columns);
                each<8>([&](auto j) ALWAYS_LAMBDA { add(quad, columns[j], k + j); });
            });
            if (k % 32 == 0) {
                each<16>([&](auto i) ALWAYS_LAMBDA { __builtin_prefetch(rows[i / 4].p[i % 4] + 2 * k + kAhead); });
            }
        }
    }
    for (; k < w.columns; ++k) {
        each<4>([&](auto quad) ALWAYS_LAMBDA {
            float four[4];
            for (int i = 0; i < 4; ++i) {
                const uint8_t* at = rows[quad].p[i] + k * (Kind == 0 ? 4 : 2);
                if constexpr (Kind == 0) std::memcpy(four + i, at, 4);
                if constexpr (Kind == 1) four[i] = half_to_float(load16(at));
                if constexpr (Kind == 30) four[i] = bf16_to_float(load16(at));
            }
            add(quad, load4(four), k);
        });
    }
    each<4 * C>([&](auto i) ALWAYS_LAMBDA { rows[i % 4].store(out + i / 4 * stride + i % 4 * 4, total[i / 4][i % 4]); });
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

// Whether a format is for multiply_plain_rows.
template <typename F>
constexpr auto is_plain(int) -> decltype(&F::raw, bool{}) { return true; }
template <typename F>
constexpr bool is_plain(long) { return false; }

void multiply(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end, float* out,
              size_t stride) {
    const bool done = with_format(w.format, [&](const auto& format) {
        using F = std::decay_t<decltype(format)>;
        const size_t last = end * kPanelRows < w.rows ? end * kPanelRows : w.rows;
        Starts starts(a, n, w.columns, F::kGroups, F::kOffset);
        for (size_t row = begin * kPanelRows; row < last; row += 4) {
            for (size_t c = 0; a.lanes == 1 && c < n; ++c) {
                if constexpr (is_plain<F>(0)) {
                    multiply_plain_rows(format, w, row, {a, starts, c, 1, out + c * stride + row, stride});
                } else {
                    multiply_rows<1, 1>(format, w, row, {a, starts, c, 1, out + c * stride + row, stride});
                }
            }
            if (a.lanes == 1) continue;
            if constexpr (kDirectLanes > 1) {
                for (size_t c = 0; c < n; c += 2) {
                    multiply_rows<2, kDirectLanes>(format, w, row, {a, starts, c, n - c, out + c * stride + row, stride});
                }
            }
        }
        starts.release();
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
                next_scales(format, p, scales, 0);
                each<F::kUnit>([&](auto block) ALWAYS_LAMBDA {
                    Bytes32 bytes[4];
                    each<4>([&](auto i) ALWAYS_LAMBDA {
                        bytes[i] = add8(quants_of(format, block, p[i] - F::kSize), splat8(128 - F::kOffset));
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
            }
        }
    });
}
