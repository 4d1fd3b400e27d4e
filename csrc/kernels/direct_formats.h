// How each format's rows are read, 32 numbers at a time. Included by direct_impl.h, where 32 bytes and four floats are
// vectors of an instruction set.
//
// A format has blocks of kNumbers in kSize bytes, of which `quants<g>` gives the g-th 32 as bytes: signed, or small and
// not negative with an offset. `scales` gives the scales of four rows' blocks, and minima where there are any; `next` does
// too, and goes on to the rows' next blocks.

template <int Numbers, int Size, int Groups, bool Min, int Offset, bool Unsigned>
struct Rows {
    static constexpr int kSize = Size;
    static constexpr int kUnit = Numbers / 32;   // blocks of 32
    static constexpr int kGroups = Groups;       // of 32, each with a scale
    static constexpr bool kMin = Min;
    static constexpr int kOffset = Offset;
    static constexpr bool kUnsigned = Unsigned;
};

// Scales and minima of four rows' blocks.
template <int Count>
struct Scales4 {
    Four d[Count], m[Count];
};

ALWAYS uint64_t load64(const uint8_t* p) { uint64_t x; std::memcpy(&x, p, 8); return x; }
ALWAYS uint32_t word32(const uint8_t* p) { uint32_t x; std::memcpy(&x, p, 4); return x; }
ALWAYS uint16_t word16(const uint8_t* p) { uint16_t x; std::memcpy(&x, p, 2); return x; }

// The half floats of four rows, at one place of each.
ALWAYS Four halves_at(const uint8_t* const (&p)[4], int at) {
    return halves(static_cast<uint64_t>(word16(p[0] + at)) | static_cast<uint64_t>(word16(p[1] + at)) << 16 |
                  static_cast<uint64_t>(word16(p[2] + at)) << 32 | static_cast<uint64_t>(word16(p[3] + at)) << 48);
}

// -- blocks of 32, or few of them, with scales of their own --

#ifndef STRETTO_HAS_NEXT
ALWAYS void move_on(const uint8_t* (&p)[4], int size) { for (const uint8_t*& at : p) at += size; }
template <int Size>
ALWAYS Four halves_next(const uint8_t* (&p)[4]) {
    const Four d = halves_at(p, 0);
    move_on(p, Size);
    return d;
}
template <int Size>
ALWAYS void pairs_next(const uint8_t* (&p)[4], Four& first, Four& second) {
    first = halves_at(p, 0);
    second = halves_at(p, 2);
    move_on(p, Size);
}
template <int Size>
ALWAYS Four exponents_next(const uint8_t* (&p)[4]) {
    float four[4];
    for (int i = 0; i < 4; ++i) four[i] = float_of_bits(*p[i] < 2 ? 0x00200000u << *p[i] : (*p[i] - 1u) << 23);
    move_on(p, Size);
    return load4(four);
}
#endif

// One half float, or another for the minimum, before the quants.
template <int Numbers, int Size, bool Min, int Offset, bool Unsigned>
struct Plain : Rows<Numbers, Size, 1, Min, Offset, Unsigned> {
    ALWAYS void next(const uint8_t* (&p)[4], Scales4<Numbers / 32>& out) const {
        if constexpr (Min) {
            pairs_next<Size>(p, out.d[0], out.m[0]);
        } else {
            out.d[0] = halves_next<Size>(p);
        }
        for (int i = 1; i < Numbers / 32; ++i) out.d[i] = out.d[0];
    }
};
struct Q4_0 : Plain<32, 18, false, 8, true> {
    ALWAYS static auto raw(const uint8_t* p) { return load16b(p + 2); }
    template <typename Raw>
    ALWAYS static Bytes32 of_raw(const Raw& x) { return nibbles(x); }
    template <int>
    ALWAYS static Bytes32 quants(const uint8_t* p) { return of_raw(raw(p)); }
};
struct Q4_1 : Plain<32, 20, true, 0, true> {
    ALWAYS static auto raw(const uint8_t* p) { return load16b(p + 4); }
    template <typename Raw>
    ALWAYS static Bytes32 of_raw(const Raw& x) { return nibbles(x); }
    template <int>
    ALWAYS static Bytes32 quants(const uint8_t* p) { return of_raw(raw(p)); }
};
struct Fives {
    Bytes16 low;
    uint32_t high;
};
struct Q5_0 : Plain<32, 22, false, 16, true> {
    ALWAYS static auto raw(const uint8_t* p) { return Fives{load16b(p + 6), word32(p + 2)}; }
    template <typename Raw>
    ALWAYS static Bytes32 of_raw(const Raw& x) { return with_field<0, 16>(nibbles(x.low), spread_bits(x.high)); }
    template <int>
    ALWAYS static Bytes32 quants(const uint8_t* p) { return of_raw(raw(p)); }
};
struct Q5_1 : Plain<32, 24, true, 0, true> {
    ALWAYS static auto raw(const uint8_t* p) { return Fives{load16b(p + 8), word32(p + 4)}; }
    template <typename Raw>
    ALWAYS static Bytes32 of_raw(const Raw& x) { return with_field<0, 16>(nibbles(x.low), spread_bits(x.high)); }
    template <int>
    ALWAYS static Bytes32 quants(const uint8_t* p) { return of_raw(raw(p)); }
};
struct Q8_0 : Plain<32, 34, false, 0, false> {
    ALWAYS static auto raw(const uint8_t* p) { return load32(p + 2); }
    template <typename Raw>
    ALWAYS static Bytes32 of_raw(const Raw& x) { return x; }
    template <int>
    ALWAYS static Bytes32 quants(const uint8_t* p) { return of_raw(raw(p)); }
};
struct Iq4Nl : Plain<32, 18, false, 0, false> {
    ALWAYS static auto raw(const uint8_t* p) { return load16b(p + 2); }
    template <typename Raw>
    ALWAYS static Bytes32 of_raw(const Raw& x) { return chosen(kIq4Levels, nibbles(x)); }
    template <int>
    ALWAYS static Bytes32 quants(const uint8_t* p) { return of_raw(raw(p)); }
};
struct Q1_0 : Plain<128, 18, false, 1, true> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const { return field<0, 2>(spread_bits(word32(p + 2 + 4 * g))); }
};

// Twice the floats of four bits that MXFP4 and NVFP4 have.
alignas(16) constexpr int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct Mxfp4 : Rows<32, 17, 1, false, 0, false> {
    ALWAYS static Bytes16 raw(const uint8_t* p) { return load16b(p + 1); }
    ALWAYS static Bytes32 of_raw(const Bytes16& x) { return chosen(kE2m1, nibbles(x)); }
    template <int>
    ALWAYS static Bytes32 quants(const uint8_t* p) { return of_raw(raw(p)); }
    ALWAYS void next(const uint8_t* (&p)[4], Scales4<1>& out) const { out.d[0] = exponents_next<17>(p); }
};
struct Nvfp4 : Rows<64, 36, 2, false, 0, false> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const { return chosen(kE2m1, swap_middle(nibbles(load16b(p + 4 + 16 * g)))); }
    // As e4m3_half in weights/blocks.cpp.
    ALWAYS static float scale(uint8_t x) {
        return x == 0x7f ? 0.0f : float_of_bits(static_cast<uint32_t>(x & 0x7f) << 20) * 0x1p119f;
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<4>& out) const {
        for (int i = 0; i < 4; ++i) {
            const float four[4] = {scale(p[0][i]), scale(p[1][i]), scale(p[2][i]), scale(p[3][i])};
            out.d[i] = load4(four);
        }
    }
};

// -- blocks of 256: scales are a half float times codes of a few bits --

// Of four rows' codes the first Count as scales.
template <typename F, int Count>
ALWAYS void coded(const F& format, const uint8_t* const (&p)[4], Four unit, Four (&out)[Count]) {
    alignas(16) uint8_t codes[4][16];
    for (int i = 0; i < 4; ++i) format.codes(p[i], codes[i]);
    Four all[16];
    codes_of(codes, all);
    for (int i = 0; i < Count; ++i) out[i] = mul4(all[i], unit);
}
// Four bits of each of four bytes, the lower ones first, in a byte each; two bits of each of two.
ALWAYS uint64_t spread_nibbles(uint64_t x) {
    x = (x | x << 16) & 0x0000ffff0000ffff;
    x = (x | x << 8) & 0x00ff00ff00ff00ff;
    return (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
}
ALWAYS uint64_t spread_pairs(uint64_t x) {
    x = (x | x << 24) & 0x000000ff000000ff;
    x = (x | x << 12) & 0x000f000f000f000f;
    return (x | x << 6) & 0x0303030303030303;
}
ALWAYS uint64_t less_32(uint64_t codes) {  // codes below 64, each less 32
    return ((codes | 0x8080808080808080) - 0x2020202020202020) ^ 0x8080808080808080;
}
ALWAYS void put64(uint8_t* to, uint64_t x) { std::memcpy(to, &x, 8); }

struct Q2_K : Rows<256, 84, 2, true, 0, true> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const { return field<g % 4 * 2, 3>(load32(p + 16 + g / 4 * 32)); }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<16>& out) const {
        alignas(16) uint8_t low[4][16], high[4][16];
        for (int i = 0; i < 4; ++i) {
            for (int half = 0; half < 16; half += 8) {
                const uint64_t both = load64(p[i] + half);
                put64(low[i] + half, both & 0x0f0f0f0f0f0f0f0f);
                put64(high[i] + half, both >> 4 & 0x0f0f0f0f0f0f0f0f);
            }
        }
        const Four d = halves_at(p, 80), m = neg4(halves_at(p, 82));
        codes_of(low, out.d);
        codes_of(high, out.m);
        for (Four& x : out.d) x = mul4(x, d);
        for (Four& x : out.m) x = mul4(x, m);
    }
};
struct Q3_K : Rows<256, 110, 2, false, 4, true> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        return with_field<g - 2, 4>(field<g % 4 * 2, 3>(load32(p + 32 + g / 4 * 32)), load32(p));
    }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const {
        const uint64_t low = load64(p + 96), high = word32(p + 104), both = high | high << 30;
        put64(out, less_32((low & 0x0f0f0f0f0f0f0f0f) | (both & 0x0303030303030303) << 4));
        put64(out + 8, less_32((low >> 4 & 0x0f0f0f0f0f0f0f0f) | (both >> 4 & 0x0303030303030303) << 4));
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<16>& out) const { coded(*this, p, halves_at(p, 108), out.d); }
};
// Q4_K and Q5_K: eight scales, eight minima.
template <int Size>
struct ScaleMins : Rows<256, Size, 1, true, 0, true> {
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<8>& out) const {
        alignas(16) uint8_t codes[4][16];
        for (int i = 0; i < 4; ++i) {
            const uint32_t a = word32(p[i] + 4), b = word32(p[i] + 8), c = word32(p[i] + 12);
            const uint32_t parts[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030), b & 0x3f3f3f3f,
                                       (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
            put64(codes[i], parts[0] | static_cast<uint64_t>(parts[1]) << 32);
            put64(codes[i] + 8, parts[2] | static_cast<uint64_t>(parts[3]) << 32);
        }
        Four all[16];
        codes_of(codes, all);
        const Four d = halves_at(p, 0), m = neg4(halves_at(p, 2));
        for (int i = 0; i < 8; ++i) {
            out.d[i] = mul4(all[i], d);
            out.m[i] = mul4(all[8 + i], m);
        }
    }
};
struct Q4_K : ScaleMins<144> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const { return field<g % 2 * 4, 15>(load32(p + 16 + g / 2 * 32)); }
};
struct Q5_K : ScaleMins<176> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        return with_field<g - 4, 16>(field<g % 2 * 4, 15>(load32(p + 48 + g / 2 * 32)), load32(p + 16));
    }
};
struct Q6_K : Rows<256, 210, 2, false, 32, true> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        const Bytes32 low = load32(p + g / 4 * 64 + g % 2 * 32), high = load32(p + 128 + g / 4 * 32);
        return with_field<g % 4 * 2 - 4, 48>(field<g % 4 / 2 * 4, 15>(low), high);
    }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const { std::memcpy(out, p + 192, 16); }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<16>& out) const { coded(*this, p, halves_at(p, 208), out.d); }
};
struct Iq4Xs : Rows<256, 136, 1, false, 0, false> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const { return chosen(kIq4Levels, nibbles(load16b(p + 8 + 16 * g))); }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const {
        put64(out, less_32(spread_nibbles(word32(p + 4)) | spread_pairs(word16(p + 2)) << 4));
        put64(out + 8, 0);
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<8>& out) const { coded(*this, p, halves_at(p, 0), out.d); }
};

// -- three values --

template <int Size, int At>
struct Ternary : Rows<256, Size, 1, false, 1, true> {
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<8>& out) const {
        const Four d = halves_at(p, At);
        for (Four& x : out.d) x = d;
    }
};
struct Tq2_0 : Ternary<66, 64> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const { return field<g % 4 * 2, 3>(load32(p + g / 4 * 32)); }
};
// A byte holds five digits of base three as a fraction: × 3 brings the next one above its eight bits.
struct Tq1_0 : Ternary<54, 52> {
    ALWAYS static Bytes32 times_3(Bytes32 x) { return add8(x, add8(x, x)); }
    ALWAYS static Bytes32 digits(Bytes32 x) {
        return sub8(sub8(splat8(0), at_least(x, 86)), at_least(x, 171));
    }
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        if constexpr (g < 5) {
            Bytes32 x = load32(p);
            for (int i = 0; i < g; ++i) x = times_3(x);
            return digits(x);
        } else if constexpr (g < 7) {
            const uint64_t a = load64(p + 32), b = load64(p + 40);
            return digits(g == 5 ? of_words(a, b, three(a), three(b)) : of_words(nine(a), nine(b), three(nine(a)), three(nine(b))));
        } else {
            const uint64_t a = load64(p + 32), b = load64(p + 40), c = word32(p + 48), d = c | three(c) << 32;
            return digits(of_words(nine(nine(a)), nine(nine(b)), d, nine(d)));
        }
    }
    // Bytes × 3 and × 9, each without what is above its eight bits.
    ALWAYS static uint64_t twice(uint64_t x) { return (x & 0x7f7f7f7f7f7f7f7f) << 1; }
    ALWAYS static uint64_t sum(uint64_t x, uint64_t y) {
        return ((x & 0x7f7f7f7f7f7f7f7f) + (y & 0x7f7f7f7f7f7f7f7f)) ^ ((x ^ y) & 0x8080808080808080);
    }
    ALWAYS static uint64_t three(uint64_t x) { return sum(x, twice(x)); }
    ALWAYS static uint64_t nine(uint64_t x) { return three(three(x)); }
};

#include "kernels/direct_books.h"

// Calls f with the reader of a format; false if there is none.
template <typename F>
bool with_format(int format, F f) {
    switch (format) {
        case 2: return f(Q4_0{}), true;
        case 3: return f(Q4_1{}), true;
        case 6: return f(Q5_0{}), true;
        case 7: return f(Q5_1{}), true;
        case 8: return f(Q8_0{}), true;
        case 10: return f(Q2_K{}), true;
        case 11: return f(Q3_K{}), true;
        case 12: return f(Q4_K{}), true;
        case 13: return f(Q5_K{}), true;
        case 14: return f(Q6_K{}), true;
        case 16: return f(Iq2Xxs{}), true;
        case 17: return f(Iq2Xs{}), true;
        case 18: return f(Iq3Xxs{}), true;
        case 19: return f(Iq1S{}), true;
        case 20: return f(Iq4Nl{}), true;
        case 21: return f(Iq3S{}), true;
        case 22: return f(Iq2S{}), true;
        case 23: return f(Iq4Xs{}), true;
        case 29: return f(Iq1M{}), true;
        case 34: return f(Tq1_0{}), true;
        case 35: return f(Tq2_0{}), true;
        case 39: return f(Mxfp4{}), true;
        case 40: return f(Nvfp4{}), true;
        case 41: return f(Q1_0{}), true;
        default: return false;
    }
}
