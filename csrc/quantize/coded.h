// Blocks of 256 numbers in groups of N, each with a scale of a few bits, and a half float that these are multiplied with.
#pragma once

#include "quantize/groups.h"

namespace stretto {

// A kind of block: levels of quants, codes of scales from −codes to codes − 1.
template <typename Level>
struct CodedKind {
    Level level;
    float codes;
    Search search;
    Emphasis emphasis;
    int around;  // codes that are tried around the nearest one, in each direction
};

template <size_t N>
struct Coded {
    static constexpr size_t kNumbers = 256, kSets = kNumbers / (N * kLanes);

    Groups<N> groups[kSets];
    uint16_t unit_bits = 0;
    float unit = 0.0f;  // what codes are multiplied with, as a half float expresses it
    Lanes codes[kSets], errors[kSets];

    void set_unit(float wanted) {
        unit_bits = half_scale(wanted);
        unit = half_to_float(unit_bits);
    }
    Lanes scales(size_t set) const { return Lanes(unit) * codes[set]; }
    int code(size_t group) const { return static_cast<int>(codes[group / kLanes][group % kLanes]); }
};

inline double total(Lanes x) {
    double sum = 0.0;
    for (size_t g = 0; g < kLanes; ++g) sum += x[g];
    return sum;
}

// Codes of the groups' scales, each the best of those around the nearest.
template <size_t N, typename Level>
void choose_codes(const CodedKind<Level>& kind, const Lanes* scales, Coded<N>* block) {
    const Lanes by = inverse(Lanes(block->unit));
    for (size_t set = 0; set < Coded<N>::kSets; ++set) {
        const Lanes middle = nearest(cut(scales[set] * by, -kind.codes, kind.codes - 1));
        for (int step = -kind.around; step <= kind.around; ++step) {
            const Lanes code = cut(middle + Lanes(static_cast<float>(step)), -kind.codes, kind.codes - 1);
            const Lanes error = signed_error(block->groups[set], Lanes(block->unit) * code, kind.level);
            const Mask better = error < block->errors[set];
            const bool first = step == -kind.around;
            block->codes[set] = first ? code : select(better, code, block->codes[set]);
            block->errors[set] = first ? error : select(better, error, block->errors[set]);
        }
    }
}

// The best unit for the codes and quants there are, by least squares; kept if the error falls.
template <size_t N, typename Level>
void refit_unit(const CodedKind<Level>& kind, Coded<N>* block) {
    double xq = 0.0, qq = 0.0, before = 0.0, after = 0.0;
    for (size_t set = 0; set < Coded<N>::kSets; ++set) {
        const SignedSums sums = signed_sums(block->groups[set], inverse(block->scales(set)), kind.level);
        xq += total(block->codes[set] * sums.xq);
        qq += total(block->codes[set] * block->codes[set] * sums.qq);
        before += total(block->errors[set]);
    }
    if (qq <= 0.0) return;
    const float old = block->unit;
    block->set_unit(static_cast<float>(xq / qq));
    for (size_t set = 0; set < Coded<N>::kSets; ++set) {
        after += total(signed_error(block->groups[set], block->scales(set), kind.level));
    }
    if (after >= before) block->set_unit(old);
}

template <size_t N, typename Level>
void fit_coded(const CodedKind<Level>& kind, const float* x, const float* importance, Coded<N>* block) {
    constexpr size_t kSets = Coded<N>::kSets;
    Lanes scales[kSets];
    float extreme = 0.0f;
    for (size_t set = 0; set < kSets; ++set) {
        const size_t at = set * N * kLanes;
        load_groups(x + at, importance ? importance + at : nullptr, kLanes, kind.emphasis, &block->groups[set]);
        scales[set] = fit_signed(block->groups[set], kind.level, kind.search, 1);
        extreme = farthest_from_zero(scales[set], extreme);
    }
    block->set_unit(-extreme / kind.codes);
    choose_codes(kind, scales, block);
    refit_unit(kind, block);
}

}  // namespace stretto
