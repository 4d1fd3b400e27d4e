// Products of packed matrices with columns of activations. Included by impl.h, within the namespace of an instruction set.

template <int Bits, bool Half, int Groups, bool Min, int Offset>
struct Quant {
    static constexpr size_t kScales = Groups * kPanelRows * (Half ? 2 : 4);
    static constexpr size_t kHead = kScales * (Min ? 2 : 1);
    static constexpr size_t kBytes = kHead + kPanelRows * kBlock * Bits / 8;
    // What the integer sum has in it beyond Σ (quant − offset) × activation.
    static constexpr int kExcess = Bits == 4 ? Offset : (Offset - 128) + kWideBias;

    // P panels × C columns.
    template <int P, int C>
    static void tile(const uint8_t* w, size_t panel_bytes, size_t columns, const Quantized& a, size_t column,
                     float* out, size_t out_stride, size_t rows) {
        const size_t blocks = columns / kBlock;
        Floats total[P][C];
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) total[p][c] = splat(0.0f);
        const int8_t* q[C];
        const float* scale[C];
        const float* scaled[C];
        const int32_t* sums[C];
        UNROLL for (int c = 0; c < C; ++c) {
            q[c] = a.q + (column + c) * columns;
            scale[c] = a.scale + (column + c) * blocks;
            scaled[c] = a.scaled + (column + c) * blocks;
            sums[c] = a.sums + (column + c) * 2 * blocks;
        }
        for (size_t block = 0; block < blocks; ++block, w += kBytes) {
            UNROLL for (int g = 0; g < Groups; ++g) {
                Ints dots[P][C];
                UNROLL for (int c = 0; c < C; ++c) {
                    int32_t excess = 0;
                    if constexpr (kExcess != 0) {
                        excess = Groups == 2 ? sums[c][2 * block + g] : sums[c][2 * block] + sums[c][2 * block + 1];
                    }
                    UNROLL for (int p = 0; p < P; ++p) dots[p][c] = splat_int(-kExcess * excess);
                }
                multiply<P, C>(w + kHead, panel_bytes, q, block * kBlock, g, dots);
                UNROLL for (int p = 0; p < P; ++p) {
                    const uint8_t* head = w + p * panel_bytes + g * (kScales / Groups);
                    const Floats d = load_scales<Half>(head);
                    UNROLL for (int c = 0; c < C; ++c) {
                        const Floats part = mul(to_float(dots[p][c]), d);
                        total[p][c] = fma(part, splat(scale[c][block]), total[p][c]);
                    }
                    if constexpr (Min) {
                        const Floats m = load_scales<Half>(head + kScales);
                        UNROLL for (int c = 0; c < C; ++c) {
                            const float sum = Groups == 1 ? scaled[c][block]
                                                          : scale[c][block] * static_cast<float>(sums[c][2 * block + g]);
                            total[p][c] = fma(m, splat(sum), total[p][c]);
                        }
                    }
                }
            }
        }
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) {
            float* to = out + (column + c) * out_stride + p * kPanelRows;
            const size_t left = rows - p * kPanelRows;
            store_some(to, total[p][c], left < kPanelRows ? left : kPanelRows);
        }
    }

    // dots += the block's quants of group g × activations
    template <int P, int C>
    static inline void multiply(const uint8_t* w, size_t panel_bytes, const int8_t* const* q, size_t at, int g,
                                Ints (&dots)[P][C]) {
        if constexpr (Bits == 4) {
            UNROLL for (int i = 0; i < 4; ++i) {
                Bytes both[P];
                UNROLL for (int p = 0; p < P; ++p) both[p] = load_bytes(w + p * panel_bytes + i * 64);
                UNROLL for (int half = 0; half < 2; ++half) {
                    Bytes part[P];
                    UNROLL for (int p = 0; p < P; ++p) part[p] = half ? high_half(both[p]) : low_half(both[p]);
                    UNROLL for (int c = 0; c < C; ++c) {
                        const Quad x = quad(q[c] + at + half * 16 + i * 4);
                        UNROLL for (int p = 0; p < P; ++p) dots[p][c] = dot_small(dots[p][c], part[p], x);
                    }
                }
            }
        } else {
            constexpr int kQuads = 8 / Groups;
            UNROLL for (int i = 0; i < kQuads; ++i) {
                const int quad_index = g * kQuads + i;
                Bytes part[P];
                UNROLL for (int p = 0; p < P; ++p) part[p] = load_bytes(w + p * panel_bytes + quad_index * 64);
                UNROLL for (int c = 0; c < C; ++c) {
                    const Quad x = quad(q[c] + at + quad_index * 4);
                    UNROLL for (int p = 0; p < P; ++p) dots[p][c] = dot_wide(dots[p][c], part[p], x);
                }
            }
        }
    }
};

enum class FloatKind { kF32, kF16, kBF16 };

template <FloatKind Kind>
struct Plain {
    static inline Floats weights(const uint8_t* w, size_t k) {
        if constexpr (Kind == FloatKind::kF32) return load(reinterpret_cast<const float*>(w) + k * kPanelRows);
        const uint16_t* at = reinterpret_cast<const uint16_t*>(w) + k * kPanelRows;
        if constexpr (Kind == FloatKind::kF16) return load_half(at);
        return load_bf16(at);
    }

    template <int P, int C>
    static void tile(const uint8_t* w, size_t panel_bytes, size_t columns, const float* x, size_t column, float* out,
                     size_t out_stride, size_t rows) {
        Floats total[P][C];
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) total[p][c] = splat(0.0f);
        for (size_t k = 0; k < columns; ++k) {
            UNROLL for (int p = 0; p < P; ++p) {
                const Floats row = weights(w + p * panel_bytes, k);
                UNROLL for (int c = 0; c < C; ++c) {
                    total[p][c] = fma(row, splat(x[(column + c) * columns + k]), total[p][c]);
                }
            }
        }
        UNROLL for (int p = 0; p < P; ++p) UNROLL for (int c = 0; c < C; ++c) {
            float* to = out + (column + c) * out_stride + p * kPanelRows;
            const size_t left = rows - p * kPanelRows;
            store_some(to, total[p][c], left < kPanelRows ? left : kPanelRows);
        }
    }
};

// Runs `Tile::tile` over all columns of P panels: as many columns at a time as fit, then the rest.
template <typename Tile, int P, typename Input>
void columns_of(const Matrix& w, const Input& input, size_t n, size_t panel, float* out, size_t out_stride) {
    const uint8_t* data = w.data + panel * w.panel_bytes;
    const size_t rows = w.rows - panel * kPanelRows;
    float* to = out + panel * kPanelRows;
    size_t c = 0;
    for (; c + kColumns <= n; c += kColumns) {
        Tile::template tile<P, kColumns>(data, w.panel_bytes, w.columns, input, c, to, out_stride, rows);
    }
    if constexpr (kColumns > 4) {
        for (; c + 4 <= n; c += 4) Tile::template tile<P, 4>(data, w.panel_bytes, w.columns, input, c, to, out_stride, rows);
    }
    if constexpr (kColumns > 2) {
        for (; c + 2 <= n; c += 2) Tile::template tile<P, 2>(data, w.panel_bytes, w.columns, input, c, to, out_stride, rows);
    }
    for (; c < n; ++c) Tile::template tile<P, 1>(data, w.panel_bytes, w.columns, input, c, to, out_stride, rows);
}

template <typename Tile, typename Input>
void product(const Matrix& w, const Input& input, size_t n, size_t begin, size_t end, float* out, size_t out_stride) {
    size_t panel = begin;
    if (n == 1) {
        for (; panel + kPanelsOne <= end; panel += kPanelsOne) {
            Tile::template tile<kPanelsOne, 1>(w.data + panel * w.panel_bytes, w.panel_bytes, w.columns, input, 0,
                                               out + panel * kPanelRows, out_stride, w.rows - panel * kPanelRows);
        }
    } else {
        for (; panel + kPanels <= end; panel += kPanels) columns_of<Tile, kPanels>(w, input, n, panel, out, out_stride);
    }
    for (; panel < end; ++panel) columns_of<Tile, 1>(w, input, n, panel, out, out_stride);
}

void matmul(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end, float* out,
            size_t stride) {
    switch (w.layout) {
        case Layout::kNibbles: return product<Quant<4, true, 1, false, 8>>(w, a, n, begin, end, out, stride);
        case Layout::kNibblesMin: return product<Quant<4, true, 1, true, 0>>(w, a, n, begin, end, out, stride);
        case Layout::kNibblesMinF: return product<Quant<4, false, 1, true, 0>>(w, a, n, begin, end, out, stride);
        case Layout::kBytes: return product<Quant<8, true, 1, false, 128>>(w, a, n, begin, end, out, stride);
        case Layout::kBytesMinF: return product<Quant<8, false, 1, true, 128>>(w, a, n, begin, end, out, stride);
        case Layout::kBytes16F: return product<Quant<8, false, 2, false, 128>>(w, a, n, begin, end, out, stride);
        case Layout::kBytes16MinF: return product<Quant<8, false, 2, true, 128>>(w, a, n, begin, end, out, stride);
        case Layout::kF32: return product<Plain<FloatKind::kF32>>(w, x, n, begin, end, out, stride);
        case Layout::kF16: return product<Plain<FloatKind::kF16>>(w, x, n, begin, end, out, stride);
        case Layout::kBF16: return product<Plain<FloatKind::kBF16>>(w, x, n, begin, end, out, stride);
    }
}
