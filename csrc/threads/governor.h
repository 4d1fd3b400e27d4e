// The number of threads of a pool to use, by the throughput of the last jobs.
//
// Threads that meet at barriers are as fast as the slowest of them. When other processes want the cores, some thread is always
// preempted and the others wait for it, so that fewer threads get more done. Runs of one kind (passes over as many rows)
// are equal work: for them that is runs a second. For other runs it is the mean number of cores that computed (waiting
// does not count), which says less: threads that wait for memory compute too.
#pragma once

#include <algorithm>
#include <cstddef>

namespace stretto {

class Governor {
public:
    explicit Governor(int most) : most_(most), active_(most), kept_(most) {}

    int active() const { return active_; }

    // Takes what one run of `active()` threads did, in seconds: how long it took, and how long its threads computed in all.
    // `now` is any clock; `kind` is 0, or a number that only runs of equal work have.
    void add(double wall, double computed, double now, size_t kind = 0) {
        if (most_ == 1) return;
        if (kind != kind_) {  // what was measured of another kind says nothing
            kind_ = kind;
            wall_ = computed_ = 0.0;
            runs_ = slow_ = 0;
            active_ = kept_;
        }
        wall_ += wall;
        computed_ += computed;
        ++runs_;
        if (wall_ < kWindow || (kind && runs_ < kRuns)) return;
        const double cores = computed_ / wall_, speed = kind ? runs_ / wall_ : cores;
        wall_ = computed_ = 0.0;
        runs_ = 0;
        if (active_ != kept_) {
            judge(speed, now);
        } else {
            consider(cores, speed, now);
        }
    }

private:
    static constexpr double kWindow = 0.03;        // seconds of work that are compared; time slices take 3 ms or so
    static constexpr int kRuns = 8;                // of one kind, at least: a few are luck
    static constexpr double kEnough = 0.6;         // of a thread's time spent computing: no reason to try fewer
    static constexpr int kSlow = 2;                // windows with less, one after the other: a reason
    static constexpr double kGain = 1.03;          // that more threads have to bring
    static constexpr double kFirstPause = 0.1, kLastPause = 1.0;  // seconds between trials of more threads

    // At the end of a trial.
    void judge(double speed, double now) {
        const bool more = active_ > kept_;
        if (more ? speed > kGain * kept_speed_ : speed >= kept_speed_) {
            kept_ = active_;
            kept_speed_ = speed;
            pause_ = kFirstPause;
        } else {
            active_ = kept_;
            pause_ = std::min(2.0 * pause_, kLastPause);
        }
        next_trial_ = now + pause_;
    }

    // Whether to try another number of threads. A pause that no other follows is over when it is noticed, and fewer threads
    // would make it longer.
    void consider(double cores, double speed, double now) {
        kept_speed_ = speed;
        slow_ = active_ > 1 && cores < kEnough * active_ ? slow_ + 1 : 0;
        if (now < next_trial_) return;
        if (slow_ > 0) {
            if (slow_ >= kSlow) active_ = std::max(1, active_ * 3 / 4);
        } else if (active_ < most_) {
            active_ = std::min(most_, (active_ * 4 + 2) / 3);
        }
    }

    int most_, active_, kept_;      // `active_` differs from `kept_` during a trial
    double kept_speed_ = 0.0;       // of `kept_` threads in their last window
    size_t kind_ = 0;
    double wall_ = 0.0, computed_ = 0.0;
    int runs_ = 0, slow_ = 0;       // slow windows since the last one that was not
    double pause_ = kFirstPause, next_trial_ = 0.0;
};

}  // namespace stretto
