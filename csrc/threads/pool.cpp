#include "threads/pool.h"

#include <ctime>
#include <stdexcept>

#if defined(__linux__)
#include <sched.h>
#endif
#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace stretto {

namespace {

// A thread that is preempted comes back after milliseconds, one that is awake after microseconds. Who sleeps sooner than
// this looks idle to the scheduler, which then leaves two threads that wait for each other on one core.
constexpr Nanoseconds kSpin = std::chrono::microseconds(1000);
constexpr Nanoseconds kCrowdedSpin = std::chrono::microseconds(5);  // with more threads than cores
constexpr Nanoseconds kIdleSpin = std::chrono::microseconds(200);   // between jobs, while a token is sampled

double seconds(Nanoseconds time) { return std::chrono::duration<double>(time).count(); }

// The processor time that the calling thread has used.
Nanoseconds processor_time() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + Nanoseconds(now.tv_nsec);
}

std::atomic<unsigned> forks{0};  // that lie between the process that loaded this and the present one

// Has forks counted from now on; returns how many there were.
unsigned count_forks() {
#if !defined(_WIN32)
    static const int failed = pthread_atfork(nullptr, nullptr, [] { ++forks; });
    static_cast<void>(failed);
#endif
    return forks;
}

}  // namespace

Pool::Pool(int threads) : size_(threads), forks_(count_forks()), active_(threads), governor_(threads) {
    const unsigned cores = std::thread::hardware_concurrency();
    spin_ = cores && static_cast<unsigned>(threads) > cores ? kCrowdedSpin : kSpin;
    while (1 << rounds_ < threads) ++rounds_;
    signals_.reset(new Signal[static_cast<size_t>(threads) * rounds_ + 1]);
    workers_.reset(new Worker[threads]);
    try {
        for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
    } catch (...) {  // the system gives no more; those that run must not be left waiting
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

bool Pool::is_forked() const { return forks_ != forks.load(std::memory_order_relaxed); }

void Pool::stop() {
    if (is_forked()) {  // handles of threads that are not there can be neither joined nor freed
        new std::vector<std::thread>(std::move(threads_));
        return;
    }
    stop_ = true;
    ++jobs_;
    for (size_t i = 1; i <= threads_.size(); ++i) workers_[i].job.set(jobs_);
    for (std::thread& thread : threads_) thread.join();
}

void Pool::run(const std::function<void(int)>& job, Measured measured, size_t kind) {
    if (size_ == 1) return job(0);
    if (is_forked()) throw std::runtime_error("made before this process was forked; its threads are not here");
    const Clock::time_point begun = Clock::now();
    const int n = active();
    job_ = &job;
    ++jobs_;
    running_.reset(static_cast<unsigned>(n - 1));
    for (int i = 1; i < n; ++i) {
        workers_[i].barriers = workers_[0].barriers;  // it may have been left out of jobs
        workers_[i].job.set(jobs_);
    }
    run_job(0);
    running_.wait([](unsigned left) { return left == 0; }, spin_);

    if (measured == Measured::kNo) return;
    const Clock::time_point now = Clock::now();
    Nanoseconds computed(0);
    for (int i = 0; i < n; ++i) computed += workers_[i].computed;
    governor_.add(seconds(now - begun), seconds(computed), seconds(now.time_since_epoch()), kind);
    active_ = governor_.active();
}

// Threads that take turns on one core look idle to the scheduler, which then leaves them there. A thread that finds
// another one of this job on its core moves to a core where none of them is, and may be moved again afterwards.
void Pool::leave_shared_cpu([[maybe_unused]] int thread) {
#if defined(__linux__)
    const int here = sched_getcpu(), n = active();
    workers_[thread].cpu.store(here, std::memory_order_relaxed);
    bool shared = false;
    for (int i = 0; i < thread; ++i) shared |= workers_[i].cpu.load(std::memory_order_relaxed) == here;
    cpu_set_t allowed;
    if (!shared || here < 0 || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    cpu_set_t free = allowed;
    for (int i = 0; i < n; ++i) {
        const int cpu = workers_[i].cpu.load(std::memory_order_relaxed);
        if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(static_cast<size_t>(cpu), &free);
    }
    if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free)) return;
    sched_setaffinity(0, sizeof allowed, &allowed);
    workers_[thread].cpu.store(sched_getcpu(), std::memory_order_relaxed);
#endif
}

void Pool::run_job(int thread) {
    Worker& worker = workers_[thread];
    leave_shared_cpu(thread);
    const Nanoseconds begun = processor_time();
    worker.spun = Nanoseconds(0);
    (*job_)(thread);
    worker.computed = processor_time() - begun - worker.spun;
}

void Pool::work(int thread) {
    Signal& given = workers_[thread].job;
    for (unsigned seen = 0;;) {
        given.wait([&](unsigned jobs) { return jobs != seen; }, kIdleSpin);
        seen = given.load();
        if (stop_) return;
        run_job(thread);
        running_.decrement();
    }
}

// In round r each thread signals the one 2^r further on, and waits for the one 2^r before it. After
// the last round all have arrived, after log2(active) steps and without a counter that all threads write to.
void Pool::barrier(int thread) {
    Worker& worker = workers_[thread];
    const unsigned turn = ++worker.barriers;
    const int n = active();
    for (int round = 0; 1 << round < n; ++round) {
        const int next = (thread + (1 << round)) % n;
        signals_[next * rounds_ + round].set(turn);
        // Who is ahead may already have signalled the next barrier. The difference survives wrapping around.
        worker.spun += signals_[thread * rounds_ + round].wait(
            [turn](unsigned heard) { return static_cast<int>(heard - turn) >= 0; }, spin_);
    }
}

}  // namespace stretto
