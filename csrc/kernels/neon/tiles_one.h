// A panel of nibbles with half scales × one column, in assembly: most of what decoding does. Included by tiles.h.
//
// 16 rows × 32 numbers of Q4_1 need 96 slots of the two vector units, 48 cycles on a Neoverse N1: 32 products, 32 to take
// nibbles apart, 16 for halves that become floats and 16 for scales. The integer units have nothing to do meanwhile, so
// they take the nibbles of half the bytes and hand them over through memory that stays in the first cache. Measured: 43.1
// cycles with them, 47.7 if they take the high ones only, 51.6 without. Then 3.6 instructions are read a cycle, which is
// about all that can be. The plain form is packed_tile's for two to four columns, which gives the same bits.
//
//     v0 … v3      sums, [rows]                    v16 … v19    totals
//     v4, v5       activations                     v20 … v27    scales and minima
//     v6, v7       their scale, and that × their sum
//     v8 … v15     quants
//
// Levels are looked up by `tbl`, one more operation for each 16 nibbles, in a table that is in v29; their scales become floats
// by a shift.
template <bool Min, bool Levels>
inline void packed_blocks(const uint8_t* w, const Inputs& a, size_t blocks, float* totals) {
    constexpr int kQuants = Min ? 64 : 32;       // where they begin
    constexpr int kAhead = 28 * (kQuants + 256);  // bytes: what is streamed arrives late without asking for it
    const int8_t* q = a.q;
    const float *scale = a.scale, *scaled = a.scaled;
    const int32_t* sums = a.sums;
    alignas(64) uint8_t taken[16 * 16];  // of the third and fourth 64 bytes: high nibbles, then low ones
#define LOAD(at) "ldp q8, q9, [%[w], #%c[quants] + " at "]\n\t" "ldp q10, q11, [%[w], #%c[quants] + 32 + " at "]\n\t"
#define LOW(to, from) "and v" to ".16b, v" from ".16b, v31.16b\n\t"
#define LEVEL(x) "tbl v" x ".16b, {v29.16b}, v" x ".16b\n\t"
#define IF_LEVELS(text) ".if %c[levels]\n\t" text ".endif\n\t"
#define LOWS LOW("12", "8") LOW("13", "9") LOW("14", "10") LOW("15", "11")                                  \
    IF_LEVELS(LEVEL("12") LEVEL("13") LEVEL("14") LEVEL("15"))
#define DOT(sum, w, x, lane) "sdot v" sum ".4s, v" w ".16b, v" x ".4b[" lane "]\n\t"
#define DOTS(w0, w1, w2, w3, x, lane) DOT("0", w0, x, lane) DOT("1", w1, x, lane) DOT("2", w2, x, lane) DOT("3", w3, x, lane)
// A product, and beside it the nibbles of 16 other bytes by the integer units.
#define BESIDE(sum, low, both, lane, at, slot, x0, x1)                                                      \
    "ldp " x0 ", " x1 ", [%[w], #%c[quants] + " at "]\n\t"                                                  \
    "and x15, %[mask], " x0 "\n\t" "and x16, %[mask], " x1 "\n\t"                                          \
    "stp x15, x16, [%[taken], #128 + " slot "]\n\t"                                                         \
    "and " x0 ", %[mask], " x0 ", lsr #4\n\t"                                                               \
    "ushr v" both ".16b, v" both ".16b, #4\n\t" IF_LEVELS(LEVEL(both))                                      \
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
#define QUAD(lane, slot, convert, convert2)                                                                 \
    "ldp q12, q13, [%[taken], #128 + " slot "]\n\t" "ldp q14, q15, [%[taken], #160 + " slot "]\n\t"         \
    IF_LEVELS(LEVEL("12") LEVEL("13") LEVEL("14") LEVEL("15")) convert                                      \
    DOTS("12", "13", "14", "15", "4", lane)                                                                 \
    "ldp q8, q9, [%[taken], #" slot "]\n\t" "ldp q10, q11, [%[taken], #32 + " slot "]\n\t"                  \
    IF_LEVELS(LEVEL("8") LEVEL("9") LEVEL("10") LEVEL("11"))                                                \
    convert2 DOTS("8", "9", "10", "11", "5", lane)
#define FLOATS(to, from)                                                                                    \
    IF_LEVELS("shll v" to ".4s, v" from ".4h, #16\n\t") ".if %c[levels] == 0\n\t"                           \
    "fcvtl v" to ".4s, v" from ".4h\n\t" ".endif\n\t"
#define FLOATS2(from)                                                                                       \
    IF_LEVELS("shll2 v" from ".4s, v" from ".8h, #16\n\t") ".if %c[levels] == 0\n\t"                        \
    "fcvtl2 v" from ".4s, v" from ".8h\n\t" ".endif\n\t"
#define IF_MIN(text) ".if %c[min]\n\t" text ".endif\n\t"
#define MIN(total, m) "fmla v" total ".4s, v" m ".4s, v7.s[0]\n\t"
#define BIAS(part, d) "fmul v" part ".4s, v" d ".4s, v30.4s\n\t"
#define PART(part, dot, d) "fmla v" part ".4s, v" dot ".4s, v" d ".4s\n\t"
#define TOTAL(total, part) "fmla v" total ".4s, v" part ".4s, v6.s[0]\n\t"
    asm volatile(
        "movi v16.4s, #0\n\t" "movi v17.4s, #0\n\t" "movi v18.4s, #0\n\t" "movi v19.4s, #0\n\t"
        "movi v31.16b, #15\n\t"
        "dup v30.4s, %w[bias]\n\t"
        IF_LEVELS("ldr q29, [%[table]]\n\t")
        ".p2align 6\n"
        "1:\n\t"
        "ldp q4, q5, [%[q]], #32\n\t"
        "ldp q21, q23, [%[w]]\n\t"
        IF_MIN("ldp q25, q27, [%[w], #32]\n\t"
               "ldr s7, [%[scaled]], #4\n\t")
        ".if %c[min] + %c[levels]\n\t"
        "ldp q0, q1, [%[start]]\n\t"
        "ldp q2, q3, [%[start]]\n\t"
        ".else\n\t"
        "ldp w9, w10, [%[sums]], #8\n\t"
        "add w9, w9, w10\n\t"
        "sub w9, %w[first], w9, lsl #3\n\t"  // an offset of 8
        "dup v0.4s, w9\n\t" "dup v1.4s, w9\n\t" "dup v2.4s, w9\n\t" "dup v3.4s, w9\n\t"
        ".endif\n\t"
        "ldr s6, [%[scale]], #4\n\t"
        QUAD_BESIDE("0", "0", "128", "0", IF_MIN(FLOATS("24", "25")), IF_MIN(FLOATS2("25")))
        QUAD_BESIDE("64", "1", "192", "64", IF_MIN(FLOATS("26", "27")), IF_MIN(FLOATS2("27")))
        IF_MIN(MIN("16", "24") MIN("17", "25"))
        QUAD("2", "0", FLOATS("20", "21"), FLOATS2("21"))
        IF_MIN(MIN("18", "26") MIN("19", "27") PREFETCH("256"))
        QUAD("3", "64", FLOATS("22", "23"), FLOATS2("23"))
        BIAS("12", "20") BIAS("13", "21") BIAS("14", "22") BIAS("15", "23")
        "add %[w], %[w], #%c[quants] + 256\n\t"
        "subs %[n], %[n], #1\n\t"
        PART("12", "0", "20") PART("13", "1", "21") PART("14", "2", "22") PART("15", "3", "23")
        TOTAL("16", "12") TOTAL("17", "13") TOTAL("18", "14") TOTAL("19", "15")
        "b.ne 1b\n\t"
        "stp q16, q17, [%[t]]\n\t"
        "stp q18, q19, [%[t], #32]\n\t"
        : [w] "+r"(w), [q] "+r"(q), [scale] "+r"(scale), [scaled] "+r"(scaled), [sums] "+r"(sums), [n] "+r"(blocks)
        : [t] "r"(totals), [taken] "r"(taken), [start] "r"(kSumStarts), [first] "r"(kSumStart), [bias] "r"(0xcb400000),
          [mask] "r"(0x0f0f0f0f0f0f0f0f), [min] "i"(Min), [levels] "i"(Levels), [quants] "i"(kQuants), [ahead] "i"(kAhead),
          [table] "r"(kSignedLevels)
        : "memory", "cc", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7",
          "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",
          "v25", "v26", "v27", "v29", "v30", "v31");
#undef LOAD
#undef LOW
#undef LEVEL
#undef IF_LEVELS
#undef LOWS
#undef DOT
#undef DOTS
#undef BESIDE
#undef PREFETCH
#undef QUAD_BESIDE
#undef QUAD
#undef FLOATS
#undef FLOATS2
#undef IF_MIN
#undef MIN
#undef BIAS
#undef PART
#undef TOTAL
}
