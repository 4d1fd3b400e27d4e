// What one forward pass works on; forward.cpp makes it, all threads share it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "decoder.h"

namespace stretto {

constexpr size_t kRowsAtOnce = 16;  // rows of one view that attention takes together

// Rows that follow each other and have the same view.
struct RowBlock {
    size_t row, rows;
    size_t last;   // the end of the longest row's part of the view
};

// What each thread has for itself: its copy of a single row, and room for attention.
struct Decoder::Thread {
    float* x;
    float* normed;
    Quantized quantized;
    float* attention;
    float* queries;  // of one K/V head, as a single row's spans take them
    Partial partial, total;
    ProductScratch product;
};

struct Decoder::Plan {
    const Input* input;
    bool alone;               // a single row
    bool split;               // attention's spans are work of their own
    bool meets;               // threads meet before they attend
    size_t own_span = 0;      // where a single row has its own cell, if they do not
    float* x;                 // [n][n_embd], the residual stream
    float* normed;            // [n][n_embd]
    float *q, *k, *v;         // [n][heads × size]
    float* mixed;             // [n][n_head × size], attention's result
    float* added;             // [n][n_embd], what comes to the residual next
    float *gate, *up;         // [n][n_ff]
    Quantized quantized;      // [n × columns of a row][widest]
    float* states;            // [n_wanted][n_embd]
    std::vector<float*> cos, sin;             // by rope: [n][pairs]
    std::vector<std::vector<int32_t>> begins; // by layer's window: [n]
    std::vector<size_t> window_of;            // layer → entry of begins
    std::vector<RowBlock> blocks;
    size_t spans;             // at most, of any block
    Partial partials;         // [block][kv head][span], if split
    std::vector<int32_t> probed;   // [n][probes]: where in its view a row finds a probed cell, or -1
    std::vector<float> received;   // [n][n_head][probes], summed over layers
    std::vector<size_t> shown;     // where in `watched` each watched row begins
    float* watched;                // Decoder::watched_
    std::vector<Thread> threads;
    std::unique_ptr<std::atomic<size_t>[]> counters;
    std::unique_ptr<std::atomic<size_t>[]> done;   // if split: [layer][block][kv head], spans that are
    float* out;
    float* peaks;             // [n_wanted][pieces of kPeak logits], or null
    bool hidden;
};

inline size_t pieces_of(size_t n, size_t step) { return (n + step - 1) / step; }

// Pieces of work that threads share: each begins with the one of its own number, and then takes from what is left.
// So nobody waits for a counter unless there are more pieces than threads.
class Share {
public:
    Share(std::atomic<size_t>& taken, size_t n, size_t thread, size_t threads)
        : taken_(taken), n_(n), threads_(threads), first_(thread) {}

    bool next(size_t* piece) {
        if (first_ < threads_) {
            *piece = first_;
            first_ = threads_;
        } else {
            if (n_ <= threads_) return false;
            *piece = threads_ + taken_.fetch_add(1, std::memory_order_relaxed);
        }
        return *piece < n_;
    }

private:
    std::atomic<size_t>& taken_;
    size_t n_, threads_, first_;
};

// A product cut into pieces of some panels × some columns: several for each thread if they do not get too small. All
// begin with a panel whose number is a multiple of `grain`.
class Cut {
public:
    struct Piece {
        size_t begin, end;    // panels
        size_t first, last;   // columns
    };

    Cut(size_t panels, size_t columns, size_t threads, bool only_panels, size_t grain = 1)
        : panels_(panels), columns_(columns) {
        if (columns < 2 * kColumnStep || only_panels) {
            // The last pieces decide how long the others wait, so where there are many a large matrix has more.
            const size_t each = std::clamp<size_t>(panels / (4 * threads), 1, threads < 8 ? 4 : 16);
            panel_step_ = pieces_of(panels, each * threads);
            if (each > 4) panel_step_ = std::max<size_t>(panel_step_ / 4, 1) * 4;  // as kernels take them
            column_step_ = columns;
        } else {
            panel_step_ = std::clamp<size_t>(pieces_of(panels, 4 * threads), 4, 8);
            const size_t across = pieces_of(4 * threads, pieces_of(panels, panel_step_));
            column_step_ = pieces_of(columns, across * kColumnStep) * kColumnStep;
        }
        panel_step_ = pieces_of(panel_step_, grain) * grain;
    }
    size_t count() const { return pieces_of(panels_, panel_step_) * pieces_of(columns_, column_step_); }
    Piece at(size_t index) const {
        const size_t across = pieces_of(columns_, column_step_);
        const size_t begin = index / across * panel_step_, first = index % across * column_step_;
        return {begin, std::min(begin + panel_step_, panels_), first, std::min(first + column_step_, columns_)};
    }

private:
    static constexpr size_t kColumnStep = 48;  // whole tiles of every kernel set
    size_t panels_, columns_, panel_step_, column_step_;
};

}  // namespace stretto
