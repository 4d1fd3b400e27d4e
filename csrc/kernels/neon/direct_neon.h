// 32 bytes of a row, and sums of four rows, in NEON registers: for direct_formats.h and direct_impl.h.
#pragma once

constexpr bool kMinimaFirst = true;  // as in tiles.h
constexpr bool kTwoAtOnce = true;  // blocks whose sums are scaled together
constexpr int kAhead = 2048;  // bytes of a long row that are asked for in advance
constexpr size_t kShortRow = 8192;  // bytes: of these the next four rows are asked for
constexpr size_t kShortUnits = 8192;  // the same for formats with units of many blocks
constexpr size_t kDirectLanes = 4;  // activations that stand together where there are several columns
constexpr int32_t kSumStart = 0x4b400000;

struct Bytes32 { uint8x16_t a, b; };
using Four = float32x4_t;
using FourInts = int32x4_t;
template <int Groups>
struct Sums { int32x4_t v[Groups]; };

ALWAYS Bytes32 load32(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
using Bytes16 = uint8x16_t;
ALWAYS Bytes16 load16b(const uint8_t* p) { return vld1q_u8(p); }
ALWAYS Bytes32 nibbles(Bytes16 both) {
    return {vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8(both, 4)};
}
ALWAYS Bytes32 splat8(uint8_t x) { return {vdupq_n_u8(x), vdupq_n_u8(x)}; }
template <int Shift, int Mask>
ALWAYS uint8x16_t field16(uint8x16_t x) {
    if constexpr (Shift > 0) x = vshrq_n_u8(x, Shift);
    if constexpr (Shift < 0) x = vshlq_n_u8(x, -Shift);
    if constexpr (Shift > 0 && Mask == 255 >> (Shift > 0 ? Shift : 0)) return x;
    return vandq_u8(x, vdupq_n_u8(Mask));
}
// Each byte moved down by Shift (up, if it is negative), and of that the bits of Mask.
template <int Shift, int Mask>
ALWAYS Bytes32 field(Bytes32 x) { return {field16<Shift, Mask>(x.a), field16<Shift, Mask>(x.b)}; }
// x with the field of y beside its own bits.
template <int Shift, int Mask>
ALWAYS uint8x16_t with_field16(uint8x16_t x, uint8x16_t y) {
    if constexpr (Shift > 0) y = vshrq_n_u8(y, Shift);
    if constexpr (Shift < 0) y = vshlq_n_u8(y, -Shift);
    return vbslq_u8(vdupq_n_u8(Mask), y, x);
}
template <int Shift, int Mask>
ALWAYS Bytes32 with_field(Bytes32 x, Bytes32 y) {
    return {with_field16<Shift, Mask>(x.a, y.a), with_field16<Shift, Mask>(x.b, y.b)};
}
ALWAYS Bytes32 add8(Bytes32 x, Bytes32 y) { return {vaddq_u8(x.a, y.a), vaddq_u8(x.b, y.b)}; }
ALWAYS Bytes32 sub8(Bytes32 x, Bytes32 y) { return {vsubq_u8(x.a, y.a), vsubq_u8(x.b, y.b)}; }
ALWAYS Bytes32 xor8(Bytes32 x, Bytes32 y) { return {veorq_u8(x.a, y.a), veorq_u8(x.b, y.b)}; }
// 255 where a byte is at least `least`.
ALWAYS Bytes32 at_least(Bytes32 x, uint8_t least) {
    return {vcgeq_u8(x.a, vdupq_n_u8(least)), vcgeq_u8(x.b, vdupq_n_u8(least))};
}
// Of 16 numbers those that nibbles choose.
ALWAYS Bytes32 chosen(const int8_t* table, Bytes32 x) {
    const uint8x16_t all = vreinterpretq_u8_s8(vld1q_s8(table));
    return {vqtbl1q_u8(all, x.a), vqtbl1q_u8(all, x.b)};
}
// 255 for each bit that is set, the lowest first.
ALWAYS Bytes32 spread_bits(uint32_t bits) {
    const uint8x16_t each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    const uint8x16_t all = vreinterpretq_u8_u32(vdupq_n_u32(bits));
    const uint8x16_t first = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1)), second = vcombine_u8(vdup_n_u8(2), vdup_n_u8(3));
    return {vtstq_u8(vqtbl1q_u8(all, first), each), vtstq_u8(vqtbl1q_u8(all, second), each)};
}
ALWAYS Bytes32 of_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return {vcombine_u8(vcreate_u8(a), vcreate_u8(b)), vcombine_u8(vcreate_u8(c), vcreate_u8(d))};
}
// The second and third quarter take each other's place.
ALWAYS Bytes32 swap_middle(Bytes32 x) {
    const uint64x2_t a = vreinterpretq_u64_u8(x.a), b = vreinterpretq_u64_u8(x.b);
    return {vreinterpretq_u8_u64(vzip1q_u64(a, b)), vreinterpretq_u8_u64(vzip2q_u64(a, b))};
}

// Sums that begin with one number each. It is loaded, as a move would take the place of a product.
template <int Groups>
ALWAYS Sums<Groups> begin_sums(const int32_t* at) {
    Sums<Groups> s;
    for (int g = 0; g < Groups; ++g) asm volatile("ldr %s0, %1" : "=w"(s.v[g]) : "m"(at[g]));
    return s;
}
template <bool Unsigned, int Groups>
ALWAYS void add_products(Sums<Groups>& s, Bytes32 w, Bytes32 x) {
    s.v[0] = vdotq_s32(s.v[0], vreinterpretq_s8_u8(w.a), vreinterpretq_s8_u8(x.a));
    s.v[Groups - 1] = vdotq_s32(s.v[Groups - 1], vreinterpretq_s8_u8(w.b), vreinterpretq_s8_u8(x.b));
}
// The sums of four rows.
template <int Groups>
ALWAYS void fold(const Sums<Groups> (&s)[4], FourInts (&out)[Groups]) {
    for (int g = 0; g < Groups; ++g) {
        out[g] = vpaddq_s32(vpaddq_s32(s[0].v[g], s[1].v[g]), vpaddq_s32(s[2].v[g], s[3].v[g]));
    }
}

ALWAYS Four splat4(float x) { return vdupq_n_f32(x); }
ALWAYS Four load4(const float* p) { return vld1q_f32(p); }
ALWAYS void store4(float* p, Four x) { vst1q_f32(p, x); }
ALWAYS Four mul4(Four x, Four y) { return vmulq_f32(x, y); }
ALWAYS Four neg4(Four x) { return vnegq_f32(x); }
ALWAYS Four fma4(Four x, Four y, Four z) { return vfmaq_f32(z, x, y); }
ALWAYS Four scaled(FourInts s, Four d) {
    return vfmaq_f32(vmulq_n_f32(d, -kFloatBias), vreinterpretq_f32_s32(s), d);
}
// Four half floats.
ALWAYS Four halves(uint64_t four) { return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(four))); }

// Four rows of 16 codes: 16 times four codes as floats. Bytes become floats by what stands above them, as conversions
// take as long as four other operations.
ALWAYS void codes_of(const uint8_t (&rows)[4][16], Four (&out)[16]) {
    const uint8x16_t flip = vdupq_n_u8(128), none = vdupq_n_u8(0);
    const uint16x8_t above = vdupq_n_u16(kSumStart >> 16);
    const float32x4_t bias = vdupq_n_f32(kFloatBias + 128.0f);
    const uint8x16_t a = vld1q_u8(rows[0]), b = vld1q_u8(rows[1]), c = vld1q_u8(rows[2]), d = vld1q_u8(rows[3]);
    const uint16x8_t low[2] = {vreinterpretq_u16_u8(vzip1q_u8(a, b)), vreinterpretq_u16_u8(vzip1q_u8(c, d))};
    const uint16x8_t high[2] = {vreinterpretq_u16_u8(vzip2q_u8(a, b)), vreinterpretq_u16_u8(vzip2q_u8(c, d))};
    const uint16x8_t fours[4] = {vzip1q_u16(low[0], low[1]), vzip2q_u16(low[0], low[1]), vzip1q_u16(high[0], high[1]),
                                 vzip2q_u16(high[0], high[1])};
    for (int i = 0; i < 4; ++i) {
        const uint8x16_t bytes = veorq_u8(vreinterpretq_u8_u16(fours[i]), flip);
        const uint16x8_t left = vreinterpretq_u16_u8(vzip1q_u8(bytes, none));
        const uint16x8_t right = vreinterpretq_u16_u8(vzip2q_u8(bytes, none));
        out[4 * i] = vsubq_f32(vreinterpretq_f32_u16(vzip1q_u16(left, above)), bias);
        out[4 * i + 1] = vsubq_f32(vreinterpretq_f32_u16(vzip2q_u16(left, above)), bias);
        out[4 * i + 2] = vsubq_f32(vreinterpretq_f32_u16(vzip1q_u16(right, above)), bias);
        out[4 * i + 3] = vsubq_f32(vreinterpretq_f32_u16(vzip2q_u16(right, above)), bias);
    }
}

// What stands first in four rows, which then go on by Size: half floats, two of them, exponents. Loads go on by themselves,
// and none waits for another, as loads of single lanes would.
#define STRETTO_HAS_NEXT
#define NEXT_FOUR(type, letter)                                                                             \
    type a, b, c, d;                                                                                        \
    asm volatile("ldr %" letter "0, [%4], %8\n\t"                                                           \
                 "ldr %" letter "1, [%5], %8\n\t"                                                           \
                 "ldr %" letter "2, [%6], %8\n\t"                                                           \
                 "ldr %" letter "3, [%7], %8"                                                               \
                 : "=&w"(a), "=&w"(b), "=&w"(c), "=&w"(d), "+r"(p[0]), "+r"(p[1]), "+r"(p[2]), "+r"(p[3])   \
                 : "i"(Size))
template <int Size>
ALWAYS Four halves_next(const uint8_t* (&p)[4]) {
    NEXT_FOUR(uint16x4_t, "h");
    const uint32x2_t low = vreinterpret_u32_u16(vzip1_u16(a, b)), high = vreinterpret_u32_u16(vzip1_u16(c, d));
    return vcvt_f32_f16(vreinterpret_f16_u32(vzip1_u32(low, high)));
}
template <int Size>
ALWAYS void pairs_next(const uint8_t* (&p)[4], Four& first, Four& second) {
    NEXT_FOUR(uint16x4_t, "s");
    const uint32x2_t low = vreinterpret_u32_u16(vzip1_u16(a, b)), high = vreinterpret_u32_u16(vzip1_u16(c, d));
    first = vcvt_f32_f16(vreinterpret_f16_u32(vzip1_u32(low, high)));
    second = vcvt_f32_f16(vreinterpret_f16_u32(vzip2_u32(low, high)));
}
template <int Size>
ALWAYS Four exponents_next(const uint8_t* (&p)[4]) {
    NEXT_FOUR(uint32x4_t, "b");
    const uint32x4_t e = vzip1q_u32(vzip1q_u32(a, c), vzip1q_u32(b, d));
    const uint32x4_t normal = vqsubq_u32(vshlq_n_u32(e, 23), vdupq_n_u32(1 << 23));
    return vreinterpretq_f32_u32(vmaxq_u32(normal, vaddq_u32(vdupq_n_u32(1 << 21), vshlq_n_u32(e, 21))));
}
#undef NEXT_FOUR

// Four rows of 32 bytes, four columns of each at a time, 64 bytes apart.
ALWAYS void interleave(const Bytes32 (&rows)[4], uint8_t* out) {
    for (int half = 0; half < 2; ++half) {
        uint32x4_t r[4];
        for (int i = 0; i < 4; ++i) r[i] = vreinterpretq_u32_u8(half ? rows[i].b : rows[i].a);
        const uint64x2_t a = vreinterpretq_u64_u32(vzip1q_u32(r[0], r[1])), b = vreinterpretq_u64_u32(vzip2q_u32(r[0], r[1]));
        const uint64x2_t c = vreinterpretq_u64_u32(vzip1q_u32(r[2], r[3])), d = vreinterpretq_u64_u32(vzip2q_u32(r[2], r[3]));
        const uint64x2_t quads[4] = {vzip1q_u64(a, c), vzip2q_u64(a, c), vzip1q_u64(b, d), vzip2q_u64(b, d)};
        for (int i = 0; i < 4; ++i) vst1q_u8(out + (half * 4 + i) * 64, vreinterpretq_u8_u64(quads[i]));
    }
}

// Eight columns of four rows of floats: 16 bits, or all 32.
template <typename Widen>
ALWAYS void eight_columns16(const uint8_t* const (&rows)[4], size_t k, Widen widen, Four (&out)[8]) {
    uint16x8_t r[4];
    for (int i = 0; i < 4; ++i) r[i] = vreinterpretq_u16_u8(vld1q_u8(rows[i] + 2 * k));
    const uint16x8_t a = vzip1q_u16(r[0], r[2]), b = vzip1q_u16(r[1], r[3]);
    const uint16x8_t c = vzip2q_u16(r[0], r[2]), d = vzip2q_u16(r[1], r[3]);
    const uint16x8_t pairs[4] = {vzip1q_u16(a, b), vzip2q_u16(a, b), vzip1q_u16(c, d), vzip2q_u16(c, d)};
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = widen(vget_low_u16(pairs[i]));
        out[2 * i + 1] = widen(vget_high_u16(pairs[i]));
    }
}
ALWAYS void eight_halves(const uint8_t* const (&rows)[4], size_t k, Four (&out)[8]) {
    eight_columns16(rows, k, [](uint16x4_t x) ALWAYS_LAMBDA { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }, out);
}
ALWAYS void eight_bf16(const uint8_t* const (&rows)[4], size_t k, Four (&out)[8]) {
    eight_columns16(rows, k, [](uint16x4_t x) ALWAYS_LAMBDA { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }, out);
}
