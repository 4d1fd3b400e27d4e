// Cycles that vector instructions of a 64-bit ARM core take, each many times over on independent registers, or in a
// chain on one: `make bench-instructions`. Writes JSON, as benchmarks/raw/instructions-neoverse-n1.json.
//
// A cycle is the time of an addition in a chain of additions, measured just before and after. The best of many runs
// counts, since a busy neighbour can only make an instruction look slower.

#include <algorithm>
#include <cstdio>
#include <ctime>

namespace {

constexpr int kLoops = 20000, kCopies = 8, kRuns = 200;

double now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

alignas(64) char memory[1024];

// A loop over eight copies of an instruction; `text` has their registers.
#define STRETTO_LOOP(function, text)                                                                    \
    void function() {                                                                                   \
        long n = kLoops;                                                                                \
        asm volatile("1:\n" text "subs %0, %0, #1\nb.ne 1b\n"                                           \
                     : "+r"(n)                                                                          \
                     : "r"(memory)                                                                      \
                     : "cc", "memory", "x9", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16");    \
    }
#define EIGHT(head, tail)                                                                                       \
    head "v0" tail "\n" head "v1" tail "\n" head "v2" tail "\n" head "v3" tail "\n" head "v4" tail "\n" head "v5" \
         tail "\n" head "v6" tail "\n" head "v7" tail "\n"
#define CHAIN(one) one one one one one one one one

STRETTO_LOOP(chained_add, CHAIN("add x9, x9, #1\n"))
STRETTO_LOOP(sdot, EIGHT("sdot ", ".4s, v16.16b, v17.4b[1]"))
STRETTO_LOOP(sdot_chain, CHAIN("sdot v0.4s, v16.16b, v17.4b[1]\n"))
STRETTO_LOOP(fmla, EIGHT("fmla ", ".4s, v16.4s, v17.s[1]"))
STRETTO_LOOP(and_, EIGHT("and ", ".16b, v16.16b, v17.16b"))
STRETTO_LOOP(zip1, EIGHT("zip1 ", ".16b, v16.16b, v17.16b"))
STRETTO_LOOP(tbl, EIGHT("tbl ", ".16b, {v16.16b}, v17.16b"))
STRETTO_LOOP(ushr, EIGHT("ushr ", ".16b, v16.16b, #4"))
STRETTO_LOOP(sshll, EIGHT("sshll ", ".4s, v16.4h, #13"))
STRETTO_LOOP(fcvtl, EIGHT("fcvtl ", ".4s, v16.4h"))
STRETTO_LOOP(scvtf, EIGHT("scvtf ", ".4s, v16.4s"))
STRETTO_LOOP(mla, EIGHT("mla ", ".4s, v16.4s, v17.4s"))
STRETTO_LOOP(load, CHAIN("ldr q16, [%1]\n"))
STRETTO_LOOP(store, "str q16, [%1]\nstr q16, [%1, #16]\nstr q16, [%1, #32]\nstr q16, [%1, #48]\n"
                    "str q16, [%1, #64]\nstr q16, [%1, #80]\nstr q16, [%1, #96]\nstr q16, [%1, #112]\n")

#undef CHAIN
#undef EIGHT
#undef STRETTO_LOOP

struct Instruction {
    const char* name;
    void (*run)();
};

const Instruction kInstructions[] = {
    {"`sdot` by lane", sdot},
    {"`fmla` by lane", fmla},
    {"`and`", and_},
    {"`zip1`", zip1},
    {"`tbl`", tbl},
    {"a load of 16 bytes", load},
    {"a store of 16 bytes", store},
    {"`sdot` after `sdot` on one sum", sdot_chain},
    {"`ushr`", ushr},
    {"`sshll`", sshll},
    {"`fcvtl`", fcvtl},
    {"`scvtf`", scvtf},
    {"`mla` of integers", mla},
};

double seconds_of(void (*run)()) {
    double best = 1e9;
    for (int i = 0; i < kRuns; ++i) {
        const double start = now();
        run();
        best = std::min(best, now() - start);
    }
    return best;
}

}  // namespace

int main() {
    const double cycle = seconds_of(chained_add);
    std::printf("{\n \"ghz\": %.2f,\n \"cycles\": {\n", 1e-9 * kLoops * kCopies / cycle);
    const char* separator = "";
    for (const Instruction& one : kInstructions) {
        const double cycles = seconds_of(one.run) / std::min(cycle, seconds_of(chained_add));
        std::printf("%s  \"%s\": %.2f", separator, one.name, cycles);
        separator = ",\n";
    }
    std::printf("\n }\n}\n");
}
