// 32 bytes of a row, and sums of four rows, in plain C++: for direct_formats.h and direct_impl.h.
#pragma once

constexpr bool kMinimaFirst = false;  // as in impl_matmul.h
constexpr bool kTwoAtOnce = false;  // blocks whose sums are scaled together
constexpr int kAhead = 512;  // bytes of a long row that are asked for in advance
constexpr size_t kShortRow = 2048;  // bytes: of these the next four rows are asked for
constexpr size_t kShortUnits = 0;  // the same for formats with units of many blocks
constexpr size_t kDirectLanes = 1;  // activations that stand together where there are several columns
constexpr int32_t kSumStart = 0;

struct Bytes32 { uint8_t v[32]; };
struct Four { float v[4]; };
struct FourInts { int32_t v[4]; };
template <int Groups>
struct Sums { int32_t v[Groups]; };

template <typename F>
inline Bytes32 each_byte(F f) {
    Bytes32 r;
    for (int i = 0; i < 32; ++i) r.v[i] = static_cast<uint8_t>(f(i));
    return r;
}
template <typename F>
inline Four each_four(F f) { return {{f(0), f(1), f(2), f(3)}}; }

inline Bytes32 load32(const uint8_t* p) { Bytes32 r; std::memcpy(r.v, p, 32); return r; }
struct Bytes16 { uint8_t v[16]; };
inline Bytes16 load16b(const uint8_t* p) { Bytes16 r; std::memcpy(r.v, p, 16); return r; }
inline Bytes32 nibbles(Bytes16 x) { return each_byte([&](int i) { return i < 16 ? x.v[i] & 15 : x.v[i - 16] >> 4; }); }
inline Bytes32 splat8(uint8_t x) { return each_byte([&](int) { return x; }); }
// Each byte moved down by Shift (up, if it is negative), and of that the bits of Mask.
template <int Shift, int Mask>
inline Bytes32 field(Bytes32 x) {
    return each_byte([&](int i) { return (Shift < 0 ? x.v[i] << (Shift < 0 ? -Shift : 0) : x.v[i] >> (Shift > 0 ? Shift : 0)) & Mask; });
}
// x with the field of y beside its own bits.
template <int Shift, int Mask>
inline Bytes32 with_field(Bytes32 x, Bytes32 y) {
    const Bytes32 more = field<Shift, Mask>(y);
    return each_byte([&](int i) { return x.v[i] | more.v[i]; });
}
inline Bytes32 add8(Bytes32 x, Bytes32 y) { return each_byte([&](int i) { return x.v[i] + y.v[i]; }); }
inline Bytes32 sub8(Bytes32 x, Bytes32 y) { return each_byte([&](int i) { return x.v[i] - y.v[i]; }); }
inline Bytes32 xor8(Bytes32 x, Bytes32 y) { return each_byte([&](int i) { return x.v[i] ^ y.v[i]; }); }
// 255 where a byte is at least `least`.
inline Bytes32 at_least(Bytes32 x, uint8_t least) { return each_byte([&](int i) { return x.v[i] >= least ? 255 : 0; }); }
// Of 16 numbers those that nibbles choose.
inline Bytes32 chosen(const int8_t* table, Bytes32 x) { return each_byte([&](int i) { return table[x.v[i]]; }); }
// 255 for each bit that is set, the lowest first.
inline Bytes32 spread_bits(uint32_t bits) { return each_byte([&](int i) { return bits >> i & 1 ? 255 : 0; }); }
inline Bytes32 of_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    const uint64_t words[4] = {a, b, c, d};
    return each_byte([&](int i) { return words[i / 8] >> i % 8 * 8; });
}
// The second and third quarter take each other's place.
inline Bytes32 swap_middle(Bytes32 x) {
    return each_byte([&](int i) { return x.v[i < 8 || i >= 24 ? i : (i < 16 ? i + 8 : i - 8)]; });
}

template <int Groups>
inline Sums<Groups> begin_sums(const int32_t* at) {
    Sums<Groups> s;
    for (int g = 0; g < Groups; ++g) s.v[g] = at[g];
    return s;
}
template <bool Unsigned, int Groups>
inline void add_products(Sums<Groups>& s, Bytes32 w, Bytes32 x) {
    for (int i = 0; i < 32; ++i) s.v[i * Groups / 32] += static_cast<int8_t>(w.v[i]) * static_cast<int8_t>(x.v[i]);
}
// The sums of four rows.
template <int Groups>
inline void fold(const Sums<Groups> (&s)[4], FourInts (&out)[Groups]) {
    for (int g = 0; g < Groups; ++g) for (int i = 0; i < 4; ++i) out[g].v[i] = s[i].v[g];
}

inline Four splat4(float x) { return {{x, x, x, x}}; }
inline Four load4(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
inline void store4(float* p, Four x) { std::memcpy(p, x.v, sizeof x.v); }
inline Four mul4(Four x, Four y) { return each_four([&](int i) { return x.v[i] * y.v[i]; }); }
inline Four neg4(Four x) { return each_four([&](int i) { return -x.v[i]; }); }
inline Four fma4(Four x, Four y, Four z) { return each_four([&](int i) { return z.v[i] + x.v[i] * y.v[i]; }); }  // not fused
inline Four scaled(FourInts s, Four d) { return each_four([&](int i) { return static_cast<float>(s.v[i]) * d.v[i]; }); }
// Four half floats.
inline Four halves(uint64_t four) {
    return each_four([&](int i) { return half_to_float(static_cast<uint16_t>(four >> 16 * i)); });
}

// Four rows of 16 codes: 16 times four codes as floats.
inline void codes_of(const uint8_t (&rows)[4][16], Four (&out)[16]) {
    for (int k = 0; k < 16; ++k) out[k] = each_four([&](int i) { return static_cast<float>(static_cast<int8_t>(rows[i][k])); });
}

// Four rows of 32 bytes, four columns of each at a time, 64 bytes apart.
inline void interleave(const Bytes32 (&rows)[4], uint8_t* out) {
    for (int quad = 0; quad < 8; ++quad) {
        for (int i = 0; i < 4; ++i) std::memcpy(out + quad * 64 + i * 4, rows[i].v + quad * 4, 4);
    }
}

// Eight columns of four rows of floats with 16 bits.
inline void eight_halves(const uint8_t* const (&rows)[4], size_t k, Four (&out)[8]) {
    for (size_t j = 0; j < 8; ++j) out[j] = each_four([&](int i) { return half_to_float(load16(rows[i] + 2 * (k + j))); });
}
inline void eight_bf16(const uint8_t* const (&rows)[4], size_t k, Four (&out)[8]) {
    for (size_t j = 0; j < 8; ++j) out[j] = each_four([&](int i) { return bf16_to_float(load16(rows[i] + 2 * (k + j))); });
}
