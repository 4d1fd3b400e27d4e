// What a layer has beside mixer and feed-forward: inputs of its own, low-rank residuals, several streams.
//
// Each layer computes the first stream only, in x. Before it all streams are predicted as a mixture of all, after it
// they are corrected by what the layer changed in the first one. The few weights of that come from a router, and are
// computed row by row; alone, every thread does it for itself, as for all that is row by row.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/sums.h"
#include "model/walk.h"

namespace stretto {

namespace {

const float kHalfRoot = std::sqrt(0.5f);
constexpr double kSmallest = 1e-5;  // mean square that a stream is divided by

// A vector made as long as x.
void with_length_of(const float* x, const float* from, size_t n, float* to) {
    const double count = static_cast<double>(n);
    const double length = std::sqrt(dot(x, x, n) / count);
    const auto factor = static_cast<float>(length / std::sqrt(std::max(dot(from, from, n) / count, kSmallest)));
    for (size_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

}  // namespace

void Decoder::Walk::embed_beside() {
    const size_t n = c_.n_embd;
    task_ = kLayerTasks * (d_.layers_.size() + 1);
    quantize(x_, n);
    if (c_.per_layer.size) product(d_.model_.input_projection, x_, n_, plan_.inputs, quantized_);
    for (size_t s = 1; s < c_.n_stream(); ++s) {
        product(d_.model_.spread[s - 1], x_, n_, plan_.streams + s * n_ * n, quantized_);
    }
    meet();
    if (c_.per_layer.size) make_inputs();
    for (size_t row = first_; row < last_ && c_.n_stream() > 1; ++row) {
        const float* x = row_of(x_, row);
        std::memcpy(stream_of(0, row), x, n * sizeof(float));
        for (size_t s = 1; s < c_.n_stream(); ++s) {
            with_length_of(x, plan_.streams + (s * n_ + row) * n, n, stream_of(s, row));
        }
    }
}

// The inputs of all layers, from each token's own numbers and the projection of its embedding.
void Decoder::Walk::make_inputs() {
    const size_t size = c_.per_layer.size, all = c_.inputs();
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(size)));
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.n_embd)));
    std::vector<float> own(all);
    for (size_t row = first_; row < last_; ++row) {
        const bool is_vector = !input_.vectors.empty() && input_.vectors[row];  // which has no numbers of its own
        read_row(d_.model_.inputs, is_vector ? 0 : input_.tokens[row], own.data());
        const float* projected = plan_.inputs + row * all;
        float* to = inputs_ + row * all;
        for (size_t i = 0; i < all; ++i) to[i] = projected[i] * scale;
        for (size_t at = 0; at < all; at += size) d_.normalize(d_.model_.input_norm, to + at, size, to + at);
        for (size_t i = 0; i < all; ++i) to[i] = (own[i] * root + to[i]) * kHalfRoot;
    }
}

// The end of a layer.
void Decoder::Walk::finish_layer(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const bool has_streams = config.streams.n > 1;
    if (config.input.size && !has_streams) add_input(layer);
    if (config.output_scale) {
        const float scale = d_.layers_[layer].beside.output_scale[0];
        for (size_t row = first_; row < last_; ++row) {
            for (size_t i = 0; i < c_.n_embd; ++i) row_of(x_, row)[i] *= scale;
        }
    }
    if (has_streams) correct(layer);
    if (config.input.size && has_streams) add_input(layer);
}

// What the layer's input adds to x, or to all streams but the first.
void Decoder::Walk::add_input(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const BesideWeights& w = d_.layers_[layer].beside;
    const size_t size = config.input.size, n_stream = config.streams.n, n = c_.n_embd;
    for (size_t row = first_; row < last_; ++row) {
        float* to = row_of(normed_, row);
        std::memcpy(to, n_stream > 1 ? stream_of(0, row) : row_of(x_, row), n * sizeof(float));
        for (size_t i = 0; i < n && n_stream > 1; ++i) to[i] *= w.correct_scale[i];
    }
    quantize(normed_, n);
    product(w.gate, normed_, n_, plan_.narrow, quantized_);
    meet();
    for (size_t row = first_; row < last_; ++row) {
        float* to = narrow_ + row * size;
        if (alone_) std::memcpy(to, plan_.narrow, size * sizeof(float));
        kernel_.gelu(to, inputs_ + row * c_.inputs() + layer * size, size);
    }
    quantize(narrow_, size);
    product(w.projection, narrow_, n_, plan_.beside, quantized_);
    meet();
    for (size_t row = first_; row < last_; ++row) {
        float* sum = row_of(sum_, row);
        d_.normalize(w.input_norm, row_of(plan_.beside, row), n, sum);
        if (n_stream == 1) kernel_.add(row_of(x_, row), sum, n);
        for (size_t s = 1; s < n_stream; ++s) kernel_.add(stream_of(s, row), sum, n);
    }
}

// x = (x + y + norm(R L y)) / √2, with y what the mixer read. L y is in Plan::narrow.
void Decoder::Walk::add_low_rank(size_t layer) {
    const BesideWeights& w = d_.layers_[layer].beside;
    quantize(plan_.narrow, c_.layers[layer].low_rank.rank);
    product(w.low_rank_out, plan_.narrow, n_, plan_.beside, quantized_);
    meet();
    for (size_t row = first_; row < last_; ++row) {
        float *x = row_of(x_, row), *sum = row_of(sum_, row);
        d_.normalize(w.low_rank_norm, row_of(plan_.beside, row), c_.n_embd, sum);
        const float* y = row_of(normed_, row);
        for (size_t i = 0; i < c_.n_embd; ++i) x[i] = (x[i] + (y[i] + sum[i])) * kHalfRoot;
    }
}

// A number between −1 and 1 for each stream.
void Decoder::Walk::route_streams(size_t layer, const float* x, float* normed, float* routed) const {
    const BesideWeights& w = d_.layers_[layer].beside;
    d_.normalize(w.router_norm, x, c_.n_embd, normed);
    for (size_t s = 0; s < c_.n_stream(); ++s) {
        const double score = dot(w.router.data() + s * c_.n_embd, normed, c_.n_embd) / static_cast<double>(c_.n_embd);
        routed[s] = static_cast<float>(std::tanh(score));
    }
}

// Each stream plus a mixture of all; the first one also in x.
void Decoder::Walk::predict(size_t layer) {
    constexpr size_t kTile = 64;
    const std::vector<float>& weights = d_.layers_[layer].beside.predict;
    const size_t n = c_.n_stream();
    for (size_t row = first_; row < last_; ++row) {
        float routed[kMostStreams], mixture[kMostStreams * kMostStreams] = {}, old[kMostStreams][kTile];
        route_streams(layer, stream_of(0, row), row_of(normed_, row), routed);
        for (size_t k = 0; k < n * n; ++k) {
            for (size_t s = 0; s < n; ++s) mixture[k] += weights[k * n + s] * routed[s];
        }
        for (size_t at = 0; at < c_.n_embd; at += kTile) {
            const size_t count = std::min(kTile, c_.n_embd - at);
            for (size_t s = 0; s < n; ++s) std::copy_n(stream_of(s, row) + at, count, old[s]);
            for (size_t t = 0; t < n; ++t) {
                float* to = stream_of(t, row) + at;
                for (size_t s = 0; s < n; ++s) {
                    const float weight = mixture[t * n + s];
                    for (size_t i = 0; i < count; ++i) to[i] += weight * old[s][i];
                }
            }
        }
        std::memcpy(row_of(x_, row), stream_of(0, row), c_.n_embd * sizeof(float));
    }
}

// Each stream moved by what the layer changed in the first one.
void Decoder::Walk::correct(size_t layer) {
    const std::vector<float>& weights = d_.layers_[layer].beside.correct;
    const size_t n = c_.n_stream();
    for (size_t row = first_; row < last_; ++row) {
        const float* x = row_of(x_, row);
        float routed[kMostStreams];
        route_streams(layer, x, row_of(normed_, row), routed);
        const float* first = stream_of(0, row);
        for (size_t t = n; t-- > 0;) {  // the first one last: the others need it as it was predicted
            float weight = 1.0f, *to = stream_of(t, row);
            for (size_t s = 0; s < n; ++s) weight += weights[t * n + s] * routed[s];
            for (size_t i = 0; i < c_.n_embd; ++i) to[i] += (x[i] - first[i]) * weight;
        }
    }
}

// x becomes the mean of the streams, the others projected to the first one's length.
void Decoder::Walk::merge_streams() {
    const size_t n = c_.n_embd, n_stream = c_.n_stream();
    task_ = kLayerTasks * (d_.layers_.size() + 2);
    for (size_t row = first_; row < last_; ++row) {
        std::memcpy(row_of(x_, row), stream_of(0, row), n * sizeof(float));
    }
    for (size_t s = 1; s < n_stream; ++s) {
        const float* rows = streams_ + s * n_ * n;
        meet();  // the product writes where the last one's result was read
        quantize(rows, n);
        product(d_.model_.merge[s - 1], rows, n_, plan_.beside, quantized_);
        meet();
        for (size_t row = first_; row < last_; ++row) {
            float* sum = row_of(sum_, row);
            with_length_of(stream_of(0, row), row_of(plan_.beside, row), n, sum);
            kernel_.add(row_of(x_, row), sum, n);
        }
    }
    for (size_t row = first_; row < last_; ++row) {
        for (size_t i = 0; i < n; ++i) row_of(x_, row)[i] /= static_cast<float>(n_stream);
    }
}

}  // namespace stretto
