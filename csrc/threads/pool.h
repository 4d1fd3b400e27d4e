// A pool of threads that all run the same function, and a barrier for them to meet at.
//
// The caller is thread 0. The others spin briefly for the next job and then sleep, so an idle pool costs
// nothing and a decoding one loses no time to waking up. On a busy machine fewer threads than there are may get more done:
// how many run is decided between jobs (governor.h).
//
// A forked child has no threads but the one that forked. A pool that was made before throws there instead of waiting for
// the others, and its end waits for none.
//
// One thread at a time may run jobs. Where several want to, they hold a `Turn`.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "threads/governor.h"
#include "threads/wake.h"

namespace stretto {

// Whether a job counts for the number of threads. One that reads a file does not: its threads wait for the disk.
enum class Measured { kYes, kNo };

class Pool {
public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // The most threads it uses.
    int size() const { return size_; }
    // How many run the current job, or the next one if none is running.
    int active() const { return active_.load(std::memory_order_relaxed); }
    // Runs job(0) here and job(1) … job(active − 1) on the others; returns when all are done. Jobs of equal work may
    // share a `kind` of their own, by which numbers of threads are compared better.
    void run(const std::function<void(int)>& job, Measured measured = Measured::kYes, size_t kind = 0);
    // All threads of a running job wait here for each other; each says which one it is.
    void barrier(int thread);

private:
    friend class Turn;
    // What a thread has for itself, on cache lines of its own.
    struct alignas(64) Worker {
        Signal job;                    // counts those it has been given
        unsigned barriers = 0;         // that it has been at
        Nanoseconds computed{0};       // in the last job
        Nanoseconds spun{0};           // at barriers in the current job
        std::atomic<int> cpu{-1};      // where it ran when the last job began
    };

    bool is_forked() const;
    void work(int thread);
    void run_job(int thread);
    void leave_shared_cpu(int thread);
    void stop();

    int size_;
    unsigned forks_;                      // of the process and those before it, when the pool was made
    std::atomic<int> active_;             // changed by the thread that runs jobs, read by others too
    Nanoseconds spin_;                    // at barriers, before sleeping
    unsigned jobs_ = 0;
    Governor governor_;
    std::vector<std::thread> threads_;
    const std::function<void(int)>* job_ = nullptr;
    std::unique_ptr<Worker[]> workers_;
    std::unique_ptr<Signal[]> signals_;   // [thread][round of a barrier]
    int rounds_ = 0;                      // that a barrier of all threads takes
    Signal running_;                      // workers that have not finished the job
    std::atomic<bool> stop_{false};
    std::mutex now_, next_;               // of turns: who has one, and who gets the next
};

// Keeps a pool, if there is one, for one thread while it lives. Whoever waits gets it next, also from a thread that asks
// for another turn as soon as its own is over.
class Turn {
public:
    explicit Turn(Pool* pool) : pool_(pool && !pool->is_forked() ? pool : nullptr) {
        if (!pool_) return;
        const std::lock_guard<std::mutex> first(pool_->next_);
        pool_->now_.lock();
    }
    ~Turn() {
        if (pool_) pool_->now_.unlock();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

private:
    Pool* pool_;  // null in a forked child, where nobody is left who would end a turn that was taken before
};

}  // namespace stretto
