// Products by `smmla` for 8 columns and more: ARM processors with matrix products of bytes (Graviton 3 and 4, Apple's M2
// and later, most phones since 2021).
//
// Activations of eight columns stand together, the first four of them and then the others: 8 numbers of each of the four,
// then the next 8, so that a register is loaded with 2 columns × 8 numbers. A panel's quants are expanded into
// registers of 2 rows × 8 numbers for all columns. With fewer columns NEON's loops multiply panels as they are packed.

#define STRETTO_ISA i8mm
#include "kernels/neon/i8mm.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/neon/vec_neon.h"

#define UNROLL _Pragma("GCC unroll 16")

namespace stretto {
namespace i8mm {

namespace {

constexpr float kFloatBias = 12582912.0f;  // see impl_matmul.h

#include "kernels/neon/tiles.h"
#include "kernels/neon/tiles_i8mm.h"

constexpr size_t kColumns8 = 8;  // that stand together
constexpr size_t kColumns4 = 4;  // that are multiplied together

template <Layout L>
struct Pairs {
    static constexpr Shape kShape = shape_of(L);
    static constexpr int kGroups = static_cast<int>(kShape.groups);
    static constexpr size_t kUnit = kShape.blocks();
    static constexpr size_t kParts = kShape.min ? 3 : 2;
    static constexpr size_t kBytes = kTileRows * kBlock;
    static constexpr size_t kFloats = kGroups * kParts * kTileRows;  // of a block as Tiles<L> expands them
    static constexpr size_t kExpanded = 32;  // blocks at a time: they stay in the first cache
    struct Expanded {
        alignas(64) int8_t quants[kHalves][kExpanded * kBytes];     // [block][8 numbers][row pair][2][8]
        alignas(64) float scales[kHalves][kExpanded * 2 * kFloats];  // [block][group][part][row pair][r0 r1 r0 r1]
    };

    // Blocks [first, last) of a panel, the first of which begins a unit.
    static void expand(const uint8_t* panel, size_t first, size_t last, Expanded& to) {
        const int8x16_t offset = vdupq_n_s8(static_cast<int8_t>(kShape.bytes() ? 0 : kShape.offset));
        for (size_t block = first; block < last; ++block) {
            const uint8_t* from = panel + block / kUnit * kShape.unit_bytes() + kShape.quants_at(block % kUnit);
            each<4>([&](auto r) ALWAYS_LAMBDA {
                int32x4_t fours[8];  // each four numbers of four rows
                const auto keep = [&](auto quad, int8x16_t q) ALWAYS_LAMBDA {
                    fours[quad] = vreinterpretq_s32_s8(vsubq_s8(q, offset));
                };
                if constexpr (kShape.bits == 8) {
                    each<8>([&](auto quad) ALWAYS_LAMBDA { keep(quad, Tiles<L>::quants(from, r, quad)); });
                } else {
                    Tiles<L>::each_quants(from, r, [&](auto quad, uint8x16_t q) ALWAYS_LAMBDA {
                        keep(quad, vreinterpretq_s8_u8(q));
                    });
                }
                each<4>([&](auto eight) ALWAYS_LAMBDA {
                    int8_t* out = to.quants[r / 2] + (block - first) * kBytes + eight * 64 + r % 2 * 32;
                    vst1q_s8(out, vreinterpretq_s8_s32(vzip1q_s32(fours[2 * eight], fours[2 * eight + 1])));
                    vst1q_s8(out + 16, vreinterpretq_s8_s32(vzip2q_s32(fours[2 * eight], fours[2 * eight + 1])));
                });
            });
        }
        for (size_t half = 0; half < kHalves; ++half) {
            float once[kExpanded * kFloats];
            Tiles<L>::expand_scales(panel, static_cast<int>(half), first, last, once);
            float* out = to.scales[half];
            for (size_t i = 0; i < (last - first) * kFloats; i += 4, out += 8) {
                const float64x2_t pairs = vreinterpretq_f64_f32(vld1q_f32(once + i));
                vst1q_f32(out, vreinterpretq_f32_f64(vzip1q_f64(pairs, pairs)));
                vst1q_f32(out + 4, vreinterpretq_f32_f64(vzip2q_f64(pairs, pairs)));
            }
        }
    }

    // Half an expanded panel × 4 columns, of which `columns` are wanted.
    static void tile(const int8_t* w, const float* s, size_t blocks, const Inputs& a, bool more, float* out, size_t stride,
                     size_t columns, size_t rows) {
        float whole[kColumns4][kTileRows] = {};
        if (rows > kTileRows) rows = kTileRows;
        for (size_t c = 0; more && c < columns; ++c) std::memcpy(whole[c], out + c * stride, rows * sizeof(float));
        alignas(16) float totals[kColumns4 * kTileRows];  // [column pair][row pair][2][2]
        each<4>([&](auto i) ALWAYS_LAMBDA {
            constexpr int c = i / 2 * 2, r = i % 2 * 4;
            const float64x2_t x = vreinterpretq_f64_f32(vld1q_f32(whole[c] + r));
            const float64x2_t y = vreinterpretq_f64_f32(vld1q_f32(whole[c + 1] + r));
            vst1q_f32(totals + 8 * i, vreinterpretq_f32_f64(vzip1q_f64(x, y)));
            vst1q_f32(totals + 8 * i + 4, vreinterpretq_f32_f64(vzip2q_f64(x, y)));
        });
        paired_blocks<kShape.min, kGroups>(w, s, a.q, a.scale, a.scaled, a.sums, blocks, totals);
        each<4>([&](auto i) ALWAYS_LAMBDA {
            constexpr int c = i / 2 * 2, r = i % 2 * 4;
            const float64x2_t x = vreinterpretq_f64_f32(vld1q_f32(totals + 8 * i));
            const float64x2_t y = vreinterpretq_f64_f32(vld1q_f32(totals + 8 * i + 4));
            vst1q_f32(whole[c] + r, vreinterpretq_f32_f64(vzip1q_f64(x, y)));
            vst1q_f32(whole[c + 1] + r, vreinterpretq_f32_f64(vzip2q_f64(x, y)));
        });
        for (size_t c = 0; c < columns; ++c) std::memcpy(out + c * stride, whole[c], rows * sizeof(float));
    }

    static void multiply(const Matrix& w, const Quantized& a, size_t n, size_t begin, size_t end, float* out, size_t stride) {
        Expanded expanded;
        const size_t blocks = w.columns / kBlock;
        for (size_t panel = begin; panel < end; ++panel) {
            const size_t rows = w.rows - panel * kPanelRows;
            for (size_t first = 0; first < blocks; first += kExpanded) {
                const size_t last = first + kExpanded < blocks ? first + kExpanded : blocks;
                expand(w.data + panel * w.panel_bytes, first, last, expanded);
                for (size_t c = 0; c < n; c += kColumns4) {
                    const Inputs in(a, c, w.columns, first);
                    float* to = out + c * stride + panel * kPanelRows;
                    for (size_t half = 0; half < kHalves && half * kTileRows < rows; ++half) {
                        tile(expanded.quants[half], expanded.scales[half], last - first, in, first > 0,
                             to + half * kTileRows, stride, n - c < kColumns4 ? n - c : kColumns4, rows - half * kTileRows);
                    }
                }
            }
        }
    }
};

// Calls f with the layout as a constant; false if it is one of floats.
template <typename F>
bool with_layout(Layout layout, F f) {
    switch (layout) {
        case Layout::kNibbles: return f(std::integral_constant<Layout, Layout::kNibbles>{}), true;
        case Layout::kNibblesMin: return f(std::integral_constant<Layout, Layout::kNibblesMin>{}), true;
        case Layout::kNibblesK: return f(std::integral_constant<Layout, Layout::kNibblesK>{}), true;
        case Layout::kFivesK: return f(std::integral_constant<Layout, Layout::kFivesK>{}), true;
        case Layout::kSixesK: return f(std::integral_constant<Layout, Layout::kSixesK>{}), true;
        case Layout::kBytes: return f(std::integral_constant<Layout, Layout::kBytes>{}), true;
        case Layout::kLevels: return f(std::integral_constant<Layout, Layout::kLevels>{}), true;
        case Layout::kBytesF: return f(std::integral_constant<Layout, Layout::kBytesF>{}), true;
        case Layout::kBytesMinF: return f(std::integral_constant<Layout, Layout::kBytesMinF>{}), true;
        case Layout::kBytes16F: return f(std::integral_constant<Layout, Layout::kBytes16F>{}), true;
        case Layout::kBytes16MinF: return f(std::integral_constant<Layout, Layout::kBytes16MinF>{}), true;
        default: return false;
    }
}

}  // namespace

size_t lanes(size_t n) { return n >= kLeastColumns ? kColumns8 : kNeon.lanes(n); }

void quantize(const float* x, size_t columns, size_t row, const Quantized& out) {
    if (out.lanes != kColumns8) return kNeon.quantize(x, columns, row, out);
    size_t at = out.block_of(row, columns);
    const size_t lane = row % kColumns8;
    for (size_t i = 0; i < columns; i += kBlock, at += kColumns8) {
        int8_t block[kBlock];
        kNeon.quantize(x + i, kBlock, 0, {block, out.scale + at, out.scaled + at, out.sums + 2 * at, 1});
        int8_t* to = out.q + (at - lane % kColumns4) * kBlock + lane % kColumns4 * 8;
        for (size_t eight = 0; eight < 4; ++eight) std::memcpy(to + eight * kBlock, block + eight * 8, 8);
    }
}

void matmul(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end, float* out,
            size_t stride) {
    const bool done = a.lanes == kColumns8 && with_layout(w.layout, [&](auto layout) {
        Pairs<layout>::multiply(w, a, n, begin, end, out, stride);
    });
    if (!done) kNeon.matmul(w, a, x, n, begin, end, out, stride);
}

}  // namespace i8mm
}  // namespace stretto
