// The plan of one forward pass; plan.cpp makes it, all threads share it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "model/decoder.h"
#include "threads/share.h"

namespace stretto {

constexpr size_t kLayerTasks = 16;  // of a layer that threads share out, at most
constexpr size_t kOtherTasks = 3 * kLayerTasks;  // logits, what is beside the embeddings, merging streams
constexpr size_t kRowsAtOnce = 16;  // rows of one view that attention takes together
constexpr size_t kMostLanes = 16;   // of quantised rows, in any kernel set
constexpr size_t kMostTargets = 4;  // matrices that read the same rows as one range of work

// Rows that follow each other and have the same view.
struct RowBlock {
    size_t row, rows;
    size_t last;   // the end of the longest row's part of the view
};

// Rows of a batch that advance the same state, in order.
struct SlotGroup {
    size_t slot;
    std::vector<int32_t> rows;
};

// What each thread has for itself: its copy of a single row, and room for attention.
struct Decoder::Thread {
    float* x;
    float* normed;
    float* sum;      // what is added next, if it has to be changed first
    Quantized quantized;
    float *renormed, *narrow, *inputs, *streams;  // as in Plan, of a single row
    Quantized experts;  // the chosen experts' inner rows, of a single row
    float* attention;
    float* index_scores;  // of the cells that a row sees
    int32_t* ranked;      // entries of its view
    size_t* places;       // where the cells are that it attends to
    float* queries;  // of one K/V head, as a single row's spans take them
    float* recurrent;  // room for recurrent mixers
    Partial partial, total;
    ProductScratch product;
    Quantized adapted;  // rows that adapters change, as integers
};

struct Decoder::Plan {
    const Input* input;
    Widths most;
    bool alone;               // a single row, of which each thread has a copy
    std::vector<char> split;  // by layer: attention's spans are work of their own
    bool meets_if_split;      // threads meet before they attend, where spans are work of their own
    size_t own_span = 0;      // where a single row has its own cell, if they do not
    float* x;                 // [n][n_embd], the residual stream
    float* normed;            // [n][n_embd, or what is normalised within a layer]
    float* sum;               // [n][n_embd]
    float *q, *k, *v;         // [n][heads × size]
    float* queries;           // [n][heads × size], where they do not stay where q was computed
    float* compressed;        // [n][q_rank]
    float *index_q, *index_k, *index_weights;  // [n][heads × size], [n][size], [n][heads] of indexers
    int32_t* chosen_cells;    // [n][n_chosen], entries of its view that a row attends to, in order, if it sees more than that
    size_t n_chosen;
    float* mixed;             // [n][n_head × size], attention's result
    float* heads;             // [n][n_head × value size], of latent attention
    float* added;             // [n][n_embd], what comes to the residual next
    float *gate, *up;         // [n][n_ff]
    Quantized quantized;      // [n × columns of a row][widest]
    Quantized inner_rows;     // [n][widest feed-forward], if it is made part by part
    Quantized gathered;       // rows of groups: for each expert its rows, for each head all rows
    float* gathered_floats;   // the same for float layouts
    float* grouped;           // [rows of groups][n_embd or a head's rows], what they give
    float *expert_gate, *expert_up;  // [n × n_used][n_ff]
    float* projected;         // [n][what a recurrent mixer projects to]
    float *outer_gate, *inner;  // [n][inner width] of recurrent mixers
    float* first_values;      // [n][width], of the first layer with time mixing
    float *beta, *alpha;      // [n][heads] of delta nets; both in beta if the file has them as one
                              // of Mamba: [n][state] of B, then of C, and [n][rank] of steps
    float* other;             // [n][n_embd], of a recurrent mixer beside attention
    std::vector<SlotGroup> slots;
    std::vector<int32_t> before;  // [n]: the row before in the same slot; below 0: it is in the slot's state
    float* scores;            // [n][n_expert]
    int32_t* chosen;          // [n][n_used]
    float* chosen_weights;    // [n][n_used]
    float* renormed;          // [n][n_embd], what router, experts or the shared one read, if norms are their own;
                              // [n][joined], what attention reads that joins rows with their vectors
    float* narrow;            // [n][rank or size of an input]
    float* beside;            // [n][n_embd], what they give
    float* inputs;            // [n][layers × size], of all layers
    float* streams;           // [streams][n][n_embd]
    float* states;            // [n_wanted][n_embd]
    std::vector<AdaptedRows> adapted, adapted_wanted;  // rows, and wanted rows, that adapters change
    float* low_rank[2];       // [matrices of a product × adapters][n][rank]
    Quantized low_rank_bytes[2];  // the same as integers, [n][rank in whole blocks]
    std::vector<float*> cos, sin;             // by rope: [n][pairs]
    std::vector<std::vector<int32_t>> begins, ends; // by layer's window: [n]; ends where a window has two sides
    std::vector<size_t> window_of;            // layer → entry of begins and ends
    std::vector<RowBlock> blocks;
    std::vector<size_t> seen;                 // [views]: how many entries the longest row sees
    std::vector<size_t> strides;              // bytes from one cell to the next, of all layers that attend
    std::vector<size_t> places_of;            // layer → where those of its stride begin in `places`
    std::vector<size_t*> places;              // [strides][views]: where the cells are, as place_cells finds them
    size_t spans;             // at most, of any block
    Partial partials;         // [block][kv head][span], if split
    std::vector<int32_t> probed;   // [n][probes]: where in its view a row finds a probed cell, or -1
    std::vector<float> received;   // [n][most heads][probes], summed over layers
    std::vector<size_t> shown;     // where in `watched` each watched row begins
    float* watched;                // Decoder::watched_
    std::vector<Thread> threads;
    std::atomic<size_t> narrowed{0};  // threads that have computed their part of A x, product after product
    Cursors cursors;               // [layer][kLayerTasks], and kOtherTasks
    std::unique_ptr<std::atomic<size_t>[]> done;   // if split: [layer][block][kv head], spans that are
    float* out;
    float* peaks;             // [n_wanted][pieces of kPeak logits], or null
    bool hidden;
};

}  // namespace stretto
