// Prints the best kernel set of the machine that compiles it, for STRETTO_KERNEL_SETS=native in CMakeLists.txt. No part of the
// library.

#include <cstdio>

#include "hardware/features.cpp"
#include "kernels/kernels.h"

int main() {
    for (const char* name : stretto::kKernelNames) {
        if (!stretto::cpu_runs(name)) continue;
        std::fputs(name, stdout);
        return 0;
    }
    return 1;
}
