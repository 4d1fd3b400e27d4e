#include "schedule.h"

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace stretto {

#if defined(__linux__) && defined(SYS_sched_setattr)

namespace {

// The kernel's struct sched_attr in its first version; C libraries before 2.41 do not declare it.
struct Attributes {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime;  // of an ordinary thread: the length of its turns
    uint64_t deadline;
    uint64_t period;
};

}  // namespace

bool set_time_slice(uint64_t nanoseconds) {
    Attributes attributes{};
    attributes.size = sizeof(attributes);
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return false;
    if (attributes.policy != 0) return false;  // only ordinary threads have turns
    attributes.runtime = nanoseconds;
    if (syscall(SYS_sched_setattr, 0, &attributes, 0) != 0) return false;
    Attributes now{};
    now.size = sizeof(now);
    return syscall(SYS_sched_getattr, 0, &now, sizeof(now), 0) == 0 && now.runtime == nanoseconds;
}

#else

bool set_time_slice(uint64_t) { return false; }

#endif

}  // namespace stretto
