// Scales for groups of numbers: those with the least weighted squared error that a search finds.
//
// A candidate scale gives quants, quants give the best scale for them by least squares, and the best of several candidates
// wins. What a format then makes of the scales (half floats, codes of few bits) is fitted again where it is rounded.
#pragma once

#include <cmath>

#include "quantize/lanes.h"

namespace stretto {

// Eight groups of N numbers, with their weights.
template <size_t N>
struct Groups {
    Lanes x[N], w[N];
};

// Scale and minimum: a number is scale × q + min.
struct Affine {
    Lanes scale, min;
};

// Numbers from and to which candidates divide the range of a group.
struct Search {
    float first, step;
    int count;
};

template <size_t N>
Lanes extreme_of(const Groups<N>& groups) {
    Lanes found(0.0f), size(0.0f);
    for (size_t j = 0; j < N; ++j) {
        const Lanes now = magnitude(groups.x[j]);
        const Mask larger = size < now;
        found = select(larger, groups.x[j], found);
        size = select(larger, now, size);
    }
    return found;
}

// -- scale × q, with q of certain levels --

// Levels that are the integers from `low` to `high`.
struct Steps {
    float low, high;

    Lanes operator()(Lanes x) const { return nearest(cut(x, low, high)); }
};

// Sums that give the best scale of quants, and how good it is.
struct SignedSums {
    Lanes xq{0.0f}, qq{0.0f};

    Lanes scale() const { return xq * inverse(qq); }
    Lanes gain() const { return xq * xq * inverse(qq); }  // of the squared error, against zeros
};

template <size_t N, typename Level>
SignedSums signed_sums(const Groups<N>& groups, Lanes by, const Level& level) {
    SignedSums sums;
    for (size_t j = 0; j < N; ++j) {
        const Lanes q = level(groups.x[j] * by), wq = groups.w[j] * q;
        sums.xq = sums.xq + wq * groups.x[j];
        sums.qq = sums.qq + wq * q;
    }
    return sums;
}

// The best scale of each group. Candidates take the number of largest magnitude to minus the numbers of the search: the end
// that has one level more.
template <size_t N, typename Level>
Lanes fit_signed(const Groups<N>& groups, const Level& level, const Search& search, int rounds) {
    const Lanes unit = -inverse(extreme_of(groups));
    Lanes best(0.0f), gain(0.0f);
    for (int k = 0; k < search.count + rounds; ++k) {
        const Lanes by = k < search.count ? unit * Lanes(search.first + search.step * static_cast<float>(k)) : inverse(best);
        const SignedSums sums = signed_sums(groups, by, level);
        const Lanes now = sums.gain();
        const Mask better = gain < now;
        best = select(better, sums.scale(), best);
        gain = select(better, now, gain);
    }
    return best;
}

// The best scale so far of formats that are written with llama.cpp's choice: by quotients, and the first candidate counts
// whatever its gain.
struct BestScale {
    static constexpr float kLeast = 1e-15f;  // groups whose numbers are all smaller, and blocks with such scales, are zeros

    Lanes scale{0.0f}, gain{0.0f};

    void consider(const SignedSums& sums, bool first) {
        const Mask there = sums.qq > Lanes(0.0f), more = sums.xq * sums.xq > gain * sums.qq;
        const Mask better = first ? there : Mask{there.a & more.a, there.b & more.b};
        const Lanes now = sums.xq / select(there, sums.qq, 1.0f);
        scale = select(better, now, scale);
        gain = select(better, now * sums.xq, gain);
    }
};

// The scale of largest magnitude among these and one that was found before; the first of equal ones.
inline float farthest_from_zero(Lanes scales, float found = 0.0f) {
    for (size_t g = 0; g < kLanes; ++g) {
        if (std::fabs(scales[g]) > std::fabs(found)) found = scales[g];
    }
    return found;
}

// The squared error with a given scale.
template <size_t N, typename Level>
Lanes signed_error(const Groups<N>& groups, Lanes scale, const Level& level) {
    const Lanes by = inverse(scale);
    Lanes sum(0.0f);
    for (size_t j = 0; j < N; ++j) {
        const Lanes off = groups.x[j] - scale * level(groups.x[j] * by);
        sum = sum + groups.w[j] * off * off;
    }
    return sum;
}

// -- scale × q + min, with q from 0 to `high` --

struct AffineSums {
    Lanes w{0.0f}, x{0.0f}, xx{0.0f}, q{0.0f}, qq{0.0f}, xq{0.0f};  // weighted; those of q change with a candidate

    // The best scale and minimum of the quants; with `below` no minimum is above zero.
    Affine fitted(bool below) const {
        const Lanes determinant = w * qq - q * q;
        const Lanes by = inverse(select(determinant > Lanes(0.0f), determinant, 0.0f));
        Lanes scale = (w * xq - x * q) * by, min = (qq * x - q * xq) * by;
        if (below) {
            const Mask above = min > Lanes(0.0f);
            scale = select(above, xq * inverse(qq), scale);
            min = select(above, 0.0f, min);
        }
        return {scale, min};
    }
    Lanes error(const Affine& a) const {
        const Lanes two(2.0f);
        return xx + a.scale * (a.scale * qq + two * (a.min * q - xq)) + a.min * (a.min * w - two * x);
    }
};

template <size_t N>
AffineSums fixed_sums(const Groups<N>& groups) {
    AffineSums sums;
    for (size_t j = 0; j < N; ++j) {
        const Lanes wx = groups.w[j] * groups.x[j];
        sums.w = sums.w + groups.w[j];
        sums.x = sums.x + wx;
        sums.xx = sums.xx + wx * groups.x[j];
    }
    return sums;
}

template <size_t N>
void quant_sums(const Groups<N>& groups, Lanes by, Lanes min, float high, AffineSums* sums) {
    Lanes sum_q(0.0f), sum_qq(0.0f), sum_xq(0.0f);  // in registers: `sums` might be part of `groups` for all a compiler knows
    for (size_t j = 0; j < N; ++j) {
        const Lanes q = nearest(cut((groups.x[j] - min) * by, 0.0f, high));
        const Lanes wq = groups.w[j] * q;
        sum_q = sum_q + wq;
        sum_qq = sum_qq + wq * q;
        sum_xq = sum_xq + wq * groups.x[j];
    }
    sums->q = sum_q, sums->qq = sum_qq, sums->xq = sum_xq;
}

// The best scale and minimum of each group; scales are not negative.
template <size_t N>
Affine fit_affine(const Groups<N>& groups, float high, bool below, const Search& search, int rounds) {
    Lanes low = groups.x[0], top = groups.x[0];
    for (size_t j = 1; j < N; ++j) {
        low = least(low, groups.x[j]);
        top = most(top, groups.x[j]);
    }
    if (below) low = least(low, 0.0f);
    const Lanes unit = inverse(top - low);
    AffineSums sums = fixed_sums(groups);
    Affine best{(top - low) * Lanes(1.0f / high), low};
    quant_sums(groups, inverse(best.scale), low, high, &sums);
    Lanes error = sums.error(best);
    const auto keep_better = [&] {
        const Affine now = sums.fitted(below);
        const Lanes off = sums.error(now);
        const Mask better{(off < error).a & (now.scale > Lanes(0.0f)).a, (off < error).b & (now.scale > Lanes(0.0f)).b};
        best.scale = select(better, now.scale, best.scale);
        best.min = select(better, now.min, best.min);
        error = select(better, off, error);
    };
    for (int k = 0; k < search.count; ++k) {
        quant_sums(groups, unit * Lanes(search.first + search.step * static_cast<float>(k)), low, high, &sums);
        keep_better();
    }
    for (int round = 0; round < rounds; ++round) {
        quant_sums(groups, inverse(best.scale), best.min, high, &sums);
        keep_better();
    }
    return best;
}

}  // namespace stretto
