// How many threads of a pool to use, by what the last ones got done.
//
// Threads that meet at barriers are as fast as the slowest of them. When other processes want the cores, some thread is always
// preempted and the others wait for it, so that fewer threads get more done. What a number of threads gets done is
// measured as the mean number of cores that computed (waiting does not count). It does not depend on the work, so numbers
// of threads can be compared while they work.
#pragma once

#include <algorithm>

namespace stretto {

class Governor {
public:
    explicit Governor(int most) : most_(most), active_(most), kept_(most) {}

    int active() const { return active_; }

    // Takes what one run of `active()` threads did, in seconds: how long it took, and how long its threads computed in all.
    // `now` is any clock.
    void add(double wall, double computed, double now) {
        wall_ += wall;
        computed_ += computed;
        if (wall_ < kWindow || most_ == 1) return;
        const double cores = computed_ / wall_;
        wall_ = computed_ = 0.0;
        if (active_ != kept_) {
            judge(cores, now);
        } else {
            consider(cores, now);
        }
    }

private:
    static constexpr double kWindow = 0.03;        // seconds of work that are compared; time slices take 3 ms or so
    static constexpr double kEnough = 0.6;         // of a thread's time spent computing: no reason to try fewer
    static constexpr double kGain = 1.03;          // that more threads have to bring
    static constexpr double kFirstPause = 0.1, kLastPause = 1.0;  // seconds between trials of more threads

    // At the end of a trial.
    void judge(double cores, double now) {
        const bool more = active_ > kept_;
        if (more ? cores > kGain * kept_cores_ : cores >= kept_cores_) {
            kept_ = active_;
            kept_cores_ = cores;
            pause_ = kFirstPause;
        } else {
            active_ = kept_;
            pause_ = std::min(2.0 * pause_, kLastPause);
        }
        next_trial_ = now + pause_;
    }

    // Whether to try another number of threads.
    void consider(double cores, double now) {
        kept_cores_ = cores;
        if (now < next_trial_) return;
        if (active_ > 1 && cores < kEnough * active_) {
            active_ = std::max(1, active_ * 3 / 4);
        } else if (active_ < most_) {
            active_ = std::min(most_, (active_ * 4 + 2) / 3);
        }
    }

    int most_, active_, kept_;      // `active_` differs from `kept_` during a trial
    double kept_cores_ = 0.0;       // what `kept_` threads did in their last window
    double wall_ = 0.0, computed_ = 0.0;
    double pause_ = kFirstPause, next_trial_ = 0.0;
};

}  // namespace stretto
