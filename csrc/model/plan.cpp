// Making the plan of a forward pass: which rows attend together, and memory for all that layers compute.

#include "model/plan.h"

#include <cmath>
#include <tuple>

#include "memory/carver.h"
#include "model/recurrent_layer.h"
#include "model/rope.h"

namespace stretto {

namespace {

void widen(size_t& most, size_t size) { most = std::max(most, size); }

}  // namespace

Widths widths_of(const Config& config) {
    Widths w;
    w.input = config.n_embd;
    for (const LayerConfig& layer : config.layers) {
        const AttentionConfig& a = layer.attention;
        if (layer.attends()) {
            widen(w.head_size, a.head_size);
            widen(w.group, a.group());
            widen(w.cached_heads, a.n_kv_head);
            widen(w.kv, a.kv_width());
            widen(w.mixed, a.width());
        }
        if (layer.has_attention()) {
            widen(w.q, a.width() * (a.gate ? 2 : 1));
            if (a.gate) widen(w.queries, a.width());
            const size_t joined = a.joined ? config.n_embd + a.joined : 0;
            widen(w.input, std::max(a.width(), joined));
            widen(w.joined, joined);
        } else if (layer.mixer == MixerKind::kLatent) {
            const LatentConfig& l = layer.latent;
            widen(w.q, a.n_head * (l.nope_size + l.rope_size));
            widen(w.queries, a.width());
            widen(w.compressed, l.q_rank);
            widen(w.heads, a.n_head * l.value_size);
            widen(w.input, std::max(l.q_rank, a.n_head * l.value_size));
            widen(w.head_products, a.n_head);
            widen(w.head_columns, std::max(l.nope_size, l.rank));
            widen(w.head_rows, std::max(l.rank, l.value_size));
            widen(w.head_size, l.indexer.head_size);
            widen(w.index_heads, l.indexer.n_head);
            widen(w.index_size, l.indexer.head_size);
            widen(w.index_q, l.indexer.n_head * l.indexer.head_size);
            widen(w.top_k, l.indexer.top_k);
        }
        if (layer.is_delta_net()) {
            const DeltaNetWeights net = delta_net_of(layer.recurrent, {});
            widen(w.projected, net.channels());
            widen(w.inner, net.n_value_head * net.value_size);
            widen(w.recurrent_heads, 2 * net.n_value_head);
            widen(w.recurrent_scratch, net.scratch_floats());
        }
        if (layer.is_convolution()) {
            widen(w.projected, 3 * layer.recurrent.width);
            widen(w.inner, layer.recurrent.width);
        }
        if (layer.is_kimi_delta()) {
            const RecurrentConfig& r = layer.recurrent;
            widen(w.q, r.width);
            widen(w.kv, r.width);
            widen(w.projected, r.width);
            widen(w.inner, r.width);
            widen(w.recurrent_heads, std::max(r.n_head, 2 * r.rank));
            widen(w.recurrent_scratch, kimi_delta_of(r, {}).scratch_floats());
            widen(w.input, r.rank);
        }
        if (layer.is_time_mix()) {
            const RecurrentConfig& r = layer.recurrent;
            widen(w.q, r.width);
            widen(w.kv, r.width);
            widen(w.projected, 3 * r.width);
            widen(w.inner, r.width);
            widen(w.first_values, r.width);
            widen(w.recurrent_heads, r.rank + r.rate_rank + r.value_rank + r.gate_rank);
            widen(w.recurrent_scratch, time_mix_of(r, {}).scratch_floats());
            widen(w.recurrent_scratch, std::max({r.width, r.rank, r.rate_rank, r.value_rank, r.gate_rank}));
            widen(w.input, std::max({r.rank, r.rate_rank, r.value_rank, r.gate_rank}));
        }
        if (layer.dense.shift) {
            widen(w.inner, layer.dense.shift);
            widen(w.recurrent_scratch, layer.dense.shift);
        }
        if (layer.is_mamba()) {
            const RecurrentConfig& r = layer.recurrent;
            widen(w.projected, r.width);
            widen(w.inner, r.width);
            widen(w.recurrent_heads, std::max(r.rank, 2 * r.state_size));
            widen(w.input, r.rank);
        }
        if (layer.has_mamba2()) {
            const Mamba2Weights net = mamba2_of(layer.recurrent, {});
            widen(w.projected, net.projected());
            widen(w.inner, net.inner());
            widen(w.recurrent_scratch, net.inner() / net.n_group);
        }
        w.beside = w.beside || layer.mixer == MixerKind::kBeside;
        if (layer.ffn == FeedForwardKind::kDense) widen(w.ff, layer.dense.n_ff);
        if (layer.ffn == FeedForwardKind::kExperts) {
            const ExpertsConfig& e = layer.experts;
            widen(w.ff, e.shared.n_ff);
            widen(w.n_expert, e.n_expert);
            widen(w.n_used, e.routing.n_used);
            widen(w.expert_ff, e.expert.n_ff);
            w.renorms = w.renorms || e.renorms();
        }
        widen(w.narrow, std::max(layer.low_rank.rank, layer.input.size));
    }
    widen(w.input, std::max({w.ff, w.inner, w.narrow}));
    w.has_beside = w.narrow || config.n_stream() > 1;
    return w;
}

// Rows that follow each other and share a view attend together.
void Decoder::place_rows(Plan& plan) const {
    const Input& input = *plan.input;
    plan.spans = 1;
    plan.seen.assign(input.views.size(), 0);
    for (size_t row = 0; row < input.n;) {
        RowBlock block{row, 1, static_cast<size_t>(input.lengths[row])};
        while (row + block.rows < input.n && block.rows < kRowsAtOnce &&
               input.view_of[row + block.rows] == input.view_of[row]) {
            block.last = std::max(block.last, static_cast<size_t>(input.lengths[row + block.rows]));
            ++block.rows;
        }
        plan.spans = std::max(plan.spans, (block.last + kSpan - 1) / kSpan);
        widen(plan.seen[static_cast<size_t>(input.view_of[row])], block.last);
        plan.blocks.push_back(block);
        row += block.rows;
    }
    const size_t n_threads = pool_.active();
    bool any = false;
    for (const LayerConfig& layer : config_.layers) {
        const size_t heads = layer.attends() ? layer.attention.n_kv_head : 0;
        plan.split.push_back(heads && plan.spans > 1 && plan.blocks.size() * heads < 8 * n_threads);
        any = any || plan.split.back();
    }
    plan.meets_if_split = true;
    if (plan.alone && any) {
        // Its own cell is the last of the view, or near it if others share its position.
        const int32_t* view = input.views[input.view_of[0]];
        size_t own = static_cast<size_t>(input.lengths[0]);
        while (own && view[own - 1] != input.cells[0]) --own;
        plan.own_span = (own - 1) / kSpan;
        plan.meets_if_split = !own || !input.probes.empty() || !input.watched.empty();  // those want all queries in place
    }
}

void Decoder::group_slots(Plan& plan) const {
    const Input& input = *plan.input;
    for (size_t row = 0; input.slots && row < input.n; ++row) {
        const auto slot = static_cast<size_t>(input.slots[row]);
        auto at = std::find_if(plan.slots.begin(), plan.slots.end(), [&](const SlotGroup& g) { return g.slot == slot; });
        if (at == plan.slots.end()) at = plan.slots.insert(at, {slot, {}});
        plan.before.push_back(at->rows.empty() ? -1 : at->rows.back());
        at->rows.push_back(static_cast<int32_t>(row));
    }
}

void Decoder::find_windows(Plan& plan) const {
    const Input& input = *plan.input;
    std::vector<std::tuple<int, bool, bool>> windows;  // whether they have one side only, whether they are chunks
    for (const LayerConfig& layer : config_.layers) {
        const std::tuple window{layer.attention.window, layer.attention.causal, layer.attention.chunked};
        const auto at = std::find(windows.begin(), windows.end(), window);
        plan.window_of.push_back(at - windows.begin());
        if (at == windows.end()) windows.push_back(window);
    }
    // The first entry of a row's view from a position on.
    const auto entry_at = [&](size_t row, int64_t position) {
        const int32_t* view = input.views[input.view_of[row]];
        const auto is_before = [&](int32_t cell) { return input.table[cell] < position; };
        return static_cast<int32_t>(std::partition_point(view, view + input.lengths[row], is_before) - view);
    };
    for (const auto& [window, causal, chunked] : windows) {
        std::vector<int32_t> begins(input.n, 0), ends;
        for (size_t row = 0; window && row < input.n; ++row) {
            const int64_t own = input.positions[row];
            begins[row] = entry_at(row, chunked ? own / window * window : own - window + 1);
            if (!causal) ends.push_back(entry_at(row, own + window));
        }
        plan.begins.push_back(std::move(begins));
        plan.ends.push_back(std::move(ends));
    }
}

void Decoder::find_strides(Plan& plan) const {
    for (size_t i = 0; i < layers_.size(); ++i) {
        const size_t stride = config_.layers[i].attends() ? head_stride(i) : 0;
        const auto at = std::find(plan.strides.begin(), plan.strides.end(), stride);
        plan.places_of.push_back((at - plan.strides.begin()) * plan.seen.size());
        if (stride && at == plan.strides.end()) plan.strides.push_back(stride);
    }
}

void Decoder::find_probes(Plan& plan) {
    const Input& input = *plan.input;
    const size_t n = input.n, n_probes = input.probes.size();
    plan.probed.assign(n * n_probes, -1);
    plan.received.assign(n * most_heads_ * n_probes, 0.0f);
    for (size_t row = 0; row < n; ++row) {
        const int32_t* view = input.views[input.view_of[row]];
        for (size_t p = 0; p < n_probes; ++p) {
            const int32_t* found = std::find(view, view + input.lengths[row], input.probes[p]);
            if (found != view + input.lengths[row]) plan.probed[row * n_probes + p] = static_cast<int32_t>(found - view);
        }
    }
    size_t n_shown = 0;
    for (const size_t row : input.watched) {
        plan.shown.push_back(n_shown);
        n_shown += layers_.size() * most_heads_ * input.lengths[row];
    }
    watched_.assign(n_shown, 0.0f);
    plan.watched = watched_.data();
}

void Decoder::find_adapted(Plan& plan) const {
    const Input& input = *plan.input;
    for (const auto& [adapter, scales] : input.adapters) {
        std::vector<float> wanted;
        for (const size_t row : input.wanted) wanted.push_back(scales[row]);
        plan.adapted.emplace_back(adapter, std::vector<float>(scales, scales + input.n), *kernels_);
        plan.adapted_wanted.emplace_back(adapter, std::move(wanted), *kernels_);
    }
}

void Decoder::carve(Plan& plan) {
    const Config& c = config_;
    const Input& input = *plan.input;
    const Widths& most = plan.most;
    const size_t n = input.n, columns = columns_of(precision_), size = padded(most.head_size);
    const size_t normed = std::max(c.n_embd, most.compressed), pairs = n * most.n_used;
    // Rows of groups, each group made up to whole lanes.
    const size_t expert_rows = pairs * columns + std::min(pairs, most.n_expert) * kMostLanes;
    const size_t head_rows = most.head_products * (n * columns + kMostLanes);
    const size_t expert_numbers = most.n_used ? std::max(c.n_embd, most.expert_ff) : 0;
    const size_t n_streams = c.n_stream() > 1 ? c.n_stream() * c.n_embd : 0;  // numbers of a row
    size_t n_partials = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
        const AttentionConfig& a = c.layers[i].attention;
        if (plan.split[i]) widen(n_partials, plan.blocks.size() * a.n_kv_head * plan.spans * kRowsAtOnce * a.group());
    }
    size_t longest = 0;  // of the views that rows choose from
    for (const size_t seen : plan.seen) widen(longest, most.top_k ? seen : 0);
    const size_t n_chosen = most.top_k ? std::min(most.top_k, longest) : 0;
    size_t ranks = 0, rank_blocks = 0;  // of all adapters
    for (const std::vector<AdaptedRows>* several : {&plan.adapted, &plan.adapted_wanted}) {
        size_t blocks = 0;
        for (const AdaptedRows& rows : *several) blocks += rows.scales.size() * rows.adapter->rank() / kBlock;
        widen(rank_blocks, blocks);
    }
    for (const AdaptedRows& rows : plan.adapted) ranks += rows.adapter->rank();
    auto take_all = [&](uint8_t* base) {
        Carver carver(base);
        auto floats = [&](size_t count) { return carver.take<float>(count); };
        auto partial = [&](size_t count) { return Partial{floats(count), floats(count), floats(count * size)}; };
        plan.x = floats(n * c.n_embd);
        plan.normed = floats(n * normed);
        plan.sum = floats(n * c.n_embd);
        plan.q = floats(n * most.q);
        plan.k = floats(n * most.kv);
        plan.v = floats(n * most.kv);
        plan.queries = floats(n * most.queries);
        plan.compressed = floats(n * most.compressed);
        plan.index_q = floats(n * most.index_q);
        plan.index_k = floats(n * most.index_size);
        plan.index_weights = floats(n * most.index_heads);
        plan.chosen_cells = carver.take<int32_t>(n * n_chosen);
        plan.n_chosen = n_chosen;
        plan.mixed = floats(n * most.mixed);
        plan.heads = floats(n * most.heads);
        plan.added = floats(n * c.n_embd);
        plan.gate = floats(n * most.ff);
        plan.up = floats(n * most.ff);
        plan.quantized = carver.quantized(columns * n, most.input, kernels_->lanes(columns * n));
        plan.inner_rows = carver.quantized(plan.alone ? 0 : n, most.ff, kernels_->lanes(n));
        plan.gathered = carver.quantized(1, std::max(expert_rows * expert_numbers, head_rows * most.head_columns), 1);
        plan.gathered_floats = floats(std::max(pairs * expert_numbers, most.head_products * n * most.head_columns));
        plan.grouped = floats(std::max(pairs * c.n_embd, most.head_products * n * most.head_rows));
        plan.expert_gate = floats(pairs * most.expert_ff);
        plan.expert_up = floats(pairs * most.expert_ff);
        plan.projected = floats(n * most.projected);
        plan.outer_gate = floats(n * most.inner);
        plan.inner = floats(n * most.inner);
        plan.first_values = floats(n * most.first_values);
        plan.beta = floats(n * most.recurrent_heads);
        plan.alpha = floats(n * most.recurrent_heads);
        plan.other = floats(most.beside ? n * c.n_embd : 0);
        plan.scores = floats(n * most.n_expert);
        plan.chosen = carver.take<int32_t>(pairs);
        plan.chosen_weights = floats(pairs);
        plan.renormed = floats(n * std::max(most.renorms ? c.n_embd : 0, most.joined));
        plan.narrow = floats(n * most.narrow);
        plan.beside = floats(most.has_beside ? n * c.n_embd : 0);
        plan.inputs = floats(n * c.inputs());
        plan.streams = floats(n * n_streams);
        plan.states = floats(input.wanted.size() * c.n_embd);
        for (float*& buffer : plan.low_rank) buffer = floats(kMostTargets * n * ranks);
        for (Quantized& rows : plan.low_rank_bytes) rows = carver.quantized(kMostTargets * rank_blocks, kBlock, 1);
        plan.cos.clear();
        plan.sin.clear();
        for (const Rope& rope : c.ropes) {
            plan.cos.push_back(floats(n * rope.frequencies.size()));
            plan.sin.push_back(floats(n * rope.frequencies.size()));
        }
        plan.places.clear();
        for (size_t i = 0; i < plan.strides.size() * plan.seen.size(); ++i) {
            plan.places.push_back(carver.take<size_t>(plan.seen[i % plan.seen.size()] + kPlacesBehind));
        }
        plan.partials = partial(n_partials);
        plan.threads.clear();
        for (int i = 0; i < pool_.size(); ++i) {
            Thread thread;
            thread.x = floats(c.n_embd);
            thread.normed = floats(normed);
            thread.sum = floats(c.n_embd);
            thread.quantized = carver.quantized(columns, most.input, kernels_->lanes(columns));
            thread.renormed = floats(std::max(most.renorms ? c.n_embd : 0, most.joined));
            thread.narrow = floats(most.narrow);
            thread.inputs = floats(c.inputs());
            thread.streams = floats(n_streams);
            thread.experts = carver.quantized(1, most.n_used * kMostLanes * most.expert_ff, 1);
            thread.attention = floats(attention_scratch(most.head_size, kRowsAtOnce, most.group));
            thread.queries = floats(most.group * most.head_size);
            thread.index_scores = floats(n_chosen ? pieces_of(longest, kSpan) * kSpan : 0);
            thread.ranked = carver.take<int32_t>(n_chosen ? longest : 0);
            thread.places = carver.take<size_t>(n_chosen ? std::max(n_chosen, kSpan) + kPlacesBehind : 0);
            thread.recurrent = floats(most.recurrent_scratch);
            thread.partial = partial(kRowsAtOnce * most.group);
            thread.total = partial(kRowsAtOnce * most.group);
            thread.product.pairs = floats(precision_ == Precision::kHigh ? kPairFloats : 0);
            thread.adapted = carver.quantized(ranks && !plan.alone ? kAdaptedRows : 0, most.input, kMostLanes);
            plan.threads.push_back(thread);
        }
        return carver.used();
    };
    take_all(scratch_.reserve(take_all(nullptr)));
}

void Decoder::make_plan(Plan& plan, const Input& input, float* out, bool hidden, float* peaks) {
    const Config& c = config_;
    plan.input = &input;
    plan.most = widths_;
    plan.alone = input.n == 1 && input.taps.empty();
    plan.out = out;
    plan.peaks = peaks;
    plan.hidden = hidden;
    place_rows(plan);
    group_slots(plan);
    find_windows(plan);
    find_strides(plan);
    find_probes(plan);
    find_adapted(plan);
    carve(plan);
    for (size_t r = 0; r < c.ropes.size(); ++r) {
        const Rope& rope = c.ropes[r];
        const size_t pairs = rope.frequencies.size();
        std::vector<double> falling;
        size_t length = 0;  // of the text that they are for
        for (size_t row = 0; row < input.n; ++row) {
            float *cos = plan.cos[r] + row * pairs, *sin = plan.sin[r] + row * pairs;
            const int32_t* rotated = input.rotated ? input.rotated + 3 * row : nullptr;
            if (rotated && !rope.axes.empty()) {
                for (size_t p = 0; p < pairs; ++p) {
                    angles(rotated[rope.axes[p]], rope.frequencies.data() + p, 1, rope.magnitude, cos + p, sin + p);
                }
            } else {
                const double* frequencies = rope.frequencies.data();
                if (const auto n = static_cast<size_t>(input.lengths[row]); rope.stretch_length && n > rope.stretch_length) {
                    if (n != length) stretched(rope, length = n, falling);
                    frequencies = falling.data();
                }
                angles(rotated ? rotated[0] : input.positions[row], frequencies, pairs, rope.magnitude, cos, sin);
            }
        }
    }
    for (size_t i = 0; i < plan.places.size(); ++i) {
        const size_t view = i % plan.seen.size(), stride = plan.strides[i / plan.seen.size()];
        place_cells(input.views[view], plan.seen[view], stride, block_bytes_, plan.places[i]);
    }
    plan.cursors = Cursors(layers_.size() * kLayerTasks + kOtherTasks, pool_.size());
    const bool any = std::find(plan.split.begin(), plan.split.end(), 1) != plan.split.end();
    const size_t n_done = any ? layers_.size() * plan.blocks.size() * plan.most.cached_heads : 0;
    plan.done.reset(new std::atomic<size_t>[n_done]);
    for (size_t i = 0; i < n_done; ++i) plan.done[i].store(0, std::memory_order_relaxed);
}

}  // namespace stretto
