// The attention of a layer: K and V are written to the cache, then every row attends to its view.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "plan.h"
#include "rope.h"

namespace stretto {

// Bias, norm and rotation of one head of a row.
void Decoder::turn_head(const Plan& plan, size_t layer, size_t row, const std::vector<float>& bias,
                        const std::vector<float>& norm, size_t head, float* x) const {
    const Config& c = config_;
    const int r = c.layers[layer].rope;
    const Rope& rope = c.ropes[r];
    const size_t pairs = rope.frequencies.size();
    if (c.qkv_bias) kernels_->add(x, bias.data() + head * c.head_size, c.head_size);
    if (c.qk_norm) kernels_->rms_norm(x, norm.data(), c.head_size, c.norm_eps, x);
    rotate(x, plan.cos[r] + row * pairs, plan.sin[r] + row * pairs, pairs, rope.adjacent);
}

// The queries of one row that belong to a K/V head, as attention takes them.
void Decoder::turn_queries(const Plan& plan, size_t layer, size_t row, size_t kv, float* out) const {
    const Config& c = config_;
    const size_t size = c.head_size, group = c.n_head / c.n_kv_head;
    const float* from = plan.q + (row * c.n_head + kv * group) * size;
    if (out != from) std::memcpy(out, from, group * size * sizeof(float));
    for (size_t h = 0; h < group; ++h) {
        turn_head(plan, layer, row, layers_[layer].q_bias, layers_[layer].q_norm, kv * group + h, out + h * size);
    }
}

// One row's K and V of a head go into its cell.
void Decoder::store_heads(Plan& plan, size_t layer, size_t row, size_t kv) {
    const Config& c = config_;
    const Layer& l = layers_[layer];
    const size_t size = c.head_size;
    float* k = plan.k + (row * c.n_kv_head + kv) * size;
    float* v = plan.v + (row * c.n_kv_head + kv) * size;
    turn_head(plan, layer, row, l.k_bias, l.k_norm, kv, k);
    if (c.qkv_bias) kernels_->add(v, l.v_bias.data() + kv * size, size);
    const size_t cell = plan.input->cells[row];
    kernels_->store_head(cache_type_, k, size, head_of(layer, cell, false, kv));
    kernels_->store_head(cache_type_, v, size, head_of(layer, cell, true, kv));
    check_finite(head_of(layer, cell, false, kv));
    check_finite(head_of(layer, cell, true, kv));
}

// Adds the weights that the probed cells got from one row's heads: their scores again, normalised with the final
// largest score and sum.
void Decoder::measure(Plan& plan, size_t layer, size_t row, size_t kv, const Partial& total, size_t at,
                      float* scratch) const {
    const Config& c = config_;
    const Input& input = *plan.input;
    const size_t group = c.n_head / c.n_kv_head, n_probes = input.probes.size();
    const int32_t begin = plan.begins[plan.window_of[layer]][row];
    for (size_t p = 0; p < n_probes; ++p) {
        const int32_t index = plan.probed[row * n_probes + p];
        if (index < begin) continue;  // not in the view, or outside the window
        kernels_->load_head(cache_type_, head_of(layer, input.probes[p], false, kv), c.head_size, scratch);
        for (size_t h = 0; h < group; ++h) {
            const size_t head = kv * group + h;
            const float* q = plan.q + (row * c.n_head + head) * c.head_size;
            double score = 0.0;
            for (size_t i = 0; i < c.head_size; ++i) score += double{q[i]} * double{scratch[i]};
            score *= c.attention_scale;
            if (c.attention_cap > 0.0f) score = c.attention_cap * std::tanh(score / c.attention_cap);
            const double weight = std::exp(score - total.max[at + h]) / total.sum[at + h];
            plan.received[(row * c.n_head + head) * n_probes + p] += static_cast<float>(weight);
        }
    }
}

// All the weights that one watched row's heads give, as a softmax of their scores; 0 outside the window.
void Decoder::show(Plan& plan, size_t layer, size_t at, size_t kv, float* scratch) const {
    const Config& c = config_;
    const Input& input = *plan.input;
    const size_t row = input.watched[at], group = c.n_head / c.n_kv_head;
    const size_t begin = plan.begins[plan.window_of[layer]][row], end = input.lengths[row];
    const int32_t* view = input.views[input.view_of[row]];
    float* out = plan.watched + plan.shown[at] + (layer * c.n_head + kv * group) * end;  // [group][end]
    for (size_t i = begin; i < end; ++i) {
        kernels_->load_head(cache_type_, head_of(layer, view[i], false, kv), c.head_size, scratch);
        for (size_t h = 0; h < group; ++h) {
            const float* q = plan.q + (row * c.n_head + kv * group + h) * c.head_size;
            double score = 0.0;
            for (size_t d = 0; d < c.head_size; ++d) score += double{q[d]} * double{scratch[d]};
            score *= c.attention_scale;
            if (c.attention_cap > 0.0f) score = c.attention_cap * std::tanh(score / c.attention_cap);
            out[h * end + i] = static_cast<float>(score);
        }
    }
    for (size_t h = 0; h < group; ++h, out += end) {
        const double most = *std::max_element(out + begin, out + end);
        double sum = 0.0;
        for (size_t i = begin; i < end; ++i) sum += std::exp(out[i] - most);
        for (size_t i = begin; i < end; ++i) out[i] = static_cast<float>(std::exp(out[i] - most) / sum);
    }
}

void Decoder::attention(Plan& plan, int thread, size_t layer) {
    const Config& c = config_;
    const Kernels& kernel = *kernels_;
    const Input& input = *plan.input;
    Thread& mine = plan.threads[thread];
    const size_t group = c.n_head / c.n_kv_head, size = padded(c.head_size), n_threads = pool_.active();
    const std::vector<int32_t>& begins = plan.begins[plan.window_of[layer]];

    auto queries_of = [&](size_t row, size_t kv) { return plan.q + (row * c.n_head + kv * group) * c.head_size; };
    // Every K and V of the batch is in the cache, as it is stored, before any thread reads it. A single row needs no
    // barrier: the thread that attends to its cell stores it first, and the one that needs its queries computes them.
    const size_t items = input.n * c.n_kv_head;
    if (plan.meets) {
        const size_t step = std::max<size_t>(1, items / (4 * n_threads));
        Share share(plan.cursors, kLayerTasks * layer + 1, pieces_of(items, step), thread, n_threads);
        for (size_t piece; share.next(&piece);) {
            const size_t end = std::min((piece + 1) * step, items);
            for (size_t item = piece * step; item < end; ++item) {
                const size_t row = item / c.n_kv_head, kv = item % c.n_kv_head;
                turn_queries(plan, layer, row, kv, queries_of(row, kv));
                store_heads(plan, layer, row, kv);
            }
        }
        pool_.barrier(thread);
    }

    auto task = [&](const RowBlock& block, size_t kv, const float* queries) {
        Attention a;
        a.type = cache_type_;
        a.finite = cache_type_ == CacheType::kHalf && finite_.load(std::memory_order_relaxed);
        a.keys = head_of(layer, 0, false, kv);
        a.values = head_of(layer, 0, true, kv);
        a.cell_stride = head_bytes_;
        a.block_stride = block_bytes_;
        a.view = input.views[input.view_of[block.row]];
        a.head_size = c.head_size;
        a.group = group;
        a.scale = c.attention_scale;
        a.cap = c.attention_cap;
        a.queries = queries;
        a.query_stride = c.n_head * c.head_size;
        a.begins = begins.data() + block.row;
        a.ends = input.lengths + block.row;
        a.rows = block.rows;
        a.scratch = mine.attention;
        return a;
    };
    auto finish = [&](const RowBlock& block, size_t kv, const Partial& total) {
        for (size_t at = 0; at < input.watched.size(); ++at) {
            if (input.watched[at] - block.row < block.rows) show(plan, layer, at, kv, mine.attention);
        }
        for (size_t row = 0; row < block.rows; ++row) {
            if (!input.probes.empty()) measure(plan, layer, block.row + row, kv, total, row * group, mine.attention);
            for (size_t h = 0; h < group; ++h) {
                const float inverse = 1.0f / total.sum[row * group + h];
                const float* from = total.out + (row * group + h) * size;
                float* to = plan.mixed + ((block.row + row) * c.n_head + kv * group + h) * c.head_size;
                for (size_t i = 0; i < c.head_size; ++i) to[i] = from[i] * inverse;
            }
        }
    };
    // The first view entry that any row of the block sees, at the start of its span.
    auto first_span = [&](const RowBlock& block) {
        int32_t least = begins[block.row];
        for (size_t row = 1; row < block.rows; ++row) least = std::min(least, begins[block.row + row]);
        return static_cast<size_t>(least) / kSpan;
    };
    auto part_of = [&](size_t block, size_t kv, size_t span) {
        const size_t at = ((block * c.n_kv_head + kv) * plan.spans + span) * kRowsAtOnce * group;
        return Partial{plan.partials.max + at, plan.partials.sum + at, plan.partials.out + at * size};
    };

    const size_t n_tasks = plan.blocks.size() * c.n_kv_head;
    if (!plan.split) {
        Share share(plan.cursors, kLayerTasks * layer + 5, n_tasks, thread, n_threads);
        for (size_t task_at; share.next(&task_at);) {
            // The last first: in a prompt it sees most and takes longest.
            const size_t which = n_tasks - 1 - task_at;
            const RowBlock& block = plan.blocks[which / c.n_kv_head];
            const size_t kv = which % c.n_kv_head;
            float* queries = queries_of(block.row, kv);
            if (!plan.meets) {
                turn_queries(plan, layer, 0, kv, queries);
                store_heads(plan, layer, 0, kv);
            }
            const Attention a = task(block, kv, queries);
            const size_t from = first_span(block);
            kernel.attend(a, from * kSpan, std::min((from + 1) * kSpan, block.last), mine.total);
            for (size_t at = (from + 1) * kSpan; at < block.last; at += kSpan) {
                kernel.attend(a, at, std::min(at + kSpan, block.last), mine.partial);
                kernel.merge(block.rows * group, c.head_size, mine.total, mine.partial);
            }
            finish(block, kv, mine.total);
        }
        return;
    }
    std::atomic<size_t>* done = plan.done.get() + layer * n_tasks;
    size_t turned = c.n_kv_head;  // whose queries this thread has made
    Share share(plan.cursors, kLayerTasks * layer + 5, n_tasks * plan.spans, thread, n_threads);
    for (size_t part; share.next(&part);) {
        const size_t span = part % plan.spans, which = part / plan.spans, at = which / c.n_kv_head;
        const size_t kv = which % c.n_kv_head;
        const RowBlock& block = plan.blocks[at];
        const size_t from = first_span(block), end = pieces_of(block.last, kSpan);
        if (span < from || span >= end) continue;
        if (!plan.meets) {
            if (turned != kv) turn_queries(plan, layer, 0, kv, mine.queries);
            turned = kv;
            if (span == plan.own_span) store_heads(plan, layer, 0, kv);
        }
        const Attention a = task(block, kv, plan.meets ? queries_of(block.row, kv) : mine.queries);
        kernel.attend(a, span * kSpan, std::min((span + 1) * kSpan, block.last), part_of(at, kv, span));
        // Who is the last merges them all, in order.
        if (done[which].fetch_add(1, std::memory_order_acq_rel) + 1 < end - from) continue;
        const Partial total = part_of(at, kv, from);
        for (size_t next = from + 1; next < end; ++next) {
            kernel.merge(block.rows * group, c.head_size, total, part_of(at, kv, next));
        }
        finish(block, kv, total);
    }
}

}  // namespace stretto
