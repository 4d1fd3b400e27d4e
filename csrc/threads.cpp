#include "threads.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace stretto {

namespace {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

constexpr int kSpins = 4000;        // at a barrier, before letting others have the core
constexpr int kIdleSpins = 20000;   // for a job, before going to sleep

// Spins until `done`, giving the core away once it takes long.
template <typename Done>
void spin(Done done) {
    for (int i = 0; !done(); ++i) {
        if (i < kSpins) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
}

}  // namespace

Pool::Pool(int threads) : size_(threads) {
    try {
        for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
    } catch (...) {  // the system gives no more; those that run must not be left waiting
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Pool::run(const std::function<void(int)>& job) {
    if (size_ == 1) return job(0);
    job_ = &job;
    running_.store(size_ - 1, std::memory_order_relaxed);
    {
        std::lock_guard<std::mutex> lock(mutex_);  // so that nobody falls asleep between looking and waiting
        generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job(0);
    spin([this] { return running_.load(std::memory_order_acquire) == 0; });
}

void Pool::work(int thread) {
    unsigned seen = 0;
    for (;;) {
        int spins = 0;
        while (generation_.load(std::memory_order_acquire) == seen && !stop_.load(std::memory_order_relaxed)) {
            if (++spins < kIdleSpins) {
                relax();
                continue;
            }
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return generation_.load() != seen || stop_; });
        }
        if (stop_) return;
        seen = generation_.load(std::memory_order_acquire);
        (*job_)(thread);
        running_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

void Pool::barrier() {
    if (size_ == 1) return;
    const unsigned turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        turn_.store(turn + 1, std::memory_order_release);
        return;
    }
    spin([&] { return turn_.load(std::memory_order_acquire) != turn; });
}

}  // namespace stretto
