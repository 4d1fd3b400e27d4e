// How fast memory can be read and int8 numbers multiplied, by as many threads as are asked for.

#include "probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>

#include "probe_dots.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Calls `work(i)` on `threads` threads at once and waits for all. They begin together.
void together(int threads, const std::function<void(int)>& work) {
    std::atomic<int> ready{0};
    std::atomic<int> signal{0};  // 1: begin, -1: a thread could not be had, give up
    const auto body = [&](int i) {
        ready.fetch_add(1);
        while (signal.load(std::memory_order_acquire) == 0) std::this_thread::yield();
        if (signal.load() == 1) work(i);
    };
    std::vector<std::thread> pool;
    pool.reserve(static_cast<size_t>(threads));
    try {
        for (int i = 0; i < threads; ++i) pool.emplace_back(body, i);
    } catch (...) {
        signal.store(-1, std::memory_order_release);
        for (std::thread& thread : pool) thread.join();
        throw;
    }
    while (ready.load() < threads) std::this_thread::yield();
    signal.store(1, std::memory_order_release);
    for (std::thread& thread : pool) thread.join();
}

// Units a second of `portion(i)`, which does a little work on thread i and says how many units it was. The
// best of a few rounds: others on the machine can only make it look slower than it is.
double best_rate(int threads, double seconds, const std::function<double(int)>& portion) {
    constexpr int kRounds = 3;
    double best = 0.0;
    std::vector<double> rates(static_cast<size_t>(threads));
    for (int round = 0; round < kRounds; ++round) {
        together(threads, [&](int i) {
            const Clock::time_point start = Clock::now();
            double done = 0.0, elapsed = 0.0;
            do {
                done += portion(i);
                elapsed = seconds_since(start);
            } while (elapsed < seconds / kRounds);
            rates[static_cast<size_t>(i)] = elapsed > 0.0 ? done / elapsed : 0.0;
        });
        double sum = 0.0;
        for (const double rate : rates) sum += rate;
        best = std::max(best, sum);
    }
    return best;
}

// -- reading --

// Eight sums that do not wait for each other; the compiler makes vectors of them.
__attribute__((always_inline)) inline uint64_t sum_words(const uint64_t* words, size_t count) {
    uint64_t sums[8] = {};
    for (size_t i = 0; i + 8 <= count; i += 8) {
        for (size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

uint64_t sum_portable(const uint64_t* words, size_t count) { return sum_words(words, count); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t sum_avx2(const uint64_t* words, size_t count) {
    return sum_words(words, count);
}
#else
constexpr auto sum_avx2 = sum_portable;
#endif

// One thread's part of the buffer, in whole chunks, and how far it has read. On a cache line of its own.
struct alignas(64) Reader {
    size_t first, last, next;
    uint64_t sum;
};

std::vector<Reader> divide(size_t chunks, int threads) {
    std::vector<Reader> readers(static_cast<size_t>(threads));
    const size_t n = readers.size();
    for (size_t i = 0; i < n; ++i) {
        const size_t first = chunks * i / n;
        readers[i] = {first, chunks * (i + 1) / n, first, 0};
    }
    return readers;
}

}  // namespace

std::vector<double> read_bandwidth(size_t nbytes, const std::vector<int>& threads, double seconds) {
    constexpr size_t kWords = kReadChunk / sizeof(uint64_t);
    const size_t chunks = nbytes / kReadChunk;
    for (const int n : threads) {
        if (n < 1 || static_cast<size_t>(n) > chunks) {
            throw std::invalid_argument("the buffer is too small for that many threads");
        }
    }
    if (threads.empty()) return {};
    const std::unique_ptr<uint64_t[]> buffer(new uint64_t[chunks * kWords]);
    const auto chunk = [&](size_t index) { return buffer.get() + index * kWords; };
    // Written by all threads: a page that nobody wrote is not there, and it lies near the one who did.
    const int most = *std::max_element(threads.begin(), threads.end());
    const std::vector<Reader> writers = divide(chunks, most);
    together(most, [&](int i) {
        const Reader& mine = writers[static_cast<size_t>(i)];
        std::memset(chunk(mine.first), 1, (mine.last - mine.first) * kReadChunk);
    });

    const auto sum = cpu_features().avx2 ? sum_avx2 : sum_portable;
    std::vector<double> rates;
    for (const int n : threads) {
        std::vector<Reader> readers = divide(chunks, n);
        rates.push_back(1e-9 * best_rate(n, seconds, [&](int i) {
            Reader& mine = readers[static_cast<size_t>(i)];
            mine.sum += sum(chunk(mine.next), kWords);
            if (++mine.next == mine.last) mine.next = mine.first;
            return static_cast<double>(kReadChunk);
        }));
        uint64_t total = 0;
        for (const Reader& reader : readers) total += reader.sum;
        volatile uint64_t used = total;  // or nothing would need to be read
        (void)used;
    }
    return rates;
}

std::vector<std::string> dot_instructions() {
    std::vector<std::string> names;
    for (const Dot& dot : dots()) names.emplace_back(dot.name);
    return names;
}

double integer_peak(const std::string& instruction, int threads, double seconds) {
    if (threads < 1) throw std::invalid_argument("at least one thread is needed");
    for (const Dot& dot : dots()) {
        if (instruction != dot.name) continue;
        constexpr int kTimes = 4096;
        return 1e-9 * best_rate(threads, seconds, [&](int) { return dot.run(kTimes); });
    }
    throw std::invalid_argument("there is no instruction '" + instruction + "' here");
}

}  // namespace stretto
