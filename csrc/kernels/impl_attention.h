// The cache's numbers, and attention over views. Included by impl.h, within the namespace of an instruction set.

void store_head(CacheType type, const float* x, size_t head_size, uint8_t* out) {
    if (type == CacheType::kHalf) {
        each_vector(head_size, [&](size_t i, size_t m) {
            uint16_t halves[16];
            store_half(halves, load_some(x + i, m));
            std::memcpy(out + 2 * i, halves, 2 * m);
        });
        return;
    }
    for (size_t i = 0; i < head_size; i += 32, out += 34) {
        const size_t m = head_size - i < 32 ? head_size - i : 32;
        float block[32] = {};
        std::memcpy(block, x + i, m * sizeof(float));
        const float largest = largest_magnitude(load(block), load(block + 16));
        const uint16_t d = float_to_half(largest / 127.0f);
        std::memcpy(out, &d, 2);
        const float stored = half_to_float(d);
        const Floats inverse = splat(stored > 0.0f ? 1.0f / stored : 0.0f);
        for (size_t j = 0; j < 32; j += 16) {
            const Floats cut = max(min(mul(load(block + j), inverse), splat(127.0f)), splat(-127.0f));
            store_int8(reinterpret_cast<int8_t*>(out + 2 + j), round_to_int(cut));
        }
    }
}

// Into floats, padded with zeros to whole vectors.
void load_head(CacheType type, const uint8_t* x, size_t head_size, float* out) {
    if (type == CacheType::kHalf) {
        size_t i = 0;
        for (; i + 16 <= head_size; i += 16) store(out + i, load_half(reinterpret_cast<const uint16_t*>(x + 2 * i)));
        if (i < head_size) {
            uint16_t halves[16] = {};
            std::memcpy(halves, x + 2 * i, 2 * (head_size - i));
            store(out + i, load_half(halves));
        }
        return;
    }
    for (size_t i = 0; i < head_size; i += 32, x += 34) {
        uint16_t d;
        std::memcpy(&d, x, 2);
        const Floats scale = splat(half_to_float(d));
        store(out + i, mul(load_int8(reinterpret_cast<const int8_t*>(x + 2)), scale));
        if (i + 16 < padded(head_size)) {
            store(out + i + 16, mul(load_int8(reinterpret_cast<const int8_t*>(x + 18)), scale));
        }
    }
}

#ifndef STRETTO_HAS_SPLAT_HALF
inline Floats splat_half(const uint8_t* p) { return splat(half_to_float(static_cast<uint16_t>(p[0] | p[1] << 8))); }
#endif

#ifndef STRETTO_HAS_SUMS16
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

// Where attention reads K and V from: floats made before, or the cache itself.
enum class Source { kFloats, kHalf, kQ8 };

// Vector t of a head.
template <Source From>
inline Floats piece(const uint8_t* head, size_t t) {
    if constexpr (From == Source::kFloats) return load(reinterpret_cast<const float*>(head) + 16 * t);
    if constexpr (From == Source::kHalf) return load_half(reinterpret_cast<const uint16_t*>(head) + 16 * t);
    const uint8_t* block = head + t / 2 * 34;
    return mul(load_int8(reinterpret_cast<const int8_t*>(block + 2 + t % 2 * 16)), splat_half(block));
}

// One chunk for one row and H heads of T vectors (0: `vectors` says how many): scores, weights, and their share
// of the result. `keys` and `values` are where the chunk's heads are.
template <int H, int T, Source From>
void attend_chunk(const uint8_t* const* keys, const uint8_t* const* values, size_t vectors, const float* queries,
                  float scale, float cap, size_t lo, size_t hi, float* max_of, float* sum_of, float* out) {
    if constexpr (T > 0) vectors = T;
    const size_t size = 16 * vectors;
    alignas(64) float weights[H][kChunk];
    for (size_t half = 0; half < kChunk; half += 16) {
        Floats dots[H][16];
        for (size_t j = 0; j < 16; ++j) {
            const uint8_t* key = keys[half + j];
            Floats sums[H];
            UNROLL for (int h = 0; h < H; ++h) sums[h] = splat(0.0f);
            UNROLL for (size_t t = 0; t < vectors; ++t) {
                const Floats k = piece<From>(key, t);
                UNROLL for (int h = 0; h < H; ++h) sums[h] = fma(k, load(queries + h * size + 16 * t), sums[h]);
            }
            UNROLL for (int h = 0; h < H; ++h) dots[h][j] = sums[h];
        }
        UNROLL for (int h = 0; h < H; ++h) {
            const Floats scores = mul(sums16(dots[h]), splat(scale));
            store(weights[h] + half, cap > 0.0f ? capped(scores, cap) : scores);
        }
    }
    for (int h = 0; h < H; ++h) {
        float* w = weights[h];
        for (size_t j = 0; j < lo; ++j) w[j] = -INFINITY;
        for (size_t j = hi; j < kChunk; ++j) w[j] = -INFINITY;
        const float before = max_of[h];
        const float largest = reduce_max(max(load(w), load(w + 16)));
        if (largest > before) {  // what is there already counts less
            max_of[h] = largest;
            alignas(64) float change[16];
            store(change, exponential(splat(before - largest)));
            const float factor = before == -INFINITY ? 0.0f : change[0];
            sum_of[h] *= factor;
            for (size_t t = 0; t < vectors; ++t) {
                store(out + h * size + 16 * t, mul(load(out + h * size + 16 * t), splat(factor)));
            }
        }
        const Floats top = splat(max_of[h]);
        store(w, exponential(sub(load(w), top)));
        store(w + 16, exponential(sub(load(w + 16), top)));
        for (size_t j = 0; j < lo; ++j) w[j] = 0.0f;
        for (size_t j = hi; j < kChunk; ++j) w[j] = 0.0f;
        sum_of[h] += reduce_add(add(load(w), load(w + 16)));
    }
    constexpr size_t kWide = H * 4 <= 16 ? 4 : 2;  // vectors of all heads that are kept in registers
    for (size_t t = 0; t < vectors; t += kWide) {
        const size_t width = T > 0 && T % kWide == 0 ? kWide : (vectors - t < kWide ? vectors - t : kWide);
        Floats mixed[H][kWide];
        UNROLL for (int h = 0; h < H; ++h) UNROLL for (size_t i = 0; i < kWide; ++i) {
            mixed[h][i] = i < width ? load(out + h * size + 16 * (t + i)) : splat(0.0f);
        }
        for (size_t j = lo; j < hi; ++j) {
            UNROLL for (size_t i = 0; i < kWide; ++i) {
                if (i >= width) break;
                const Floats v = piece<From>(values[j], t + i);
                UNROLL for (int h = 0; h < H; ++h) mixed[h][i] = fma(splat(weights[h][j]), v, mixed[h][i]);
            }
        }
        UNROLL for (int h = 0; h < H; ++h) UNROLL for (size_t i = 0; i < kWide; ++i) {
            if (i < width) store(out + h * size + 16 * (t + i), mixed[h][i]);
        }
    }
}

template <int T, Source From>
void attend_heads(const Attention& a, const uint8_t* const* keys, const uint8_t* const* values, size_t vectors,
                  const float* queries, size_t heads, size_t lo, size_t hi, const Partial& out, size_t at) {
    float* result = out.out + at * 16 * vectors;
    switch (heads) {
        case 1: return attend_chunk<1, T, From>(keys, values, vectors, queries, a.scale, a.cap, lo, hi, out.max + at, out.sum + at, result);
        case 2: return attend_chunk<2, T, From>(keys, values, vectors, queries, a.scale, a.cap, lo, hi, out.max + at, out.sum + at, result);
        case 3: return attend_chunk<3, T, From>(keys, values, vectors, queries, a.scale, a.cap, lo, hi, out.max + at, out.sum + at, result);
        default: return attend_chunk<4, T, From>(keys, values, vectors, queries, a.scale, a.cap, lo, hi, out.max + at, out.sum + at, result);
    }
}

template <int T, Source From>
void attend_rows(const Attention& a, size_t first, size_t last, const Partial& out) {
    const size_t size = padded(a.head_size), vectors = size / 16;
    float* floats = a.scratch;                       // K and V of a chunk, if they are made into floats
    float* queries = floats + 2 * kChunk * size;     // four heads, padded
    const uint8_t *keys[kChunk], *values[kChunk];
    for (size_t chunk = first / kChunk * kChunk; chunk < last; chunk += kChunk) {
        const size_t m = last - chunk < kChunk ? last - chunk : kChunk;
        for (size_t j = 0; j < kChunk; ++j) {
            // Behind the end the last cell stands in; its weight is made zero.
            const size_t offset = static_cast<size_t>(a.view[chunk + (j < m ? j : m - 1)]) * a.cell_stride;
            keys[j] = a.keys + offset;
            values[j] = a.values + offset;
            if constexpr (From == Source::kFloats) {
                float* key = floats + j * size;
                float* value = floats + (kChunk + j) * size;
                load_head(a.type, keys[j], a.head_size, key);
                load_head(a.type, values[j], a.head_size, value);
                keys[j] = reinterpret_cast<const uint8_t*>(key);
                values[j] = reinterpret_cast<const uint8_t*>(value);
            }
        }
        // The hardware does not foresee where the next chunk is; the view knows.
        const size_t bytes = head_bytes(a.type, a.head_size);
        for (size_t j = chunk + kChunk; j < last && j < chunk + 2 * kChunk; ++j) {
            const size_t offset = static_cast<size_t>(a.view[j]) * a.cell_stride;
            for (size_t line = 0; line < bytes; line += 64) {
                __builtin_prefetch(a.keys + offset + line);
                __builtin_prefetch(a.values + offset + line);
            }
        }
        for (size_t row = 0; row < a.rows; ++row) {
            const size_t begin = static_cast<size_t>(a.begins[row]), end = static_cast<size_t>(a.ends[row]);
            const size_t lo = begin > chunk ? begin - chunk : 0;
            const size_t hi = end > chunk ? (end - chunk < m ? end - chunk : m) : 0;
            if (lo >= hi) continue;
            for (size_t h = 0; h < a.group; h += 4) {
                const size_t heads = a.group - h < 4 ? a.group - h : 4;
                const float* q = a.queries + row * a.query_stride + h * a.head_size;
                if (size != a.head_size) {
                    std::memset(queries, 0, 4 * size * sizeof(float));
                    for (size_t i = 0; i < heads; ++i) {
                        std::memcpy(queries + i * size, q + i * a.head_size, a.head_size * sizeof(float));
                    }
                    q = queries;
                }
                attend_heads<T, From>(a, keys, values, vectors, q, heads, lo, hi, out, row * a.group + h);
            }
        }
    }
}

void attend(const Attention& a, size_t first, size_t last, const Partial& out) {
    const size_t size = padded(a.head_size);
    for (size_t i = 0; i < a.rows * a.group; ++i) {
        out.max[i] = -INFINITY;
        out.sum[i] = 0.0f;
    }
    std::memset(out.out, 0, a.rows * a.group * size * sizeof(float));
    // A single row reads the cache as it is; several share the floats made from it. The numbers are the same.
    if (a.rows == 1 && a.head_size == 64 && a.type == CacheType::kHalf) {
        attend_rows<4, Source::kHalf>(a, first, last, out);
    } else if (a.rows == 1 && a.head_size == 64) {
        attend_rows<4, Source::kQ8>(a, first, last, out);
    } else if (a.rows == 1 && a.head_size == 128 && a.type == CacheType::kHalf) {
        attend_rows<8, Source::kHalf>(a, first, last, out);
    } else if (a.head_size == 64) {
        attend_rows<4, Source::kFloats>(a, first, last, out);
    } else if (a.head_size == 128) {
        attend_rows<8, Source::kFloats>(a, first, last, out);
    } else {
        attend_rows<0, Source::kFloats>(a, first, last, out);
    }
}

void merge(size_t count, size_t head_size, const Partial& total, const Partial& part) {
    const size_t size = padded(head_size);
    for (size_t i = 0; i < count; ++i) {
        if (part.sum[i] == 0.0f) continue;  // nothing was seen there
        float* to = total.out + i * size;
        const float* from = part.out + i * size;
        if (total.sum[i] == 0.0f) {
            total.max[i] = part.max[i];
            total.sum[i] = part.sum[i];
            std::memcpy(to, from, size * sizeof(float));
            continue;
        }
        const float now = total.max[i] > part.max[i] ? total.max[i] : part.max[i];
        alignas(64) float ours[16], theirs[16];
        store(ours, exponential(splat(total.max[i] - now)));
        store(theirs, exponential(splat(part.max[i] - now)));
        for (size_t t = 0; t < size; t += 16) {
            store(to + t, fma(load(from + t), splat(theirs[0]), mul(load(to + t), splat(ours[0]))));
        }
        total.sum[i] = total.sum[i] * ours[0] + part.sum[i] * theirs[0];
        total.max[i] = now;
    }
}
