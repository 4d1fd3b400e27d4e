// A number that one thread changes and another one waits for: the waiter spins for a while, then it sleeps.
//
// Spinning is quick where every thread has a core. Where other processes want the cores, the thread that is waited for may
// have been preempted for milliseconds, and spinning would take time from it; so no thread spins for longer than a
// fraction of that.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif

namespace stretto {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

// Lets the core do something else for some tens of cycles.
inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // about thirty cycles on a Neoverse N1, where "yield" does nothing at all
#endif
}

class alignas(64) Signal {
public:
    unsigned load() const { return value_.load(std::memory_order_acquire); }
    // Before others look at it.
    void reset(unsigned value) { value_.store(value, std::memory_order_relaxed); }

    void set(unsigned value) {
        value_.store(value);
        wake();
    }
    // Wakes the waiting thread when it reaches zero.
    void decrement() {
        if (value_.fetch_sub(1) == 1) wake();
    }

    // Returns when `done(value)`: after at most `spin` of spinning it sleeps. Returns how long it spun, without the first
    // microsecond or so, which takes no look at the clock. One thread may wait at a time.
    template <typename Done>
    Nanoseconds wait(Done done, Nanoseconds spin) {
        for (int i = 0; i < kQuickLooks; ++i) {
            if (done(load())) return Nanoseconds(0);
            relax();
        }
        const Clock::time_point begun = Clock::now();
        Nanoseconds spun(0);
        while (spun < spin) {
            for (int i = 0; i < kLooksPerClock; ++i) {
                if (done(load())) return Clock::now() - begun;
                relax();
            }
            spun = Clock::now() - begun;
        }
        sleep(done);
        return spun;
    }

private:
    static constexpr int kQuickLooks = 60, kLooksPerClock = 16;

    // The waiter sets its sleep flag and then reads the value again; the other thread changes the value and then reads
    // the flag. In this order (all are sequentially consistent) at least one of them sees the other's write.
#if defined(__linux__)
    template <typename Done>
    void sleep(Done done) {
        sleeping_.store(true);
        for (unsigned value; !done(value = value_.load());) {
            syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
        }
        sleeping_.store(false, std::memory_order_relaxed);
    }
    void wake() {
        if (sleeping_.load()) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
    static_assert(sizeof(std::atomic<unsigned>) == 4, "a futex is a word of 32 bits");
#else
    template <typename Done>
    void sleep(Done done) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.store(true);
        changed_.wait(lock, [&] { return done(value_.load()); });
        sleeping_.store(false, std::memory_order_relaxed);
    }
    void wake() {
        if (!sleeping_.load()) return;
        std::lock_guard<std::mutex> lock(mutex_);
        changed_.notify_all();
    }
    std::mutex mutex_;
    std::condition_variable changed_;
#endif

    std::atomic<unsigned> value_{0};
    std::atomic<bool> sleeping_{false};
};

}  // namespace stretto
