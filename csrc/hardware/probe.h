// This processor's instruction sets and speed: reading memory, multiplying int8.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace stretto {

// Instruction sets that the processor has and the operating system lets this process use.
struct CpuFeatures {
    // x86-64
    bool avx2 = false, fma = false, f16c = false;
    bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
    bool avx512vnni = false, avx512bf16 = false, avxvnni = false;
    bool amx_tile = false, amx_int8 = false, amx_bf16 = false;
    // ARM, 64 bits
    bool neon = false, dotprod = false, i8mm = false, fp16 = false, bf16 = false, sve = false, sve2 = false;
};

// Found out once. Where there is AMX this asks Linux for the permission to use it, for the whole process.
const CpuFeatures& cpu_features();
// Whether this machine has the instructions of a kernel set, which may be compiled or not.
bool cpu_runs(const std::string& kernel_set);
// The names of those that are there, in the order of the struct.
std::vector<std::string> cpu_feature_names();

// Ways to multiply int8 that work here, the fastest first; the last is always "portable".
std::vector<std::string> dot_instructions();
// Multiply-accumulates in GMAC/s with `threads` threads, in about `seconds`. The instruction must be one of
// those above: another one throws std::invalid_argument.
double integer_peak(const std::string& instruction, int threads, double seconds);

// GB/s of reading a buffer of `nbytes` again and again, one figure for each number of threads, in about
// `seconds` each. `nbytes` must be at least kReadChunk for each thread.
constexpr size_t kReadChunk = size_t{1} << 18;
std::vector<double> read_bandwidth(size_t nbytes, const std::vector<int>& threads, double seconds);

}  // namespace stretto
