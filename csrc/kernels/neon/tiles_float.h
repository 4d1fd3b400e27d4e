// Products of float panels with many columns where a register has four lanes. Included by impl_matmul.h.
//
// A tile is 16 rows × up to six columns: 24 registers of sums, six of four numbers of each column, two for weights.
// Four numbers of a column are one load, as a product can take one lane of a register. Panels and activations are taken
// in pieces that stay in the nearest cache; the sums wait in `out` meanwhile, which changes no bit of them. Half floats
// are made floats once for all columns.

constexpr size_t kFloatPiece = 384;    // columns of a panel at a time
constexpr size_t kFloatTogether = 48;  // columns of activations that all panels take before the next ones
constexpr int kFloatColumns = 6;       // columns of activations in a tile

// 16 rows of weights [k][16] × C columns, added to what is in `out`, or to zeros at the first piece.
template <int C>
void float_tile(const float* w, size_t k, const float* x, size_t x_stride, bool first, float* out, size_t stride, size_t rows) {
    float32x4_t sums[C][4];
    each<C>([&](auto c) ALWAYS_LAMBDA {
        const Floats before = first ? splat(0.0f) : load_some(out + c * stride, rows);
        each<4>([&](auto i) ALWAYS_LAMBDA { sums[c][i] = before.v[i]; });
    });
    size_t at = 0;
    for (; at + 4 <= k; at += 4, w += 4 * kPanelRows) {
        float32x4_t four[C];
        each<C>([&](auto c) ALWAYS_LAMBDA { four[c] = vld1q_f32(x + c * x_stride + at); });
        each<4>([&](auto lane) ALWAYS_LAMBDA {
            each<4>([&](auto i) ALWAYS_LAMBDA {
                const float32x4_t row = vld1q_f32(w + lane * kPanelRows + 4 * i);
                each<C>([&](auto c) ALWAYS_LAMBDA { sums[c][i] = vfmaq_laneq_f32(sums[c][i], row, four[c], lane); });
            });
        });
    }
    for (; at < k; ++at, w += kPanelRows) {
        each<4>([&](auto i) ALWAYS_LAMBDA {
            const float32x4_t row = vld1q_f32(w + 4 * i);
            each<C>([&](auto c) ALWAYS_LAMBDA { sums[c][i] = vfmaq_n_f32(sums[c][i], row, x[c * x_stride + at]); });
        });
    }
    each<C>([&](auto c) ALWAYS_LAMBDA {
        store_some(out + c * stride, {{sums[c][0], sums[c][1], sums[c][2], sums[c][3]}}, rows);
    });
}

// One piece of a panel × n columns.
void float_columns(const float* w, size_t k, const float* x, size_t x_stride, size_t n, bool first, float* out, size_t stride,
                   size_t rows) {
    size_t c = 0;
    const auto tile = [&](auto count) {
        float_tile<decltype(count)::value>(w, k, x + c * x_stride, x_stride, first, out + c * stride, stride, rows);
        c += decltype(count)::value;
    };
    while (c + 2 * kFloatColumns <= n || c + kFloatColumns == n) tile(std::integral_constant<int, kFloatColumns>{});
    // The last two tiles share what is left: one of a single column would be as slow as one of three.
    const auto some = [&](size_t count) {
        switch (count) {
            case 1: return tile(std::integral_constant<int, 1>{});
            case 2: return tile(std::integral_constant<int, 2>{});
            case 3: return tile(std::integral_constant<int, 3>{});
            case 4: return tile(std::integral_constant<int, 4>{});
            case 5: return tile(std::integral_constant<int, 5>{});
            case 6: return tile(std::integral_constant<int, 6>{});
            default: return;
        }
    };
    if (n - c > kFloatColumns) some((n - c + 1) / 2);
    some(n - c);
}

// Panels [begin, end) × n columns. Every sum is over ascending columns of the panel, one fused addition each.
template <FloatKind Kind>
void multiply_float_panels(const Matrix& w, const float* x, size_t n, size_t begin, size_t end, float* out, size_t stride) {
    constexpr bool kMade = Kind != FloatKind::kF32;
    alignas(64) float made[kMade ? kFloatPiece * kPanelRows : 16];
    const size_t together = kMade ? n : kFloatTogether;
    for (size_t first = 0; first < w.columns; first += kFloatPiece) {
        const size_t k = w.columns - first < kFloatPiece ? w.columns - first : kFloatPiece;
        for (size_t column = 0, count; column < n; column += count) {
            count = n - column < together + kFloatColumns ? n - column : together;  // a few more are no block of their own
            for (size_t panel = begin; panel < end; ++panel) {
                const uint8_t* data = w.data + panel * w.panel_bytes;
                const size_t left = w.rows - panel * kPanelRows, rows = left < kPanelRows ? left : kPanelRows;
                const float* floats = made;
                if constexpr (kMade) {
                    for (size_t j = 0; j < k; ++j) store(made + j * kPanelRows, Plain<Kind>::weights(data, first + j));
                } else {
                    floats = reinterpret_cast<const float*>(data) + first * kPanelRows;
                }
                float_columns(floats, k, x + column * w.columns + first, w.columns, count, first == 0,
                              out + column * stride + panel * kPanelRows, stride, rows);
            }
        }
    }
}
