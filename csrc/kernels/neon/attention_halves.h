// Attention of one row over a cache of half floats, in assembly. Included by impl_attention.h; the loops over floats of
// attention_tiles.h are the plain form and give the same bits.
//
// With three heads a cell of 64 numbers needs 96 products and 32 conversions of four halves each. `fcvtl` takes one of the two
// vector units for two cycles; `sshll #13` and clearing three copies of the sign take one slot of each, and give the number ×
// 2^-112, exactly. Neither alone keeps both units busy, both by turns do: the first four of every eight numbers are converted,
// the other four shifted, and what these are multiplied with, a query or a weight, is × 2^112 beforehand. A product is then the
// same before it is rounded. Cycles on a Neoverse N1 for four cells × eight numbers of K and four × sixteen of V: 22.7 and 45.5
// with `fcvtl` alone, 20.9 and 45.5 shifted, 19.2 and 37.7 by turns.
//
// A shifted infinity or NaN would be a finite number, so K and V have to be finite (Attention::finite), and queries below 2^15.
constexpr float kShifted = 5.192296858534828e33f;  // 2^112
constexpr size_t kAhead = 32;  // cells: what is read next is asked for so far ahead

#define FMLA(sum, x, by) "fmla v" sum ".4s, v" x ".4s, v" by "\n\t"
#define FMUL(sum, x, by) "fmul v" sum ".4s, v" x ".4s, v" by "\n\t"
#define IF_HEADS(n, text) ".if %c[heads] > " #n "\n\t" text ".endif\n\t"
#define CONVERT(low, high) "fcvtl v" low ".4s, v" high ".4h\n\t" "sshll2 v" high ".4s, v" high ".8h, #13\n\t"
#define CLEAR(high) "bic v" high ".4s, #0x70, lsl #24\n\t"
#define ALL_VECTORS "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", \
                    "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

// Puts H queries where score_halves reads them: [eights][H][8], the last four of each eight × 2^112. Returns whether they fit.
inline bool shift_queries(const float* queries, size_t heads, size_t size, float* out) {
    float32x4_t largest = vdupq_n_f32(0.0f);
    for (size_t i = 0; i < size; i += 8) {
        for (size_t h = 0; h < heads; ++h, out += 8) {
            const float32x4_t low = vld1q_f32(queries + h * size + i), high = vld1q_f32(queries + h * size + i + 4);
            largest = vmaxq_f32(largest, vabsq_f32(high));  // NaN if there is one
            vst1q_f32(out, low);
            vst1q_f32(out + 4, vmulq_n_f32(high, kShifted));
        }
    }
    return vmaxvq_f32(largest) < 32768.0f;
}

// The scores of 4 × quads cells with H queries of T vectors. Halves are converted two cells before they are multiplied.
//
//     v0 … v15     sums, [heads][cells]            v24 … v31    numbers of a cell, [cells][low, high]
//     v16 … v19    queries, the first four         v20 … v23    the other four
template <int H, int T>
void score_halves(Cells keys, std::ptrdiff_t to_values, const float* queries, size_t quads, const float* scale,
                  float* scores) {
    const float* q;
#define LOAD(k, low, high) "ldr q" high ", [" k "], #16\n\t" CONVERT(low, high)
#define QUERIES                                                    \
    "ldp q16, q20, [%[q]], #32\n\t"                              \
    IF_HEADS(1, "ldp q17, q21, [%[q]], #32\n\t")                 \
    IF_HEADS(2, "ldp q18, q22, [%[q]], #32\n\t")                 \
    IF_HEADS(3, "ldp q19, q23, [%[q]], #32\n\t")
// Eight numbers of a cell × all queries, while those of another are converted. The first eight begin sums (FMUL).
#define CELL(op, s0, s1, s2, s3, low, high, load, clear)                                                              \
    load op(s0, low, "16.4s") IF_HEADS(1, op(s1, low, "17.4s")) IF_HEADS(2, op(s2, low, "18.4s"))                     \
    IF_HEADS(3, op(s3, low, "19.4s")) FMLA(s0, high, "20.4s") clear IF_HEADS(1, FMLA(s1, high, "21.4s"))            \
    IF_HEADS(2, FMLA(s2, high, "22.4s")) IF_HEADS(3, FMLA(s3, high, "23.4s"))
#define FIRST_CELLS(op)                                                          \
    QUERIES                                                                      \
    CELL(op, "0", "4", "8", "12", "24", "25", LOAD("x11", "28", "29"), CLEAR("29")) \
    CELL(op, "1", "5", "9", "13", "26", "27", LOAD("x12", "30", "31"), CLEAR("31"))
#define LAST_CELLS(op)                                                           \
    CELL(op, "2", "6", "10", "14", "28", "29", LOAD("x9", "24", "25"), CLEAR("25")) \
    CELL(op, "3", "7", "11", "15", "30", "31", LOAD("x10", "26", "27"), CLEAR("27"))
#define FETCH(at)                                                                      \
    "ldr x13, [%[keys], #8 * %c[ahead] + " at "]\n\t" "add x13, x13, %[base]\n\t"       \
    "prfm pldl1keep, [x13]\n\t" "prfm pldl1keep, [x13, #64]\n\t"                     \
    ".if %c[vectors] > 4\n\t"                                                          \
    "prfm pldl1keep, [x13, #128]\n\t" "prfm pldl1keep, [x13, #192]\n\t"              \
    ".endif\n\t"
#define FETCH_VALUES(key)                                                                    \
    "prfm pldl2keep, [" key ", %[v0]]\n\t" "prfm pldl2keep, [" key ", %[v1]]\n\t"         \
    ".if %c[vectors] > 4\n\t"                                                                \
    "prfm pldl2keep, [" key ", %[v2]]\n\t" "prfm pldl2keep, [" key ", %[v3]]\n\t"         \
    ".endif\n\t"
#define SCORES(a, b, c, d, at)                                                                       \
    "faddp v" a ".4s, v" a ".4s, v" b ".4s\n\t" "faddp v" c ".4s, v" c ".4s, v" d ".4s\n\t"          \
    "faddp v" a ".4s, v" a ".4s, v" c ".4s\n\t" "fmul v" a ".4s, v" a ".4s, v16.s[0]\n\t"            \
    "str q" a ", [%[scores], #" at " * %c[span]]\n\t"
    asm volatile(
        ".p2align 5\n"
        "1:\n\t"
        "ldp x9, x10, [%[keys]]\n\t"
        "ldp x11, x12, [%[keys], #16]\n\t"
        "add x9, x9, %[base]\n\t" "add x10, x10, %[base]\n\t" "add x11, x11, %[base]\n\t" "add x12, x12, %[base]\n\t"
        FETCH_VALUES("x9") FETCH_VALUES("x10") FETCH_VALUES("x11") FETCH_VALUES("x12")
        LOAD("x9", "24", "25") LOAD("x10", "26", "27")
        CLEAR("25") CLEAR("27")
        "mov %[q], %[queries]\n\t"
        FIRST_CELLS(FMUL) FETCH("0") LAST_CELLS(FMUL)
        FETCH("8")
        ".rept 2 * %c[vectors] - 2\n\t"
        FIRST_CELLS(FMLA) LAST_CELLS(FMLA)
        ".endr\n\t"
        FETCH("16") FETCH("24")
        FIRST_CELLS(FMLA)
        CELL(FMLA, "2", "6", "10", "14", "28", "29", "", "")
        CELL(FMLA, "3", "7", "11", "15", "30", "31", "", "")
        "ldr s16, [%[scale]]\n\t"
        SCORES("0", "1", "2", "3", "0") IF_HEADS(1, SCORES("4", "5", "6", "7", "4"))
        IF_HEADS(2, SCORES("8", "9", "10", "11", "8")) IF_HEADS(3, SCORES("12", "13", "14", "15", "12"))
        "add %[keys], %[keys], #32\n\t"
        "add %[scores], %[scores], #16\n\t"
        "subs %[quads], %[quads], #1\n\t"
        "b.ne 1b\n\t"
        : [keys] "+r"(keys.places), [q] "=&r"(q), [quads] "+r"(quads), [scores] "+r"(scores)
        : [base] "r"(keys.base), [queries] "r"(queries), [scale] "r"(scale), [v0] "r"(to_values), [v1] "r"(to_values + 64), [v2] "r"(to_values + 128),
          [v3] "r"(to_values + 192), [heads] "i"(H), [vectors] "i"(T), [span] "i"(kSpan), [ahead] "i"(kAhead)
        : "memory", "cc", "x9", "x10", "x11", "x12", "x13", ALL_VECTORS);
#undef LOAD
#undef QUERIES
#undef CELL
#undef FIRST_CELLS
#undef LAST_CELLS
#undef FETCH
#undef FETCH_VALUES
#undef SCORES
}

// Adds 16 numbers of 4 × quads cells, beginning at `values`, with the weights of H heads, which are there as they are and
// × 2^112. The next cell is converted meanwhile, and some of what is at `next` asked for, 128 bytes a quad.
//
//     v0 … v15     sums, [heads][4]                v24 … v27    a cell's numbers
//     v16 … v19    weights of four cells           v28 … v31    the next one's
//     v20 … v23    the same × 2^112
template <int H, int T>
void mix_halves(Cells values, const float* weights, const float* shifted, size_t quads, const uint8_t* next, float* out) {
#define LOAD(a, b)                            \
    "ldr x9, [%[places]], #8\n\t"           \
    "add x9, x9, %[base]\n\t"               \
    "ldp q" a ", q" b ", [x9]\n\t"
#define FETCH                                                   \
    "ldr x10, [%[places], #8 * %c[ahead] - 16]\n\t"             \
    "prfm pldl1keep, [x10, %[base]]\n\t"
#define WEIGHTS(plain, times, h)                                        \
    "ldr q" plain ", [%[weights], #" h " * 4 * %c[span]]\n\t"         \
    "ldr q" times ", [%[shifted], #" h " * 4 * %c[span]]\n\t"
// Four numbers × the weights of all heads for one of four cells.
#define FOUR(s0, s1, s2, s3, x, w0, w1, w2, w3, cell, between)                                       \
    FMLA(s0, x, w0 ".s[" cell "]") IF_HEADS(1, FMLA(s1, x, w1 ".s[" cell "]")) between               \
    IF_HEADS(2, FMLA(s2, x, w2 ".s[" cell "]")) IF_HEADS(3, FMLA(s3, x, w3 ".s[" cell "]"))
#define CELL(cell, x0, x1, x2, x3, y0, y1, y2, y3)                                                        \
    LOAD(y1, y3)                                                                                          \
    FOUR("0", "4", "8", "12", x0, "16", "17", "18", "19", cell, CONVERT(y0, y1))                          \
    FETCH                                                                                                 \
    FOUR("1", "5", "9", "13", x1, "20", "21", "22", "23", cell, CLEAR(y1))                                \
    FOUR("2", "6", "10", "14", x2, "16", "17", "18", "19", cell, CONVERT(y2, y3))                         \
    FOUR("3", "7", "11", "15", x3, "20", "21", "22", "23", cell, CLEAR(y3))
#define SUMS(op, a, b, c, d) op " q" a ", q" b ", [x9]\n\t" op " q" c ", q" d ", [x9, #32]\n\t"
#define ALL_SUMS(op)                                                             \
    "mov x9, %[out]\n\t" SUMS(op, "0", "1", "2", "3")                          \
    IF_HEADS(1, "add x9, x9, #%c[stride]\n\t" SUMS(op, "4", "5", "6", "7"))      \
    IF_HEADS(2, "add x9, x9, #%c[stride]\n\t" SUMS(op, "8", "9", "10", "11"))    \
    IF_HEADS(3, "add x9, x9, #%c[stride]\n\t" SUMS(op, "12", "13", "14", "15"))
    asm volatile(
        LOAD("25", "27") CONVERT("24", "25") CONVERT("26", "27")
        ALL_SUMS("ldp")
        CLEAR("25") CLEAR("27")
        ".p2align 5\n"
        "1:\n\t"
        WEIGHTS("16", "20", "0") IF_HEADS(1, WEIGHTS("17", "21", "1"))
        IF_HEADS(2, WEIGHTS("18", "22", "2")) IF_HEADS(3, WEIGHTS("19", "23", "3"))
        CELL("0", "24", "25", "26", "27", "28", "29", "30", "31")
        "add %[weights], %[weights], #16\n\t"
        "prfm pldl2keep, [%[next]]\n\t"
        "prfm pldl2keep, [%[next], #64]\n\t"
        "add %[next], %[next], #128\n\t"
        CELL("1", "28", "29", "30", "31", "24", "25", "26", "27")
        "add %[shifted], %[shifted], #16\n\t"
        CELL("2", "24", "25", "26", "27", "28", "29", "30", "31")
        "subs %[quads], %[quads], #1\n\t"
        CELL("3", "28", "29", "30", "31", "24", "25", "26", "27")
        "b.ne 1b\n\t"
        ALL_SUMS("stp")
        : [places] "+r"(values.places), [weights] "+r"(weights), [shifted] "+r"(shifted), [next] "+r"(next), [quads] "+r"(quads)
        : [base] "r"(values.base), [out] "r"(out), [stride] "i"(64 * T), [heads] "i"(H), [span] "i"(kSpan),
          [ahead] "i"(kAhead)
        : "memory", "cc", "x9", "x10", ALL_VECTORS);
#undef LOAD
#undef FETCH
#undef WEIGHTS
#undef FOUR
#undef CELL
#undef SUMS
#undef ALL_SUMS
}
#undef FMLA
#undef FMUL
#undef IF_HEADS
#undef CONVERT
#undef CLEAR
#undef ALL_VECTORS

// The values of cells [from, to), each with its weight: what mix_halves leaves over.
template <int H, int T>
void mix_rest(Cells values, const float* weights, size_t from, size_t to, float* out) {
    for (size_t j = from; j < to; ++j) {
        const uint16_t* value = reinterpret_cast<const uint16_t*>(values[j]);
        for (size_t i = 0; i < 16 * T; i += 4) {
            const float32x4_t four = half_four(value + i);
            each<H>([&](auto h) ALWAYS_LAMBDA {
                float* sum = out + h * 16 * T + i;
                vst1q_f32(sum, vfmaq_n_f32(vld1q_f32(sum), four, weights[h * kSpan + j]));
            });
        }
    }
}

// Attention of one row over [first, last), as attend_rows does it; false if the loops above cannot do it.
template <int T>
bool attend_halves(const Attention& a, size_t first, size_t last, const Partial& out) {
    constexpr size_t kSize = 16 * T;
    if (!a.finite || a.group > kChunk) return false;
    float* queries = a.scratch;                             // [group][kSize], heads of a call together
    float* scores = queries + (kChunk + kMostHeads) * kSize;  // [group][kSpan]
    for (size_t h = 0; h < a.group; h += kHeads) {
        const size_t heads = a.group - h < kHeads ? a.group - h : kHeads;
        if (!shift_queries(a.queries + h * kSize, heads, kSize, queries + h * kSize)) return false;
    }
    const size_t begin = static_cast<size_t>(a.begins[0]), end = static_cast<size_t>(a.ends[0]);
    const size_t start = first / kChunk * kChunk, lo = begin > start ? begin - start : 0;
    const size_t hi = (end < last ? end : last) > start ? (end < last ? end : last) - start : 0;
    if (lo >= hi) return true;

    const size_t quads = (hi - lo + 3) / 4;
    const Cells keys{a.keys, a.places + start + lo}, values{a.values, keys.places};
    const std::ptrdiff_t to_values = a.values - a.keys;
    const uint8_t* next = start + hi < end ? keys[hi - lo] : next_cells(a, keys)[0];  // probably read next

    // Chunks that the row sees nothing of have no scores; they stay out.
    const size_t skipped = lo / kChunk * kChunk, n = (hi - skipped + kChunk - 1) / kChunk * kChunk;
    alignas(16) float shifted[kHeads][kSpan];
    for (size_t h = 0; h < a.group; h += kHeads) {
        float* weights = scores + h * kSpan;
        with_heads(a.group - h, [&](auto heads) {
            constexpr int H = decltype(heads)::value;
            score_halves<H, T>(keys, to_values, queries + h * kSize, quads, &a.scale, weights + lo);
            for (size_t j = 0; j < kAhead; ++j) fetch<T, Source::kHalf>(values[j]);
            for (size_t i = h; i < h + H; ++i) {
                float* of = scores + i * kSpan + skipped;
                for (size_t j = 0; a.cap > 0.0f && j < n; j += 16) store(of + j, capped(load(of + j), a.cap));
                soften(of, n, lo - skipped, hi - skipped, out.max + i, out.sum + i);
                for (size_t j = 0; j < hi - lo; ++j) shifted[i - h][j] = scores[i * kSpan + lo + j] * kShifted;
            }
            const size_t whole = (hi - lo) / 4;
            for (size_t t = 0; whole > 0 && t < T; ++t) {
                const Cells part{values.base + 32 * t, values.places};
                float* to = out.out + h * kSize + 16 * t;
                mix_halves<H, T>(part, weights + lo, shifted[0], whole, next + 128 * t * whole, to);
            }
            mix_rest<H, T>(values, weights + lo, 4 * whole, hi - lo, out.out + h * kSize);
        });
    }
    return true;
}
