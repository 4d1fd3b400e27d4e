// Sixteen lanes in two AVX2 registers, with FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "weights/packed.h"

namespace stretto {
namespace STRETTO_ISA {

constexpr size_t kLanes = 1;  // rows of activations that stand together
constexpr int kPanelsOne = 2;
constexpr size_t kFewColumns = 1;
constexpr int kPanels = 1;
constexpr int kColumns = 2;
constexpr int kWideBias = 0;
constexpr size_t kHeads = 4;
constexpr size_t kStateSums = 2;  // sums of a state's rows side by side: as many as hide an addition's latency
constexpr size_t kUnpackFrom = 16;
constexpr int32_t kSumStart = 0x4b400000;

struct Floats { __m256 a, b; };
struct Ints { __m256i a, b; };
struct Bytes { __m256i a, b; };
using Quad = __m256i;

inline Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline Floats load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 8))};
}
inline void store_half(uint16_t* p, Floats x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256 bf16_eight(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline Floats load_bf16(const uint16_t* p) { return {bf16_eight(load128(p)), bf16_eight(load128(p + 8))}; }
inline Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats sub(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats mul(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats div(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Floats fma(Floats x, Floats y, Floats z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Floats abs(Floats x) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
inline Floats to_float(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Ints round_to_int(Floats x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline __m256 pow2_eight(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
inline Floats pow2(Ints n) { return {pow2_eight(n.a), pow2_eight(n.b)}; }
inline float reduce_add(Floats x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float reduce_max(Floats x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline float largest_magnitude(Floats x, Floats y) {
    const Floats p = abs(x), q = abs(y);
    const __m256i first = _mm256_max_epi32(_mm256_castps_si256(p.a), _mm256_castps_si256(p.b));
    const __m256i second = _mm256_max_epi32(_mm256_castps_si256(q.a), _mm256_castps_si256(q.b));
    const __m256i eight = _mm256_max_epi32(first, second);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1))));
}
inline Ints splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline int32_t reduce_add_int(Ints x) {
    const __m256i eight = _mm256_add_epi32(x.a, x.b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
inline void store_int8(int8_t* p, Ints x) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(low, high));
}
inline Floats load_int8(const int8_t* p) {
    const __m128i bytes = load128(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

inline __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
#define STRETTO_HAS_SPLAT_HALF
inline Floats splat_half(const uint8_t* p) {
    uint16_t half;
    std::memcpy(&half, p, 2);
    return splat(_cvtsh_ss(half));
}

inline Bytes load_bytes(const uint8_t* p) { return {load256(p), load256(p + 32)}; }
inline void store_bytes(uint8_t* p, Bytes x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), x.b);
}
inline Bytes low_half(Bytes x) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline Bytes high_half(Bytes x) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), mask)};
}
inline __m256i with_bits_32(__m256i low, __m256i x, int at, int mask) {
    const __m256i moved = at < 4 ? _mm256_slli_epi16(x, 4 - at) : _mm256_srli_epi16(x, at - 4);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(mask << 4))));
}
inline Bytes with_bits(Bytes low, Bytes x, int at, int mask) {
    return {with_bits_32(low.a, x.a, at, mask), with_bits_32(low.b, x.b, at, mask)};
}
// Six bits of each byte, and what the other two of three make: the lowest are the first's.
inline __m256i low_six_32(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(63)); }
inline Bytes low_six(Bytes x) { return {low_six_32(x.a), low_six_32(x.b)}; }
inline __m256i fourth_six_32(__m256i x, __m256i y, __m256i z) {
    x = _mm256_and_si256(_mm256_srli_epi16(x, 6), _mm256_set1_epi8(3));
    y = _mm256_and_si256(_mm256_srli_epi16(y, 4), _mm256_set1_epi8(12));
    z = _mm256_and_si256(_mm256_srli_epi16(z, 2), _mm256_set1_epi8(48));
    return _mm256_or_si256(_mm256_or_si256(x, y), z);
}
inline Bytes fourth_six(Bytes x, Bytes y, Bytes z) {
    return {fourth_six_32(x.a, y.a, z.a), fourth_six_32(x.b, y.b, z.b)};
}
// What nibbles choose of kE2m1Bytes.
inline Bytes levels(Bytes x) {
    const __m256i table = _mm256_broadcastsi128_si256(load128(kE2m1Bytes));
    return {_mm256_shuffle_epi8(table, x.a), _mm256_shuffle_epi8(table, x.b)};
}
inline Quad quad(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}
// Sums that began at kSumStart are floats; see kFloatBias in impl_matmul.h.
inline Floats scaled_sum(Ints s, Floats d, Floats bias) {
    return fma({_mm256_castsi256_ps(s.a), _mm256_castsi256_ps(s.b)}, d, bias);
}

// Sums of small products: all eight of a block fit into 16 bits, 8 × 2 × 15 × 127 = 30480.
struct Smalls { __m256i a, b; };
inline Smalls begin_small(Ints) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Smalls dot_small(Smalls s, Bytes w, Quad a) {
    return {_mm256_add_epi16(s.a, _mm256_maddubs_epi16(w.a, a)), _mm256_add_epi16(s.b, _mm256_maddubs_epi16(w.b, a))};
}
inline __m256i add_pairs(__m256i s, __m256i pairs) {
    return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Ints end_small(Ints s, Smalls x) { return {add_pairs(s.a, x.a), add_pairs(s.b, x.b)}; }

// Up to six bits: two products fit into 16.
inline Ints dot_six(Ints s, Bytes w, Quad a) {
    return {add_pairs(s.a, _mm256_maddubs_epi16(w.a, a)), add_pairs(s.b, _mm256_maddubs_epi16(w.b, a))};
}

// Signed weights: |w| × (a with w's sign). 128 × 127 × 2 = 32512 still fits.
inline __m256i dot_signed(__m256i s, __m256i w, __m256i a) {
    w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    return add_pairs(s, _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w)));
}
inline Ints dot_wide(Ints s, Bytes w, Quad a) { return {dot_signed(s.a, w.a, a), dot_signed(s.b, w.b, a)}; }

}  // namespace STRETTO_ISA
}  // namespace stretto
