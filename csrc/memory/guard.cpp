#include "memory/guard.h"

#include <atomic>
#include <mutex>

#if !defined(_WIN32)
#include <csignal>
#include <cerrno>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace stretto {

namespace {

std::atomic<unsigned> n_broken{0};

}  // namespace

unsigned broken_mappings() { return n_broken.load(std::memory_order_relaxed); }

#if defined(_WIN32)

int guard(const void*, size_t) { return -1; }
void unguard(int) {}
bool is_broken(int) { return false; }
bool is_guarded(const void*, size_t) { return false; }

#else

namespace {

constexpr int kMost = 4096;

struct Range {
    std::atomic<uintptr_t> begin{0}, end{0};
    std::atomic<bool> broken{false};
};

Range ranges[kMost];
std::atomic<int> n_ranges{0};  // none is used behind these
std::mutex changing;
struct sigaction previous;
uintptr_t page_bytes = 4096;

// The number of the range with an address, or −1. A range that is being changed is nobody's fault.
int find(uintptr_t address) {
    const int n = n_ranges.load();
    for (int i = 0; i < n; ++i) {
        const uintptr_t begin = ranges[i].begin.load(), end = ranges[i].end.load();
        if (begin <= address && address < end && ranges[i].begin.load() == begin) return i;
    }
    return -1;
}

void pass_on(int signal, siginfo_t* info, void* context) {
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(signal, info, context);
    } else if (previous.sa_handler == SIG_DFL) {
        ::signal(signal, SIG_DFL);  // the instruction runs again, and ends the process
        if (info->si_code <= 0) raise(signal);
    } else if (previous.sa_handler != SIG_IGN) {
        previous.sa_handler(signal);
    }
}

void handle(int signal, siginfo_t* info, void* context) {
    const int saved = errno;
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    const int found = info->si_code > 0 ? find(address) : -1;  // not one that somebody sent
    if (found < 0) {
        pass_on(signal, info, context);
        errno = saved;
        return;
    }
    // The rest of a file that was cut is gone too, and one fault is quicker than one for every page.
    const uintptr_t first = address / page_bytes * page_bytes;
    const uintptr_t last = (ranges[found].end.load() + page_bytes - 1) / page_bytes * page_bytes;
    void* zeros = mmap(reinterpret_cast<void*>(first), last - first, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED) {
        pass_on(signal, info, context);
    } else if (!ranges[found].broken.exchange(true)) {
        ++n_broken;
    }
    errno = saved;
}

// Another library may have put its own handler before this one meanwhile.
void install() {
    struct sigaction current;
    if (sigaction(SIGBUS, nullptr, &current) != 0) return;
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == handle) return;
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    previous = current;
    struct sigaction ours = {};
    ours.sa_sigaction = handle;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

int guard(const void* at, size_t bytes) {
    const std::lock_guard<std::mutex> lock(changing);
    install();
    int number = 0;
    while (number < kMost && ranges[number].end.load()) ++number;
    if (number == kMost || !bytes) return -1;
    Range& range = ranges[number];
    range.broken = false;
    range.begin = reinterpret_cast<uintptr_t>(at);
    range.end = reinterpret_cast<uintptr_t>(at) + bytes;
    if (n_ranges.load() <= number) n_ranges = number + 1;
    return number;
}

void unguard(int number) {
    if (number < 0 || number >= kMost) return;
    const std::lock_guard<std::mutex> lock(changing);
    ranges[number].end = 0;
    ranges[number].begin = UINTPTR_MAX;
}

bool is_broken(int number) { return number >= 0 && number < kMost && ranges[number].broken.load(); }

bool is_guarded(const void* at, size_t bytes) {
    const std::lock_guard<std::mutex> lock(changing);
    const auto address = reinterpret_cast<uintptr_t>(at);
    const int found = find(address);
    return found >= 0 && bytes <= ranges[found].end.load() - address;
}

#endif

}  // namespace stretto
