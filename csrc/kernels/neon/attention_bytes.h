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
// cells, for V four numbers with those of the four cells side by side. Tiles are stored only where several rows of queries
// share them.
struct Bytes {
    Cells cells;     // [kChunk]: the cache's blocks
    uint8_t* tiles;  // [8 quads of cells][blocks][8][16]
    float* scales;   // [blocks][kChunk]
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

// Sums of both planes become a float without a conversion, which would take a unit for two cycles. They begin as the bits of
// floats whose last bit is 256 and 1, so that adding an integer adds as many of these; taking off where both began leaves 256 ×
// high exactly, and adding low rounds once, as a conversion does. Loads are cheaper than moves.
#define FOUR_OF(x) {x, x, x, x}
alignas(16) constexpr int32_t kStarts[3][4] = {FOUR_OF(0x4f400000), FOUR_OF(0x4b400000),
                                               FOUR_OF(static_cast<int32_t>(0xcf40c000))};  // high, low, −(high + low)
#undef FOUR_OF
ALWAYS int32x4_t start(int plane) { return loaded<int32x4_t>(kStarts[plane]); }
ALWAYS float32x4_t total(int32x4_t high, int32x4_t low) {
    const float32x4_t most = vaddq_f32(vreinterpretq_f32_s32(high), vreinterpretq_f32_s32(start(2)));
    return vaddq_f32(most, vreinterpretq_f32_s32(low));
}

#include "kernels/neon/attention_bytes_one.h"

// The scales of four cells' block b. The integer units put them together.
ALWAYS float32x4_t four_scales(const uint8_t* const* heads, size_t b) {
    uint64_t four = 0;
    each<4>([&](auto c) ALWAYS_LAMBDA {
        uint16_t half;
        std::memcpy(&half, heads[c] + 34 * b, 2);
        four |= uint64_t{half} << (16 * c);
    });
    return vcvt_f32_f16(vcreate_f16(four));
}

// Asks for the `line`th lines of four cells. Where cells lie in a row these are all lines but a few.
ALWAYS void fetch_four(Cells cells, size_t line) {
    each<4>([&](auto c) ALWAYS_LAMBDA { __builtin_prefetch(cells[c] + 64 * line); });
}
constexpr size_t lines_of(size_t blocks) { return (34 * blocks + 32) / 64; }

// Stores a chunk's scales, and its tiles too if several rows share them. Then it also asks for the cells `ahead`; otherwise
// that is done among the products, as a burst of misses would be waited for.
template <bool Values, bool Stored, int T>
void read_chunk(const Bytes& chunk, Cells ahead) {
    const size_t blocks = T > 0 ? T / 2 : chunk.blocks;
    for (size_t q = 0; q < kChunk / 4; ++q) {
        const Cells of = chunk.cells + 4 * q;
        const uint8_t* const heads[4] = {of[0], of[1], of[2], of[3]};  // copies: bytes stored may be anything's
        uint8_t* tiles = chunk.tiles + q * blocks * 128;
        for (size_t line = 0; Stored && line < lines_of(blocks); ++line) fetch_four(ahead + 4 * q, line);
        UNROLL for (size_t b = 0; b < blocks; ++b) vst1q_f32(chunk.scales + b * kChunk + 4 * q, four_scales(heads, b));
        if constexpr (Stored) {
            UNROLL for (size_t t = 0; t < 2 * blocks; ++t) {
                uint8x16_t rows[4];
                four_rows<Values>(heads, t / 2 * 34 + t % 2 * 16 + 2, rows);
                each<4>([&](auto i) ALWAYS_LAMBDA { vst1q_u8(tiles + 64 * t + 16 * i, rows[i]); });
            }
        }
    }
}

// What score_block does, with stored tiles.
template <int H>
void score_tiles(const Bytes& keys, const int8_t* queries, const float* by, float* scores) {
    const size_t blocks = keys.blocks;
    for (size_t quad = 0; quad < kChunk / 4; ++quad) {
        float32x4_t found[H] = {};
        for (size_t b = 0; b < blocks; ++b) {
            int32x4_t sums[2][H];
            each<2>([&](auto plane) ALWAYS_LAMBDA { each<H>([&](auto h) ALWAYS_LAMBDA { sums[plane][h] = start(plane); }); });
            each<2>([&](auto half) ALWAYS_LAMBDA {
                uint8x16_t k[4];
                const uint8_t* at = keys.tiles + ((quad * blocks + b) * 2 + half) * 64;
                each<4>([&](auto i) ALWAYS_LAMBDA { k[i] = vld1q_u8(at + 16 * i); });
                each<2>([&](auto plane) ALWAYS_LAMBDA {
                    int8x16_t q[H];
                    each<H>([&](auto h) ALWAYS_LAMBDA {
                        q[h] = vld1q_s8(queries + (2 * h + plane) * 32 * blocks + 32 * b + 16 * half);
                    });
                    each<4>([&](auto i) ALWAYS_LAMBDA {
                        each<H>([&](auto h) ALWAYS_LAMBDA {
                            sums[plane][h] = vdotq_laneq_s32(sums[plane][h], vreinterpretq_s8_u8(k[i]), q[h], i);
                        });
                    });
                });
            });
            const float32x4_t scales = vld1q_f32(keys.scales + b * kChunk + 4 * quad);
            each<H>([&](auto h) ALWAYS_LAMBDA {
                const float32x4_t sum = total(sums[0][h], sums[1][h]);
                found[h] = b == 0 ? vmulq_f32(sum, scales) : vfmaq_f32(found[h], sum, scales);
            });
        }
        each<H>([&](auto h) ALWAYS_LAMBDA { vst1q_f32(scores + h * kSpan + 4 * quad, vmulq_n_f32(found[h], by[h])); });
    }
}

// The scores of a chunk's cells with H queries.
template <int H, int T, bool Stored>
void score_bytes(Bytes keys, Cells ahead, const int8_t* queries, const float* query_scales, float scale, float cap, float* scores) {
    if constexpr (T > 0) keys.blocks = T / 2;
    alignas(16) float by[4];  // a query's scale is a power of two
    each<H>([&](auto h) ALWAYS_LAMBDA { by[h] = query_scales[h] * scale; });
    if constexpr (Stored) score_tiles<H>(keys, queries, by, scores);
    else score_block<H, T>(keys.cells, ahead, queries, by, scores);
    if (cap <= 0.0f) return;
    for (int h = 0; h < H; ++h) {
        float* of = scores + static_cast<size_t>(h) * kSpan;
        for (size_t j = 0; j < kChunk; j += 16) store(of + j, capped(load(of + j), cap));
    }
}

// The weights of H heads for a chunk × V's scales of a block, as integers: [high, low][H][kChunk]. Returns their scales, for all
// heads at once, as those of wide_scale. Where one is NaN the integers mean nothing.
template <int H>
ALWAYS float32x4_t widen_weights(const float* weights, const float* scales, int8_t (*planes)[H][kChunk]) {
    alignas(16) float products[H][kChunk];
    float32x4_t largest[4] = {};
    each<H>([&](auto h) ALWAYS_LAMBDA {
        const Floats x = mul(load(weights + h * kSpan), load(scales)), y = mul(load(weights + h * kSpan + 16), load(scales + 16));
        store(products[h], x);
        store(products[h] + 16, y);
        const Floats both = max(x, y);
        largest[h] = vmaxq_f32(vmaxq_f32(both.v[0], both.v[1]), vmaxq_f32(both.v[2], both.v[3]));
    });
    const float32x4_t most = vpmaxq_f32(vpmaxq_f32(largest[0], largest[1]), vpmaxq_f32(largest[2], largest[3]));
    const uint32x4_t exponent = vshrq_n_u32(vaddq_u32(vreinterpretq_u32_f32(most), vdupq_n_u32(0x10200)), 23);
    const uint32x4_t finite = vcleq_f32(most, vdupq_n_f32(FLT_MAX));
    const uint32x4_t some = vandq_u32(finite, vcgeq_u32(exponent, vdupq_n_u32(15)));
    const uint32x4_t up = vandq_u32(some, vshlq_n_u32(vsubq_u32(vdupq_n_u32(268), exponent), 23));
    const uint32x4_t down = vandq_u32(some, vshlq_n_u32(vsubq_u32(exponent, vdupq_n_u32(14)), 23));
    each<H>([&](auto h) ALWAYS_LAMBDA {
        const float inverse = vgetq_lane_f32(vreinterpretq_f32_u32(up), h);
        each<2>([&](auto half) ALWAYS_LAMBDA {
            widen(load(products[h] + 16 * half), inverse, planes[0][h] + 16 * half, planes[1][h] + 16 * half);
        });
    });
    return vreinterpretq_f32_u32(vornq_u32(down, finite));
}

// What mix_block does, for eight numbers of stored tiles, `at` bytes behind the first quad's.
template <int H>
ALWAYS void mix_tiles(const Bytes& values, size_t at, const int8_t (*planes)[H][kChunk], const float* by, float* out, size_t size) {
    int32x4_t sums[2][2][H];  // [high, low]
    each<2>([&](auto plane) ALWAYS_LAMBDA {
        each<2>([&](auto i) ALWAYS_LAMBDA { each<H>([&](auto h) ALWAYS_LAMBDA { sums[plane][i][h] = start(plane); }); });
    });
    each<2>([&](auto half) ALWAYS_LAMBDA {
        int8x16_t w[2][H];
        each<2>([&](auto plane) ALWAYS_LAMBDA {
            each<H>([&](auto h) ALWAYS_LAMBDA { w[plane][h] = vld1q_s8(planes[plane][h] + 16 * half); });
        });
        each<4>([&](auto quad) ALWAYS_LAMBDA {
            const uint8_t* tile = values.tiles + (4 * half + quad) * values.blocks * 128 + at;
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
            float* to = out + h * size + 4 * i;
            vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), total(sums[0][i][h], sums[1][i][h]), by[h]));
        });
    });
}

// Adds a chunk's values, cells [lo, hi) of it, with the weights of H heads.
template <int H, int T, bool Stored>
void mix_bytes(Bytes values, Cells ahead, size_t vectors, const float* weights, size_t lo, size_t hi, float* out) {
    if constexpr (T > 0) vectors = T, values.blocks = T / 2;
    const size_t size = 16 * vectors;
    constexpr size_t kBlocks = T > 0 ? T / 2 : 1;  // whose weights are made at a time
    alignas(16) int8_t planes[kBlocks][2][H][kChunk];  // high, low
    alignas(16) float some[kChunk], by[kBlocks][4];
    for (size_t first = 0; first < values.blocks; first += kBlocks) {
        for (size_t i = 0; i < kBlocks; ++i) {
            const float* scales = values.scales + (first + i) * kChunk;
            if (lo > 0 || hi < kChunk) {  // other cells have no weight, whatever their scales are
                for (size_t j = 0; j < kChunk; ++j) some[j] = j >= lo && j < hi ? scales[j] : 0.0f;
                scales = some;
            }
            vst1q_f32(by[i], widen_weights<H>(weights, scales, planes[i]));
        }
        for (size_t i = 0; i < kBlocks; ++i) {
            const size_t b = first + i;
            if constexpr (!Stored) {
                mix_block<H>(values.cells, 34 * b + 2, planes[i][0][0], ahead + b % 2 * 16, b / 2, by[i], out + 32 * b, 4 * size);
            } else {
                for (size_t at = 32 * b; at < 32 * b + 32 && at < size; at += 8) {
                    mix_tiles<H>(values, 4 * at, planes[i], by[i], out + at, size);
                }
            }
        }
    }
}
