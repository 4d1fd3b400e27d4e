// Writers of formats whose levels are no even steps: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.

#include <algorithm>
#include <cmath>
#include <limits>

#include "blocks.h"
#include "formats.h"
#include "quantize.h"
#include "quantize_coded.h"

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

    static float cut_one(float x) { return std::min(127.5f, std::max(-127.5f, x)); }  // no number is the least
    static int place(float x) { return static_cast<int>(x * 2.0f + static_cast<float>(Table::kZero)); }
    uint8_t index(float x) const { return table.index[place(cut_one(x))]; }
    Lanes operator()(Lanes x) const {
        const Lanes inside = cut(x, -127.5f, 127.5f);
        Lanes out;
        for (size_t g = 0; g < 4; ++g) {
            out.a[g] = table.value[place(inside.a[g])];
            out.b[g] = table.value[place(inside.b[g])];
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

const Search kIq4Search{120.0f, 1.5f, 11};

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

}  // namespace

void write_iq4_nl(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    const TableLevels levels = iq4_levels();
    for (size_t at = 0; at < blocks; at += kLanes) {
        const size_t count = std::min(kLanes, blocks - at);
        Groups<kBlock> groups;
        load_groups(x + at * kBlock, importance ? importance + at * kBlock : nullptr, count, Emphasis::kSquare, &groups);
        uint16_t halves[kLanes];
        const Lanes scales = half_scales(fit_signed(groups, levels, kIq4Search, 2), halves);
        for (size_t g = 0; g < count; ++g) {
            uint8_t* to = out + (at + g) * 18;
            store16(to, halves[g]);
            put_levels(x + (at + g) * kBlock, scales[g], levels, to + 2);
        }
    }
}

void write_iq4_xs(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    const CodedKind<TableLevels> kind{iq4_levels(), 32.0f, kIq4Search, Emphasis::kSquare, 1};
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += 136) {
        Coded<kBlock> block;
        fit_coded(kind, x, importance ? importance + i * kSuper : nullptr, &block);
        std::memset(out, 0, 8);
        store16(out, block.unit_bits);
        unsigned upper = 0;
        for (size_t g = 0; g < kLanes; ++g) {
            const auto code = static_cast<unsigned>(block.code(g) + 32);
            out[4 + g / 2] |= static_cast<uint8_t>((code & 15) << (g % 2 * 4));
            upper |= (code >> 4) << (2 * g);
            put_levels(x + g * kBlock, block.scales(0)[g], kind.level, out + 8 + g * kHalf);
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
