// Native code without the interpreter's lock, of which no thread is left when the interpreter ends.
//
// A daemon thread that wants the lock back after the interpreter has ended is taken down by Python in the middle of C++,
// which ends the process with SIGABRT. So before that, at exit, `finish_unlocked` waits for those that run; from then on
// native code keeps the lock.
#pragma once

#include <Python.h>

namespace stretto {

class Unlocked {
public:
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* state_ = nullptr;
};

// Waits until no native code runs without the lock, for at most `seconds`; none will from now on.
void finish_unlocked(double seconds);
// Whether it does: work that can be left undone should be.
bool is_finishing();

}  // namespace stretto
