// Products of packed matrices with columns of activations. Included by impl.h, within the namespace of an instruction set.

// Sums of products begin at kSumStart. On x86 these are the bits of kFloatBias as a float, so that they end as
// floats that are too large by kFloatBias; one fused operation takes that away and multiplies with the scale.
// It rounds once, so the result is sum × scale, rounded: packed scales have so few bits that kFloatBias × scale
// is exact.
constexpr float kFloatBias = 12582912.0f;  // 1.5 × 2^23

#ifdef STRETTO_HAS_TILES
#include "kernels/neon/tiles.h"
#endif

// Panels of a matrix, and the part of their columns that a tile multiplies.
struct Piece {
    const uint8_t* data;       // of the first panel, from its first block on
    const uint8_t* wide;       // small quants as bytes, from block `first` on: [panel][kUnpacked blocks]; or null
    size_t panel_bytes;
    size_t columns;
    size_t first, last;        // blocks
    float* out;                // of the first panel
    size_t out_stride;
    size_t rows;               // from the first panel on
    bool more;                 // as many panels follow in this product
};

constexpr size_t kUnpacked = 32;                            // blocks that are unpacked at a time
constexpr size_t kWideBytes = kPanelRows * kBlock;          // of a block with a byte for each quant
constexpr size_t kAskAhead = 2048;                          // bytes of a panel that are asked for before they are read

#ifndef STRETTO_HAS_TILES
template <Layout L>
struct Quant {
    using Input = Quantized;
    static constexpr Shape kShape = shape_of(L);
    static constexpr int kGroups = static_cast<int>(kShape.groups);
    static constexpr bool kCoded = kShape.scales == Scales::kCoded;
    static constexpr size_t kUnit = kShape.blocks();  // blocks
    // What the integer sum has in it beyond Σ (quant − offset) × activation.
    static constexpr int kExcess = kShape.bytes() ? (kShape.offset - 128) + kWideBias : kShape.offset;

    // P panels × C columns.
    template <int P, int C, bool Wide>
    static void tile(const Piece& piece, const Quantized& a, size_t column) {
        Floats total[P][C];
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) {
            total[p][c] = piece.first ? load_some(result(piece, p, column + c), rows_of(piece, p)) : splat(0.0f);
        }
        const int8_t* q[C];
        const float* scale[C];
        const float* scaled[C];
        const int32_t* sums[C];
        UNROLL for (int c = 0; c < C; ++c) {
            const size_t at = a.block_of(column + c, piece.columns) + piece.first * a.lanes;
            q[c] = a.q + at * kBlock;
            scale[c] = a.scale + at;
            scaled[c] = a.scaled + at;
            sums[c] = a.sums + 2 * at;
        }
        const uint8_t* w = piece.data + piece.first / kUnit * kShape.unit_bytes();
        const uint8_t* wide = piece.wide;
        // Products fill the processor's queues, so that its own loads come late: the first columns ask for what comes, and at a
        // panel's end for the next panels.
        constexpr bool kAsks = !Wide;
        [[maybe_unused]] size_t ahead = column == 0 ? kAskAhead : 0;
        [[maybe_unused]] const size_t beyond = ahead && piece.more ? kAskAhead + (P - 1) * piece.panel_bytes : 0;
        const size_t quants_stride = Wide ? kUnpacked * kWideBytes : piece.panel_bytes;
        const size_t n = (piece.last - piece.first) * a.lanes;
        constexpr size_t kLast = kAskAhead / (kShape.unit_bytes() / kUnit) + 1;  // blocks in so many bytes
        [[maybe_unused]] const size_t turn = n > kLast * a.lanes ? n - kLast * a.lanes : 0;
        Floats times[P] = {}, min_times[P] = {};
        size_t in_unit = 0;  // which block of its unit
        for (size_t b = 0; b < n; b += a.lanes, wide += kWideBytes) {
            if constexpr (kAsks) {
                if (b == turn) ahead = beyond;
            }
            if constexpr (kCoded) {
                if (in_unit == 0) UNROLL for (int p = 0; p < P; ++p) {
                    if constexpr (kAsks) ask<kShape.head_bytes()>(w + p * piece.panel_bytes + ahead);
                    const auto* head = reinterpret_cast<const uint16_t*>(w + p * piece.panel_bytes);
                    times[p] = load_half(head);
                    if constexpr (kShape.min) min_times[p] = load_half(head + kPanelRows);
                }
            }
            const uint8_t* quants = Wide ? wide : w + kShape.quants_at(in_unit);
            if constexpr (kAsks) UNROLL for (int p = 0; p < P; ++p) {
                constexpr size_t kBytes = kCoded ? kShape.quant_bytes() : kShape.unit_bytes();
                ask<kBytes>((kCoded ? quants : w) + p * piece.panel_bytes + ahead);
            }
            UNROLL for (int g = 0; g < kGroups; ++g) {
                Ints dots[P][C];
                UNROLL for (int c = 0; c < C; ++c) {
                    int32_t excess = 0;
                    if constexpr (kExcess != 0) excess = kGroups == 2 ? sums[c][2 * b + g] : sums[c][2 * b] + sums[c][2 * b + 1];
                    UNROLL for (int p = 0; p < P; ++p) dots[p][c] = splat_int(kSumStart - kExcess * excess);
                }
                multiply<P, C, Wide>(quants, quants_stride, q, b * kBlock, g, dots);
                UNROLL for (int p = 0; p < P; ++p) {
                    const uint8_t* head = w + p * piece.panel_bytes;
                    const Floats d = load_scales<kShape.scales>(head + kShape.scale_at(in_unit, g), times[p]);
                    const Floats bias = mul(d, splat(-kFloatBias));
                    UNROLL for (int c = 0; c < C; ++c) {
                        const Floats part = scaled_sum(dots[p][c], d, bias);
                        total[p][c] = fma(part, splat(scale[c][b]), total[p][c]);
                    }
                    if constexpr (kShape.min) {
                        const Floats m = load_scales<kShape.scales>(head + kShape.min_at(in_unit, g), min_times[p]);
                        UNROLL for (int c = 0; c < C; ++c) {
                            const float sum = kGroups == 1 ? scaled[c][b] : scale[c][b] * static_cast<float>(sums[c][2 * b + g]);
                            total[p][c] = fma(m, splat(sum), total[p][c]);
                        }
                    }
                }
            }
            if (kUnit == 1 || ++in_unit == kUnit) {
                in_unit = 0;
                w += kShape.unit_bytes();
            }
        }
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) {
            store_some(result(piece, p, column + c), total[p][c], rows_of(piece, p));
        }
    }

    template <size_t Bytes>
    static inline void ask(const uint8_t* p) {
        UNROLL for (size_t i = 0; i < Bytes; i += 64) __builtin_prefetch(p + i);
    }

    // dots += the block's quants of group g × activations
    template <int P, int C, bool Wide>
    static inline void multiply(const uint8_t* w, size_t stride, const int8_t* const* q, size_t at, int g,
                                Ints (&dots)[P][C]) {
        if constexpr (kShape.bits == 8) {
            constexpr int kQuads = 8 / kGroups;
            UNROLL for (int i = 0; i < kQuads; ++i) {
                const int quad_index = g * kQuads + i;
                Bytes part[P];
                UNROLL for (int p = 0; p < P; ++p) part[p] = load_bytes(w + p * stride + quad_index * 64);
                UNROLL for (int c = 0; c < C; ++c) {
                    const Quad x = quad(q[c] + at + quad_index * 4);
                    UNROLL for (int p = 0; p < P; ++p) dots[p][c] = dot_wide(dots[p][c], part[p], x);
                }
            }
            return;
        }
        if constexpr (kShape.bits > 4) {
            constexpr int kQuads = 8 / kGroups;
            UNROLL for (int i = 0; i < kQuads; ++i) {
                const int quad_index = g * kQuads + i;
                Bytes part[P];
                UNROLL for (int p = 0; p < P; ++p) {
                    part[p] = Wide ? load_bytes(w + p * stride + quad_index * 64) : sixes(w + p * stride, quad_index);
                }
                UNROLL for (int c = 0; c < C; ++c) {
                    const Quad x = quad(q[c] + at + quad_index * 4);
                    UNROLL for (int p = 0; p < P; ++p) dots[p][c] = dot_six(dots[p][c], part[p], x);
                }
            }
            return;
        }
        if constexpr (kShape.levels) {
            UNROLL for (int quad_index = 0; quad_index < 8; ++quad_index) {
                Bytes part[P];
                UNROLL for (int p = 0; p < P; ++p) {
                    part[p] = Wide ? load_bytes(w + p * stride + quad_index * 64) : level(w + p * stride, quad_index);
                }
                UNROLL for (int c = 0; c < C; ++c) {
                    const Quad x = quad(q[c] + at + quad_index * 4);
                    UNROLL for (int p = 0; p < P; ++p) dots[p][c] = dot_wide(dots[p][c], part[p], x);
                }
            }
            return;
        }
        Smalls small[P][C];
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) small[p][c] = begin_small(dots[p][c]);
        UNROLL for (int i = 0; i < 4; ++i) {
            Bytes both[P];
            if constexpr (!Wide) {
                UNROLL for (int p = 0; p < P; ++p) both[p] = load_bytes(w + p * stride + i * 64);
            }
            UNROLL for (int half = 0; half < 2; ++half) {
                Bytes part[P];
                UNROLL for (int p = 0; p < P; ++p) {
                    if constexpr (Wide) {
                        part[p] = load_bytes(w + p * stride + (half * 4 + i) * 64);
                    } else {
                        part[p] = half ? high_half(both[p]) : low_half(both[p]);
                    }
                }
                UNROLL for (int c = 0; c < C; ++c) {
                    const Quad x = quad(q[c] + at + half * 16 + i * 4);
                    UNROLL for (int p = 0; p < P; ++p) small[p][c] = dot_small(small[p][c], part[p], x);
                }
            }
        }
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) dots[p][c] = end_small(dots[p][c], small[p][c]);
    }

    // Four columns of quants that have five or six bits.
    static inline Bytes sixes(const uint8_t* quants, int quad_index) {
        if constexpr (kShape.bits == 6) {
            const uint8_t* three = quants + quad_index / 4 * 3 * 64;
            if (quad_index % 4 < 3) return low_six(load_bytes(three + quad_index % 4 * 64));
            return fourth_six(load_bytes(three), load_bytes(three + 64), load_bytes(three + 128));
        }
        const Bytes both = load_bytes(quants + quad_index % 4 * 64);
        return with_bits(quad_index < 4 ? low_half(both) : high_half(both), load_bytes(quants + 4 * 64), quad_index, 1);
    }

    // Four columns of levels, as bytes.
    static inline Bytes level(const uint8_t* quants, int quad_index) {
        const Bytes both = load_bytes(quants + quad_index % 4 * 64);
        return levels(quad_index < 4 ? low_half(both) : high_half(both));
    }

    // The quants of a piece's blocks as bytes.
    static void unpack(const Piece& piece, size_t panels, uint8_t* out) {
        for (size_t p = 0; p < panels; ++p) {
            uint8_t* to = out + p * kUnpacked * kWideBytes;
            for (size_t block = piece.first; block < piece.last; ++block, to += kWideBytes) {
                const uint8_t* from = piece.data + p * piece.panel_bytes + block / kUnit * kShape.unit_bytes() +
                                      kShape.quants_at(block % kUnit);
                if constexpr (kShape.bits > 4) {
                    UNROLL for (int i = 0; i < 8; ++i) store_bytes(to + i * 64, sixes(from, i));
                    continue;
                }
                if constexpr (kShape.levels) {
                    UNROLL for (int i = 0; i < 8; ++i) store_bytes(to + i * 64, level(from, i));
                    continue;
                }
                UNROLL for (int i = 0; i < 4; ++i) {
                    const Bytes both = load_bytes(from + i * 64);
                    store_bytes(to + i * 64, low_half(both));
                    store_bytes(to + (i + 4) * 64, high_half(both));
                }
            }
        }
    }

    static float* result(const Piece& piece, int p, size_t column) {
        return piece.out + column * piece.out_stride + p * kPanelRows;
    }
    static size_t rows_of(const Piece& piece, int p) {
        const size_t left = piece.rows - p * kPanelRows;
        return left < kPanelRows ? left : kPanelRows;
    }
};
#endif

enum class FloatKind { kF32, kF16, kBF16 };

template <FloatKind Kind>
struct Plain {
    using Input = const float*;

    static inline Floats weights(const uint8_t* w, size_t k) {
        if constexpr (Kind == FloatKind::kF32) return load(reinterpret_cast<const float*>(w) + k * kPanelRows);
        const uint16_t* at = reinterpret_cast<const uint16_t*>(w) + k * kPanelRows;
        if constexpr (Kind == FloatKind::kF16) return load_half(at);
        return load_bf16(at);
    }

    template <int P, int C, bool>
    static void tile(const Piece& piece, const float* x, size_t column) {
        const size_t columns = piece.columns;
        Floats total[P][C];
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) total[p][c] = splat(0.0f);
        for (size_t k = 0; k < columns; ++k) {
            UNROLL for (int p = 0; p < P; ++p) {
                const Floats row = weights(piece.data + p * piece.panel_bytes, k);
                UNROLL for (int c = 0; c < C; ++c) {
                    total[p][c] = fma(row, splat(x[(column + c) * columns + k]), total[p][c]);
                }
            }
        }
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) {
            float* to = piece.out + (column + c) * piece.out_stride + p * kPanelRows;
            const size_t left = piece.rows - p * kPanelRows;
            store_some(to, total[p][c], left < kPanelRows ? left : kPanelRows);
        }
    }
};

#ifdef STRETTO_HAS_TILES
#include "kernels/neon/tiles_float.h"
#endif

template <auto V>
constexpr std::integral_constant<decltype(V), V> constant{};

// Runs `Tile::tile` over all columns of P panels: as many columns at a time as fit, then the rest.
template <typename Tile, int P, bool Wide>
void columns_of(const Piece& piece, const typename Tile::Input& input, size_t n) {
    size_t c = 0;
    for (; c + kColumns <= n && (kColumns <= 4 || n - c != 8); c += kColumns) {  // eight are four and four
        Tile::template tile<P, kColumns, Wide>(piece, input, c);
    }
    if constexpr (kColumns > 4) {
        for (; c + 4 <= n; c += 4) Tile::template tile<P, 4, Wide>(piece, input, c);
    }
    if constexpr (kColumns > 4 && !Wide) {
        if (c + 3 == n) return Tile::template tile<P, 3, Wide>(piece, input, c);
    }
    if constexpr (kColumns > 2) {
        for (; c + 2 <= n; c += 2) Tile::template tile<P, 2, Wide>(piece, input, c);
    }
    for (; c < n; ++c) Tile::template tile<P, 1, Wide>(piece, input, c);
}

#ifndef STRETTO_HAS_TILES
// The same for quantised panels. With many columns small quants are unpacked once for all of them, some blocks at a
// time; the sums wait in `out` meanwhile, which changes no bit of them.
template <Layout L, int P>
void quant_columns(Piece piece, const Quantized& a, size_t n) {
    if constexpr (shape_of(L).bits < 8 && kUnpackFrom > 0) {
        if (n >= kUnpackFrom) {
            alignas(64) uint8_t wide[P * kUnpacked * kWideBytes];
            const size_t blocks = piece.last;
            piece.wide = wide;
            for (; piece.first < blocks; piece.first += kUnpacked) {
                piece.last = piece.first + kUnpacked < blocks ? piece.first + kUnpacked : blocks;
                Quant<L>::unpack(piece, P, wide);
                columns_of<Quant<L>, P, true>(piece, a, n);
            }
            return;
        }
    }
    columns_of<Quant<L>, P, false>(piece, a, n);
}
#endif

// Calls f(panels at once, piece) for panels [begin, end): kPanelsOne at once for `few` columns at most.
template <typename F>
void each_piece(const Matrix& w, size_t n, size_t few, size_t begin, size_t end, float* out, size_t out_stride, F f) {
    auto piece = [&](size_t panel, int panels) {
        return Piece{w.data + panel * w.panel_bytes, nullptr, w.panel_bytes, w.columns, 0, w.columns / kBlock,
                     out + panel * kPanelRows, out_stride, w.rows - panel * kPanelRows, panel + 2 * panels <= end};
    };
    size_t panel = begin;
    if (n <= few) {
        for (; panel + kPanelsOne <= end; panel += kPanelsOne) f(std::integral_constant<int, kPanelsOne>{}, piece(panel, kPanelsOne));
    } else {
        for (; panel + kPanels <= end; panel += kPanels) f(std::integral_constant<int, kPanels>{}, piece(panel, kPanels));
    }
    for (; panel < end; ++panel) f(std::integral_constant<int, 1>{}, piece(panel, 1));
}

void matmul(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end, float* out,
            size_t stride) {
    auto quantised = [&](auto layout) {
#ifdef STRETTO_HAS_TILES
        multiply_tiles<layout>(w, a, n, begin, end, out, stride);
#else
        each_piece(w, n, kFewColumns, begin, end, out, stride, [&](auto panels, const Piece& piece) {
            if constexpr (panels > kPanels) {
                if constexpr (kFewColumns > 1) {
                    if (n == 2) return Quant<layout>::template tile<panels, 2, false>(piece, a, 0);
                }
                return Quant<layout>::template tile<panels, 1, false>(piece, a, 0);
            }
            quant_columns<layout, panels>(piece, a, n);
        });
#endif
    };
    auto plain = [&](auto kind) {
#ifdef STRETTO_HAS_TILES
        if (n > 1) return multiply_float_panels<kind>(w, x, n, begin, end, out, stride);
#endif
        each_piece(w, n, 1, begin, end, out, stride, [&](auto panels, const Piece& piece) {
            if constexpr (panels > kPanels) return Plain<kind>::template tile<panels, 1, false>(piece, x, 0);
            columns_of<Plain<kind>, panels, false>(piece, x, n);
        });
    };
    switch (w.layout) {
        case Layout::kNibbles: return quantised(constant<Layout::kNibbles>);
        case Layout::kNibblesMin: return quantised(constant<Layout::kNibblesMin>);
        case Layout::kNibblesK: return quantised(constant<Layout::kNibblesK>);
        case Layout::kFivesK: return quantised(constant<Layout::kFivesK>);
        case Layout::kSixesK: return quantised(constant<Layout::kSixesK>);
        case Layout::kBytes: return quantised(constant<Layout::kBytes>);
        case Layout::kLevels: return quantised(constant<Layout::kLevels>);
        case Layout::kBytesF: return quantised(constant<Layout::kBytesF>);
        case Layout::kBytesMinF: return quantised(constant<Layout::kBytesMinF>);
        case Layout::kBytes16F: return quantised(constant<Layout::kBytes16F>);
        case Layout::kBytes16MinF: return quantised(constant<Layout::kBytes16MinF>);
        case Layout::kF32: return plain(constant<FloatKind::kF32>);
        case Layout::kF16: return plain(constant<FloatKind::kF16>);
        case Layout::kBF16: return plain(constant<FloatKind::kBF16>);
        case Layout::kRows: return;  // DirectKernels multiply them
    }
}

#include "kernels/impl_narrow.h"
