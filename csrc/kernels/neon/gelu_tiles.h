// The exact GELU where a register has four lanes, in place of impl_rows.h's. Included by impl_attention.h, behind the constants
// of its exponents: they are loaded, since moves take the place of products.

#define FOUR_OF(x) {x, x, x, x}
// Φ(−|x|) = t (c1 + t (c2 + …)) e^(−x²/2), from the highest power on.
alignas(16) constexpr float kTailSeries[5][4] = {FOUR_OF(0.5307027145f), FOUR_OF(-0.7265760135f), FOUR_OF(0.7107068705f),
                                                 FOUR_OF(-0.142248368f), FOUR_OF(0.127414796f)};
// Of (e^r − 1 − r) / r² for |r| ≤ ln 2 / 2, and what stands before it.
alignas(16) constexpr float kExactSeries[6][4] = {FOUR_OF(1.0f),         FOUR_OF(0.5f),          FOUR_OF(0.16666576f),
                                                  FOUR_OF(0.041666463f), FOUR_OF(0.0083631817f), FOUR_OF(0.0013933653f)};
#undef FOUR_OF

ALWAYS Floats exact_gelu(Floats x) {
    const float32x4_t least = vdupq_n_f32(-87.0f), rounding = vdupq_n_f32(kRounding), minus_half = vdupq_n_f32(-0.5f);
    const float32x4_t ratio = vdupq_n_f32(1.44269504f), ln2 = vdupq_n_f32(0.693147181f);
    const float32x4_t slope = vdupq_n_f32(0.231641888f), one = vdupq_n_f32(1.0f), zero = vdupq_n_f32(0.0f);
    float32x4_t size[4], t[4], tail[4], r[4], whole[4], p[4];
    each<4>([&](auto i) ALWAYS_LAMBDA { size[i] = vabsq_f32(x.v[i]); });
    each<4>([&](auto i) ALWAYS_LAMBDA { t[i] = vfmaq_f32(loaded<float32x4_t>(kExactSeries[0]), size[i], slope); });
    each<4>([&](auto i) ALWAYS_LAMBDA { t[i] = vdivq_f32(one, t[i]); });
    each<4>([&](auto i) ALWAYS_LAMBDA { r[i] = vmaxq_f32(vmulq_f32(vmulq_f32(x.v[i], minus_half), x.v[i]), least); });
    each<4>([&](auto i) ALWAYS_LAMBDA { whole[i] = vfmaq_f32(loaded<float32x4_t>(kRoundings), r[i], ratio); });
    each<4>([&](auto i) ALWAYS_LAMBDA { r[i] = vfmsq_f32(r[i], vsubq_f32(whole[i], rounding), ln2); });
    each<4>([&](auto i) ALWAYS_LAMBDA {
        p[i] = vfmaq_f32(loaded<float32x4_t>(kExactSeries[4]), loaded<float32x4_t>(kExactSeries[5]), r[i]);
    });
    each<3>([&](auto k) ALWAYS_LAMBDA {
        each<4>([&](auto i) ALWAYS_LAMBDA { p[i] = vfmaq_f32(loaded<float32x4_t>(kExactSeries[3 - k]), p[i], r[i]); });
    });
    each<2>([&](auto) ALWAYS_LAMBDA {
        each<4>([&](auto i) ALWAYS_LAMBDA { p[i] = vfmaq_f32(loaded<float32x4_t>(kExactSeries[0]), p[i], r[i]); });
    });
    each<4>([&](auto i) ALWAYS_LAMBDA {
        const int32x4_t power = vshlq_n_s32(vreinterpretq_s32_f32(whole[i]), 23);
        p[i] = vmulq_f32(p[i], vreinterpretq_f32_s32(vaddq_s32(power, vreinterpretq_s32_f32(one))));
    });
    each<4>([&](auto i) ALWAYS_LAMBDA {
        tail[i] = vfmaq_f32(loaded<float32x4_t>(kTailSeries[1]), loaded<float32x4_t>(kTailSeries[0]), t[i]);
    });
    each<3>([&](auto k) ALWAYS_LAMBDA {
        each<4>([&](auto i) ALWAYS_LAMBDA { tail[i] = vfmaq_f32(loaded<float32x4_t>(kTailSeries[2 + k]), tail[i], t[i]); });
    });
    Floats result;
    each<4>([&](auto i) ALWAYS_LAMBDA {
        const float32x4_t below = vmulq_f32(vmulq_f32(tail[i], t[i]), p[i]);
        result.v[i] = vfmsq_f32(vmaxq_f32(x.v[i], zero), size[i], below);
    });
    return result;
}

void gelu_erf(float* gate, const float* up, size_t n) {
    each_vector(n, [&](size_t i, size_t m) {
        const Floats result = exact_gelu(load_some(gate + i, m));
        store_some(gate + i, up ? mul(result, load_some(up + i, m)) : result, m);
    });
}
