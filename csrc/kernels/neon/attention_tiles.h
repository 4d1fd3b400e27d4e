// The inner loops of attention where a register has four lanes. Included by impl_attention.h, in place of those over
// sixteen: four cells × up to four heads are 16 registers of sums, 16 lanes × four heads are as many of mixed values.
//
// A score is summed up in four lanes, whatever K is read from, and a value's weights are added cell after cell.

#define FOUR_OF(x) {x, x, x, x}
// e^r for |r| ≤ ln 2 / 2, to 9e-8 of itself and exact at 0.
alignas(16) constexpr float kSeries[6][4] = {FOUR_OF(1.0f),         FOUR_OF(0.9999997f),   FOUR_OF(0.4999915f),
                                             FOUR_OF(0.16667637f),  FOUR_OF(0.041897975f), FOUR_OF(0.008290307f)};
alignas(16) constexpr float kRoundings[4] = FOUR_OF(kRounding);
constexpr float kPower = kRounding + 127.0f;  // a whole number added to it is a power of two 23 bits further up
alignas(16) constexpr float kPowers[4] = FOUR_OF(kPower);
#undef FOUR_OF

// A chunk's scores become e^(score − top), to 2e-7 of itself near 0 and to 4e-7 at −87, where it stays. It has four operations
// less than `exponential`, and constants are loaded, since moves take the place of products. Eight registers at once: of four
// the processor would wait for results.
ALWAYS void make_weights(float* scores, Floats top) {
    const float32x4_t least = vdupq_n_f32(-87.0f), rounding = vdupq_n_f32(kPower);
    const float32x4_t ratio = vdupq_n_f32(1.44269504f), ln2 = vdupq_n_f32(0.693147181f);
    float32x4_t whole[8], r[8], p[8];
    each<8>([&](auto i) ALWAYS_LAMBDA { r[i] = vmaxq_f32(vsubq_f32(vld1q_f32(scores + 4 * i), top.v[0]), least); });
    each<8>([&](auto i) ALWAYS_LAMBDA { whole[i] = vfmaq_f32(loaded<float32x4_t>(kPowers), r[i], ratio); });
    each<8>([&](auto i) ALWAYS_LAMBDA { r[i] = vfmsq_f32(r[i], vsubq_f32(whole[i], rounding), ln2); });
    each<8>([&](auto i) ALWAYS_LAMBDA { p[i] = vfmaq_f32(loaded<float32x4_t>(kSeries[4]), vdupq_n_f32(kSeries[5][0]), r[i]); });
    each<4>([&](auto k) ALWAYS_LAMBDA {
        each<8>([&](auto i) ALWAYS_LAMBDA { p[i] = vfmaq_f32(loaded<float32x4_t>(kSeries[3 - k]), p[i], r[i]); });
    });
    each<8>([&](auto i) ALWAYS_LAMBDA {
        const int32x4_t power = vshlq_n_s32(vreinterpretq_s32_f32(whole[i]), 23);
        vst1q_f32(scores + 4 * i, vmulq_f32(p[i], vreinterpretq_f32_s32(power)));
    });
}

// The scores of a chunk's cells with one row's H heads of T vectors (0: `vectors` says how many).
template <int H, int T, Source From>
void score_chunk(Cells keys, Cells, size_t vectors, const float* queries, float scale, float cap, float* scores) {
    static_assert(From == Source::kFloats, "half floats and bytes have loops of their own");
    if constexpr (T > 0) vectors = T;
    const size_t size = 16 * vectors;
    for (size_t j = 0; j < kChunk; j += 4) {
        float32x4_t sums[4][H];
        each<4>([&](auto c) ALWAYS_LAMBDA { each<H>([&](auto h) ALWAYS_LAMBDA { sums[c][h] = vdupq_n_f32(0.0f); }); });
        const float* k[4];
        each<4>([&](auto c) ALWAYS_LAMBDA { k[c] = reinterpret_cast<const float*>(keys[j + c]); });
        for (size_t i = 0; i < size; i += 8) {
            float32x4_t low[H], high[H];
            each<H>([&](auto h) ALWAYS_LAMBDA {
                low[h] = vld1q_f32(queries + h * size + i);
                high[h] = vld1q_f32(queries + h * size + i + 4);
            });
            each<4>([&](auto c) ALWAYS_LAMBDA {
                const float32x4_t first = vld1q_f32(k[c] + i), second = vld1q_f32(k[c] + i + 4);
                each<H>([&](auto h) ALWAYS_LAMBDA { sums[c][h] = vfmaq_f32(sums[c][h], first, low[h]); });
                each<H>([&](auto h) ALWAYS_LAMBDA { sums[c][h] = vfmaq_f32(sums[c][h], second, high[h]); });
            });
        }
        each<H>([&](auto h) ALWAYS_LAMBDA {
            const float32x4_t four = vpaddq_f32(vpaddq_f32(sums[0][h], sums[1][h]), vpaddq_f32(sums[2][h], sums[3][h]));
            vst1q_f32(scores + h * kSpan + j, vmulq_n_f32(four, scale));
        });
    }
    if (cap <= 0.0f) return;
    for (int h = 0; h < H; ++h) {
        float* of = scores + static_cast<size_t>(h) * kSpan;
        for (size_t j = 0; j < kChunk; j += 16) store(of + j, capped(load(of + j), cap));
    }
}

// Adds a chunk's values, cells [lo, hi) of it, with their weights.
template <int H, int T, Source From>
void mix_chunk(Cells values, Cells, size_t vectors, const float* weights, size_t lo, size_t hi, float* out) {
    static_assert(From == Source::kFloats, "half floats and bytes have loops of their own");
    if constexpr (T > 0) vectors = T;
    const size_t size = 16 * vectors;
    for (size_t t = 0; t < vectors; ++t) {
        float32x4_t mixed[4][H];
        each<H>([&](auto h) ALWAYS_LAMBDA {
            each<4>([&](auto i) ALWAYS_LAMBDA { mixed[i][h] = vld1q_f32(out + h * size + 16 * t + 4 * i); });
        });
        for (size_t j = lo; j < hi; ++j) {
            float by[H];
            each<H>([&](auto h) ALWAYS_LAMBDA { by[h] = weights[h * kSpan + j]; });
            const Floats value = load(reinterpret_cast<const float*>(values[j]) + 16 * t);
            each<H>([&](auto h) ALWAYS_LAMBDA {
                each<4>([&](auto i) ALWAYS_LAMBDA { mixed[i][h] = vfmaq_n_f32(mixed[i][h], value.v[i], by[h]); });
            });
        }
        each<H>([&](auto h) ALWAYS_LAMBDA {
            each<4>([&](auto i) ALWAYS_LAMBDA { vst1q_f32(out + h * size + 16 * t + 4 * i, mixed[i][h]); });
        });
    }
}
