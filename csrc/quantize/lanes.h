// Eight floats at a time, one for each of eight groups of numbers that are quantised together.
//
// A group's sums are taken in the order of its numbers and nothing is contracted, so results are the same bits on every
// machine. Written with the compilers' vectors of four, which every processor has. Numbers are finite throughout: inverses are
// bounded, so that no product of them and what is quantised overflows.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stretto {

constexpr size_t kLanes = 8;

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));

struct Mask {
    Int4 a, b;
};

struct Lanes {
    Float4 a, b;

    Lanes() = default;
    Lanes(Float4 first, Float4 second) : a(first), b(second) {}
    Lanes(float value) : a{value, value, value, value}, b{value, value, value, value} {}

    float operator[](size_t lane) const { return lane < 4 ? a[lane] : b[lane - 4]; }
    void set(size_t lane, float value) { lane < 4 ? a[lane] = value : b[lane - 4] = value; }
};

inline Lanes operator+(Lanes x, Lanes y) { return {x.a + y.a, x.b + y.b}; }
inline Lanes operator-(Lanes x, Lanes y) { return {x.a - y.a, x.b - y.b}; }
inline Lanes operator*(Lanes x, Lanes y) { return {x.a * y.a, x.b * y.b}; }
inline Lanes operator/(Lanes x, Lanes y) { return {x.a / y.a, x.b / y.b}; }
inline Lanes operator-(Lanes x) { return {-x.a, -x.b}; }
// Columns of four vectors become rows.
inline void transpose(Float4* v) {
#if defined(__ARM_NEON)
    const float32x4x2_t even = vzipq_f32(v[0], v[2]), odd = vzipq_f32(v[1], v[3]);
    const float32x4x2_t first = vzipq_f32(even.val[0], odd.val[0]), last = vzipq_f32(even.val[1], odd.val[1]);
    v[0] = first.val[0], v[1] = first.val[1], v[2] = last.val[0], v[3] = last.val[1];
#elif defined(__SSE2__)
    const __m128 even_low = _mm_unpacklo_ps(v[0], v[2]), even_high = _mm_unpackhi_ps(v[0], v[2]);
    const __m128 odd_low = _mm_unpacklo_ps(v[1], v[3]), odd_high = _mm_unpackhi_ps(v[1], v[3]);
    v[0] = _mm_unpacklo_ps(even_low, odd_low), v[1] = _mm_unpackhi_ps(even_low, odd_low);
    v[2] = _mm_unpacklo_ps(even_high, odd_high), v[3] = _mm_unpackhi_ps(even_high, odd_high);
#else
    const Float4 old[4] = {v[0], v[1], v[2], v[3]};
    for (size_t i = 0; i < 4; ++i) v[i] = Float4{old[0][i], old[1][i], old[2][i], old[3][i]};
#endif
}

inline Mask operator<(Lanes x, Lanes y) { return {x.a < y.a, x.b < y.b}; }
inline Mask operator>(Lanes x, Lanes y) { return y < x; }

inline Float4 select(Int4 mask, Float4 yes, Float4 no) {
    Int4 x, y;
    std::memcpy(&x, &yes, sizeof x);
    std::memcpy(&y, &no, sizeof y);
    const Int4 bits = (mask & x) | (~mask & y);
    Float4 out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}
inline Lanes select(Mask mask, Lanes yes, Lanes no) { return {select(mask.a, yes.a, no.a), select(mask.b, yes.b, no.b)}; }

#if defined(__SSE2__)
inline Float4 least(Float4 x, Float4 y) { return _mm_min_ps(x, y); }
inline Float4 most(Float4 x, Float4 y) { return _mm_max_ps(x, y); }
#elif defined(__ARM_NEON)
inline Float4 least(Float4 x, Float4 y) { return vminq_f32(x, y); }
inline Float4 most(Float4 x, Float4 y) { return vmaxq_f32(x, y); }
#else
inline Float4 least(Float4 x, Float4 y) { return select(x < y, x, y); }
inline Float4 most(Float4 x, Float4 y) { return select(x < y, y, x); }
#endif
inline Lanes least(Lanes x, Lanes y) { return {least(x.a, y.a), least(x.b, y.b)}; }
inline Lanes most(Lanes x, Lanes y) { return {most(x.a, y.a), most(x.b, y.b)}; }
inline Lanes magnitude(Lanes x) { return most(x, -x); }
// To the nearest integer, ties to even; of at most 2^22.
inline Lanes nearest(Lanes x) {
    const Lanes shift(12582912.0f);
    return (x + shift) - shift;
}
inline Lanes cut(Lanes x, float low, float high) { return least(most(x, low), high); }
// 1 / x, and 0 for what is hardly more than 0.
inline Lanes inverse(Lanes x) {
    const Mask there = Lanes(1e-30f) < magnitude(x);
    return select(there, Lanes(1.0f) / select(there, x, 1.0f), 0.0f);
}

}  // namespace stretto
