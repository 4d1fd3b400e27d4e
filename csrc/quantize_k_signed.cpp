// Writers of Q6_K and Q3_K: 256 numbers in sixteen groups.

#include "formats.h"
#include "quantize.h"
#include "quantize_coded.h"

namespace stretto {

namespace {

constexpr size_t kSuper = 256, kGroup = 16, kSets = 2;

void quants_of(const Coded<kGroup>& block, const Steps& steps, Quants<kGroup>* out) {
    for (size_t set = 0; set < kSets; ++set) {
        const Lanes by = inverse(block.scales(set));
        for (size_t j = 0; j < kGroup; ++j) out[set].put(j, steps(block.groups[set].x[j] * by) - Lanes(steps.low));
    }
}

}  // namespace

void write_q6_k(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    const CodedKind<Steps> kind{{-32.0f, 31.0f}, 128.0f, {31.1f, 0.2f, 9}, Emphasis::kSquare, 1};
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 210) {
        Coded<kGroup> block;
        fit_coded(kind, x, importance ? importance + i * kSuper : nullptr, &block);
        Quants<kGroup> quants[kSets];
        quants_of(block, kind.level, quants);
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
            out[192 + group] = static_cast<uint8_t>(block.code(group));
        }
        store16(out + 208, block.unit_bits);
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
