// Writers of Q4_K, Q5_K and Q2_K: 256 numbers in groups, each with a scale and a minimum in a few bits of their own, and half
// floats that these are multiplied with.

#include "quantize/groups.h"
#include "quantize/quantize.h"
#include "weights/formats.h"

namespace stretto {

namespace {

constexpr size_t kSuper = 256;

// A block of 256 numbers in groups of N: eight, or sixteen in two sets.
template <size_t N>
struct Super {
    static constexpr size_t kSets = kSuper / (N * kLanes);

    Groups<N> groups[kSets];
    AffineSums sums[kSets];
    float high, top;          // the largest quant, the largest code
    float scale = 0, min = 0;  // what codes are multiplied with, as half floats express it
    uint16_t half_scale_bits = 0, half_min_bits = 0;
    Lanes scales[kSets], mins[kSets], errors[kSets];  // codes, and the squared error with them

    Affine numbers(size_t set) const { return {Lanes(scale) * scales[set], -(Lanes(min) * mins[set])}; }

    void set_units(float wanted_scale, float wanted_min) {
        half_scale_bits = half_scale(wanted_scale);
        half_min_bits = half_scale(wanted_min);
        scale = half_to_float(half_scale_bits);
        min = half_to_float(half_min_bits);
    }

    Lanes code(Lanes value, float unit) const {
        return nearest(cut(value * inverse(Lanes(unit)), 0.0f, top));
    }

    // The squared error of a set with these codes; its sums are then those of the quants.
    Lanes error_with(size_t set, Lanes s, Lanes m) {
        const Affine a{Lanes(scale) * s, -(Lanes(min) * m)};
        quant_sums(groups[set], inverse(a.scale), a.min, high, &sums[set]);
        return sums[set].error(a);
    }

    void try_codes(size_t set, Lanes s, Lanes m) {
        s = cut(s, 0.0f, top);
        m = cut(m, 0.0f, top);
        const Lanes error = error_with(set, s, m);
        const Mask better = error < errors[set];
        scales[set] = select(better, s, scales[set]);
        mins[set] = select(better, m, mins[set]);
        errors[set] = select(better, error, errors[set]);
    }
};

float largest(Lanes x) {
    float found = x[0];
    for (size_t g = 1; g < kLanes; ++g) found = std::max(found, x[g]);
    return found;
}

double total(Lanes x) {
    double sum = 0.0;
    for (size_t g = 0; g < kLanes; ++g) sum += x[g];
    return sum;
}

template <size_t N>
double total_error(const Super<N>& super) {
    double sum = 0.0;
    for (const Lanes& errors : super.errors) sum += total(errors);
    return sum;
}

// Codes nearest to scales and minima that were found for each group, and then those around them.
template <size_t N>
void choose_codes(Super<N>* super, const Affine* found, int around) {
    for (size_t set = 0; set < Super<N>::kSets; ++set) {
        const Lanes s = super->code(found[set].scale, super->scale), m = super->code(-found[set].min, super->min);
        super->scales[set] = s;
        super->mins[set] = m;
        super->errors[set] = super->error_with(set, s, m);
        const Affine again = super->sums[set].fitted(true);
        super->try_codes(set, super->code(again.scale, super->scale), super->code(-again.min, super->min));
        for (int step = 0; step < around; ++step) {
            const Lanes one(1.0f), s0 = super->scales[set], m0 = super->mins[set];
            super->try_codes(set, s0 + one, m0);
            super->try_codes(set, s0 - one, m0);
            super->try_codes(set, s0 + one, m0 + one);
            super->try_codes(set, s0 - one, m0 - one);
            super->try_codes(set, s0, m0 + one);
            super->try_codes(set, s0, m0 - one);
        }
    }
}

// The best units for the codes and quants there are, by least squares; kept if the error falls.
template <size_t N>
void refit_units(Super<N>* super) {
    const Super<N> before = *super;
    double a = 0, b = 0, c = 0, p = 0, r = 0;
    for (size_t set = 0; set < Super<N>::kSets; ++set) {
        super->error_with(set, super->scales[set], super->mins[set]);
        const AffineSums& sums = super->sums[set];
        const Lanes s = super->scales[set], m = super->mins[set];
        a += total(s * s * sums.qq);
        b -= total(s * m * sums.q);
        c += total(m * m * sums.w);
        p += total(s * sums.xq);
        r -= total(m * sums.x);
    }
    const double determinant = a * c - b * b;
    if (a <= 0) return;
    double scale = p / a, min = super->min;
    if (c > 0 && determinant > 1e-9 * a * c) {
        scale = (c * p - b * r) / determinant;
        min = (a * r - b * p) / determinant;
    }
    if (!(scale > 0) || min < 0) return;
    super->set_units(static_cast<float>(scale), static_cast<float>(min));
    for (size_t set = 0; set < Super<N>::kSets; ++set) {
        super->errors[set] = super->error_with(set, super->scales[set], super->mins[set]);
    }
    if (total_error(*super) >= total_error(before)) *super = before;
}

// Finds scales, minima and quants of a block.
template <size_t N>
void fit_super(const float* x, const float* importance, float high, float top, const Search& search, Emphasis emphasis,
               int around, Super<N>* super, Quants<N>* quants) {
    super->high = high;
    super->top = top;
    constexpr size_t kSets = Super<N>::kSets;
    Affine found[kSets];
    float most_scale = 0.0f, most_min = 0.0f;
    for (size_t set = 0; set < kSets; ++set) {
        const size_t at = set * N * kLanes;
        load_groups(x + at, importance ? importance + at : nullptr, kLanes, emphasis, &super->groups[set]);
        super->sums[set] = fixed_sums(super->groups[set]);
        found[set] = fit_affine(super->groups[set], high, true, search, 1);
        most_scale = std::max(most_scale, largest(found[set].scale));
        most_min = std::max(most_min, largest(-found[set].min));
    }
    super->set_units(most_scale / top, most_min / top);
    choose_codes(super, found, around);
    refit_units(super);
    for (size_t set = 0; set < kSets; ++set) {
        const Affine a = super->numbers(set);
        const Lanes by = inverse(a.scale);
        for (size_t j = 0; j < N; ++j) {
            quants[set].put(j, nearest(cut((super->groups[set].x[j] - a.min) * by, 0.0f, high)));
        }
    }
}

// The twelve bytes with scales and minima of six bits; weights/formats.h says where they are.
void put_scale_mins(Lanes scales, Lanes mins, uint8_t* out) {
    for (size_t g = 0; g < 4; ++g) {
        const auto s = static_cast<unsigned>(scales[g]), m = static_cast<unsigned>(mins[g]);
        const auto s4 = static_cast<unsigned>(scales[g + 4]), m4 = static_cast<unsigned>(mins[g + 4]);
        out[g] = static_cast<uint8_t>(s | (s4 >> 4) << 6);
        out[g + 4] = static_cast<uint8_t>(m | (m4 >> 4) << 6);
        out[g + 8] = static_cast<uint8_t>((s4 & 15) | (m4 & 15) << 4);
    }
}

void put_head(const Super<32>& super, uint8_t* out) {
    store16(out, super.half_scale_bits);
    store16(out + 2, super.half_min_bits);
    put_scale_mins(super.scales[0], super.mins[0], out + 4);
}

}  // namespace

void write_q4_k(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 144) {
        Super<32> super;
        Quants<32> quants;
        fit_super(x, importance ? importance + i * kSuper : nullptr, 15.0f, 63.0f, {14.0f, 0.2f, 11}, Emphasis::kSize, 1, &super,
                  &quants);
        put_head(super, out);
        for (size_t g = 0; g < kLanes; g += 2) {
            for (size_t j = 0; j < 32; ++j) {
                out[16 + g * 16 + j] = static_cast<uint8_t>(quants.q[g][j] | quants.q[g + 1][j] << 4);
            }
        }
    }
}

void write_q5_k(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 176) {
        Super<32> super;
        Quants<32> quants;
        fit_super(x, importance ? importance + i * kSuper : nullptr, 31.0f, 63.0f, {30.2f, 0.2f, 8}, Emphasis::kSize, 1, &super,
                  &quants);
        put_head(super, out);
        std::memset(out + 16, 0, 32);
        for (size_t g = 0; g < kLanes; ++g) {
            for (size_t j = 0; j < 32; ++j) out[16 + j] |= static_cast<uint8_t>((quants.q[g][j] >> 4) << g);
        }
        for (size_t g = 0; g < kLanes; g += 2) {
            for (size_t j = 0; j < 32; ++j) {
                out[48 + g * 16 + j] = static_cast<uint8_t>((quants.q[g][j] & 15) | quants.q[g + 1][j] << 4);
            }
        }
    }
}

void write_q2_k(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 84) {
        Super<16> super;
        Quants<16> quants[2];
        fit_super(x, importance ? importance + i * kSuper : nullptr, 3.0f, 15.0f, {2.4f, 0.12f, 14}, Emphasis::kSize, 2, &super,
                  quants);
        std::memset(out + 16, 0, 64);
        for (size_t group = 0; group < 16; ++group) {
            const size_t set = group / kLanes, g = group % kLanes;
            out[group] = static_cast<uint8_t>(static_cast<unsigned>(super.scales[set][g]) |
                                              static_cast<unsigned>(super.mins[set][g]) << 4);
            uint8_t* to = out + 16 + group / 8 * 32 + group % 2 * 16;
            const size_t shift = group % 8 / 2 * 2;
            for (size_t j = 0; j < 16; ++j) to[j] |= static_cast<uint8_t>(quants[set].q[g][j] << shift);
        }
        store16(out + 80, super.half_scale_bits);
        store16(out + 82, super.half_min_bits);
    }
}

}  // namespace stretto
