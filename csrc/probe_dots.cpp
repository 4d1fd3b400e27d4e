// Loops that multiply int8 numbers in registers, so that nothing but the instruction limits them.
//
// Each keeps several sums that do not wait for each other. The empty asm statements stand for "this may have
// changed", so that no compiler takes the work out of the loop or leaves it undone.

#include "probe_dots.h"

#include <cstdint>

#include "probe.h"

#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : defined(__GNUC__) && __GNUC__ >= 11)
#include <immintrin.h>
#define STRETTO_X86_DOTS 1
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
// Older compilers lack these intrinsics, or have them only where the whole file is compiled for them.
#if defined(__clang__) ? __clang_major__ >= 16 : defined(__GNUC__) && __GNUC__ >= 10
#define STRETTO_ARM_DOTS 1
#endif
#endif

namespace stretto {
namespace {

double run_portable(int times) {
    constexpr int kCount = 256;
    alignas(64) int8_t a[kCount], b[kCount];
    for (int i = 0; i < kCount; ++i) a[i] = b[i] = static_cast<int8_t>(i);
    uint32_t sum = 0;
    for (int t = 0; t < times; ++t) {
        __asm__ volatile("" : : "r"(a), "r"(b) : "memory");
        for (int i = 0; i < kCount; ++i) sum += static_cast<uint32_t>(a[i] * b[i]);
    }
    __asm__ volatile("" : : "r"(sum));
    return static_cast<double>(times) * kCount;
}

// A loop over kSums vectors: STEP adds the products of `a` and `b` to `sum`. KEEP is the register class.
#define STRETTO_DOT(NAME, TARGET, VECTOR, KEEP, FILL, SUMS, MACS, STEP)                 \
    TARGET double NAME(int times) {                                                     \
        constexpr int kSums = SUMS;                                                     \
        VECTOR a = FILL(1), b = FILL(1), sums[kSums];                                   \
        for (VECTOR& sum : sums) sum = FILL(0);                                         \
        for (int t = 0; t < times; ++t) {                                               \
            for (VECTOR& sum : sums) {                                                  \
                __asm__ volatile("" : "+" KEEP(a), "+" KEEP(b));                        \
                sum = STEP;                                                             \
            }                                                                           \
        }                                                                               \
        for (VECTOR& sum : sums) __asm__ volatile("" : : KEEP(sum));                    \
        return static_cast<double>(times) * kSums * MACS;                               \
    }

#if defined(STRETTO_X86_DOTS)

#define STRETTO_TARGET(NAME) __attribute__((target(NAME)))

// pmaddubsw makes pairs in 16 bits, pmaddwd pairs of those in 32.
STRETTO_DOT(run_avx2, STRETTO_TARGET("avx2"), __m256i, "x", _mm256_set1_epi8, 8, 32,
            _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1))))
STRETTO_DOT(run_avxvnni, STRETTO_TARGET("avx2,avxvnni"), __m256i, "x", _mm256_set1_epi8, 12, 32,
            _mm256_dpbusd_avx_epi32(sum, a, b))
STRETTO_DOT(run_avx512vnni, STRETTO_TARGET("avx512f,avx512bw,avx512vnni"), __m512i, "v", _mm512_set1_epi8,
            12, 64, _mm512_dpbusd_epi32(sum, a, b))

// Six tiles of 16 × 16 sums, one of 16 rows of 64 bytes, one of 16 columns of 64 bytes.
STRETTO_TARGET("amx-tile,amx-int8") double run_amx(int times) {
    struct alignas(64) Shape {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(Shape) == 64, "the processor reads 64 bytes");
    static const Shape shape;  // in memory whole: GCC believes that only its first word is read
    _tile_loadconfig(&shape);  // all tiles are zero after it
    constexpr int kPart = 8;   // one is as much work as dozens of the vectors' rounds
    const int rounds = times / kPart + 1;
    for (int t = 0; t < rounds; ++t) {
        _tile_dpbssd(0, 6, 7);
        _tile_dpbssd(1, 6, 7);
        _tile_dpbssd(2, 6, 7);
        _tile_dpbssd(3, 6, 7);
        _tile_dpbssd(4, 6, 7);
        _tile_dpbssd(5, 6, 7);
    }
    _tile_release();
    return static_cast<double>(rounds) * 6 * 16 * 16 * 64;
}

#endif

#if defined(__aarch64__)
STRETTO_DOT(run_neon, , int8x16_t, "w", vdupq_n_s8, 8, 16,
            vreinterpretq_s8_s32(vpadalq_s16(vreinterpretq_s32_s8(sum),
                                             vmlal_high_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), a, b))))
#endif
#if defined(STRETTO_ARM_DOTS)
// With the architecture that GCC's intrinsics name: only then may they be inlined.
#define STRETTO_TARGET(NAME) __attribute__((target("arch=armv8.2-a" NAME)))
STRETTO_DOT(run_dotprod, STRETTO_TARGET("+dotprod"), int8x16_t, "w", vdupq_n_s8, 16, 16,
            vreinterpretq_s8_s32(vdotq_s32(vreinterpretq_s32_s8(sum), a, b)))
STRETTO_DOT(run_i8mm, STRETTO_TARGET("+i8mm"), int8x16_t, "w", vdupq_n_s8, 16, 32,
            vreinterpretq_s8_s32(vmmlaq_s32(vreinterpretq_s32_s8(sum), a, b)))
#endif

}  // namespace

std::vector<Dot> dots() {
    [[maybe_unused]] const CpuFeatures& f = cpu_features();
    std::vector<Dot> there;
#if defined(STRETTO_X86_DOTS)
    if (f.amx_int8) there.push_back({"amx-int8", run_amx});
    if (f.avx512vnni && f.avx512bw) there.push_back({"avx512vnni", run_avx512vnni});
    if (f.avxvnni) there.push_back({"avxvnni", run_avxvnni});
    if (f.avx2) there.push_back({"avx2", run_avx2});
#endif
#if defined(STRETTO_ARM_DOTS)
    if (f.i8mm) there.push_back({"i8mm", run_i8mm});
    if (f.dotprod) there.push_back({"dotprod", run_dotprod});
#endif
#if defined(__aarch64__)
    if (f.neon) there.push_back({"neon", run_neon});
#endif
    there.push_back({"portable", run_portable});
    return there;
}

}  // namespace stretto
