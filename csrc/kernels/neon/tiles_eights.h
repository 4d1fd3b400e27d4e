// Four rows of a panel × eight columns, with quants as they are packed: what steps of 7 rows and more take. Included by
// tiles.h.
//
// A quant that is unpacked in a register is multiplied with eight columns before it is let go, so nothing has to be expanded to
// memory for them: of 16 rows × 8 columns × 32 numbers, whose products take 128 cycles, unpacking takes 16. Half scales
// are converted on the way, others are floats already (expand_scales). The plain form is packed_tile, which gives the same bits.
//
//     v0 … v7      sums, [column]                  v24 … v27    quants; then the columns' scales, and these × their sums
//     v8 … v15     totals, [column]                v28, v29     low quants; then the rows' scales and minima
//     v16 … v23    activations, [column]           v30, v31     a mask; −kFloatBias, or levels
struct Eights {
    const uint8_t* w;         // quants of the panel's first block; those of the next four rows are kRowBytes further
    size_t blocks;
    const int8_t* q[2];       // columns 0 … 3 and 4 … 7, as the rest
    const float* scale[2];
    const float* scaled[2];
    const uint8_t* ahead;     // what is asked for meanwhile, `step` bytes with every block
    size_t step;
    const void* scales[4];    // of the first block, for four rows each: as they are packed, or floats
    alignas(32) float bias[8];  // −kFloatBias × scales, twice

    static constexpr size_t kRowBytes = 16;
};

// What nibbles with an offset of 8 are changed by, which makes them signed in the upper half of a byte; then −kFloatBias and what
// makes their sums of the products, exactly.
alignas(32) constexpr uint32_t kSignsOfEights[8] = {0x88888888, 0x88888888, 0x88888888, 0x88888888, 0xcb400000, 0x3d800000, 0, 0};

// Whether scales are read as they are packed.
constexpr bool reads_halves(Layout layout) { return shape_of(layout).scales == Scales::kHalf; }

// `count` times four rows, from the first-th four of the panel on. Totals are read from `from` and written to `to`; the next column
// is a stride further, in bytes, and so are the next rows by a step and by 16.
template <Layout L>
inline void packed_eights(Eights& e, size_t first, size_t count, const float* from, size_t from_stride, size_t from_step, float* to,
                          size_t to_stride) {
    constexpr Shape kShape = shape_of(L);
    constexpr bool kCoded = kShape.scales == Scales::kCoded, kHalf = reads_halves(L);
    constexpr int kOffset = kShape.bytes() ? 0 : kShape.offset, kScaleStep = kHalf ? kShape.unit_bytes() : kShape.min ? 96 : 64;
    static_assert(kShape.groups == 1 && (kShape.bits == 8 || kShape.bits == 4) && (kOffset == 0 || kOffset == 8));
    static_assert(offsetof(Eights, step) == 9 * 8);
    const uint8_t* w = e.w + first * Eights::kRowBytes;
    const void* const* scales = e.scales + first;
#define IF(what, text) ".if %c[" what "]\n\t" text ".endif\n\t"
#define EITHER(what, text, other) ".if %c[" what "]\n\t" text ".else\n\t" other ".endif\n\t"
#define LOAD_X(x, q, at) "ldr q" x ", [" q ", #" at "]\n\t"
#define DOT(sum, w, x, lane) "sdot v" sum ".4s, v" w ".16b, v" x ".4b[" lane "]\n\t"
#define LEVELS(x) IF("levels", "tbl v" x ".16b, {v31.16b}, v" x ".16b\n\t")
// Packed nibbles; bytes are loaded where they are used.
#define LOAD(x, quad)                                                                                       \
    EITHER("bytes", "", "ldr q" x ", [x0, #64 * " quad "]\n\t")                                            \
    IF("offset", "eor v" x ".16b, v" x ".16b, v31.16b\n\t")
#define LOW(to, from, quad)                                                                                 \
    EITHER("bytes", "ldr q" to ", [x0, #64 * " quad "]\n\t" "eor v" to ".16b, v" to ".16b, v30.16b\n\t",    \
           EITHER("offset", "shl v" to ".16b, v" from ".16b, #4\n\t", "and v" to ".16b, v" from ".16b, v30.16b\n\t")) LEVELS(to)
#define HIGH(x, quad)                                                                                       \
    EITHER("bytes", "ldr q" x ", [x0, #256 + 64 * " quad "]\n\t" "eor v" x ".16b, v" x ".16b, v30.16b\n\t", \
           EITHER("offset", "and v" x ".16b, v" x ".16b, v30.16b\n\t", "ushr v" x ".16b, v" x ".16b, #4\n\t")) LEVELS(x)
// Four numbers of all columns, and what is done meanwhile.
#define QUAD(w, lane, one, two, three)                                                                      \
    DOT("0", w, "16", lane) DOT("1", w, "17", lane) one DOT("2", w, "18", lane) DOT("3", w, "19", lane) \
    two DOT("4", w, "20", lane) DOT("5", w, "21", lane) three DOT("6", w, "22", lane) DOT("7", w, "23", lane)
#define FIRST(c, x, q, at)                                                                                  \
    LOAD_X(x, q, at) "ldr q" c ", [%[start]]\n\t" DOT(c, "28", x, "0")
#define NEXT_X(c, w, x, q, at) DOT(c, w, x, "3") LOAD_X(x, q, at)
#define PREFETCH(at) "prfm pldl1keep, [x11, #" at "]\n\t"
// Quants less 8 that were left in the upper halves of bytes.
#define SIXTEENTHS IF("offset", "ldr q31, [%[signs], #16]\n\t" "fmul v28.4s, v28.4s, v31.s[1]\n\t")
#define MIN(total, by, lane) "fmla v" total ".4s, v29.4s, v" by ".s[" lane "]\n\t"
#define BIAS(p0, p1) EITHER("half", "ldp q" p0 ", q" p1 ", [x14]\n\t", "ldr q" p0 ", [x1, #32]\n\t" "ldr q" p1 ", [x1, #32]\n\t")
#define PART(part, sum) "fmla v" part ".4s, v" sum ".4s, v28.4s\n\t"
#define TOTAL(total, part, by, lane) "fmla v" total ".4s, v" part ".4s, v" by ".s[" lane "]\n\t"
#define LOAD_TOTAL(t) "ldr q" t ", [x15]\n\t" "add x15, x15, %[from_stride]\n\t"
#define STORE_TOTAL(t) "str q" t ", [x15]\n\t" "add x15, x15, %[to_stride]\n\t"
    asm volatile(
        "ldp x11, x12, [%[e], #64]\n\t"
        "add x14, %[e], #%c[biases]\n\t"
        EITHER("bytes", "movi v30.16b, #128\n\t", EITHER("offset", "movi v30.16b, #240\n\t", "movi v30.16b, #15\n\t"))
        EITHER("levels", "ldr q31, [%[table]]\n\t", "dup v31.4s, %w[bias]\n\t")
        "2:\n\t"
        "mov x0, %[w]\n\t"
        "ldr x1, [%[scales]], #8\n\t"
        "ldp x2, x3, [%[e], #16]\n\t"
        "ldp x4, x5, [%[e], #32]\n\t"
        "ldp x6, x7, [%[e], #48]\n\t"
        "ldr x10, [%[e], #8]\n\t"
        "mov x15, %[from]\n\t"
        LOAD_TOTAL("8") LOAD_TOTAL("9") LOAD_TOTAL("10") LOAD_TOTAL("11")
        LOAD_TOTAL("12") LOAD_TOTAL("13") LOAD_TOTAL("14") LOAD_TOTAL("15")
        ".p2align 4\n"
        "1:\n\t"
        IF("offset", "ldr q31, [%[signs]]\n\t")
        LOAD("24", "0") LOW("28", "24", "0") LOAD("25", "1")
        FIRST("0", "16", "x2", "0") FIRST("1", "17", "x2", "32") LOAD("26", "2")
        FIRST("2", "18", "x2", "64") FIRST("3", "19", "x2", "96") LOW("29", "25", "1")
        FIRST("4", "20", "x3", "0") FIRST("5", "21", "x3", "32") LOAD("27", "3")
        FIRST("6", "22", "x3", "64") FIRST("7", "23", "x3", "96")
        QUAD("29", "1", LOW("28", "26", "2"), PREFETCH("0"), "")
        QUAD("28", "2", LOW("29", "27", "3"), HIGH("24", "0"), "")
        NEXT_X("0", "29", "16", "x2", "16") NEXT_X("1", "29", "17", "x2", "48")
        NEXT_X("2", "29", "18", "x2", "80") NEXT_X("3", "29", "19", "x2", "112") HIGH("25", "1")
        NEXT_X("4", "29", "20", "x3", "16") NEXT_X("5", "29", "21", "x3", "48")
        NEXT_X("6", "29", "22", "x3", "80") NEXT_X("7", "29", "23", "x3", "112")
        EITHER("half", "ldr d28, [x1]\n\t" IF("min", "ldr d29, [x1, #32]\n\t"), "ldr q28, [x1]\n\t" IF("min", "ldr q29, [x1, #64]\n\t"))
        QUAD("24", "0", HIGH("26", "2"), IF("half", "fcvtl v28.4s, v28.4h\n\t"), PREFETCH("64"))
        QUAD("25", "1", HIGH("27", "3"), IF("half", SIXTEENTHS "fmul v24.4s, v28.4s, v31.s[0]\n\t" "stp q24, q24, [x14]\n\t"),
             IF("half", IF("min", "fcvtl v29.4s, v29.4h\n\t")))
        QUAD("26", "2", "ldr q24, [x4], #16\n\t", "ldr q25, [x5], #16\n\t", IF("bytes", PREFETCH("128")))
        QUAD("27", "3", IF("min", "ldr q26, [x6], #16\n\t"), "", "")
        IF("min", "ldr q27, [x7], #16\n\t"
           MIN("8", "26", "0") MIN("9", "26", "1") MIN("10", "26", "2") MIN("11", "26", "3")
           MIN("12", "27", "0") MIN("13", "27", "1") MIN("14", "27", "2") MIN("15", "27", "3"))
        BIAS("16", "17") PART("16", "0") PART("17", "1")
        BIAS("18", "19") PART("18", "2") PART("19", "3")
        BIAS("20", "21") PART("20", "4") PART("21", "5")
        BIAS("22", "23") PART("22", "6") PART("23", "7")
        "add x0, x0, #%c[block]\n\t"
        "add x1, x1, #%c[scale_step]\n\t"
        "add x2, x2, #128\n\t"
        "add x3, x3, #128\n\t"
        "add x11, x11, x12\n\t"
        "sub x10, x10, #1\n\t"
        IF("head", "tst x10, #7\n\t" "add x15, x0, #%c[head]\n\t" "csel x0, x15, x0, eq\n\t")  // a unit has 8 blocks
        TOTAL("8", "16", "24", "0") TOTAL("9", "17", "24", "1") TOTAL("10", "18", "24", "2") TOTAL("11", "19", "24", "3")
        TOTAL("12", "20", "25", "0") TOTAL("13", "21", "25", "1") TOTAL("14", "22", "25", "2") TOTAL("15", "23", "25", "3")
        "cbnz x10, 1b\n\t"
        "mov x15, %[to]\n\t"
        STORE_TOTAL("8") STORE_TOTAL("9") STORE_TOTAL("10") STORE_TOTAL("11")
        STORE_TOTAL("12") STORE_TOTAL("13") STORE_TOTAL("14") STORE_TOTAL("15")
        "add %[w], %[w], #%c[row_bytes]\n\t"
        "add %[from], %[from], %[from_step]\n\t"
        "add %[to], %[to], #16\n\t"
        "sub %[count], %[count], #1\n\t"
        "cbnz %[count], 2b\n\t"
        : [w] "+&r"(w), [scales] "+&r"(scales), [count] "+&r"(count), [from] "+&r"(from), [to] "+&r"(to)
        : [e] "r"(&e), [from_stride] "r"(from_stride), [from_step] "r"(from_step), [to_stride] "r"(to_stride),
          [row_bytes] "i"(Eights::kRowBytes),
          [start] "r"(kSumStarts), [signs] "r"(kSignsOfEights), [table] "r"(kSignedLevels), [bias] "r"(0xcb400000), [min] "i"(kShape.min),
          [bytes] "i"(kShape.bits == 8), [levels] "i"(kShape.levels), [offset] "i"(kOffset), [half] "i"(kHalf),
          [head] "i"(kCoded ? kShape.head_bytes() : 0), [block] "i"(kCoded ? kShape.quant_bytes() : kShape.unit_bytes()),
          [scale_step] "i"(kScaleStep), [biases] "i"(offsetof(Eights, bias))
        : "memory", "cc", "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x10", "x11", "x12", "x14", "x15",
          "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18",
          "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#undef IF
#undef EITHER
#undef LOAD_X
#undef DOT
#undef LEVELS
#undef LOAD
#undef LOW
#undef HIGH
#undef QUAD
#undef FIRST
#undef NEXT_X
#undef PREFETCH
#undef SIXTEENTHS
#undef MIN
#undef BIAS
#undef PART
#undef TOTAL
#undef LOAD_TOTAL
#undef STORE_TOTAL
}
