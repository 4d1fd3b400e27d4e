// Work sharing: a task is cut into pieces, and each thread takes pieces that are not taken yet.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>

namespace stretto {

inline size_t pieces_of(size_t n, size_t step) { return (n + step - 1) / step; }

// The progress of the threads in a number of tasks. A thread's counters are together, on cache lines of its own: they are written
// for every piece, and other threads read them only when they have finished their own part.
class Cursors {
public:
    Cursors() = default;
    Cursors(size_t tasks, size_t threads)
        : stride_(pieces_of(tasks, kLine) * kLine), cursors_(new std::atomic<size_t>[threads * stride_]) {
        for (size_t i = 0; i < threads * stride_; ++i) cursors_[i].store(0, std::memory_order_relaxed);
    }
    std::atomic<size_t>& at(size_t task, size_t thread) const { return cursors_[thread * stride_ + task]; }

private:
    static constexpr size_t kLine = 16;  // numbers of two cache lines: memory need not begin with one
    size_t stride_ = 0;
    std::unique_ptr<std::atomic<size_t>[]> cursors_;  // [thread][task]
};

// The pieces [0, n) of a task, for one of its threads: those of its own part, which are contiguous in memory, and
// then the rest of the others' parts. So no thread waits for one that is late.
class Share {
public:
    Share(const Cursors& cursors, size_t task, size_t n, size_t thread, size_t threads)
        : cursors_(cursors), task_(task), n_(n), threads_(threads), part_(thread) {
        enter();
    }

    bool next(size_t* piece) {
        size_t count;
        do {
            if (take(end_ - begin_, &count)) {
                *piece = begin_ + count;
                return true;
            }
        } while (leave());
        return false;
    }

    // The same, but several pieces at a time: half of a part, then half of the rest, and so on. These are few, and
    // the last ones are so small that no thread waits long for them.
    bool next_range(size_t* first, size_t* last) {
        size_t halvings;
        do {
            const size_t n = end_ - begin_;
            if (take(bits_of(n), &halvings)) {
                *first = end_ - (n >> halvings);
                *last = end_ - (n >> (halvings + 1));
                return true;
            }
        } while (leave());
        return false;
    }

private:
    static size_t bits_of(size_t n) { return n ? 64 - static_cast<size_t>(__builtin_clzll(n)) : 0; }

    // Counts on in the current part, unless it has come to `most`.
    bool take(size_t most, size_t* count) {
        std::atomic<size_t>& cursor = cursors_.at(task_, part_);
        if (cursor.load(std::memory_order_relaxed) >= most) return false;  // a look is cheaper than a change
        *count = cursor.fetch_add(1, std::memory_order_relaxed);
        return *count < most;
    }
    void enter() {
        begin_ = n_ * part_ / threads_;
        end_ = n_ * (part_ + 1) / threads_;
    }
    // Goes on to the next thread's part; false if that was the last.
    bool leave() {
        if (++parts_done_ >= threads_) return false;
        part_ = part_ + 1 < threads_ ? part_ + 1 : 0;
        enter();
        return true;
    }

    const Cursors& cursors_;
    size_t task_, n_, threads_, part_, parts_done_ = 0;
    size_t begin_, end_;  // of the part
};

// The pieces of a product, some panels × some columns each, for one of its threads. All begin with a panel whose number is a
// multiple of `grain`.
class Pieces {
public:
    struct Piece {
        size_t begin, end;    // panels
        size_t first, last;   // columns

        bool precedes(const Piece& next) const { return end == next.begin && first == next.first && last == next.last; }
    };

    Pieces(const Cursors& cursors, size_t task, size_t panels, size_t columns, bool only_panels, size_t grain, size_t thread,
           size_t threads)
        : panels_(panels), columns_(columns), by_range_(threads < kManyThreads && is_narrow(columns, only_panels)),
          shape_(is_narrow(columns, only_panels) ? whole(panels, columns, grain, threads)
                                                 : tiles(panels, columns, grain, threads)),
          share_(cursors, task, pieces_of(panels, shape_.panels) * shape_.across, thread, threads) {}

    bool next(Piece* piece) {
        size_t first, last;
        if (by_range_) {
            if (!share_.next_range(&first, &last)) return false;
            *piece = {first * shape_.panels, std::min(last * shape_.panels, panels_), 0, columns_};
            return true;
        }
        if (!share_.next(&first)) return false;
        const size_t begin = first / shape_.across * shape_.panels, column = first % shape_.across * shape_.columns;
        *piece = {begin, std::min(begin + shape_.panels, panels_), column, std::min(column + shape_.columns, columns_)};
        return true;
    }

private:
    static constexpr size_t kColumnStep = 48;   // whole tiles of every kernel set
    static constexpr size_t kTogether = 4;      // panels that kernels for one column take at once
    static constexpr size_t kManyPanels = 32;   // for a thread: so many that parts may begin with every fourth
    static constexpr size_t kManyThreads = 8;   // of which some are always slower: a half is too much for these
    static constexpr size_t kManyPieces = 16;   // for each of them

    struct Shape {
        size_t panels, columns;   // of a piece
        size_t across;            // pieces for all columns
    };
    static bool is_narrow(size_t columns, bool only_panels) { return columns < 2 * kColumnStep || only_panels; }
    // Few columns: pieces are panels, taken by halves or, by many threads, some at a time.
    static Shape whole(size_t panels, size_t columns, size_t grain, size_t threads) {
        if (panels >= kManyPanels * threads) grain = std::max(grain, kTogether);
        if (threads < kManyThreads) return {grain, columns, 1};
        const size_t pieces = std::clamp<size_t>(panels / (4 * threads), 1, kManyPieces);
        return {pieces_of(pieces_of(panels, pieces * threads), grain) * grain, columns, 1};
    }
    // Many columns: four pieces for each thread if they do not get too small.
    static Shape tiles(size_t panels, size_t columns, size_t grain, size_t threads) {
        const size_t each = std::clamp<size_t>(pieces_of(panels, 4 * threads), 4, 8);
        const size_t across = pieces_of(4 * threads, pieces_of(panels, each));
        const size_t step = pieces_of(columns, across * kColumnStep) * kColumnStep;
        return {pieces_of(each, grain) * grain, step, pieces_of(columns, step)};
    }

    size_t panels_, columns_;
    bool by_range_;
    Shape shape_;
    Share share_;
};

}  // namespace stretto
