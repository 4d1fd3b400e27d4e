// Recurrent layers between their projections: rows of one slot, in order, advance its state and give the rows that
// the output projection reads. A state of zeros is that of no tokens. The bits of a row and of the state do not depend on how many rows come in one call,
// nor on how channels and heads are shared among threads.
//
// A gated delta net:    convolve (channels), then correct_heads (heads)
// Kimi's delta:         convolve (channels) of three, then correct_channels (heads)
// A short convolution:  convolve_gated (channels)
// Mamba:                convolve (channels), then scan_channels (channels)
// RWKV 7's time mixing: advance_heads (heads); mixtures with the row before are made outside
// Mamba-2:              convolve (channels), then scan_heads (heads), then gate_groups (groups)
//
// Threads share what is in brackets; between two steps all of them must have finished the first.
#pragma once

#include "kernels/kernels.h"

namespace stretto {

// The rows of one slot in a batch: row t is index[t], or t itself where there is no index.
struct SlotRows {
    size_t n;
    const int32_t* index = nullptr;

    size_t operator[](size_t t) const { return index ? static_cast<size_t>(index[t]) : t; }
};

// Numbers of each row of a batch.
template <typename T>
struct Columns {
    T* data;
    size_t stride;

    T* row(size_t i) const { return data + i * stride; }
};

// The convolution of a layer. Its state is `history`, [kernel − 1][channels].
struct ConvolutionWeights {
    size_t kernel;      // 2 or more
    size_t channels;
    const float* taps;  // [kernel][channels], the newest last: the file's matrix transposed
    const float* bias;  // [channels]; null: none

    size_t state_floats() const { return (kernel - 1) * channels; }
};

// Channels [begin, end) of rows become silu(convolution), in place.
void convolve(const Kernels& kernels, const ConvolutionWeights& w, const SlotRows& rows, Columns<float> x,
              float* history, size_t begin, size_t end);

// out = c × convolution(b × x), for channels [begin, end); a row of bcx is b, c, x.
void convolve_gated(const Kernels& kernels, const ConvolutionWeights& w, const SlotRows& rows,
                    Columns<const float> bcx, Columns<float> out, float* history, size_t begin, size_t end);

// A gated delta net. Its state is [n_value_head][tiles of 16 values][key_size][16], then a scale for each head.
struct DeltaNetWeights {
    size_t n_key_head, n_value_head;
    size_t key_size, value_size;
    bool tiled;            // value head i has key head i mod n_key_head; else those of a key head stand together
    bool fused;            // a row of beta has, key head by key head, its value heads' beta, then their alpha
    const float* a;        // [n_value_head], negative
    const float* dt_bias;  // [n_value_head]
    const float* norm;     // [value_size]
    float eps;

    size_t channels() const { return 2 * n_key_head * key_size + n_value_head * value_size; }
    size_t head_floats() const { return state_tiles(value_size) * kStateLanes * key_size; }
    size_t state_floats() const { return n_value_head * (head_floats() + 1); }
    size_t scratch_floats() const;
};

struct DeltaNetRows {
    SlotRows rows;
    Columns<const float> qkv;          // convolved: queries, keys, values
    Columns<const float> gate;         // [n_value_head × value_size]
    Columns<const float> beta, alpha;  // [n_value_head] each
    Columns<float> out;                // [n_value_head × value_size]
};

// Value heads [begin, end).
void correct_heads(const Kernels& kernels, const DeltaNetWeights& w, const DeltaNetRows& rows, float* state,
                   float* scratch, size_t begin, size_t end);

// Kimi's delta attention. Its state is [n_head][head_size keys][head_size values].
struct KimiDeltaWeights {
    size_t n_head, head_size;
    const float* a;        // [n_head], negative
    const float* dt_bias;  // [n_head × head_size]
    const float* norm;     // [head_size]
    float eps;

    size_t state_floats() const { return n_head * head_size * head_size; }
    size_t scratch_floats() const { return 3 * head_size; }
};

struct KimiDeltaRows {
    SlotRows rows;
    Columns<const float> q, k, v;  // convolved: [n_head × head_size] each, as the next two
    Columns<const float> step;     // what decays are made of
    Columns<const float> gate;
    Columns<const float> beta;     // [n_head]
    Columns<float> out;            // [n_head × head_size]
};

// Heads [begin, end).
void correct_channels(const Kernels& kernels, const KimiDeltaWeights& w, const KimiDeltaRows& rows, float* state,
                      float* scratch, size_t begin, size_t end);

// A layer of Mamba's first version. Its state is [state_size][width].
struct MambaWeights {
    size_t width, state_size;
    const float* a;        // [state_size][width], negative
    const float* d;        // [width]
    const float* dt_bias;  // [width]

    size_t state_floats() const { return state_size * width; }
};

struct MambaRows {
    SlotRows rows;
    Columns<const float> x;     // convolved: [width]
    Columns<const float> b, c;  // [state_size] each
    Columns<float> gate;        // [width], changed
    Columns<float> out;         // [width]: comes with what the channels' steps are made of
};

// Channels [begin, end): what C reads of the state, × silu(gate).
void scan_channels(const Kernels& kernels, const MambaWeights& w, const MambaRows& rows, float* state, size_t begin,
                   size_t end);

// A Mamba-2 layer. Its state is [n_head][tiles of 16 values][state_size][16], then a scale for each head.
struct Mamba2Weights {
    size_t n_head, head_size;
    size_t n_group, state_size;
    const float* a;        // [n_head], negative
    const float* d;        // [n_head]
    const float* dt_bias;  // [n_head]
    const float* norm;     // [n_head × head_size]; null: none
    float eps;

    size_t inner() const { return n_head * head_size; }
    size_t channels() const { return inner() + 2 * n_group * state_size; }
    size_t projected() const { return inner() + channels() + n_head; }  // numbers of a row: gate, x B C, dt
    size_t head_floats() const { return state_tiles(head_size) * kStateLanes * state_size; }
    size_t state_floats() const { return n_head * (head_floats() + 1); }
};

struct Mamba2Rows {
    SlotRows rows;
    Columns<const float> projected;  // with channels [inner, inner + channels) convolved
    Columns<float> out;              // [inner]
};

// Heads [begin, end).
void scan_heads(const Kernels& kernels, const Mamba2Weights& w, const Mamba2Rows& rows, float* state, size_t begin,
                size_t end);

// Groups [begin, end) of each row: out × silu(gate), normalised. `scratch` has inner / n_group floats.
void gate_groups(const Kernels& kernels, const Mamba2Weights& w, const Mamba2Rows& rows, float* scratch, size_t begin,
                 size_t end);

// Time mixing of RWKV 7. Its state is [n_head][tiles of 16 values][head_size keys][16].
struct TimeMixWeights {
    size_t n_head, head_size;
    const float *decay_bias, *rate_bias, *value_bias;  // [n_head × head_size] each, as the next five
    const float *removal, *key_rate, *bonus;
    const float *norm, *norm_bias;                     // null: none
    float eps;

    size_t head_floats() const { return state_tiles(head_size) * kStateLanes * head_size; }
    size_t state_floats() const { return n_head * head_floats(); }
    size_t scratch_floats() const;
};

struct TimeMixRows {
    SlotRows rows;
    Columns<const float> receptance, key;
    Columns<const float> decay, rate;  // what they are made of
    Columns<float> value;              // changed, unless they are the first layer's
    Columns<const float> share, first;  // what the share of the first layer's values is made of, and they; null: none
    Columns<const float> gate;          // null: none
    Columns<float> out;
};

// Heads [begin, end).
void advance_heads(const Kernels& kernels, const TimeMixWeights& w, const TimeMixRows& rows, float* state, float* scratch,
                   size_t begin, size_t end);

}  // namespace stretto
