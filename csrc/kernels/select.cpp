// Which kernels this machine can run.

#include <cstring>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/amx.h"
#include "probe.h"
#elif defined(__aarch64__)
#include "kernels/i8mm.h"
#include "probe.h"
#endif

namespace stretto {

namespace {

struct Candidate {
    const char* name;
    bool (*runs)();
    const Kernels* (*kernels)();
};

bool always() { return true; }

#if defined(__x86_64__)
// These ask the CPU, and the operating system whether it saves the registers and permits tiles.
bool has_avx2() {
    const CpuFeatures& f = cpu_features();
    return f.avx2 && f.fma && f.f16c;
}
bool has_avx512() {
    const CpuFeatures& f = cpu_features();
    return has_avx2() && f.avx512f && f.avx512bw && f.avx512vl && f.avx512dq && f.avx512vnni;
}
bool has_amx() { return has_avx512() && cpu_features().amx_int8; }

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
const Candidate kCandidates[] = {
    {"amx", has_amx, amx_kernels},
    {"avx512", has_avx512, [] { return &kAvx512; }},
    {"avx2", has_avx2, [] { return &kAvx2; }},
    {"portable", always, [] { return &kPortable; }},
};
#elif defined(__aarch64__)
bool has_dot() { return cpu_features().dotprod; }
bool has_i8mm() { return has_dot() && cpu_features().i8mm; }

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
const Candidate kCandidates[] = {
    {"i8mm", has_i8mm, i8mm_kernels},
    {"neon", has_dot, [] { return &kNeon; }},
    {"portable", always, [] { return &kPortable; }},
};
#else
const Candidate kCandidates[] = {{"portable", always, [] { return &kPortable; }}};
#endif

}  // namespace

const Kernels* kernels_named(const char* name) {
    for (const Candidate& candidate : kCandidates) {
        if (!std::strcmp(candidate.name, name) && candidate.runs()) return candidate.kernels();
    }
    return nullptr;
}

const Kernels* best_kernels() {
    // Asked once: in a virtual machine the question can take as long as the work.
    static const Kernels* const best = [] {
        for (const Candidate& candidate : kCandidates) {
            if (candidate.runs()) return candidate.kernels();
        }
        return &kPortable;
    }();
    return best;
}

}  // namespace stretto
