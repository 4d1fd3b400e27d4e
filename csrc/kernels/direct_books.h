// Formats with code books: an index chooses eight numbers, or four. Included by direct_formats.h; weights/blocks.cpp has
// them in plain words.

template <int Size, int Groups>
struct Book : Rows<256, Size, Groups, false, 0, false> {
    const Grids& books = grids();

    // Numbers of four entries, negative where the bits say so.
    ALWAYS static Bytes32 with_signs(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint32_t signs) {
        const Bytes32 negative = spread_bits(signs);
        return sub8(xor8(of_words(a, b, c, d), negative), negative);
    }
    // Four times seven signs with the eighth of each.
    ALWAYS uint32_t signs_of(uint32_t word) const {
        return books.signs[word & 127] | books.signs[word >> 7 & 127] << 8 | books.signs[word >> 14 & 127] << 16 |
               static_cast<uint32_t>(books.signs[word >> 21 & 127]) << 24;
    }
    ALWAYS static uint64_t pair(uint32_t a, uint32_t b) { return a | static_cast<uint64_t>(b) << 32; }
    // Scales of four rows: 2 × code + 1 times a part of the half float at `At`.
    template <int At, typename F, int Count>
    ALWAYS static void odd_scales(const F& format, const uint8_t* const (&p)[4], float part, Four (&out)[Count]) {
        coded(format, p, mul4(halves_at(p, At), splat4(part)), out);
    }
    ALWAYS static void put_odd(uint8_t* out, uint64_t codes) { put64(out, codes << 1 | 0x0101010101010101); }
};

struct Iq2Xxs : Book<66, 1> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        const uint8_t* at = p + 2 + 8 * g;
        const uint64_t* grid = books.iq2_xxs;
        return with_signs(grid[at[0]], grid[at[1]], grid[at[2]], grid[at[3]], signs_of(word32(at + 4)));
    }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const {
        for (int g = 0; g < 8; ++g) out[g] = static_cast<uint8_t>(2 * (p[2 + 8 * g + 7] >> 4) + 1);
        put64(out + 8, 0);
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<8>& out) const { odd_scales<0>(*this, p, 0.125f, out.d); }
};
struct Iq2Xs : Book<74, 2> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        const uint64_t words = load64(p + 2 + 8 * g);
        const uint32_t signs = books.signs[words >> 9 & 127] | books.signs[words >> 25 & 127] << 8 |
                               books.signs[words >> 41 & 127] << 16 | static_cast<uint32_t>(books.signs[words >> 57]) << 24;
        const uint64_t* grid = books.iq2_xs;
        return with_signs(grid[words & 511], grid[words >> 16 & 511], grid[words >> 32 & 511], grid[words >> 48 & 511], signs);
    }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const {
        put_odd(out, spread_nibbles(word32(p + 66)));
        put_odd(out + 8, spread_nibbles(word32(p + 70)));
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<16>& out) const { odd_scales<0>(*this, p, 0.125f, out.d); }
};
struct Iq2S : Book<82, 2> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        const uint8_t* at = p + 2 + 4 * g;
        const unsigned more = p[66 + g];
        const uint64_t* grid = books.iq2_s;
        return with_signs(grid[at[0] | (more & 3) << 8], grid[at[1] | (more >> 2 & 3) << 8],
                          grid[at[2] | (more >> 4 & 3) << 8], grid[at[3] | more >> 6 << 8], word32(p + 34 + 4 * g));
    }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const {
        put_odd(out, spread_nibbles(word32(p + 74)));
        put_odd(out + 8, spread_nibbles(word32(p + 78)));
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<16>& out) const { odd_scales<0>(*this, p, 0.125f, out.d); }
};
struct Iq3Xxs : Book<98, 1> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        const uint8_t* at = p + 2 + 8 * g;
        const uint32_t* grid = books.iq3_xxs;
        return with_signs(pair(grid[at[0]], grid[at[1]]), pair(grid[at[2]], grid[at[3]]), pair(grid[at[4]], grid[at[5]]),
                          pair(grid[at[6]], grid[at[7]]), signs_of(word32(p + 66 + 4 * g)));
    }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const {
        for (int g = 0; g < 8; ++g) out[g] = static_cast<uint8_t>(2 * (p[66 + 4 * g + 3] >> 4) + 1);
        put64(out + 8, 0);
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<8>& out) const { odd_scales<0>(*this, p, 0.25f, out.d); }
};
struct Iq3S : Book<110, 1> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        const uint8_t* at = p + 2 + 8 * g;
        const unsigned more = p[66 + g];
        const auto entry = [&](int i) ALWAYS_LAMBDA { return books.iq3_s[at[i] | (more >> i & 1) << 8]; };
        return with_signs(pair(entry(0), entry(1)), pair(entry(2), entry(3)), pair(entry(4), entry(5)),
                          pair(entry(6), entry(7)), word32(p + 74 + 4 * g));
    }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const {
        put_odd(out, spread_nibbles(word32(p + 106)));
        put64(out + 8, 0);
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<8>& out) const { odd_scales<0>(*this, p, 1.0f, out.d); }
};

// Numbers in eighths: an entry's, and one more or less.
struct Iq1S : Book<50, 1> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        const uint8_t* at = p + 2 + 4 * g;
        const unsigned word = word16(p + 34 + 2 * g);
        const uint64_t* grid = books.iq1;
        return add8(of_words(grid[at[0] | (word & 7) << 8], grid[at[1] | (word >> 3 & 7) << 8],
                             grid[at[2] | (word >> 6 & 7) << 8], grid[at[3] | (word >> 9 & 7) << 8]),
                    splat8(word >> 15 ? 255 : 1));
    }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const {
        for (int g = 0; g < 8; ++g) out[g] = static_cast<uint8_t>(2 * (p[34 + 2 * g + 1] >> 4 & 7) + 1);
        put64(out + 8, 0);
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<8>& out) const { odd_scales<0>(*this, p, 0.125f, out.d); }
};
struct Iq1M : Book<56, 2> {
    template <int g>
    ALWAYS Bytes32 quants(const uint8_t* p) const {
        const uint8_t* at = p + 4 * g;
        const unsigned more = word16(p + 32 + 2 * g);
        const auto entry = [&](int i) ALWAYS_LAMBDA { return books.iq1[at[i] | (more >> 4 * i & 7) << 8]; };
        const auto eighth = [&](int i) ALWAYS_LAMBDA { return more >> 4 * i & 8 ? ~uint64_t{0} : 0x0101010101010101; };
        return add8(of_words(entry(0), entry(1), entry(2), entry(3)), of_words(eighth(0), eighth(1), eighth(2), eighth(3)));
    }
    ALWAYS void codes(const uint8_t* p, uint8_t* out) const {
        for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(2 * (word16(p + 48 + i / 4 * 2) >> i % 4 * 3 & 7) + 1);
    }
    // A quarter of the half float is in each of four words.
    ALWAYS static uint64_t half(const uint8_t* p) {
        const uint64_t words = load64(p + 48);
        return (words >> 12 & 15) | (words >> 28 & 15) << 4 | (words >> 44 & 15) << 8 | words >> 60 << 12;
    }
    ALWAYS void scales(const uint8_t* const (&p)[4], Scales4<16>& out) const {
        const Four d = halves(half(p[0]) | half(p[1]) << 16 | half(p[2]) << 32 | half(p[3]) << 48);
        coded(*this, p, mul4(d, splat4(0.125f)), out.d);
    }
};
