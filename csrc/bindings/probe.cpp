// The probe as Python functions. Every argument is checked here.

#include "bindings/probe.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings/unlocked.h"
#include "hardware/probe.h"

namespace nb = nanobind;

namespace {

constexpr int kMostThreads = 4096;
constexpr double kMostSeconds = 60.0;

void check(int threads, double seconds) {
    if (threads < 1 || threads > kMostThreads) {
        throw nb::value_error(("threads must be 1 to " + std::to_string(kMostThreads)).c_str());
    }
    if (!(seconds > 0.0 && seconds <= kMostSeconds)) {
        throw nb::value_error("seconds must be above 0, at most 60");
    }
}

nb::tuple names(const std::vector<std::string>& words) {
    nb::list list;
    for (const std::string& word : words) list.append(word);
    return nb::tuple(list);
}

std::vector<double> checked_read_bandwidth(size_t nbytes, const std::vector<int>& threads, double seconds) {
    for (const int n : threads) check(n, seconds);
    stretto::Unlocked unlocked;
    return stretto::read_bandwidth(nbytes, threads, seconds);
}

double checked_integer_peak(const std::string& instruction, int threads, double seconds) {
    check(threads, seconds);
    stretto::Unlocked unlocked;
    return stretto::integer_peak(instruction, threads, seconds);
}

}  // namespace

void stretto::bind_probe(nb::module_& m) {
    m.def("cpu_features", [] { return names(stretto::cpu_feature_names()); },
          "The instruction sets that this process may use.");
    m.def("dot_instructions", [] { return names(stretto::dot_instructions()); },
          "The ways to multiply int8 that work here, the fastest first.");
    m.def("read_bandwidth", &checked_read_bandwidth, nb::arg("nbytes"), nb::arg("threads"),
          nb::arg("seconds"),
          "GB/s of reading a buffer, one figure for each number of threads, in about `seconds` each.");
    m.def("integer_peak", &checked_integer_peak, nb::arg("instruction"), nb::arg("threads"),
          nb::arg("seconds"),
          "GMAC/s of int8 multiply-accumulates, in about `seconds`.");
}
