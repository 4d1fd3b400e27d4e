// A pool of threads that all run the same function, and a barrier for them to meet at.
//
// The caller is thread 0. The others spin briefly for the next job and then sleep, so an idle pool costs
// nothing and a decoding one loses no time to waking up.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
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
    // All threads of a running job wait here for each other.
    void barrier();

private:
    void work(int thread);
    void stop();

    int size_;
    std::vector<std::thread> threads_;
    const std::function<void(int)>* job_ = nullptr;
    std::atomic<unsigned> generation_{0};  // counts jobs
    std::atomic<int> running_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> turn_{0};
};

}  // namespace stretto
