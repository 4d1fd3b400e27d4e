// The speed of reading memory and of multiplying int8 numbers, with a given number of threads.

#include "hardware/probe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#include "hardware/dots.h"
#include "model/decoder.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
    return std::chrono::duration<double>(end - start).count();
}

// Threads that take turns together: all of them run `work(thread, turn)`, then one of them says by `again()`, while
// the others wait, whether there is another turn.
class Turns {
public:
    Turns(int threads, std::function<void(int, int)> work, std::function<bool()> again)
        : threads_(threads), work_(std::move(work)), again_(std::move(again)) {}

    void run() {
        std::vector<std::thread> pool;
        pool.reserve(static_cast<size_t>(threads_));
        try {
            for (int i = 0; i < threads_; ++i) pool.emplace_back([this, i] { body(i); });
        } catch (...) {  // a thread could not be had: those that wait for it end
            turn_.store(kOver, std::memory_order_release);
            for (std::thread& thread : pool) thread.join();
            throw;
        }
        for (std::thread& thread : pool) thread.join();
    }

private:
    static constexpr int kOver = -2;

    void body(int i) {
        for (int turn = -1; (turn = meet(turn)) != kOver;) work_(i, turn);
    }

    // Waits until all threads have ended the turn, and returns the next.
    int meet(int turn) {
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            const bool first = turn < 0;
            turn_.store(first || again_() ? turn + 1 : kOver, std::memory_order_release);
        }
        int next;
        while ((next = turn_.load(std::memory_order_acquire)) == turn) std::this_thread::yield();
        return next;
    }

    const int threads_;
    const std::function<void(int, int)> work_;
    const std::function<bool()> again_;
    std::atomic<int> arrived_{0};
    std::atomic<int> turn_{-1};
};

// Calls `work(i)` on `threads` threads at once and waits for all.
void together(int threads, const std::function<void(int)>& work) {
    Turns(threads, [&](int i, int) { work(i); }, [] { return false; }).run();
}

// What a thread did in a turn, on a cache line of its own.
struct alignas(64) Share {
    Clock::time_point start, end;
    double done;
};

// Units a second of `portion(i, turn)`, which does a little work on thread i and says how many units it was. The best
// of many turns of `turn_seconds`: other processes can only make it look slower than it is, and the shorter a
// turn, the likelier is one without interruption. A turn lasts from the first thread's start to the last one's
// end, so that two threads that ran one after the other are not taken for two at once.
double best_rate(int threads, double seconds, double turn_seconds, const std::function<double(int, int)>& portion) {
    constexpr int kLeastTurns = 3;
    std::vector<Share> shares(static_cast<size_t>(threads));
    double best = 0.0;
    int turns = 0;
    const Clock::time_point begun = Clock::now();
    const auto work = [&](int i, int turn) {
        Share& mine = shares[static_cast<size_t>(i)];
        mine.done = 0.0;
        mine.start = Clock::now();
        do {
            mine.done += portion(i, turn);
            mine.end = Clock::now();
        } while (seconds_between(mine.start, mine.end) < turn_seconds);
    };
    const auto again = [&] {
        double done = 0.0;
        Clock::time_point start = shares[0].start, end = shares[0].end;
        for (const Share& share : shares) {
            done += share.done;
            start = std::min(start, share.start);
            end = std::max(end, share.end);
        }
        const double elapsed = seconds_between(start, end);
        if (elapsed > 0.0) best = std::max(best, done / elapsed);
        return ++turns < kLeastTurns || seconds_between(begun, end) < seconds;
    };
    Turns(threads, work, again).run();
    return best;
}

// -- reading --

// `count` words as `Streams` streams side by side. Eight sums that do not wait for each other; the compiler makes
// vectors of them.
template <size_t Streams>
__attribute__((always_inline)) inline uint64_t sum_words(const uint64_t* words, size_t count) {
    const size_t part = count / Streams;
    uint64_t sums[8] = {};
    for (size_t i = 0; i + 8 <= part; i += 8) {
        for (size_t s = 0; s < Streams; ++s) {
            for (size_t j = 0; j < 8; ++j) sums[j] += words[s * part + i + j];
        }
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// One stream or two: which is faster depends on what fetches ahead. Turns try them in turn.
using Sum = uint64_t (*)(const uint64_t* words, size_t count);
using Ways = std::array<Sum, 2>;

uint64_t sum_one(const uint64_t* words, size_t count) { return sum_words<1>(words, count); }
uint64_t sum_two(const uint64_t* words, size_t count) { return sum_words<2>(words, count); }

#if defined(__x86_64__)
#define STRETTO_AVX2 __attribute__((target("avx2")))
STRETTO_AVX2 uint64_t sum_one_avx2(const uint64_t* words, size_t count) { return sum_words<1>(words, count); }
STRETTO_AVX2 uint64_t sum_two_avx2(const uint64_t* words, size_t count) { return sum_words<2>(words, count); }
Ways ways() { return cpu_features().avx2 ? Ways{sum_one_avx2, sum_two_avx2} : Ways{sum_one, sum_two}; }
#else
Ways ways() { return {sum_one, sum_two}; }
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
    const Buffer buffer(chunks * kReadChunk);  // on huge pages where there are any, as weights are
    const auto chunk = [&](size_t index) { return reinterpret_cast<uint64_t*>(buffer.data()) + index * kWords; };
    // Written by all threads: a page is allocated by its first write, on the memory node of the writing core.
    const int most = *std::max_element(threads.begin(), threads.end());
    const std::vector<Reader> writers = divide(chunks, most);
    together(most, [&](int i) {
        const Reader& mine = writers[static_cast<size_t>(i)];
        std::memset(chunk(mine.first), 1, (mine.last - mine.first) * kReadChunk);
    });

    // Long enough to read more than the caches hold: what happens to be in them counts for little.
    constexpr double kTurn = 0.005;
    const Ways sums = ways();
    std::vector<double> rates;
    for (const int n : threads) {
        std::vector<Reader> readers = divide(chunks, n);
        rates.push_back(1e-9 * best_rate(n, seconds, kTurn, [&](int i, int turn) {
            Reader& mine = readers[static_cast<size_t>(i)];
            mine.sum += sums[static_cast<size_t>(turn) % sums.size()](chunk(mine.next), kWords);
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
        constexpr double kTurn = 0.002;
        return 1e-9 * best_rate(threads, seconds, kTurn, [&](int, int) { return dot.run(kTimes); });
    }
    throw std::invalid_argument("there is no instruction '" + instruction + "' here");
}

}  // namespace stretto
