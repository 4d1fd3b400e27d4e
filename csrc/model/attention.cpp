// The attention of a layer: K and V are written to the cache, then every row attends to its view.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/rope.h"
#include "model/walk.h"

namespace stretto {

namespace {

// Numbers no further from 0 than `most`, if there is such a limit.
void clip(float* x, size_t n, float most) {
    for (size_t i = 0; i < n && most > 0.0f; ++i) x[i] = std::max(-most, std::min(x[i], most));
}

}  // namespace

void Decoder::Walk::attention(size_t layer) {
    const AttentionConfig& a = c_.layers[layer].attention;
    const Layer& w = d_.layers_[layer];
    const float* rows = a.joined ? join_rows(a.joined) : normed_;
    // q, k and v are one range of work: panels of one after the other.
    if (a.shared >= 0) {
        products({{&w.q.matrix, plan_.q}}, rows);
    } else if (a.values_are_keys) {
        products({{&w.q.matrix, plan_.q}, {&w.k.matrix, plan_.k}}, rows);
    } else {
        products({{&w.q.matrix, plan_.q}, {&w.k.matrix, plan_.k}, {&w.v.matrix, plan_.v}}, rows);
    }
    meet();
    if (a.q_norm.over == Over::kAll || a.k_norm.over == Over::kAll) prepare_whole_rows(layer);
    const bool is_shown = is_tapped(layer, Site::kHeads);
    const bool in_parts = !is_shown && !a.mixed_norm.there() && quantizes_parts(a.width(), a.group() * a.head_size);
    attend(layer, false, in_parts);
    meet();
    norm_inner(w.mixed_norm, plan_.mixed, a.width());
    if (is_shown) show(layer, Site::kHeads, plan_.mixed);
    if (!in_parts) quantize(plan_.mixed, a.width());
    product(w.o.matrix, plan_.mixed, n_, plan_.added, quantized_);
    meet();
}

// Normalised rows behind so many further numbers of their vectors, which are zeros for tokens without one.
const float* Decoder::Walk::join_rows(size_t joined) {
    const size_t n = c_.n_embd;
    for (size_t row = first_; row < last_; ++row) {
        const float* vector = input_.vectors.empty() ? nullptr : input_.vectors[row];
        float* to = renormed_ + row * (n + joined);
        if (vector) {
            std::memcpy(to, vector + n, joined * sizeof(float));
        } else {
            std::fill(to, to + joined, 0.0f);
        }
        std::memcpy(to + joined, row_of(normed_, row), n * sizeof(float));
    }
    quantize(renormed_, n + joined);
    return renormed_;
}

// Biases and norms that take a whole row of queries or keys.
void Decoder::Walk::prepare_whole_rows(size_t layer) {
    const AttentionConfig& a = c_.layers[layer].attention;
    const Layer& w = d_.layers_[layer];
    auto whole = [&](const Norm& norm, const std::vector<float>& bias, float* x, size_t size) {
        if (norm.config.over != Over::kAll || !norm.config.there()) return;
        if (a.bias) kernel_.add(x, bias.data(), size);
        clip(x, size, a.clip);
        d_.normalize(norm, x, size, x);
    };
    for (size_t row = first_; row < last_ && (!alone_ || thread_ == 0); ++row) {
        whole(w.q_norm, w.q.bias, plan_.q + row * a.width(), a.width());
        if (a.shared < 0) whole(w.k_norm, w.k.bias, plan_.k + row * a.kv_width(), a.kv_width());
    }
    meet();
}

// Bias, norm and rotation of one head of a row.
void Decoder::Walk::turn_head(size_t layer, size_t row, const std::vector<float>& bias, const Norm& norm, size_t head,
                              float* x) const {
    const AttentionConfig& a = c_.layers[layer].attention;
    const bool each = norm.config.there() && norm.config.over != Over::kAll;
    const bool prepared = norm.config.there() && norm.config.over == Over::kAll;  // with its bias
    auto normalize = [&] {
        d_.normalize(norm, x, a.head_size, x, norm.config.over == Over::kHeads ? head * a.head_size : 0);
    };
    if (a.bias && !prepared) kernel_.add(x, bias.data() + head * a.head_size, a.head_size);
    if (!prepared) clip(x, a.head_size, a.clip);
    if (each && !a.norm_after_rope) normalize();
    if (a.rope >= 0) {
        const Rope& rope = c_.ropes[a.rope];
        const size_t pairs = rope.frequencies.size();
        rotate(x, plan_.cos[a.rope] + row * pairs, plan_.sin[a.rope] + row * pairs, pairs, rope.adjacent);
    }
    if (each && a.norm_after_rope) normalize();
}

float* Decoder::Walk::queries_of(size_t layer, size_t row, size_t kv) const {
    const LayerConfig& config = c_.layers[layer];
    const AttentionConfig& a = config.attention;
    const bool apart = a.gate || config.mixer == MixerKind::kLatent;
    return (apart ? plan_.queries : plan_.q) + row * a.width() + kv * a.group() * a.head_size;
}

// The queries of one row that belong to a K/V head, as attention takes them.
void Decoder::Walk::turn_queries(size_t layer, size_t row, size_t kv, float* out) const {
    const AttentionConfig& a = c_.layers[layer].attention;
    const Layer& w = d_.layers_[layer];
    const size_t size = a.head_size, step = a.gate ? 2 * size : size;
    const float* from = plan_.q + (row * a.n_head + kv * a.group()) * step;
    float factor = 1.0f;
    if (a.slope != 0.0f) {
        const double steps = std::floor((double{a.offset} + input_.positions[row]) / a.length);
        factor = static_cast<float>(1.0 + a.slope * std::log1p(steps));
    }
    for (size_t h = 0; h < a.group(); ++h, from += step) {
        float* to = out + h * size;
        if (to != from) std::memcpy(to, from, size * sizeof(float));
        turn_head(layer, row, w.q.bias, w.q_norm, kv * a.group() + h, to);
        if (a.slope != 0.0f) {
            for (size_t i = 0; i < size; ++i) to[i] *= factor;
        }
    }
}

// One row's K and V of a head go into its cell.
void Decoder::Walk::store_heads(size_t layer, size_t row, size_t kv) {
    const AttentionConfig& a = c_.layers[layer].attention;
    if (a.shared >= 0) return;
    const Layer& w = d_.layers_[layer];
    const size_t size = a.head_size, cell = input_.cells[row];
    float* k = plan_.k + (row * a.n_kv_head + kv) * size;
    float* v = plan_.v + (row * a.n_kv_head + kv) * size;
    if (a.values_are_keys) std::memcpy(v, k, size * sizeof(float));
    turn_head(layer, row, w.k.bias, w.k_norm, kv, k);
    if (a.bias) kernel_.add(v, (a.values_are_keys ? w.k.bias : w.v.bias).data() + kv * size, size);
    clip(v, size, a.clip);
    if (w.v_norm.config.there()) d_.normalize(w.v_norm, v, size, v);
    uint8_t* key = d_.head_of(layer, cell, false, kv);
    uint8_t* value = d_.head_of(layer, cell, true, kv);
    kernel_.store_head(d_.cache_type_, k, size, key);
    kernel_.store_head(d_.cache_type_, v, size, value);
    d_.check_finite(key, size);
    d_.check_finite(value, size);
}

namespace {

// The largest score and the sum of weights when the sink is one of them.
struct WithSink {
    double factor;   // of what was summed without it
    double inverse;  // 1 / sum
};

WithSink with_sink(float max, float sum, float sink) {
    const double most = std::max(double{max}, double{sink});
    const double factor = std::exp(max - most);
    return {factor, 1.0 / (sum * factor + std::exp(sink - most))};
}

double capped(double score, float cap) { return cap > 0.0f ? cap * std::tanh(score / cap) : score; }

}  // namespace

// What a head's score of a cell falls by with its distance.
double Decoder::Walk::falling(const AttentionConfig& a, size_t head, size_t row, int32_t cell) const {
    if (a.alibi.empty()) return 0.0;
    return double{a.alibi[head]} * std::abs(static_cast<double>(input_.table[cell]) - input_.positions[row]);
}

// Adds the weights that the probed cells got from one row's heads: their scores again, normalised with the final
// largest score and sum.
void Decoder::Walk::measure(size_t layer, size_t row, size_t kv, const Partial& total, size_t at) const {
    const AttentionConfig& a = c_.layers[layer].attention;
    const std::vector<float>& sinks = d_.layers_[layer].sinks;
    const size_t n_probes = input_.probes.size();
    const int32_t begin = plan_.begins[plan_.window_of[layer]][row], end = ends_of(layer)[row];
    float* key = mine_.attention;
    for (size_t p = 0; p < n_probes; ++p) {
        const int32_t index = plan_.probed[row * n_probes + p];
        if (index < begin || index >= end || !chooses(layer, row, index)) continue;  // not in the view, or outside the window
        kernel_.load_head(d_.cache_type_, d_.head_of(layer, input_.probes[p], false, kv), a.head_size, key);
        for (size_t h = 0; h < a.group(); ++h) {
            const size_t head = kv * a.group() + h;
            const float* q = queries_of(layer, row, kv) + h * a.head_size;
            double score = 0.0;
            for (size_t i = 0; i < a.head_size; ++i) score += double{q[i]} * double{key[i]};
            score = capped(score * a.scale, a.cap) - falling(a, head, row, input_.probes[p]);
            double weight = std::exp(score - total.max[at + h]);
            if (a.sinks) {
                const WithSink with = with_sink(total.max[at + h], total.sum[at + h], sinks[head]);
                weight *= with.factor * with.inverse;
            } else {
                weight /= total.sum[at + h];
            }
            plan_.received[(row * d_.most_heads_ + head) * n_probes + p] += static_cast<float>(weight);
        }
    }
}

const int32_t* Decoder::Walk::ends_of(size_t layer) const {
    const AttentionConfig& a = c_.layers[layer].attention;
    const std::vector<int32_t>& ends = plan_.ends[plan_.window_of[layer]];
    if (!a.causal) return ends.empty() ? input_.lengths : ends.data();
    const bool wide = !c_.two_way() && (!c_.windowed_images || a.window);
    return input_.causal && !wide ? input_.causal : input_.lengths;
}

// All the weights that one watched row's heads give, as a softmax of their scores; 0 outside the window.
void Decoder::Walk::show(size_t layer, size_t at, size_t kv) const {
    const AttentionConfig& a = c_.layers[layer].attention;
    const std::vector<float>& sinks = d_.layers_[layer].sinks;
    const size_t row = input_.watched[at], group = a.group();
    const size_t begin = plan_.begins[plan_.window_of[layer]][row], end = ends_of(layer)[row];
    const size_t length = input_.lengths[row];
    const int32_t* view = input_.views[input_.view_of[row]];
    float* out = plan_.watched + plan_.shown[at] + (layer * d_.most_heads_ + kv * group) * length;  // [group][length]
    float* key = mine_.attention;
    for (size_t i = begin; i < end; ++i) {
        kernel_.load_head(d_.cache_type_, d_.head_of(layer, view[i], false, kv), a.head_size, key);
        for (size_t h = 0; h < group; ++h) {
            const float* q = queries_of(layer, row, kv) + h * a.head_size;
            double score = 0.0;
            for (size_t d = 0; d < a.head_size; ++d) score += double{q[d]} * double{key[d]};
            score = capped(score * a.scale, a.cap) - falling(a, kv * group + h, row, view[i]);
            out[h * length + i] = chooses(layer, row, static_cast<int32_t>(i)) ? static_cast<float>(score) : -INFINITY;
        }
    }
    for (size_t h = 0; h < group; ++h, out += length) {
        double most = *std::max_element(out + begin, out + end), sum = 0.0;
        if (a.sinks) {
            most = std::max(most, double{sinks[kv * group + h]});
            sum = std::exp(sinks[kv * group + h] - most);
        }
        for (size_t i = begin; i < end; ++i) sum += std::exp(out[i] - most);
        for (size_t i = begin; i < end; ++i) out[i] = static_cast<float>(std::exp(out[i] - most) / sum);
    }
}

// `prepared`: queries are ready and K and V are in the cache. `quantizes`: what rows get becomes integers as well.
void Decoder::Walk::attend(size_t layer, bool prepared, bool quantizes) {
    const AttentionConfig& a = c_.layers[layer].attention;
    const Layer& w = d_.layers_[layer];
    const size_t group = a.group(), size = padded(a.head_size), heads = a.n_kv_head;
    const std::vector<int32_t>& begins = plan_.begins[plan_.window_of[layer]];
    const bool split = plan_.split[layer], meets = !prepared && (!alone_ || (split && plan_.meets_if_split));
    const bool itself = !prepared && !meets;  // a single row's queries, K and V are made where they are needed

    // Every K and V of the batch is in the cache, as it is stored, before any thread reads it. A single row needs no
    // barrier: the thread that attends to its cell stores it first, and the one that needs its queries computes them.
    const size_t items = n_ * heads;
    const size_t store_task = next_task(), attend_task = next_task();
    if (meets) {
        const size_t step = std::max<size_t>(1, items / (4 * n_threads_));
        Share share(plan_.cursors, store_task, pieces_of(items, step), thread_, n_threads_);
        for (size_t piece; share.next(&piece);) {
            const size_t end = std::min((piece + 1) * step, items);
            for (size_t item = piece * step; item < end; ++item) {
                const size_t row = item / heads, kv = item % heads;
                turn_queries(layer, row, kv, queries_of(layer, row, kv));
                store_heads(layer, row, kv);
            }
        }
        meet();
    }

    auto task = [&](const RowBlock& block, size_t kv, const float* queries) {
        Attention task;
        task.type = d_.cache_type_;
        task.finite = d_.cache_type_ == CacheType::kHalf && d_.finite_.load(std::memory_order_relaxed);
        task.keys = d_.head_of(layer, 0, false, kv);
        task.values = d_.head_of(layer, 0, true, kv);
        task.places = plan_.places[plan_.places_of[layer] + input_.view_of[block.row]];
        task.head_size = a.head_size;
        task.group = group;
        task.scale = a.scale;
        task.cap = a.cap;
        task.queries = queries;
        task.query_stride = a.width();
        task.begins = begins.data() + block.row;
        task.ends = ends_of(layer) + block.row;
        task.rows = block.rows;
        if (!a.alibi.empty()) {
            task.slopes = a.alibi.data() + kv * group;
            task.view = input_.views[input_.view_of[block.row]];
            task.positions = input_.positions + block.row;
            task.table = input_.table;
        }
        task.scratch = mine_.attention;
        return task;
    };
    auto finish = [&](const RowBlock& block, size_t kv, const Partial& total) {
        for (size_t at = 0; at < input_.watched.size(); ++at) {
            if (input_.watched[at] - block.row < block.rows) show(layer, at, kv);
        }
        for (size_t row = 0; row < block.rows; ++row) {
            if (!input_.probes.empty()) measure(layer, block.row + row, kv, total, row * group);
            for (size_t h = 0; h < group; ++h) {
                const size_t at = row * group + h, head = kv * group + h;
                const float* from = total.out + at * size;
                float* to = plan_.mixed + ((block.row + row) * a.n_head + head) * a.head_size;
                float inverse = 1.0f / total.sum[at];
                if (a.sinks) {
                    const WithSink with = with_sink(total.max[at], total.sum[at], w.sinks[head]);
                    inverse = static_cast<float>(with.factor * with.inverse);
                }
                for (size_t i = 0; i < a.head_size; ++i) to[i] = from[i] * inverse;
                if (!a.gate) continue;
                const float* gate = plan_.q + ((block.row + row) * a.n_head + head) * 2 * a.head_size + a.head_size;
                for (size_t i = 0; i < a.head_size; ++i) to[i] *= 1.0f / (1.0f + std::exp(-gate[i]));
            }
            if (quantizes) {
                const size_t at = block.row + row, heads_of = group * a.head_size;
                quantize_part(plan_.mixed + at * a.width(), a.width(), at, kv * heads_of, (kv + 1) * heads_of, quantized_);
            }
        }
    };
    // The first view entry that any row of the block sees, at the start of its span.
    auto first_span = [&](const RowBlock& block) {
        int32_t least = begins[block.row];
        for (size_t row = 1; row < block.rows; ++row) least = std::min(least, begins[block.row + row]);
        return static_cast<size_t>(least) / kSpan;
    };
    const int32_t* ends = ends_of(layer);
    // Behind the last view entry that any row of the block sees.
    auto last_of = [&](const RowBlock& block) {
        if (ends == input_.lengths) return block.last;
        return static_cast<size_t>(*std::max_element(ends + block.row, ends + block.row + block.rows));
    };
    auto part_of = [&](size_t block, size_t kv, size_t span) {
        const size_t at = ((block * heads + kv) * plan_.spans + span) * kRowsAtOnce * group;
        return Partial{plan_.partials.max + at, plan_.partials.sum + at, plan_.partials.out + at * size};
    };

    const size_t n_tasks = plan_.blocks.size() * heads;
    // Another task probably comes after this one, and its cells are in no cache yet.
    auto expect = [&](Attention& this_one, size_t other) {
        const RowBlock& block = plan_.blocks[other / heads];
        this_one.next_keys = d_.head_of(layer, 0, false, other % heads);
        this_one.next_places = plan_.places[plan_.places_of[layer] + input_.view_of[block.row]] + first_span(block) * kSpan;
    };
    if (!split) {
        Share share(plan_.cursors, attend_task, n_tasks, thread_, n_threads_);
        for (size_t task_at; share.next(&task_at);) {
            // The last first: in a prompt it sees most and takes longest.
            const size_t which = n_tasks - 1 - task_at;
            const RowBlock& block = plan_.blocks[which / heads];
            const size_t kv = which % heads;
            float* queries = queries_of(layer, block.row, kv);
            if (itself) {
                turn_queries(layer, 0, kv, queries);
                store_heads(layer, 0, kv);
            }
            Attention part = task(block, kv, queries);
            const size_t from = first_span(block), last = last_of(block);
            if (which > 0) expect(part, which - 1);
            kernel_.attend(part, from * kSpan, std::min((from + 1) * kSpan, last), mine_.total);
            for (size_t at = (from + 1) * kSpan; at < last; at += kSpan) {
                kernel_.attend(part, at, std::min(at + kSpan, last), mine_.partial);
                kernel_.merge(block.rows * group, a.head_size, mine_.total, mine_.partial);
            }
            finish(block, kv, mine_.total);
        }
        return;
    }
    std::atomic<size_t>* done = plan_.done.get() + layer * plan_.blocks.size() * plan_.most.cached_heads;
    size_t turned = heads;  // whose queries this thread has made
    Share share(plan_.cursors, attend_task, n_tasks * plan_.spans, thread_, n_threads_);
    for (size_t part; share.next(&part);) {
        const size_t span = part % plan_.spans, which = part / plan_.spans, at = which / heads;
        const size_t kv = which % heads;
        const RowBlock& block = plan_.blocks[at];
        const size_t from = first_span(block), last = last_of(block), end = pieces_of(last, kSpan);
        if (span < from || span >= end) continue;
        if (itself) {
            if (turned != kv) turn_queries(layer, 0, kv, mine_.queries);
            turned = kv;
            if (span == plan_.own_span) store_heads(layer, 0, kv);
        }
        Attention each = task(block, kv, itself ? mine_.queries : queries_of(layer, block.row, kv));
        if (which + 1 < n_tasks) expect(each, which + 1);
        kernel_.attend(each, span * kSpan, std::min((span + 1) * kSpan, last), part_of(at, kv, span));
        // Who is the last merges them all, in order.
        if (done[which].fetch_add(1, std::memory_order_acq_rel) + 1 < end - from) continue;
        const Partial total = part_of(at, kv, from);
        for (size_t next = from + 1; next < end; ++next) {
            kernel_.merge(block.rows * group, a.head_size, total, part_of(at, kv, next));
        }
        finish(block, kv, total);
    }
}

}  // namespace stretto
