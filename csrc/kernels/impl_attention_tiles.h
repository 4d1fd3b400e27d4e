// The inner loops of attention where a register has four lanes. Included by impl_attention.h, in place of those over
// sixteen: four cells × up to four heads are 16 registers of sums, 16 lanes × four heads are as many of mixed values.
//
// A score is summed up in four lanes, whatever K is read from, and a value's weights are added cell after cell. Half floats
// are converted one or two cells before they are needed: only one of the two units can do it, and where the next products
// wait for it, the other stands still.

#define FOUR_OF(x) {x, x, x, x}
// Of (e^r − 1 − r) / r² for |r| ≤ ln 2 / 2, and what stands before it.
alignas(16) constexpr float kSeries[6][4] = {FOUR_OF(1.0f),         FOUR_OF(0.5f),          FOUR_OF(0.16666576f),
                                             FOUR_OF(0.041666463f), FOUR_OF(0.0083631817f), FOUR_OF(0.0013933653f)};
alignas(16) constexpr float kRoundings[4] = FOUR_OF(kRounding);
#undef FOUR_OF

// e^x for x ≤ 0, as exact as `exponential` near 0 and to 3e-7 of itself at −87, where it stays. It has two products less, and
// constants are loaded, since moves take the place of products.
ALWAYS Floats weight_of(Floats x) {
    const float32x4_t least = vdupq_n_f32(-87.0f), rounding = vdupq_n_f32(kRounding);
    const float32x4_t ratio = vdupq_n_f32(1.44269504f), ln2 = vdupq_n_f32(0.693147181f);
    const int32x4_t one = vdupq_n_s32(0x3f800000);
    float32x4_t whole[4], r[4], p[4];
    each<4>([&](auto i) ALWAYS_LAMBDA { x.v[i] = vmaxq_f32(x.v[i], least); });
    each<4>([&](auto i) ALWAYS_LAMBDA { whole[i] = vfmaq_f32(loaded<float32x4_t>(kRoundings), x.v[i], ratio); });
    each<4>([&](auto i) ALWAYS_LAMBDA { r[i] = vfmsq_f32(x.v[i], vsubq_f32(whole[i], rounding), ln2); });
    each<4>([&](auto i) ALWAYS_LAMBDA { p[i] = vfmaq_f32(loaded<float32x4_t>(kSeries[4]), vdupq_n_f32(kSeries[5][0]), r[i]); });
    each<3>([&](auto k) ALWAYS_LAMBDA {
        each<4>([&](auto i) ALWAYS_LAMBDA { p[i] = vfmaq_f32(loaded<float32x4_t>(kSeries[3 - k]), p[i], r[i]); });
    });
    each<2>([&](auto) ALWAYS_LAMBDA {
        each<4>([&](auto i) ALWAYS_LAMBDA { p[i] = vfmaq_f32(loaded<float32x4_t>(kSeries[0]), p[i], r[i]); });
    });
    each<4>([&](auto i) ALWAYS_LAMBDA {
        const int32x4_t power = vaddq_s32(vshlq_n_s32(vreinterpretq_s32_f32(whole[i]), 23), one);
        p[i] = vmulq_f32(p[i], vreinterpretq_f32_s32(power));
    });
    return {{p[0], p[1], p[2], p[3]}};
}

// Numbers 8i … 8i + 7 of a head.
struct Eight { float32x4_t low, high; };
template <Source From>
ALWAYS Eight eight(const uint8_t* head, size_t i) {
    if constexpr (From == Source::kFloats) {
        const float* at = reinterpret_cast<const float*>(head) + 8 * i;
        return {vld1q_f32(at), vld1q_f32(at + 4)};
    }
    static_assert(From == Source::kFloats || From == Source::kHalf, "8 bits are multiplied as integers");
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(head) + 8 * i));
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}

// Eight half floats become floats, while one vector of eight that are floats already is multiplied for each of H heads.
// Written out since the order is what matters: 22.7 cycles for four of the first with three heads, 28 as compilers put them.
#define CONVERT                                \
    "ldr %q[high], %[from]\n\t"              \
    "fcvtl %[low].4s, %[high].4h\n\t"        \
    "fcvtl2 %[high].4s, %[high].8h\n\t"
#define CONVERTED [low] "=&w"(low), [high] "=&w"(high)
#define FROM [from] "m"(*reinterpret_cast<const uint16_t(*)[8]>(at))

// sums[h] += now × query h
template <int H>
ALWAYS Eight score_eight(const uint8_t* at, Eight now, const float32x4_t* q0, const float32x4_t* q1, float32x4_t* sums) {
    // Compilers keep what an `asm` changes in registers if it is not an array's.
    float32x4_t low, high, s0 = sums[0], s1 = sums[H > 1 ? 1 : 0], s2 = sums[H > 2 ? 2 : 0], s3 = sums[H > 3 ? 3 : 0];
#define LOW(h) "fmla %[s" #h "].4s, %[now].4s, %[a" #h "].4s\n\t"
#define HIGH(h) "fmla %[s" #h "].4s, %[then].4s, %[b" #h "].4s\n\t"
#define SUM(h) [s##h] "+w"(s##h)
#define QUERY(h) [a##h] "w"(q0[h]), [b##h] "w"(q1[h])
#define NOW [now] "w"(now.low), [then] "w"(now.high)
    if constexpr (H == 1) {
        asm volatile(CONVERT LOW(0) HIGH(0) : CONVERTED, SUM(0) : FROM, NOW, QUERY(0));
    } else if constexpr (H == 2) {
        asm volatile(CONVERT LOW(0) LOW(1) HIGH(0) HIGH(1) : CONVERTED, SUM(0), SUM(1) : FROM, NOW, QUERY(0), QUERY(1));
    } else if constexpr (H == 3) {
        asm volatile(CONVERT LOW(0) LOW(1) LOW(2) HIGH(0) HIGH(1) HIGH(2)
                     : CONVERTED, SUM(0), SUM(1), SUM(2) : FROM, NOW, QUERY(0), QUERY(1), QUERY(2));
    } else {
        asm volatile(CONVERT LOW(0) LOW(1) LOW(2) LOW(3) HIGH(0) HIGH(1) HIGH(2) HIGH(3)
                     : CONVERTED, SUM(0), SUM(1), SUM(2), SUM(3) : FROM, NOW, QUERY(0), QUERY(1), QUERY(2), QUERY(3));
    }
#undef LOW
#undef HIGH
#undef SUM
#undef QUERY
    sums[0] = s0;
    if constexpr (H > 1) sums[1] = s1;
    if constexpr (H > 2) sums[2] = s2;
    if constexpr (H > 3) sums[3] = s3;
    return {low, high};
}

// first[h] and second[h] += now × head h's weight
template <int H>
ALWAYS Eight mix_eight(const uint8_t* at, Eight now, const float* by, float32x4_t* first, float32x4_t* second) {
    float32x4_t low, high, s0 = first[0], s1 = first[H > 1 ? 1 : 0], s2 = first[H > 2 ? 2 : 0], s3 = first[H > 3 ? 3 : 0];
    float32x4_t t0 = second[0], t1 = second[H > 1 ? 1 : 0], t2 = second[H > 2 ? 2 : 0], t3 = second[H > 3 ? 3 : 0];
#define BOTH(h)                                             \
    "fmla %[s" #h "].4s, %[now].4s, %[w" #h "].s[0]\n\t"  \
    "fmla %[t" #h "].4s, %[then].4s, %[w" #h "].s[0]\n\t"
#define MIXED(h) [s##h] "+w"(s##h), [t##h] "+w"(t##h)
#define WEIGHT(h) [w##h] "w"(by[h])
    if constexpr (H == 1) {
        asm volatile(CONVERT BOTH(0) : CONVERTED, MIXED(0) : FROM, NOW, WEIGHT(0));
    } else if constexpr (H == 2) {
        asm volatile(CONVERT BOTH(0) BOTH(1) : CONVERTED, MIXED(0), MIXED(1) : FROM, NOW, WEIGHT(0), WEIGHT(1));
    } else if constexpr (H == 3) {
        asm volatile(CONVERT BOTH(0) BOTH(1) BOTH(2)
                     : CONVERTED, MIXED(0), MIXED(1), MIXED(2) : FROM, NOW, WEIGHT(0), WEIGHT(1), WEIGHT(2));
    } else {
        asm volatile(CONVERT BOTH(0) BOTH(1) BOTH(2) BOTH(3)
                     : CONVERTED, MIXED(0), MIXED(1), MIXED(2), MIXED(3)
                     : FROM, NOW, WEIGHT(0), WEIGHT(1), WEIGHT(2), WEIGHT(3));
    }
#undef BOTH
#undef MIXED
#undef WEIGHT
    first[0] = s0, second[0] = t0;
    if constexpr (H > 1) first[1] = s1, second[1] = t1;
    if constexpr (H > 2) first[2] = s2, second[2] = t2;
    if constexpr (H > 3) first[3] = s3, second[3] = t3;
    return {low, high};
}
#undef CONVERT
#undef CONVERTED
#undef FROM
#undef NOW

template <int H, int T, Source From>
void score_chunk(const uint8_t* const* keys, const uint8_t* const* ahead, size_t vectors, const float* queries,
                 float scale, float cap, float* scores) {
    if constexpr (T > 0) vectors = T;
    const size_t size = 16 * vectors;
    for (size_t j = 0; j < kChunk; j += 4) {
        float32x4_t sums[4][H];
        each<4>([&](auto c) ALWAYS_LAMBDA { each<H>([&](auto h) ALWAYS_LAMBDA { sums[c][h] = vdupq_n_f32(0.0f); }); });
        if constexpr (From != Source::kFloats) {
            each<4>([&](auto c) ALWAYS_LAMBDA { fetch<T, From>(ahead[j + c]); });
        }
        const uint8_t* const k[4] = {keys[j], keys[j + 1], keys[j + 2], keys[j + 3]};
        Eight ready[4];  // half floats are converted two cells ahead
        if constexpr (From == Source::kHalf) each<2>([&](auto c) ALWAYS_LAMBDA { ready[c] = eight<From>(k[c], 0); });
        auto add_eight = [&](size_t i, auto last) ALWAYS_LAMBDA {
            float32x4_t low[H], high[H];
            each<H>([&](auto h) ALWAYS_LAMBDA {
                low[h] = vld1q_f32(queries + h * size + 8 * i);
                high[h] = vld1q_f32(queries + h * size + 8 * i + 4);
            });
            each<4>([&](auto c) ALWAYS_LAMBDA {
                constexpr int next = (c + 2) % 4;
                if constexpr (From == Source::kHalf && (c < 2 || !last)) {
                    ready[next] = score_eight<H>(k[next] + 16 * (c < 2 ? i : i + 1), ready[c], low, high, sums[c]);
                    return;
                }
                const Eight now = From == Source::kHalf ? ready[c] : eight<From>(k[c], i);
                each<H>([&](auto h) ALWAYS_LAMBDA { sums[c][h] = vfmaq_f32(sums[c][h], now.low, low[h]); });
                each<H>([&](auto h) ALWAYS_LAMBDA { sums[c][h] = vfmaq_f32(sums[c][h], now.high, high[h]); });
            });
        };
        for (size_t i = 0; i + 1 < 2 * vectors; ++i) add_eight(i, std::false_type{});
        add_eight(2 * vectors - 1, std::true_type{});
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

template <int H, int T, Source From>
void mix_chunk(const uint8_t* const* values, const uint8_t* const* ahead, size_t vectors, const float* weights,
               size_t lo, size_t hi, float* out) {
    if constexpr (T > 0) vectors = T;
    const size_t size = 16 * vectors;
    for (size_t t = 0; t < vectors; ++t) {
        float32x4_t mixed[4][H];
        each<H>([&](auto h) ALWAYS_LAMBDA {
            each<4>([&](auto i) ALWAYS_LAMBDA { mixed[i][h] = vld1q_f32(out + h * size + 16 * t + 4 * i); });
        });
        Eight first = eight<From>(values[lo], 2 * t), second = eight<From>(values[lo], 2 * t + 1);
        for (size_t j = lo; j < hi; ++j) {
            if constexpr (From != Source::kFloats) {
                if (t == 0) fetch<T, From>(ahead[j]);
            }
            float by[H];
            each<H>([&](auto h) ALWAYS_LAMBDA { by[h] = weights[h * kSpan + j]; });
            if constexpr (From == Source::kHalf) {  // those of the next cell are converted meanwhile
                const uint8_t* next = values[j + 1 < kChunk ? j + 1 : j] + 32 * t;
                first = mix_eight<H>(next, first, by, mixed[0], mixed[1]);
                second = mix_eight<H>(next + 16, second, by, mixed[2], mixed[3]);
                continue;
            }
            first = eight<From>(values[j], 2 * t);
            second = eight<From>(values[j], 2 * t + 1);
            each<H>([&](auto h) ALWAYS_LAMBDA {
                mixed[0][h] = vfmaq_n_f32(mixed[0][h], first.low, by[h]);
                mixed[1][h] = vfmaq_n_f32(mixed[1][h], first.high, by[h]);
                mixed[2][h] = vfmaq_n_f32(mixed[2][h], second.low, by[h]);
                mixed[3][h] = vfmaq_n_f32(mixed[3][h], second.high, by[h]);
            });
        }
        each<H>([&](auto h) ALWAYS_LAMBDA {
            each<4>([&](auto i) ALWAYS_LAMBDA { vst1q_f32(out + h * size + 16 * t + 4 * i, mixed[i][h]); });
        });
    }
}
