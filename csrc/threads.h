// A pool of threads that all run the same function, and a barrier for them to meet at.
//
// The caller is thread 0. The others spin briefly for the next job and then sleep, so an idle pool costs
// nothing and a decoding one loses no time to waking up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace stretto {

class Pool {
public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }
    // Runs job(0) here and job(1) … job(size − 1) on the others; returns when all are done.
    void run(const std::function<void(int)>& job);
    // All threads of a running job wait here for each other; each says which one it is.
    void barrier(int thread);

private:
    // A number that one thread writes and another one waits for, on a cache line of its own.
    struct alignas(64) Signal {
        std::atomic<unsigned> turn{0};
    };

    void work(int thread);
    void stop();
    template <typename Done>
    void spin(Done done) const;

    int size_;
    std::vector<std::thread> threads_;
    const std::function<void(int)>* job_ = nullptr;
    alignas(64) std::atomic<unsigned> generation_{0};  // counts jobs; all look at it while they wait
    alignas(64) std::atomic<int> running_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    int spins_;                           // at a barrier, before letting others have the core
    int rounds_ = 0;                      // of a barrier
    std::unique_ptr<Signal[]> signals_;   // [thread][round]
    std::unique_ptr<Signal[]> turns_;     // [thread]: how many barriers it has been at
};

}  // namespace stretto
