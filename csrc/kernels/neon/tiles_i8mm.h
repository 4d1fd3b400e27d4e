// The product loop of "i8mm". Included by i8mm.cpp.
//
// `smmla` multiplies 2 columns × 2 rows over 8 numbers, twice as many products as `sdot`. Its four sums stand as
// c0·r0, c0·r1, c1·r0, c1·r1. They stay like that from the first block to the last: scales of rows are kept as
// r0, r1, r0, r1, those of columns become c0, c0, c1, c1 once a block. Every number sees the operations that it sees in
// tiles.h, in the same order, so the bits are NEON's.

// 8 rows × 4 columns, block after block.
//
//     v0 … v7      sums, [pair of columns][pair of rows]     v16 … v23    totals, in the same order
//     v8 … v11     minima, then scales of the rows           v24 … v27    quants       } then sums × scales
//     v12, v13     scales of the columns                     v28, v29     activations  }
//     v14, v15     these × the columns' sums                 v30, v31     sums of the columns
template <bool Min, int Groups>
inline void paired_blocks(const int8_t* w, const float* s, const int8_t* q, const float* scale, const float* scaled,
                          const int32_t* sums, size_t blocks, float* totals) {
    constexpr int kGroupBytes = (Min ? 3 : 2) * 16 * sizeof(float);  // of the rows' scales
#define START                            \
    "ldp q0, q1, [%[start]]\n\t"       \
    "ldp q2, q3, [%[start]]\n\t"       \
    "ldp q4, q5, [%[start]]\n\t"       \
    "ldp q6, q7, [%[start]]\n\t"
#define EIGHT(at, from)                             \
    "ldp q28, q29, [%[q], #" from "]\n\t"         \
    "ldp q24, q25, [%[w], #" at "]\n\t"           \
    "ldp q26, q27, [%[w], #32 + " at "]\n\t"      \
    "smmla v0.4s, v28.16b, v24.16b\n\t"           \
    "smmla v1.4s, v28.16b, v25.16b\n\t"           \
    "smmla v4.4s, v29.16b, v24.16b\n\t"           \
    "smmla v5.4s, v29.16b, v25.16b\n\t"           \
    "smmla v2.4s, v28.16b, v26.16b\n\t"           \
    "smmla v3.4s, v28.16b, v27.16b\n\t"           \
    "smmla v6.4s, v29.16b, v26.16b\n\t"           \
    "smmla v7.4s, v29.16b, v27.16b\n\t"
#define MIN(total, m, by) "fmla v" total ".4s, v" m ".4s, v" by ".4s\n\t"
// Of group g; where there are two, `of` holds its sums.
#define MINIMA(g, of)                                              \
    ".if %c[min]\n\t"                                            \
    ".if %c[groups] == 1\n\t"                                    \
    "ldr q15, [%[scaled]], #32\n\t"                              \
    ".else\n\t"                                                  \
    "ldr q14, [%[scale]]\n\t"                                    \
    "ld2 {v30.4s, v31.4s}, [%[sums]]\n\t"                        \
    "scvtf v15.4s, v" of ".4s\n\t"                               \
    "fmul v15.4s, v14.4s, v15.4s\n\t"                            \
    ".endif\n\t"                                                 \
    "ldp q8, q9, [%[s], #128 + " g " * %c[group]]\n\t"           \
    "ldp q10, q11, [%[s], #160 + " g " * %c[group]]\n\t"         \
    "zip1 v14.4s, v15.4s, v15.4s\n\t"                            \
    "zip2 v15.4s, v15.4s, v15.4s\n\t"                            \
    MIN("16", "8", "14") MIN("17", "9", "14") MIN("18", "10", "14") MIN("19", "11", "14")   \
    MIN("20", "8", "15") MIN("21", "9", "15") MIN("22", "10", "15") MIN("23", "11", "15")   \
    ".endif\n\t"
#define PART(part, sum, d) "fmla v" part ".4s, v" sum ".4s, v" d ".4s\n\t"
#define TOTAL(total, part, by) "fmla v" total ".4s, v" part ".4s, v" by ".4s\n\t"
#define SCALE(g)                                                   \
    "ldp q8, q9, [%[s], #" g " * %c[group]]\n\t"                 \
    "ldp q10, q11, [%[s], #32 + " g " * %c[group]]\n\t"          \
    "ldp q24, q25, [%[s], #64 + " g " * %c[group]]\n\t"          \
    "ldp q26, q27, [%[s], #96 + " g " * %c[group]]\n\t"          \
    "ldp q28, q29, [%[s], #64 + " g " * %c[group]]\n\t"          \
    "ldp q30, q31, [%[s], #96 + " g " * %c[group]]\n\t"          \
    "ldr q13, [%[scale]]\n\t"                                    \
    "zip1 v12.4s, v13.4s, v13.4s\n\t"                            \
    "zip2 v13.4s, v13.4s, v13.4s\n\t"                            \
    PART("24", "0", "8") PART("25", "1", "9") PART("26", "2", "10") PART("27", "3", "11")   \
    PART("28", "4", "8") PART("29", "5", "9") PART("30", "6", "10") PART("31", "7", "11")   \
    TOTAL("16", "24", "12") TOTAL("17", "25", "12") TOTAL("18", "26", "12") TOTAL("19", "27", "12")   \
    TOTAL("20", "28", "13") TOTAL("21", "29", "13") TOTAL("22", "30", "13") TOTAL("23", "31", "13")
    asm volatile(
        "ldp q16, q17, [%[t]]\n\t"
        "ldp q18, q19, [%[t], #32]\n\t"
        "ldp q20, q21, [%[t], #64]\n\t"
        "ldp q22, q23, [%[t], #96]\n\t"
        ".p2align 6\n"
        "1:\n\t"
        START
        EIGHT("0", "0")
        MINIMA("0", "30")
        EIGHT("64", "32")
        ".if %c[groups] == 2\n\t"
        SCALE("0")
        START
        ".endif\n\t"
        EIGHT("128", "64")
        ".if %c[groups] == 2\n\t"
        MINIMA("1", "31")
        ".endif\n\t"
        EIGHT("192", "96")
        SCALE("(%c[groups] - 1)")
        "add %[w], %[w], #256\n\t"
        "add %[q], %[q], #256\n\t"
        "add %[s], %[s], #%c[groups] * %c[group]\n\t"
        "add %[scale], %[scale], #32\n\t"
        ".if %c[groups] == 2\n\t"
        "add %[sums], %[sums], #64\n\t"
        ".endif\n\t"
        "subs %[n], %[n], #1\n\t"
        "b.ne 1b\n\t"
        "stp q16, q17, [%[t]]\n\t"
        "stp q18, q19, [%[t], #32]\n\t"
        "stp q20, q21, [%[t], #64]\n\t"
        "stp q22, q23, [%[t], #96]\n\t"
        : [w] "+r"(w), [s] "+r"(s), [q] "+r"(q), [scale] "+r"(scale), [scaled] "+r"(scaled), [sums] "+r"(sums), [n] "+r"(blocks)
        : [t] "r"(totals), [start] "r"(kSumStarts), [min] "i"(Min), [groups] "i"(Groups), [group] "i"(kGroupBytes)
        : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",
          "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#undef START
#undef EIGHT
#undef MIN
#undef MINIMA
#undef PART
#undef TOTAL
#undef SCALE
}
