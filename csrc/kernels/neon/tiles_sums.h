// The sums of a tile and what becomes of them, with intrinsics. Included by tiles.h.

// R × 4 rows × C columns that add block after block.
template <Layout L, int R, int C, size_t Lanes>
struct Sums {
    static constexpr Shape kShape = shape_of(L);
    static constexpr int kGroups = static_cast<int>(kShape.groups);

    float32x4_t total[C][R];
    int32x4_t dots[kGroups][C][R];

    ALWAYS void load(const float* out, size_t stride, size_t rows) {
        each<C>([&](auto c) ALWAYS_LAMBDA {
            float some[4 * R] = {};
            const float* from = out + c * stride;
            if (rows < 4 * R) {
                std::memcpy(some, from, rows * sizeof(float));
                from = some;
            }
            each<R>([&](auto r) ALWAYS_LAMBDA { total[c][r] = vld1q_f32(from + 4 * r); });
        });
    }
    ALWAYS void clear() {
        each<C>([&](auto c) ALWAYS_LAMBDA { each<R>([&](auto r) ALWAYS_LAMBDA { total[c][r] = vdupq_n_f32(0.0f); }); });
    }
    ALWAYS void store(float* out, size_t stride, size_t rows) const {
        each<C>([&](auto c) ALWAYS_LAMBDA {
            float some[4 * R];
            float* to = rows < 4 * R ? some : out + c * stride;
            each<R>([&](auto r) ALWAYS_LAMBDA { vst1q_f32(to + 4 * r, total[c][r]); });
            if (rows < 4 * R) std::memcpy(out + c * stride, some, rows * sizeof(float));
        });
    }

    // dots += quants × one quad of each column
    template <int Quad>
    ALWAYS void dot(int r, int8x16_t w, const int8x16_t* x) {
        constexpr int g = kGroups == 1 ? 0 : Quad / 4;
        each<C>([&](auto c) ALWAYS_LAMBDA { dots[g][c][r] = vdotq_laneq_s32(dots[g][c][r], w, x[c], Quad % 4); });
    }

    // Group g's sums with their scales and minima go to the totals.
    template <typename Bias>
    ALWAYS void scale(int g, int r, const Inputs& a, float32x4_t d, Bias bias, [[maybe_unused]] float32x4_t m) {
        float32x4_t by, sum;
        if constexpr (Lanes == 1) {
            by = vdupq_n_f32(*a.scale);
            sum = kGroups == 1 ? vdupq_n_f32(*a.scaled) : vmulq_n_f32(by, static_cast<float>(a.sums[g]));
        } else if constexpr (C <= 2) {
            // Two columns may be the last of those that stand together: nothing behind them is read.
            const float32x2_t none = vdup_n_f32(0.0f);
            by = vcombine_f32(vld1_f32(a.scale), none);
            if constexpr (kGroups == 1) {
                sum = vcombine_f32(vld1_f32(a.scaled), none);
            } else {
                const int32x4_t sums = vld1q_s32(a.sums);
                sum = vmulq_f32(by, vcvtq_f32_s32(g == 0 ? vuzp1q_s32(sums, sums) : vuzp2q_s32(sums, sums)));
            }
        } else {
            by = vld1q_f32(a.scale);
            if constexpr (kGroups == 1) {
                sum = vld1q_f32(a.scaled);
            } else {
                const int32x4x2_t sums = vld2q_s32(a.sums);
                sum = vmulq_f32(by, vcvtq_f32_s32(sums.val[g]));
            }
        }
        each<C>([&](auto c) ALWAYS_LAMBDA {
            if constexpr (kShape.min) total[c][r] = vfmaq_laneq_f32(total[c][r], m, sum, c);
            const float32x4_t part = vfmaq_f32(bias(), vreinterpretq_f32_s32(dots[g][c][r]), d);
            total[c][r] = vfmaq_laneq_f32(total[c][r], part, by, c);
        });
    }
};
