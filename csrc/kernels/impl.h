// The kernels, written once over the sixteen lanes that the vec_*.h header included before provides.
//
// What keeps the bits the same: every output is one reduction in one order. In a product that is block after
// block, exact integers within a block, then one multiplication and one fused addition; in attention
// chunk after chunk. Tiles only decide which of these run side by side.

#include <cfloat>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"

namespace stretto {
namespace STRETTO_ISA {

namespace {

#ifdef STRETTO_NO_UNROLL
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// -- small pieces --

template <bool Half>
inline Floats load_scales(const uint8_t* p) {
    if constexpr (Half) return load_half(reinterpret_cast<const uint16_t*>(p));
    return load(reinterpret_cast<const float*>(p));
}

// e^x for x ≤ 88. Below −87 it stays at e^−87: who needs a zero puts it there. NaN stays NaN, as `max`
// answers with its second operand then.
inline Floats exponential(Floats x) {
    x = max(splat(-87.0f), x);
    const Floats n = to_float(round_to_int(mul(x, splat(1.44269504f))));
    Floats r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    Floats p = splat(1.0f / 5040.0f);
    p = fma(p, r, splat(1.0f / 720.0f));
    p = fma(p, r, splat(1.0f / 120.0f));
    p = fma(p, r, splat(1.0f / 24.0f));
    p = fma(p, r, splat(1.0f / 6.0f));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    return mul(p, pow2(round_to_int(n)));
}

// Calls f(lanes of x, where) for whole vectors, and for the rest on a copy padded with zeros.
template <typename F>
inline void each_vector(size_t n, F f) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) f(i, size_t{16});
    if (i < n) f(i, n - i);
}
inline Floats load_some(const float* p, size_t n) {
    if (n == 16) return load(p);
    float padded[16] = {};
    std::memcpy(padded, p, n * sizeof(float));
    return load(padded);
}
inline void store_some(float* p, Floats x, size_t n) {
    if (n == 16) return store(p, x);
    float padded[16];
    store(padded, x);
    std::memcpy(p, padded, n * sizeof(float));
}

// -- rows --

void quantize(const float* x, size_t columns, int8_t* q, float* scale, float* scaled, int32_t* sums) {
    for (size_t block = 0; block < columns / kBlock; ++block, x += kBlock, q += kBlock) {
        const Floats a = load(x), b = load(x + 16);
        const float largest = largest_magnitude(a, b), inverse = 127.0f / largest;
        if (!(largest <= FLT_MAX && inverse <= FLT_MAX)) {
            // Zeros and what is next to them; or the scale says that there was an infinity or NaN.
            std::memset(q, 0, kBlock);
            sums[2 * block] = sums[2 * block + 1] = 0;
            scale[block] = largest <= FLT_MAX ? 0.0f : largest;
            scaled[block] = scale[block] * 0.0f;
            continue;
        }
        const float d = largest / 127.0f;
        const Ints first = round_to_int(mul(a, splat(inverse))), second = round_to_int(mul(b, splat(inverse)));
        store_int8(q, first);
        store_int8(q + 16, second);
        sums[2 * block] = reduce_add_int(first);
        sums[2 * block + 1] = reduce_add_int(second);
        scale[block] = d;
        scaled[block] = d * static_cast<float>(sums[2 * block] + sums[2 * block + 1]);
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

// 1 / (1 + e^−x)
inline Floats sigmoid(Floats x) {
    return div(splat(1.0f), add(splat(1.0f), exponential(min(sub(splat(0.0f), x), splat(87.0f)))));
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

// -- products --

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

// -- the cache --

void store_head(CacheType type, const float* x, size_t head_size, uint8_t* out) {
    if (type == CacheType::kHalf) {
        each_vector(head_size, [&](size_t i, size_t m) {
            uint16_t halves[16];
            store_half(halves, load_some(x + i, m));
            std::memcpy(out + 2 * i, halves, 2 * m);
        });
        return;
    }
    for (size_t i = 0; i < head_size; i += 32, out += 34) {
        const size_t m = head_size - i < 32 ? head_size - i : 32;
        float block[32] = {};
        std::memcpy(block, x + i, m * sizeof(float));
        const float largest = largest_magnitude(load(block), load(block + 16));
        const uint16_t d = float_to_half(largest / 127.0f);
        std::memcpy(out, &d, 2);
        const float stored = half_to_float(d);
        const Floats inverse = splat(stored > 0.0f ? 1.0f / stored : 0.0f);
        for (size_t j = 0; j < 32; j += 16) {
            const Floats cut = max(min(mul(load(block + j), inverse), splat(127.0f)), splat(-127.0f));
            store_int8(reinterpret_cast<int8_t*>(out + 2 + j), round_to_int(cut));
        }
    }
}

// Into floats, padded with zeros to whole vectors.
void load_head(CacheType type, const uint8_t* x, size_t head_size, float* out) {
    if (type == CacheType::kHalf) {
        size_t i = 0;
        for (; i + 16 <= head_size; i += 16) store(out + i, load_half(reinterpret_cast<const uint16_t*>(x + 2 * i)));
        if (i < head_size) {
            uint16_t halves[16] = {};
            std::memcpy(halves, x + 2 * i, 2 * (head_size - i));
            store(out + i, load_half(halves));
        }
        return;
    }
    for (size_t i = 0; i < head_size; i += 32, x += 34) {
        uint16_t d;
        std::memcpy(&d, x, 2);
        const Floats scale = splat(half_to_float(d));
        store(out + i, mul(load_int8(reinterpret_cast<const int8_t*>(x + 2)), scale));
        if (i + 16 < padded(head_size)) {
            store(out + i + 16, mul(load_int8(reinterpret_cast<const int8_t*>(x + 18)), scale));
        }
    }
}

#ifndef STRETTO_HAS_SPLAT_HALF
inline Floats splat_half(const uint8_t* p) { return splat(half_to_float(static_cast<uint16_t>(p[0] | p[1] << 8))); }
#endif

#ifndef STRETTO_HAS_SUMS16
// Lane j of the result is the sum of a[j]'s lanes.
inline Floats sums16(const Floats* a) {
    float sums[16];
    for (int j = 0; j < 16; ++j) sums[j] = reduce_add(a[j]);
    return load(sums);
}
#endif

// Where attention reads K and V from: floats made before, or the cache itself.
enum class Source { kFloats, kHalf, kQ8 };

// Vector t of a head.
template <Source From>
inline Floats piece(const uint8_t* head, size_t t) {
    if constexpr (From == Source::kFloats) return load(reinterpret_cast<const float*>(head) + 16 * t);
    if constexpr (From == Source::kHalf) return load_half(reinterpret_cast<const uint16_t*>(head) + 16 * t);
    const uint8_t* block = head + t / 2 * 34;
    return mul(load_int8(reinterpret_cast<const int8_t*>(block + 2 + t % 2 * 16)), splat_half(block));
}

// One chunk for one row and H heads of T vectors (0: `vectors` says how many): scores, weights, and their share
// of the result. `keys` and `values` are where the chunk's heads are.
template <int H, int T, Source From>
void attend_chunk(const uint8_t* const* keys, const uint8_t* const* values, size_t vectors, const float* queries,
                  float scale, size_t lo, size_t hi, float* max_of, float* sum_of, float* out) {
    if constexpr (T > 0) vectors = T;
    const size_t size = 16 * vectors;
    alignas(64) float weights[H][kChunk];
    for (size_t half = 0; half < kChunk; half += 16) {
        Floats dots[H][16];
        for (size_t j = 0; j < 16; ++j) {
            const uint8_t* key = keys[half + j];
            Floats sums[H];
            UNROLL for (int h = 0; h < H; ++h) sums[h] = splat(0.0f);
            UNROLL for (size_t t = 0; t < vectors; ++t) {
                const Floats k = piece<From>(key, t);
                UNROLL for (int h = 0; h < H; ++h) sums[h] = fma(k, load(queries + h * size + 16 * t), sums[h]);
            }
            UNROLL for (int h = 0; h < H; ++h) dots[h][j] = sums[h];
        }
        UNROLL for (int h = 0; h < H; ++h) store(weights[h] + half, mul(sums16(dots[h]), splat(scale)));
    }
    for (int h = 0; h < H; ++h) {
        float* w = weights[h];
        for (size_t j = 0; j < lo; ++j) w[j] = -INFINITY;
        for (size_t j = hi; j < kChunk; ++j) w[j] = -INFINITY;
        const float before = max_of[h];
        const float largest = reduce_max(max(load(w), load(w + 16)));
        if (largest > before) {  // what is there already counts less
            max_of[h] = largest;
            alignas(64) float change[16];
            store(change, exponential(splat(before - largest)));
            const float factor = before == -INFINITY ? 0.0f : change[0];
            sum_of[h] *= factor;
            for (size_t t = 0; t < vectors; ++t) {
                store(out + h * size + 16 * t, mul(load(out + h * size + 16 * t), splat(factor)));
            }
        }
        const Floats top = splat(max_of[h]);
        store(w, exponential(sub(load(w), top)));
        store(w + 16, exponential(sub(load(w + 16), top)));
        for (size_t j = 0; j < lo; ++j) w[j] = 0.0f;
        for (size_t j = hi; j < kChunk; ++j) w[j] = 0.0f;
        sum_of[h] += reduce_add(add(load(w), load(w + 16)));
    }
    constexpr size_t kWide = H * 4 <= 16 ? 4 : 2;  // vectors of all heads that are kept in registers
    for (size_t t = 0; t < vectors; t += kWide) {
        const size_t width = T > 0 && T % kWide == 0 ? kWide : (vectors - t < kWide ? vectors - t : kWide);
        Floats mixed[H][kWide];
        UNROLL for (int h = 0; h < H; ++h) UNROLL for (size_t i = 0; i < kWide; ++i) {
            mixed[h][i] = i < width ? load(out + h * size + 16 * (t + i)) : splat(0.0f);
        }
        for (size_t j = lo; j < hi; ++j) {
            UNROLL for (size_t i = 0; i < kWide; ++i) {
                if (i >= width) break;
                const Floats v = piece<From>(values[j], t + i);
                UNROLL for (int h = 0; h < H; ++h) mixed[h][i] = fma(splat(weights[h][j]), v, mixed[h][i]);
            }
        }
        UNROLL for (int h = 0; h < H; ++h) UNROLL for (size_t i = 0; i < kWide; ++i) {
            if (i < width) store(out + h * size + 16 * (t + i), mixed[h][i]);
        }
    }
}

template <int T, Source From>
void attend_heads(const Attention& a, const uint8_t* const* keys, const uint8_t* const* values, size_t vectors,
                  const float* queries, size_t heads, size_t lo, size_t hi, const Partial& out, size_t at) {
    float* result = out.out + at * 16 * vectors;
    switch (heads) {
        case 1: return attend_chunk<1, T, From>(keys, values, vectors, queries, a.scale, lo, hi, out.max + at, out.sum + at, result);
        case 2: return attend_chunk<2, T, From>(keys, values, vectors, queries, a.scale, lo, hi, out.max + at, out.sum + at, result);
        case 3: return attend_chunk<3, T, From>(keys, values, vectors, queries, a.scale, lo, hi, out.max + at, out.sum + at, result);
        default: return attend_chunk<4, T, From>(keys, values, vectors, queries, a.scale, lo, hi, out.max + at, out.sum + at, result);
    }
}

template <int T, Source From>
void attend_rows(const Attention& a, size_t first, size_t last, const Partial& out) {
    const size_t size = padded(a.head_size), vectors = size / 16;
    float* floats = a.scratch;                       // K and V of a chunk, if they are made into floats
    float* queries = floats + 2 * kChunk * size;     // four heads, padded
    const uint8_t *keys[kChunk], *values[kChunk];
    for (size_t chunk = first / kChunk * kChunk; chunk < last; chunk += kChunk) {
        const size_t m = last - chunk < kChunk ? last - chunk : kChunk;
        for (size_t j = 0; j < kChunk; ++j) {
            // Behind the end the last cell stands in; its weight is made zero.
            const size_t offset = static_cast<size_t>(a.view[chunk + (j < m ? j : m - 1)]) * a.cell_stride;
            keys[j] = a.keys + offset;
            values[j] = a.values + offset;
            if constexpr (From == Source::kFloats) {
                float* key = floats + j * size;
                float* value = floats + (kChunk + j) * size;
                load_head(a.type, keys[j], a.head_size, key);
                load_head(a.type, values[j], a.head_size, value);
                keys[j] = reinterpret_cast<const uint8_t*>(key);
                values[j] = reinterpret_cast<const uint8_t*>(value);
            }
        }
        // The hardware does not foresee where the next chunk is; the view knows.
        const size_t bytes = head_bytes(a.type, a.head_size);
        for (size_t j = chunk + kChunk; j < last && j < chunk + 2 * kChunk; ++j) {
            const size_t offset = static_cast<size_t>(a.view[j]) * a.cell_stride;
            for (size_t line = 0; line < bytes; line += 64) {
                __builtin_prefetch(a.keys + offset + line);
                __builtin_prefetch(a.values + offset + line);
            }
        }
        for (size_t row = 0; row < a.rows; ++row) {
            const size_t begin = static_cast<size_t>(a.begins[row]), end = static_cast<size_t>(a.ends[row]);
            const size_t lo = begin > chunk ? begin - chunk : 0;
            const size_t hi = end > chunk ? (end - chunk < m ? end - chunk : m) : 0;
            if (lo >= hi) continue;
            for (size_t h = 0; h < a.group; h += 4) {
                const size_t heads = a.group - h < 4 ? a.group - h : 4;
                const float* q = a.queries + row * a.query_stride + h * a.head_size;
                if (size != a.head_size) {
                    std::memset(queries, 0, 4 * size * sizeof(float));
                    for (size_t i = 0; i < heads; ++i) {
                        std::memcpy(queries + i * size, q + i * a.head_size, a.head_size * sizeof(float));
                    }
                    q = queries;
                }
                attend_heads<T, From>(a, keys, values, vectors, q, heads, lo, hi, out, row * a.group + h);
            }
        }
    }
}

void attend(const Attention& a, size_t first, size_t last, const Partial& out) {
    const size_t size = padded(a.head_size);
    for (size_t i = 0; i < a.rows * a.group; ++i) {
        out.max[i] = -INFINITY;
        out.sum[i] = 0.0f;
    }
    std::memset(out.out, 0, a.rows * a.group * size * sizeof(float));
    // A single row reads the cache as it is; several share the floats made from it. The numbers are the same.
    if (a.rows == 1 && a.head_size == 64 && a.type == CacheType::kHalf) {
        attend_rows<4, Source::kHalf>(a, first, last, out);
    } else if (a.rows == 1 && a.head_size == 64) {
        attend_rows<4, Source::kQ8>(a, first, last, out);
    } else if (a.rows == 1 && a.head_size == 128 && a.type == CacheType::kHalf) {
        attend_rows<8, Source::kHalf>(a, first, last, out);
    } else if (a.head_size == 64) {
        attend_rows<4, Source::kFloats>(a, first, last, out);
    } else if (a.head_size == 128) {
        attend_rows<8, Source::kFloats>(a, first, last, out);
    } else {
        attend_rows<0, Source::kFloats>(a, first, last, out);
    }
}

void merge(size_t count, size_t head_size, const Partial& total, const Partial& part) {
    const size_t size = padded(head_size);
    for (size_t i = 0; i < count; ++i) {
        if (part.sum[i] == 0.0f) continue;  // nothing was seen there
        float* to = total.out + i * size;
        const float* from = part.out + i * size;
        if (total.sum[i] == 0.0f) {
            total.max[i] = part.max[i];
            total.sum[i] = part.sum[i];
            std::memcpy(to, from, size * sizeof(float));
            continue;
        }
        const float now = total.max[i] > part.max[i] ? total.max[i] : part.max[i];
        alignas(64) float ours[16], theirs[16];
        store(ours, exponential(splat(total.max[i] - now)));
        store(theirs, exponential(splat(part.max[i] - now)));
        for (size_t t = 0; t < size; t += 16) {
            store(to + t, fma(load(from + t), splat(theirs[0]), mul(load(to + t), splat(ours[0]))));
        }
        total.sum[i] = total.sum[i] * ours[0] + part.sum[i] * theirs[0];
        total.max[i] = now;
    }
}

#undef UNROLL

}  // namespace

constexpr Kernels table(const char* name) {
    return {name, quantize, matmul, rms_norm, add_rows, silu, gelu, store_head, load_head, attend, merge};
}

}  // namespace STRETTO_ISA
}  // namespace stretto
