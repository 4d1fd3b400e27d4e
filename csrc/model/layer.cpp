#include "model/layer.h"

#include <algorithm>

namespace stretto {

void Tensors::matrix(const std::string& name, Matrix& to, size_t rows, size_t columns) {
    if (entries_.emplace(name, Entry{&to, nullptr, rows, columns}).second) names_.push_back(name);
}

void Tensors::vector(const std::string& name, std::vector<float>& to, size_t n) {
    if (entries_.emplace(name, Entry{nullptr, &to, n, 0}).second) names_.push_back(name);
}

void Tensors::taps(const std::string& name, std::vector<float>& to, size_t channels, size_t kernel) {
    vector(name, to, channels * kernel);
    entries_[name].transposed = kernel;
}

void Tensors::linear(const std::string& name, Linear& to, size_t rows, size_t columns, bool bias) {
    matrix(name, to.matrix, rows, columns);
    if (bias) vector(name + ".bias", to.bias, rows);
}

void Tensors::norm(const std::string& prefix, const NormConfig& config, Norm& to, size_t n) {
    to.config = config;
    if (!config.there()) return;
    if (config.weight) {
        vector(prefix + config.weight_name, to.weight, n);
    } else {
        to.weight.assign(n, 1.0f);
    }
    if (config.bias) vector(prefix + config.name + ".bias", to.bias, n);
}

namespace {

// How many numbers the weights of a norm over heads are.
size_t weights_of(const NormConfig& config, size_t heads, size_t size) {
    return config.over == Over::kHead ? size : heads * size;
}

}  // namespace

void Tensors::attention(const std::string& prefix, const AttentionConfig& c, size_t n_embd, Layer& to) {
    const size_t n_read = n_embd + c.joined;
    linear(prefix + "attn_q", to.q, c.width() * (c.gate ? 2 : 1), n_read, c.bias);
    if (c.shared < 0) {
        linear(prefix + "attn_k", to.k, c.kv_width(), n_read, c.bias);
        if (!c.values_are_keys) linear(prefix + "attn_v", to.v, c.kv_width(), n_read, c.bias);
    }
    linear(prefix + "attn_output", to.o, n_embd, c.width(), c.output_bias);
    auto head_norm = [&](const NormConfig& config, Norm& norm_to, size_t heads) {
        norm(prefix, config, norm_to, weights_of(config, heads, c.head_size));
    };
    head_norm(c.q_norm, to.q_norm, c.n_head);
    if (c.shared < 0) {
        head_norm(c.k_norm, to.k_norm, c.n_kv_head);
        head_norm(c.v_norm, to.v_norm, c.n_kv_head);
    }
    norm(prefix, c.mixed_norm, to.mixed_norm, c.width());
    if (c.sinks) vector(prefix + "attn_sinks.weight", to.sinks, c.n_head);
}

void Tensors::latent(const std::string& prefix, const LayerConfig& config, size_t n_embd, Layer& to) {
    const LatentConfig& l = config.latent;
    const size_t n_head = config.attention.n_head, q = n_head * (l.nope_size + l.rope_size);
    if (l.q_rank) {
        linear(prefix + "attn_q_a", to.q_a, l.q_rank, n_embd, false);
        linear(prefix + "attn_q_b", to.q, q, l.q_rank, false);
        norm(prefix, l.q_norm, to.q_norm, l.q_rank);
    } else {
        linear(prefix + "attn_q", to.q, q, n_embd, false);
    }
    linear(prefix + "attn_kv_a_mqa", to.kv_a, l.rank + l.rope_size, n_embd, false);
    norm(prefix, l.kv_norm, to.k_norm, l.rank);
    to.k_b.resize(n_head);
    to.v_b.resize(n_head);
    for (size_t h = 0; h < n_head; ++h) {
        matrix(prefix + "attn_k_b." + std::to_string(h), to.k_b[h], l.rank, l.nope_size);
        matrix(prefix + "attn_v_b." + std::to_string(h), to.v_b[h], l.value_size, l.rank);
    }
    linear(prefix + "attn_output", to.o, n_embd, n_head * l.value_size, false);
    const IndexerConfig& index = l.indexer;
    if (!index.top_k) return;
    matrix(prefix + "indexer.attn_q_b", to.index_q, index.n_head * index.head_size, l.q_rank);
    matrix(prefix + "indexer.attn_k", to.index_k, index.head_size, n_embd);
    matrix(prefix + "indexer.proj", to.index_weights, index.n_head, n_embd);
    norm(prefix, index.k_norm, to.index_norm, index.head_size);
}

void Tensors::recurrent(const std::string& prefix, const LayerConfig& config, size_t n_embd, Layer& to) {
    const RecurrentConfig& c = config.recurrent;
    RecurrentWeights& w = to.recurrent;
    Linear& out = config.mixer == MixerKind::kBeside ? w.out : to.o;
    if (config.is_convolution()) {
        matrix(prefix + "shortconv.in_proj", w.in, 3 * c.width, n_embd);
        taps(prefix + "shortconv.conv.weight", w.taps, c.width, c.kernel);
        return linear(prefix + "shortconv.out_proj", out, n_embd, c.width, false);
    }
    if (config.is_kimi_delta()) {
        const size_t width = c.width;
        linear(prefix + "attn_q", to.q, width, n_embd, false);
        linear(prefix + "attn_k", to.k, width, n_embd, false);
        linear(prefix + "attn_v", to.v, width, n_embd, false);
        taps(prefix + "ssm_conv1d_q.weight", w.taps, width, c.kernel);
        taps(prefix + "ssm_conv1d_k.weight", w.key_taps, width, c.kernel);
        taps(prefix + "ssm_conv1d_v.weight", w.value_taps, width, c.kernel);
        matrix(prefix + "ssm_f_a", w.alpha, c.rank, n_embd);
        matrix(prefix + "ssm_f_b", w.step, width, c.rank);
        matrix(prefix + "ssm_g_a", w.c, c.rank, n_embd);
        matrix(prefix + "ssm_g_b", w.gate, width, c.rank);
        matrix(prefix + "ssm_beta", w.beta, c.n_head, n_embd);
        vector(prefix + "ssm_a", w.a, c.n_head);
        vector(prefix + "ssm_dt.bias", w.dt_bias, width);
        norm(prefix, c.norm, w.norm, c.head_size);
        return linear(prefix + "attn_output", out, n_embd, width, false);
    }
    if (config.is_time_mix()) {
        const size_t width = c.width;
        const std::string mix = prefix + "time_mix_";
        vector(mix + "lerp_fused.weight", w.shares, (c.gate_rank ? 6 : 5) * n_embd);
        linear(mix + "receptance", to.q, width, n_embd, false);
        linear(mix + "key", to.k, width, n_embd, false);
        linear(mix + "value", to.v, width, n_embd, false);
        const auto pair = [&](const char* name, Matrix& narrow, Matrix& wide, size_t rank) {
            if (!rank) return;
            matrix(mix + name + "1", narrow, rank, n_embd);
            matrix(mix + name + "2", wide, width, rank);
        };
        pair("w", w.alpha, w.step, c.rank);
        pair("a", w.beta, w.rate, c.rate_rank);
        pair("v", w.in, w.value, c.value_rank);
        pair("g", w.c, w.gate, c.gate_rank);
        vector(mix + "w0.weight", w.dt_bias, width);
        vector(mix + "a0.weight", w.rate_bias, width);
        if (c.value_rank) vector(mix + "v0.weight", w.value_bias, width);
        vector(mix + "k_k.weight", w.removal, width);
        vector(mix + "k_a.weight", w.key_rate, width);
        vector(mix + "r_k.weight", w.bonus, width);
        norm(prefix, c.norm, w.norm, width);
        return linear(mix + "output", out, n_embd, width, false);
    }
    if (config.is_mamba()) {
        matrix(prefix + "ssm_in", w.in, c.width, n_embd);
        matrix(prefix + "ssm_in_gate", w.gate, c.width, n_embd);
        matrix(prefix + "ssm_x_dt", w.alpha, c.rank, c.width);
        matrix(prefix + "ssm_x_b", w.beta, c.state_size, c.width);
        matrix(prefix + "ssm_x_c", w.c, c.state_size, c.width);
        matrix(prefix + "ssm_dt", w.step, c.width, c.rank);
        taps(prefix + "ssm_conv1d.weight", w.taps, c.width, c.kernel);
        if (c.conv_bias) vector(prefix + "ssm_conv1d.bias", w.conv_bias, c.width);
        taps(prefix + "ssm_a", w.a, c.width, c.state_size);
        vector(prefix + "ssm_d", w.d, c.width);
        vector(prefix + "ssm_dt.bias", w.dt_bias, c.width);
        norm(prefix, c.norm, w.norm, c.rank);
        norm(prefix, c.b_norm, w.b_norm, c.state_size);
        norm(prefix, c.c_norm, w.c_norm, c.state_size);
        return linear(prefix + "ssm_out", out, n_embd, c.width, false);
    }
    const bool delta = config.is_delta_net();
    const size_t heads = delta ? c.n_value_head : c.n_head;
    const size_t inner = delta ? heads * c.value_size : heads * c.head_size;
    const size_t channels = inner + 2 * (delta ? c.n_key_head * c.key_size : c.n_group * c.state_size);
    if (delta) {
        matrix(prefix + "attn_qkv", w.in, channels, n_embd);
        matrix(prefix + "attn_gate", w.gate, inner, n_embd);
        matrix(prefix + (c.fused ? "ssm_ba" : "ssm_beta"), w.beta, c.fused ? 2 * heads : heads, n_embd);
        if (!c.fused) matrix(prefix + "ssm_alpha", w.alpha, heads, n_embd);
        norm(prefix, c.norm, w.norm, c.value_size);
    } else {
        matrix(prefix + "ssm_in", w.in, inner + channels + heads, n_embd);
        vector(prefix + "ssm_d", w.d, heads);
        if (c.conv_bias) vector(prefix + "ssm_conv1d.bias", w.conv_bias, channels);
        norm(prefix, c.norm, w.norm, inner);
    }
    taps(prefix + "ssm_conv1d.weight", w.taps, channels, c.kernel);
    vector(prefix + "ssm_a", w.a, heads);
    vector(prefix + "ssm_dt.bias", w.dt_bias, heads);
    linear(prefix + "ssm_out", out, n_embd, inner, false);
}

void Tensors::dense(const std::string& prefix, const DenseConfig& c, size_t n_embd, DenseWeights& to) {
    if (c.gated) linear(prefix + "ffn_gate" + c.suffix, to.gate, c.n_ff, n_embd, c.bias);
    linear(prefix + "ffn_up" + c.suffix, to.up, c.n_ff, n_embd, c.bias);
    linear(prefix + "ffn_down" + c.suffix, to.down, n_embd, c.n_ff, c.down_bias);
    norm(prefix, c.inner_norm, to.inner_norm, c.n_ff);
    if (c.shift) vector(prefix + "channel_mix_lerp_k.weight", to.shares, c.shift);
}

void Tensors::experts(const std::string& prefix, const ExpertsConfig& c, size_t n_embd, ExpertWeights& to) {
    const size_t n = c.n_expert, n_ff = c.expert.n_ff;
    linear(prefix + "ffn_gate_inp", to.router, n, n_embd, c.routing.bias);
    if (c.routing.correction) vector(prefix + "exp_probs_b.bias", to.correction, n);
    auto each = [&](const char* name, std::vector<Matrix>& matrices, std::vector<float>& bias, size_t rows, size_t columns) {
        matrices.resize(n);
        for (size_t e = 0; e < n; ++e) matrix(prefix + name + "." + std::to_string(e), matrices[e], rows, columns);
        if (c.expert.bias) vector(prefix + name + ".bias", bias, n * rows);
    };
    if (c.expert.gated) each("ffn_gate_exps", to.gates, to.gate_bias, n_ff, n_embd);
    each("ffn_up_exps", to.ups, to.up_bias, n_ff, n_embd);
    each("ffn_down_exps", to.downs, to.down_bias, n_embd, n_ff);
    if (c.has_shared) dense(prefix, c.shared, n_embd, to.shared);
    if (c.shared_gate) vector(prefix + "ffn_gate_inp_shexp.weight", to.shared_gate, n_embd);
    if (c.output_scale) vector(prefix + "ffn_down_exps.scale", to.output_scale, n);
    norm(prefix, c.routing.norm, to.router_norm, n_embd);
    norm(prefix, c.norm, to.norm, n_embd);
    norm(prefix, c.post_norm, to.post_norm, n_embd);
    norm(prefix, c.shared_norm, to.shared_norm, n_embd);
    norm(prefix, c.shared_post_norm, to.shared_post_norm, n_embd);
}

void Tensors::beside(const std::string& prefix, const LayerConfig& c, size_t n_embd, BesideWeights& to) {
    if (c.low_rank.rank) {
        matrix(prefix + "laurel_l", to.low_rank_in, c.low_rank.rank, n_embd);
        matrix(prefix + "laurel_r", to.low_rank_out, n_embd, c.low_rank.rank);
        norm(prefix, c.low_rank.norm, to.low_rank_norm, n_embd);
    }
    if (c.input.size) {
        matrix(prefix + "inp_gate", to.gate, c.input.size, n_embd);
        matrix(prefix + "proj", to.projection, n_embd, c.input.size);
        norm(prefix, c.input.norm, to.input_norm, n_embd);
    }
    if (c.streams.n > 1) {
        const size_t n = c.streams.n;
        vector(prefix + "altup_router.weight", to.router, n * n_embd);
        vector(prefix + "altup_predict_coef.weight", to.predict, n * n * n);
        vector(prefix + "altup_correct_coef.weight", to.correct, n * n);
        vector(prefix + "altup_correct_scale.weight", to.correct_scale, n_embd);
        norm(prefix, c.streams.norm, to.router_norm, n_embd);
    }
    if (c.output_scale) vector(prefix + "layer_output_scale.weight", to.output_scale, 1);
}

void Tensors::model(const Config& c, ModelWeights& to) {
    if (c.learned_positions) matrix("position_embd", to.positions, c.learned_positions, c.n_embd);
    if (c.token_types) vector("token_types.weight", to.types, c.token_types * c.n_embd);
    norm("", c.embedding_norm, to.embedding_norm, c.n_embd);
    to.projections.resize(c.projections.size());
    for (size_t i = 0; i < c.projections.size(); ++i) {
        const ProjectionConfig& p = c.projections[i];
        linear(p.name, to.projections[i].linear, p.rows, p.columns, p.bias);
        norm("", p.norm, to.projections[i].norm, p.rows);
    }
    if (c.per_layer.size) {
        matrix("per_layer_token_embd", to.inputs, c.n_vocab, c.inputs());
        matrix("per_layer_model_proj", to.input_projection, c.inputs(), c.n_embd);
        norm("", c.per_layer.norm, to.input_norm, c.per_layer.size);
    }
    to.spread.resize(c.n_stream() - 1);
    to.merge.resize(c.n_stream() - 1);
    for (size_t i = 0; i + 1 < c.n_stream(); ++i) {
        matrix("altup_proj." + std::to_string(i), to.spread[i], c.n_embd, c.n_embd);
        matrix("altup_unembd_proj." + std::to_string(i), to.merge[i], c.n_embd, c.n_embd);
    }
}

void Tensors::layer(size_t index, const LayerConfig& c, size_t n_embd, Layer& to) {
    const std::string prefix = "blk." + std::to_string(index) + ".";
    norm(prefix, c.norm, to.norm, n_embd);
    norm(prefix, c.ffn_norm, to.ffn_norm, n_embd);
    norm(prefix, c.post_norm, to.post_norm, n_embd);
    norm(prefix, c.post_ffn_norm, to.post_ffn_norm, n_embd);
    norm(prefix, c.sum_norm, to.sum_norm, n_embd);
    norm(prefix, c.ffn_sum_norm, to.ffn_sum_norm, n_embd);
    if (c.has_attention()) attention(prefix, c.attention, n_embd, to);
    if (c.mixer == MixerKind::kLatent) latent(prefix, c, n_embd, to);
    if (c.is_recurrent()) recurrent(prefix, c, n_embd, to);
    if (c.ffn == FeedForwardKind::kDense) dense(prefix, c.dense, n_embd, to.dense);
    if (c.ffn == FeedForwardKind::kExperts) experts(prefix, c.experts, n_embd, to.experts);
    beside(prefix, c, n_embd, to.beside);
}

Tensors::Entry* Tensors::find(const std::string& name) {
    const auto at = entries_.find(name);
    return at == entries_.end() ? nullptr : &at->second;
}

bool Tensors::any_quantized() const {
    return std::any_of(entries_.begin(), entries_.end(), [](const auto& item) {
        const Matrix* matrix = item.second.matrix;
        return matrix && !is_float(matrix->layout);
    });
}

std::string Tensors::missing() const {
    for (const std::string& name : names_) {
        const Entry& entry = entries_.at(name);
        const bool set = entry.matrix ? entry.matrix->ready == entry.rows && entry.matrix->rows == entry.rows &&
                                            entry.matrix->columns == entry.columns
                                      : entry.vector->size() == entry.rows;
        if (!set) return name;
    }
    return "";
}

}  // namespace stretto
