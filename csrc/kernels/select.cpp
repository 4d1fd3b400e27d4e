// Which kernels this machine can run. A build for one machine leaves sets out (STRETTO_KERNEL_SETS in CMakeLists.txt), which
// STRETTO_WITHOUT_… says.

#include <cstring>

#include "kernels/kernels.h"
#include "hardware/probe.h"

#if defined(__x86_64__)
#include "kernels/x86/amx.h"
#elif defined(__aarch64__)
#include "kernels/neon/i8mm.h"
#endif

namespace stretto {

namespace {

struct Candidate {
    const char* name;
    const Kernels* (*kernels)();
};

#if defined(__x86_64__)
#if !defined(STRETTO_WITHOUT_AMX)
// Made here and not in amx.cpp, whose code must not run before it is known that it can.
const Kernels* amx_kernels() {
    static const Kernels kernels = [] {
        Kernels table = kAvx512;
        table.name = "amx";
        table.lanes = amx::lanes;
        table.matmul = amx::matmul;
        return table;
    }();
    return &kernels;
}
#endif
const Candidate kCandidates[] = {
#if !defined(STRETTO_WITHOUT_AMX)
    {"amx", amx_kernels},
#endif
#if !defined(STRETTO_WITHOUT_AVX512)
    {"avx512", [] { return &kAvx512; }},
#endif
#if !defined(STRETTO_WITHOUT_AVX2)
    {"avx2", [] { return &kAvx2; }},
#endif
    {"portable", [] { return &kPortable; }},
};
#elif defined(__aarch64__)
#if !defined(STRETTO_WITHOUT_I8MM)
// Made here and not in i8mm.cpp, whose code must not run before it is known that it can.
const Kernels* i8mm_kernels() {
    static const Kernels kernels = [] {
        Kernels table = kNeon;
        table.name = "i8mm";
        table.lanes = i8mm::lanes;
        table.quantize = i8mm::quantize;
        table.matmul = i8mm::matmul;
        return table;
    }();
    return &kernels;
}
#endif
const Candidate kCandidates[] = {
#if !defined(STRETTO_WITHOUT_I8MM)
    {"i8mm", i8mm_kernels},
#endif
#if !defined(STRETTO_WITHOUT_NEON)
    {"neon", [] { return &kNeon; }},
#endif
    {"portable", [] { return &kPortable; }},
};
#else
const Candidate kCandidates[] = {{"portable", [] { return &kPortable; }}};
#endif

}  // namespace

const Kernels* kernels_named(const char* name) {
    for (const Candidate& candidate : kCandidates) {
        if (!std::strcmp(candidate.name, name) && cpu_runs(name)) return candidate.kernels();
    }
    return nullptr;
}

const Kernels* best_kernels() {
    // Asked once: in a virtual machine the question can take as long as the work.
    static const Kernels* const best = [] {
        for (const Candidate& candidate : kCandidates) {
            if (cpu_runs(candidate.name)) return candidate.kernels();
        }
        return &kPortable;
    }();
    return best;
}

}  // namespace stretto
