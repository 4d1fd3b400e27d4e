// Half a panel × four columns, with quants as they are packed: what steps of 4 to 6 rows take, and four columns that remain of
// more. Included by tiles.h.
//
// Bytes that are expanded have to be stored and read again, which pays only where many columns read them. Here a quant is
// unpacked in the register that it was loaded to. Half scales are converted on the way, others are floats already
// (expand_scales). The loop is that of expanded_blocks, and so are the arguments from `a` on; `w` is where the half's quants
// begin, `s` where its scales do, and `step` more bytes from `ahead` on are asked for with every block. The plain form is
// packed_tile, which gives the same bits.
//
//     v0 … v7      sums, [column][rows]            v16 … v23    totals, [column][rows]
//     v8, v10      scales                          v24 … v27    quants
//     v11, v12     minima                          v28 … v31    activations
//     v9, v13      the columns' scales, and these × their sums
//     v14, v15     a mask, levels
template <Layout L>
inline void packed_fours(const uint8_t* w, const void* s, const Inputs& a, size_t blocks, const float* from,
                         size_t from_stride, float* to, size_t to_stride, const uint8_t* ahead, size_t step) {
    constexpr Shape kShape = shape_of(L);
    constexpr bool kCoded = kShape.scales == Scales::kCoded, kHalf = reads_halves(L);
    constexpr int kOffset = kShape.bytes() ? 0 : kShape.offset, kScaleStep = kHalf ? kShape.unit_bytes() : kShape.min ? 96 : 64;
    static_assert(kShape.groups == 1 && (kShape.bits == 8 || kShape.bits == 4) && (kOffset == 0 || kOffset == 8));
    const int8_t* q = a.q;
    const float *scale = a.scale, *scaled = a.scaled;
    const int32_t* sums = a.sums;
    alignas(64) int32_t starts[4 * 4 + 8];  // what the columns' sums begin with; then levels, or −kFloatBias × scales
    for (int32_t& start : starts) start = kSumStart;
    if constexpr (kShape.levels) std::memcpy(starts + 16, kSignedLevels, sizeof kSignedLevels);
#define IF(what, text) ".if %c[" what "]\n\t" text ".endif\n\t"
#define DOT(sum, w, x, lane) "sdot v" sum ".4s, v" w ".16b, v" x ".4b[" lane "]\n\t"
#define PAIR(even, odd, x, lane, w0, w1) DOT(even, w0, x, lane) DOT(odd, w1, x, lane)
#define LOAD_X(x, at) "ldr q" x ", [%[q], #" at "]\n\t"
// Quants of four numbers; `quad` is 0 … 3 for the first half of a block.
#define LOAD_LOW(w0, w1, quad) "ldp q" w0 ", q" w1 ", [%[w], #64 * " quad "]\n\t"
#define LOAD_HIGH(w0, w1, quad)                                                                             \
    ".if %c[bytes]\n\t" "ldp q" w0 ", q" w1 ", [%[w], #256 + 64 * " quad "]\n\t"                            \
    ".else\n\t" "ldp q" w0 ", q" w1 ", [%[w], #64 * " quad "]\n\t" ".endif\n\t"
#define LEVELS(x) IF("levels", "tbl v" x ".16b, {v15.16b}, v" x ".16b\n\t")
#define LOW(x)                                                                                              \
    ".if %c[bytes]\n\t" "eor v" x ".16b, v" x ".16b, v14.16b\n\t"                                           \
    ".else\n\t" "and v" x ".16b, v" x ".16b, v14.16b\n\t" ".endif\n\t" LEVELS(x)
#define HIGH(x)                                                                                             \
    ".if %c[bytes]\n\t" "eor v" x ".16b, v" x ".16b, v14.16b\n\t"                                           \
    ".else\n\t" "ushr v" x ".16b, v" x ".16b, #4\n\t" ".endif\n\t" LEVELS(x)
// Four numbers of all columns; the next quants are loaded and unpacked meanwhile.
#define QUAD(lane, w0, w1, load, unpack0, unpack1)                                                          \
    PAIR("0", "1", "28", lane, w0, w1) load PAIR("2", "3", "29", lane, w0, w1) unpack0                      \
    PAIR("4", "5", "30", lane, w0, w1) unpack1 PAIR("6", "7", "31", lane, w0, w1)
// A column's sums begin with kSumStart less what the offset of the quants makes of its numbers.
#define START(sum, column) "ldr q" sum ", [%[starts], #16 * " column "]\n\t"
#define FIRST(even, odd, x, column)                                                                         \
    START(even, column) DOT(even, "24", x, "0") START(odd, column) DOT(odd, "25", x, "0")
#define EXCESS(column)                                                                                      \
    IF("offset", "ldp w9, w10, [%[sums], #8 * " column "]\n\t" "add w9, w9, w10\n\t"                        \
       "sub w9, w11, w9, lsl #3\n\t" "orr x9, x9, x9, lsl #32\n\t" "stp x9, x9, [%[starts], #16 * " column "]\n\t")
#define MIN(t0, t1, lane)                                                                                   \
    "fmla v" t0 ".4s, v11.4s, v13.s[" lane "]\n\t" "fmla v" t1 ".4s, v12.4s, v13.s[" lane "]\n\t"
#define PREFETCH(at) "prfm pldl1keep, [%[ahead], #" at "]\n\t"
#define BIAS(p0, p1)                                                                                        \
    ".if %c[half]\n\t" "ldp q" p0 ", q" p1 ", [%[starts], #64]\n\t"                                        \
    ".else\n\t" "ldp q" p0 ", q" p1 ", [%[s], #32]\n\t" ".endif\n\t"
#define PART(part, dot, d) "fmla v" part ".4s, v" dot ".4s, v" d ".4s\n\t"
#define TOTAL(total, part, lane) "fmla v" total ".4s, v" part ".4s, v9.s[" lane "]\n\t"
    asm volatile(
        LOAD_TOTALS
        ".if %c[bytes]\n\t" "movi v14.16b, #128\n\t" ".else\n\t" "movi v14.16b, #15\n\t" ".endif\n\t"
        ".if %c[levels]\n\t" "ldr q15, [%[starts], #64]\n\t"
        ".else\n\t" "movi v15.4s, #0xcb, lsl #24\n\t" "orr v15.4s, #0x40, lsl #16\n\t" ".endif\n\t"  // −kFloatBias
        IF("offset", "movz w11, #0x4b40, lsl #16\n\t")  // kSumStart
        ".p2align 6\n"
        "1:\n\t"
        EXCESS("0") EXCESS("1") EXCESS("2") EXCESS("3")
        IF("offset", "add %[sums], %[sums], #32\n\t")
        LOAD_LOW("24", "25", "0") LOAD_X("28", "0") LOW("24") LOW("25")
        LOAD_X("29", "32") FIRST("0", "1", "28", "0")
        LOAD_LOW("26", "27", "1")
        LOAD_X("30", "64") FIRST("2", "3", "29", "1")
        LOAD_X("31", "96") LOW("26") FIRST("4", "5", "30", "2")
        ".if %c[half]\n\t" "ldr q10, [%[s]]\n\t" IF("min", "ldr q12, [%[s], #32]\n\t")
        ".else\n\t" "ldp q8, q10, [%[s]]\n\t" IF("min", "ldp q11, q12, [%[s], #64]\n\t") ".endif\n\t"
        LOW("27") FIRST("6", "7", "31", "3")
        IF("half", "fcvtl v8.4s, v10.4h\n\t" "fcvtl2 v10.4s, v10.8h\n\t")
        QUAD("1", "26", "27", LOAD_LOW("24", "25", "2"), LOW("24"), LOW("25"))
        PREFETCH("0")
        IF("half", "fmul v9.4s, v8.4s, v15.4s\n\t" "fmul v13.4s, v10.4s, v15.4s\n\t" "stp q9, q13, [%[starts], #64]\n\t")
        QUAD("2", "24", "25", LOAD_LOW("26", "27", "3"), LOW("26"), LOW("27"))
        IF("half", IF("min", "fcvtl v11.4s, v12.4h\n\t" "fcvtl2 v12.4s, v12.8h\n\t"))
        PAIR("0", "1", "28", "3", "26", "27") LOAD_HIGH("24", "25", "0") LOAD_X("28", "16")
        PAIR("2", "3", "29", "3", "26", "27") LOAD_X("29", "48") HIGH("24")
        PAIR("4", "5", "30", "3", "26", "27") LOAD_X("30", "80") HIGH("25")
        PAIR("6", "7", "31", "3", "26", "27") LOAD_X("31", "112")
        PREFETCH("64")
        QUAD("0", "24", "25", LOAD_HIGH("26", "27", "1"), HIGH("26"), HIGH("27"))
        QUAD("1", "26", "27", LOAD_HIGH("24", "25", "2"), HIGH("24"), HIGH("25"))
        PREFETCH("128")
        QUAD("2", "24", "25", LOAD_HIGH("26", "27", "3"), HIGH("26"), HIGH("27"))
        "ldr q9, [%[scale]], #16\n\t"
        IF("min", "ldr q13, [%[scaled]], #16\n\t")
        QUAD("3", "26", "27", BIAS("24", "25"), "", "")
        IF("min", MIN("16", "17", "0") MIN("18", "19", "1") MIN("20", "21", "2") MIN("22", "23", "3"))
        BIAS("26", "27") PART("24", "0", "8") PART("25", "1", "10")
        BIAS("28", "29") PART("26", "2", "8") PART("27", "3", "10")
        BIAS("30", "31") PART("28", "4", "8") PART("29", "5", "10") PART("30", "6", "8") PART("31", "7", "10")
        "add %[w], %[w], #%c[block]\n\t"
        "add %[q], %[q], #128\n\t"
        "add %[s], %[s], #%c[scales]\n\t"
        "add %[ahead], %[ahead], %[step]\n\t"
        "sub %[n], %[n], #1\n\t"
        IF("head", "tst %[n], #7\n\t" "add x9, %[w], #%c[head]\n\t" "csel %[w], x9, %[w], eq\n\t")  // a unit has 8 blocks
        TOTAL("16", "24", "0") TOTAL("17", "25", "0") TOTAL("18", "26", "1") TOTAL("19", "27", "1")
        TOTAL("20", "28", "2") TOTAL("21", "29", "2") TOTAL("22", "30", "3") TOTAL("23", "31", "3")
        "cbnz %[n], 1b\n\t"
        STORE_TOTALS
        : [w] "+r"(w), [s] "+r"(s), [q] "+r"(q), [scale] "+r"(scale), [scaled] "+r"(scaled), [sums] "+r"(sums),
          [n] "+r"(blocks), [ahead] "+r"(ahead)
        : [from] "r"(from), [from_stride] "r"(from_stride), [to] "r"(to), [to_stride] "r"(to_stride), [step] "r"(step),
          [starts] "r"(starts),
          [min] "i"(kShape.min), [bytes] "i"(kShape.bits == 8), [levels] "i"(kShape.levels), [offset] "i"(kOffset),
          [half] "i"(kHalf), [scales] "i"(kScaleStep),
          [head] "i"(kCoded ? kShape.head_bytes() : 0),
          [block] "i"(kCoded ? kShape.quant_bytes() : kShape.unit_bytes())
        : "memory", "cc", "x9", "x10", "x11", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",
          "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",
          "v31");
#undef IF
#undef DOT
#undef PAIR
#undef LOAD_X
#undef LOAD_LOW
#undef LOAD_HIGH
#undef LEVELS
#undef LOW
#undef HIGH
#undef QUAD
#undef START
#undef FIRST
#undef EXCESS
#undef MIN
#undef PREFETCH
#undef BIAS
#undef PART
#undef TOTAL
}

// Whether packed_fours has a loop for a layout.
constexpr bool has_fours(Layout layout) {
    const Shape shape = shape_of(layout);
    return shape.groups == 1 && (shape.bits == 4 || shape.bits == 8);
}
