// Which kernels this machine can run.

#include <cstring>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace stretto {

namespace {

struct Candidate {
    const Kernels* kernels;
    bool (*runs)();
};

bool always() { return true; }

#if defined(__x86_64__)
// Not every compiler's builtin knows this name.
bool has_f16c() {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
// These ask the CPU, and the operating system whether it saves the registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
const Candidate kCandidates[] = {{&kAvx512, has_avx512}, {&kAvx2, has_avx2}, {&kPortable, always}};
#elif defined(__aarch64__)
bool has_dot() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1;  // asimddp
#else
    return true;  // every Apple machine with this architecture
#endif
}
const Candidate kCandidates[] = {{&kNeon, has_dot}, {&kPortable, always}};
#else
const Candidate kCandidates[] = {{&kPortable, always}};
#endif

}  // namespace

const Kernels* kernels_named(const char* name) {
    for (const Candidate& candidate : kCandidates) {
        if (!std::strcmp(candidate.kernels->name, name) && candidate.runs()) return candidate.kernels;
    }
    return nullptr;
}

const Kernels* best_kernels() {
    // Asked once: in a virtual machine the question can take as long as the work.
    static const Kernels* const best = [] {
        for (const Candidate& candidate : kCandidates) {
            if (candidate.runs()) return candidate.kernels;
        }
        return &kPortable;
    }();
    return best;
}

}  // namespace stretto
