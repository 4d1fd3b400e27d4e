// One forward pass: all threads walk through the layers together and meet at barriers.
//
// With a single row every thread does the small row-wise steps (norms, quantising) for itself, which costs
// a microsecond and saves a barrier; with more rows they share them.

#include <algorithm>
#include <cstring>

#include "decoder.h"
#include "rope.h"

namespace stretto {

namespace {

// Carves aligned arrays out of one allocation: first to count, then for real.
class Carver {
public:
    explicit Carver(uint8_t* base) : base_(base) {}
    template <typename T>
    T* take(size_t n) {
        T* at = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
        used_ += (n * sizeof(T) + 63) / 64 * 64;
        return at;
    }
    Quantized quantized(size_t n, size_t columns) {
        Quantized q;
        q.q = take<int8_t>(n * columns);
        q.scale = take<float>(n * (columns / 32));
        q.scaled = take<float>(n * (columns / 32));
        q.sums = take<int32_t>(n * (columns / 16));
        return q;
    }
    size_t used() const { return used_; }

private:
    uint8_t* base_;
    size_t used_ = 0;
};

constexpr size_t kRowsAtOnce = 16;  // rows of one view that attention takes together
constexpr size_t kTilePanels = 4;   // panels of a matrix that are packed on the spot

}  // namespace

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
    Partial partial, total;
    uint8_t* tile;  // kTilePanels of the widest matrix, for weights that were not packed
};

struct Decoder::Plan {
    const Input* input;
    bool alone;               // a single row
    bool split;               // attention's spans are work of their own
    float* x;                 // [n][n_embd], the residual stream
    float* normed;            // [n][n_embd]
    float *q, *k, *v;         // [n][heads × size]
    float* mixed;             // [n][n_head × size], attention's result
    float* added;             // [n][n_embd], what comes to the residual next
    float *gate, *up;         // [n][n_ff]
    Quantized quantized;      // [n][widest]
    float* states;            // [n_wanted][n_embd]
    std::vector<float*> cos, sin;             // by rope: [n][pairs]
    std::vector<std::vector<int32_t>> begins; // by layer's window: [n]
    std::vector<size_t> window_of;            // layer → entry of begins
    std::vector<RowBlock> blocks;
    size_t spans;             // at most, of any block
    Partial partials;         // [block][kv head][span], if split
    std::vector<Thread> threads;
    std::unique_ptr<std::atomic<size_t>[]> counters;
    float* out;
    bool hidden;
};

namespace {

// The next piece [begin, end) of n things, shared out by a counter.
bool next_piece(std::atomic<size_t>& counter, size_t n, size_t piece, size_t* begin, size_t* end) {
    *begin = counter.fetch_add(piece, std::memory_order_relaxed);
    *end = std::min(*begin + piece, n);
    return *begin < n;
}

}  // namespace

void Decoder::forward(const Input& input, float* out, bool hidden) {
    const Config& c = config_;
    const size_t n = input.n, n_threads = pool_.size();
    const size_t q = c.n_head * c.head_size, kv = c.n_kv_head * c.head_size;
    const size_t widest = std::max({c.n_embd, q, c.n_ff});
    const size_t group = c.n_head / c.n_kv_head, size = padded(c.head_size);

    Plan plan;
    plan.input = &input;
    plan.alone = n == 1;
    plan.out = out;
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
        plan.quantized = carver.quantized(n, widest);
        plan.states = carver.take<float>(input.wanted.size() * c.n_embd);
        plan.cos.clear();
        plan.sin.clear();
        for (const Rope& rope : c.ropes) {
            plan.cos.push_back(carver.take<float>(n * rope.frequencies.size()));
            plan.sin.push_back(carver.take<float>(n * rope.frequencies.size()));
        }
        plan.partials = partial(n_partials);
        plan.threads.clear();
        for (size_t i = 0; i < n_threads; ++i) {
            Thread thread;
            thread.x = carver.take<float>(c.n_embd);
            thread.normed = carver.take<float>(c.n_embd);
            thread.quantized = carver.quantized(1, widest);
            thread.attention = carver.take<float>(attention_scratch(c.head_size));
            thread.partial = partial(kRowsAtOnce * group);
            thread.total = partial(kRowsAtOnce * group);
            thread.tile = carver.take<uint8_t>(tile_bytes);
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
    const size_t n_counters = layers_.size() * 6 + 2;
    plan.counters.reset(new std::atomic<size_t>[n_counters]);
    for (size_t i = 0; i < n_counters; ++i) plan.counters[i].store(0, std::memory_order_relaxed);

    pool_.run([&](int thread) { run(plan, thread); });
}

// Panels [begin, end) of a product. Weights that were not packed are packed a few panels at a time, into memory
// that stays in the cache: the same kernels, the same bits.
void Decoder::multiply(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end,
                       float* out, uint8_t* tile) const {
    if (w.data) return kernels_->matmul(w, a, x, n, begin, end, out, w.rows);
    for (size_t at = begin; at < end; at += kTilePanels) {
        const size_t count = std::min(kTilePanels, end - at);
        pack_panels(w.format, w.source, w, at, at + count, tile);
        Matrix part = w;
        part.data = tile;
        part.rows = w.rows - at * kPanelRows;
        kernels_->matmul(part, a, x, n, 0, count, out + at * kPanelRows, w.rows);
    }
}

void Decoder::run(Plan& plan, int thread) {
    const Config& c = config_;
    const Kernels& kernel = *kernels_;
    const Input& input = *plan.input;
    Thread& mine = plan.threads[thread];
    const size_t n = input.n, n_threads = pool_.size();
    const size_t q_size = c.n_head * c.head_size;
    // Alone, every thread does the only row, in memory of its own; else the rows are shared out.
    const bool alone = plan.alone;
    const size_t first = alone ? 0 : n * thread / n_threads, last = alone ? 1 : n * (thread + 1) / n_threads;
    float* x = alone ? mine.x : plan.x;
    float* normed = alone ? mine.normed : plan.normed;
    const Quantized quantized = alone ? mine.quantized : plan.quantized;
    std::atomic<size_t>* counter = plan.counters.get();
    auto meet_if_shared = [&] { if (!alone) pool_.barrier(); };

    auto quantize = [&](const float* rows, size_t columns) {
        if (columns % kBlock) return;  // only float layouts have such, and they read the floats
        for (size_t row = first; row < last; ++row) {
            kernel.quantize(rows + row * columns, columns, quantized.q + row * columns,
                            quantized.scale + row * (columns / 32), quantized.scaled + row * (columns / 32),
                            quantized.sums + row * (columns / 16));
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
    // The share of a product that this thread gets to do; `after` sees each finished piece of rows.
    auto product = [&](const Matrix& w, const float* floats, size_t columns_n, float* out, const Quantized& in,
                       std::atomic<size_t>& shared) {
        const size_t panels = w.panels();
        const size_t piece = std::max<size_t>(4, (panels + 4 * n_threads - 1) / (4 * n_threads));
        for (size_t begin, end; next_piece(shared, panels, piece, &begin, &end);) {
            multiply(w, in, floats, columns_n, begin, end, out, mine.tile);
        }
    };

    for (size_t row = first; row < last; ++row) {
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

    for (size_t i = 0; i < layers_.size(); ++i, counter += 6) {
        const Layer& layer = layers_[i];
        norm_rows(layer.attn_norm);
        // q, k and v are one range of work: panels of one after the other.
        const Matrix* parts[3] = {&layer.q, &layer.k, &layer.v};
        float* outs[3] = {plan.q, plan.k, plan.v};
        const size_t panels = layer.q.panels() + layer.k.panels() + layer.v.panels();
        const size_t piece = std::max<size_t>(4, (panels + 4 * n_threads - 1) / (4 * n_threads));
        for (size_t begin, end; next_piece(counter[0], panels, piece, &begin, &end);) {
            size_t before = 0;
            for (int part = 0; part < 3; ++part) {
                const size_t count = parts[part]->panels();
                const size_t from = std::max(begin, before), to = std::min(end, before + count);
                if (from < to) {
                    multiply(*parts[part], quantized, normed, n, from - before, to - before, outs[part], mine.tile);
                }
                before += count;
            }
        }
        pool_.barrier();
        attention(plan, thread, i);
        pool_.barrier();

        quantize(plan.mixed, q_size);
        product(layer.o, plan.mixed, n, plan.added, quantized, counter[2]);
        pool_.barrier();
        add_rows(layer.post_attn);

        norm_rows(layer.ffn_norm);
        const size_t ff_panels = layer.gate.panels();
        const size_t ff_piece = std::max<size_t>(4, (ff_panels + 4 * n_threads - 1) / (4 * n_threads));
        for (size_t begin, end; next_piece(counter[3], ff_panels, ff_piece, &begin, &end);) {
            multiply(layer.gate, quantized, normed, n, begin, end, plan.gate, mine.tile);
            multiply(layer.up, quantized, normed, n, begin, end, plan.up, mine.tile);
            const size_t from = begin * kPanelRows, to = std::min(end * kPanelRows, c.n_ff);
            for (size_t row = 0; row < n; ++row) {
                float* gate = plan.gate + row * c.n_ff + from;
                const float* up = plan.up + row * c.n_ff + from;
                (c.gelu ? kernel.gelu : kernel.silu)(gate, up, to - from);
            }
        }
        pool_.barrier();
        quantize(plan.gate, c.n_ff);
        product(layer.down, plan.gate, n, plan.added, quantized, counter[4]);
        pool_.barrier();
        add_rows(layer.post_ffn);
    }

    // The last norm, of the rows that are wanted.
    meet_if_shared();
    const size_t n_wanted = input.wanted.size();
    float* states = plan.hidden ? plan.out : plan.states;
    const size_t begin = alone ? 0 : n_wanted * thread / n_threads;
    const size_t end = alone ? n_wanted : n_wanted * (thread + 1) / n_threads;
    float* own = alone && !(plan.hidden && thread == 0) ? normed : states;
    for (size_t w = begin; w < end; ++w) {
        float* to = own + w * c.n_embd;
        kernel.rms_norm(x + input.wanted[w] * c.n_embd, output_norm_.data(), c.n_embd, c.norm_eps, to);
        if (!plan.hidden && c.n_embd % kBlock == 0) {
            kernel.quantize(to, c.n_embd, quantized.q + w * c.n_embd, quantized.scale + w * (c.n_embd / 32),
                            quantized.scaled + w * (c.n_embd / 32), quantized.sums + w * (c.n_embd / 16));
        }
    }
    if (plan.hidden || !n_wanted) return;
    meet_if_shared();
    product(c.tied ? embedding_ : output_, own, n_wanted, plan.out, quantized, counter[0]);
}

// Bias, norm and rotation of one row's heads that belong to a K/V head; K and V go into the row's cell.
void Decoder::heads(Plan& plan, size_t layer, size_t row, size_t kv) {
    const Config& c = config_;
    const Kernels& kernel = *kernels_;
    const Layer& l = layers_[layer];
    const size_t size = c.head_size, group = c.n_head / c.n_kv_head;
    const int r = c.layers[layer].rope;
    const Rope& rope = c.ropes[r];
    const size_t pairs = rope.frequencies.size();
    const float* cos = plan.cos[r] + row * pairs;
    const float* sin = plan.sin[r] + row * pairs;
    auto prepare = [&](float* x, const std::vector<float>& bias, const std::vector<float>& norm, size_t head) {
        if (c.qkv_bias) kernel.add(x, bias.data() + head * size, size);
        if (c.qk_norm) kernel.rms_norm(x, norm.data(), size, c.norm_eps, x);
        rotate(x, cos, sin, pairs, rope.adjacent);
    };
    for (size_t h = kv * group; h < (kv + 1) * group; ++h) {
        prepare(plan.q + (row * c.n_head + h) * size, l.q_bias, l.q_norm, h);
    }
    float* k = plan.k + (row * c.n_kv_head + kv) * size;
    float* v = plan.v + (row * c.n_kv_head + kv) * size;
    prepare(k, l.k_bias, l.k_norm, kv);
    if (c.qkv_bias) kernel.add(v, l.v_bias.data() + kv * size, size);
    const size_t cell = plan.input->cells[row];
    kernel.store_head(cache_type_, k, size, head_of(layer, cell, false, kv));
    kernel.store_head(cache_type_, v, size, head_of(layer, cell, true, kv));
}

void Decoder::attention(Plan& plan, int thread, size_t layer) {
    const Config& c = config_;
    const Kernels& kernel = *kernels_;
    const Input& input = *plan.input;
    Thread& mine = plan.threads[thread];
    const size_t group = c.n_head / c.n_kv_head, size = padded(c.head_size), n_threads = pool_.size();
    std::atomic<size_t>* counter = plan.counters.get() + layer * 6;
    const std::vector<int32_t>& begins = plan.begins[plan.window_of[layer]];

    // Every K and V of the batch is in the cache, as it is stored, before anyone reads it. A single row
    // without spans to share needs no meeting: whoever makes a head also attends with it.
    const size_t items = input.n * c.n_kv_head;
    const bool together = plan.alone && !plan.split;
    if (!together) {
        const size_t piece = std::max<size_t>(1, items / (4 * n_threads));
        for (size_t begin, end; next_piece(counter[1], items, piece, &begin, &end);) {
            for (size_t item = begin; item < end; ++item) heads(plan, layer, item / c.n_kv_head, item % c.n_kv_head);
        }
        pool_.barrier();
    }

    auto task = [&](const RowBlock& block, size_t kv) {
        Attention a;
        a.type = cache_type_;
        a.keys = head_of(layer, 0, false, kv);
        a.values = head_of(layer, 0, true, kv);
        a.cell_stride = head_bytes_;
        a.view = input.views[input.view_of[block.row]];
        a.head_size = c.head_size;
        a.group = group;
        a.scale = c.attention_scale;
        a.queries = plan.q + (block.row * c.n_head + kv * group) * c.head_size;
        a.query_stride = c.n_head * c.head_size;
        a.begins = begins.data() + block.row;
        a.ends = input.lengths + block.row;
        a.rows = block.rows;
        a.scratch = mine.attention;
        return a;
    };
    auto finish = [&](const RowBlock& block, size_t kv, const Partial& total) {
        for (size_t row = 0; row < block.rows; ++row) {
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
        for (size_t begin, end; next_piece(counter[5], n_tasks, 1, &begin, &end);) {
            const RowBlock& block = plan.blocks[begin / c.n_kv_head];
            const size_t kv = begin % c.n_kv_head;
            if (together) heads(plan, layer, 0, kv);
            const Attention a = task(block, kv);
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
    for (size_t begin, end; next_piece(counter[5], n_tasks * plan.spans, 1, &begin, &end);) {
        const size_t span = begin % plan.spans, which = begin / plan.spans;
        const RowBlock& block = plan.blocks[which / c.n_kv_head];
        if (span < first_span(block) || span * kSpan >= block.last) continue;
        const Attention a = task(block, which % c.n_kv_head);
        kernel.attend(a, span * kSpan, std::min((span + 1) * kSpan, block.last),
                      part_of(which / c.n_kv_head, which % c.n_kv_head, span));
    }
    pool_.barrier();
    for (size_t which = thread; which < n_tasks; which += n_threads) {
        const RowBlock& block = plan.blocks[which / c.n_kv_head];
        const size_t kv = which % c.n_kv_head, from = first_span(block);
        const Partial total = part_of(which / c.n_kv_head, kv, from);
        for (size_t span = from + 1; span * kSpan < block.last; ++span) {
            kernel.merge(block.rows * group, c.head_size, total, part_of(which / c.n_kv_head, kv, span));
        }
        finish(block, kv, total);
    }
}

}  // namespace stretto
