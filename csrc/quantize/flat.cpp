// Writers of plain floats and of blocks of 32 numbers with a scale, or a scale and a minimum.

#include "quantize/groups.h"
#include "quantize/quantize.h"
#include "weights/formats.h"

namespace stretto {

namespace {

constexpr size_t kBlock = 32, kHalf = kBlock / 2;

// Calls f(first block, how many) for at most eight blocks at a time.
template <typename F>
void by_eight(size_t blocks, F f) {
    for (size_t at = 0; at < blocks; at += kLanes) f(at, std::min(kLanes, blocks - at));
}

// The quants of up to eight blocks, of `bits` bits: in all these formats byte j holds the low four bits of number j in its low
// half and those of number j + 16 in its high half; a fifth bit of number j is bit j of a 32-bit word before them.
template <unsigned bits>
void put_quants(const Lanes* q, size_t count, size_t size, uint8_t* out) {
    Quants<kHalf> low;
    if (bits == 4) {
        Lanes both[kHalf];
        for (size_t j = 0; j < kHalf; ++j) both[j] = q[j] + Lanes(16.0f) * q[j + kHalf];
        for (size_t j = 0; j < kHalf; j += 4) low.put4(j, both + j);
    } else {
        Quants<kBlock> all;
        for (size_t j = 0; j < kBlock; j += 4) all.put4(j, q + j);
        for (size_t g = 0; g < count; ++g) {
            uint32_t high = 0;
            for (size_t j = 0; j < kBlock; ++j) high |= (all.q[g][j] >> 4 & 1u) << j;
            store32(out + g * size, high);
            for (size_t j = 0; j < kHalf; ++j) low.q[g][j] = static_cast<uint8_t>((all.q[g][j] & 15) | all.q[g][j + kHalf] << 4);
        }
        out += 4;
    }
    for (size_t g = 0; g < count; ++g) std::memcpy(out + g * size, low.q[g], kHalf);
}

// Blocks of scale × (q − offset), q of `bits` bits.
template <unsigned bits>
void write_signed(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    constexpr float offset = 1 << (bits - 1);
    constexpr Emphasis emphasis = bits == 4 ? Emphasis::kSquare : Emphasis::kSize;  // by measured KL divergence
    constexpr size_t size = 2 + 4 * bits;
    by_eight(blocks, [&](size_t at, size_t count) {
        Groups<kBlock> groups;
        load_groups(x + at * kBlock, importance ? importance + at * kBlock : nullptr, count, emphasis, &groups);
        const Search search{offset - 0.5f, 0.9f, 2};  // more candidates gain nothing: by measured KL divergence
        const Steps steps{-offset, offset - 1};
        uint16_t halves[kLanes];
        const Lanes by = inverse(half_scales(fit_signed(groups, steps, search, 1), halves));
        Lanes q[kBlock];
        for (size_t j = 0; j < kBlock; ++j) q[j] = steps(groups.x[j] * by) + Lanes(offset);
        for (size_t g = 0; g < count; ++g) store16(out + (at + g) * size, halves[g]);
        put_quants<bits>(q, count, size, out + at * size + 2);
    });
}

// Blocks of scale × q + min.
template <unsigned bits>
void write_affine(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    constexpr float high = (1 << bits) - 1;
    constexpr size_t size = 4 + 4 * bits;
    by_eight(blocks, [&](size_t at, size_t count) {
        Groups<kBlock> groups;
        load_groups(x + at * kBlock, importance ? importance + at * kBlock : nullptr, count, Emphasis::kSize, &groups);
        // With 32 levels nine candidates are worth their time: by measured KL divergence.
        const Search search = bits == 5 ? Search{high - 3.0f, 0.5f, 9} : Search{high - 0.6f, 0.6f, 3};
        const Affine found = fit_affine(groups, high, false, search, 1);
        uint16_t scales[kLanes], mins[kLanes];
        const Lanes by = inverse(half_scales(found.scale, scales)), min = half_scales(found.min, mins);
        Lanes q[kBlock];
        for (size_t j = 0; j < kBlock; ++j) q[j] = nearest(cut((groups.x[j] - min) * by, 0.0f, high));
        for (size_t g = 0; g < count; ++g) {
            store16(out + (at + g) * size, scales[g]);
            store16(out + (at + g) * size + 2, mins[g]);
        }
        put_quants<bits>(q, count, size, out + at * size + 4);
    });
}

}  // namespace

void write_f32(const float* x, const float*, size_t blocks, uint8_t* out) { std::memcpy(out, x, blocks * sizeof(float)); }

// As float_to_half, without a branch; too large numbers become the largest half.
void write_f16(const float* x, const float*, size_t blocks, uint8_t* out) {
    for (size_t i = 0; i < blocks; ++i) {
        const uint32_t bits = bits_of_float(x[i]), size = bits & 0x7fffffff;
        const uint32_t normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
        const uint32_t small = bits_of_float(float_of_bits(size) + 0.5f) - 0x3f000000;
        const uint32_t is_small = -static_cast<uint32_t>(size < 0x38800000);
        const uint32_t half = (small & is_small) | (normal & ~is_small);
        const auto out16 = static_cast<uint16_t>(std::min(half, 0x7bffu) | (bits >> 16 & 0x8000));
        std::memcpy(out + 2 * i, &out16, sizeof out16);
    }
}

// Rounds to nearest, ties to even.
void write_bf16(const float* x, const float*, size_t blocks, uint8_t* out) {
    for (size_t i = 0; i < blocks; ++i) {
        const uint32_t bits = bits_of_float(x[i]);
        store16(out + 2 * i, static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
    }
}

void write_q4_0(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    write_signed<4>(x, importance, blocks, out);
}
void write_q5_0(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    write_signed<5>(x, importance, blocks, out);
}
void write_q4_1(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    write_affine<4>(x, importance, blocks, out);
}
void write_q5_1(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    write_affine<5>(x, importance, blocks, out);
}

// With 255 levels a search gains nothing: the largest magnitude becomes ±127, and quants are those of the scale before it is
// rounded, as llama.cpp makes them.
void write_q8_0(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    by_eight(blocks, [&](size_t at, size_t count) {
        Groups<kBlock> groups;
        load_groups(x + at * kBlock, importance ? importance + at * kBlock : nullptr, count, Emphasis::kNone, &groups);
        uint16_t halves[kLanes];
        const Lanes scale = magnitude(extreme_of(groups)) * Lanes(1.0f / 127.0f), by = inverse(scale);
        half_scales(scale, halves);
        for (Lanes& x : groups.x) x = nearest(cut(x * by, -127.0f, 127.0f));
        Quants<kBlock> q;
        for (size_t j = 0; j < kBlock; j += 4) q.put4(j, groups.x + j);
        for (size_t g = 0; g < count; ++g) {
            store16(out + (at + g) * 34, halves[g]);
            std::memcpy(out + (at + g) * 34 + 2, q.q[g], kBlock);
        }
    });
}

}  // namespace stretto
