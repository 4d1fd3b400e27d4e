// Quants and scales of a panel in the forms that NEON's tiles multiply. Included by impl_tiles.h.

template <Layout L>
struct Panel {
    static constexpr Shape kShape = shape_of(L);
    static constexpr int kGroups = static_cast<int>(kShape.groups);
    static constexpr bool kCoded = kShape.scales == Scales::kCoded;
    static constexpr size_t kUnit = kShape.blocks();
    // Expanded: for each half of a panel and each block 8 rows × 32 signed bytes, four columns at a time; and for each
    // group 8 scales, 8 times what they make of kFloatBias, and 8 minima.
    static constexpr size_t kBytes = kTileRows * kBlock;
    static constexpr size_t kParts = kShape.min ? 3 : 2, kFloats = kGroups * kParts * kTileRows;
    static constexpr size_t kExpanded = kGroups == 1 ? 48 : 32;  // blocks at a time: they stay in the first cache
    struct Expanded {
        alignas(64) int8_t quants[kHalves][kExpanded * kBytes];
        alignas(64) float scales[kHalves][kExpanded * kFloats];
    };

    // Quants of the four rows from 4r on, columns 4 × quad … of a block.
    static ALWAYS int8x16_t quants(const uint8_t* block, int r, int quad) {
        const uint8_t* at = block + r * 16;
        if constexpr (kShape.bits == 8) {
            return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(at + quad * 64), vdupq_n_u8(128)));
        }
        const uint8x16_t both = vld1q_u8(at + quad % 4 * 64);
        const uint8x16_t low = quad < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4);
        if constexpr (kShape.bits == 4) return vreinterpretq_s8_u8(low);
        const int shift = kShape.bits == 5 ? quad : quad % 4 * 2;
        const uint8x16_t above = vld1q_u8(at + 4 * 64 + (kShape.bits == 6 ? quad / 4 * 64 : 0));
        const uint8x16_t mask = vdupq_n_u8(kShape.bits == 5 ? 16 : 48);
        const uint8x16_t moved = vshlq_u8(above, vdupq_n_s8(static_cast<int8_t>(4 - shift)));
        return vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(moved, mask)));
    }

    // Four scales that are kept as they are.
    static ALWAYS float32x4_t scales(const uint8_t* at, int r) {
        if constexpr (kShape.scales == Scales::kHalf) return half_four(reinterpret_cast<const uint16_t*>(at) + 4 * r);
        return vld1q_f32(reinterpret_cast<const float*>(at) + 4 * r);
    }

    // The scales of a half panel's blocks as floats, whose first block begins a unit.
    static void expand_scales(const uint8_t* panel, int half, size_t first, size_t last, float* out) {
        const float32x4_t bias = vdupq_n_f32(-kFloatBias);
        for (size_t block = first; block < last; ++block) {
            const uint8_t* unit = panel + block / kUnit * kShape.unit_bytes();
            UNROLL for (int g = 0; g < kGroups; ++g, out += kParts * kTileRows) {
                const uint8_t* d = unit + kShape.scale_at(block % kUnit, g);
                const uint8_t* m = unit + kShape.min_at(block % kUnit, g);
                if constexpr (kCoded) {
                    const auto* head = reinterpret_cast<const uint16_t*>(unit) + half * kTileRows;
                    coded(d + half * kTileRows, head, out);
                    if constexpr (kShape.min) coded(m + half * kTileRows, head + kPanelRows, out + 2 * kTileRows);
                }
                UNROLL for (int r = 0; r < 2; ++r) {
                    float* to = out + 4 * r;
                    if constexpr (!kCoded) {
                        vst1q_f32(to, scales(d, 2 * half + r));
                        if constexpr (kShape.min) vst1q_f32(to + 2 * kTileRows, scales(m, 2 * half + r));
                    }
                    vst1q_f32(to + kTileRows, vmulq_f32(vld1q_f32(to), bias));
                }
            }
        }
    }

    // Eight codes × the half floats of their rows: exact. Bytes become floats by what stands above them.
    static ALWAYS void coded(const uint8_t* codes, const uint16_t* halves, float* out) {
        const uint8x8_t flipped = veor_u8(vld1_u8(codes), vdup_n_u8(128));
        const uint16x8_t wide = vreinterpretq_u16_u8(vzip1q_u8(vcombine_u8(flipped, flipped), vdupq_n_u8(0)));
        const uint16x8_t above = vdupq_n_u16(kSumStart >> 16);
        const float32x4_t bias = vdupq_n_f32(kFloatBias + 128.0f);
        const float32x4_t low = vsubq_f32(vreinterpretq_f32_u16(vzip1q_u16(wide, above)), bias);
        const float32x4_t high = vsubq_f32(vreinterpretq_f32_u16(vzip2q_u16(wide, above)), bias);
        vst1q_f32(out, vmulq_f32(low, half_four(halves)));
        vst1q_f32(out + 4, vmulq_f32(high, half_four(halves + 4)));
    }

    // Blocks [first, last) of a panel, the first of which begins a unit.
    static void expand(const uint8_t* panel, size_t first, size_t last, Expanded& to) {
        const uint8x16_t offset = vdupq_n_u8(kShape.bits < 8 ? kShape.offset : 0);
        int8_t* low = to.quants[0];
        int8_t* high = to.quants[1];
        for (size_t block = first; block < last; ++block, low += kBytes, high += kBytes) {
            const uint8_t* from = panel + block / kUnit * kShape.unit_bytes() + kShape.quants_at(block % kUnit);
            each<8>([&](auto quad) ALWAYS_LAMBDA {
                each<4>([&](auto r) ALWAYS_LAMBDA {
                    int8x16_t q = quants(from, r, quad);
                    if constexpr (kShape.bits < 8 && kShape.offset) q = vsubq_s8(q, vreinterpretq_s8_u8(offset));
                    vst1q_s8((r < 2 ? low : high) + quad * 32 + r % 2 * 16, q);
                });
            });
        }
        for (size_t half = 0; half < kHalves; ++half) {
            expand_scales(panel, static_cast<int>(half), first, last, to.scales[half]);
        }
    }
};
