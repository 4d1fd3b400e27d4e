// Latent attention: queries are brought into the space of the compressed vectors, head by head; attention reads one
// vector for each cell, for all heads; and its results are brought back, head by head.

#include <algorithm>
#include <cstring>

#include "model/rope.h"
#include "model/walk.h"

namespace stretto {

void Decoder::Walk::latent(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const LatentConfig& l = config.latent;
    const Layer& w = d_.layers_[layer];
    const size_t n_head = config.attention.n_head, q_size = l.nope_size + l.rope_size;
    const bool indexes = l.indexer.top_k > 0;
    if (l.q_rank) {
        if (indexes) {
            products({{&w.q_a.matrix, plan_.compressed}, {&w.kv_a.matrix, plan_.k}, {&w.index_k, plan_.index_k},
                      {&w.index_weights, plan_.index_weights}},
                     normed_);
        } else {
            products({{&w.q_a.matrix, plan_.compressed}, {&w.kv_a.matrix, plan_.k}}, normed_);
        }
        meet();
        for (size_t row = first_; row < last_; ++row) {
            d_.normalize(w.q_norm, plan_.compressed + row * l.q_rank, l.q_rank, normed_ + row * l.q_rank);
        }
        quantize(normed_, l.q_rank);
        if (indexes) {
            products({{&w.q.matrix, plan_.q}, {&w.index_q, plan_.index_q}}, normed_);
        } else {
            product(w.q.matrix, normed_, n_, plan_.q, quantized_);
        }
    } else {
        products({{&w.q.matrix, plan_.q}, {&w.kv_a.matrix, plan_.k}}, normed_);
    }
    meet();
    head_products(w.k_b, plan_.q, n_head * q_size, q_size);
    prepare_latent(layer);
    // Rows that see no more than they may choose attend as if there were no indexer.
    const int32_t* ends = ends_of(layer);
    const auto must_choose = [&](int32_t end) { return static_cast<size_t>(end) > l.top_k; };
    if (l.top_k && std::any_of(ends, ends + n_, must_choose)) {
        if (indexes) choose_cells(layer);
        attend_chosen(layer);
    } else {
        attend(layer, true, false);
    }
    meet();
    head_products(w.v_b, plan_.mixed, config.attention.width(), config.attention.head_size);
    const size_t first = n_ * thread_ / n_threads_, last = n_ * (thread_ + 1) / n_threads_;
    for (size_t row = first; row < last; ++row) {
        for (size_t h = 0; h < n_head; ++h) {
            std::memcpy(plan_.heads + (row * n_head + h) * l.value_size, plan_.grouped + (h * n_ + row) * l.value_size,
                        l.value_size * sizeof(float));
        }
    }
    meet();
    show(layer, Site::kHeads, plan_.heads);
    quantize(plan_.heads, n_head * l.value_size);
    product(w.o.matrix, plan_.heads, n_, plan_.added, quantized_);
    meet();
}

// Each head's part of each row × that head's matrix, in Plan::grouped: [head][n][rows of a matrix]. A row's parts are
// `step` apart, rows `stride`.
void Decoder::Walk::head_products(const std::vector<Matrix>& matrices, const float* from, size_t stride, size_t step) {
    const Matrix& one = matrices[0];
    const size_t columns = one.columns;
    groups_.clear();
    for (size_t h = 0; h < matrices.size(); ++h) groups_.push_back({h, h * n_, n_, {}, nullptr});
    place_groups(columns);
    gather(columns, is_float(one.layout),
           [&](const Group& group, size_t row) { return from + row * stride + group.index * step; });
    each_group(one.panels(), [&](const Group& group, size_t begin, size_t end) {
        d_.multiply(matrices[group.index], {group.in, group.floats, 0, group.count}, begin, end,
                    plan_.grouped + group.first * one.rows, mine_.product);
    });
    meet();
}

// Queries from Plan::grouped and the rotated parts of Plan::q; compressed vectors into their cells.
void Decoder::Walk::prepare_latent(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const LatentConfig& l = config.latent;
    const AttentionConfig& a = config.attention;
    const Layer& w = d_.layers_[layer];
    const size_t q_size = l.nope_size + l.rope_size;
    auto turn = [&](float* x, size_t row) {
        if (a.rope < 0) return;
        const Rope& rope = c_.ropes[a.rope];
        const size_t pairs = rope.frequencies.size();
        rotate(x, plan_.cos[a.rope] + row * pairs, plan_.sin[a.rope] + row * pairs, pairs, rope.adjacent);
    };
    const size_t first = n_ * thread_ / n_threads_, last = n_ * (thread_ + 1) / n_threads_;
    for (size_t row = first; row < last; ++row) {
        for (size_t h = 0; h < a.n_head; ++h) {
            float* to = queries_of(layer, row, 0) + h * a.head_size;
            std::memcpy(to, plan_.grouped + (h * n_ + row) * l.rank, l.rank * sizeof(float));
            std::memcpy(to + l.rank, plan_.q + (row * a.n_head + h) * q_size + l.nope_size, l.rope_size * sizeof(float));
            turn(to + l.rank, row);
        }
        float* k = plan_.k + row * a.head_size;
        d_.normalize(w.k_norm, k, l.rank, k);
        turn(k + l.rank, row);
        uint8_t* key = d_.head_of(layer, input_.cells[row], false, 0);
        kernel_.store_head(d_.cache_type_, k, a.head_size, key);
        d_.check_finite(key, a.head_size);
        if (l.indexer.top_k) prepare_index(layer, row);
    }
    meet();
}

}  // namespace stretto
