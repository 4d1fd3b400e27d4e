// A panel of nibbles with coded scales and minima (Q4_K) × one column, in assembly: what decoding does with most files.
// Included by tiles.h.
//
// As packed_blocks, whose macros these resemble, but scales are codes: a byte below half of kFloatBias is a float that is too
// large by kFloatBias, and one fused operation multiplies it with its unit's number and takes that away. It rounds once, to
// what is exact, so the bits are those of eight_scales. Measured on a Neoverse N1: 52.3 cycles a block, 55.3 from
// memory; 74 without assembly.
//
//     v0 … v3      sums, [rows]                    v16 … v19    totals
//     v4, v5       activations                     v20 … v27    codes, scales and minima
//     v6, v7       their scale, and that × their sum
//     v8 … v15     quants                          v28 … v31    what is above a code, 0, −kFloatBias, a mask
constexpr Shape kCodedShape = shape_of(Layout::kNibblesK);

// For each four rows: −kFloatBias × m and m, of minima; then the same of scales.
inline void coded_multipliers(const uint8_t* unit, float* to) {
    const auto* head = reinterpret_cast<const uint16_t*>(unit);
    UNROLL for (int part = 0; part < 2; ++part) UNROLL for (int r = 0; r < 4; ++r) {
        const float32x4_t by = half_four(head + (part ? 0 : kPanelRows) + 4 * r);
        vst1q_f32(to + part * 32 + r * 8, vmulq_f32(by, vdupq_n_f32(-kFloatBias)));
        vst1q_f32(to + part * 32 + r * 8 + 4, by);
    }
}

inline void coded_blocks(const uint8_t* w, const Inputs& a, size_t blocks, float* totals) {
    constexpr size_t kQuants = kCodedShape.quants_at(0), kUnitBytes = kCodedShape.unit_bytes();
    constexpr int kAhead = 32 * 256;  // bytes of quants that are asked for in time
    const int8_t* q = a.q;
    const float *scale = a.scale, *scaled = a.scaled;
    alignas(64) uint8_t taken[16 * 16];  // of the third and fourth 64 bytes: high nibbles, then low ones
    alignas(64) float by[2 * 32];
    for (int r = 0; r < 4; ++r) vst1q_f32(totals + 4 * r, vdupq_n_f32(0.0f));
#define LOAD(at) "ldp q8, q9, [%[w], #" at "]\n\t" "ldp q10, q11, [%[w], #32 + " at "]\n\t"
#define LOW(to, from) "and v" to ".16b, v" from ".16b, v31.16b\n\t"
#define LOWS LOW("12", "8") LOW("13", "9") LOW("14", "10") LOW("15", "11")
#define DOT(sum, w, x, lane) "sdot v" sum ".4s, v" w ".16b, v" x ".4b[" lane "]\n\t"
#define DOTS(w0, w1, w2, w3, x, lane) DOT("0", w0, x, lane) DOT("1", w1, x, lane) DOT("2", w2, x, lane) DOT("3", w3, x, lane)
// A product, and beside it the nibbles of 16 other bytes by the integer units.
#define BESIDE(sum, low, both, lane, at, slot, x0, x1)                                                      \
    "ldp " x0 ", " x1 ", [%[w], #" at "]\n\t"                                                               \
    "and x15, %[mask], " x0 "\n\t" "and x16, %[mask], " x1 "\n\t"                                          \
    "stp x15, x16, [%[taken], #128 + " slot "]\n\t"                                                         \
    "and " x0 ", %[mask], " x0 ", lsr #4\n\t"                                                               \
    "ushr v" both ".16b, v" both ".16b, #4\n\t"                                                             \
    "and " x1 ", %[mask], " x1 ", lsr #4\n\t"                                                               \
    "stp " x0 ", " x1 ", [%[taken], #" slot "]\n\t"                                                         \
    DOT(sum, low, "4", lane)
#define PREFETCH(at) "prfm pldl1keep, [%[w], #%c[ahead] + " at "]\n\t"
// 64 bytes, of which the vector units take the nibbles; `other` are the 64 whose nibbles are taken beside.
#define QUAD_BESIDE(at, lane, other, slot, convert, convert2)                                               \
    LOAD(at) PREFETCH("2 * " at) LOWS convert                                                               \
    BESIDE("0", "12", "8", lane, other, slot, "x9", "x10")                                                  \
    BESIDE("1", "13", "9", lane, other " + 16", slot " + 16", "x11", "x12")                                 \
    BESIDE("2", "14", "10", lane, other " + 32", slot " + 32", "x13", "x14")                                \
    BESIDE("3", "15", "11", lane, other " + 48", slot " + 48", "x9", "x10")                                 \
    convert2 PREFETCH("64 + 2 * " at)                                                                       \
    DOTS("8", "9", "10", "11", "5", lane)
// 64 bytes whose nibbles are there.
#define QUAD(lane, slot, scales)                                                                            \
    "ldp q12, q13, [%[taken], #128 + " slot "]\n\t" "ldp q14, q15, [%[taken], #160 + " slot "]\n\t"         \
    DOTS("12", "13", "14", "15", "4", lane)                                                                 \
    "ldp q8, q9, [%[taken], #" slot "]\n\t" "ldp q10, q11, [%[taken], #32 + " slot "]\n\t"                  \
    scales DOTS("8", "9", "10", "11", "5", lane)
// Sixteen codes as floats, too large by kFloatBias, in v24 … v27.
#define WIDEN(codes)                                                                                        \
    "zip1 v25.16b, v" codes ".16b, v29.16b\n\t" "zip2 v27.16b, v" codes ".16b, v29.16b\n\t"                 \
    "zip1 v24.8h, v25.8h, v28.8h\n\t" "zip2 v25.8h, v25.8h, v28.8h\n\t"                                     \
    "zip1 v26.8h, v27.8h, v28.8h\n\t" "zip2 v27.8h, v27.8h, v28.8h\n\t"
#define MIN(total, code, at)                                                                                \
    "ldp q20, q22, [%[by], #" at "]\n\t"                                                                    \
    "fmla v20.4s, v" code ".4s, v22.4s\n\t"                                                                 \
    "fmla v" total ".4s, v20.4s, v7.s[0]\n\t"
#define SCALE(to, code, by, at)                                                                             \
    "ldp q" to ", q" by ", [%[by], #128 + " at "]\n\t"                                                      \
    "fmla v" to ".4s, v" code ".4s, v" by ".4s\n\t"                                                         \
    "fmul v" code ".4s, v" to ".4s, v30.4s\n\t"
#define PART(part, dot, d) "fmla v" part ".4s, v" dot ".4s, v" d ".4s\n\t"
#define TOTAL(total, part) "fmla v" total ".4s, v" part ".4s, v6.s[0]\n\t"
    for (size_t unit = 0; unit < blocks; unit += kCodedShape.blocks(), w += kUnitBytes) {
        coded_multipliers(w, by);
        // Of the next unit what prefetching in the loop passes over.
        prefetch<kQuants>(w + kUnitBytes + kAhead);
        const uint8_t* codes = w + kCodedShape.scale_at(0, 0);
        const uint8_t* quants = w + kQuants;
        size_t n = kCodedShape.blocks();
        asm volatile(
            "ldp q16, q17, [%[t]]\n\t"
            "ldp q18, q19, [%[t], #32]\n\t"
            "movi v31.16b, #15\n\t"
            "dup v30.4s, %w[bias]\n\t"
            "movi v29.16b, #0\n\t"
            "dup v28.8h, %w[above]\n\t"
            ".p2align 6\n"
            "1:\n\t"
            "ldp q4, q5, [%[q]], #32\n\t"
            "ldp q21, q23, [%[codes]], #32\n\t"
            "ldr s7, [%[scaled]], #4\n\t"
            "ldp q0, q1, [%[start]]\n\t"
            "ldp q2, q3, [%[start]]\n\t"
            "ldr s6, [%[scale]], #4\n\t"
            QUAD_BESIDE("0", "0", "128", "0", WIDEN("23"), "")
            QUAD_BESIDE("64", "1", "192", "64", MIN("16", "24", "0") MIN("17", "25", "32") MIN("18", "26", "64")
                        MIN("19", "27", "96"), WIDEN("21"))
            QUAD("2", "0", "")
            QUAD("3", "64", SCALE("20", "24", "23", "0") SCALE("21", "25", "23", "32")
                 SCALE("22", "26", "23", "64") SCALE("23", "27", "7", "96"))
            "add %[w], %[w], #256\n\t"
            "subs %[n], %[n], #1\n\t"
            PART("24", "0", "20") PART("25", "1", "21") PART("26", "2", "22") PART("27", "3", "23")
            TOTAL("16", "24") TOTAL("17", "25") TOTAL("18", "26") TOTAL("19", "27")
            "b.ne 1b\n\t"
            "stp q16, q17, [%[t]]\n\t"
            "stp q18, q19, [%[t], #32]\n\t"
            : [w] "+r"(quants), [codes] "+r"(codes), [q] "+r"(q), [scale] "+r"(scale), [scaled] "+r"(scaled), [n] "+r"(n)
            : [t] "r"(totals), [taken] "r"(taken), [by] "r"(by), [start] "r"(kSumStarts), [bias] "r"(0xcb400000),
              [above] "r"(kSumStart >> 16), [mask] "r"(0x0f0f0f0f0f0f0f0f), [ahead] "i"(kAhead)
            : "memory", "cc", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7",
              "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",
              "v25", "v26", "v27", "v28", "v29", "v30", "v31");
    }
#undef LOAD
#undef LOW
#undef LOWS
#undef DOT
#undef DOTS
#undef BESIDE
#undef PREFETCH
#undef QUAD_BESIDE
#undef QUAD
#undef WIDEN
#undef MIN
#undef SCALE
#undef PART
#undef TOTAL
}
