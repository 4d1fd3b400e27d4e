// Sixteen lanes in plain C++: the path that exists everywhere, and what the others are tested against.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "weights/half.h"
#include "weights/packed.h"

namespace stretto {
namespace STRETTO_ISA {

constexpr size_t kLanes = 1;  // rows of activations that stand together
constexpr int kPanelsOne = 1;   // panels at once for few columns
constexpr size_t kFewColumns = 1;  // that these are, at most 2
constexpr int kPanels = 1;      // panels at once for several columns
constexpr int kColumns = 2;     // columns at once
constexpr int kWideBias = 0;    // what dot_wide leaves in: nothing
constexpr size_t kHeads = 4;  // of a group that attention takes together
constexpr size_t kStateSums = 1;  // sums of a state's rows side by side: as many as hide an addition's latency
constexpr size_t kUnpackFrom = 0;  // columns for which nibbles are unpacked in advance: never
constexpr int32_t kSumStart = 0;   // sums of products are plain integers

struct Floats { float v[16]; };
struct Ints { int32_t v[16]; };
struct Bytes { uint8_t v[64]; };
struct Quad { int8_t v[4]; };

#define EACH_LANE for (int i = 0; i < 16; ++i)

inline Floats splat(float x) { Floats r; EACH_LANE r.v[i] = x; return r; }
inline Floats load(const float* p) { Floats r; std::memcpy(r.v, p, sizeof r.v); return r; }
inline void store(float* p, Floats a) { std::memcpy(p, a.v, sizeof a.v); }
inline Floats load_half(const uint16_t* p) { Floats r; EACH_LANE r.v[i] = half_to_float(p[i]); return r; }
inline void store_half(uint16_t* p, Floats a) { EACH_LANE p[i] = float_to_half(a.v[i]); }
inline Floats load_bf16(const uint16_t* p) { Floats r; EACH_LANE r.v[i] = bf16_to_float(p[i]); return r; }
inline Floats add(Floats a, Floats b) { EACH_LANE a.v[i] += b.v[i]; return a; }
inline Floats sub(Floats a, Floats b) { EACH_LANE a.v[i] -= b.v[i]; return a; }
inline Floats mul(Floats a, Floats b) { EACH_LANE a.v[i] *= b.v[i]; return a; }
inline Floats div(Floats a, Floats b) { EACH_LANE a.v[i] /= b.v[i]; return a; }
// Not fused here: a fused one without an instruction for it would be very slow.
inline Floats fma(Floats a, Floats b, Floats c) { EACH_LANE c.v[i] += a.v[i] * b.v[i]; return c; }
inline Floats max(Floats a, Floats b) { EACH_LANE a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
inline Floats min(Floats a, Floats b) { EACH_LANE a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
inline Floats abs(Floats a) { EACH_LANE a.v[i] = std::fabs(a.v[i]); return a; }
inline Floats to_float(Ints a) { Floats r; EACH_LANE r.v[i] = static_cast<float>(a.v[i]); return r; }
// To even at the half. What no integer is, NaN too, becomes the lowest one.
inline int32_t round_one(float x) {
    return x >= -0x1p31f && x < 0x1p31f ? static_cast<int32_t>(std::nearbyint(x)) : INT32_MIN;
}
inline Ints round_to_int(Floats a) { Ints r; EACH_LANE r.v[i] = round_one(a.v[i]); return r; }
// 2^n for n from -126 to 127
inline Floats pow2(Ints n) {
    Floats r;
    EACH_LANE r.v[i] = float_of_bits(static_cast<uint32_t>(n.v[i] + 127) << 23);
    return r;
}
inline float reduce_add(Floats a) {
    for (int step = 8; step; step /= 2) for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
    return a.v[0];
}
inline float reduce_max(Floats a) {
    float m = a.v[0];
    EACH_LANE m = a.v[i] > m ? a.v[i] : m;
    return m;
}
// The largest magnitude of 32 numbers; NaN is larger than all. As bits, magnitudes have the order of integers.
inline float largest_magnitude(Floats a, Floats b) {
    uint32_t m = 0;
    EACH_LANE {
        const uint32_t x = bits_of_float(a.v[i]) & 0x7fffffff, y = bits_of_float(b.v[i]) & 0x7fffffff;
        m = x > m ? x : m;
        m = y > m ? y : m;
    }
    return float_of_bits(m);
}
inline Ints splat_int(int32_t x) { Ints r; EACH_LANE r.v[i] = x; return r; }
inline int32_t reduce_add_int(Ints a) { int32_t s = 0; EACH_LANE s += a.v[i]; return s; }
// The low bytes of 16 integers from -127 to 127.
inline void store_int8(int8_t* p, Ints a) { EACH_LANE p[i] = static_cast<int8_t>(a.v[i]); }
inline Floats load_int8(const int8_t* p) { Floats r; EACH_LANE r.v[i] = p[i]; return r; }

// Sums of small products: here they are the sums themselves.
using Smalls = Ints;
inline Smalls begin_small(Ints s) { return s; }
inline Ints end_small(Ints, Smalls s) { return s; }

inline Bytes load_bytes(const uint8_t* p) { Bytes r; std::memcpy(r.v, p, sizeof r.v); return r; }
inline void store_bytes(uint8_t* p, Bytes a) { std::memcpy(p, a.v, sizeof a.v); }
inline Bytes low_half(Bytes a) { for (uint8_t& x : a.v) x &= 15; return a; }
inline Bytes high_half(Bytes a) { for (uint8_t& x : a.v) x >>= 4; return a; }
// `low` with some bits of x above its four: those from bit `at` on that `mask` lets through.
inline Bytes with_bits(Bytes low, Bytes x, int at, int mask) {
    for (int i = 0; i < 64; ++i) low.v[i] = static_cast<uint8_t>(low.v[i] | (x.v[i] >> at & mask) << 4);
    return low;
}
// Six bits of each byte, and what the other two of three make: the lowest are the first's.
inline Bytes low_six(Bytes a) { for (uint8_t& x : a.v) x &= 63; return a; }
inline Bytes fourth_six(Bytes a, Bytes b, Bytes c) {
    for (int i = 0; i < 64; ++i) a.v[i] = static_cast<uint8_t>(a.v[i] >> 6 | b.v[i] >> 6 << 2 | c.v[i] >> 6 << 4);
    return a;
}
// What nibbles choose of kE2m1Bytes.
inline Bytes levels(Bytes a) { for (uint8_t& x : a.v) x = kE2m1Bytes[x]; return a; }
inline Quad quad(const int8_t* p) { Quad r; std::memcpy(r.v, p, 4); return r; }
// A sum of products times its scale; `bias` is for those whose sums do not begin at zero.
inline Floats scaled_sum(Ints s, Floats d, Floats) { return mul(to_float(s), d); }
// Lane i gains the products of its four bytes with the four activations; bytes from 0 to 15.
inline Ints dot_small(Ints s, Bytes w, Quad a) {
    EACH_LANE for (int j = 0; j < 4; ++j) s.v[i] += w.v[4 * i + j] * a.v[j];
    return s;
}
// The same for bytes from 0 to 63.
inline Ints dot_six(Ints s, Bytes w, Quad a) { return dot_small(s, w, a); }
// The same for bytes that stand for (byte - 128).
inline Ints dot_wide(Ints s, Bytes w, Quad a) {
    EACH_LANE for (int j = 0; j < 4; ++j) s.v[i] += (w.v[4 * i + j] - 128) * a.v[j];
    return s;
}

#undef EACH_LANE

}  // namespace STRETTO_ISA
}  // namespace stretto
