// The kernels, written once over the sixteen lanes that the vec_*.h header included before provides.
//
// What keeps the bits the same: every output is one reduction in one order. In a product that is block after
// block, exact integers within a block, then one multiplication and one fused addition; in attention
// chunk after chunk. Tiles only decide which of these run side by side.

#include <cfloat>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/kernels.h"

namespace stretto {
namespace STRETTO_ISA {

namespace {

#ifdef STRETTO_NO_UNROLL
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// -- small pieces --

// Sixteen scales; where they are coded, `times` is what the codes are multiplied with.
template <Scales S>
inline Floats load_scales(const uint8_t* p, [[maybe_unused]] Floats times) {
    if constexpr (S == Scales::kCoded) return mul(load_int8(reinterpret_cast<const int8_t*>(p)), times);
    if constexpr (S == Scales::kHalf) return load_half(reinterpret_cast<const uint16_t*>(p));
    if constexpr (S == Scales::kShort) return load_bf16(reinterpret_cast<const uint16_t*>(p));
    return load(reinterpret_cast<const float*>(p));
}

// e^x of some vectors, for x ≤ 88. Below −87 it stays at e^−87: who needs a zero puts it there. NaN stays NaN, as `max`
// answers with its second operand then. Between −ln 2 / 2 and ln 2 / 2 a polynomial of degree 6 is e^x but for 3e-9 of it:
// 1 + x + x² (c2 + c3 x + x² (c4 + c5 x + c6 x²)), as few of these steps wait for each other, and few constants are added to,
// which NEON has to copy for that.
template <size_t N>
inline void exponentials(Floats (&x)[N]) {
    constexpr float kC2 = 0.49999994f, kC3 = 0.1666652f, kC4 = 0.0416684f, kC5 = 0.00836885f, kC6 = 0.00138143f;
    Ints whole[N];
    Floats n[N], square[N], low[N], high[N];
    UNROLL for (size_t i = 0; i < N; ++i) x[i] = max(splat(-87.0f), x[i]);
    UNROLL for (size_t i = 0; i < N; ++i) whole[i] = round_to_int(mul(x[i], splat(1.44269504f)));
    UNROLL for (size_t i = 0; i < N; ++i) n[i] = to_float(whole[i]);
    UNROLL for (size_t i = 0; i < N; ++i) x[i] = fma(n[i], splat(-0.693359375f), x[i]);
    UNROLL for (size_t i = 0; i < N; ++i) x[i] = fma(n[i], splat(2.12194440e-4f), x[i]);
    UNROLL for (size_t i = 0; i < N; ++i) square[i] = mul(x[i], x[i]);
    UNROLL for (size_t i = 0; i < N; ++i) high[i] = fma(x[i], splat(kC5), splat(kC4));
    UNROLL for (size_t i = 0; i < N; ++i) high[i] = fma(square[i], splat(kC6), high[i]);
    UNROLL for (size_t i = 0; i < N; ++i) low[i] = fma(x[i], splat(kC3), splat(kC2));
    UNROLL for (size_t i = 0; i < N; ++i) low[i] = fma(square[i], high[i], low[i]);
    UNROLL for (size_t i = 0; i < N; ++i) x[i] = add(x[i], splat(1.0f));
    UNROLL for (size_t i = 0; i < N; ++i) x[i] = fma(square[i], low[i], x[i]);
    UNROLL for (size_t i = 0; i < N; ++i) x[i] = mul(x[i], pow2(whole[i]));
}
inline Floats exponential(Floats x) {
    Floats one[1] = {x};
    exponentials(one);
    return one[0];
}

// Calls f(lanes of x, where) for whole vectors, and for the rest on a copy padded with zeros.
template <typename F>
inline void each_vector(size_t n, F f) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) f(i, size_t{16});
    if (i < n) f(i, n - i);
}
inline Floats load_some(const float* p, size_t n) {
    if (n == 16) return load(p);
    float padded[16] = {};
    std::memcpy(padded, p, n * sizeof(float));
    return load(padded);
}
inline void store_some(float* p, Floats x, size_t n) {
    if (n == 16) return store(p, x);
    float padded[16];
    store(padded, x);
    std::memcpy(p, padded, n * sizeof(float));
}
#include "kernels/impl_rows.h"
#include "kernels/impl_matmul.h"
#include "kernels/impl_heads.h"
#include "kernels/impl_attention.h"
#include "kernels/impl_recurrent.h"

#undef UNROLL

}  // namespace

constexpr Kernels table(const char* name, const DirectKernels& direct) {
    return {name,     lanes, quantize,   quantize_pair, matmul, add_narrow, rms_norm,      add_rows,     silu,   gelu,
            gelu_erf, peaks, weigh,      store_head,    load_head, attend,  score_index, merge, convolve, correct_state, add_to_state, decay_state, &direct};
}

}  // namespace STRETTO_ISA
}  // namespace stretto
