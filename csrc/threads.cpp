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
    asm volatile("isb");  // about thirty cycles on a Neoverse N1, where "yield" does nothing at all
#endif
}

// A pause takes about a hundred cycles on x86-64, thirty on ARM and next to none elsewhere.
#if defined(__x86_64__)
constexpr int kSpins = 2000, kIdleSpins = 20000;
#else
constexpr int kSpins = 4000, kIdleSpins = 20000;
#endif
constexpr int kCrowdedSpins = 20;  // with more threads than cores, who is waited for may be waiting for this core

}  // namespace

// Spins until `done`, giving the core away once it takes long.
template <typename Done>
void Pool::spin(Done done) const {
    for (int i = 0; !done(); ++i) {
        if (i < spins_) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
}

Pool::Pool(int threads) : size_(threads) {
    const unsigned cores = std::thread::hardware_concurrency();
    spins_ = cores && static_cast<unsigned>(threads) > cores ? kCrowdedSpins : kSpins;
    while (1 << rounds_ < threads) ++rounds_;
    signals_.reset(new Signal[static_cast<size_t>(threads) * rounds_ + 1]);
    turns_.reset(new Signal[threads]);
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

// In round r each thread tells the one 2^r further on that it is there, and waits for the one 2^r before it. After
// the last round it has heard of all, in log2(size) steps and without a number that everyone writes to.
void Pool::barrier(int thread) {
    const unsigned turn = turns_[thread].turn.load(std::memory_order_relaxed) + 1;
    turns_[thread].turn.store(turn, std::memory_order_relaxed);
    for (int round = 0; round < rounds_; ++round) {
        const int next = (thread + (1 << round)) % size_;
        signals_[next * rounds_ + round].turn.store(turn, std::memory_order_release);
        const std::atomic<unsigned>& heard = signals_[thread * rounds_ + round].turn;
        // Who is ahead may already have signalled the next barrier. The difference survives wrapping around.
        spin([&] { return static_cast<int>(heard.load(std::memory_order_acquire) - turn) >= 0; });
    }
}

}  // namespace stretto
