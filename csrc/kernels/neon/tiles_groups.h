// expanded_blocks for layouts with a scale for each 16 columns (Q6_K, and rows of the file that become such). Included by
// tiles.h.
//
// Both groups have sums of their own, so that operations on floats stand together at the end of a block: 96 vector operations
// take 53.6 cycles on a Neoverse N1, where they need 48. With 512 columns, which come from the second cache, it is 59 cycles,
// and 64 with intrinsics. Arguments are those of expanded_blocks.
//
//     v0 … v7      sums of the first group         v16 … v23    totals, [column][rows]
//     v8 … v15     of the second                   v24 … v27    quants; then scales and those of the columns
//     v28 … v31    activations; then sums × scales
inline void expanded_groups(const int8_t* w, const float* s, const Inputs& a, size_t blocks, const float* from,
                            size_t from_stride, float* to, size_t to_stride) {
    const int8_t* q = a.q;
    const float* scale = a.scale;
#define DOT(sum, w, x, lane) "sdot v" sum ".4s, v" w ".16b, v" x ".4b[" lane "]\n\t"
#define PAIR(even, odd, x, lane, w0, w1) DOT(even, w0, x, lane) DOT(odd, w1, x, lane)
#define LOAD_W(w0, w1, at) "ldp q" w0 ", q" w1 ", [%[w], #" at "]\n\t"
#define LOAD_X(x, at) "ldr q" x ", [%[q], #" at "]\n\t"
#define START(sum) "ldr q" sum ", [%[start]]\n\t"
#define FIRST(even, odd, x) START(even) DOT(even, "24", x, "0") START(odd) DOT(odd, "25", x, "0")
// Four numbers of all columns; the next quants are loaded meanwhile.
#define QUAD(s0, s1, s2, s3, s4, s5, s6, s7, lane, w0, w1, next)                                            \
    PAIR(s0, s1, "28", lane, w0, w1) PAIR(s2, s3, "29", lane, w0, w1) next                                  \
    PAIR(s4, s5, "30", lane, w0, w1) PAIR(s6, s7, "31", lane, w0, w1)
// 16 numbers of all columns, which are at `x`; quants are at `w`.
#define GROUP(s0, s1, s2, s3, s4, s5, s6, s7, x, w, last)                                                   \
    LOAD_X("28", x) LOAD_W("24", "25", w) LOAD_X("29", x " + 32") FIRST(s0, s1, "28")                       \
    LOAD_X("30", x " + 64") FIRST(s2, s3, "29") LOAD_W("26", "27", w " + 32")                               \
    LOAD_X("31", x " + 96") FIRST(s4, s5, "30") FIRST(s6, s7, "31")                                         \
    QUAD(s0, s1, s2, s3, s4, s5, s6, s7, "1", "26", "27", LOAD_W("24", "25", w " + 64"))                    \
    QUAD(s0, s1, s2, s3, s4, s5, s6, s7, "2", "24", "25", LOAD_W("26", "27", w " + 96"))                    \
    QUAD(s0, s1, s2, s3, s4, s5, s6, s7, "3", "26", "27", last)
#define PREFETCH(at) "prfm pldl1keep, [%[q], #" at "]\n\t"
#define SCALES(at) "ldp q24, q25, [%[s], #" at "]\n\t"
#define PARTS(p0, p1, even, odd, bias)                                                                      \
    "ldp q" p0 ", q" p1 ", [%[s], #" bias "]\n\t"                                                           \
    "fmla v" p0 ".4s, v" even ".4s, v24.4s\n\t" "fmla v" p1 ".4s, v" odd ".4s, v25.4s\n\t"
#define TOTALS(t0, t1, p0, p1, lane)                                                                        \
    "fmla v" t0 ".4s, v" p0 ".4s, v26.s[" lane "]\n\t" "fmla v" t1 ".4s, v" p1 ".4s, v26.s[" lane "]\n\t"
// A group's sums go to the totals.
#define ADD(s0, s1, s2, s3, s4, s5, s6, s7, bias)                                                           \
    PARTS("28", "29", s0, s1, bias) PARTS("30", "31", s2, s3, bias)                                         \
    TOTALS("16", "17", "28", "29", "0") TOTALS("18", "19", "30", "31", "1")                                 \
    PARTS("28", "29", s4, s5, bias) PARTS("30", "31", s6, s7, bias)                                         \
    TOTALS("20", "21", "28", "29", "2") TOTALS("22", "23", "30", "31", "3")
    asm volatile(
        LOAD_TOTALS
        ".p2align 6\n"
        "1:\n\t"
        GROUP("0", "1", "2", "3", "4", "5", "6", "7", "0", "0", PREFETCH("1024"))
        GROUP("8", "9", "10", "11", "12", "13", "14", "15", "16", "128", PREFETCH("1088"))
        SCALES("0")
        "ldr q26, [%[scale]], #16\n\t"
        ADD("0", "1", "2", "3", "4", "5", "6", "7", "32")
        SCALES("64")
        ADD("8", "9", "10", "11", "12", "13", "14", "15", "96")
        "add %[w], %[w], #256\n\t"
        "add %[q], %[q], #128\n\t"
        "add %[s], %[s], #128\n\t"
        "subs %[n], %[n], #1\n\t"
        "b.ne 1b\n\t"
        STORE_TOTALS
        : [w] "+r"(w), [s] "+r"(s), [q] "+r"(q), [scale] "+r"(scale), [n] "+r"(blocks)
        : [from] "r"(from), [from_stride] "r"(from_stride), [to] "r"(to), [to_stride] "r"(to_stride), [start] "r"(kSumStarts)
        : "memory", "cc", "x9", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
          "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#undef DOT
#undef PAIR
#undef LOAD_W
#undef LOAD_X
#undef START
#undef FIRST
#undef QUAD
#undef GROUP
#undef PREFETCH
#undef SCALES
#undef PARTS
#undef TOTALS
#undef ADD
}
