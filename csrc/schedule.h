// How the operating system shares processors among threads.

#pragma once

#include <cstdint>

namespace stretto {

// Give the calling thread, and those that it starts, turns of `nanoseconds` on a busy processor: one that wakes up then
// waits for at most so long. Returns whether that was possible: Linux takes turns of 0.1 to 100 ms since 6.12.
bool set_time_slice(uint64_t nanoseconds);

}  // namespace stretto
