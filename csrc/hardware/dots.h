// Loops that do nothing but multiply int8 numbers and add them up, one for each way of doing it.
#pragma once

#include <vector>

namespace stretto {

struct Dot {
    const char* name;
    double (*run)(int times);  // says how many multiply-accumulates it did
};

// Those that work here, the fastest first.
std::vector<Dot> dots();

}  // namespace stretto
