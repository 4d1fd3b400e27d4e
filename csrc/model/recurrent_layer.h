// A layer's recurrent mixer, as the functions of recurrent.h take it.
#pragma once

#include "model/layer.h"
#include "model/recurrent.h"

namespace stretto {

inline DeltaNetWeights delta_net_of(const RecurrentConfig& c, const RecurrentWeights& w) {
    return {c.n_key_head,     c.n_value_head,     c.key_size, c.value_size, c.tiled, c.fused, w.a.data(),
            w.dt_bias.data(), w.norm.weight.data(), c.norm.eps};
}

inline Mamba2Weights mamba2_of(const RecurrentConfig& c, const RecurrentWeights& w) {
    return {c.n_head,     c.head_size, c.n_group, c.state_size, w.a.data(), w.d.data(), w.dt_bias.data(),
            c.norm.there() ? w.norm.weight.data() : nullptr, c.norm.eps};
}

inline KimiDeltaWeights kimi_delta_of(const RecurrentConfig& c, const RecurrentWeights& w) {
    return {c.n_head, c.head_size, w.a.data(), w.dt_bias.data(), w.norm.weight.data(), c.norm.eps};
}

inline TimeMixWeights time_mix_of(const RecurrentConfig& c, const RecurrentWeights& w) {
    const bool normed = c.norm.there();
    return {c.n_head,
            c.head_size,
            w.dt_bias.data(),
            w.rate_bias.data(),
            w.value_bias.data(),
            w.removal.data(),
            w.key_rate.data(),
            w.bonus.data(),
            normed ? w.norm.weight.data() : nullptr,
            normed ? w.norm.bias.data() : nullptr,
            c.norm.eps};
}

inline MambaWeights mamba_of(const RecurrentConfig& c, const RecurrentWeights& w) {
    return {c.width, c.state_size, w.a.data(), w.d.data(), w.dt_bias.data()};
}

inline size_t channels_of(const LayerConfig& layer) {
    if (layer.is_delta_net()) return delta_net_of(layer.recurrent, {}).channels();
    if (layer.has_mamba2()) return mamba2_of(layer.recurrent, {}).channels();
    return layer.recurrent.width;
}

inline ConvolutionWeights convolution_of(const LayerConfig& layer, const RecurrentWeights& w) {
    return {layer.recurrent.kernel, channels_of(layer), w.taps.data(), w.conv_bias.empty() ? nullptr : w.conv_bias.data()};
}

// Numbers of a layer's state: the convolution's history or the row before, then its heads' matrices, then the row before of
// its feed-forward. Each begins on a cache line.
inline size_t whole_lines(size_t floats) { return (floats + 15) / 16 * 16; }
inline size_t history_floats(const LayerConfig& layer) {
    if (layer.is_kimi_delta()) return whole_lines(3 * convolution_of(layer, {}).state_floats());
    if (layer.is_time_mix()) return whole_lines(layer.recurrent.width);
    return layer.is_recurrent() ? whole_lines(convolution_of(layer, {}).state_floats()) : 0;
}
// Where the row before of the feed-forward begins.
inline size_t mixer_floats(const LayerConfig& layer) {
    size_t heads = 0;
    if (layer.is_delta_net()) heads = delta_net_of(layer.recurrent, {}).state_floats();
    if (layer.is_kimi_delta()) heads = kimi_delta_of(layer.recurrent, {}).state_floats();
    if (layer.is_time_mix()) heads = time_mix_of(layer.recurrent, {}).state_floats();
    if (layer.is_mamba()) heads = mamba_of(layer.recurrent, {}).state_floats();
    if (layer.has_mamba2()) heads = mamba2_of(layer.recurrent, {}).state_floats();
    return history_floats(layer) + whole_lines(heads);
}
inline size_t recurrent_floats(const LayerConfig& layer) { return mixer_floats(layer) + whole_lines(layer.dense.shift); }

}  // namespace stretto
