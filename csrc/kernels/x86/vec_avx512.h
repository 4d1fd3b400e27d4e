// Sixteen lanes in one AVX-512 register, integer products by VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "weights/packed.h"

namespace stretto {
namespace STRETTO_ISA {

constexpr size_t kLanes = 1;  // rows of activations that stand together
constexpr int kPanelsOne = 4;
constexpr size_t kFewColumns = 2;  // that take so many panels: one, or a token's two in high precision
constexpr int kPanels = 2;
constexpr int kColumns = 6;
constexpr int kWideBias = 128;  // vpdpbusd takes bytes as unsigned, so 128 × the activations' sum stays in
constexpr size_t kHeads = 8;  // of a group that attention takes together
constexpr size_t kStateSums = 4;  // sums of a state's rows side by side: as many as hide an addition's latency
constexpr size_t kUnpackFrom = 32;       // columns for which nibbles are unpacked in advance; 0: never
constexpr int32_t kSumStart = 0x4b400000;  // sums end as floats that are too large by kFloatBias

using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;
using Quad = __m512i;

inline Floats splat(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
inline Floats load_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_half(uint16_t* p, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
inline Floats load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats abs(Floats a) { return _mm512_abs_ps(a); }
inline Floats to_float(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Ints round_to_int(Floats a) { return _mm512_cvtps_epi32(a); }
inline Floats pow2(Ints n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
inline float reduce_add(Floats a) {
    const __m256 high = _mm512_extractf32x8_ps(a, 1);
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float reduce_max(Floats a) { return _mm512_reduce_max_ps(a); }
inline float largest_magnitude(Floats a, Floats b) {
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const __m512i x = _mm512_and_si512(_mm512_castps_si512(a), mask), y = _mm512_and_si512(_mm512_castps_si512(b), mask);
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(_mm512_max_epi32(x, y)))));
}
inline Ints splat_int(int32_t x) { return _mm512_set1_epi32(x); }
inline int32_t reduce_add_int(Ints a) { return _mm512_reduce_add_epi32(a); }
inline void store_int8(int8_t* p, Ints a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}
inline Floats load_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

#define STRETTO_HAS_SPLAT_HALF
inline Floats splat_half(const uint8_t* p) {
    uint16_t half;
    std::memcpy(&half, p, 2);
    return splat(_cvtsh_ss(half));
}

// Sums of small products: here they are the sums themselves.
using Smalls = Ints;
inline Smalls begin_small(Ints s) { return s; }
inline Ints end_small(Ints, Smalls s) { return s; }

inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_bytes(uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a); }
inline Bytes low_half(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline Bytes high_half(Bytes a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
// `low` with some bits of x above its four: those from bit `at` on that `mask` lets through.
inline Bytes with_bits(Bytes low, Bytes x, int at, int mask) {
    const Bytes moved = at < 4 ? _mm512_slli_epi16(x, 4 - at) : _mm512_srli_epi16(x, at - 4);
    return _mm512_ternarylogic_epi32(low, moved, _mm512_set1_epi8(static_cast<char>(mask << 4)), 0xf8);
}
// Six bits of each byte, and what the other two of three make: the lowest are the first's.
inline Bytes low_six(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(63)); }
inline Bytes fourth_six(Bytes x, Bytes y, Bytes z) {
    x = _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), _mm512_srli_epi16(x, 6), _mm512_srli_epi16(y, 4), 0xca);
    return low_six(_mm512_ternarylogic_epi32(_mm512_set1_epi8(15), x, _mm512_srli_epi16(z, 2), 0xca));
}
// What nibbles choose of kE2m1Bytes.
inline Bytes levels(Bytes x) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Bytes));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x);
}
inline Quad quad(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}
#define STRETTO_HAS_SUMS16
// Lane j of the result is the sum of a[j]'s lanes: the vectors are folded pairwise, four times.
static inline Floats sums16(const Floats* a) {
    Floats four[4];
    for (int i = 0; i < 4; ++i) {
        const Floats* x = a + 4 * i;
        const Floats left = add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
        const Floats right = add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
        const __m512d l = _mm512_castps_pd(left), r = _mm512_castps_pd(right);
        four[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(l, r)), _mm512_castpd_ps(_mm512_unpackhi_pd(l, r)));
    }
    const Floats low = add(_mm512_shuffle_f32x4(four[0], four[1], 0x88), _mm512_shuffle_f32x4(four[0], four[1], 0xdd));
    const Floats high = add(_mm512_shuffle_f32x4(four[2], four[3], 0x88), _mm512_shuffle_f32x4(four[2], four[3], 0xdd));
    return add(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

// Sums that began at kSumStart are floats; see kFloatBias in impl_matmul.h.
inline Floats scaled_sum(Ints s, Floats d, Floats bias) { return fma(_mm512_castsi512_ps(s), d, bias); }
inline Ints dot_small(Ints s, Bytes w, Quad a) { return _mm512_dpbusd_epi32(s, w, a); }
inline Ints dot_six(Ints s, Bytes w, Quad a) { return _mm512_dpbusd_epi32(s, w, a); }
inline Ints dot_wide(Ints s, Bytes w, Quad a) { return _mm512_dpbusd_epi32(s, w, a); }

}  // namespace STRETTO_ISA
}  // namespace stretto
