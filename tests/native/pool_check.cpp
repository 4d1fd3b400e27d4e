// Jobs with barriers on pools of several sizes, for the thread sanitizer: `make check-threads`.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "threads/pool.h"

using namespace stretto;

namespace {

constexpr int kJobs = 3000, kMeetings = 6;

// Every thread writes a number, meets the others, and sums up all numbers.
void meet(Pool& pool, int job) {
    const int n = pool.active();
    std::vector<long> numbers(n), sums(n);
    pool.run([&](int thread) {
        for (int meeting = 0; meeting < kMeetings; ++meeting) {
            numbers[thread] = job * 7 + meeting * 3 + thread;
            pool.barrier(thread);
            long sum = 0;
            for (const long number : numbers) sum += number;
            sums[thread] = sum;
            pool.barrier(thread);
            volatile int spent = 0;  // some take longer than others
            for (int i = 0; i < (thread * 37 + job) % 400; ++i) spent = spent + i;
            for (const long other : sums) {
                if (other == sum) continue;
                std::printf("job %d, meeting %d: %ld is not %ld\n", job, meeting, other, sum);
                std::exit(1);
            }
            pool.barrier(thread);
        }
    });
}

}  // namespace

int main() {
    for (int size : {1, 2, 3, 5, 8}) {
        Pool pool(size);
        for (int job = 0; job < kJobs; ++job) meet(pool, job);
        std::printf("%d threads: %d jobs, %d at the end\n", size, kJobs, pool.active());
    }
}
