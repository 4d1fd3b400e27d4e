// One forward pass: all threads walk through the layers together and meet at barriers.
//
// With a single row every thread does the small row-wise steps (norms, quantising) for itself, which costs
// a microsecond and saves a barrier; with more rows they share them.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "carver.h"
#include "plan.h"
#include "rope.h"

namespace stretto {

void Decoder::forward(const Input& input, float* out, bool hidden, float* peaks) {
    const Config& c = config_;
    const size_t n = input.n, n_threads = pool_.active();
    const size_t q = c.n_head * c.head_size, kv = c.n_kv_head * c.head_size;
    const size_t widest = std::max({c.n_embd, q, c.n_ff});
    const size_t group = c.n_head / c.n_kv_head, size = padded(c.head_size);
    const size_t columns = columns_of(precision_);

    Plan plan;
    plan.input = &input;
    plan.alone = n == 1;
    plan.out = out;
    plan.peaks = peaks;
    plan.hidden = hidden;

    plan.spans = 1;
    for (size_t row = 0; row < n;) {
        RowBlock block{row, 1, static_cast<size_t>(input.lengths[row])};
        while (row + block.rows < n && block.rows < kRowsAtOnce &&
               input.view_of[row + block.rows] == input.view_of[row]) {
            block.last = std::max(block.last, static_cast<size_t>(input.lengths[row + block.rows]));
            ++block.rows;
        }
        plan.spans = std::max(plan.spans, (block.last + kSpan - 1) / kSpan);
        plan.blocks.push_back(block);
        row += block.rows;
    }
    plan.split = plan.spans > 1 && plan.blocks.size() * c.n_kv_head < 8 * n_threads;
    plan.meets = !plan.alone;
    if (plan.alone && plan.split) {
        // Its own cell is the last of the view, or near it if others share its position.
        const int32_t* view = input.views[input.view_of[0]];
        size_t own = static_cast<size_t>(input.lengths[0]);
        while (own && view[own - 1] != input.cells[0]) --own;
        plan.own_span = (own - 1) / kSpan;
        plan.meets = !own || !input.probes.empty() || !input.watched.empty();  // those want all queries in place
    }

    std::vector<int> windows;
    for (const LayerConfig& layer : c.layers) {
        const auto at = std::find(windows.begin(), windows.end(), layer.window);
        plan.window_of.push_back(at - windows.begin());
        if (at == windows.end()) windows.push_back(layer.window);
    }
    for (int window : windows) {
        std::vector<int32_t> begins(n, 0);
        for (size_t row = 0; window && row < n; ++row) {
            const int32_t* view = input.views[input.view_of[row]];
            const int64_t least = int64_t{input.positions[row]} - window;
            const int32_t* first = std::partition_point(
                view, view + input.lengths[row], [&](int32_t cell) { return input.table[cell] <= least; });
            begins[row] = static_cast<int32_t>(first - view);
        }
        plan.begins.push_back(std::move(begins));
    }

    const size_t n_probes = input.probes.size();
    plan.probed.assign(n * n_probes, -1);
    plan.received.assign(n * c.n_head * n_probes, 0.0f);
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
        n_shown += layers_.size() * c.n_head * input.lengths[row];
    }
    watched_.assign(n_shown, 0.0f);
    plan.watched = watched_.data();

    // Room for tiles, if any matrix was not packed.
    size_t tile_bytes = 0;
    auto needs_tile = [&](const Matrix& m) {
        if (m.source) tile_bytes = std::max(tile_bytes, kTilePanels * m.panel_bytes);
    };
    needs_tile(embedding_);
    needs_tile(output_);
    for (const Layer& l : layers_) {
        for (const Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) needs_tile(*m);
    }

    const size_t n_partials = plan.split ? plan.blocks.size() * c.n_kv_head * plan.spans * kRowsAtOnce * group : 0;
    auto carve = [&](uint8_t* base) {
        Carver carver(base);
        auto partial = [&](size_t count) {
            return Partial{carver.take<float>(count), carver.take<float>(count), carver.take<float>(count * size)};
        };
        plan.x = carver.take<float>(n * c.n_embd);
        plan.normed = carver.take<float>(n * c.n_embd);
        plan.q = carver.take<float>(n * q);
        plan.k = carver.take<float>(n * kv);
        plan.v = carver.take<float>(n * kv);
        plan.mixed = carver.take<float>(n * q);
        plan.added = carver.take<float>(n * c.n_embd);
        plan.gate = carver.take<float>(n * c.n_ff);
        plan.up = carver.take<float>(n * c.n_ff);
        plan.quantized = carver.quantized(columns * n, widest, kernels_->lanes(columns * n));
        plan.states = carver.take<float>(input.wanted.size() * c.n_embd);
        plan.cos.clear();
        plan.sin.clear();
        for (const Rope& rope : c.ropes) {
            plan.cos.push_back(carver.take<float>(n * rope.frequencies.size()));
            plan.sin.push_back(carver.take<float>(n * rope.frequencies.size()));
        }
        plan.partials = partial(n_partials);
        plan.threads.clear();
        for (int i = 0; i < pool_.size(); ++i) {
            Thread thread;
            thread.x = carver.take<float>(c.n_embd);
            thread.normed = carver.take<float>(c.n_embd);
            thread.quantized = carver.quantized(columns, widest, kernels_->lanes(columns));
            thread.attention = carver.take<float>(attention_scratch(c.head_size, kRowsAtOnce, group));
            thread.queries = carver.take<float>(group * c.head_size);
            thread.partial = partial(kRowsAtOnce * group);
            thread.total = partial(kRowsAtOnce * group);
            thread.product.tile = carver.take<uint8_t>(tile_bytes);
            thread.product.pairs = carver.take<float>(precision_ == Precision::kHigh ? kPairFloats : 0);
            plan.threads.push_back(thread);
        }
        return carver.used();
    };
    carve(scratch_.reserve(carve(nullptr)));

    for (size_t r = 0; r < c.ropes.size(); ++r) {
        const Rope& rope = c.ropes[r];
        const size_t pairs = rope.frequencies.size();
        for (size_t row = 0; row < n; ++row) {
            angles(input.positions[row], rope.frequencies.data(), pairs, rope.magnitude, plan.cos[r] + row * pairs,
                   plan.sin[r] + row * pairs);
        }
    }
    plan.cursors = Cursors(layers_.size() * kLayerTasks + 1, pool_.size());

    const size_t n_done = plan.split ? layers_.size() * plan.blocks.size() * c.n_kv_head : 0;
    plan.done.reset(new std::atomic<size_t>[n_done]);
    for (size_t i = 0; i < n_done; ++i) plan.done[i].store(0, std::memory_order_relaxed);

    // A single row has to be done by the same threads from end to end, as each has its own copy of it. With more rows a pass
    // takes long, and the number of threads may change from layer to layer.
    const size_t n_layers = layers_.size(), at_once = plan.alone ? n_layers : 1;
    size_t layer = 0;
    do {
        const size_t next = std::min(layer + at_once, n_layers);
        pool_.run([&](int thread) { run(plan, thread, layer, next); }, Measured::kYes, n);
        layer = next;
    } while (layer < n_layers);

    received_.assign(n * n_probes, 0.0f);
    for (size_t row = 0; row < n; ++row) {
        for (size_t head = 0; head < c.n_head; ++head) {
            for (size_t p = 0; p < n_probes; ++p) {
                received_[row * n_probes + p] += plan.received[(row * c.n_head + head) * n_probes + p];
            }
        }
    }
    for (float& sum : received_) sum /= static_cast<float>(c.n_head * layers_.size());
}

// Layers [first_layer, last_layer), with what is before the first and behind the last of all.
void Decoder::run(Plan& plan, int thread, size_t first_layer, size_t last_layer) {
    const Config& c = config_;
    const Kernels& kernel = *kernels_;
    const Input& input = *plan.input;
    Thread& mine = plan.threads[thread];
    const size_t n = input.n, n_threads = pool_.active();
    const size_t q_size = c.n_head * c.head_size;
    // Alone, every thread does the only row, in memory of its own; else the rows are shared out.
    const bool alone = plan.alone;
    const size_t first = alone ? 0 : n * thread / n_threads, last = alone ? 1 : n * (thread + 1) / n_threads;
    float* x = alone ? mine.x : plan.x;
    float* normed = alone ? mine.normed : plan.normed;
    const Quantized quantized = alone ? mine.quantized : plan.quantized;
    size_t task = kLayerTasks * first_layer;  // of Plan::cursors
    auto meet_if_shared = [&] { if (!alone) pool_.barrier(thread); };

    auto quantize = [&](const float* rows, size_t columns) {
        if (columns % kBlock) return;  // only float layouts have such, and they read the floats
        for (size_t row = first; row < last; ++row) {
            quantize_activations(kernel, precision_, rows + row * columns, columns, row, quantized);
        }
        meet_if_shared();
    };
    auto norm_rows = [&](const std::vector<float>& weight) {
        for (size_t row = first; row < last; ++row) {
            kernel.rms_norm(x + row * c.n_embd, weight.data(), c.n_embd, c.norm_eps, normed + row * c.n_embd);
        }
        quantize(normed, c.n_embd);
        if (c.n_embd % kBlock) meet_if_shared();
    };
    // Adds what attention or the feed-forward made to the residual stream.
    auto add_rows = [&](const std::vector<float>& post) {
        for (size_t row = first; row < last; ++row) {
            const float* added = plan.added + row * c.n_embd;
            if (c.post_norm) {
                kernel.rms_norm(added, post.data(), c.n_embd, c.norm_eps, normed + row * c.n_embd);
                added = normed + row * c.n_embd;
            }
            kernel.add(x + row * c.n_embd, added, c.n_embd);
        }
    };
    // Calls f(piece) for the pieces of a product that this thread gets to do.
    auto each_piece = [&](size_t which, size_t panels, size_t columns, bool packed, auto f,
                          size_t grain = 1) {
        Pieces pieces(plan.cursors, which, panels, columns, !packed, grain, thread, n_threads);
        for (Pieces::Piece piece; pieces.next(&piece);) f(piece);
    };
    auto product = [&](const Matrix& w, const float* floats, size_t columns, float* out, const Quantized& in,
                       size_t which) {
        each_piece(which, w.panels(), columns, w.data, [&](const Pieces::Piece& piece) {
            multiply(w, {in, floats, piece.first, piece.last}, piece.begin, piece.end, out, mine.product);
        });
    };

    for (size_t row = first; row < last && first_layer == 0; ++row) {
        float* to = x + row * c.n_embd;
        if (!input.vectors.empty() && input.vectors[row]) {
            std::memcpy(to, input.vectors[row], c.n_embd * sizeof(float));
            continue;
        }
        read_row(embedding_, input.tokens[row], to);
        if (c.embedding_scale != 1.0f) {
            for (size_t i = 0; i < c.n_embd; ++i) to[i] *= c.embedding_scale;
        }
    }

    for (size_t i = first_layer; i < last_layer; ++i, task += kLayerTasks) {
        const Layer& layer = layers_[i];
        norm_rows(layer.attn_norm);
        // q, k and v are one range of work: panels of one after the other.
        const Matrix* parts[3] = {&layer.q, &layer.k, &layer.v};
        float* outs[3] = {plan.q, plan.k, plan.v};
        const size_t panels = layer.q.panels() + layer.k.panels() + layer.v.panels();
        each_piece(task, panels, n, layer.q.data, [&](const Pieces::Piece& piece) {
            size_t before = 0;
            for (int part = 0; part < 3; ++part) {
                const size_t count = parts[part]->panels();
                const size_t from = std::max(piece.begin, before), to = std::min(piece.end, before + count);
                if (from < to) {
                    multiply(*parts[part], {quantized, normed, piece.first, piece.last}, from - before, to - before,
                             outs[part], mine.product);
                }
                before += count;
            }
        });
        pool_.barrier(thread);
        attention(plan, thread, i);
        pool_.barrier(thread);

        quantize(plan.mixed, q_size);
        product(layer.o, plan.mixed, n, plan.added, quantized, task + 2);
        pool_.barrier(thread);
        add_rows(layer.post_attn);

        norm_rows(layer.ffn_norm);
        each_piece(task + 3, layer.gate.panels(), n, layer.gate.data, [&](const Pieces::Piece& piece) {
            const Rows rows{quantized, normed, piece.first, piece.last};
            multiply(layer.gate, rows, piece.begin, piece.end, plan.gate, mine.product);
            multiply(layer.up, rows, piece.begin, piece.end, plan.up, mine.product);
            const size_t from = piece.begin * kPanelRows, to = std::min(piece.end * kPanelRows, c.n_ff);
            for (size_t row = piece.first; row < piece.last; ++row) {
                float* gate = plan.gate + row * c.n_ff + from;
                const float* up = plan.up + row * c.n_ff + from;
                (c.gelu ? kernel.gelu : kernel.silu)(gate, up, to - from);
            }
        });
        pool_.barrier(thread);
        quantize(plan.gate, c.n_ff);
        product(layer.down, plan.gate, n, plan.added, quantized, task + 4);
        pool_.barrier(thread);
        add_rows(layer.post_ffn);
    }

    if (last_layer < layers_.size()) return;
    // The last norm, of the rows that are wanted.
    meet_if_shared();
    const size_t n_wanted = input.wanted.size();
    float* states = plan.hidden ? plan.out : plan.states;
    const size_t begin = alone ? 0 : n_wanted * thread / n_threads;
    const size_t end = alone ? n_wanted : n_wanted * (thread + 1) / n_threads;
    Quantized last_quantized = quantized;  // fewer rows, which may be kept in another way
    last_quantized.lanes = kernel.lanes(columns_of(precision_) * n_wanted);
    float* own = alone && !(plan.hidden && thread == 0) ? normed : states;
    for (size_t w = begin; w < end; ++w) {
        float* to = own + w * c.n_embd;
        kernel.rms_norm(x + input.wanted[w] * c.n_embd, output_norm_.data(), c.n_embd, c.norm_eps, to);
        if (!plan.hidden && c.n_embd % kBlock == 0) quantize_activations(kernel, precision_, to, c.n_embd, w, last_quantized);
    }
    if (plan.hidden || !n_wanted) return;
    meet_if_shared();
    const Matrix& w = c.tied ? embedding_ : output_;
    each_piece(
        task, w.panels(), n_wanted, w.data,
        [&](const Pieces::Piece& piece) {
            multiply(w, {last_quantized, own, piece.first, piece.last}, piece.begin, piece.end, plan.out, mine.product);
            finish_logits(plan, piece.first, piece.last, piece.begin * kPanelRows,
                          std::min(piece.end * kPanelRows, c.n_vocab));
        },
        kPeak / kPanelRows);
}

// What remains to be done with logits [from, to) of some rows, while they are in this thread's caches.
void Decoder::finish_logits(const Plan& plan, size_t first, size_t last, size_t from, size_t to) const {
    const Config& c = config_;
    for (size_t row = first; row < last; ++row) {
        float* logits = plan.out + row * c.n_vocab;
        if (c.logit_cap > 0.0f) {
            for (size_t i = from; i < to; ++i) logits[i] = c.logit_cap * std::tanh(logits[i] / c.logit_cap);
        }
        if (plan.peaks) {
            kernels_->peaks(logits + from, to - from, plan.peaks + row * stretches(c.n_vocab) + from / kPeak);
        }
    }
}

}  // namespace stretto
