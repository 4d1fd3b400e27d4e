// Products on AMX's tiles: 16 columns at a time, for matrices of integers with one scale a block.
//
// A tile product takes 16 columns × 16 rows over one block. Tile B is a block of a panel as it is packed, four
// columns of 16 rows in each of its rows; A the activations of 16 columns, which stand together; C gets one
// column's sums in each of its rows, which is what a vector holds in the other kernels. Scales are applied by
// AVX-512's operations in AVX-512's order, so the results are the same bits, and a set may use both.
//
// While tiles are in use, only one of the processor's two units for wide floats works. So little is left to it:
// sums become floats by an integer addition (see kFloatBias in impl_matmul.h), and tile operations run up to
// three blocks ahead of the scaling, also from one group of columns to the next, because each of them takes long.

#define STRETTO_ISA amx
#include "kernels/x86/amx.h"

#include <cstring>
#include <type_traits>

#include "kernels/x86/vec_avx512.h"

#define UNROLL _Pragma("GCC unroll 16")

namespace stretto {
namespace amx {

namespace {

constexpr size_t kUnpacked = 32;  // blocks of a panel that are unpacked at a time, with many columns
constexpr size_t kUnpackedFew = 16;  // and with few
constexpr float kFloatBias = 12582912.0f;

// Some blocks of a panel: signed bytes, scales and minima as floats.
template <Layout L>
struct alignas(64) Panel {
    static constexpr Shape kShape = shape_of(L);

    int8_t q[kUnpacked][kPanelRows * kBlock];
    float scale[kUnpacked][kPanelRows];
    float bias[kUnpacked][kPanelRows];  // −kFloatBias × scale
    float min[kShape.min ? kUnpacked : 1][kPanelRows];

    // Sixteen scales; where they are coded, they are multiplied with the half floats at `times`.
    static Floats load_scales(const uint8_t* p, [[maybe_unused]] const uint8_t* times) {
        const auto* halves = reinterpret_cast<const uint16_t*>(kShape.scales == Scales::kCoded ? times : p);
        if constexpr (kShape.scales == Scales::kCoded) {
            return mul(load_int8(reinterpret_cast<const int8_t*>(p)), load_half(halves));
        }
        if constexpr (kShape.scales == Scales::kHalf) return load_half(halves);
        if constexpr (kShape.scales == Scales::kShort) return load_bf16(reinterpret_cast<const uint16_t*>(p));
        return load(reinterpret_cast<const float*>(p));
    }

    // `blocks` from the beginning of a unit on.
    void unpack(const uint8_t* from, size_t blocks) {
        const Bytes offset = _mm512_set1_epi8(static_cast<char>(kShape.offset));
        for (size_t b = 0; b < blocks; ++b) {
            const uint8_t* unit = from + b / kShape.blocks() * kShape.unit_bytes();
            const size_t in_unit = b % kShape.blocks();
            const Floats d = load_scales(unit + kShape.scale_at(in_unit, 0), unit);
            store(scale[b], d);
            store(bias[b], mul(d, splat(-kFloatBias)));
            if constexpr (kShape.min) {
                store(min[b], load_scales(unit + kShape.min_at(in_unit, 0), unit + 2 * kPanelRows));
            }
            const uint8_t* quants = unit + kShape.quants_at(in_unit);
            auto put = [&](int i, Bytes x) { _mm512_store_si512(q[b] + 64 * i, _mm512_sub_epi8(x, offset)); };
            if constexpr (kShape.bits == 8) {
                UNROLL for (int i = 0; i < 8; ++i) put(i, load_bytes(quants + 64 * i));
            } else {
                [[maybe_unused]] Bytes fifth = offset;
                if constexpr (kShape.bits == 5) fifth = load_bytes(quants + 256);
                UNROLL for (int i = 0; i < 4; ++i) {
                    const Bytes both = load_bytes(quants + 64 * i);
                    Bytes low = low_half(both), high = high_half(both);
                    if constexpr (kShape.bits == 5) {
                        low = with_bits(low, fifth, i, 1);
                        high = with_bits(high, fifth, i + 4, 1);
                    }
                    if constexpr (kShape.levels) {
                        low = levels(low);
                        high = levels(high);
                    }
                    put(i, low);
                    put(i + 4, high);
                }
            }
        }
    }
};

// Tiles 0 and 1 are for sums, 2 and 3 for activations, 4 and 5 for weights; units take them in turn. Their numbers
// are part of the instructions, so they stand one by one where they are used.
struct alignas(64) Shapes {  // as the processor reads it
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 32, 32, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 8, 8};
};
static_assert(sizeof(Shapes) == 64, "the processor reads 64 bytes");
const Shapes kShapes;

// The units of a strip, one after the other: block after block, then the same blocks of the next 16 columns.
// Loading, multiplying and storing each go through all of them, at their own pace.
class Units {
public:
    Units(const int8_t* activations, const int8_t* weights, size_t blocks, size_t gap, size_t count)
        : activations_(activations), weights_(weights), blocks_(blocks), gap_(gap), count_(count) {}

    void load() {
        if (loaded_ == count_) return;
        const int8_t* weights = weights_ + block_ * kPanelRows * kBlock;
        if (loaded_++ % 2) {
            _tile_loadd(3, activations_, kBlock);
            _tile_loadd(5, weights, 64);
        } else {
            _tile_loadd(2, activations_, kBlock);
            _tile_loadd(4, weights, 64);
        }
        activations_ += kTileColumns * kBlock;
        if (++block_ == blocks_) {
            block_ = 0;
            activations_ += gap_ * kTileColumns * kBlock;
        }
    }
    void multiply() {
        if (multiplied_ == count_) return;
        if (multiplied_++ % 2) {
            _tile_zero(1);
            _tile_dpbssd(1, 3, 5);
        } else {
            _tile_zero(0);
            _tile_dpbssd(0, 2, 4);
        }
    }
    void store() {
        if (stored_ == count_) return;
        if (stored_++ % 2) {
            _tile_stored(1, sums_[1], 64);
        } else {
            _tile_stored(0, sums_[0], 64);
        }
    }
    const int32_t* sums(size_t unit) const { return sums_[unit % 2]; }

private:
    alignas(64) int32_t sums_[2][kTileColumns * kPanelRows];
    const int8_t* activations_;
    const int8_t* weights_;
    size_t blocks_, gap_, count_, block_ = 0, loaded_ = 0, multiplied_ = 0, stored_ = 0;
};

// Where a strip reads and writes: some blocks of a panel × `tiles` times 16 columns.
struct Strip {
    const int8_t* q;
    const float* scale;
    const float* scaled;
    size_t blocks, gap;      // blocks from the last one of 16 columns to the first one of the next
    size_t tiles;
    bool more;               // the sums go on from what is in `out`
    const uint8_t* ahead;    // from where on as many blocks are asked for; or null
    float* out;
    size_t stride;
};

// C of each 16 columns are wanted.
template <Layout L, size_t C>
void multiply(const Panel<L>& panel, Strip s) {
    Units units(s.q, panel.q[0], s.blocks, s.gap, s.tiles * s.blocks);
    units.load();
    units.load();
    units.multiply();
    units.store();
    units.multiply();
    units.load();
    const Ints start = splat_int(kSumStart);
    size_t unit = 0;
    for (size_t t = 0; t < s.tiles; ++t, s.out += kTileColumns * s.stride) {
        Floats total[C];
        UNROLL for (size_t c = 0; c < C; ++c) total[c] = s.more ? load(s.out + c * s.stride) : splat(0.0f);
        // Where the next columns go is far away, and will be wanted all at once.
        for (size_t c = 0; t + 1 < s.tiles && c < C; ++c) __builtin_prefetch(s.out + (kTileColumns + c) * s.stride, 1);
        for (size_t b = 0; b < s.blocks; ++b, ++unit, s.scale += kTileColumns, s.scaled += kTileColumns) {
            units.store();
            units.multiply();
            units.load();
            if (s.ahead) {
                constexpr size_t kBytes = Panel<L>::kShape.unit_bytes() / Panel<L>::kShape.blocks();
                UNROLL for (size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(s.ahead + b * kBytes + i);
            }
            const int32_t* sums = units.sums(unit);
            const Floats d = load(panel.scale[b]), bias = load(panel.bias[b]);
            UNROLL for (size_t c = 0; c < C; ++c) {
                const Ints sum = _mm512_add_epi32(start, _mm512_load_si512(sums + c * kPanelRows));
                total[c] = fma(scaled_sum(sum, d, bias), splat(s.scale[c]), total[c]);
                if constexpr (Panel<L>::kShape.min) total[c] = fma(load(panel.min[b]), splat(s.scaled[c]), total[c]);
            }
        }
        UNROLL for (size_t c = 0; c < C; ++c) store(s.out + c * s.stride, total[c]);
        s.scale += s.gap * kTileColumns;
        s.scaled += s.gap * kTileColumns;
        s.ahead = nullptr;
    }
}

// The same for one tile of which not all columns or rows are wanted: by way of a place that has room for all.
template <Layout L>
void multiply_some(const Panel<L>& panel, Strip s, size_t columns, size_t rows) {
    alignas(64) float whole[kTileColumns][kPanelRows] = {};
    float* out = s.out;
    const size_t stride = s.stride;
    for (size_t c = 0; s.more && c < columns; ++c) std::memcpy(whole[c], out + c * stride, rows * sizeof(float));
    s.out = whole[0];
    s.stride = kPanelRows;
    s.tiles = 1;
    if (columns > kTileColumns / 2) {
        multiply<L, kTileColumns>(panel, s);
    } else {
        multiply<L, kTileColumns / 2>(panel, s);
    }
    for (size_t c = 0; c < columns; ++c) std::memcpy(out + c * stride, whole[c], rows * sizeof(float));
}

// All columns.
template <Layout L>
void multiply_all(const Panel<L>& panel, Strip s, size_t n, size_t rows) {
    size_t column = 0;
    auto skip = [&](size_t tiles) {
        const size_t blocks = tiles * (s.blocks + s.gap) * kTileColumns;
        s.q += blocks * kBlock;
        s.scale += blocks;
        s.scaled += blocks;
        s.out += tiles * kTileColumns * s.stride;
        s.ahead = nullptr;
        column += tiles * kTileColumns;
    };
    if (rows == kPanelRows && n >= kTileColumns) {
        s.tiles = n / kTileColumns;
        multiply<L, kTileColumns>(panel, s);
        skip(s.tiles);
    }
    while (column < n) {
        multiply_some<L>(panel, s, n - column < kTileColumns ? n - column : kTileColumns, rows);
        skip(1);
    }
}

// A part of a panel is unpacked for all columns. With many of them, all panels have their turn before the next
// part, so that the activations stay in the cache; with few, the matrix is read from end to end.
template <Layout L>
void product(const Matrix& w, const Quantized& a, size_t n, size_t begin, size_t end, float* out, size_t stride) {
    Panel<L> unpacked;
    const size_t blocks = w.columns / kBlock;
    const bool few = n <= 2 * kTileColumns;
    const size_t step = few ? kUnpackedFew : kUnpacked;  // whole units
    auto bytes_of = [](size_t some) { return some / Panel<L>::kShape.blocks() * Panel<L>::kShape.unit_bytes(); };
    auto part = [&](size_t panel, size_t first) {
        const size_t count = blocks - first < step ? blocks - first : step;
        const uint8_t* from = w.data + panel * w.panel_bytes + bytes_of(first);
        unpacked.unpack(from, count);
        asm volatile("" ::: "memory");  // the compiler does not see what tiles are loaded from
        const size_t at = first * kTileColumns, rows = w.rows - panel * kPanelRows;
        const Strip strip{a.q + at * kBlock, a.scale + at, a.scaled + at, count, blocks - count, 0, first > 0,
                          few ? from + bytes_of(count) : nullptr, out + panel * kPanelRows, stride};
        multiply_all<L>(unpacked, strip, n, rows < kPanelRows ? rows : kPanelRows);
    };
    if (few) {
        for (size_t panel = begin; panel < end; ++panel) {
            for (size_t first = 0; first < blocks; first += step) part(panel, first);
        }
    } else {
        for (size_t first = 0; first < blocks; first += step) {
            for (size_t panel = begin; panel < end; ++panel) part(panel, first);
        }
    }
}

// Calls f with the layout as a constant; false if tiles are no quicker for it than vectors. They are not where
// blocks have two scales: a product over 16 columns takes a tile as long as one over 64.
template <typename F>
bool with_tiles(Layout layout, F f) {
    switch (layout) {
        case Layout::kNibbles: return f(std::integral_constant<Layout, Layout::kNibbles>{}), true;
        case Layout::kNibblesMin: return f(std::integral_constant<Layout, Layout::kNibblesMin>{}), true;
        case Layout::kNibblesK: return f(std::integral_constant<Layout, Layout::kNibblesK>{}), true;
        case Layout::kFivesK: return f(std::integral_constant<Layout, Layout::kFivesK>{}), true;
        case Layout::kBytes: return f(std::integral_constant<Layout, Layout::kBytes>{}), true;
        case Layout::kLevels: return f(std::integral_constant<Layout, Layout::kLevels>{}), true;
        case Layout::kBytesF: return f(std::integral_constant<Layout, Layout::kBytesF>{}), true;
        case Layout::kBytesMinF: return f(std::integral_constant<Layout, Layout::kBytesMinF>{}), true;
        default: return false;
    }
}

}  // namespace

size_t lanes(size_t n) { return n >= kLeastColumns ? kTileColumns : 1; }

void matmul(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end, float* out,
            size_t stride) {
    const bool done = a.lanes == kTileColumns && with_tiles(w.layout, [&](auto layout) {
        _tile_loadconfig(&kShapes);
        product<layout>(w, a, n, begin, end, out, stride);
        _tile_release();  // a thread without tiles is quicker to switch, and its core may sleep
    });
    if (!done) kAvx512.matmul(w, a, x, n, begin, end, out, stride);
}

}  // namespace amx
}  // namespace stretto
