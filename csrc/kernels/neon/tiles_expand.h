// Quants and scales of a panel in the forms that NEON's tiles multiply. Included by tiles.h.

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

    // What nibbles stand for: themselves, or signed levels.
    static ALWAYS uint8x16_t level(uint8x16_t nibbles) {
        if constexpr (!kShape.levels) return nibbles;
        return vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(kSignedLevels)), nibbles);
    }

    // Quants of the four rows from 4r on, columns 4 × quad … of a block: bytes or nibbles.
    static ALWAYS int8x16_t quants(const uint8_t* block, int r, int quad) {
        const uint8_t* at = block + r * 16;
        if constexpr (kShape.bits == 8) {
            return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(at + quad * 64), vdupq_n_u8(128)));
        }
        const uint8x16_t both = vld1q_u8(at + quad % 4 * 64);
        return vreinterpretq_s8_u8(level(quad < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4)));
    }

    // Calls f(quad, quants) for all of the four rows from 4r on, where they have less than 8 bits, each as soon as it is
    // there. Fifth bits are shifted together as far as they have the same way to go.
    template <typename F>
    static ALWAYS void each_quants(const uint8_t* block, int r, F f) {
        const uint8_t* at = block + r * 16;
        const auto low = [&](int i) ALWAYS_LAMBDA { return vandq_u8(vld1q_u8(at + i * 64), vdupq_n_u8(15)); };
        const auto high = [&](int i) ALWAYS_LAMBDA { return vshrq_n_u8(vld1q_u8(at + i * 64), 4); };
        const auto with = [&](auto quad, uint8x16_t above) ALWAYS_LAMBDA {
            const uint8x16_t nibbles = quad < 4 ? low(quad) : high(quad - 4);
            f(quad, vbslq_u8(vdupq_n_u8(16), above, nibbles));
        };
        if constexpr (kShape.bits == 4) {
            each<4>([&](auto i) ALWAYS_LAMBDA { f(i, level(low(i))); });
            each<4>([&](auto i) ALWAYS_LAMBDA { f(std::integral_constant<int, i + 4>{}, level(high(i))); });
        } else if constexpr (kShape.bits == 5) {
            const uint8x16_t above = vld1q_u8(at + 4 * 64);
            uint8x16_t up = above;
            with(std::integral_constant<int, 4>{}, above);
            each<4>([&](auto i) ALWAYS_LAMBDA {
                up = vaddq_u8(up, up);  // either vector unit adds, but only one shifts
                with(std::integral_constant<int, 3 - i>{}, up);
                if constexpr (i < 3) with(std::integral_constant<int, 5 + i>{}, vshrq_n_u8(above, i + 1));
            });
        } else {
            each<2>([&](auto half) ALWAYS_LAMBDA {
                const uint8_t* three = at + half * 3 * 64;
                uint8x16_t x[3];
                each<3>([&](auto i) ALWAYS_LAMBDA {
                    x[i] = vld1q_u8(three + i * 64);
                    f(std::integral_constant<int, 4 * half + i>{}, vandq_u8(x[i], vdupq_n_u8(63)));
                });
                const uint8x16_t fourth = vsriq_n_u8(x[2], vsriq_n_u8(x[1], x[0], 2), 2);
                f(std::integral_constant<int, 4 * half + 3>{}, vshrq_n_u8(fourth, 2));
            });
        }
    }

    // Four scales that are kept as they are.
    static ALWAYS float32x4_t scales(const uint8_t* at, int r) {
        if constexpr (kShape.scales == Scales::kHalf) return half_four(reinterpret_cast<const uint16_t*>(at) + 4 * r);
        if constexpr (kShape.scales == Scales::kShort) return bf16_four(reinterpret_cast<const uint16_t*>(at) + 4 * r);
        return vld1q_f32(reinterpret_cast<const float*>(at) + 4 * r);
    }

    // The scales of a half panel's blocks as floats; coded ones of whole units.
    static void expand_scales(const uint8_t* panel, int half, size_t first, size_t last, float* out) {
        for (size_t block = first; block < last; block += kUnit) {
            const uint8_t* unit = panel + block / kUnit * kShape.unit_bytes();
            float32x4_t by[2][2] = {};
            multipliers(unit, half, by);
            for (size_t in_unit = 0; in_unit < kUnit; ++in_unit) {
                UNROLL for (int g = 0; g < kGroups; ++g, out += kParts * kTileRows) {
                    const auto d = eight_scales(unit + kShape.scale_at(in_unit, g), half, by[0]);
                    UNROLL for (int r = 0; r < 2; ++r) {
                        vst1q_f32(out + 4 * r, d.val[r]);
                        vst1q_f32(out + kTileRows + 4 * r, vmulq_f32(d.val[r], vdupq_n_f32(-kFloatBias)));
                    }
                    if constexpr (kShape.min) {
                        const auto m = eight_scales(unit + kShape.min_at(in_unit, g), half, by[1]);
                        UNROLL for (int r = 0; r < 2; ++r) vst1q_f32(out + 2 * kTileRows + 4 * r, m.val[r]);
                    }
                }
            }
        }
    }

    // What the codes of half a panel's scales ([0]) and minima ([1]) are multiplied with.
    static ALWAYS void multipliers([[maybe_unused]] const uint8_t* unit, int half, float32x4_t (&by)[2][2]) {
        if constexpr (kCoded) {
            const auto* head = reinterpret_cast<const uint16_t*>(unit) + half * kTileRows;
            UNROLL for (int r = 0; r < 2; ++r) {
                by[0][r] = half_four(head + 4 * r);
                if constexpr (kShape.min) by[1][r] = half_four(head + kPanelRows + 4 * r);
            }
        }
    }

    // The eight scales of half a panel, of which `at` has sixteen. Codes × half floats are exact; bytes become floats by what
    // stands above them.
    static ALWAYS float32x4x2_t eight_scales(const uint8_t* at, int half, [[maybe_unused]] const float32x4_t (&by)[2]) {
        if constexpr (kCoded) {
            // Sixteen bytes are loaded, as that needs no other instruction: quants follow the last codes.
            const uint8x16_t flipped = veorq_u8(vld1q_u8(at + half * kTileRows), vdupq_n_u8(128));
            const uint16x8_t wide = vreinterpretq_u16_u8(vzip1q_u8(flipped, vdupq_n_u8(0)));
            const uint16x8_t above = vdupq_n_u16(kSumStart >> 16);
            const float32x4_t bias = vdupq_n_f32(kFloatBias + 128.0f);
            return {{vmulq_f32(vsubq_f32(vreinterpretq_f32_u16(vzip1q_u16(wide, above)), bias), by[0]),
                     vmulq_f32(vsubq_f32(vreinterpretq_f32_u16(vzip2q_u16(wide, above)), bias), by[1])}};
        }
        return {{scales(at, 2 * half), scales(at, 2 * half + 1)}};
    }

    // Blocks [first, last) of a panel, the first of which begins a unit.
    static void expand(const uint8_t* panel, size_t first, size_t last, Expanded& to) {
        const uint8x16_t offset = vdupq_n_u8(kShape.bytes() ? 0 : kShape.offset);
        int8_t* low = to.quants[0];
        int8_t* high = to.quants[1];
        for (size_t block = first; block < last; ++block, low += kBytes, high += kBytes) {
            const uint8_t* from = panel + block / kUnit * kShape.unit_bytes() + kShape.quants_at(block % kUnit);
            each<4>([&](auto r) ALWAYS_LAMBDA {
                int8_t* at = (r < 2 ? low : high) + r % 2 * 16;
                if constexpr (kShape.bits == 8) {
                    each<8>([&](auto quad) ALWAYS_LAMBDA { vst1q_s8(at + quad * 32, quants(from, r, quad)); });
                } else {
                    each_quants(from, r, [&](auto quad, uint8x16_t q) ALWAYS_LAMBDA {
                        const bool signed_now = kShape.bytes() || !kShape.offset;
                        vst1q_u8(reinterpret_cast<uint8_t*>(at) + quad * 32, signed_now ? q : vsubq_u8(q, offset));
                    });
                }
            });
        }
        for (size_t half = 0; half < kHalves; ++half) {
            expand_scales(panel, static_cast<int>(half), first, last, to.scales[half]);
        }
    }
};
