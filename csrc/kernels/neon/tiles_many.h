// The products of an expanded half panel with four columns, in assembly. Included by tiles.h.
//
// Compilers put loads into bursts, and the vector units wait for products meanwhile; in this order a block of Q4_1 takes
// 46.3 cycles on a Neoverse N1, where its 88 vector operations need 44. Operations on floats stand together: each change from
// these to integer products costs a cycle, since their results come later than those of a product that follows. The plain
// form is expanded_tile's for one to three columns, which gives the same bits.

// dots += 8 rows × 16 numbers of 4 columns, which are a block apart.
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
// The halves of an expanded panel, for a loop that does one after the other: how many, and how far apart they are, in bytes.
struct Halves {
    size_t count = 1, quants = 0, scales = 0, totals = 0;
};

// The whole of a tile, block after block, for layouts with one scale a block. Totals are read from `from` and written to
// `to`, 8 rows of a column; the next column is a stride further (in bytes; 0: all columns begin with the same), and the next
// half's totals are written behind these.
//
//     v0 … v7      sums, [column][rows]            v16 … v23    totals, [column][rows]
//     v8, v10      scales                          v24 … v27    quants
//     v11, v12     minima                          v28 … v31    activations
//     v9, v13      the columns' scales, and these × their sums
template <bool Min>
inline void expanded_blocks(const int8_t* w, const float* s, const Inputs& a, size_t blocks, const float* from,
                            size_t from_stride, float* to, size_t to_stride, Halves halves = {}) {
    const int8_t* q = a.q;
    const float *scale = a.scale, *scaled = a.scaled;
    const size_t w_step = halves.quants - blocks * kTileRows * kBlock;
    const size_t s_step = halves.scales - blocks * (Min ? 3 : 2) * kTileRows * sizeof(float);
    size_t n = blocks;
#define DOT(sum, w, x, lane) "sdot v" sum ".4s, v" w ".16b, v" x ".4b[" lane "]\n\t"
#define PAIR(even, odd, x, lane, w0, w1) DOT(even, w0, x, lane) DOT(odd, w1, x, lane)
// Four numbers of all columns; the next quants are loaded meanwhile.
#define QUAD(lane, w0, w1, next)                                                                            \
    PAIR("0", "1", "28", lane, w0, w1) PAIR("2", "3", "29", lane, w0, w1) next                              \
    PAIR("4", "5", "30", lane, w0, w1) PAIR("6", "7", "31", lane, w0, w1)
#define LOAD_W(w0, w1, at) "ldp q" w0 ", q" w1 ", [%[w], #" at "]\n\t"
#define LOAD_X(x, at) "ldr q" x ", [%[q], #" at "]\n\t"
#define START(sum) "ldr q" sum ", [%[start]]\n\t"
#define FIRST(even, odd, x) START(even) DOT(even, "24", x, "0") START(odd) DOT(odd, "25", x, "0")
#define IF_MIN(text) ".if %c[min]\n\t" text ".endif\n\t"
#define MIN(t0, t1, lane)                                                                                   \
    "fmla v" t0 ".4s, v11.4s, v13.s[" lane "]\n\t" "fmla v" t1 ".4s, v12.4s, v13.s[" lane "]\n\t"
#define PREFETCH(at) "prfm pldl1keep, [%[q], #" at "]\n\t"
#define BIAS(p0, p1) "ldp q" p0 ", q" p1 ", [%[s], #32]\n\t"
#define PART(part, dot, d) "fmla v" part ".4s, v" dot ".4s, v" d ".4s\n\t"
#define TOTAL(total, part, lane) "fmla v" total ".4s, v" part ".4s, v9.s[" lane "]\n\t"
    asm volatile(
        "2:\n\t"
        LOAD_TOTALS
        ".p2align 4\n"
        "1:\n\t"
        LOAD_X("28", "0") LOAD_W("24", "25", "0")
        LOAD_X("29", "32") FIRST("0", "1", "28")
        LOAD_X("30", "64") FIRST("2", "3", "29")
        LOAD_W("26", "27", "32")
        LOAD_X("31", "96") FIRST("4", "5", "30")
        IF_MIN("ldp q11, q12, [%[s], #64]\n\t")
        PREFETCH("1024") FIRST("6", "7", "31")
        IF_MIN("ldr q13, [%[scaled]], #16\n\t")
        QUAD("1", "26", "27", LOAD_W("24", "25", "64"))
        PREFETCH("1088")
        QUAD("2", "24", "25", LOAD_W("26", "27", "96"))
        PAIR("0", "1", "28", "3", "26", "27") LOAD_X("28", "16")
        PAIR("2", "3", "29", "3", "26", "27") LOAD_X("29", "48") LOAD_W("24", "25", "128")
        PAIR("4", "5", "30", "3", "26", "27") LOAD_X("30", "80")
        PAIR("6", "7", "31", "3", "26", "27") LOAD_X("31", "112")
        QUAD("0", "24", "25", LOAD_W("26", "27", "160"))
        QUAD("1", "26", "27", LOAD_W("24", "25", "192"))
        QUAD("2", "24", "25", LOAD_W("26", "27", "224"))
        "ldp q8, q10, [%[s]]\n\t"
        "ldr q9, [%[scale]], #16\n\t"
        QUAD("3", "26", "27", BIAS("24", "25"))
        IF_MIN(MIN("16", "17", "0") MIN("18", "19", "1") MIN("20", "21", "2") MIN("22", "23", "3"))
        BIAS("26", "27") PART("24", "0", "8") PART("25", "1", "10")
        BIAS("28", "29") PART("26", "2", "8") PART("27", "3", "10")
        BIAS("30", "31") PART("28", "4", "8") PART("29", "5", "10") PART("30", "6", "8") PART("31", "7", "10")
        "add %[w], %[w], #256\n\t"
        "add %[q], %[q], #128\n\t"
        "add %[s], %[s], %[step]\n\t"
        "subs %[n], %[n], #1\n\t"
        TOTAL("16", "24", "0") TOTAL("17", "25", "0") TOTAL("18", "26", "1") TOTAL("19", "27", "1")
        TOTAL("20", "28", "2") TOTAL("21", "29", "2") TOTAL("22", "30", "3") TOTAL("23", "31", "3")
        "b.ne 1b\n\t"
        STORE_TOTALS
        "sub %[q], %[q], %[blocks], lsl #7\n\t"
        "sub %[scale], %[scale], %[blocks], lsl #4\n\t"
        IF_MIN("sub %[scaled], %[scaled], %[blocks], lsl #4\n\t")
        "add %[w], %[w], %[w_step]\n\t"
        "add %[s], %[s], %[s_step]\n\t"
        "add %[from], %[from], %[from_step]\n\t"
        "add %[to], %[to], #32\n\t"
        "mov %[n], %[blocks]\n\t"
        "sub %[halves], %[halves], #1\n\t"
        "cbnz %[halves], 2b\n\t"
        : [w] "+&r"(w), [s] "+&r"(s), [q] "+&r"(q), [scale] "+&r"(scale), [scaled] "+&r"(scaled), [n] "+&r"(n),
          [from] "+&r"(from), [to] "+&r"(to), [halves] "+&r"(halves.count)
        : [from_stride] "r"(from_stride), [to_stride] "r"(to_stride), [blocks] "r"(blocks), [w_step] "r"(w_step),
          [s_step] "r"(s_step), [from_step] "r"(halves.totals), [start] "r"(kSumStarts), [min] "i"(Min), [step] "i"(Min ? 96 : 64)
        : "memory", "cc", "x9", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",
          "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#undef DOT
#undef PAIR
#undef QUAD
#undef LOAD_W
#undef LOAD_X
#undef START
#undef FIRST
#undef IF_MIN
#undef MIN
#undef PREFETCH
#undef BIAS
#undef PART
#undef TOTAL
}
