// 32 bytes of a row, and sums of four rows, in AVX2 registers: for direct_formats.h and direct_impl.h. With VNNI, products
// take one instruction.
#pragma once

constexpr bool kMinimaFirst = false;  // as in impl_matmul.h
constexpr bool kTwoAtOnce = false;  // blocks whose sums are scaled together
constexpr int kAhead = 512;  // bytes of a long row that are asked for in advance
constexpr size_t kShortRow = 2048;  // bytes: of these the next four rows are asked for
constexpr size_t kShortUnits = 0;  // the same for formats with units of many blocks
constexpr size_t kDirectLanes = 1;  // activations that stand together where there are several columns
constexpr int32_t kSumStart = 0x4b400000;

using Bytes32 = __m256i;
using Four = __m128;
using FourInts = __m128i;
template <int Groups>
struct Sums { __m256i v; };  // the halves belong to the halves of a block

ALWAYS __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
ALWAYS Bytes32 load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
using Bytes16 = __m128i;
ALWAYS Bytes16 load16b(const uint8_t* p) { return load128(p); }
ALWAYS Bytes32 nibbles(Bytes16 both) {
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), _mm256_set1_epi8(15));
}
ALWAYS Bytes32 splat8(uint8_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
template <int Shift, int Mask>
ALWAYS Bytes32 field(Bytes32 x) {
    if constexpr (Shift > 0) x = _mm256_srli_epi16(x, Shift);
    if constexpr (Shift < 0) x = _mm256_slli_epi16(x, -Shift);
    return _mm256_and_si256(x, _mm256_set1_epi8(static_cast<char>(Mask)));
}
// x with the field of y beside its own bits.
template <int Shift, int Mask>
ALWAYS Bytes32 with_field(Bytes32 x, Bytes32 y) { return _mm256_or_si256(x, field<Shift, Mask>(y)); }
ALWAYS Bytes32 add8(Bytes32 x, Bytes32 y) { return _mm256_add_epi8(x, y); }
ALWAYS Bytes32 sub8(Bytes32 x, Bytes32 y) { return _mm256_sub_epi8(x, y); }
ALWAYS Bytes32 xor8(Bytes32 x, Bytes32 y) { return _mm256_xor_si256(x, y); }
ALWAYS Bytes32 at_least(Bytes32 x, uint8_t least) { return _mm256_cmpeq_epi8(_mm256_max_epu8(x, splat8(least)), x); }
ALWAYS Bytes32 chosen(const int8_t* table, Bytes32 x) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(table)), x);
}
ALWAYS Bytes32 spread_bits(uint32_t bits) {
    const __m256i bytes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i each = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), bytes);
    return _mm256_cmpeq_epi8(_mm256_and_si256(all, each), each);
}
ALWAYS Bytes32 of_words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return _mm256_setr_epi64x(static_cast<int64_t>(a), static_cast<int64_t>(b), static_cast<int64_t>(c),
                              static_cast<int64_t>(d));
}
ALWAYS Bytes32 swap_middle(Bytes32 x) { return _mm256_permute4x64_epi64(x, 0xd8); }

// Sums that begin with one number each.
template <int Groups>
ALWAYS Sums<Groups> begin_sums(const int32_t* at) {
    return {_mm256_set_m128i(Groups == 2 ? _mm_cvtsi32_si128(at[Groups - 1]) : _mm_setzero_si128(), _mm_cvtsi32_si128(at[0]))};
}
template <bool Unsigned, int Groups>
ALWAYS void add_products(Sums<Groups>& s, Bytes32 w, Bytes32 x) {
    if constexpr (!Unsigned) {
        x = _mm256_sign_epi8(x, w);
        w = _mm256_abs_epi8(w);
    }
#ifdef STRETTO_HAS_VNNI
    s.v = _mm256_dpbusd_epi32(s.v, w, x);
#else
    // Two products fit into 16 bits: 128 × 127 × 2.
    s.v = _mm256_add_epi32(s.v, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
#endif
}
template <int Groups>
ALWAYS void fold(const Sums<Groups> (&s)[4], FourInts (&out)[Groups]) {
    const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0].v, s[1].v), _mm256_hadd_epi32(s[2].v, s[3].v));
    const __m128i low = _mm256_castsi256_si128(all), high = _mm256_extracti128_si256(all, 1);
    out[0] = Groups == 2 ? low : _mm_add_epi32(low, high);
    if constexpr (Groups == 2) out[1] = high;
}

ALWAYS Four splat4(float x) { return _mm_set1_ps(x); }
ALWAYS Four load4(const float* p) { return _mm_loadu_ps(p); }
ALWAYS void store4(float* p, Four x) { _mm_storeu_ps(p, x); }
ALWAYS Four mul4(Four x, Four y) { return _mm_mul_ps(x, y); }
ALWAYS Four neg4(Four x) { return _mm_xor_ps(x, _mm_set1_ps(-0.0f)); }
ALWAYS Four fma4(Four x, Four y, Four z) { return _mm_fmadd_ps(x, y, z); }
ALWAYS Four scaled(FourInts s, Four d) {
    return _mm_fmadd_ps(_mm_castsi128_ps(s), d, _mm_mul_ps(d, _mm_set1_ps(-kFloatBias)));
}
ALWAYS Four halves(uint64_t four) { return _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<int64_t>(four))); }

ALWAYS void codes_of(const uint8_t (&rows)[4][16], Four (&out)[16]) {
    const __m128i a = load128(rows[0]), b = load128(rows[1]), c = load128(rows[2]), d = load128(rows[3]);
    const __m128i low[2] = {_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d)};
    const __m128i high[2] = {_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d)};
    const __m128i fours[4] = {_mm_unpacklo_epi16(low[0], low[1]), _mm_unpackhi_epi16(low[0], low[1]),
                              _mm_unpacklo_epi16(high[0], high[1]), _mm_unpackhi_epi16(high[0], high[1])};
    for (int i = 0; i < 4; ++i) {
        out[4 * i] = _mm_cvtepi32_ps(_mm_cvtepi8_epi32(fours[i]));
        out[4 * i + 1] = _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_srli_si128(fours[i], 4)));
        out[4 * i + 2] = _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_srli_si128(fours[i], 8)));
        out[4 * i + 3] = _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_srli_si128(fours[i], 12)));
    }
}

ALWAYS void interleave(const Bytes32 (&rows)[4], uint8_t* out) {
    const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
    const __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    const __m256i quads[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
                              _mm256_unpackhi_epi64(b, d)};
    for (int i = 0; i < 4; ++i) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * 64), _mm256_castsi256_si128(quads[i]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (4 + i) * 64), _mm256_extracti128_si256(quads[i], 1));
    }
}

// Eight columns of four rows.
template <typename Widen>
ALWAYS void eight_columns16(const uint8_t* const (&rows)[4], size_t k, Widen widen, Four (&out)[8]) {
    __m256 r[4];
    for (int i = 0; i < 4; ++i) r[i] = widen(load128(rows[i] + 2 * k));
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1])), b = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
    const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3])), d = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
    const __m256d columns[4] = {_mm256_unpacklo_pd(a, c), _mm256_unpackhi_pd(a, c), _mm256_unpacklo_pd(b, d),
                                _mm256_unpackhi_pd(b, d)};
    for (int i = 0; i < 4; ++i) {
        out[i] = _mm256_castps256_ps128(_mm256_castpd_ps(columns[i]));
        out[4 + i] = _mm256_extractf128_ps(_mm256_castpd_ps(columns[i]), 1);
    }
}
ALWAYS void eight_halves(const uint8_t* const (&rows)[4], size_t k, Four (&out)[8]) {
    eight_columns16(rows, k, [](__m128i x) ALWAYS_LAMBDA { return _mm256_cvtph_ps(x); }, out);
}
ALWAYS void eight_bf16(const uint8_t* const (&rows)[4], size_t k, Four (&out)[8]) {
    eight_columns16(rows, k, [](__m128i x) ALWAYS_LAMBDA {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    }, out);
}
