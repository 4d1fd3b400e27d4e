// One forward pass: embeddings, layers, logits. What a layer's mixer and feed-forward do is in files of their own.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "model/recurrent_layer.h"
#include "model/sums.h"
#include "model/walk.h"

namespace stretto {

void Decoder::forward(const Input& input, float* out, bool hidden, float* peaks) {
    const Turn turn(&pool_);
    has_passed_ = true;
    make_blocks_present(input);
    Plan plan;
    make_plan(plan, input, out, hidden, peaks);

    // A single row has to be done by the same threads from end to end, as each has its own copy of it. With more rows the
    // number of threads may change: from layer to layer where a pass takes long, in some places with a few rows.
    constexpr size_t kFewRows = 8, kJobs = 8;
    const size_t n_layers = layers_.size(), some = input.n <= kFewRows ? pieces_of(n_layers, kJobs) : 1;
    const size_t at_once = plan.alone ? n_layers : std::max<size_t>(some, 1);
    size_t layer = 0;
    do {
        const size_t next = std::min(layer + at_once, n_layers);
        const auto job = [&](int thread) {
            Walk walk(*this, plan, thread);
            if (layer == 0) {
                walk.embed();
                walk.show(0, Site::kEmbedding, walk.residual());
            }
            for (size_t i = layer; i < next; ++i) {
                walk.layer(i);
                if (i < config_.deepstack) walk.add_features(i);
                if (!plan.adapted.empty()) walk.steer(i);
                walk.show(i, Site::kResidual, walk.residual());
            }
            if (next == n_layers) walk.logits();
        };
        plan.narrowed.store(0, std::memory_order_relaxed);  // walks count from their beginning
        pool_.run(job, Measured::kYes, input.n);
        layer = next;
    } while (layer < n_layers && !change_error_);
    if (change_error_) std::rethrow_exception(std::exchange(change_error_, nullptr));

    const size_t n_probes = input.probes.size();
    received_.assign(input.n * n_probes, 0.0f);
    for (size_t row = 0; row < input.n; ++row) {
        for (size_t head = 0; head < most_heads_; ++head) {
            for (size_t p = 0; p < n_probes; ++p) {
                received_[row * n_probes + p] += plan.received[(row * most_heads_ + head) * n_probes + p];
            }
        }
    }
    size_t heads = 0;
    for (const LayerConfig& each : config_.layers) heads += each.attends() ? each.attention.n_head : 0;
    for (float& sum : received_) sum /= static_cast<float>(std::max<size_t>(heads, 1));
}

Decoder::Walk::Walk(Decoder& decoder, Plan& plan, int thread)
    : d_(decoder), c_(decoder.config_), kernel_(*decoder.kernels_), plan_(plan), input_(*plan.input),
      mine_(plan.threads[thread]), thread_(thread), n_threads_(decoder.pool_.active()), n_(plan.input->n),
      alone_(plan.alone), first_(alone_ ? 0 : n_ * thread / n_threads_),
      last_(alone_ ? 1 : n_ * (thread + 1) / n_threads_), x_(alone_ ? mine_.x : plan.x),
      normed_(alone_ ? mine_.normed : plan.normed), sum_(alone_ ? mine_.sum : plan.sum),
      renormed_(alone_ ? mine_.renormed : plan.renormed), narrow_(alone_ ? mine_.narrow : plan.narrow),
      inputs_(alone_ ? mine_.inputs : plan.inputs), streams_(alone_ ? mine_.streams : plan.streams),
      quantized_(alone_ ? mine_.quantized : plan.quantized) {}

void Decoder::Walk::embed() {
    for (size_t row = first_; row < last_; ++row) {
        float* to = row_of(x_, row);
        if (!input_.vectors.empty() && input_.vectors[row]) {
            std::memcpy(to, input_.vectors[row], c_.n_embd * sizeof(float));
        } else {
            read_row(d_.embedding_, input_.tokens[row], to);
            if (c_.embedding_scale != 1.0f) {
                for (size_t i = 0; i < c_.n_embd; ++i) to[i] *= c_.embedding_scale;
            }
        }
        if (c_.token_types) {
            const size_t type = input_.types ? static_cast<size_t>(input_.types[row]) : 0;
            kernel_.add(to, d_.model_.types.data() + type * c_.n_embd, c_.n_embd);
        }
        if (c_.learned_positions) {
            float* position = row_of(sum_, row);
            read_row(d_.model_.positions, input_.positions[row], position);
            kernel_.add(to, position, c_.n_embd);
        }
    }
    norm_sums(d_.model_.embedding_norm);
    if (c_.per_layer.size || c_.n_stream() > 1) embed_beside();
}

void Decoder::Walk::layer(size_t index) {
    const LayerConfig& config = c_.layers[index];
    const Layer& weights = d_.layers_[index];
    task_ = kLayerTasks * index;
    if (config.streams.n > 1) predict(index);
    const bool routes_early = config.ffn == FeedForwardKind::kExperts && config.experts.routing.early;
    if (routes_early) {
        quantize(x_, c_.n_embd);
        product(weights.experts.router.matrix, x_, n_, plan_.scores, quantized_);
        meet();
    }
    if (config.mixer != MixerKind::kNone) {
        norm_rows(weights.norm, index, Site::kMixerIn);
        if (config.low_rank.rank) product(weights.beside.low_rank_in, normed_, n_, plan_.narrow, quantized_);
        float* added = plan_.added;
        if (config.has_attention()) {
            attention(index);
        } else if (config.mixer == MixerKind::kLatent) {
            latent(index);
        } else {
            recurrent(index, weights.o, plan_.added);
        }
        if (config.mixer == MixerKind::kBeside) {
            show(index, Site::kMixerOut, added);
            quantize(normed_, c_.n_embd);
            recurrent(index, weights.recurrent.out, plan_.other);
            show(index, Site::kRecurrentOut, plan_.other);
            for (size_t row = first_; row < last_; ++row) {
                std::memcpy(row_of(sum_, row), row_of(plan_.added, row), c_.n_embd * sizeof(float));
                kernel_.add(row_of(sum_, row), row_of(plan_.other, row), c_.n_embd);
            }
            added = sum_;
        }
        if (config.parallel) renorm_before(weights.ffn_norm);
        if (config.mixer == MixerKind::kBeside) {
            add_rows(added, weights.o.bias, weights.post_norm, config.residual_scale);
        } else {
            add_output(index, Site::kMixerOut, added, weights.o.bias, weights.post_norm, config.residual_scale);
        }
        norm_sums(weights.sum_norm);
    }
    if (config.low_rank.rank) add_low_rank(index);
    if (config.ffn != FeedForwardKind::kNone) feed_forward(index);
    if (config.input.size || config.output_scale || config.streams.n > 1) finish_layer(index);
}

void Decoder::Walk::feed_forward(size_t index) {
    const LayerConfig& config = c_.layers[index];
    const Layer& weights = d_.layers_[index];
    if (config.parallel) {
        show(index, Site::kFeedIn, normed_);
        quantize(normed_, c_.n_embd);  // what the mixer read, or the stream that it read with a norm of its own
    } else {
        norm_rows(weights.ffn_norm, index, Site::kFeedIn);
    }
    if (config.ffn == FeedForwardKind::kDense) {
        const float* rows = normed_;
        if (config.dense.shift) {
            rows = mix_rows(index, mixer_floats(config), weights.dense.shares.data());
            quantize(rows, c_.n_embd);
        }
        const Quantized& inner = dense(config.dense, weights.dense, rows);
        if (config.dense.shift) keep_rows(index, mixer_floats(config));
        product(weights.dense.down.matrix, plan_.gate, n_, plan_.added, inner);
        meet();
        add_output(index, Site::kFeedOut, plan_.added, weights.dense.down.bias, weights.post_ffn_norm,
                   config.residual_scale);
    } else {
        experts(index);
        add_output(index, Site::kFeedOut, sum_, {}, weights.post_ffn_norm, config.residual_scale);
    }
    norm_sums(weights.ffn_sum_norm);
}

// What an image's vectors have for this layer, beside their embeddings.
void Decoder::Walk::add_features(size_t index) {
    if (input_.vectors.empty()) return;
    for (size_t row = first_; row < last_; ++row) {
        if (input_.vectors[row]) kernel_.add(row_of(x_, row), input_.vectors[row] + (index + 1) * c_.n_embd, c_.n_embd);
    }
}

// Rows of this thread as integers, if any matrix reads them: float layouts read the floats.
void Decoder::Walk::quantize(const float* rows, size_t columns) {
    if (d_.reads_integers_ && columns % kBlock == 0) {
        for (size_t row = first_; row < last_; ++row) {
            quantize_activations(kernel_, d_.precision_, rows + row * columns, columns, row, quantized_);
        }
    }
    meet_if_shared();
}

// Columns [from, to) of a row as integers.
void Decoder::Walk::quantize_part(const float* x, size_t columns, size_t row, size_t from, size_t to,
                                  const Quantized& out) const {
    const size_t first = row % out.lanes, at = out.block_of(row - first, columns) + from / kBlock * out.lanes;
    const Quantized part{out.q + at * kBlock, out.scale + at, out.scaled + at, out.sums + 2 * at, out.lanes};
    kernel_.quantize(x + from, to - from, first, part);
}

void Decoder::Walk::norm_rows(const Norm& norm, size_t layer, Site site) {
    for (size_t row = first_; row < last_; ++row) {
        if (norm.config.there()) {
            d_.normalize(norm, row_of(x_, row), c_.n_embd, row_of(normed_, row));
        } else {
            std::memcpy(row_of(normed_, row), row_of(x_, row), c_.n_embd * sizeof(float));
        }
    }
    show(layer, site, normed_);
    quantize(normed_, c_.n_embd);
}

// What the feed-forward reads beside a mixer, where that is not what the mixer read: the stream before anything is added.
void Decoder::Walk::renorm_before(const Norm& norm) {
    for (size_t row = first_; row < last_ && norm.config.there(); ++row) {
        d_.normalize(norm, row_of(x_, row), c_.n_embd, row_of(normed_, row));
    }
}

// Normalises the residual stream itself, if there is such a norm.
void Decoder::Walk::norm_sums(const Norm& norm) {
    if (!norm.config.there()) return;
    for (size_t row = first_; row < last_; ++row) d_.normalize(norm, row_of(x_, row), c_.n_embd, row_of(x_, row));
}

// Normalises rows within a mixer or a feed-forward in place, if there is such a norm. Alone, all threads read the same row.
void Decoder::Walk::norm_inner(const Norm& norm, float* rows, size_t columns) {
    if (!norm.config.there()) return;
    for (size_t row = first_; row < last_ && (!alone_ || thread_ == 0); ++row) {
        d_.normalize(norm, rows + row * columns, columns, rows + row * columns);
    }
    if (alone_) meet();
}

// Adds what mixer or feed-forward made to the residual stream. It is changed in memory of the thread's own: alone, all
// threads read the same.
void Decoder::Walk::add_rows(float* rows, const std::vector<float>& bias, const Norm& post, float scale) {
    const size_t n = c_.n_embd;
    for (size_t row = first_; row < last_; ++row) {
        const float* added = row_of(rows, row);
        float* sum = row_of(sum_, row);
        if (!bias.empty()) {
            std::memcpy(sum, added, n * sizeof(float));
            kernel_.add(sum, bias.data(), n);
            added = sum;
        }
        if (post.config.there()) {
            d_.normalize(post, added, n, sum);
            added = sum;
        }
        if (scale != 1.0f) {
            for (size_t i = 0; i < n; ++i) sum[i] = added[i] * scale;
            added = sum;
        }
        kernel_.add(row_of(x_, row), added, n);
    }
}

void Decoder::Walk::product(const Matrix& w, const float* floats, size_t columns, float* out, const Quantized& in) {
    prepare_changes({&w}, floats, in, columns, plan_.adapted);
    const auto rows_of = [&](const Pieces::Piece& piece) { return Rows{in, floats, piece.first, piece.last}; };
    each_piece(
        w.panels(), columns, w.data,
        [&](const Pieces::Piece& piece) { multiply(w, rows_of(piece), piece.begin, piece.end, out); },
        [&](const Pieces::Piece& piece) { add_changes(w, rows_of(piece), piece.begin, piece.end, out); });
}

void Decoder::Walk::products(std::initializer_list<Target> targets, const float* floats) {
    size_t panels = 0;
    const Matrix* matrices[kMostTargets] = {};
    for (const Target& target : targets) panels += target.matrix->panels();
    std::transform(targets.begin(), targets.end(), matrices, [](const Target& target) { return target.matrix; });
    prepare_changes({matrices[0], matrices[1], matrices[2], matrices[3]}, floats, quantized_, n_, plan_.adapted);
    // Calls f(matrix, rows, first panel, last panel, out) for the parts of a piece.
    const auto each_part = [&](const Pieces::Piece& piece, auto f) {
        size_t before = 0;
        for (const Target& target : targets) {
            const size_t count = target.matrix->panels();
            const size_t from = std::max(piece.begin, before), to = std::min(piece.end, before + count);
            const Rows rows{quantized_, floats, piece.first, piece.last};
            if (from < to) f(*target.matrix, rows, from - before, to - before, target.out);
            before += count;
        }
    };
    each_piece(
        panels, n_, targets.begin()->matrix->data,
        [&](const Pieces::Piece& piece) { each_part(piece, [&](auto&&... part) { multiply(part...); }); },
        [&](const Pieces::Piece& piece) {
            if (!changes_.empty()) each_part(piece, [&](auto&&... part) { add_changes(part...); });
        });
}

// The inner rows of a feed-forward, [n][n_ff] in Plan::gate; returns them as integers. `in` are its rows, which are quantised.
const Quantized& Decoder::Walk::dense(const DenseConfig& config, const DenseWeights& w, const float* in) {
    constexpr size_t kGrain = kBlock / kPanelRows;  // panels of a block
    const bool in_parts = !config.sparse && !config.inner_norm.there() && quantizes_parts(config.n_ff, kGrain * kPanelRows);
    const Matrix& first = config.gated ? w.gate.matrix : w.up.matrix;
    float* up_out = config.gated ? plan_.up : plan_.gate;
    prepare_changes({&w.gate.matrix, &w.up.matrix}, in, quantized_, n_, plan_.adapted);
    const auto multiply_both = [&](const Pieces::Piece& piece) {
        const Rows rows{quantized_, in, piece.first, piece.last};
        if (config.gated) multiply(w.gate.matrix, rows, piece.begin, piece.end, plan_.gate);
        multiply(w.up.matrix, rows, piece.begin, piece.end, up_out);
    };
    const auto finish = [&](const Pieces::Piece& piece) {
        const Rows rows{quantized_, in, piece.first, piece.last};
        if (config.gated) add_changes(w.gate.matrix, rows, piece.begin, piece.end, plan_.gate);
        add_changes(w.up.matrix, rows, piece.begin, piece.end, up_out);
        const size_t from = piece.begin * kPanelRows, to = std::min(piece.end * kPanelRows, config.n_ff);
        const float* gate_bias = config.bias && config.gated ? w.gate.bias.data() + from : nullptr;
        const float* up_bias = config.bias ? w.up.bias.data() + from : nullptr;
        for (size_t row = piece.first; row < piece.last; ++row) {
            float* gate = plan_.gate + row * config.n_ff + from;
            if (!config.sparse) {
                activate(config, gate_bias, up_bias, 0.0f, 0.0f, gate, up_out + row * config.n_ff + from, to - from);
            } else if (gate_bias) {
                kernel_.add(gate, gate_bias, to - from);
                kernel_.add(up_out + row * config.n_ff + from, up_bias, to - from);
            }
            if (in_parts) quantize_part(plan_.gate + row * config.n_ff, config.n_ff, row, from, to, plan_.inner_rows);
        }
    };
    each_piece(first.panels(), n_, first.data, multiply_both, finish, in_parts ? kGrain : 1);
    meet();
    if (in_parts) return plan_.inner_rows;
    if (config.sparse) cut_gates(config);
    norm_inner(w.inner_norm, plan_.gate, config.n_ff);
    quantize(plan_.gate, config.n_ff);
    return quantized_;
}

// Gates of whole rows, less their mean and `cutoff` times their standard deviation, not below 0; and activated. Alone,
// all threads need the mean of the row before any of them changes its part.
void Decoder::Walk::cut_gates(const DenseConfig& config) {
    const size_t n = config.n_ff, panels = pieces_of(n, kPanelRows);
    const size_t from = alone_ ? panels * thread_ / n_threads_ * kPanelRows : 0;
    const size_t to = alone_ ? std::min(panels * (thread_ + 1) / n_threads_ * kPanelRows, n) : n;
    for (size_t row = first_; row < last_; ++row) {
        float* gate = plan_.gate + row * n;
        const double mean = sum_of(n, [&](size_t i) { return double{gate[i]}; }) / static_cast<double>(n);
        const double squares = sum_of(n, [&](size_t i) { return (gate[i] - mean) * (gate[i] - mean); });
        const auto least = static_cast<float>(mean + config.cutoff * std::sqrt(squares / static_cast<double>(n)));
        if (alone_) meet();
        for (size_t i = from; i < to; ++i) gate[i] = std::max(gate[i] - least, 0.0f);
        if (from < to) activate(config, nullptr, nullptr, 0.0f, 0.0f, gate + from, plan_.up + row * n + from, to - from);
    }
    if (alone_) meet();
}

// gate = activation(gate) × up, or activation(up) in place of it where there is no gate. With a limit it is the clamped
// SwiGLU: gate × sigmoid(alpha × gate) × (up + 1).
void Decoder::Walk::activate(const DenseConfig& config, const float* gate_bias, const float* up_bias, float limit,
                             float alpha, float* gate, float* up, size_t n) const {
    if (gate_bias) kernel_.add(gate, gate_bias, n);
    if (up_bias) kernel_.add(up, up_bias, n);
    if (limit > 0.0f) {
        for (size_t i = 0; i < n; ++i) {
            gate[i] = alpha * std::min(gate[i], limit);
            up[i] = (std::max(-limit, std::min(up[i], limit)) + 1.0f) / alpha;
        }
        return kernel_.silu(gate, up, n);
    }
    if (config.activation == FeedActivation::kRelu2 || config.activation == FeedActivation::kRelu) {
        const bool squares = config.activation == FeedActivation::kRelu2;
        for (size_t i = 0; i < n; ++i) {
            const float above = std::max(gate[i], 0.0f), made = squares ? above * above : above;
            gate[i] = config.gated ? made * up[i] : made;
        }
        return;
    }
    if (config.activation == FeedActivation::kXielu) {
        const XieluConfig& c = config.xielu;
        for (size_t i = 0; i < n; ++i) {
            const float x = gate[i];
            const float curved = x > 0.0f ? c.alpha_p * x * x : c.alpha_n * (std::expm1(std::min(x, c.eps)) - x);
            const float made = curved + c.beta * x;
            gate[i] = config.gated ? made * up[i] : made;
        }
        return;
    }
    const auto activation = config.activation == FeedActivation::kGelu      ? kernel_.gelu
                            : config.activation == FeedActivation::kGeluErf ? kernel_.gelu_erf
                                                                            : kernel_.silu;
    activation(gate, config.gated ? up : nullptr, n);
}

void Decoder::Walk::logits() {
    if (c_.n_stream() > 1) merge_streams();
    task_ = kLayerTasks * d_.layers_.size();
    // The last norm, of the rows that are wanted.
    meet_if_shared();
    const size_t n_wanted = input_.wanted.size();
    float* states = plan_.hidden ? plan_.out : plan_.states;
    const size_t begin = alone_ ? 0 : n_wanted * thread_ / n_threads_;
    const size_t end = alone_ ? n_wanted : n_wanted * (thread_ + 1) / n_threads_;
    Quantized quantized = quantized_;  // fewer rows, which may be kept in another way
    quantized.lanes = kernel_.lanes(columns_of(d_.precision_) * n_wanted);
    float* own = alone_ && !(plan_.hidden && thread_ == 0) ? normed_ : states;
    for (size_t w = begin; w < end; ++w) {
        float* to = row_of(own, w);
        if (d_.output_norm_.config.there()) {
            d_.normalize(d_.output_norm_, row_of(x_, input_.wanted[w]), c_.n_embd, to);
        } else {
            std::memcpy(to, row_of(x_, input_.wanted[w]), c_.n_embd * sizeof(float));
        }
        if (!plan_.hidden && c_.n_embd % kBlock == 0) {
            quantize_activations(kernel_, d_.precision_, to, c_.n_embd, w, quantized);
        }
    }
    if (plan_.hidden || !n_wanted) return;
    meet_if_shared();
    const Matrix& w = c_.tied ? d_.embedding_ : d_.output_;
    prepare_changes({&w}, own, quantized, n_wanted, plan_.adapted_wanted);
    each_piece(
        w.panels(), n_wanted, w.data,
        [&](const Pieces::Piece& piece) {
            multiply(w, {quantized, own, piece.first, piece.last}, piece.begin, piece.end, plan_.out);
        },
        [&](const Pieces::Piece& piece) {
            add_changes(w, {quantized, own, piece.first, piece.last}, piece.begin, piece.end, plan_.out);
            d_.finish_logits(plan_, piece.first, piece.last, piece.begin * kPanelRows,
                             std::min(piece.end * kPanelRows, c_.n_vocab));
        },
        kPeak / kPanelRows);
}

// What remains to be done with logits [from, to) of some rows, while they are in this thread's caches.
void Decoder::finish_logits(const Plan& plan, size_t first, size_t last, size_t from, size_t to) const {
    const Config& c = config_;
    for (size_t row = first; row < last; ++row) {
        float* logits = plan.out + row * c.n_vocab;
        if (c.output_bias) kernels_->add(logits + from, output_bias_.data() + from, to - from);
        if (c.logit_scale != 1.0f) {
            for (size_t i = from; i < to; ++i) logits[i] *= c.logit_scale;
        }
        if (c.logit_cap > 0.0f) {
            for (size_t i = from; i < to; ++i) logits[i] = c.logit_cap * std::tanh(logits[i] / c.logit_cap);
        }
        if (plan.peaks) {
            kernels_->peaks(logits + from, to - from, plan.peaks + row * stretches(c.n_vocab) + from / kPeak);
        }
    }
}

}  // namespace stretto
