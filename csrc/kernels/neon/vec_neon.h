// Sixteen lanes in four NEON registers, integer products by the dot-product instructions.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace stretto {
namespace STRETTO_ISA {

#define STRETTO_HAS_TILES  // tiles.h multiplies quantised panels, attention_tiles.h attends

constexpr size_t kLanes = 4;
constexpr int kPanelsOne = 2;
constexpr int kPanels = 1;
constexpr int kColumns = 3;
constexpr size_t kHeads = 4;
constexpr size_t kStateSums = 1;  // sums of a state's rows side by side: as many as hide an addition's latency
constexpr int32_t kSumStart = 0x4b400000;

struct Floats { float32x4_t v[4]; };
struct Ints { int32x4_t v[4]; };

#define FOUR(expression) {{(expression(0)), (expression(1)), (expression(2)), (expression(3))}}

inline Floats splat(float x) { const float32x4_t v = vdupq_n_f32(x); return {{v, v, v, v}}; }
inline Floats load(const float* p) { return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}}; }
inline void store(float* p, Floats x) { for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]); }
inline float32x4_t half_four(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline Floats load_half(const uint16_t* p) { return {{half_four(p), half_four(p + 4), half_four(p + 8), half_four(p + 12)}}; }
inline void store_half(uint16_t* p, Floats x) {
    for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
inline float32x4_t bf16_four(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline Floats load_bf16(const uint16_t* p) { return {{bf16_four(p), bf16_four(p + 4), bf16_four(p + 8), bf16_four(p + 12)}}; }
#define E(i) vaddq_f32(x.v[i], y.v[i])
inline Floats add(Floats x, Floats y) { return FOUR(E); }
#undef E
#define E(i) vsubq_f32(x.v[i], y.v[i])
inline Floats sub(Floats x, Floats y) { return FOUR(E); }
#undef E
#define E(i) vmulq_f32(x.v[i], y.v[i])
inline Floats mul(Floats x, Floats y) { return FOUR(E); }
#undef E
#define E(i) vdivq_f32(x.v[i], y.v[i])
inline Floats div(Floats x, Floats y) { return FOUR(E); }
#undef E
#define E(i) vfmaq_f32(z.v[i], x.v[i], y.v[i])
inline Floats fma(Floats x, Floats y, Floats z) { return FOUR(E); }
#undef E
#define E(i) vmaxq_f32(x.v[i], y.v[i])
inline Floats max(Floats x, Floats y) { return FOUR(E); }
#undef E
#define E(i) vminq_f32(x.v[i], y.v[i])
inline Floats min(Floats x, Floats y) { return FOUR(E); }
#undef E
#define E(i) vabsq_f32(x.v[i])
inline Floats abs(Floats x) { return FOUR(E); }
#undef E
// Conversions take as long as four other operations. Below 2^22 in size numbers are rounded, to nearest even as well, by
// adding 1.5 × 2^23, and then the integer is in the lowest bits.
constexpr float kRounding = 12582912.0f;
constexpr int32_t kRoundingBits = 0x4b400000;
#define E(i) vsubq_f32(vreinterpretq_f32_s32(vaddq_s32(x.v[i], vdupq_n_s32(kRoundingBits))), vdupq_n_f32(kRounding))
inline Floats to_float(Ints x) { return FOUR(E); }
#undef E
#define E(i) vsubq_s32(vreinterpretq_s32_f32(vaddq_f32(x.v[i], vdupq_n_f32(kRounding))), vdupq_n_s32(kRoundingBits))
inline Ints round_to_int(Floats x) { return FOUR(E); }
#undef E
#define E(i) vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.v[i], vdupq_n_s32(127)), 23))
inline Floats pow2(Ints n) { return FOUR(E); }
#undef E
inline float reduce_add(Floats x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float reduce_max(Floats x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3]))); }
inline float largest_magnitude(Floats x, Floats y) {
    const Floats p = abs(x), q = abs(y);
    int32x4_t four = vdupq_n_s32(0);
    for (int i = 0; i < 4; ++i) {
        four = vmaxq_s32(four, vmaxq_s32(vreinterpretq_s32_f32(p.v[i]), vreinterpretq_s32_f32(q.v[i])));
    }
    const int32_t bits = vmaxvq_s32(four);
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    return largest;
}
inline Ints splat_int(int32_t x) { const int32x4_t v = vdupq_n_s32(x); return {{v, v, v, v}}; }
inline int32_t reduce_add_int(Ints x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3]))); }
inline void store_int8(int8_t* p, Ints x) {
    const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
inline Floats load_int8(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}

#undef FOUR

}  // namespace STRETTO_ISA
}  // namespace stretto
