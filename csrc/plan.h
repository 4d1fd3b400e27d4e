// The plan of one forward pass; forward.cpp makes it, all threads share it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "decoder.h"
#include "share.h"

namespace stretto {

constexpr size_t kLayerTasks = 6;   // of a layer that threads share out: four products, K and V, attention
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
    Cursors cursors;               // [layer][kLayerTasks], and one more for the logits
    std::unique_ptr<std::atomic<size_t>[]> done;   // if split: [layer][block][kv head], spans that are
    float* out;
    float* peaks;             // [n_wanted][pieces of kPeak logits], or null
    bool hidden;
};

}  // namespace stretto
