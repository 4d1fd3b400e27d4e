// Products of quantised panels by the dot products of NEON, in place of impl_matmul.h's for sixteen lanes. Included by
// impl_matmul.h.
//
// A tile is 8 rows × 4 columns, half a panel: with its integer sums and its totals it takes 16 of the 32 registers,
// where all 16 rows would take them all. A register has 16 numbers of one column, and `sdot` picks the four that it
// multiplies with (by lane), so nothing is replicated. What sums begin with is loaded, as a move would take the place of a
// product; for the same reason they are never converted, since that takes as long as four products (see kFloatBias).
//
// With many columns a panel's quants are made signed bytes and its scales floats once for all of them. With few, tiles
// read the panel as it is. The same numbers are multiplied and added in the same order, so the bits are the same.

#define ALWAYS __attribute__((always_inline)) inline
#define ALWAYS_LAMBDA __attribute__((always_inline))

// Calls f(0), … f(N − 1), each with its number as a constant.
template <typename F, int... I>
ALWAYS void each_of(F f, std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
template <int N, typename F>
ALWAYS void each(F f) { each_of(f, std::make_integer_sequence<int, N>{}); }

constexpr size_t kTileRows = 8;
constexpr size_t kHalves = kPanelRows / kTileRows;

// Four numbers from memory, always: a compiler would keep them in a register and move them from there.
template <typename Four, typename Number>
ALWAYS Four loaded(const Number* at) {
    Four four;
    asm volatile("ldr %q0, %1" : "=w"(four) : "m"(*reinterpret_cast<const Number(*)[4]>(at)));
    return four;
}
// What sums begin with.
alignas(32) constexpr int32_t kSumStarts[8] = {kSumStart, kSumStart, kSumStart, kSumStart,
                                               kSumStart, kSumStart, kSumStart, kSumStart};
ALWAYS int32x4_t sum_start() { return loaded<int32x4_t>(kSumStarts); }

// Asks for memory that is read soon.
template <size_t Bytes>
ALWAYS void prefetch(const uint8_t* at) {
    each<static_cast<int>(Bytes / 64)>([&](auto line) ALWAYS_LAMBDA { __builtin_prefetch(at + 64 * line); });
}

#include "kernels/neon/tiles_pairs.h"

// Some columns of activations, from a block on: one, or up to as many as stand together.
struct Inputs {
    const int8_t* q;
    const float* scale;
    const float* scaled;
    const int32_t* sums;

    Inputs(const Quantized& a, size_t column, size_t columns, size_t block) {
        const size_t at = a.block_of(column, columns) + block * a.lanes;
        q = a.q + at * kBlock;
        scale = a.scale + at;
        scaled = a.scaled + at;
        sums = a.sums + 2 * at;
    }
    template <size_t Lanes>
    void next() {
        q += Lanes * kBlock;
        scale += Lanes;
        scaled += Lanes;
        sums += 2 * Lanes;
    }
};

// A panel and where its results go.
struct Target {
    const uint8_t* panel;
    float* out;
    size_t stride, rows;
};

// kE2m1Bytes less 128.
alignas(16) constexpr int8_t kSignedLevels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Of loops in assembly: the totals of eight rows × four columns in v16 … v23, columns a stride apart.
#define LOAD_TOTALS                                                                                         \
    "ldp q16, q17, [%[from]]\n\t" "add x9, %[from], %[from_stride]\n\t"                                    \
    "ldp q18, q19, [x9]\n\t" "add x9, x9, %[from_stride]\n\t"                                              \
    "ldp q20, q21, [x9]\n\t" "add x9, x9, %[from_stride]\n\t"                                              \
    "ldp q22, q23, [x9]\n\t"
#define STORE_TOTALS                                                                                        \
    "stp q16, q17, [%[to]]\n\t" "add x9, %[to], %[to_stride]\n\t"                                          \
    "stp q18, q19, [x9]\n\t" "add x9, x9, %[to_stride]\n\t"                                                \
    "stp q20, q21, [x9]\n\t" "add x9, x9, %[to_stride]\n\t"                                                \
    "stp q22, q23, [x9]\n\t"
#include "kernels/neon/tiles_many.h"
#include "kernels/neon/tiles_groups.h"
#include "kernels/neon/tiles_eights.h"
#include "kernels/neon/tiles_fours.h"
#undef LOAD_TOTALS
#undef STORE_TOTALS
#include "kernels/neon/tiles_one.h"
#include "kernels/neon/tiles_coded.h"
#include "kernels/neon/tiles_sixes.h"
#include "kernels/neon/tiles_expand.h"
#include "kernels/neon/tiles_sums.h"

// Columns for which quants are expanded. Where packed ones can be multiplied with eight columns that pays late, and later still
// with minima, whose conversion takes the place of stores.
constexpr size_t expand_from(Layout layout) { return !has_fours(layout) ? 8 : shape_of(layout).min ? 24 : 16; }

template <Layout L>
struct Tiles : Panel<L> {
    using P = Panel<L>;
    // GCC 12 does not find inherited names in the lambdas below.
    static constexpr Shape kShape = P::kShape;
    static constexpr int kGroups = P::kGroups;
    static constexpr bool kCoded = P::kCoded;
    static constexpr size_t kUnit = P::kUnit, kBytes = P::kBytes, kParts = P::kParts, kFloats = P::kFloats;
    static constexpr size_t kExpanded = P::kExpanded;
    using typename P::Expanded;
    template <int R, int C, size_t Lanes>
    using Sums = stretto::STRETTO_ISA::Sums<L, R, C, Lanes>;

    // Calls multiply(from, its stride, to, its stride) with the totals of four columns, of which `count` are there.
    template <typename F>
    static ALWAYS void with_totals(F multiply, size_t count, bool more, float* out, size_t stride, size_t rows) {
        alignas(64) float some[kLanes * kTileRows] = {};  // where the panel has fewer rows, or columns are missing
        if (rows >= kTileRows && count == kLanes) return multiply(more ? out : some, more ? stride : 0, out, stride);
        const size_t bytes = (rows < kTileRows ? rows : kTileRows) * sizeof(float);
        for (size_t c = 0; more && c < count; ++c) std::memcpy(some + c * kTileRows, out + c * stride, bytes);
        multiply(some, kTileRows, some, kTileRows);
        for (size_t c = 0; c < count; ++c) std::memcpy(out + c * stride, some + c * kTileRows, bytes);
    }

    // Half an expanded panel × C columns.
    template <int C, size_t Lanes>
    static void expanded_tile(const int8_t* w, const float* s, size_t blocks, Inputs a, bool more, float* out,
                              size_t stride, size_t rows) {
        if constexpr (C == 4 && (kGroups == 1 || !kShape.min)) {
            const auto multiply = [&](const float* from, size_t from_stride, float* to, size_t to_stride) ALWAYS_LAMBDA {
                from_stride *= sizeof(float), to_stride *= sizeof(float);
                if constexpr (kGroups == 1) {
                    expanded_blocks<kShape.min>(w, s, a, blocks, from, from_stride, to, to_stride);
                } else {
                    expanded_groups(w, s, a, blocks, from, from_stride, to, to_stride);
                }
            };
            return with_totals(multiply, C, more, out, stride, rows);
        }
        Sums<2, C, Lanes> sums;
        if (more) {
            sums.load(out, stride, rows);
        } else {
            sums.clear();
        }
        for (size_t block = 0; block < blocks; ++block, w += kBytes, s += kFloats, a.template next<Lanes>()) {
            each<2>([&](auto side) ALWAYS_LAMBDA {
                if constexpr (side == 0 || kGroups == 2) {
                    each<C>([&](auto c) ALWAYS_LAMBDA {
                        each<2>([&](auto r) ALWAYS_LAMBDA { sums.dots[kGroups == 1 ? 0 : side][c][r] = sum_start(); });
                    });
                }
                if constexpr (C == 4) {
                    dot_sixteen(w + side * 128, a.q + side * 16, sums.dots[kGroups == 1 ? 0 : side]);
                } else {
                    int8x16_t x[C];
                    each<C>([&](auto c) ALWAYS_LAMBDA { x[c] = vld1q_s8(a.q + c * kBlock + side * 16); });
                    each<4>([&](auto i) ALWAYS_LAMBDA {
                        constexpr int quad = side * 4 + i;
                        each<2>([&](auto r) ALWAYS_LAMBDA {
                            sums.template dot<quad>(r, vld1q_s8(w + quad * 32 + r * 16), x);
                        });
                    });
                }
                if constexpr (side == 1 || kGroups == 2) {
                    constexpr int g = kGroups == 1 ? 0 : side;
                    const float* scales = s + g * kParts * kTileRows;
                    each<2>([&](auto r) ALWAYS_LAMBDA {
                        const float* at = scales + 4 * r;
                        const auto bias = [=]() ALWAYS_LAMBDA { return loaded<float32x4_t>(at + kTileRows); };
                        sums.scale(g, r, a, vld1q_f32(at), bias,
                                   kShape.min ? vld1q_f32(at + 2 * kTileRows) : vdupq_n_f32(0.0f));
                    });
                }
            });
        }
        sums.store(out, stride, rows);
    }

    // An expanded panel × four columns.
    static void expanded_panel(const Expanded& panel, size_t blocks, const Inputs& a, bool more, float* out, size_t stride) {
        alignas(64) const float none[kTileRows] = {};
        const Halves halves{kHalves, sizeof panel.quants[0], sizeof panel.scales[0], more ? kTileRows * sizeof(float) : 0};
        const size_t bytes = stride * sizeof(float);
        expanded_blocks<kShape.min>(panel.quants[0], panel.scales[0], a, blocks, more ? out : none, more ? bytes : 0, out, bytes,
                                    halves);
    }

    // R × 4 rows of a panel, from 4 × `from` on, as they are packed, × C columns.
    template <int R, int C, size_t Lanes>
    static void packed_tile(const uint8_t* w, int from, size_t blocks, Inputs a, float* out, size_t stride, size_t rows) {
        if constexpr (R == 4 && Lanes == 1 && (L == Layout::kSixesK || L == Layout::kNibblesK || (kShape.bits == 4 && !kCoded))) {
            float some[kPanelRows];
            float* to = rows < kPanelRows ? some : out;
            if constexpr (L == Layout::kSixesK) {
                sixes_blocks(w, a, blocks, to);
            } else if constexpr (kCoded) {
                coded_blocks(w, a, blocks, to);
            } else {
                packed_blocks<kShape.min, kShape.levels>(w, a, blocks, to);
            }
            if (rows < kPanelRows) std::memcpy(out, some, rows * sizeof(float));
            return;
        }
        Sums<R, C, Lanes> sums;
        sums.clear();
        float32x4_t by[R / 2][2][2] = {};
        size_t in_unit = 0;
        for (size_t block = 0; block < blocks; ++block, a.template next<Lanes>()) {
            const uint8_t* at = w + kShape.quants_at(in_unit);
            if constexpr (kCoded) {
                if (in_unit == 0) {
                    each<R / 2>([&](auto half) ALWAYS_LAMBDA { P::multipliers(w, from / 2 + half, by[half]); });
                    prefetch<kShape.head_bytes()>(w + kShape.unit_bytes());
                }
                prefetch<kShape.quant_bytes()>(at + 6 * kShape.quant_bytes());
            }
            // So many of them stand before the quants, and are read after them, that the stream is not foreseen.
            if constexpr (kShape.scales == Scales::kFloat) prefetch<kShape.head_bytes()>(w + 2 * kShape.unit_bytes());
            int8x16_t x[2][C];
            each<C>([&](auto c) ALWAYS_LAMBDA {
                x[0][c] = vld1q_s8(a.q + c * kBlock);
                x[1][c] = vld1q_s8(a.q + c * kBlock + 16);
                each<kGroups>([&](auto g) ALWAYS_LAMBDA {
                    constexpr int kExcess = kShape.bytes() ? 0 : kShape.offset;
                    const int32_t* s = a.sums + 2 * c;
                    [[maybe_unused]] const int32_t excess = kExcess * (kGroups == 2 ? s[g] : s[0] + s[1]);
                    each<R>([&](auto r) ALWAYS_LAMBDA {
                        sums.dots[g][c][r] = kExcess ? vdupq_n_s32(kSumStart - excess) : sum_start();
                    });
                });
            });
            if constexpr (kShape.bits > 4 && kShape.bits < 8) {
                each<R>([&](auto r) ALWAYS_LAMBDA {
                    P::each_quants(at, from + r, [&](auto quad, uint8x16_t q) ALWAYS_LAMBDA {
                        sums.template dot<decltype(quad)::value>(r, vreinterpretq_s8_u8(q), x[quad / 4]);
                    });
                });
            } else {
                // As they lie in memory: of nibbles the low and the high ones come together.
                each<8>([&](auto i) ALWAYS_LAMBDA {
                    constexpr int quad = kShape.bits == 8 ? i : i / 2 + i % 2 * 4;
                    each<R>([&](auto r) ALWAYS_LAMBDA {
                        sums.template dot<quad>(r, P::quants(at, from + r, quad), x[quad / 4]);
                    });
                });
            }
            each<kGroups>([&](auto g) ALWAYS_LAMBDA {
                each<R / 2>([&](auto half) ALWAYS_LAMBDA {
                    const auto d = P::eight_scales(w + kShape.scale_at(in_unit, g), from / 2 + half, by[half][0]);
                    float32x4x2_t m = {};
                    if constexpr (kShape.min) {
                        m = P::eight_scales(w + kShape.min_at(in_unit, g), from / 2 + half, by[half][1]);
                    }
                    each<2>([&](auto r) ALWAYS_LAMBDA {
                        const float32x4_t bias = vmulq_n_f32(d.val[r], -kFloatBias);
                        sums.scale(g, 2 * half + r, a, d.val[r], [=]() ALWAYS_LAMBDA { return bias; }, m.val[r]);
                    });
                });
            });
            if (kUnit == 1 || ++in_unit == kUnit) {
                in_unit = 0;
                w += kShape.unit_bytes();
            }
        }
        sums.store(out, stride, rows);
    }

    // Calls f(how many columns, which is the first) for groups of at most `Most` columns that stand together.
    template <int Most, typename F>
    static ALWAYS void each_columns(size_t n, F f) {
        for (size_t c = 0; c < n; c += Most) {
            switch (n - c < Most ? n - c : Most) {
                case 1: f(std::integral_constant<int, 1>{}, c); break;
                case 2: f(std::integral_constant<int, 2>{}, c); break;
                case 3: if constexpr (Most > 2) f(std::integral_constant<int, 3>{}, c); break;
                default: if constexpr (Most > 2) f(std::integral_constant<int, 4>{}, c); break;
            }
        }
    }

    static void panel_of_many(const Target& t, const Quantized& a, size_t columns, size_t n) {
        Expanded expanded;
        const size_t blocks = columns / kBlock;
        for (size_t first = 0; first < blocks; first += kExpanded) {
            const size_t last = first + kExpanded < blocks ? first + kExpanded : blocks;
            P::expand(t.panel, first, last, expanded);
            // Expanding takes what memory gives and products next to nothing, so what is expanded next is asked for among the
            // last of them. Panels lie behind each other.
            constexpr size_t kFetches = 4;
            const size_t groups = (n + kLanes - 1) / kLanes, fetched = groups < kFetches ? groups : kFetches;
            const uint8_t* next = t.panel + last / kUnit * kShape.unit_bytes();
            const size_t lines = (last - first) / kUnit * kShape.unit_bytes() / 64 / fetched + 1;
            each_columns<kLanes>(n, [&](auto count, size_t c) {
                if (c / kLanes + fetched >= groups) {
                    for (size_t line = 0; line < lines; ++line) __builtin_prefetch(next + 64 * line, 0, 2);
                    next += 64 * lines;
                }
                if constexpr (kGroups == 1 && decltype(count)::value == kLanes) {
                    if (t.rows >= kPanelRows) {
                        return expanded_panel(expanded, last - first, Inputs(a, c, columns, first), first > 0, t.out + c * t.stride,
                                              t.stride);
                    }
                }
                for (size_t half = 0; half < kHalves && half * kTileRows < t.rows; ++half) {
                    expanded_tile<decltype(count)::value, kLanes>(
                        expanded.quants[half], expanded.scales[half], last - first, Inputs(a, c, columns, first), first > 0,
                        t.out + c * t.stride + half * kTileRows, t.stride, t.rows - half * kTileRows);
                }
            });
        }
    }

    // A panel × eight columns, of which `count` are there.
    static ALWAYS void eight_columns(Eights& e, size_t count, bool more, float* out, size_t stride, size_t rows) {
        alignas(64) float some[8 * 4] = {};
        const size_t bytes = stride * sizeof(float), whole = count < 8 ? 0 : rows < kPanelRows ? rows / 4 : 4;
        if (whole) packed_eights<L>(e, 0, whole, more ? out : some, more ? bytes : 0, more ? 16 : 0, out, bytes);
        for (size_t r = whole; r < 4 && 4 * r < rows; ++r) {
            const size_t there = (rows - 4 * r < 4 ? rows - 4 * r : 4) * sizeof(float);
            for (float& total : some) total = 0.0f;
            for (size_t c = 0; more && c < count; ++c) std::memcpy(some + 4 * c, out + c * stride + 4 * r, there);
            packed_eights<L>(e, r, 1, some, 16, 0, some, 16);
            for (size_t c = 0; c < count; ++c) std::memcpy(out + c * stride + 4 * r, some + 4 * c, there);
        }
    }

    // Quants stay packed. A chunk of them is read for all columns, eight or four at a time, while it is in the first cache, and
    // meanwhile the next one is asked for. One or two columns that remain are done as panel_of_few does them.
    static void panel_of_some(const Target& t, const Quantized& a, size_t columns, size_t n) {
        constexpr size_t kAt = kShape.quants_at(0);
        constexpr bool kHalf = reads_halves(L);
        alignas(64) float floats[kHalves][kHalf ? 1 : kExpanded * kFloats];
        const size_t blocks = columns / kBlock, rest = n % 8 == 7 ? 0 : n % 8, fours = rest & 4, few = rest & 3;
        const size_t eights = n - rest;
        const size_t quarters = t.rows < kPanelRows ? (t.rows + 3) / 4 : 4, halves = (quarters + 1) / 2;
        const size_t passes = (eights + 7) / 8 * quarters + (fours ? halves : 0);
        const size_t step = kShape.unit_bytes() / kUnit / passes + 1;
        for (size_t first = 0; first < blocks; first += kExpanded) {
            const size_t last = first + kExpanded < blocks ? first + kExpanded : blocks;
            const uint8_t* w = t.panel + first / kUnit * kShape.unit_bytes();
            const uint8_t* next = t.panel + last / kUnit * kShape.unit_bytes();
            for (size_t half = 0; !kHalf && half < halves; ++half) {
                P::expand_scales(t.panel, static_cast<int>(half), first, last, floats[half]);
            }
            for (size_t c = 0; c < eights; c += 8) {
                const Inputs x(a, c, columns, first), y(a, c + kLanes, columns, first);
                Eights e{w + kAt, last - first, {x.q, y.q}, {x.scale, y.scale}, {x.scaled, y.scaled}, next, step, {}, {}};
                for (size_t r = 0; r < 4; ++r) {
                    e.scales[r] = kHalf ? w + r * 8 : static_cast<const void*>(floats[r / 2] + r % 2 * 4);
                }
                eight_columns(e, eights - c < 8 ? eights - c : 8, first > 0, t.out + c * t.stride, t.stride, t.rows);
                next += quarters * step * (last - first);
            }
            for (size_t half = 0; fours && half < halves; ++half, next += step * (last - first)) {
                const void* scales = kHalf ? w + half * 16 : static_cast<const void*>(floats[half]);
                const auto multiply = [&](const float* from, size_t from_stride, float* to, size_t to_stride) ALWAYS_LAMBDA {
                    packed_fours<L>(w + kAt + half * 2 * Eights::kRowBytes, scales, Inputs(a, eights, columns, first), last - first,
                                    from, from_stride * sizeof(float), to, to_stride * sizeof(float), next, step);
                };
                with_totals(multiply, fours, first > 0, t.out + eights * t.stride + half * kTileRows, t.stride,
                            t.rows - half * kTileRows);
            }
        }
        const size_t done = eights + fours;
        if (few) panel_of_few({t.panel, t.out + done * t.stride, t.stride, t.rows}, a.from(done, columns), columns, few);
    }

    static void panel_of_few(const Target& t, const Quantized& a, size_t columns, size_t n) {
        const size_t blocks = columns / kBlock;
        if (a.lanes == 1) {
            for (size_t c = 0; c < n; ++c) {
                packed_tile<4, 1, 1>(t.panel, 0, blocks, Inputs(a, c, columns, 0), t.out + c * t.stride, t.stride, t.rows);
            }
            return;
        }
        if constexpr (has_pairs(L)) {
            if (n == 2) {
                const Inputs in(a, 0, columns, 0);
                Sums<4, 2, kLanes> sums;
                sums.clear();
                multiply_pairs<L>(t.panel, in.q, in.scale, in.scaled, in.sums, blocks, reinterpret_cast<float*>(sums.total));
                return sums.store(t.out, t.stride, t.rows);
            }
        }
        each_columns<kGroups == 1 ? 4 : 2>(n, [&](auto count, size_t c) {
            const Inputs in(a, c, columns, 0);
            float* out = t.out + c * t.stride;
            packed_tile<2, decltype(count)::value, kLanes>(t.panel, 0, blocks, in, out, t.stride, t.rows);
            if (t.rows <= kTileRows) return;
            packed_tile<2, decltype(count)::value, kLanes>(t.panel, 2, blocks, in, out + kTileRows, t.stride,
                                                           t.rows - kTileRows);
        });
    }
};

// Asks for what is read after the product, in the second cache: the panels go through the first. Compilers leave out calls of
// functions that do nothing else, so it is always inlined.
ALWAYS void prefetch_ahead(const Matrix& w, size_t panel) {
    for (size_t i = 0; i < w.n_ahead; ++i) {
        const size_t step = w.ahead[i].step;
        const uint8_t* at = w.ahead[i].at + panel * step;
        for (size_t byte = 0; byte < step; byte += 64) __builtin_prefetch(at + byte, 0, 2);
    }
}

template <Layout L>
void multiply_tiles(const Matrix& w, const Quantized& a, size_t n, size_t begin, size_t end, float* out, size_t stride) {
    for (size_t panel = begin; panel < end; ++panel) {
        prefetch_ahead(w, panel);
        const Target target{w.data + panel * w.panel_bytes, out + panel * kPanelRows, stride, w.rows - panel * kPanelRows};
        if (n >= expand_from(L) && a.lanes == kLanes) {
            Tiles<L>::panel_of_many(target, a, w.columns, n);
        } else if (n >= 4 && a.lanes == kLanes && has_fours(L)) {
            if constexpr (has_fours(L)) Tiles<L>::panel_of_some(target, a, w.columns, n);
        } else {
            Tiles<L>::panel_of_few(target, a, w.columns, n);
        }
    }
}
