// Which instruction sets may be used: asked of the processor, and of the operating system, which must save
// the registers they need.

#include "hardware/probe.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#define STRETTO_X86 1
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <cstdint>

namespace stretto {
namespace {

[[maybe_unused]] inline bool has_all(uint64_t bits, uint64_t wanted) { return (bits & wanted) == wanted; }

#if defined(STRETTO_X86)

// The registers that the operating system saves, as XCR0 lists them.
constexpr uint64_t kAvxState = 0x6;       // xmm, ymm
constexpr uint64_t kAvx512State = 0xe6;   // and the masks, zmm
constexpr uint64_t kTileState = 0x60000;  // the tiles and their shape

uint64_t saved_registers() {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

// Linux lets a process use tiles only after it has asked for them.
bool tiles_permitted() {
#if defined(__linux__)
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
}

CpuFeatures detect() {
    CpuFeatures f;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
    constexpr uint32_t kOsXsave = 1u << 27, kAvx = 1u << 28;
    if (!has_all(c, kOsXsave | kAvx)) return f;
    const uint64_t saved = saved_registers();
    if (!has_all(saved, kAvxState)) return f;
    f.fma = c >> 12 & 1;
    f.f16c = c >> 29 & 1;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
    const uint32_t subleaves = a;
    f.avx2 = b >> 5 & 1;
    if (has_all(saved, kAvx512State) && (b >> 16 & 1)) {
        f.avx512f = true;
        f.avx512dq = b >> 17 & 1;
        f.avx512bw = b >> 30 & 1;
        f.avx512vl = b >> 31 & 1;
        f.avx512vnni = c >> 11 & 1;
    }
    if (has_all(saved, kTileState) && (d >> 24 & 1) && tiles_permitted()) {
        f.amx_tile = true;
        f.amx_bf16 = d >> 22 & 1;
        f.amx_int8 = d >> 25 & 1;
    }
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        f.avxvnni = f.avx2 && (a >> 4 & 1);
        f.avx512bf16 = f.avx512f && (a >> 5 & 1);
    }
    return f;
}

#elif defined(__aarch64__) && defined(__linux__)

CpuFeatures detect() {
    // Bits of Linux, spelt out because older headers lack some.
    const uint64_t bits = getauxval(AT_HWCAP);
    const uint64_t more = getauxval(AT_HWCAP2);
    CpuFeatures f;
    f.neon = bits >> 1 & 1;
    f.fp16 = (bits >> 9 & 1) && (bits >> 10 & 1);  // scalars and vectors
    f.dotprod = bits >> 20 & 1;
    f.sve = bits >> 22 & 1;
    f.sve2 = more >> 1 & 1;
    f.i8mm = more >> 13 & 1;
    f.bf16 = more >> 14 & 1;
    return f;
}

#elif defined(__aarch64__) && defined(__APPLE__)

bool present(const char* name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value;
}

bool is_known(const char* name) {
    size_t size = 0;
    return sysctlbyname(name, nullptr, &size, nullptr, 0) == 0;
}

CpuFeatures detect() {
    CpuFeatures f;
    f.neon = true;
    f.fp16 = present("hw.optional.arm.FEAT_FP16") || present("hw.optional.neon_fp16");
    // macOS 11 does not know the name, and every ARM machine that it runs on has them.
    f.dotprod = present("hw.optional.arm.FEAT_DotProd") || !is_known("hw.optional.arm.FEAT_DotProd");
    f.i8mm = present("hw.optional.arm.FEAT_I8MM");
    f.bf16 = present("hw.optional.arm.FEAT_BF16");
    return f;
}

#else

CpuFeatures detect() { return CpuFeatures(); }

#endif

}  // namespace

const CpuFeatures& cpu_features() {
    static const CpuFeatures features = detect();
    return features;
}

bool cpu_runs(const std::string& kernel_set) {
    const CpuFeatures& f = cpu_features();
    const bool avx2 = f.avx2 && f.fma && f.f16c;
    const bool avx512 = avx2 && f.avx512f && f.avx512bw && f.avx512vl && f.avx512dq && f.avx512vnni;
    const struct {
        const char* name;
        bool runs;
    } sets[] = {
        {"amx", avx512 && f.amx_int8}, {"avx512", avx512},  {"avx2", avx2},
        {"i8mm", f.dotprod && f.i8mm}, {"neon", f.dotprod}, {"portable", true},
    };
    for (const auto& set : sets) {
        if (kernel_set == set.name) return set.runs;
    }
    return false;
}

std::vector<std::string> cpu_feature_names() {
    const CpuFeatures& f = cpu_features();
    const struct {
        bool there;
        const char* name;
    } all[] = {
        {f.avx2, "avx2"},
        {f.fma, "fma"},
        {f.f16c, "f16c"},
        {f.avx512f, "avx512f"},
        {f.avx512bw, "avx512bw"},
        {f.avx512vl, "avx512vl"},
        {f.avx512dq, "avx512dq"},
        {f.avx512vnni, "avx512vnni"},
        {f.avx512bf16, "avx512bf16"},
        {f.avxvnni, "avxvnni"},
        {f.amx_tile, "amx-tile"},
        {f.amx_int8, "amx-int8"},
        {f.amx_bf16, "amx-bf16"},
        {f.neon, "neon"},
        {f.dotprod, "dotprod"},
        {f.i8mm, "i8mm"},
        {f.fp16, "fp16"},
        {f.bf16, "bf16"},
        {f.sve, "sve"},
        {f.sve2, "sve2"},
    };
    std::vector<std::string> names;
    for (const auto& feature : all) {
        if (feature.there) names.emplace_back(feature.name);
    }
    return names;
}

}  // namespace stretto
