// A panel of quants of six bits with coded scales for 16 columns (Q6_K) × one column, in assembly: the output matrix and
// every third other matrix of files that are called Q4_K_M. Included by tiles.h.
//
// Three vectors hold four: six bits of a byte are a quant, the other two of all three are the fourth. A block needs 130 slots
// of the two vector units: 32 products, 48 to take quants apart, 50 for scales. The integer units take those of four rows
// apart, as in tiles_one.h. Codes become floats by `tbl`, which puts them below kFloatBias + 128; what follows is exact,
// so the bits are those of packed_tile with intrinsics. Measured on a Neoverse N1: 74 cycles a block, 80 without the integer
// units; 80 and 84 from memory.
//
//     v0 … v3      sums, [rows]                    v16 … v19    totals
//     v4, v5       activations                     v20 … v23    what codes are multiplied with
//     v6           their scale                     v26, v27     a scale, and a sum × that
//     v7           128 in each byte                v28, v29     codes, what is above them, −kFloatBias
//     v8 … v15, v24, v25    quants                 v30, v31     kFloatBias + 128, a mask
constexpr Shape kSixesShape = shape_of(Layout::kSixesK);

// Where the bytes of four codes as floats are in v28 and v29.
#define CODE(i) i, 20, 22, 23
alignas(64) constexpr uint8_t kCodeBytes[64] = {CODE(0), CODE(1), CODE(2),  CODE(3),  CODE(4),  CODE(5),  CODE(6),  CODE(7),
                                                CODE(8), CODE(9), CODE(10), CODE(11), CODE(12), CODE(13), CODE(14), CODE(15)};
#undef CODE

inline void sixes_blocks(const uint8_t* w, const Inputs& a, size_t blocks, float* totals) {
    constexpr size_t kQuants = kSixesShape.quants_at(0), kUnitBytes = kSixesShape.unit_bytes();
    constexpr int kAhead = 20 * 384;  // bytes: what is streamed arrives late without asking for it
    const int8_t* q = a.q;
    const float* scale = a.scale;
    const int32_t* sums = a.sums;
    alignas(64) uint8_t starts[2 * 16], taken[8 * 16];
    for (int r = 0; r < 4; ++r) vst1q_f32(totals + 4 * r, vdupq_n_f32(0.0f));
#define LOAD(at)                                                                                            \
    "ldp q8, q9, [%[w], #" at "]\n\t" "ldp q10, q11, [%[w], #64 + " at "]\n\t" "ldp q12, q13, [%[w], #128 + " at "]\n\t"
#define LOW(to, from) "and v" to ".16b, v" from ".16b, v31.16b\n\t"
#define UNDER(top, below) "sri v" top ".16b, v" below ".16b, #2\n\t"
#define FOURTH(x) "ushr v" x ".16b, v" x ".16b, #2\n\t"
#define DOT(sum, w, x, lane) "sdot v" sum ".4s, v" w ".16b, v" x ".4b[" lane "]\n\t"
#define PREFETCH(at) "prfm pldl1keep, [%[w], #%c[ahead] + " at "]\n\t"
#define START(sum0, sum1, at) "ldr q" sum0 ", [%[starts], #" at "]\n\t" "ldr q" sum1 ", [%[starts], #" at "]\n\t"
// 8 rows × 16 numbers, with what else is to be done meanwhile.
#define ROWS(at, sum0, sum1, x, half, one, two, three, four)                                                \
    LOAD(at) START(sum0, sum1, half)                                                                        \
    LOW("14", "10") LOW("15", "11") one LOW("24", "12") LOW("25", "13")                                     \
    UNDER("10", "8") UNDER("11", "9") two LOW("8", "8") LOW("9", "9")                                       \
    DOT(sum0, "14", x, "1") DOT(sum1, "15", x, "1") UNDER("12", "10") UNDER("13", "11") three               \
    DOT(sum0, "24", x, "2") DOT(sum1, "25", x, "2") FOURTH("12") FOURTH("13") four                          \
    DOT(sum0, "8", x, "0") DOT(sum1, "9", x, "0") DOT(sum0, "12", x, "3") DOT(sum1, "13", x, "3")
// Beside that, four rows × 16 numbers by the integer units, in four steps.
#define TAKE(at)                                                                                            \
    "ldp x9, x10, [%[w], #" at "]\n\t" "ldp x11, x12, [%[w], #64 + " at "]\n\t" "ldp x13, x14, [%[w], #128 + " at "]\n\t"  \
    "and x15, %[six], x9\n\t" "and x16, %[six], x10\n\t"
#define TAKE_SECOND(slot)                                                                                   \
    "stp x15, x16, [%[taken], #" slot "]\n\t"                                                               \
    "and x9, %[two], x9, lsr #6\n\t" "and x10, %[two], x10, lsr #6\n\t"                                    \
    "and x15, %[six], x11\n\t" "and x16, %[six], x12\n\t"
#define TAKE_THIRD(slot)                                                                                    \
    "stp x15, x16, [%[taken], #16 + " slot "]\n\t"                                                          \
    "and x11, %[two], x11, lsr #6\n\t" "and x12, %[two], x12, lsr #6\n\t"                                  \
    "and x15, %[six], x13\n\t" "and x16, %[six], x14\n\t"                                                  \
    "orr x9, x9, x11, lsl #2\n\t" "orr x10, x10, x12, lsl #2\n\t"
#define TAKE_FOURTH(slot)                                                                                   \
    "stp x15, x16, [%[taken], #32 + " slot "]\n\t"                                                          \
    "and x13, %[two], x13, lsr #6\n\t" "and x14, %[two], x14, lsr #6\n\t"                                  \
    "orr x9, x9, x13, lsl #4\n\t" "orr x10, x10, x14, lsl #4\n\t"                                          \
    "stp x9, x10, [%[taken], #48 + " slot "]\n\t"
// 8 rows × 16 numbers, of which four rows have been taken.
#define ROWS_TAKEN(at, sum0, sum1, x, half, slot, one, two, three, four)                                    \
    "ldr q8, [%[w], #" at "]\n\t" "ldr q10, [%[w], #64 + " at "]\n\t" "ldr q12, [%[w], #128 + " at "]\n\t"  \
    "ldp q9, q15, [%[taken], #" slot "]\n\t" "ldp q25, q13, [%[taken], #32 + " slot "]\n\t"                 \
    START(sum0, sum1, half)                                                                                 \
    LOW("14", "10") one LOW("24", "12") UNDER("10", "8") two LOW("8", "8")                                  \
    DOT(sum1, "15", x, "1") DOT(sum0, "14", x, "1") UNDER("12", "10") three                                 \
    DOT(sum1, "25", x, "2") DOT(sum0, "24", x, "2") FOURTH("12") four                                       \
    DOT(sum1, "9", x, "0") DOT(sum0, "8", x, "0") DOT(sum1, "13", x, "3") DOT(sum0, "12", x, "3")
#define CODES(at) "ldr q28, [%[codes], #" at "]\n\t" "eor v28.16b, v28.16b, v7.16b\n\t"
#define SCALE(d, at)                                                                                        \
    "ldr q26, [%[index], #" at "]\n\t"                                                                      \
    "tbl v26.16b, {v28.16b, v29.16b}, v26.16b\n\t"                                                          \
    "fsub v26.4s, v26.4s, v30.4s\n\t"                                                                       \
    "fmul v26.4s, v26.4s, v" d ".4s\n\t"
#define PART "fmul v27.4s, v26.4s, v29.s[0]\n\t"
#define TOTAL(total, sum)                                                                                   \
    "fmla v27.4s, v" sum ".4s, v26.4s\n\t"                                                                  \
    "fmla v" total ".4s, v27.4s, v6.s[0]\n\t"
    for (size_t unit = 0; unit < blocks; unit += kSixesShape.blocks(), w += kUnitBytes) {
        // Of the next unit what prefetching in the loop passes over.
        prefetch<kQuants>(w + kUnitBytes + kAhead);
        const uint8_t* codes = w + kSixesShape.scale_at(0, 0);
        const uint8_t* quants = w + kQuants;
        size_t n = kSixesShape.blocks();
        asm volatile(
            "ldp q16, q17, [%[t]]\n\t"
            "ldp q18, q19, [%[t], #32]\n\t"
            "ldp q21, q23, [%[head]]\n\t"
            "fcvtl v20.4s, v21.4h\n\t" "fcvtl2 v21.4s, v21.8h\n\t" "fcvtl v22.4s, v23.4h\n\t" "fcvtl2 v23.4s, v23.8h\n\t"
            "movi v31.16b, #63\n\t"
            "movi v7.16b, #128\n\t"
            "dup v30.4s, %w[flipped]\n\t"
            "dup v29.4s, %w[first]\n\t"
            "mov v29.s[0], %w[bias]\n\t"
            ".p2align 6\n"
            "1:\n\t"
            "ldp w9, w10, [%[sums]], #8\n\t"
            "sub w9, %w[first], w9, lsl #5\n\t"  // an offset of 32
            "sub w10, %w[first], w10, lsl #5\n\t"
            "orr x9, x9, x9, lsl #32\n\t"
            "stp x9, x9, [%[starts]]\n\t"
            "orr x10, x10, x10, lsl #32\n\t"
            "stp x10, x10, [%[starts], #16]\n\t"
            "ldp q4, q5, [%[q]], #32\n\t"
            "ldr s6, [%[scale]], #4\n\t"
            ROWS("0", "0", "1", "4", "0", PREFETCH("0") TAKE("48"), CODES("0") TAKE_SECOND("0"), PREFETCH("64") TAKE_THIRD("0"),
                 TAKE_FOURTH("0"))
            ROWS_TAKEN("32", "2", "3", "4", "0", "0", SCALE("20", "0") PART, TOTAL("16", "0"), SCALE("21", "16") PART,
                       TOTAL("17", "1"))
            ROWS("192", "0", "1", "5", "16", SCALE("22", "32") PART TAKE("240"), TOTAL("18", "2") PREFETCH("128") TAKE_SECOND("64"),
                 SCALE("23", "48") PART TAKE_THIRD("64"), TOTAL("19", "3") CODES("16") PREFETCH("192") TAKE_FOURTH("64"))
            ROWS_TAKEN("224", "2", "3", "5", "16", "64", SCALE("20", "0") PART, TOTAL("16", "0") PREFETCH("256"),
                       SCALE("21", "16") PART, TOTAL("17", "1") PREFETCH("320"))
            SCALE("22", "32") PART TOTAL("18", "2")
            SCALE("23", "48") PART TOTAL("19", "3")
            "add %[w], %[w], #384\n\t"
            "add %[codes], %[codes], #32\n\t"
            "subs %[n], %[n], #1\n\t"
            "b.ne 1b\n\t"
            "stp q16, q17, [%[t]]\n\t"
            "stp q18, q19, [%[t], #32]\n\t"
            : [w] "+r"(quants), [codes] "+r"(codes), [q] "+r"(q), [scale] "+r"(scale), [sums] "+r"(sums), [n] "+r"(n)
            : [t] "r"(totals), [head] "r"(w), [starts] "r"(starts), [taken] "r"(taken), [index] "r"(kCodeBytes),
              [bias] "r"(0xcb400000), [first] "r"(kSumStart), [flipped] "r"(kSumStart + 128), [ahead] "i"(kAhead),
              [six] "r"(0x3f3f3f3f3f3f3f3f), [two] "r"(0x0303030303030303)
            : "memory", "cc", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7",
              "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",
              "v25", "v26", "v27", "v28", "v29", "v30", "v31");
    }
#undef LOAD
#undef LOW
#undef UNDER
#undef FOURTH
#undef DOT
#undef PREFETCH
#undef START
#undef ROWS
#undef TAKE
#undef TAKE_SECOND
#undef TAKE_THIRD
#undef TAKE_FOURTH
#undef ROWS_TAKEN
#undef CODES
#undef SCALE
#undef PART
#undef TOTAL
}
