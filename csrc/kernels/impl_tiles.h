// Products of quantised panels by the dot products of NEON, in place of impl_matmul.h's for sixteen lanes. Included by
// impl_matmul.h.
//
// A tile is 8 rows × 4 columns, half a panel: with its integer sums and its totals it takes 16 of the 32 registers,
// where all 16 rows would take them all. A register has 16 numbers of one column, and `sdot` picks the four that it
// multiplies with (by lane), so nothing is replicated. What sums begin with is loaded, as a move would take the place of a
// product; for the same reason they are never converted, since that takes as long as four products (see kFloatBias).
//
// With many columns a panel's quants are made signed bytes and its scales floats once for all of them. With few, tiles
// read the panel as it is. The same numbers are multiplied and added in the same order, so the bits are the same.

#define ALWAYS __attribute__((always_inline)) inline
#define ALWAYS_LAMBDA __attribute__((always_inline))

// Calls f(0), … f(N − 1), each with its number as a constant.
template <typename F, int... I>
ALWAYS void each_of(F f, std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
template <int N, typename F>
ALWAYS void each(F f) { each_of(f, std::make_integer_sequence<int, N>{}); }

constexpr size_t kExpandFrom = 8;    // columns
constexpr size_t kTileRows = 8;
constexpr size_t kHalves = kPanelRows / kTileRows;

// Four numbers from memory, always: a compiler would keep them in a register and move them from there.
template <typename Four, typename Number>
ALWAYS Four loaded(const Number* at) {
    Four four;
    asm volatile("ldr %q0, %1" : "=w"(four) : "m"(*reinterpret_cast<const Number(*)[4]>(at)));
    return four;
}
// What sums begin with.
alignas(32) constexpr int32_t kSumStarts[8] = {kSumStart, kSumStart, kSumStart, kSumStart,
                                               kSumStart, kSumStart, kSumStart, kSumStart};
ALWAYS int32x4_t sum_start() { return loaded<int32x4_t>(kSumStarts); }

// dots += 8 rows × 16 numbers of 4 columns, which are a block apart. In this order every sum has the time of eight
// products to be ready again; compilers put those of one sum behind each other.
ALWAYS void dot_sixteen(const int8_t* w, const int8_t* x, int32x4_t (&dots)[4][2]) {
    int8x16_t x0, x1, x2, x3, w0, w1, w2, w3;
#define QUAD(first, second, lane)                                    \
    "sdot %[d00].4s, %[" first "].16b, %[x0].4b[" lane "]\n\t"       \
    "sdot %[d01].4s, %[" second "].16b, %[x0].4b[" lane "]\n\t"      \
    "sdot %[d10].4s, %[" first "].16b, %[x1].4b[" lane "]\n\t"       \
    "sdot %[d11].4s, %[" second "].16b, %[x1].4b[" lane "]\n\t"      \
    "sdot %[d20].4s, %[" first "].16b, %[x2].4b[" lane "]\n\t"       \
    "sdot %[d21].4s, %[" second "].16b, %[x2].4b[" lane "]\n\t"      \
    "sdot %[d30].4s, %[" first "].16b, %[x3].4b[" lane "]\n\t"       \
    "sdot %[d31].4s, %[" second "].16b, %[x3].4b[" lane "]\n\t"
    asm("ldp %q[w0], %q[w1], [%[w]]\n\t"
        "ldr %q[x0], [%[x]]\n\t"
        "ldr %q[x1], [%[x], #32]\n\t"
        "ldr %q[x2], [%[x], #64]\n\t"
        "ldr %q[x3], [%[x], #96]\n\t"
        "ldp %q[w2], %q[w3], [%[w], #32]\n\t"
        QUAD("w0", "w1", "0")
        "ldp %q[w0], %q[w1], [%[w], #64]\n\t"
        QUAD("w2", "w3", "1")
        "ldp %q[w2], %q[w3], [%[w], #96]\n\t"
        QUAD("w0", "w1", "2")
        QUAD("w2", "w3", "3")
        : [d00] "+w"(dots[0][0]), [d01] "+w"(dots[0][1]), [d10] "+w"(dots[1][0]), [d11] "+w"(dots[1][1]),
          [d20] "+w"(dots[2][0]), [d21] "+w"(dots[2][1]), [d30] "+w"(dots[3][0]), [d31] "+w"(dots[3][1]),
          [x0] "=&w"(x0), [x1] "=&w"(x1), [x2] "=&w"(x2), [x3] "=&w"(x3), [w0] "=&w"(w0), [w1] "=&w"(w1),
          [w2] "=&w"(w2), [w3] "=&w"(w3)
        : [w] "r"(w), [x] "r"(x), "m"(*reinterpret_cast<const int8_t(*)[128]>(w)),
          "m"(*reinterpret_cast<const int8_t(*)[112]>(x)));
#undef QUAD
}

// The whole of a tile, block after block: an expanded half panel × 4 columns, for layouts with one scale a block. A block
// takes 50 cycles on a Neoverse N1, 32 of them for products. In this order every sum has the time of eight products to be
// ready again; compilers put those of one sum behind each other.
//
//     v0 … v7      sums, [column][rows]            v16 … v23    totals, [column][rows]
//     v8, v10      scales                          v24 … v27    quants
//     v11, v12     minima                          v28 … v31    activations
//     v9, v13      the columns' scales, and these × their sums
template <bool Min>
inline void expanded_blocks(const int8_t* w, const float* s, const int8_t* q, const float* scale, const float* scaled,
                            size_t blocks, float* totals) {
#define QUAD(at, lane, w0, w1)                             \
    "ldp q" w0 ", q" w1 ", [%[w], #" at "]\n\t"          \
    "sdot v0.4s, v" w0 ".16b, v28.4b[" lane "]\n\t"      \
    "sdot v1.4s, v" w1 ".16b, v28.4b[" lane "]\n\t"      \
    "sdot v2.4s, v" w0 ".16b, v29.4b[" lane "]\n\t"      \
    "sdot v3.4s, v" w1 ".16b, v29.4b[" lane "]\n\t"      \
    "sdot v4.4s, v" w0 ".16b, v30.4b[" lane "]\n\t"      \
    "sdot v5.4s, v" w1 ".16b, v30.4b[" lane "]\n\t"      \
    "sdot v6.4s, v" w0 ".16b, v31.4b[" lane "]\n\t"      \
    "sdot v7.4s, v" w1 ".16b, v31.4b[" lane "]\n\t"
#define COLUMNS(side)                             \
    "ldr q28, [%[q], #" side "]\n\t"            \
    "ldr q29, [%[q], #32 + " side "]\n\t"       \
    "ldr q30, [%[q], #64 + " side "]\n\t"       \
    "ldr q31, [%[q], #96 + " side "]\n\t"
#define MIN(total, m, lane) "fmla v" total ".4s, v" m ".4s, v13.s[" lane "]\n\t"
#define PART(part, dot, d) "fmla v" part ".4s, v" dot ".4s, v" d ".4s\n\t"
#define TOTAL(total, part, lane) "fmla v" total ".4s, v" part ".4s, v9.s[" lane "]\n\t"
    asm volatile(
        "ldp q16, q17, [%[t]]\n\t"
        "ldp q18, q19, [%[t], #32]\n\t"
        "ldp q20, q21, [%[t], #64]\n\t"
        "ldp q22, q23, [%[t], #96]\n\t"
        ".p2align 6\n"
        "1:\n\t"
        ".if %c[min]\n\t"
        "ldp q11, q12, [%[s], #64]\n\t"
        "ldr q13, [%[scaled]], #16\n\t"
        ".endif\n\t"
        "ldp q0, q1, [%[start]]\n\t"
        "ldp q2, q3, [%[start]]\n\t"
        "ldp q4, q5, [%[start]]\n\t"
        "ldp q6, q7, [%[start]]\n\t"
        COLUMNS("0")
        QUAD("0", "0", "24", "25")
        ".if %c[min]\n\t"  // here they wait for nothing, and nothing for them
        MIN("16", "11", "0") MIN("17", "12", "0") MIN("18", "11", "1") MIN("19", "12", "1")
        MIN("20", "11", "2") MIN("21", "12", "2") MIN("22", "11", "3") MIN("23", "12", "3")
        ".endif\n\t"
        QUAD("32", "1", "26", "27")
        QUAD("64", "2", "24", "25")
        QUAD("96", "3", "26", "27")
        COLUMNS("16")
        QUAD("128", "0", "24", "25")
        QUAD("160", "1", "26", "27")
        QUAD("192", "2", "24", "25")
        QUAD("224", "3", "26", "27")
        "ldr q8, [%[s]]\n\t"
        "ldr q10, [%[s], #16]\n\t"
        "ldp q24, q25, [%[s], #32]\n\t"
        "ldp q26, q27, [%[s], #32]\n\t"
        "ldp q28, q29, [%[s], #32]\n\t"
        "ldp q30, q31, [%[s], #32]\n\t"
        "ldr q9, [%[scale]], #16\n\t"
        PART("24", "0", "8") PART("25", "1", "10") PART("26", "2", "8") PART("27", "3", "10")
        PART("28", "4", "8") PART("29", "5", "10") PART("30", "6", "8") PART("31", "7", "10")
        "add %[w], %[w], #256\n\t"
        "add %[q], %[q], #128\n\t"
        "add %[s], %[s], %[step]\n\t"
        "subs %[n], %[n], #1\n\t"
        TOTAL("16", "24", "0") TOTAL("17", "25", "0") TOTAL("18", "26", "1") TOTAL("19", "27", "1")
        TOTAL("20", "28", "2") TOTAL("21", "29", "2") TOTAL("22", "30", "3") TOTAL("23", "31", "3")
        "b.ne 1b\n\t"
        "stp q16, q17, [%[t]]\n\t"
        "stp q18, q19, [%[t], #32]\n\t"
        "stp q20, q21, [%[t], #64]\n\t"
        "stp q22, q23, [%[t], #96]\n\t"
        : [w] "+r"(w), [s] "+r"(s), [q] "+r"(q), [scale] "+r"(scale), [scaled] "+r"(scaled), [n] "+r"(blocks)
        : [t] "r"(totals), [start] "r"(kSumStarts), [min] "i"(Min), [step] "i"(Min ? 96 : 64)
        : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v16", "v17",
          "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#undef QUAD
#undef COLUMNS
#undef MIN
#undef PART
#undef TOTAL
}

// A panel of nibbles with half scales × 1 column, block after block: what decoding does. Of the 48 cycles that a block of
// Q4_1 takes at least, 16 are conversions of scales, which only one of the two units can do; so they stand between products.
//
//     v0 … v3      sums, [rows]                    v16 … v19    totals
//     v4, v5       activations                     v20 … v27    scales and minima
//     v6, v7       their scale, and that × their sum
template <bool Min>
inline void packed_blocks(const uint8_t* w, const int8_t* q, const float* scale, const float* scaled, const int32_t* sums,
                          size_t blocks, float* totals) {
    constexpr int kQuants = Min ? 64 : 32;  // where they begin
#define QUAD(at, lane, before, between)                                                              \
    "ldp q8, q9, [%[w], #%c[quants] + " at "]\n\t"                                                  \
    "ldp q10, q11, [%[w], #%c[quants] + 32 + " at "]\n\t"                                           \
    "and v12.16b, v8.16b, v31.16b\n\t"                                                              \
    "and v13.16b, v9.16b, v31.16b\n\t"                                                              \
    "and v14.16b, v10.16b, v31.16b\n\t"                                                             \
    "and v15.16b, v11.16b, v31.16b\n\t"                                                             \
    before                                                                                            \
    "ushr v8.16b, v8.16b, #4\n\t"                                                                   \
    "sdot v0.4s, v12.16b, v4.4b[" lane "]\n\t"                                                      \
    "ushr v9.16b, v9.16b, #4\n\t"                                                                   \
    "sdot v1.4s, v13.16b, v4.4b[" lane "]\n\t"                                                      \
    "ushr v10.16b, v10.16b, #4\n\t"                                                                 \
    "sdot v2.4s, v14.16b, v4.4b[" lane "]\n\t"                                                      \
    "ushr v11.16b, v11.16b, #4\n\t"                                                                 \
    "sdot v3.4s, v15.16b, v4.4b[" lane "]\n\t"                                                      \
    between                                                                                           \
    "sdot v0.4s, v8.16b, v5.4b[" lane "]\n\t"                                                       \
    "sdot v1.4s, v9.16b, v5.4b[" lane "]\n\t"                                                       \
    "sdot v2.4s, v10.16b, v5.4b[" lane "]\n\t"                                                      \
    "sdot v3.4s, v11.16b, v5.4b[" lane "]\n\t"
#define IF_MIN(text) ".if %c[min]\n\t" text ".endif\n\t"
#define MIN(total, m) "fmla v" total ".4s, v" m ".4s, v7.s[0]\n\t"
    asm volatile(
        "ldp q16, q17, [%[t]]\n\t"
        "ldp q18, q19, [%[t], #32]\n\t"
        "movi v31.16b, #15\n\t"
        "dup v30.4s, %w[bias]\n\t"
        ".p2align 6\n"
        "1:\n\t"
        "ldp q4, q5, [%[q]], #32\n\t"
        "ldp q21, q23, [%[w]]\n\t"
        IF_MIN("ldp q25, q27, [%[w], #32]\n\t"
               "ldr s7, [%[scaled]], #4\n\t"
               "ldp q0, q1, [%[start]]\n\t"
               "ldp q2, q3, [%[start]]\n\t")
        ".if %c[min] == 0\n\t"
        "ldp w9, w10, [%[sums]], #8\n\t"
        "add w9, w9, w10\n\t"
        "sub w9, %w[first], w9, lsl #3\n\t"  // an offset of 8
        "dup v0.4s, w9\n\t"
        "dup v1.4s, w9\n\t"
        "dup v2.4s, w9\n\t"
        "dup v3.4s, w9\n\t"
        ".endif\n\t"
        "ldr s6, [%[scale]], #4\n\t"
        QUAD("0", "0", IF_MIN("fcvtl v24.4s, v25.4h\n\t"), IF_MIN("fcvtl2 v25.4s, v25.8h\n\t"))
        QUAD("64", "1", IF_MIN("fcvtl v26.4s, v27.4h\n\t"), IF_MIN("fcvtl2 v27.4s, v27.8h\n\t"))
        IF_MIN(MIN("16", "24") MIN("17", "25"))
        QUAD("128", "2", "fcvtl v20.4s, v21.4h\n\t", "fcvtl2 v21.4s, v21.8h\n\t")
        IF_MIN(MIN("18", "26") MIN("19", "27"))
        QUAD("192", "3", "fcvtl v22.4s, v23.4h\n\t", "fcvtl2 v23.4s, v23.8h\n\t")
        "fmul v12.4s, v20.4s, v30.4s\n\t"
        "fmul v13.4s, v21.4s, v30.4s\n\t"
        "fmul v14.4s, v22.4s, v30.4s\n\t"
        "fmul v15.4s, v23.4s, v30.4s\n\t"
        "add %[w], %[w], #%c[quants] + 256\n\t"
        "subs %[n], %[n], #1\n\t"
        "fmla v12.4s, v0.4s, v20.4s\n\t"
        "fmla v13.4s, v1.4s, v21.4s\n\t"
        "fmla v14.4s, v2.4s, v22.4s\n\t"
        "fmla v15.4s, v3.4s, v23.4s\n\t"
        "fmla v16.4s, v12.4s, v6.s[0]\n\t"
        "fmla v17.4s, v13.4s, v6.s[0]\n\t"
        "fmla v18.4s, v14.4s, v6.s[0]\n\t"
        "fmla v19.4s, v15.4s, v6.s[0]\n\t"
        "b.ne 1b\n\t"
        "stp q16, q17, [%[t]]\n\t"
        "stp q18, q19, [%[t], #32]\n\t"
        : [w] "+r"(w), [q] "+r"(q), [scale] "+r"(scale), [scaled] "+r"(scaled), [sums] "+r"(sums), [n] "+r"(blocks)
        : [t] "r"(totals), [start] "r"(kSumStarts), [first] "r"(kSumStart), [bias] "r"(0xcb400000), [min] "i"(Min),
          [quants] "i"(kQuants)
        : "memory", "cc", "x9", "x10", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",
          "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v30", "v31");
#undef QUAD
#undef IF_MIN
#undef MIN
}

#include "kernels/impl_pairs.h"

// Some columns of activations, from a block on: one, or up to as many as stand together.
struct Inputs {
    const int8_t* q;
    const float* scale;
    const float* scaled;
    const int32_t* sums;

    Inputs(const Quantized& a, size_t column, size_t columns, size_t block) {
        const size_t at = a.block_of(column, columns) + block * a.lanes;
        q = a.q + at * kBlock;
        scale = a.scale + at;
        scaled = a.scaled + at;
        sums = a.sums + 2 * at;
    }
    template <size_t Lanes>
    void next() {
        q += Lanes * kBlock;
        scale += Lanes;
        scaled += Lanes;
        sums += 2 * Lanes;
    }
};

// A panel and where its results go.
struct Target {
    const uint8_t* panel;
    float* out;
    size_t stride, rows;
};

template <Layout L>
struct Tiles {
    static constexpr Shape kShape = shape_of(L);
    static constexpr int kGroups = static_cast<int>(kShape.groups);
    static constexpr bool kCoded = kShape.scales == Scales::kCoded;
    static constexpr size_t kUnit = kShape.blocks();
    // Expanded: for each half of a panel and each block 8 rows × 32 signed bytes, four columns at a time; and for each
    // group 8 scales, 8 times what they make of kFloatBias, and 8 minima.
    static constexpr size_t kBytes = kTileRows * kBlock;
    static constexpr size_t kParts = kShape.min ? 3 : 2, kFloats = kGroups * kParts * kTileRows;
    static constexpr size_t kExpanded = kGroups == 1 ? 48 : 32;  // blocks at a time: they stay in the first cache
    struct Expanded {
        alignas(64) int8_t quants[kHalves][kExpanded * kBytes];
        alignas(64) float scales[kHalves][kExpanded * kFloats];
    };

    // Quants of the four rows from 4r on, columns 4 × quad … of a block.
    static ALWAYS int8x16_t quants(const uint8_t* block, int r, int quad) {
        const uint8_t* at = block + r * 16;
        if constexpr (kShape.bits == 8) {
            return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(at + quad * 64), vdupq_n_u8(128)));
        }
        const uint8x16_t both = vld1q_u8(at + quad % 4 * 64);
        const uint8x16_t low = quad < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4);
        if constexpr (kShape.bits == 4) return vreinterpretq_s8_u8(low);
        const int shift = kShape.bits == 5 ? quad : quad % 4 * 2;
        const uint8x16_t above = vld1q_u8(at + 4 * 64 + (kShape.bits == 6 ? quad / 4 * 64 : 0));
        const uint8x16_t mask = vdupq_n_u8(kShape.bits == 5 ? 16 : 48);
        const uint8x16_t moved = vshlq_u8(above, vdupq_n_s8(static_cast<int8_t>(4 - shift)));
        return vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(moved, mask)));
    }

    // Four scales that are kept as they are.
    static ALWAYS float32x4_t scales(const uint8_t* at, int r) {
        if constexpr (kShape.scales == Scales::kHalf) return half_four(reinterpret_cast<const uint16_t*>(at) + 4 * r);
        return vld1q_f32(reinterpret_cast<const float*>(at) + 4 * r);
    }

    // The scales of a half panel's blocks as floats, whose first block begins a unit.
    static void expand_scales(const uint8_t* panel, int half, size_t first, size_t last, float* out) {
        const float32x4_t bias = vdupq_n_f32(-kFloatBias);
        for (size_t block = first; block < last; ++block) {
            const uint8_t* unit = panel + block / kUnit * kShape.unit_bytes();
            UNROLL for (int g = 0; g < kGroups; ++g, out += kParts * kTileRows) {
                const uint8_t* d = unit + kShape.scale_at(block % kUnit, g);
                const uint8_t* m = unit + kShape.min_at(block % kUnit, g);
                if constexpr (kCoded) {
                    const auto* head = reinterpret_cast<const uint16_t*>(unit) + half * kTileRows;
                    coded(d + half * kTileRows, head, out);
                    if constexpr (kShape.min) coded(m + half * kTileRows, head + kPanelRows, out + 2 * kTileRows);
                }
                UNROLL for (int r = 0; r < 2; ++r) {
                    float* to = out + 4 * r;
                    if constexpr (!kCoded) {
                        vst1q_f32(to, scales(d, 2 * half + r));
                        if constexpr (kShape.min) vst1q_f32(to + 2 * kTileRows, scales(m, 2 * half + r));
                    }
                    vst1q_f32(to + kTileRows, vmulq_f32(vld1q_f32(to), bias));
                }
            }
        }
    }

    // Eight codes × the half floats of their rows: exact. Bytes become floats by what stands above them.
    static ALWAYS void coded(const uint8_t* codes, const uint16_t* halves, float* out) {
        const uint8x8_t flipped = veor_u8(vld1_u8(codes), vdup_n_u8(128));
        const uint16x8_t wide = vreinterpretq_u16_u8(vzip1q_u8(vcombine_u8(flipped, flipped), vdupq_n_u8(0)));
        const uint16x8_t above = vdupq_n_u16(kSumStart >> 16);
        const float32x4_t bias = vdupq_n_f32(kFloatBias + 128.0f);
        const float32x4_t low = vsubq_f32(vreinterpretq_f32_u16(vzip1q_u16(wide, above)), bias);
        const float32x4_t high = vsubq_f32(vreinterpretq_f32_u16(vzip2q_u16(wide, above)), bias);
        vst1q_f32(out, vmulq_f32(low, half_four(halves)));
        vst1q_f32(out + 4, vmulq_f32(high, half_four(halves + 4)));
    }

    // Blocks [first, last) of a panel, the first of which begins a unit.
    static void expand(const uint8_t* panel, size_t first, size_t last, Expanded& to) {
        const uint8x16_t offset = vdupq_n_u8(kShape.bits < 8 ? kShape.offset : 0);
        int8_t* low = to.quants[0];
        int8_t* high = to.quants[1];
        for (size_t block = first; block < last; ++block, low += kBytes, high += kBytes) {
            const uint8_t* from = panel + block / kUnit * kShape.unit_bytes() + kShape.quants_at(block % kUnit);
            each<8>([&](auto quad) ALWAYS_LAMBDA {
                each<4>([&](auto r) ALWAYS_LAMBDA {
                    int8x16_t q = quants(from, r, quad);
                    if constexpr (kShape.bits < 8 && kShape.offset) q = vsubq_s8(q, vreinterpretq_s8_u8(offset));
                    vst1q_s8((r < 2 ? low : high) + quad * 32 + r % 2 * 16, q);
                });
            });
        }
        for (size_t half = 0; half < kHalves; ++half) {
            expand_scales(panel, static_cast<int>(half), first, last, to.scales[half]);
        }
    }

    // R × 4 rows × C columns that add block after block.
    template <int R, int C, size_t Lanes>
    struct Sums {
        float32x4_t total[C][R];
        int32x4_t dots[kGroups][C][R];

        ALWAYS void load(const float* out, size_t stride, size_t rows) {
            each<C>([&](auto c) ALWAYS_LAMBDA {
                float some[4 * R] = {};
                const float* from = out + c * stride;
                if (rows < 4 * R) {
                    std::memcpy(some, from, rows * sizeof(float));
                    from = some;
                }
                each<R>([&](auto r) ALWAYS_LAMBDA { total[c][r] = vld1q_f32(from + 4 * r); });
            });
        }
        ALWAYS void clear() {
            each<C>([&](auto c) ALWAYS_LAMBDA { each<R>([&](auto r) ALWAYS_LAMBDA { total[c][r] = vdupq_n_f32(0.0f); }); });
        }
        ALWAYS void store(float* out, size_t stride, size_t rows) const {
            each<C>([&](auto c) ALWAYS_LAMBDA {
                float some[4 * R];
                float* to = rows < 4 * R ? some : out + c * stride;
                each<R>([&](auto r) ALWAYS_LAMBDA { vst1q_f32(to + 4 * r, total[c][r]); });
                if (rows < 4 * R) std::memcpy(out + c * stride, some, rows * sizeof(float));
            });
        }

        // dots += quants × one quad of each column
        template <int Quad>
        ALWAYS void dot(int r, int8x16_t w, const int8x16_t* x) {
            constexpr int g = kGroups == 1 ? 0 : Quad / 4;
            each<C>([&](auto c) ALWAYS_LAMBDA { dots[g][c][r] = vdotq_laneq_s32(dots[g][c][r], w, x[c], Quad % 4); });
        }

        // Group g's sums with their scales and minima go to the totals.
        template <typename Bias>
        ALWAYS void scale(int g, int r, const Inputs& a, float32x4_t d, Bias bias, [[maybe_unused]] float32x4_t m) {
            float32x4_t by, sum;
            if constexpr (Lanes == 1) {
                by = vdupq_n_f32(*a.scale);
                sum = kGroups == 1 ? vdupq_n_f32(*a.scaled) : vmulq_n_f32(by, static_cast<float>(a.sums[g]));
            } else {
                by = vld1q_f32(a.scale);
                if constexpr (kGroups == 1) {
                    sum = vld1q_f32(a.scaled);
                } else {
                    const int32x4x2_t sums = vld2q_s32(a.sums);
                    sum = vmulq_f32(by, vcvtq_f32_s32(sums.val[g]));
                }
            }
            each<C>([&](auto c) ALWAYS_LAMBDA {
                if constexpr (kShape.min) total[c][r] = vfmaq_laneq_f32(total[c][r], m, sum, c);
                const float32x4_t part = vfmaq_f32(bias(), vreinterpretq_f32_s32(dots[g][c][r]), d);
                total[c][r] = vfmaq_laneq_f32(total[c][r], part, by, c);
            });
        }
    };

    // Half an expanded panel × C columns.
    template <int C, size_t Lanes>
    static void expanded_tile(const int8_t* w, const float* s, size_t blocks, Inputs a, bool more, float* out,
                              size_t stride, size_t rows) {
        if constexpr (C == 4 && kGroups == 1) {
            Sums<2, 4, Lanes> whole;  // its totals stand as they are expected
            if (more) {
                whole.load(out, stride, rows);
            } else {
                whole.clear();
            }
            expanded_blocks<kShape.min>(w, s, a.q, a.scale, a.scaled, blocks, reinterpret_cast<float*>(whole.total));
            whole.store(out, stride, rows);
            return;
        }
        Sums<2, C, Lanes> sums;
        if (more) {
            sums.load(out, stride, rows);
        } else {
            sums.clear();
        }
        for (size_t block = 0; block < blocks; ++block, w += kBytes, s += kFloats, a.template next<Lanes>()) {
            each<2>([&](auto side) ALWAYS_LAMBDA {
                if constexpr (side == 0 || kGroups == 2) {
                    each<C>([&](auto c) ALWAYS_LAMBDA {
                        each<2>([&](auto r) ALWAYS_LAMBDA { sums.dots[kGroups == 1 ? 0 : side][c][r] = sum_start(); });
                    });
                }
                if constexpr (C == 4) {
                    dot_sixteen(w + side * 128, a.q + side * 16, sums.dots[kGroups == 1 ? 0 : side]);
                } else {
                    int8x16_t x[C];
                    each<C>([&](auto c) ALWAYS_LAMBDA { x[c] = vld1q_s8(a.q + c * kBlock + side * 16); });
                    each<4>([&](auto i) ALWAYS_LAMBDA {
                        constexpr int quad = side * 4 + i;
                        each<2>([&](auto r) ALWAYS_LAMBDA {
                            sums.template dot<quad>(r, vld1q_s8(w + quad * 32 + r * 16), x);
                        });
                    });
                }
                if constexpr (side == 1 || kGroups == 2) {
                    constexpr int g = kGroups == 1 ? 0 : side;
                    const float* scales = s + g * kParts * kTileRows;
                    each<2>([&](auto r) ALWAYS_LAMBDA {
                        const float* at = scales + 4 * r;
                        const auto bias = [=]() ALWAYS_LAMBDA { return loaded<float32x4_t>(at + kTileRows); };
                        sums.scale(g, r, a, vld1q_f32(at), bias,
                                   kShape.min ? vld1q_f32(at + 2 * kTileRows) : vdupq_n_f32(0.0f));
                    });
                }
            });
        }
        sums.store(out, stride, rows);
    }

    // R × 4 rows of a panel, from 4 × `from` on, as they are packed, × C columns.
    template <int R, int C, size_t Lanes>
    static void packed_tile(const uint8_t* w, int from, size_t blocks, Inputs a, float* out, size_t stride, size_t rows) {
        Sums<R, C, Lanes> sums;
        sums.clear();
        if constexpr (R == 4 && Lanes == 1 && kShape.bits == 4 && kShape.scales == Scales::kHalf) {
            packed_blocks<kShape.min>(w, a.q, a.scale, a.scaled, a.sums, blocks, reinterpret_cast<float*>(sums.total));
            sums.store(out, stride, rows);
            return;
        }
        alignas(64) float coded[kCoded ? R / 2 * kUnit * kFloats : 1];
        size_t in_unit = 0;
        for (size_t block = 0; block < blocks; ++block, a.template next<Lanes>()) {
            if constexpr (kCoded) {
                if (in_unit == 0) {
                    each<R / 2>([&](auto half) ALWAYS_LAMBDA {
                        expand_scales(w, from / 2 + half, 0, kUnit, coded + half * kUnit * kFloats);
                    });
                }
            }
            const uint8_t* at = w + kShape.quants_at(in_unit);
            if constexpr (kShape.scales == Scales::kFloat) {
                // So many of them stand before the quants, and are read after them, that the stream is not foreseen.
                each<static_cast<int>(kShape.head_bytes() / 64)>([&](auto line) ALWAYS_LAMBDA {
                    __builtin_prefetch(w + 2 * kShape.unit_bytes() + 64 * line);
                });
            }
            int8x16_t x[2][C];
            each<C>([&](auto c) ALWAYS_LAMBDA {
                x[0][c] = vld1q_s8(a.q + c * kBlock);
                x[1][c] = vld1q_s8(a.q + c * kBlock + 16);
                each<kGroups>([&](auto g) ALWAYS_LAMBDA {
                    constexpr int kExcess = kShape.bits < 8 ? kShape.offset : 0;
                    const int32_t* s = a.sums + 2 * c;
                    [[maybe_unused]] const int32_t excess = kExcess * (kGroups == 2 ? s[g] : s[0] + s[1]);
                    each<R>([&](auto r) ALWAYS_LAMBDA {
                        sums.dots[g][c][r] = kExcess ? vdupq_n_s32(kSumStart - excess) : sum_start();
                    });
                });
            });
            // As they lie in memory: of nibbles the low and the high ones come together.
            each<8>([&](auto i) ALWAYS_LAMBDA {
                constexpr int quad = kShape.bits == 8 ? i : i / 2 + i % 2 * 4;
                each<R>([&](auto r) ALWAYS_LAMBDA { sums.template dot<quad>(r, quants(at, from + r, quad), x[quad / 4]); });
            });
            each<kGroups>([&](auto g) ALWAYS_LAMBDA {
                each<R>([&](auto r) ALWAYS_LAMBDA {
                    float32x4_t d, bias, m = vdupq_n_f32(0.0f);
                    if constexpr (kCoded) {
                        const float* s = coded + (r / 2 * kUnit + in_unit) * kFloats + g * kParts * kTileRows + r % 2 * 4;
                        d = vld1q_f32(s);
                        bias = vld1q_f32(s + kTileRows);
                        if constexpr (kShape.min) m = vld1q_f32(s + 2 * kTileRows);
                    } else {
                        d = scales(w + kShape.scale_at(0, g), from + r);
                        bias = vmulq_n_f32(d, -kFloatBias);
                        if constexpr (kShape.min) m = scales(w + kShape.min_at(0, g), from + r);
                    }
                    sums.scale(g, r, a, d, [=]() ALWAYS_LAMBDA { return bias; }, m);
                });
            });
            if (kUnit == 1 || ++in_unit == kUnit) {
                in_unit = 0;
                w += kShape.unit_bytes();
            }
        }
        sums.store(out, stride, rows);
    }

    // Calls f(how many columns, which is the first) for groups of at most `Most` columns that stand together.
    template <int Most, typename F>
    static ALWAYS void each_columns(size_t n, F f) {
        for (size_t c = 0; c < n; c += Most) {
            switch (n - c < Most ? n - c : Most) {
                case 1: f(std::integral_constant<int, 1>{}, c); break;
                case 2: f(std::integral_constant<int, 2>{}, c); break;
                case 3: if constexpr (Most > 2) f(std::integral_constant<int, 3>{}, c); break;
                default: if constexpr (Most > 2) f(std::integral_constant<int, 4>{}, c); break;
            }
        }
    }

    static void panel_of_many(const Target& t, const Quantized& a, size_t columns, size_t n) {
        Expanded expanded;
        const size_t blocks = columns / kBlock;
        for (size_t first = 0; first < blocks; first += kExpanded) {
            const size_t last = first + kExpanded < blocks ? first + kExpanded : blocks;
            expand(t.panel, first, last, expanded);
            each_columns<kLanes>(n, [&](auto count, size_t c) {
                for (size_t half = 0; half < kHalves && half * kTileRows < t.rows; ++half) {
                    expanded_tile<decltype(count)::value, kLanes>(
                        expanded.quants[half], expanded.scales[half], last - first, Inputs(a, c, columns, first), first > 0,
                        t.out + c * t.stride + half * kTileRows, t.stride, t.rows - half * kTileRows);
                }
            });
        }
    }

    static void panel_of_few(const Target& t, const Quantized& a, size_t columns, size_t n) {
        const size_t blocks = columns / kBlock;
        if (a.lanes == 1) {
            for (size_t c = 0; c < n; ++c) {
                packed_tile<4, 1, 1>(t.panel, 0, blocks, Inputs(a, c, columns, 0), t.out + c * t.stride, t.stride, t.rows);
            }
            return;
        }
        if constexpr (has_pairs(L)) {
            if (n == 2) {
                const Inputs in(a, 0, columns, 0);
                Sums<4, 2, kLanes> sums;
                sums.clear();
                multiply_pairs<L>(t.panel, in.q, in.scale, in.scaled, in.sums, blocks, reinterpret_cast<float*>(sums.total));
                return sums.store(t.out, t.stride, t.rows);
            }
        }
        each_columns<kGroups == 1 ? 4 : 2>(n, [&](auto count, size_t c) {
            const Inputs in(a, c, columns, 0);
            float* out = t.out + c * t.stride;
            packed_tile<2, decltype(count)::value, kLanes>(t.panel, 0, blocks, in, out, t.stride, t.rows);
            if (t.rows <= kTileRows) return;
            packed_tile<2, decltype(count)::value, kLanes>(t.panel, 2, blocks, in, out + kTileRows, t.stride,
                                                           t.rows - kTileRows);
        });
    }
};

template <Layout L>
void multiply_tiles(const Matrix& w, const Quantized& a, size_t n, size_t begin, size_t end, float* out, size_t stride) {
    for (size_t panel = begin; panel < end; ++panel) {
        const Target target{w.data + panel * w.panel_bytes, out + panel * kPanelRows, stride, w.rows - panel * kPanelRows};
        if (n >= kExpandFrom && a.lanes == kLanes) {
            Tiles<L>::panel_of_many(target, a, w.columns, n);
        } else {
            Tiles<L>::panel_of_few(target, a, w.columns, n);
        }
    }
}
