// Writers of Q6_K and Q3_K: 256 numbers in sixteen groups.
//
// Q6_K has the bytes that llama.cpp writes without fused multiply-adds, but for groups that are zeros. A search with smaller
// errors of the weights was tried: its KL divergence was no smaller on small models.

#include <cmath>
#include <limits>

#include "quantize/coded.h"
#include "quantize/quantize.h"
#include "weights/formats.h"

namespace stretto {

namespace {

constexpr size_t kSuper = 256, kGroup = 16, kSets = 2;

void quants_of(const Coded<kGroup>& block, const Steps& steps, Quants<kGroup>* out) {
    for (size_t set = 0; set < kSets; ++set) {
        const Lanes by = inverse(block.scales(set));
        for (size_t j = 0; j < kGroup; ++j) out[set].put(j, steps(block.groups[set].x[j] * by) - Lanes(steps.low));
    }
}

// -- Q6_K --

constexpr Steps kQ6Steps{-32.0f, 31.0f};
constexpr int kQ6Tries = 9;  // candidates take the extreme number to −32 ± a tenth of this

// The best scale of each group among 19 candidates.
Lanes fit_q6(const Groups<kGroup>& groups) {
    Lanes extreme = extreme_of(groups);
    const Mask is_small = magnitude(extreme) < Lanes(BestScale::kLeast);
    extreme = select(is_small, 1.0f, extreme);
    BestScale best;
    const auto consider = [&](int step) {
        const Lanes by = Lanes(-(32.0f + 0.1f * static_cast<float>(step))) / extreme;
        SignedSums sums;
        for (size_t j = 0; j < kGroup; ++j) {  // not `signed_sums`: its products are rounded in another order
            const Lanes q = kQ6Steps(groups.x[j] * by);
            sums.xq = sums.xq + groups.w[j] * groups.x[j] * q;
            sums.qq = sums.qq + groups.w[j] * q * q;
        }
        best.consider(sums, step == 0);
    };
    consider(0);
    for (int step = -kQ6Tries; step <= kQ6Tries; ++step) {
        if (step != 0) consider(step);
    }
    return select(is_small, 0.0f, best.scale);
}

// Codes of the sixteen scales and the quants of their groups; returns the bits of what codes are multiplied with.
uint16_t fit_q6_block(const float* x, const float* importance, Lanes* codes, Quants<kGroup>* quants) {
    Groups<kGroup> groups[kSets];
    Lanes scales[kSets];
    float most = 0.0f;
    for (size_t set = 0; set < kSets; ++set) {
        const size_t at = set * kGroup * kLanes;
        const Emphasis emphasis = importance ? Emphasis::kNone : Emphasis::kSquare;
        load_groups(x + at, importance ? importance + at : nullptr, kLanes, emphasis, &groups[set]);
        scales[set] = fit_q6(groups[set]);
        most = farthest_from_zero(scales[set], most);
    }
    const bool is_zero = std::fabs(most) < BestScale::kLeast;
    const float by = is_zero ? 0.0f : -128.0f / most;
    const uint16_t bits = is_zero ? uint16_t{0} : half_scale(1.0f / by);
    const Lanes unit(half_to_float(bits));
    for (size_t set = 0; set < kSets; ++set) {
        codes[set] = least(nearest(scales[set] * Lanes(by)), 127.0f);
        const Lanes scale = unit * codes[set];
        const Mask is_none = magnitude(scale) < Lanes(std::numeric_limits<float>::denorm_min());
        const Lanes divisor = select(is_none, std::numeric_limits<float>::max(), scale);
        for (size_t j = 0; j < kGroup; ++j) {
            quants[set].put(j, kQ6Steps(groups[set].x[j] / divisor) - Lanes(kQ6Steps.low));
        }
    }
    return bits;
}

}  // namespace

void write_q6_k(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 210) {
        Lanes codes[kSets];
        Quants<kGroup> quants[kSets];
        const uint16_t unit = fit_q6_block(x, importance ? importance + i * kSuper : nullptr, codes, quants);
        std::memset(out, 0, 192);
        for (size_t group = 0; group < 16; ++group) {
            const size_t set = group / kLanes, g = group % kLanes, half = group / 8, run = group % 8 / 2;
            uint8_t* low = out + half * 64 + run % 2 * 32 + group % 2 * 16;
            uint8_t* high = out + 128 + half * 32 + group % 2 * 16;
            for (size_t j = 0; j < kGroup; ++j) {
                const unsigned q = quants[set].q[g][j];
                low[j] |= static_cast<uint8_t>((q & 15) << (run / 2 * 4));
                high[j] |= static_cast<uint8_t>((q >> 4) << (run * 2));
            }
            out[192 + group] = static_cast<uint8_t>(static_cast<int>(codes[set][g]));
        }
        store16(out + 208, unit);
    }
}

void write_q3_k(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    const CodedKind<Steps> kind{{-4.0f, 3.0f}, 32.0f, {3.1f, 0.15f, 13}, Emphasis::kSquare, 1};
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 110) {
        Coded<kGroup> block;
        fit_coded(kind, x, importance ? importance + i * kSuper : nullptr, &block);
        Quants<kGroup> quants[kSets];
        quants_of(block, kind.level, quants);
        std::memset(out, 0, 108);
        for (size_t group = 0; group < 16; ++group) {
            const size_t set = group / kLanes, g = group % kLanes;
            uint8_t* q = out + 32 + group / 8 * 32 + group % 2 * 16;
            uint8_t* mask = out + group % 2 * 16;
            for (size_t j = 0; j < kGroup; ++j) {
                const unsigned value = quants[set].q[g][j];
                q[j] |= static_cast<uint8_t>((value & 3) << (group % 8 / 2 * 2));
                mask[j] |= static_cast<uint8_t>((value >> 2) << (group / 2));
            }
            const auto code = static_cast<unsigned>(block.code(group) + 32);
            out[96 + group % 8] |= static_cast<uint8_t>((code & 15) << (group / 8 * 4));
            out[104 + group % 4] |= static_cast<uint8_t>((code >> 4) << (group / 4 * 2));
        }
        store16(out + 108, block.unit_bits);
    }
}

}  // namespace stretto
