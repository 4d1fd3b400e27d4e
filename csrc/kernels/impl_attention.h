// Attention over views. Included by impl.h, within the namespace of an instruction set.

#if !defined(STRETTO_HAS_SUMS16) && !defined(STRETTO_HAS_TILES)
// Lane j of the result is the sum of a[j]'s lanes.
inline Floats sums16(const Floats* a) {
    float sums[16];
    for (int j = 0; j < 16; ++j) sums[j] = reduce_add(a[j]);
    return load(sums);
}
#endif

// cap × tanh(x / cap), by tanh u = 2 sigmoid(2u) − 1
inline Floats capped(Floats x, float cap) {
    const Floats s = sigmoid(mul(x, splat(2.0f / cap)));
    return mul(sub(add(s, s), splat(1.0f)), splat(cap));
}

// Where attention reads K and V from: floats made before, the cache itself, or an 8-bit one as bytes, read
// by one row or by several.
enum class Source { kFloats, kHalf, kQ8, kBytes, kTiles };
constexpr bool integers(Source from) { return from == Source::kBytes || from == Source::kTiles; }

// Where K or V of some cells are: `places` bytes behind `base`.
struct Cells {
    const uint8_t* base;
    const size_t* places;

    const uint8_t* operator[](size_t j) const { return base + places[j]; }
    Cells operator+(size_t n) const { return {base, places + n}; }
};

// The cells of the next task, or these if it is unknown.
inline Cells next_cells(const Attention& a, Cells these) {
    return a.next_keys ? Cells{a.next_keys, a.next_places} : these;
}

// Asks for a head that will be read soon.
template <int T, Source From>
inline void fetch(const uint8_t* head) {
    constexpr size_t bytes = From == Source::kHalf ? 32 * T : 17 * T;
    UNROLL for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(head + line);
}

#ifdef STRETTO_HAS_TILES
#include "kernels/neon/attention_tiles.h"
#include "kernels/neon/gelu_tiles.h"
#include "kernels/neon/attention_bytes.h"
#else
#ifndef STRETTO_HAS_SPLAT_HALF
inline Floats splat_half(const uint8_t* p) { return splat(half_to_float(static_cast<uint16_t>(p[0] | p[1] << 8))); }
#endif

// Vector t of a head.
template <Source From>
inline Floats piece(const uint8_t* head, size_t t) {
    if constexpr (From == Source::kFloats) return load(reinterpret_cast<const float*>(head) + 16 * t);
    if constexpr (From == Source::kHalf) return load_half(reinterpret_cast<const uint16_t*>(head) + 16 * t);
    const uint8_t* block = head + t / 2 * 34;
    return mul(load_int8(reinterpret_cast<const int8_t*>(block + 2 + t % 2 * 16)), splat_half(block));
}

// A chunk's scores become e^(score − top).
inline void make_weights(float* scores, Floats top) {
    for (size_t j = 0; j < kChunk; j += 16) store(scores + j, exponential(sub(load(scores + j), top)));
}

// The scores of a chunk's cells with one row's H heads of T vectors (0: `vectors` says how many). Some cells go
// together, so that a vector of a query is read once for all of them.
template <int H, int T, Source From>
void score_chunk(Cells keys, Cells ahead, size_t vectors, const float* queries, float scale, float cap, float* scores) {
    if constexpr (T > 0) vectors = T;
    const size_t size = 16 * vectors;
    constexpr size_t kCells = kHeads <= 4 ? 1 : H <= 4 ? 4 : 2;
    for (size_t half = 0; half < kChunk; half += 16) {
        Floats dots[H][16];
        for (size_t j = 0; j < 16; j += kCells) {
            Floats sums[kCells][H];
            UNROLL for (size_t c = 0; c < kCells; ++c) {
                if constexpr (From != Source::kFloats) fetch<T, From>(ahead[half + j + c]);
                UNROLL for (int h = 0; h < H; ++h) sums[c][h] = splat(0.0f);
            }
            UNROLL for (size_t t = 0; t < vectors; ++t) {
                Floats k[kCells];
                UNROLL for (size_t c = 0; c < kCells; ++c) k[c] = piece<From>(keys[half + j + c], t);
                UNROLL for (int h = 0; h < H; ++h) {
                    const Floats q = load(queries + h * size + 16 * t);
                    UNROLL for (size_t c = 0; c < kCells; ++c) sums[c][h] = fma(k[c], q, sums[c][h]);
                }
            }
            UNROLL for (size_t c = 0; c < kCells; ++c) UNROLL for (int h = 0; h < H; ++h) dots[h][j + c] = sums[c][h];
        }
        UNROLL for (int h = 0; h < H; ++h) {
            const Floats found = mul(sums16(dots[h]), splat(scale));
            store(scores + h * kSpan + half, cap > 0.0f ? capped(found, cap) : found);
        }
    }
}

// Adds a chunk's values, cells [lo, hi) of it, with their weights.
template <int H, int T, Source From>
void mix_chunk(Cells values, Cells ahead, size_t vectors, const float* weights, size_t lo, size_t hi, float* out) {
    if constexpr (T > 0) vectors = T;
    const size_t size = 16 * vectors;
    constexpr size_t kWide = H <= 4 ? 4 : 2;  // vectors of all heads that are kept in registers
    for (size_t t = 0; t < vectors; t += kWide) {
        const size_t width = T > 0 && T % kWide == 0 ? kWide : (vectors - t < kWide ? vectors - t : kWide);
        Floats mixed[H][kWide];
        UNROLL for (int h = 0; h < H; ++h) UNROLL for (size_t i = 0; i < kWide; ++i) {
            mixed[h][i] = i < width ? load(out + h * size + 16 * (t + i)) : splat(0.0f);
        }
        for (size_t j = lo; j < hi; ++j) {
            if constexpr (From != Source::kFloats) {
                if (t == 0) fetch<T, From>(ahead[j]);
            }
            UNROLL for (size_t i = 0; i < kWide; ++i) {
                if (i >= width) break;
                const Floats v = piece<From>(values[j], t + i);
                UNROLL for (int h = 0; h < H; ++h) mixed[h][i] = fma(splat(weights[h * kSpan + j]), v, mixed[h][i]);
            }
        }
        UNROLL for (int h = 0; h < H; ++h) UNROLL for (size_t i = 0; i < kWide; ++i) {
            if (i < width) store(out + h * size + 16 * (t + i), mixed[h][i]);
        }
    }
}
#endif

// Scores [0, n), n in whole chunks, become weights; those outside of [lo, hi) become zero.
void soften(float* scores, size_t n, size_t lo, size_t hi, float* max_of, float* sum_of) {
    for (size_t j = 0; j < lo; ++j) scores[j] = -INFINITY;
    for (size_t j = hi; j < n; ++j) scores[j] = -INFINITY;
    Floats first = splat(-INFINITY), second = first;
    for (size_t j = 0; j < n; j += kChunk) {
        first = max(first, load(scores + j));
        second = max(second, load(scores + j + 16));
    }
    *max_of = reduce_max(max(first, second));
    const Floats top = splat(*max_of);
    for (size_t j = 0; j < n; j += kChunk) make_weights(scores + j, top);
    for (size_t j = 0; j < lo; ++j) scores[j] = 0.0f;
    for (size_t j = hi; j < n; ++j) scores[j] = 0.0f;
    first = second = splat(0.0f);
    for (size_t j = 0; j < n; j += kChunk) {
        first = add(first, load(scores + j));
        second = add(second, load(scores + j + 16));
    }
    *sum_of = reduce_add(add(first, second));
}

// Scores of view entries [begin, end) fall with the distance from a row.
void fall(const Attention& a, size_t row, size_t head, size_t begin, size_t end, float* scores) {
    for (size_t j = begin; j < end; ++j) {
        const int32_t distance = a.table[a.view[j]] - a.positions[row];
        scores[j - begin] -= a.slopes[head] * static_cast<float>(distance < 0 ? -distance : distance);
    }
}

// Calls f with the number of heads, at most kHeads, as a constant.
template <typename F>
void with_heads(size_t heads, F f) {
    if constexpr (kHeads > 4) {
        switch (heads) {
            case 1: case 2: case 3: case 4: break;
            case 5: return f(std::integral_constant<int, 5>{});
            case 6: return f(std::integral_constant<int, 6>{});
            case 7: return f(std::integral_constant<int, 7>{});
            default: return f(std::integral_constant<int, 8>{});
        }
    }
    switch (heads) {
        case 1: return f(std::integral_constant<int, 1>{});
        case 2: return f(std::integral_constant<int, 2>{});
        case 3: return f(std::integral_constant<int, 3>{});
        default: return f(std::integral_constant<int, 4>{});
    }
}

// A chunk's cells, or the floats that are made of them, `steps` bytes behind the first.
template <Source From>
Cells convert(const Attention& a, [[maybe_unused]] float* floats, Cells cells, [[maybe_unused]] const size_t* steps) {
    if constexpr (From == Source::kFloats) {
        if (a.type == CacheType::kFloat && padded(a.head_size) == a.head_size) return cells;  // they are floats as they are
        for (size_t j = 0; j < kChunk; ++j) load_head(a.type, cells[j], a.head_size, floats + j * padded(a.head_size));
        return {reinterpret_cast<const uint8_t*>(floats), steps};
    }
    return cells;
}

// Scores of the whole span, then weights, then values: three loops without anything to wait for in them.
template <int T, Source From>
void attend_rows(const Attention& a, size_t first, size_t last, const Partial& out) {
    const size_t size = padded(a.head_size), vectors = size / 16;
    const size_t start = first / kChunk * kChunk;
    float* floats = a.scratch;                  // K or V of a chunk, if they are made into floats
    float* queries = floats + kChunk * size;    // of some heads, padded
    float* scores = queries + kMostHeads * size;  // [rows][group][kSpan]
#ifdef STRETTO_HAS_TILES
    constexpr bool kStored = From == Source::kTiles;
    Bytes bytes{{}, reinterpret_cast<uint8_t*>(floats), floats + kChunk * size / 2, (vectors + 1) / 2};
    float* wide_scales = scores + a.rows * a.group * kSpan;                    // [rows][group]
    int8_t* wide = reinterpret_cast<int8_t*>(wide_scales + a.rows * a.group);  // [rows][group][high, low][32 × blocks]
    if constexpr (integers(From)) {
        for (size_t at = 0; at < a.rows * a.group; ++at) {
            int8_t* to = wide + at * 64 * bytes.blocks;
            const float* query = a.queries + at / a.group * a.query_stride + at % a.group * a.head_size;
            wide_scales[at] = widen_query(query, a.head_size, to, to + 32 * bytes.blocks);
        }
    }
#endif
    [[maybe_unused]] size_t steps[kChunk];  // where floats that are made of a chunk's cells begin
    if constexpr (From == Source::kFloats) {
        for (size_t j = 0; j < kChunk; ++j) steps[j] = j * size * sizeof(float);
    }
    // A chunk asks for the next one, as nothing else in the machine foresees where its cells are: behind K comes V, and behind
    // that K of the next span or of another task, which probably is read next.
    const Cells keys{a.keys, a.places + start}, values{a.values, a.places + start};
    const size_t n_cells = (last - start + kChunk - 1) / kChunk * kChunk;
    const Cells behind = static_cast<size_t>(a.ends[a.rows - 1]) > last ? keys + n_cells : next_cells(a, keys);
    // What a row sees of [begin, begin + m), counted from there.
    auto seen = [&](size_t row, size_t begin, size_t m, size_t* lo, size_t* hi) {
        const size_t from = static_cast<size_t>(a.begins[row]), to = static_cast<size_t>(a.ends[row]);
        *lo = from > begin ? from - begin : 0;
        *hi = to > begin ? (to - begin < m ? to - begin : m) : 0;
        return *lo < *hi;
    };
    // Rows of one head each share what is read of K and V: how many from `row` on see the same, or 0.
    auto together = [&](size_t row, size_t begin, size_t m, size_t* lo, size_t* hi) -> size_t {
        if (!seen(row, begin, m, lo, hi)) return 0;
        const size_t most = a.group > 1 ? 1 : a.rows - row < kHeads ? a.rows - row : kHeads;
        size_t n = 1, from, to;
        while (n < most && seen(row + n, begin, m, &from, &to) && from == *lo && to == *hi) ++n;
        return n;
    };
    size_t lo, hi;
    for (size_t chunk = start; chunk < last; chunk += kChunk) {
        const size_t m = last - chunk < kChunk ? last - chunk : kChunk;
        const Cells cells = keys + (chunk - start), of = convert<From>(a, floats, cells, steps);
        const Cells ahead = chunk + kChunk < last ? cells + kChunk : values;
#ifdef STRETTO_HAS_TILES
        bytes.cells = cells;
        if constexpr (kStored) read_chunk<false, kStored, T>(bytes, ahead);
#endif
        for (size_t row = 0, n_rows; row < a.rows; row += n_rows > 0 ? n_rows : 1) {
            n_rows = together(row, chunk, m, &lo, &hi);
            if (n_rows == 0) continue;
            for (size_t h = 0; h < a.group; h += kHeads) {
                const size_t n_heads = n_rows > 1 ? n_rows : (a.group - h < kHeads ? a.group - h : kHeads);
                float* to = scores + (row * a.group + h) * kSpan + (chunk - start);
#ifdef STRETTO_HAS_TILES
                if constexpr (integers(From)) {
                    const size_t at = row * a.group + h;
                    with_heads(n_heads, [&](auto n) {
                        score_bytes<decltype(n)::value, T, kStored>(bytes, ahead, wide + at * 64 * bytes.blocks, wide_scales + at,
                                                                    a.scale, a.cap, to);
                    });
                } else
#endif
                {
                    const float* q = a.queries + row * a.query_stride + h * a.head_size;
                    if (size != a.head_size || n_rows > 1) {
                        const size_t stride = n_rows > 1 ? a.query_stride : a.head_size;
                        if (size != a.head_size) std::memset(queries, 0, n_heads * size * sizeof(float));
                        for (size_t i = 0; i < n_heads; ++i) {
                            std::memcpy(queries + i * size, q + i * stride, a.head_size * sizeof(float));
                        }
                        q = queries;
                    }
                    with_heads(n_heads, [&](auto n) {
                        score_chunk<decltype(n)::value, T, From>(of, ahead, vectors, q, a.scale, a.cap, to);
                    });
                }
            }
        }
    }
    for (size_t row = 0; row < a.rows; ++row) {
        if (!seen(row, start, last - start, &lo, &hi)) continue;
        // Chunks that the row sees nothing of have no scores; they stay out.
        const size_t skipped = lo / kChunk * kChunk, n = (hi - skipped + kChunk - 1) / kChunk * kChunk;
        for (size_t h = 0; h < a.group; ++h) {
            const size_t at = row * a.group + h;
            if (a.slopes) fall(a, row, h, start + lo, start + hi, scores + at * kSpan + lo);
            soften(scores + at * kSpan + skipped, n, lo - skipped, hi - skipped, out.max + at, out.sum + at);
        }
    }
    for (size_t chunk = start; chunk < last; chunk += kChunk) {
        const size_t m = last - chunk < kChunk ? last - chunk : kChunk;
        const Cells cells = values + (chunk - start), of = convert<From>(a, floats, cells, steps);
        const Cells ahead = chunk + kChunk < last ? cells + kChunk : behind;
#ifdef STRETTO_HAS_TILES
        bytes.cells = cells;
        if constexpr (integers(From)) read_chunk<true, kStored, T>(bytes, ahead);
#endif
        for (size_t row = 0, n_rows; row < a.rows; row += n_rows > 0 ? n_rows : 1) {
            n_rows = together(row, chunk, m, &lo, &hi);
            if (n_rows == 0) continue;
            for (size_t h = 0; h < a.group; h += kHeads) {
                const size_t at = row * a.group + h;
                with_heads(n_rows > 1 ? n_rows : a.group - h, [&](auto n) {
#ifdef STRETTO_HAS_TILES
                    if constexpr (integers(From)) {
                        mix_bytes<decltype(n)::value, T, kStored>(bytes, ahead, vectors, scores + at * kSpan + (chunk - start), lo,
                                                                  hi, out.out + at * size);
                    } else
#endif
                    {
                        mix_chunk<decltype(n)::value, T, From>(of, ahead, vectors, scores + at * kSpan + (chunk - start),
                                                               lo, hi, out.out + at * size);
                    }
                });
            }
        }
    }
}

#ifdef STRETTO_HAS_TILES
#include "kernels/neon/attention_halves.h"
#endif

void attend(const Attention& a, size_t first, size_t last, const Partial& out) {
    const size_t size = padded(a.head_size);
    for (size_t i = 0; i < a.rows * a.group; ++i) {
        out.max[i] = -INFINITY;
        out.sum[i] = 0.0f;
    }
    std::memset(out.out, 0, a.rows * a.group * size * sizeof(float));
    // A single row reads the cache as it is; several share the floats made from it. The numbers are the same.
#ifdef STRETTO_HAS_TILES
    if (a.type == CacheType::kQ8) {
        if (a.head_size == 64 && a.rows == 1) return attend_rows<4, Source::kBytes>(a, first, last, out);
        if (a.head_size == 64) return attend_rows<4, Source::kTiles>(a, first, last, out);
        if (a.head_size == 128 && a.rows == 1) return attend_rows<8, Source::kBytes>(a, first, last, out);
        return attend_rows<0, Source::kTiles>(a, first, last, out);
    }
    const bool halves = a.rows == 1 && a.type == CacheType::kHalf && !a.slopes;
    if (halves && a.head_size == 64 && attend_halves<4>(a, first, last, out)) return;
    if (halves && a.head_size == 128 && attend_halves<8>(a, first, last, out)) return;
#else
    if (a.rows == 1 && a.head_size == 64 && a.type == CacheType::kQ8) return attend_rows<4, Source::kQ8>(a, first, last, out);
    if (a.rows == 1 && a.head_size == 64 && a.type == CacheType::kHalf) return attend_rows<4, Source::kHalf>(a, first, last, out);
    if (a.rows == 1 && a.head_size == 128 && a.type == CacheType::kHalf) return attend_rows<8, Source::kHalf>(a, first, last, out);
#endif
    if (a.head_size == 64) {
        attend_rows<4, Source::kFloats>(a, first, last, out);
    } else if (a.head_size == 32) {
        attend_rows<2, Source::kFloats>(a, first, last, out);
    } else if (a.head_size == 128) {
        attend_rows<8, Source::kFloats>(a, first, last, out);
    } else {
        attend_rows<0, Source::kFloats>(a, first, last, out);
    }
}

void score_index(const IndexScores& a, size_t n, float* out) {
    const size_t size = padded(a.head_size), vectors = size / 16;
    float* floats = a.scratch;                    // keys of a chunk
    float* queries = floats + kChunk * size;      // of some heads, padded
    float* scores = queries + kMostHeads * size;  // [heads][kSpan]
    size_t steps[kChunk];
    for (size_t j = 0; j < kChunk; ++j) steps[j] = j * size * sizeof(float);
    const Cells keys{reinterpret_cast<const uint8_t*>(floats), steps};
    for (size_t chunk = 0; chunk < n; chunk += kChunk, out += kChunk) {
        for (size_t j = 0; j < kChunk; ++j) load_head(a.type, a.keys + a.places[chunk + j], a.head_size, floats + j * size);
        Floats sums[kChunk / 16];
        for (Floats& sum : sums) sum = splat(0.0f);
        for (size_t h = 0; h < a.n_head; h += kHeads) {
            const size_t n_heads = a.n_head - h < kHeads ? a.n_head - h : kHeads;
            const float* q = a.queries + h * a.head_size;
            if (size != a.head_size) {
                std::memset(queries, 0, n_heads * size * sizeof(float));
                for (size_t i = 0; i < n_heads; ++i) {
                    std::memcpy(queries + i * size, q + i * a.head_size, a.head_size * sizeof(float));
                }
                q = queries;
            }
            with_heads(n_heads, [&](auto heads) {
                score_chunk<decltype(heads)::value, 0, Source::kFloats>(keys, keys, vectors, q, 1.0f, 0.0f, scores);
            });
            for (size_t i = 0; i < n_heads; ++i) {
                const Floats weight = splat(a.weights[h + i]);
                for (size_t j = 0; j < kChunk / 16; ++j) {
                    sums[j] = fma(weight, max(load(scores + i * kSpan + 16 * j), splat(0.0f)), sums[j]);
                }
            }
        }
        for (size_t j = 0; j < kChunk / 16; ++j) store(out + 16 * j, sums[j]);
    }
}

void merge(size_t count, size_t head_size, const Partial& total, const Partial& part) {
    const size_t size = padded(head_size);
    for (size_t first = 0; first < count; first += 16) {
        const size_t n = count - first < 16 ? count - first : 16;
        const Floats left = load_some(total.max + first, n), right = load_some(part.max + first, n);
        const Floats now = max(left, right);
        alignas(64) float top[16], ours[16], theirs[16];
        store(top, now);
        store(ours, exponential(sub(left, now)));
        store(theirs, exponential(sub(right, now)));
        for (size_t j = 0; j < n; ++j) {
            const size_t i = first + j;
            if (part.sum[i] == 0.0f) continue;  // nothing was seen there
            float* to = total.out + i * size;
            const float* from = part.out + i * size;
            if (total.sum[i] == 0.0f) {
                total.max[i] = part.max[i];
                total.sum[i] = part.sum[i];
                std::memcpy(to, from, size * sizeof(float));
                continue;
            }
            for (size_t t = 0; t < size; t += 16) {
                store(to + t, fma(load(from + t), splat(theirs[j]), mul(load(to + t), splat(ours[j]))));
            }
            total.sum[i] = total.sum[i] * ours[j] + part.sum[i] * theirs[j];
            total.max[i] = top[j];
        }
    }
}
