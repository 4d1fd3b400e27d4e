// Loops that multiply int8 numbers in registers, so that nothing but the instruction limits them.
//
// Each keeps more sums than its latency in cycles times the instructions that start in a cycle, so that none waits
// for another. The loops over vectors are assembly: compilers copy the sums of intrinsics from register to register,
// two copies for each product in the case observed, and may remove work whose result is not used.

#include "hardware/dots.h"

#include <cstdint>

#include "hardware/probe.h"

// Older compilers and assemblers do not know the newer instructions.
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : defined(__GNUC__) && __GNUC__ >= 11)
#include <immintrin.h>
#define STRETTO_X86_DOTS 1
#endif

namespace stretto {
namespace {

constexpr int kCount = 256;

// Numbers to multiply, none of them special.
struct Numbers {
    alignas(64) int8_t values[kCount] = {};
    constexpr Numbers() {
        for (int i = 0; i < kCount; ++i) values[i] = static_cast<int8_t>(37 * i + 11);
    }
};
constexpr Numbers kNumbers;

double run_portable(int times) {
    const int8_t *a = kNumbers.values, *b = kNumbers.values;
    uint32_t sum = 0;
    for (int t = 0; t < times; ++t) {
        // "These may have changed": no round is the same as the one before.
        __asm__ volatile("" : "+r"(a), "+r"(b) : : "memory");
        for (int i = 0; i < kCount; ++i) sum += static_cast<uint32_t>(a[i] * b[i]);
    }
    __asm__ volatile("" : : "r"(sum));
    return static_cast<double>(times) * kCount;
}

// A function that runs STEPS `times` times, MACS multiply-accumulates each time. LOAD fills the operands from the
// address in %1.
#define STRETTO_DOT(NAME, TARGET, MACS, LOAD, STEPS)                                        \
    TARGET double NAME(int times) {                                                         \
        uint64_t left = static_cast<uint64_t>(times);                                       \
        __asm__ volatile(LOAD "1:\n\t" STEPS STRETTO_NEXT                                   \
                         : "+r"(left)                                                       \
                         : "r"(kNumbers.values)                                             \
                         : "memory", "cc", STRETTO_REGISTERS);                              \
        return static_cast<double>(times) * (MACS);                                         \
    }
#define STRETTO_EIGHT(STEP) \
    STEP(0, 8) STEP(1, 9) STEP(2, 10) STEP(3, 11) STEP(4, 12) STEP(5, 13) STEP(6, 8) STEP(7, 9)
#define STRETTO_FOURTEEN(STEP)                                                           \
    STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9) STEP(10) \
    STEP(11) STEP(12) STEP(13)

#if defined(STRETTO_X86_DOTS)

#define STRETTO_TARGET(NAME) __attribute__((target(NAME)))
#define STRETTO_NEXT "dec %0\n\tjnz 1b\n\tvzeroupper\n\t"
#define STRETTO_REGISTERS                                                                             \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
        "xmm12", "xmm13", "xmm14", "xmm15"
#define STRETTO_YMM "vmovdqa (%1), %%ymm14\n\tvmovdqa 32(%1), %%ymm15\n\t"
#define STRETTO_ZMM "vmovdqa64 (%1), %%zmm14\n\tvmovdqa64 64(%1), %%zmm15\n\t"

// Pairs of products, added in 16 bits as the kernels do with weights of 4 bits; they also widen the sums now and
// then. Only the addition waits for the one before, for a cycle, so eight sums are more than enough.
#define STRETTO_MADDUBS(SUM, PRODUCT)                    \
    "vpmaddubsw %%ymm14, %%ymm15, %%ymm" #PRODUCT "\n\t" \
    "vpaddw %%ymm" #PRODUCT ", %%ymm" #SUM ", %%ymm" #SUM "\n\t"
STRETTO_DOT(run_avx2, STRETTO_TARGET("avx2"), 8 * 32, STRETTO_YMM, STRETTO_EIGHT(STRETTO_MADDUBS))
// Five cycles at most, two started in each: ten sums would do.
#define STRETTO_VEX_DPBUSD(SUM) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" #SUM "\n\t"
STRETTO_DOT(run_avxvnni, STRETTO_TARGET("avx2,avxvnni"), 14 * 32, STRETTO_YMM,
            STRETTO_FOURTEEN(STRETTO_VEX_DPBUSD))
#define STRETTO_DPBUSD(SUM) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #SUM "\n\t"
STRETTO_DOT(run_avx512vnni, STRETTO_TARGET("avx512f,avx512bw,avx512vnni"), 14 * 64, STRETTO_ZMM,
            STRETTO_FOURTEEN(STRETTO_DPBUSD))

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

#define STRETTO_NEXT "subs %0, %0, #1\n\tb.ne 1b\n\t"
#define STRETTO_REGISTERS                                                                                     \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v30", \
        "v31"
#define STRETTO_LOAD "ldp q30, q31, [%1]\n\t"

#define STRETTO_SMLAL(SUM, PRODUCT)                    \
    "smull v" #PRODUCT ".8h, v30.8b, v31.8b\n\t"       \
    "smlal2 v" #PRODUCT ".8h, v30.16b, v31.16b\n\t"    \
    "sadalp v" #SUM ".4s, v" #PRODUCT ".8h\n\t"
STRETTO_DOT(run_neon, , 8 * 16, STRETTO_LOAD, STRETTO_EIGHT(STRETTO_SMLAL))

// Assemblers refuse what the whole file is not compiled for, so these are in numbers: sdot and smmla, of 30 and 31.
// Four cycles at most, four started in each.
#define STRETTO_SIXTEEN(STEP) STRETTO_FOURTEEN(STEP) STEP(14) STEP(15)
#define STRETTO_SDOT(SUM) ".inst 0x4e9f97c0 + " #SUM "\n\t"
#define STRETTO_SMMLA(SUM) ".inst 0x4e9fa7c0 + " #SUM "\n\t"
STRETTO_DOT(run_dotprod, , 16 * 16, STRETTO_LOAD, STRETTO_SIXTEEN(STRETTO_SDOT))
STRETTO_DOT(run_i8mm, , 16 * 32, STRETTO_LOAD, STRETTO_SIXTEEN(STRETTO_SMMLA))

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
#if defined(__aarch64__)
    if (f.i8mm) there.push_back({"i8mm", run_i8mm});
    if (f.dotprod) there.push_back({"dotprod", run_dotprod});
    if (f.neon) there.push_back({"neon", run_neon});
#endif
    there.push_back({"portable", run_portable});
    return there;
}

}  // namespace stretto
