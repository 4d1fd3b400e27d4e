// Recurrent mixers in a forward pass: the rows of a slot advance its state in order; threads share channels and heads.

#include "model/recurrent_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/walk.h"

namespace stretto {

// Calls f(rows of a slot, state, first, last) for parts of `count` channels, heads or groups of all slots.
template <typename F>
void Decoder::Walk::each_slot(size_t layer, size_t count, size_t step, F f) {
    const size_t parts = pieces_of(count, step);
    Share share(plan_.cursors, next_task(), plan_.slots.size() * parts, thread_, n_threads_);
    for (size_t piece; share.next(&piece);) {
        const SlotGroup& group = plan_.slots[piece / parts];
        const size_t begin = piece % parts * step;
        f(SlotRows{group.rows.size(), group.rows.data()}, d_.state_of(group.slot, layer), begin,
          std::min(begin + step, count));
    }
    meet();
}

// Leaves what the mixer gives in `out`.
void Decoder::Walk::recurrent(size_t layer, const Linear& projection, float* out) {
    const LayerConfig& config = c_.layers[layer];
    size_t width = 0;
    if (config.is_delta_net()) width = delta_net(layer);
    if (config.is_kimi_delta()) width = kimi_delta(layer);
    if (config.is_convolution()) width = short_convolution(layer);
    if (config.is_time_mix()) width = time_mix(layer);
    if (config.is_mamba()) width = mamba(layer);
    if (config.has_mamba2()) width = mamba2(layer);
    quantize(plan_.inner, width);
    product(projection.matrix, plan_.inner, n_, out, quantized_);
    meet();
}

// Channels that a thread takes at a time: whole vectors, and some parts for each thread.
size_t Decoder::Walk::channel_step(size_t channels) const {
    return whole_lines(pieces_of(channels, 2 * n_threads_));
}

size_t Decoder::Walk::delta_net(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const RecurrentWeights& w = d_.layers_[layer].recurrent;
    const DeltaNetWeights net = delta_net_of(config.recurrent, w);
    const ConvolutionWeights convolution = convolution_of(config, w);
    const size_t inner = net.n_value_head * net.value_size, heads = net.n_value_head;
    if (net.fused) {
        products({{&w.in, plan_.projected}, {&w.gate, plan_.outer_gate}, {&w.beta, plan_.beta}}, normed_);
    } else {
        products({{&w.in, plan_.projected}, {&w.gate, plan_.outer_gate}, {&w.beta, plan_.beta}, {&w.alpha, plan_.alpha}},
                 normed_);
    }
    meet();
    const Columns<float> qkv{plan_.projected, net.channels()};
    each_slot(layer, net.channels(), channel_step(net.channels()),
              [&](const SlotRows& rows, float* state, size_t begin, size_t end) {
                  convolve(kernel_, convolution, rows, qkv, state, begin, end);
              });
    const Columns<const float> beta{plan_.beta, net.fused ? 2 * heads : heads}, alpha{plan_.alpha, heads};
    each_slot(layer, heads, 1, [&](const SlotRows& rows, float* state, size_t begin, size_t end) {
        const DeltaNetRows given{rows, {qkv.data, qkv.stride}, {plan_.outer_gate, inner}, beta, alpha, {plan_.inner, inner}};
        correct_heads(kernel_, net, given, state + history_floats(config), mine_.recurrent, begin, end);
    });
    return inner;
}

size_t Decoder::Walk::kimi_delta(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const RecurrentConfig& r = config.recurrent;
    const Layer& whole = d_.layers_[layer];
    const RecurrentWeights& w = whole.recurrent;
    const KimiDeltaWeights net = kimi_delta_of(r, w);
    const ConvolutionWeights convolution = convolution_of(config, w);
    float* gates = plan_.alpha + n_ * r.rank;  // what they are made of
    products({{&whole.q.matrix, plan_.q}, {&whole.k.matrix, plan_.k}, {&whole.v.matrix, plan_.v}}, normed_);
    products({{&w.alpha, plan_.alpha}, {&w.c, gates}, {&w.beta, plan_.beta}}, normed_);
    meet();
    each_slot(layer, r.width, channel_step(r.width), [&](const SlotRows& rows, float* state, size_t begin, size_t end) {
        const std::pair<const std::vector<float>*, float*> parts[] = {
            {&w.taps, plan_.q}, {&w.key_taps, plan_.k}, {&w.value_taps, plan_.v}};
        for (const auto& [taps, x] : parts) {
            ConvolutionWeights part = convolution;
            part.taps = taps->data();
            convolve(kernel_, part, rows, {x, r.width}, state, begin, end);
            state += part.state_floats();
        }
    });
    quantize(plan_.alpha, r.rank);
    product(w.step, plan_.alpha, n_, plan_.projected, quantized_);
    meet();
    quantize(gates, r.rank);
    product(w.gate, gates, n_, plan_.outer_gate, quantized_);
    meet();
    each_slot(layer, r.n_head, 1, [&](const SlotRows& rows, float* state, size_t begin, size_t end) {
        const auto given = [&](const float* x) { return Columns<const float>{x, r.width}; };
        const KimiDeltaRows all{rows, given(plan_.q), given(plan_.k), given(plan_.v), given(plan_.projected),
                                given(plan_.outer_gate), {plan_.beta, r.n_head}, {plan_.inner, r.width}};
        correct_channels(kernel_, net, all, state + history_floats(config), mine_.recurrent, begin, end);
    });
    return r.width;
}

// Normalised rows, each moved towards the one before it in its text, which is at `at` of a slot's state if it was in an
// earlier pass. Alone, each thread has the row for itself.
const float* Decoder::Walk::mix_rows(size_t layer, size_t at, const float* shares) {
    const size_t n = c_.n_embd;
    float* mixed = alone_ ? mine_.recurrent : plan_.inner;
    for (size_t row = first_; row < last_; ++row) {
        const int32_t last = plan_.before[row];
        const float* before = last < 0 ? d_.state_of(static_cast<size_t>(input_.slots[row]), layer) + at
                                       : row_of(normed_, static_cast<size_t>(last));
        const float* x = row_of(normed_, row);
        float* to = mixed + row * n;
        for (size_t i = 0; i < n; ++i) to[i] = x[i] + (before[i] - x[i]) * shares[i];
    }
    return mixed;
}

// The last normalised row of each slot, for the next pass: once all threads have mixed theirs.
void Decoder::Walk::keep_rows(size_t layer, size_t at) {
    if (alone_ && thread_ != 0) return;
    for (const SlotGroup& group : plan_.slots) {
        const auto row = static_cast<size_t>(group.rows.back());
        if (row < first_ || row >= last_) continue;
        std::memcpy(d_.state_of(group.slot, layer) + at, row_of(normed_, row), c_.n_embd * sizeof(float));
    }
}

size_t Decoder::Walk::time_mix(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const RecurrentConfig& r = config.recurrent;
    const Layer& whole = d_.layers_[layer];
    const RecurrentWeights& w = whole.recurrent;
    const TimeMixWeights mix = time_mix_of(r, w);
    const size_t rows = n_ * r.width;
    float *decays = plan_.projected, *rates = decays + rows, *shares = rates + rows;
    float *decay = plan_.alpha, *rate = decay + n_ * r.rank, *share = rate + n_ * r.rate_rank;  // what they are made of
    float *gate = share + n_ * r.value_rank, *values = r.value_rank ? plan_.v : plan_.first_values;

    size_t which = 0;
    const auto read = [&](std::initializer_list<Target> targets) {
        const float* mixed = mix_rows(layer, 0, w.shares.data() + which++ * c_.n_embd);
        quantize(mixed, c_.n_embd);
        products(targets, mixed);
        meet();
    };
    read({{&whole.q.matrix, plan_.q}});
    read({{&w.alpha, decay}});
    read({{&whole.k.matrix, plan_.k}});
    r.value_rank ? read({{&whole.v.matrix, values}, {&w.in, share}}) : read({{&whole.v.matrix, values}});
    read({{&w.beta, rate}});
    if (r.gate_rank) read({{&w.c, gate}});
    keep_rows(layer, 0);

    const auto widen = [&](const Matrix& matrix, float* narrow, size_t rank, float (*inner)(float), float* out) {
        float* own = alone_ ? mine_.recurrent : narrow;
        for (size_t i = first_ * rank; i < last_ * rank; ++i) own[i] = inner(narrow[i]);
        quantize(own, rank);
        product(matrix, own, n_, out, quantized_);
        meet();
    };
    const auto same = [](float x) { return x; };
    widen(w.step, decay, r.rank, [](float x) { return std::tanh(x); }, decays);
    widen(w.rate, rate, r.rate_rank, same, rates);
    if (r.value_rank) widen(w.value, share, r.value_rank, same, shares);
    if (r.gate_rank) widen(w.gate, gate, r.gate_rank, [](float x) { return 1.0f / (1.0f + std::exp(-x)); }, plan_.outer_gate);
    each_slot(layer, r.n_head, 1, [&](const SlotRows& slot, float* state, size_t begin, size_t end) {
        const auto given = [&](const float* x) { return Columns<const float>{x, r.width}; };
        const TimeMixRows all{slot,
                              given(plan_.q),
                              given(plan_.k),
                              given(decays),
                              given(rates),
                              {values, r.width},
                              given(r.value_rank ? shares : nullptr),
                              given(plan_.first_values),
                              given(r.gate_rank ? plan_.outer_gate : nullptr),
                              {plan_.inner, r.width}};
        advance_heads(kernel_, mix, all, state + history_floats(config), mine_.recurrent, begin, end);
    });
    return r.width;
}

size_t Decoder::Walk::short_convolution(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const RecurrentWeights& w = d_.layers_[layer].recurrent;
    const ConvolutionWeights convolution = convolution_of(config, w);
    const size_t width = config.recurrent.width;
    products({{&w.in, plan_.projected}}, normed_);
    meet();
    each_slot(layer, width, channel_step(width), [&](const SlotRows& rows, float* state, size_t begin, size_t end) {
        convolve_gated(kernel_, convolution, rows, {plan_.projected, 3 * width}, {plan_.inner, width}, state, begin, end);
    });
    return width;
}

size_t Decoder::Walk::mamba(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const RecurrentConfig& r = config.recurrent;
    const RecurrentWeights& w = d_.layers_[layer].recurrent;
    const MambaWeights net = mamba_of(r, w);
    const ConvolutionWeights convolution = convolution_of(config, w);
    products({{&w.in, plan_.projected}, {&w.gate, plan_.outer_gate}}, normed_);
    meet();
    const Columns<float> x{plan_.projected, r.width};
    each_slot(layer, r.width, channel_step(r.width), [&](const SlotRows& rows, float* state, size_t begin, size_t end) {
        convolve(kernel_, convolution, rows, x, state, begin, end);
    });
    quantize(x.data, r.width);
    float* c = plan_.beta + n_ * r.state_size;
    products({{&w.alpha, plan_.alpha}, {&w.beta, plan_.beta}, {&w.c, c}}, x.data);
    meet();
    norm_inner(w.norm, plan_.alpha, r.rank);
    norm_inner(w.b_norm, plan_.beta, r.state_size);
    norm_inner(w.c_norm, c, r.state_size);
    quantize(plan_.alpha, r.rank);
    product(w.step, plan_.alpha, n_, plan_.inner, quantized_);
    meet();
    each_slot(layer, r.width, channel_step(r.width), [&](const SlotRows& rows, float* state, size_t begin, size_t end) {
        const MambaRows given{rows, {x.data, x.stride}, {plan_.beta, r.state_size}, {c, r.state_size},
                              {plan_.outer_gate, r.width}, {plan_.inner, r.width}};
        scan_channels(kernel_, net, given, state + history_floats(config), begin, end);
    });
    return r.width;
}

size_t Decoder::Walk::mamba2(size_t layer) {
    const LayerConfig& config = c_.layers[layer];
    const RecurrentWeights& w = d_.layers_[layer].recurrent;
    const Mamba2Weights net = mamba2_of(config.recurrent, w);
    const ConvolutionWeights convolution = convolution_of(config, w);
    products({{&w.in, plan_.projected}}, normed_);
    meet();
    const Columns<float> mixed{plan_.projected + net.inner(), net.projected()};
    each_slot(layer, net.channels(), channel_step(net.channels()),
              [&](const SlotRows& rows, float* state, size_t begin, size_t end) {
                  convolve(kernel_, convolution, rows, mixed, state, begin, end);
              });
    auto rows_of = [&](const SlotRows& rows) {
        return Mamba2Rows{rows, {plan_.projected, net.projected()}, {plan_.inner, net.inner()}};
    };
    each_slot(layer, net.n_head, 1, [&](const SlotRows& rows, float* state, size_t begin, size_t end) {
        scan_heads(kernel_, net, rows_of(rows), state + history_floats(config), begin, end);
    });
    each_slot(layer, net.n_group, 1, [&](const SlotRows& rows, float*, size_t begin, size_t end) {
        gate_groups(kernel_, net, rows_of(rows), mine_.recurrent, begin, end);
    });
    return net.inner();
}

}  // namespace stretto
