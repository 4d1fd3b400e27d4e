#include "bindings/unlocked.h"

#include <atomic>
#include <chrono>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace stretto {

namespace {

std::atomic<bool> exiting{false};
std::atomic<int> n_unlocked{0};  // raised and lowered by threads that have the lock

// A forked child has none of the threads that are without the lock in its parent; the one that forks has it.
void count_anew_in_children() {
#if !defined(_WIN32)
    static const int failed = pthread_atfork(nullptr, nullptr, [] { n_unlocked = 0; });
    static_cast<void>(failed);
#endif
}

}  // namespace

Unlocked::Unlocked() {
    if (exiting) return;
    count_anew_in_children();
    ++n_unlocked;
    state_ = PyEval_SaveThread();
}

Unlocked::~Unlocked() {
    if (!state_) return;
    PyEval_RestoreThread(state_);
    --n_unlocked;
}

bool is_finishing() { return exiting; }

void finish_unlocked(double seconds) {
    exiting = true;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (n_unlocked && std::chrono::steady_clock::now() < end) {
        PyThreadState* state = PyEval_SaveThread();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        PyEval_RestoreThread(state);
    }
}

}  // namespace stretto
