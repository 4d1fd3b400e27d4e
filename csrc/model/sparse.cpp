// Sparse latent attention: an indexer gives every cell a score, and a row attends to those with the best ones.
//
// What a row chooses depends on the cells that it sees alone: a score is computed from one cell, and of equal scores the
// cells that come first are taken.

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/rope.h"
#include "model/walk.h"

namespace stretto {

// A row's key goes into its cell, and its queries are rotated.
void Decoder::Walk::prepare_index(size_t layer, size_t row) {
    const IndexerConfig& c = c_.layers[layer].latent.indexer;
    const Rope& rope = c_.ropes[c.rope];
    const size_t pairs = rope.frequencies.size();
    const float *cos = plan_.cos[c.rope] + row * pairs, *sin = plan_.sin[c.rope] + row * pairs;
    float* k = plan_.index_k + row * c.head_size;
    d_.normalize(d_.layers_[layer].index_norm, k, c.head_size, k);
    rotate(k, cos, sin, pairs, rope.adjacent);
    uint8_t* key = d_.index_of(layer, input_.cells[row]);
    kernel_.store_head(d_.cache_type_, k, c.head_size, key);
    d_.check_finite(key, c.head_size);
    float* q = plan_.index_q + row * c.n_head * c.head_size;
    for (size_t h = 0; h < c.n_head; ++h) rotate(q + h * c.head_size, cos, sin, pairs, rope.adjacent);
    float* weights = plan_.index_weights + row * c.n_head;
    for (size_t h = 0; h < c.n_head; ++h) weights[h] *= c.scale;
}

// The scores of entries [begin, end) of a row's view, one span at most.
void Decoder::Walk::score_cells(size_t layer, size_t row, size_t begin, size_t end, float* scores) const {
    const IndexerConfig& c = c_.layers[layer].latent.indexer;
    const int32_t* view = input_.views[input_.view_of[row]];
    place_cells(view + begin, end - begin, head_bytes(d_.cache_type_, c.head_size), d_.block_bytes_, mine_.places);
    IndexScores task;
    task.type = d_.cache_type_;
    task.keys = d_.index_of(layer, 0);
    task.places = mine_.places;
    task.head_size = c.head_size;
    task.n_head = c.n_head;
    task.queries = plan_.index_q + row * c.n_head * c.head_size;
    task.weights = plan_.index_weights + row * c.n_head;
    task.scratch = mine_.attention;
    kernel_.score_index(task, end - begin, scores);
}

void Decoder::Walk::choose_best(size_t layer, size_t row, const float* scores) const {
    const size_t n = static_cast<size_t>(ends_of(layer)[row]), top_k = c_.layers[layer].latent.top_k;
    // What is no number comes last: without an order there would be no choice.
    const auto of = [&](int32_t i) { return std::isnan(scores[i]) ? -std::numeric_limits<float>::infinity() : scores[i]; };
    const auto better = [&](int32_t i, int32_t j) { return of(i) > of(j) || (of(i) == of(j) && i < j); };
    int32_t* ranked = mine_.ranked;
    for (size_t i = 0; i < n; ++i) ranked[i] = static_cast<int32_t>(i);
    std::nth_element(ranked, ranked + (top_k - 1), ranked + n, better);
    std::sort(ranked, ranked + top_k);
    std::copy_n(ranked, top_k, plan_.chosen_cells + row * plan_.n_chosen);
}

void Decoder::Walk::choose_cells(size_t layer) {
    const size_t top_k = c_.layers[layer].latent.top_k;
    const int32_t* ends = ends_of(layer);
    const size_t task = next_task();
    if (alone_) {
        const size_t n = static_cast<size_t>(ends[0]);
        float* scores = plan_.threads[0].index_scores;
        Share share(plan_.cursors, task, pieces_of(n, kSpan), thread_, n_threads_);
        for (size_t span; share.next(&span);) {
            score_cells(layer, 0, span * kSpan, std::min((span + 1) * kSpan, n), scores + span * kSpan);
        }
        meet();
        if (thread_ == 0) choose_best(layer, 0, scores);
    } else {
        Share share(plan_.cursors, task, n_, thread_, n_threads_);
        for (size_t row; share.next(&row);) {
            const size_t n = static_cast<size_t>(ends[row]);
            if (n <= top_k) continue;
            for (size_t at = 0; at < n; at += kSpan) {
                score_cells(layer, row, at, std::min(at + kSpan, n), mine_.index_scores + at);
            }
            choose_best(layer, row, mine_.index_scores);
        }
    }
    meet();
}

bool Decoder::Walk::chooses(size_t layer, size_t row, int32_t entry) const {
    const size_t top_k = c_.layers[layer].latent.top_k;
    if (!top_k || static_cast<size_t>(ends_of(layer)[row]) <= top_k) return true;
    return std::binary_search(chosen_by(row), chosen_by(row) + top_k, entry);
}

// Rows one by one, some heads at a time: they share no cells. The bits are those of rows that attend together.
void Decoder::Walk::attend_chosen(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const AttentionConfig& a = config.attention;
    const size_t top_k = config.latent.top_k, size = padded(a.head_size);
    const int32_t* ends = ends_of(layer);
    const bool measured = !input_.probes.empty() || !input_.watched.empty();
    const size_t step = measured ? a.n_head : kMostHeads, parts = pieces_of(a.n_head, step);
    const int32_t begin = 0;
    Share share(plan_.cursors, next_task(), n_ * parts, thread_, n_threads_);
    for (size_t which; share.next(&which);) {
        const size_t row = which / parts, first = which % parts * step;
        const size_t* places = plan_.places[plan_.places_of[layer] + input_.view_of[row]];
        int32_t end = ends[row];
        if (static_cast<size_t>(end) > top_k) {
            end = static_cast<int32_t>(top_k);
            for (size_t i = 0; i < top_k; ++i) mine_.places[i] = places[chosen_by(row)[i]];
            std::fill_n(mine_.places + top_k, kPlacesBehind, mine_.places[top_k - 1]);
            places = mine_.places;
        }
        Attention task;
        task.type = d_.cache_type_;
        task.finite = d_.cache_type_ == CacheType::kHalf && d_.finite_.load(std::memory_order_relaxed);
        task.keys = d_.head_of(layer, 0, false, 0);
        task.values = d_.head_of(layer, 0, true, 0);
        task.places = places;
        task.head_size = a.head_size;
        task.group = std::min(step, a.n_head - first);
        task.scale = a.scale;
        task.cap = a.cap;
        task.queries = queries_of(layer, row, 0) + first * a.head_size;
        task.query_stride = a.width();
        task.begins = &begin;
        task.ends = &end;
        task.rows = 1;
        task.scratch = mine_.attention;
        const size_t last = static_cast<size_t>(end);
        kernel_.attend(task, 0, std::min(kSpan, last), mine_.total);
        for (size_t at = kSpan; at < last; at += kSpan) {
            kernel_.attend(task, at, std::min(at + kSpan, last), mine_.partial);
            kernel_.merge(task.group, a.head_size, mine_.total, mine_.partial);
        }
        for (size_t at = 0; at < input_.watched.size(); ++at) {
            if (input_.watched[at] == row) show(layer, at, 0);
        }
        if (!input_.probes.empty()) measure(layer, row, 0, mine_.total, 0);
        for (size_t h = 0; h < task.group; ++h) {
            const float* from = mine_.total.out + h * size;
            float* to = plan_.mixed + (row * a.n_head + first + h) * a.head_size;
            const float inverse = 1.0f / mine_.total.sum[h];
            for (size_t i = 0; i < a.head_size; ++i) to[i] = from[i] * inverse;
        }
    }
}

}  // namespace stretto
