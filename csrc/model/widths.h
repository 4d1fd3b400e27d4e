// How much memory a pass needs for each row, by the largest layer.
#pragma once

#include "model/config.h"

namespace stretto {

// The largest sizes that any layer of a model needs.
struct Widths {
    size_t input = 0;       // of a product: rows of this many numbers are quantised
    size_t q = 0, queries = 0, kv = 0, mixed = 0, heads = 0, compressed = 0;
    size_t ff = 0;          // of a dense feed-forward
    size_t n_expert = 0, n_used = 0, expert_ff = 0;
    size_t projected = 0, inner = 0, recurrent_heads = 0, recurrent_scratch = 0;  // of recurrent mixers
    size_t first_values = 0;
    size_t joined = 0;      // rows with what stands before them
    bool beside = false;    // attention and a recurrent mixer in one layer
    size_t head_size = 0, group = 0, cached_heads = 0;
    size_t index_heads = 0, index_size = 0, index_q = 0, top_k = 0;  // of indexers
    size_t narrow = 0;      // ranks of residuals, sizes of layers' inputs
    bool renorms = false, has_beside = false;
    size_t head_products = 0, head_columns = 0, head_rows = 0;  // matrices for each head: how many, how large
};

Widths widths_of(const Config& config);

}  // namespace stretto
