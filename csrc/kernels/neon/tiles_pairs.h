// A panel × 2 columns by NEON's dot products: what one token takes in high precision, or two tokens do in standard.
// Included by tiles.h.
//
// The loops of packed_blocks with a second column: quants are unpacked and scales converted once for both, and each column
// has sums and totals of its own, so the bits are those of any other tile. All 32 registers are in use:
//
//     v0 … v3, v4 … v7         sums, [column][rows]          v24, v25, v26, v27    activations, [column][half a block]
//     v16 … v19, v20 … v23     totals                        v28, v29              minima, and the columns' scale × sum
//     v8 … v15                 quants                        v30, v31              −kFloatBias, a mask
//
// Of a block of Q4_1's 72 cycles at least, 32 are products; one of Q8_0 takes 58. Activations are four columns that stand
// together, of which the first two count.

#define PAIR_LOAD_TOTALS             \
    "ldp q16, q17, [%[t]]\n\t"       \
    "ldp q18, q19, [%[t], #32]\n\t"  \
    "ldp q20, q21, [%[t], #64]\n\t"  \
    "ldp q22, q23, [%[t], #96]\n\t"
#define PAIR_STORE_TOTALS            \
    "stp q16, q17, [%[t]]\n\t"       \
    "stp q18, q19, [%[t], #32]\n\t"  \
    "stp q20, q21, [%[t], #64]\n\t"  \
    "stp q22, q23, [%[t], #96]\n\t"
#define PAIR_START                   \
    "ldp q0, q1, [%[start]]\n\t"     \
    "ldp q2, q3, [%[start]]\n\t"     \
    "ldp q4, q5, [%[start]]\n\t"     \
    "ldp q6, q7, [%[start]]\n\t"
#define PAIR_COLUMNS                 \
    "ldp q24, q25, [%[q]]\n\t"       \
    "ldp q26, q27, [%[q], #32]\n\t"  \
    "add %[q], %[q], #128\n\t"
// Sums of one column += quants × one quad
#define PAIR_DOT(d0, d1, d2, d3, w0, w1, w2, w3, x, lane)            \
    "sdot v" d0 ".4s, v" w0 ".16b, v" x ".4b[" lane "]\n\t"          \
    "sdot v" d1 ".4s, v" w1 ".16b, v" x ".4b[" lane "]\n\t"          \
    "sdot v" d2 ".4s, v" w2 ".16b, v" x ".4b[" lane "]\n\t"          \
    "sdot v" d3 ".4s, v" w3 ".16b, v" x ".4b[" lane "]\n\t"
// Sixteen scales as floats in v28, v24, v29, v26; the activations that were in them have been used.
#define PAIR_SCALES                      \
    "ldp q24, q26, [%[w]]\n\t"           \
    "fcvtl v28.4s, v24.4h\n\t"           \
    "fcvtl2 v24.4s, v24.8h\n\t"          \
    "fcvtl v29.4s, v26.4h\n\t"           \
    "fcvtl2 v26.4s, v26.8h\n\t"
#define PAIR_PART(part, dot, d)                          \
    "fmul v" part ".4s, v" d ".4s, v30.4s\n\t"           \
    "fmla v" part ".4s, v" dot ".4s, v" d ".4s\n\t"
#define PAIR_TOTAL(total, part, lane) "fmla v" total ".4s, v" part ".4s, v25.s[" lane "]\n\t"
#define PAIR_FINISH                                                              \
    "ldr d25, [%[scale]], #16\n\t"                                               \
    PAIR_PART("8", "0", "28") PAIR_PART("9", "1", "24")                          \
    PAIR_PART("10", "2", "29") PAIR_PART("11", "3", "26")                        \
    PAIR_PART("12", "4", "28") PAIR_PART("13", "5", "24")                        \
    PAIR_PART("14", "6", "29") PAIR_PART("15", "7", "26")                        \
    PAIR_TOTAL("16", "8", "0") PAIR_TOTAL("17", "9", "0")                        \
    PAIR_TOTAL("18", "10", "0") PAIR_TOTAL("19", "11", "0")                      \
    PAIR_TOTAL("20", "12", "1") PAIR_TOTAL("21", "13", "1")                      \
    PAIR_TOTAL("22", "14", "1") PAIR_TOTAL("23", "15", "1")
#define PAIR_CLOBBERS                                                                                                     \
    "memory", "cc", "x9", "x10", "x11", "x12", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",  \
        "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27",   \
        "v28", "v29", "v30", "v31"

// Nibbles with half scales.
template <bool Min>
inline void nibble_pairs(const uint8_t* w, const int8_t* q, const float* scale, const float* scaled, const int32_t* sums,
                         size_t blocks, float* totals) {
    constexpr int kQuants = Min ? 64 : 32;  // where they begin
#define QUAD(at, lane, between)                                                \
    "ldp q8, q9, [%[w], #%c[quants] + " at "]\n\t"                             \
    "ldp q10, q11, [%[w], #%c[quants] + 32 + " at "]\n\t"                      \
    "and v12.16b, v8.16b, v31.16b\n\t"                                         \
    "and v13.16b, v9.16b, v31.16b\n\t"                                         \
    "and v14.16b, v10.16b, v31.16b\n\t"                                        \
    "and v15.16b, v11.16b, v31.16b\n\t"                                        \
    PAIR_DOT("0", "1", "2", "3", "12", "13", "14", "15", "24", lane)           \
    "ushr v8.16b, v8.16b, #4\n\t"                                              \
    "ushr v9.16b, v9.16b, #4\n\t"                                              \
    PAIR_DOT("4", "5", "6", "7", "12", "13", "14", "15", "26", lane)           \
    "ushr v10.16b, v10.16b, #4\n\t"                                            \
    "ushr v11.16b, v11.16b, #4\n\t"                                            \
    between                                                                    \
    PAIR_DOT("0", "1", "2", "3", "8", "9", "10", "11", "25", lane)             \
    PAIR_DOT("4", "5", "6", "7", "8", "9", "10", "11", "27", lane)
#define MIN(at, first, second)                           \
    ".if %c[min]\n\t"                                    \
    "ldr d28, [%[w], #32 + " at "]\n\t"                  \
    "fcvtl v28.4s, v28.4h\n\t"                           \
    "fmla v" first ".4s, v28.4s, v29.s[0]\n\t"           \
    "fmla v" second ".4s, v28.4s, v29.s[1]\n\t"          \
    ".endif\n\t"
    asm volatile(
        PAIR_LOAD_TOTALS
        "movi v31.16b, #15\n\t"
        "dup v30.4s, %w[bias]\n\t"
        ".p2align 6\n"
        "1:\n\t"
        PAIR_COLUMNS
        ".if %c[min]\n\t"
        "ldr d29, [%[scaled]], #16\n\t"
        PAIR_START
        ".else\n\t"
        "ldp w9, w10, [%[sums]]\n\t"
        "ldp w11, w12, [%[sums], #8]\n\t"
        "add %[sums], %[sums], #32\n\t"
        "add w9, w9, w10\n\t"
        "add w11, w11, w12\n\t"
        "sub w9, %w[first], w9, lsl #3\n\t"  // an offset of 8
        "sub w11, %w[first], w11, lsl #3\n\t"
        "dup v0.4s, w9\n\t"
        "dup v1.4s, w9\n\t"
        "dup v2.4s, w9\n\t"
        "dup v3.4s, w9\n\t"
        "dup v4.4s, w11\n\t"
        "dup v5.4s, w11\n\t"
        "dup v6.4s, w11\n\t"
        "dup v7.4s, w11\n\t"
        ".endif\n\t"
        QUAD("0", "0", MIN("0", "16", "20"))
        MIN("8", "17", "21")
        QUAD("64", "1", MIN("16", "18", "22"))
        MIN("24", "19", "23")
        QUAD("128", "2", "")
        QUAD("192", "3", PAIR_SCALES)
        "add %[w], %[w], #%c[quants] + 256\n\t"
        "subs %[n], %[n], #1\n\t"
        PAIR_FINISH
        "b.ne 1b\n\t"
        PAIR_STORE_TOTALS
        : [w] "+r"(w), [q] "+r"(q), [scale] "+r"(scale), [scaled] "+r"(scaled), [sums] "+r"(sums), [n] "+r"(blocks)
        : [t] "r"(totals), [start] "r"(kSumStarts), [first] "r"(kSumStart), [bias] "r"(0xcb400000), [min] "i"(Min),
          [quants] "i"(kQuants)
        : PAIR_CLOBBERS);
#undef QUAD
#undef MIN
}

// Bytes with half scales and an offset of 128.
inline void byte_pairs(const uint8_t* w, const int8_t* q, const float* scale, size_t blocks, float* totals) {
#define QUAD(at, lane, w0, w1, w2, w3, first, second)                          \
    "ldp q" w0 ", q" w1 ", [%[w], #32 + " at "]\n\t"                           \
    "ldp q" w2 ", q" w3 ", [%[w], #64 + " at "]\n\t"                           \
    "eor v" w0 ".16b, v" w0 ".16b, v31.16b\n\t"                                \
    "eor v" w1 ".16b, v" w1 ".16b, v31.16b\n\t"                                \
    "eor v" w2 ".16b, v" w2 ".16b, v31.16b\n\t"                                \
    "eor v" w3 ".16b, v" w3 ".16b, v31.16b\n\t"                                \
    PAIR_DOT("0", "1", "2", "3", w0, w1, w2, w3, first, lane)                  \
    PAIR_DOT("4", "5", "6", "7", w0, w1, w2, w3, second, lane)
    asm volatile(
        PAIR_LOAD_TOTALS
        "movi v31.16b, #128\n\t"
        "dup v30.4s, %w[bias]\n\t"
        ".p2align 6\n"
        "1:\n\t"
        PAIR_COLUMNS
        PAIR_START
        QUAD("0", "0", "8", "9", "10", "11", "24", "26")
        QUAD("64", "1", "12", "13", "14", "15", "24", "26")
        QUAD("128", "2", "8", "9", "10", "11", "24", "26")
        QUAD("192", "3", "12", "13", "14", "15", "24", "26")
        QUAD("256", "0", "8", "9", "10", "11", "25", "27")
        PAIR_SCALES
        QUAD("320", "1", "12", "13", "14", "15", "25", "27")
        QUAD("384", "2", "8", "9", "10", "11", "25", "27")
        QUAD("448", "3", "12", "13", "14", "15", "25", "27")
        "add %[w], %[w], #544\n\t"
        "subs %[n], %[n], #1\n\t"
        PAIR_FINISH
        "b.ne 1b\n\t"
        PAIR_STORE_TOTALS
        : [w] "+r"(w), [q] "+r"(q), [scale] "+r"(scale), [n] "+r"(blocks)
        : [t] "r"(totals), [start] "r"(kSumStarts), [bias] "r"(0xcb400000)
        : PAIR_CLOBBERS);
#undef QUAD
}

// Whether there is a loop for 2 columns of a layout.
constexpr bool has_pairs(Layout layout) {
    return layout == Layout::kNibbles || layout == Layout::kNibblesMin || layout == Layout::kBytes;
}

// Totals of 16 rows for each of 2 columns += a panel × them.
template <Layout L>
inline void multiply_pairs(const uint8_t* w, const int8_t* q, const float* scale, const float* scaled, const int32_t* sums,
                           size_t blocks, float* totals) {
    if constexpr (L == Layout::kBytes) return byte_pairs(w, q, scale, blocks, totals);
    nibble_pairs<shape_of(L).min>(w, q, scale, scaled, sums, blocks, totals);
}

#undef PAIR_LOAD_TOTALS
#undef PAIR_STORE_TOTALS
#undef PAIR_START
#undef PAIR_COLUMNS
#undef PAIR_DOT
#undef PAIR_SCALES
#undef PAIR_PART
#undef PAIR_TOTAL
#undef PAIR_FINISH
#undef PAIR_CLOBBERS
