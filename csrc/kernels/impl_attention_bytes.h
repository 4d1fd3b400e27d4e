// Attention over a cache of 8 bits where there are dot products of bytes. Included by impl_attention.h.
//
// K and V are never made floats. A query becomes integers of 16 bits with one scale for the head, and so do the weights of a
// chunk's cells once V's scales are in them. Their high and low bytes are multiplied apart, and sums are exact: what a
// row gets does not depend on how many share a tile. An integer of 16 bits is off by 2^-15 of the largest at most,
// where K and V are off by 2^-8 of theirs.

// The scale of numbers up to `largest`, and its inverse: powers of two, so that a weight of one leaves V as it is. Integers
// stay below 32,640, whose high byte would be 128. Zeros and what is next to them are zeros; where there is an infinity or
// NaN the scale says so.
ALWAYS float wide_scale(float largest, float* inverse) {
    uint32_t bits;
    std::memcpy(&bits, &largest, sizeof bits);
    const uint32_t exponent = (bits + 0x10200) >> 23;  // one more for the largest numbers of their exponent
    const bool none = exponent < 15 || !(largest <= FLT_MAX);
    const uint32_t up = none ? 0 : (268 - exponent) << 23, down = none ? 0 : (exponent - 14) << 23;
    float scale;
    std::memcpy(inverse, &up, sizeof up);
    std::memcpy(&scale, &down, sizeof down);
    return largest <= FLT_MAX ? scale : NAN;
}

// 16 numbers as integers: 256 × high + low.
ALWAYS void widen(Floats x, float inverse, int8_t* high, int8_t* low) {
    int32x4_t n[4];
    each<4>([&](auto i) ALWAYS_LAMBDA {
        n[i] = vreinterpretq_s32_f32(vfmaq_n_f32(loaded<float32x4_t>(kRoundings), x.v[i], inverse));
    });
    const int16x8_t first = vuzp1q_s16(vreinterpretq_s16_s32(n[0]), vreinterpretq_s16_s32(n[1]));
    const int16x8_t second = vuzp1q_s16(vreinterpretq_s16_s32(n[2]), vreinterpretq_s16_s32(n[3]));
    const int16x8_t half = vdupq_n_s16(128);  // a low byte counts from −128
    vst1q_s8(low, vuzp1q_s8(vreinterpretq_s8_s16(first), vreinterpretq_s8_s16(second)));
    vst1q_s8(high, vuzp2q_s8(vreinterpretq_s8_s16(vaddq_s16(first, half)), vreinterpretq_s8_s16(vaddq_s16(second, half))));
}

// A query of `size` numbers, padded to whole blocks; returns its scale.
float widen_query(const float* query, size_t size, int8_t* high, int8_t* low) {
    Floats largest = splat(0.0f);
    each_vector(size, [&](size_t i, size_t m) { largest = max(largest, abs(load_some(query + i, m))); });
    float inverse;
    const float scale = wide_scale(reduce_max(largest), &inverse);
    const size_t whole = (size + 31) / 32 * 32;
    for (size_t i = 0; i < whole; i += 16) {
        const Floats x = i < size ? load_some(query + i, size - i < 16 ? size - i : 16) : splat(0.0f);
        widen(scale == scale ? x : splat(0.0f), inverse, high + i, low + i);
    }
    return scale;
}

// A chunk of K or V. Products take four cells together: a row of a tile has 16 bytes, for K four numbers of each of the four
// cells, for V four numbers with those of the four cells side by side. V's are stored, as each is read in two places; K's
// only where several rows of queries share them.
struct Bytes {
    const uint8_t* const* heads;  // [kChunk]: the cache's blocks
    uint8_t* tiles;               // [8 quads of cells][blocks][8][16]
    float* scales;                // [blocks][kChunk]
    size_t blocks;
};

// Numbers of two registers by turns, from the first or second half of both.
template <bool Values, bool Second>
ALWAYS uint8x16_t zipped(uint8x16_t x, uint8x16_t y) {
    if constexpr (Values) return Second ? vzip2q_u8(x, y) : vzip1q_u8(x, y);
    const uint32x4_t a = vreinterpretq_u32_u8(x), b = vreinterpretq_u32_u8(y);
    return vreinterpretq_u8_u32(Second ? vzip2q_u32(a, b) : vzip1q_u32(a, b));
}

// The four rows of a tile that 16 bytes of four cells make.
template <bool Values>
ALWAYS void four_rows(const uint8_t* const* heads, size_t at, uint8x16_t* out) {
    const uint8x16_t c0 = vld1q_u8(heads[0] + at), c1 = vld1q_u8(heads[1] + at);
    const uint8x16_t c2 = vld1q_u8(heads[2] + at), c3 = vld1q_u8(heads[3] + at);
    each<2>([&](auto half) ALWAYS_LAMBDA {
        const uint8x16_t even = zipped<Values, half>(c0, c2), odd = zipped<Values, half>(c1, c3);
        out[2 * half] = zipped<Values, false>(even, odd);
        out[2 * half + 1] = zipped<Values, true>(even, odd);
    });
}

// What sums begin with: loads are cheaper than moves.
alignas(16) constexpr int32_t kZeros[4] = {};
ALWAYS int32x4_t no_sum() { return loaded<int32x4_t>(kZeros); }

// Reads a chunk's scales, and its tiles too if they are to be stored.
template <bool Values, bool Stored, int T>
void read_chunk(const Bytes& chunk, const uint8_t* const* ahead) {
    const size_t blocks = T > 0 ? T / 2 : chunk.blocks;
    for (size_t q = 0; q < kChunk / 4; ++q) {
        const uint8_t* const* of = chunk.heads + 4 * q;
        const uint8_t* const heads[4] = {of[0], of[1], of[2], of[3]};  // copies: bytes stored may be anything's
        uint8_t* tiles = chunk.tiles + q * blocks * 128;
        // Where cells lie in a row these are all lines but a few.
        each<4>([&](auto c) ALWAYS_LAMBDA {
            for (size_t line = 0; line < (34 * blocks + 32) / 64; ++line) __builtin_prefetch(ahead[4 * q + c] + 64 * line);
        });
        UNROLL for (size_t b = 0; b < blocks; ++b) {
            uint16x4_t halves[4];
            each<4>([&](auto c) ALWAYS_LAMBDA {
                uint16_t half;
                std::memcpy(&half, heads[c] + 34 * b, 2);
                halves[c] = vcreate_u16(half);
            });
            const uint32x2_t low = vreinterpret_u32_u16(vzip1_u16(halves[0], halves[1]));
            const uint32x2_t high = vreinterpret_u32_u16(vzip1_u16(halves[2], halves[3]));
            vst1q_f32(chunk.scales + b * kChunk + 4 * q, vcvt_f32_f16(vreinterpret_f16_u32(vzip1_u32(low, high))));
        }
        if constexpr (Stored) {
            UNROLL for (size_t t = 0; t < 2 * blocks; ++t) {
                uint8x16_t rows[4];
                four_rows<Values>(heads, t / 2 * 34 + t % 2 * 16 + 2, rows);
                each<4>([&](auto i) ALWAYS_LAMBDA { vst1q_u8(tiles + 64 * t + 16 * i, rows[i]); });
            }
        }
    }
}

// The scores of a chunk's cells with H queries, [H][high, low][32 × blocks]. Two quads go together: a sum is ready again
// only after four cycles, and six of them for three heads would not fill these.
template <int H, int T, bool Stored>
void score_bytes(Bytes keys, const int8_t* queries, const float* query_scales, float scale, float cap, float* scores) {
    if constexpr (T > 0) keys.blocks = T / 2;
    const size_t blocks = keys.blocks;
    for (size_t quad = 0; quad < kChunk / 4; quad += 2) {
        float32x4_t found[2][H];
        each<2>([&](auto c) ALWAYS_LAMBDA { each<H>([&](auto h) ALWAYS_LAMBDA { found[c][h] = vdupq_n_f32(0.0f); }); });
        for (size_t b = 0; b < blocks; ++b) {
            int32x4_t high[2][H], low[2][H];
            each<2>([&](auto c) ALWAYS_LAMBDA {
                each<H>([&](auto h) ALWAYS_LAMBDA { high[c][h] = no_sum(), low[c][h] = no_sum(); });
            });
            each<2>([&](auto half) ALWAYS_LAMBDA {
                uint8x16_t k[2][4];
                each<2>([&](auto c) ALWAYS_LAMBDA {
                    if constexpr (Stored) {
                        const uint8_t* at = keys.tiles + (((quad + c) * blocks + b) * 2 + half) * 64;
                        each<4>([&](auto i) ALWAYS_LAMBDA { k[c][i] = vld1q_u8(at + 16 * i); });
                    } else {
                        four_rows<false>(keys.heads + 4 * (quad + c), 34 * b + 16 * half + 2, k[c]);
                    }
                });
                const int8_t* from = queries + 32 * b + 16 * half;
                auto add_plane = [&](size_t offset, int32x4_t (&sums)[2][H]) ALWAYS_LAMBDA {
                    int8x16_t q[H];
                    each<H>([&](auto h) ALWAYS_LAMBDA { q[h] = vld1q_s8(from + h * 64 * blocks + offset); });
                    each<4>([&](auto i) ALWAYS_LAMBDA {
                        each<2>([&](auto c) ALWAYS_LAMBDA {
                            each<H>([&](auto h) ALWAYS_LAMBDA {
                                sums[c][h] = vdotq_laneq_s32(sums[c][h], vreinterpretq_s8_u8(k[c][i]), q[h], i);
                            });
                        });
                    });
                };
                add_plane(0, high);
                add_plane(32 * blocks, low);
            });
            each<2>([&](auto c) ALWAYS_LAMBDA {
                const float32x4_t by = vld1q_f32(keys.scales + b * kChunk + 4 * (quad + c));
                each<H>([&](auto h) ALWAYS_LAMBDA {
                    const int32x4_t sum = vaddq_s32(vshlq_n_s32(high[c][h], 8), low[c][h]);
                    found[c][h] = vfmaq_f32(found[c][h], vcvtq_f32_s32(sum), by);
                });
            });
        }
        each<2>([&](auto c) ALWAYS_LAMBDA {
            each<H>([&](auto h) ALWAYS_LAMBDA {
                const float32x4_t four = vmulq_n_f32(vmulq_n_f32(found[c][h], query_scales[h]), scale);
                vst1q_f32(scores + h * kSpan + 4 * (quad + c), four);
            });
        });
    }
    if (cap <= 0.0f) return;
    for (int h = 0; h < H; ++h) {
        float* of = scores + static_cast<size_t>(h) * kSpan;
        for (size_t j = 0; j < kChunk; j += 16) store(of + j, capped(load(of + j), cap));
    }
}

// A chunk's weights × the scales of one of V's blocks; cells outside of [lo, hi) have none, whatever their scales are.
ALWAYS float widen_weights(const float* weights, const float* scales, size_t lo, size_t hi, int8_t* high, int8_t* low) {
    Floats first = mul(load(weights), load(scales)), second = mul(load(weights + 16), load(scales + 16));
    if (lo > 0 || hi < kChunk) {
        float some[kChunk];
        store(some, first);
        store(some + 16, second);
        for (size_t j = 0; j < lo; ++j) some[j] = 0.0f;
        for (size_t j = hi; j < kChunk; ++j) some[j] = 0.0f;
        first = load(some);
        second = load(some + 16);
    }
    float inverse;
    const float scale = wide_scale(reduce_max(max(first, second)), &inverse);
    const bool bad = scale != scale;
    widen(bad ? splat(0.0f) : first, inverse, high, low);
    widen(bad ? splat(0.0f) : second, inverse, high + 16, low + 16);
    return scale;
}

// Adds a chunk's values with the weights of H heads.
template <int H, int T>
void mix_bytes(Bytes values, size_t vectors, const float* weights, size_t lo, size_t hi, float* out) {
    if constexpr (T > 0) vectors = T, values.blocks = T / 2;
    const size_t size = 16 * vectors;
    alignas(16) int8_t high[H][kChunk], low[H][kChunk];
    float by[H];
    auto mix_eight = [&](size_t at) ALWAYS_LAMBDA {  // numbers of a head, from `at` on
        int32x4_t sums[2][2][H];  // [high, low]
        each<2>([&](auto i) ALWAYS_LAMBDA {
            each<H>([&](auto h) ALWAYS_LAMBDA { sums[0][i][h] = no_sum(), sums[1][i][h] = no_sum(); });
        });
        each<2>([&](auto half) ALWAYS_LAMBDA {
            int8x16_t w[2][H];
            each<H>([&](auto h) ALWAYS_LAMBDA {
                w[0][h] = vld1q_s8(high[h] + 16 * half);
                w[1][h] = vld1q_s8(low[h] + 16 * half);
            });
            each<4>([&](auto quad) ALWAYS_LAMBDA {
                const uint8_t* tile = values.tiles + (4 * half + quad) * values.blocks * 128 + 4 * at;
                each<2>([&](auto i) ALWAYS_LAMBDA {
                    const int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(tile + 16 * i));
                    each<2>([&](auto plane) ALWAYS_LAMBDA {
                        each<H>([&](auto h) ALWAYS_LAMBDA {
                            sums[plane][i][h] = vdotq_laneq_s32(sums[plane][i][h], v, w[plane][h], quad);
                        });
                    });
                });
            });
        });
        each<H>([&](auto h) ALWAYS_LAMBDA {
            each<2>([&](auto i) ALWAYS_LAMBDA {
                float* to = out + h * size + at + 4 * i;
                const int32x4_t sum = vaddq_s32(vshlq_n_s32(sums[0][i][h], 8), sums[1][i][h]);
                vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), vcvtq_f32_s32(sum), by[h]));
            });
        });
    };
    for (size_t b = 0; b < values.blocks; ++b) {
        each<H>([&](auto h) ALWAYS_LAMBDA {
            by[h] = widen_weights(weights + h * kSpan, values.scales + b * kChunk, lo, hi, high[h], low[h]);
        });
        for (size_t at = 32 * b; at < 32 * b + 32 && at < size; at += 8) mix_eight(at);
    }
}
