// Writers of formats whose levels are no even steps: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.
//
// IQ4_NL and IQ4_XS have the bytes that llama.cpp writes without fused multiply-adds. Searches with smaller errors of the
// weights were tried: on small models their KL divergence is no smaller.

#include <algorithm>
#include <cmath>
#include <limits>

#include "quantize/groups.h"
#include "quantize/quantize.h"
#include "weights/blocks.h"
#include "weights/formats.h"

namespace stretto {

namespace {

constexpr size_t kSuper = 256, kHalf = kBlock / 2;

// Sixteen levels. All boundaries between them are multiples of a half, so a number's half-integer below says which is nearest.
struct Table {
    static constexpr int kZero = 256;

    float value[2 * kZero];
    uint8_t index[2 * kZero];

    template <typename Value>
    explicit Table(Value level) {
        for (int i = 0; i < 2 * kZero; ++i) {
            const float x = static_cast<float>(i - kZero) / 2 + 0.25f;
            index[i] = 0;
            for (int k = 1; k < 16; ++k) {
                if (std::fabs(x - level(k)) < std::fabs(x - level(index[i]))) index[i] = static_cast<uint8_t>(k);
            }
            value[i] = level(index[i]);
        }
    }
};

struct TableLevels {
    const Table& table;

    static constexpr float kFixed = 0x1p22f;  // numbers that are so near to a boundary that it matters are multiples of 1 / kFixed
    static constexpr int kHalves = 21;

    static float cut_one(float x) { return std::min(127.5f, std::max(-127.5f, x)); }  // no number is the least
    static int place(float x) { return (static_cast<int>(x * kFixed) >> kHalves) + Table::kZero; }
    uint8_t index(float x) const { return table.index[place(cut_one(x))]; }
    Lanes operator()(Lanes x) const {
        const Lanes inside = cut(x, -127.5f, 127.5f) * Lanes(kFixed);
        const Int4 a = __builtin_convertvector(inside.a, Int4) >> kHalves, b = __builtin_convertvector(inside.b, Int4) >> kHalves;
        Lanes out;
        for (size_t g = 0; g < 4; ++g) {
            out.a[g] = table.value[a[g] + Table::kZero];
            out.b[g] = table.value[b[g] + Table::kZero];
        }
        return out;
    }
};

TableLevels iq4_levels() {
    static const Table table([](int k) { return static_cast<float>(kIq4Levels[k]); });
    return {table};
}

// Twice the values of floats of four bits.
TableLevels e2m1_levels() {
    static const Table table([](int k) { return static_cast<float>(static_cast<int>(kE2m1Bytes[k]) - 128); });
    return {table};
}

// Finite for the smallest scales too, by which a zero has to stay zero.
float inverse_of(float scale) {
    return std::min(1.0f / scale, std::numeric_limits<float>::max());
}

// The bytes of 32 numbers divided by a scale.
void put_levels(const float* x, float scale, const TableLevels& levels, uint8_t* out) {
    const float by = scale == 0.0f ? 0.0f : inverse_of(scale);
    for (size_t j = 0; j < kHalf; ++j) {
        out[j] = static_cast<uint8_t>(levels.index(x[j] * by) | levels.index(x[j + kHalf] * by) << 4);
    }
}

// The squared error of numbers with a scale.
template <size_t N>
float error_of(const float* x, const float* importance, float scale, const TableLevels& levels) {
    float sum = 0.0f;
    for (size_t j = 0; j < N; ++j) {
        const float off = x[j] - scale * levels.table.value[TableLevels::place(TableLevels::cut_one(x[j] / scale))];
        sum += (importance ? importance[j] : 1.0f) * off * off;
    }
    return sum;
}

float extreme(const float* x, size_t n) {
    float found = 0.0f;
    for (size_t j = 0; j < n; ++j) found = std::max(found, std::fabs(x[j]));
    return found;
}

// -- scales of IQ4 blocks --

constexpr int kIq4Tries = 7;  // candidates take the extreme number to the lowest level ± this

float mean_square(const float* x, size_t n) {
    float sum = 0.0f;
    for (size_t j = 0; j < n; ++j) {
        const float bounded = std::min(kMostValue, std::max(-kMostValue, x[j]));
        sum += bounded * bounded;
    }
    return sum / static_cast<float>(n);
}

Lanes mean_squares(const Groups<kBlock>& groups) {
    Lanes sum(0.0f);
    for (const Lanes& x : groups.x) sum = sum + x * x;
    return sum * Lanes(1.0f / kBlock);
}

// Weights of numbers: their squares, or the columns' importance by the root of square and twice the mean square.
void weigh_iq4(bool has_importance, Lanes mean, Groups<kBlock>* groups) {
    for (size_t j = 0; j < kBlock; ++j) {
        const Lanes square = groups->x[j] * groups->x[j];
        groups->w[j] = has_importance ? groups->w[j] * root(mean + mean + square) : square;
    }
}

// The best scale of each group among those of 16 candidates: one takes the extreme number to the upper end, the others take
// it to numbers around the lower one.
Lanes fit_iq4(const Groups<kBlock>& groups, const TableLevels& levels) {
    const float lowest = levels.table.value[0];
    Lanes extreme = extreme_of(groups);
    const Mask is_small = magnitude(extreme) < Lanes(BestScale::kLeast);
    extreme = select(is_small, 1.0f, extreme);
    BestScale best;
    for (int k = -kIq4Tries - 1; k <= kIq4Tries; ++k) {
        const bool first = k < -kIq4Tries;
        const Lanes by = first ? Lanes(1.0f) / (extreme / Lanes(-lowest)) : Lanes(lowest + static_cast<float>(k)) / extreme;
        best.consider(signed_sums(groups, by, levels), first);
    }
    return select(is_small, 0.0f, best.scale);
}

}  // namespace

void write_iq4_nl(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    const TableLevels levels = iq4_levels();
    for (size_t at = 0; at < blocks; at += kLanes) {
        const size_t count = std::min(kLanes, blocks - at);
        Groups<kBlock> groups;
        load_groups(x + at * kBlock, importance ? importance + at * kBlock : nullptr, count, Emphasis::kNone, &groups);
        weigh_iq4(importance != nullptr, mean_squares(groups), &groups);
        const Lanes scales = fit_iq4(groups, levels);
        for (size_t g = 0; g < count; ++g) {
            uint8_t* to = out + (at + g) * 18;
            store16(to, half_scale(scales[g]));
            put_levels(x + (at + g) * kBlock, scales[g], levels, to + 2);
        }
    }
}

void write_iq4_xs(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    const TableLevels levels = iq4_levels();
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 136) {
        Groups<kBlock> groups;
        load_groups(x, importance ? importance + i * kSuper : nullptr, kLanes, Emphasis::kNone, &groups);
        weigh_iq4(importance != nullptr, Lanes(mean_square(x, kSuper)), &groups);
        const Lanes scales = fit_iq4(groups, levels);
        const float unit = -farthest_from_zero(scales) / 32.0f;
        const Lanes codes = cut(nearest(scales * Lanes(unit == 0.0f ? 0.0f : inverse_of(unit))), -32.0f, 31.0f);
        std::memset(out, 0, 8);
        store16(out, half_scale(unit));
        unsigned upper = 0;
        for (size_t g = 0; g < kLanes; ++g) {
            const auto code = static_cast<unsigned>(static_cast<int>(codes[g]) + 32);
            out[4 + g / 2] |= static_cast<uint8_t>((code & 15) << (g % 2 * 4));
            upper |= (code >> 4) << (2 * g);
            put_levels(x + g * kBlock, unit * codes[g], levels, out + 8 + g * kHalf);
        }
        store16(out + 2, static_cast<uint16_t>(upper));
    }
}

// Scales are powers of two: the one by which the largest number is 4 to 6, or one of its neighbours.
void write_mxfp4(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    const TableLevels levels = e2m1_levels();
    for (size_t i = 0; i < blocks; ++i, x += kBlock, out += 17) {
        const float* w = importance ? importance + i * kBlock : nullptr;
        int power = 0;
        const float most = extreme(x, kBlock);
        std::frexp(most, &power);
        uint8_t best = 0;
        float least_error = 0.0f;
        for (int step = -1; step <= 1 && most > 0.0f; ++step) {
            const auto code = static_cast<uint8_t>(std::min(std::max(power - 3 + 127 + step, 0), 254));
            const float error = error_of<kBlock>(x, w, e8m0_half(code), levels);
            if (step == -1 || error < least_error) {
                best = code;
                least_error = error;
            }
        }
        out[0] = best;
        put_levels(x, most > 0.0f ? e8m0_half(best) : 0.0f, levels, out + 1);
    }
}

// Four scales of eight bits, each for 16 numbers.
void write_nvfp4(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    const TableLevels levels = e2m1_levels();
    for (size_t i = 0; i < blocks; ++i, x += 64, out += 36) {
        for (size_t s = 0; s < 4; ++s) {
            const float* from = x + 16 * s;
            const float* w = importance ? importance + i * 64 + 16 * s : nullptr;
            const float most = extreme(from, 16);
            int nearest_code = 1;
            while (nearest_code < 126 && 12.0f * e4m3_half(static_cast<uint8_t>(nearest_code)) < most) ++nearest_code;
            int best = 0;
            float least_error = 0.0f;
            for (int code = std::max(nearest_code - 4, 1); code <= std::min(nearest_code + 1, 126) && most > 0.0f; ++code) {
                const float error = error_of<16>(from, w, e4m3_half(static_cast<uint8_t>(code)), levels);
                if (best == 0 || error < least_error) {
                    best = code;
                    least_error = error;
                }
            }
            const float scale = best ? e4m3_half(static_cast<uint8_t>(best)) : 0.0f, by = best ? 1.0f / scale : 0.0f;
            out[s] = static_cast<uint8_t>(best);
            for (size_t j = 0; j < 8; ++j) {
                out[4 + 8 * s + j] = static_cast<uint8_t>(levels.index(from[j] * by) | levels.index(from[j + 8] * by) << 4);
            }
        }
    }
}

}  // namespace stretto
