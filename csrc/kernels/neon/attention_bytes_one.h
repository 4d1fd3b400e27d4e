// Attention of one row over a cache of 8 bits, in assembly: the products of a chunk's K, and of a block of its V. Included by
// attention_bytes.h; score_tiles and mix_tiles there are the plain form and give the same bits.
//
// Rows of tiles are made in registers while those before them are multiplied, and loads stand between products: the processor would
// wait for a tile that is needed at once, and a burst of loads takes longer.
#define IF_HEADS(n, text) ".if %c[heads] > " #n "\n\t" text ".endif\n\t"
#define DOT(sum, x, w, lane) "sdot v" sum ".4s, v" x ".16b, v" w ".4b[" lane "]\n\t"
#define DOTS(s0, s1, s2, s3, x, w0, w1, w2, w3, lane) \
    DOT(s0, x, w0, lane) IF_HEADS(1, DOT(s1, x, w1, lane)) IF_HEADS(2, DOT(s2, x, w2, lane)) IF_HEADS(3, DOT(s3, x, w3, lane))
#define ALL_VECTORS "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", \
                    "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

// The scores of a chunk's cells with H queries of T vectors, [H][high, low][16 × T]. Rows of a tile are made of 16 numbers of four
// cells while those before them are multiplied, also of the first quad behind the chunk. A block's scales are put together by the
// integer units.
//
//     v0 … v7      sums, [high, low][heads]       v16 … v23    queries, [high, low][heads]
//     v8 … v11     scores                         v24 … v31    rows of a tile, of these 16 numbers and the next
//     v12 … v15    numbers of four cells
template <int H, int T>
void score_block(Cells keys, Cells ahead, const int8_t* queries, const float* by, float* scores) {
    size_t quads = kChunk / 4, scales, next;
    const int8_t* q;
#define ZIP(op, to, a, b) op " v" to ".4s, v" a ".4s, v" b ".4s\n\t"
#define PLACES                                                                                       \
    "ldp x9, x10, [%[keys]], #16\n\t" "ldp x11, x12, [%[keys]], #16\n\t"                            \
    "add x9, x9, %[base]\n\t" "add x10, x10, %[base]\n\t" "add x11, x11, %[base]\n\t" "add x12, x12, %[base]\n\t"
#define LOAD(to, at, step) "ldr q" to ", [" at ", #" step "]!\n\t"
#define SCALE(to, at, step) "ldrh " to ", [" at ", #" step " - 2]\n\t"
#define TOGETHER \
    "orr w13, w13, w14, lsl #16\n\t" "orr w15, w15, w16, lsl #16\n\t" "orr %[next], x13, x15, lsl #32\n\t"
#define QUERY(to, h, plane) IF_HEADS(h - 1, "ldr q" to ", [%[q], #32 * (2 * " #h " + " plane ") * %c[blocks]]\n\t")
#define HIGH(x, lane) DOTS("0", "1", "2", "3", x, "16", "17", "18", "19", lane)
#define LOW(x, lane) DOTS("4", "5", "6", "7", x, "20", "21", "22", "23", lane)
// 16 numbers × all queries, while the next 16 are read, `step` bytes further.
#define HALF(x0, x1, x2, x3, y0, y1, y2, y3, step, scale0, scale1, scale2, scale3, together, move)                   \
    HIGH(x0, "0") QUERY("20", 0, "1") scale0 LOAD("12", "x9", step) scale2 LOAD("14", "x11", step)                   \
    HIGH(x1, "1") QUERY("21", 1, "1") scale1 LOAD("13", "x10", step) scale3 LOAD("15", "x12", step)                  \
    HIGH(x2, "2") QUERY("22", 2, "1") together ZIP("zip1", y0, "12", "14")                                           \
    HIGH(x3, "3") QUERY("23", 3, "1") ZIP("zip2", y2, "12", "14") move                                               \
    LOW(x0, "0") QUERY("16", 0, "0") ZIP("zip1", "12", "13", "15")                                                   \
    LOW(x1, "1") QUERY("17", 1, "0") ZIP("zip2", "14", "13", "15") ZIP("zip2", y1, y0, "12")                         \
    LOW(x2, "2") QUERY("18", 2, "0") ZIP("zip1", y0, y0, "12") ZIP("zip2", y3, y2, "14")                             \
    LOW(x3, "3") QUERY("19", 3, "0") ZIP("zip1", y2, y2, "14")
#define START(a, b) "ldp q" a ", q" b ", [%[starts]]\n\t"
#define STARTS START("0", "4") IF_HEADS(1, START("1", "5")) IF_HEADS(2, START("2", "6")) IF_HEADS(3, START("3", "7"))
#define ADD(op, found, a, low)                                                                                     \
    "fadd v" a ".4s, v" a ".4s, v13.4s\n\t" "fadd v" a ".4s, v" a ".4s, v" low ".4s\n\t"                           \
    op " v" found ".4s, v" a ".4s, v12.4s\n\t"
#define ADDS(op)                                                                                                   \
    "fmov d12, %[scales]\n\t" "fcvtl v12.4s, v12.4h\n\t" "ldr q13, [%[starts], #32]\n\t" "mov %[scales], %[next]\n\t"  \
    ADD(op, "8", "0", "4") IF_HEADS(1, ADD(op, "9", "1", "5")) IF_HEADS(2, ADD(op, "10", "2", "6"))                \
    IF_HEADS(3, ADD(op, "11", "3", "7"))
#define FETCH                                                \
    "ldr x13, [%[ahead]], #8\n\t" "add x13, x13, %[next_base]\n\t" "prfm pldl1keep, [x13]\n\t" \
    ".if %c[blocks] > 2\n\t" "prfm pldl1keep, [x13, #64]\n\t" ".endif\n\t"
#define STORE(found, h)                                       \
    "fmul v" found ".4s, v" found ".4s, v12.s[" #h "]\n\t"    \
    "str q" found ", [%[scores], #4 * " #h " * %c[span]]\n\t"
// A block, while the one after it begins, `step` bytes further.
#define BLOCK(op, places, step, move)                                                                                \
    STARTS HALF("24", "25", "26", "27", "28", "29", "30", "31", "16", "", "", "", "", "", "add %[q], %[q], #16\n\t")  \
    places HALF("28", "29", "30", "31", "24", "25", "26", "27", step, SCALE("w13", "x9", step), SCALE("w14", "x10", step),  \
                SCALE("w15", "x11", step), SCALE("w16", "x12", step), TOGETHER, move)                                \
    ADDS(op)
    asm volatile(
        PLACES SCALE("w13", "x9", "2") SCALE("w14", "x10", "2") SCALE("w15", "x11", "2") SCALE("w16", "x12", "2") TOGETHER
        LOAD("12", "x9", "2") LOAD("13", "x10", "2") LOAD("14", "x11", "2") LOAD("15", "x12", "2")
        "mov %[q], %[queries]\n\t" "mov %[scales], %[next]\n\t"
        QUERY("16", 0, "0") QUERY("17", 1, "0") QUERY("18", 2, "0") QUERY("19", 3, "0")
        ZIP("zip1", "24", "12", "14") ZIP("zip2", "26", "12", "14") ZIP("zip1", "12", "13", "15") ZIP("zip2", "14", "13", "15")
        ZIP("zip2", "25", "24", "12") ZIP("zip1", "24", "24", "12") ZIP("zip2", "27", "26", "14") ZIP("zip1", "26", "26", "14")
        ".p2align 5\n"
        "1:\n\t"
        FETCH FETCH
        BLOCK("fmul", "", "18", "add %[q], %[q], #16\n\t")
        ".if %c[blocks] > 2\n\t"
        ".rept %c[blocks] - 2\n\t"
        BLOCK("fmla", "", "18", "add %[q], %[q], #16\n\t")
        ".endr\n\t"
        ".endif\n\t"
        FETCH FETCH
        BLOCK("fmla", PLACES, "2", "mov %[q], %[queries]\n\t")
        "ldr q12, [%[by]]\n\t"
        STORE("8", 0) IF_HEADS(1, STORE("9", 1)) IF_HEADS(2, STORE("10", 2)) IF_HEADS(3, STORE("11", 3))
        "add %[scores], %[scores], #16\n\t"
        "subs %[quads], %[quads], #1\n\t"
        "b.ne 1b\n\t"
        : [keys] "+r"(keys.places), [ahead] "+r"(ahead.places), [q] "=&r"(q), [scores] "+r"(scores), [quads] "+r"(quads), [scales] "=&r"(scales),
          [next] "=&r"(next)
        : [base] "r"(keys.base), [next_base] "r"(ahead.base), [queries] "r"(queries), [by] "r"(by), [starts] "r"(kStarts),
          [heads] "i"(H), [blocks] "i"(T / 2), [span] "i"(kSpan)
        : "memory", "cc", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", ALL_VECTORS);
#undef ZIP
#undef PLACES
#undef LOAD
#undef SCALE
#undef TOGETHER
#undef QUERY
#undef HIGH
#undef LOW
#undef HALF
#undef START
#undef STARTS
#undef ADD
#undef ADDS
#undef FETCH
#undef STORE
#undef BLOCK
}

// Adds a block of a chunk's values with the weights of H heads, `from` bytes behind where heads begin. Rows of tiles are made in
// two steps: while four cells are multiplied, the second is done for the next four and the first for those after them. `line`
// says which line of the cells `ahead` is asked for; outputs are `stride` bytes apart.
//
//     v0 … v7      sums of high bytes, [row][heads]      v24 … v27    rows of a tile, of this quad and the next
//     v8 … v15     sums of low bytes                     v28, v29     the next but one after its first step
//     v16 … v23    weights, [high, low][heads]
template <int H>
void mix_block(Cells cells, size_t from, const int8_t* planes, Cells ahead, size_t line, const float* by, float* out, size_t stride) {
    const uint8_t* first = cells.base + from;
    size_t step = 16;
    float *to, *row;
#define BEGIN(y, a, b, zip)                                                      \
    "ldr q" y ", [" a ", %[from]]\n\t" "ldr q30, [" b ", %[from]]\n\t"         \
    zip " v" y ".16b, v" y ".16b, v30.16b\n\t"
#define PLACES(quad) "ldp x9, x10, [%[places], #32 * " quad "]\n\t" "ldp x11, x12, [%[places], #32 * " quad " + 16]\n\t"
#define ZIP(op, y) op " v" y ".16b, v28.16b, v29.16b\n\t"
#define QUAD(x0, x1, y0, y1, lane, behind, zip, early, late)                                    \
    PLACES(behind) DOTS("0", "1", "2", "3", x0, "16", "17", "18", "19", lane) ZIP("zip1", y0)   \
    early DOTS("8", "9", "10", "11", x0, "20", "21", "22", "23", lane) ZIP("zip2", y1)          \
    BEGIN("28", "x9", "x11", zip) DOTS("4", "5", "6", "7", x1, "16", "17", "18", "19", lane)    \
    late BEGIN("29", "x10", "x12", zip) DOTS("12", "13", "14", "15", x1, "20", "21", "22", "23", lane)
#define HIGH(at)                                                                                             \
    "ldr q16, [%[planes], #" at "]\n\t" IF_HEADS(1, "ldr q17, [%[planes], #32 + " at "]\n\t")               \
    IF_HEADS(2, "ldr q18, [%[planes], #64 + " at "]\n\t") IF_HEADS(3, "ldr q19, [%[planes], #96 + " at "]\n\t")
#define LOW(at)                                                                                              \
    "ldr q20, [%[planes], #32 * %c[heads] + " at "]\n\t"                                                     \
    IF_HEADS(1, "ldr q21, [%[planes], #32 * %c[heads] + 32 + " at "]\n\t")                                   \
    IF_HEADS(2, "ldr q22, [%[planes], #32 * %c[heads] + 64 + " at "]\n\t")                                   \
    IF_HEADS(3, "ldr q23, [%[planes], #32 * %c[heads] + 96 + " at "]\n\t")
#define START(a, b, c, d)                                                                 \
    "ldp q" a ", q" c ", [%[starts]]\n\t" "ldp q" b ", q" d ", [%[starts]]\n\t"
#define TOTAL(a, low) "fadd v" a ".4s, v" a ".4s, v31.4s\n\t" "fadd v" a ".4s, v" a ".4s, v" low ".4s\n\t"
#define ADD(a, b, la, lb, h)                                                              \
    TOTAL(a, la) TOTAL(b, lb) "ldp q" la ", q" lb ", [%[row]]\n\t"                        \
    "fmla v" la ".4s, v" a ".4s, v30.s[" h "]\n\t" "fmla v" lb ".4s, v" b ".4s, v30.s[" h "]\n\t"      \
    "stp q" la ", q" lb ", [%[row]]\n\t" "add %[row], %[row], %[stride]\n\t"
#define FETCH "ldr x13, [%[ahead]], #8\n\t" "prfm pldl1keep, [x13, %[line]]\n\t"
// Eight numbers: zipped as these, while the eight after them begin.
#define EIGHT(zip, after, move)                                                                                     \
    START("0", "4", "8", "12") IF_HEADS(1, START("1", "5", "9", "13"))                                              \
    IF_HEADS(2, START("2", "6", "10", "14")) IF_HEADS(3, START("3", "7", "11", "15"))                               \
    QUAD("24", "25", "26", "27", "0", "2", zip, LOW("0"), FETCH)                                                    \
    QUAD("26", "27", "24", "25", "1", "3", zip, "", "") QUAD("24", "25", "26", "27", "2", "4", zip, FETCH, "")      \
    QUAD("26", "27", "24", "25", "3", "5", zip, "", HIGH("16"))                                                     \
    QUAD("24", "25", "26", "27", "0", "6", zip, LOW("16"), "") QUAD("26", "27", "24", "25", "1", "7", zip, FETCH, "")  \
    move QUAD("24", "25", "26", "27", "2", "0", after, FETCH, "")                                                   \
    QUAD("26", "27", "24", "25", "3", "1", after, "", HIGH("0"))                                                    \
    "ldr q30, [%[by]]\n\t" "ldr q31, [%[starts], #32]\n\t" "mov %[row], %[to]\n\t"                                 \
    ADD("0", "4", "8", "12", "0") IF_HEADS(1, ADD("1", "5", "9", "13", "1"))                                        \
    IF_HEADS(2, ADD("2", "6", "10", "14", "2")) IF_HEADS(3, ADD("3", "7", "11", "15", "3"))                         \
    "add %[to], %[to], #32\n\t"
    asm volatile(
        PLACES("0") BEGIN("28", "x9", "x11", "zip1") BEGIN("29", "x10", "x12", "zip1")
        ZIP("zip1", "24") ZIP("zip2", "25")
        PLACES("1") BEGIN("28", "x9", "x11", "zip1") BEGIN("29", "x10", "x12", "zip1")
        HIGH("0")
        "mov %[to], %[out]\n"
        "1:\n\t"
        EIGHT("zip1", "zip2", "")
        EIGHT("zip2", "zip1", "add %[from], %[from], %[step]\n\t")  // behind the second 16 bytes the first again: they are there
        "neg %[step], %[step]\n\t"
        "tbnz %[step], #63, 1b\n\t"
        : [from] "+r"(first), [ahead] "+r"(ahead.places), [step] "+r"(step), [to] "=&r"(to), [row] "=&r"(row)
        : [places] "r"(cells.places), [planes] "r"(planes), [line] "r"(ahead.base + 64 * line), [by] "r"(by), [out] "r"(out), [stride] "r"(stride),
          [starts] "r"(kStarts), [heads] "i"(H)
        : "memory", "cc", "x9", "x10", "x11", "x12", "x13", ALL_VECTORS);
#undef BEGIN
#undef PLACES
#undef ZIP
#undef QUAD
#undef HIGH
#undef LOW
#undef START
#undef TOTAL
#undef ADD
#undef FETCH
#undef EIGHT
}
#undef IF_HEADS
#undef DOT
#undef DOTS
#undef ALL_VECTORS
