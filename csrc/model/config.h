// What a decoder computes, as plain data: the native side of ModelSpec.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace stretto {

struct Rope {
    std::vector<double> frequencies;
    bool adjacent = false;  // pairs (2i, 2i+1), else (i, i + d/2)
    double magnitude = 1.0;
    std::vector<int> axes;  // which position each pair takes; empty: the row's own
    // Beyond `stretch_length` tokens of a text, pair i of p has r^(−i / (p − 1)) of its frequency, with
    // r = factor × length of the text / stretch_length − (factor − 1) (dynamic NTK); 0: it never falls.
    size_t stretch_length = 0;
    double stretch_factor = 1.0;
};

enum class Over { kHead, kHeads, kAll };  // what a norm of heads takes together, with weights for each

struct NormConfig {
    bool given = false;    // else there is no norm
    std::string name;      // of its tensors
    std::string weight_name;
    float eps = 0.0f;
    bool centred = false;  // a layer norm, which subtracts the mean
    bool weight = true, bias = false;
    Over over = Over::kHead;

    bool there() const { return given; }
};

struct AttentionConfig {
    size_t n_head = 0, n_kv_head = 0, head_size = 0;
    float scale = 1.0f, cap = 0.0f;  // cap 0: none
    int rope = -1;                   // which of Config::ropes; −1: none
    int window = 0;                  // 0: none
    bool chunked = false;            // rows see the chunk of `window` positions that they are in, not the last ones
    float clip = 0.0f;               // q, k and v lie within it on either side of 0; 0: anywhere
    int shared = -1;                 // the layer whose K and V it reads; −1: its own
    bool bias = false, output_bias = false, sinks = false, gate = false, values_are_keys = false;
    bool norm_after_rope = false;
    NormConfig q_norm, k_norm, v_norm;
    NormConfig mixed_norm;              // of all heads' results together
    float slope = 0.0f, offset = 0.0f;  // of a temperature by position; slope 0: none
    int length = 1;
    size_t joined = 0;  // numbers of a row's vector that stand before the normalised row in what it reads
    bool causal = true;        // else rows see their whole view, or less than `window` positions on either side
    std::vector<float> alibi;  // of each head: what scores fall by with each position of distance; empty: nothing

    size_t group() const { return n_head / n_kv_head; }
    size_t width() const { return n_head * head_size; }
    size_t kv_width() const { return n_kv_head * head_size; }
};

// What chooses the cells that a row attends to: those with the largest sums, over heads, of weight × relu(query · key).
struct IndexerConfig {
    size_t n_head = 0, head_size = 0;
    size_t top_k = 0;  // 0: there is none
    float scale = 1.0f;
    int rope = -1;
    NormConfig k_norm;
};

// Attention over one compressed vector for each cell: `attention` has one K/V head of rank + rope_size numbers.
struct LatentConfig {
    size_t q_rank = 0, rank = 0, nope_size = 0, rope_size = 0, value_size = 0;
    NormConfig q_norm, kv_norm;
    IndexerConfig indexer;
    int chosen_by = -1;  // the layer whose indexer chose what rows attend to, if it is another
    size_t top_k = 0;    // of that indexer, or its own; 0: rows attend to all they see
};

enum class FeedActivation { kSilu, kGelu, kRelu2, kGeluErf, kRelu, kXielu };

// xIELU: alpha_p x² + beta x above 0, alpha_n (e^min(x, eps) − 1 − x) + beta x below.
struct XieluConfig {
    float alpha_p = 0.0f, alpha_n = 0.0f, beta = 0.0f, eps = 0.0f;
};

struct DenseConfig {
    size_t n_ff = 0;
    FeedActivation activation = FeedActivation::kSilu;
    XieluConfig xielu;
    bool gated = true, bias = false, down_bias = false;
    std::string suffix;   // of its tensors' names
    bool sparse = false;  // gates that are not above a cutoff become 0:
    float cutoff = 0.0f;  // so many standard deviations above their mean
    NormConfig inner_norm;  // of what the last matrix reads
    size_t shift = 0;       // numbers of a row, each row is mixed with the one before it; 0: not
};

enum class Weights { kSoftmax, kSigmoid, kChosen, kOneByOne };

struct RoutingConfig {
    size_t n_used = 0, n_group = 1, n_group_used = 1, group_best = 2;
    Weights weights = Weights::kSoftmax;
    bool normalize = true, correction = false, bias = false;
    bool early = false;        // the router reads the row as the layer gets it, not what its experts read
    float scale = 1.0f, jitter = 0.0f;
    NormConfig norm;           // of what the router reads
    float score_scale = 1.0f;
};

struct ExpertsConfig {
    size_t n_expert = 0;
    DenseConfig expert;           // each of them
    RoutingConfig routing;
    float limit = 0.0f, alpha = 0.0f;  // of a clamped SwiGLU; limit 0: plain
    bool has_shared = false, shared_gate = false;
    float shared_scale = 1.0f;
    DenseConfig shared;
    bool output_scale = false;  // a number for each expert
    bool weighs_inputs = false;  // weights are of what experts read, not of what they give
    NormConfig norm, post_norm, shared_norm, shared_post_norm;

    // Whether router, experts and the shared one read anything else than their layer's normalised row.
    bool renorms() const { return routing.norm.there() || norm.there() || shared_norm.there() || shared_post_norm.there(); }
};

// A recurrent mixer; which fields it has depends on its kind.
struct RecurrentConfig {
    size_t kernel = 0;      // tokens that its convolution sees
    size_t n_head = 0, head_size = 0, n_group = 0, state_size = 0;                   // Mamba-2
    size_t n_key_head = 0, n_value_head = 0, key_size = 0, value_size = 0;           // delta net
    size_t width = 0;                                                                // short convolution, Mamba
    size_t rank = 0;                                                                 // Mamba, whose channels are `width`; KDA
    size_t rate_rank = 0, value_rank = 0, gate_rank = 0;                             // time mixing; `rank` is that of decays
    bool conv_bias = false, tiled = false, fused = false;
    NormConfig norm, b_norm, c_norm;                                                 // of Mamba: those of steps, B and C
};

// A residual through a narrow pair of matrices.
struct LowRankConfig {
    size_t rank = 0;  // 0: none
    NormConfig norm;
};

// The input that a layer has beside its row.
struct LayerInputConfig {
    size_t size = 0;  // 0: none
    NormConfig norm;
};

// A residual of several streams.
struct StreamsConfig {
    size_t n = 1;
    NormConfig norm;  // of the router
};

constexpr size_t kMostStreams = 16;

enum class MixerKind { kNone, kAttention, kLatent, kDeltaNet, kKimiDelta, kConvolution, kMamba, kMamba2, kTimeMix, kBeside };
enum class FeedForwardKind { kNone, kDense, kExperts };

struct LayerConfig {
    MixerKind mixer = MixerKind::kNone;
    AttentionConfig attention;  // also of latent attention
    LatentConfig latent;
    RecurrentConfig recurrent;  // also of one that is beside attention
    FeedForwardKind ffn = FeedForwardKind::kNone;
    DenseConfig dense;
    ExpertsConfig experts;
    NormConfig norm, ffn_norm, post_norm, post_ffn_norm;
    NormConfig sum_norm, ffn_sum_norm;  // of the residual itself, once something has been added
    bool parallel = false;
    float residual_scale = 1.0f;
    LowRankConfig low_rank;
    LayerInputConfig input;
    StreamsConfig streams;
    bool output_scale = false;

    bool has_attention() const { return mixer == MixerKind::kAttention || mixer == MixerKind::kBeside; }
    bool attends() const { return has_attention() || mixer == MixerKind::kLatent; }
    bool is_delta_net() const { return mixer == MixerKind::kDeltaNet; }
    bool is_kimi_delta() const { return mixer == MixerKind::kKimiDelta; }
    bool is_convolution() const { return mixer == MixerKind::kConvolution; }
    bool is_mamba() const { return mixer == MixerKind::kMamba; }
    bool is_time_mix() const { return mixer == MixerKind::kTimeMix; }
    bool has_mamba2() const { return mixer == MixerKind::kMamba2 || mixer == MixerKind::kBeside; }
    bool is_recurrent() const { return is_delta_net() || is_kimi_delta() || is_convolution() || is_mamba() || is_time_mix() || has_mamba2(); }
    // K/V heads that a cell holds of this layer, with V a part of K in latent attention.
    size_t cached_heads() const { return attends() && attention.shared < 0 ? attention.n_kv_head : 0; }
    bool values_apart() const { return has_attention(); }
};

// A matrix that is applied to pooled hidden states.
struct ProjectionConfig {
    enum class Activation { kNone, kTanh, kGelu, kGeluErf };

    std::string name;
    size_t rows = 0, columns = 0;
    bool bias = false;
    Activation activation = Activation::kNone;
    NormConfig norm;
};

struct Config {
    size_t n_vocab = 0, n_embd = 0;
    bool windowed_images = false;  // rows attend beyond their own position in layers with a window only
    size_t deepstack = 0;  // so many layers add further numbers of a row's vector to what they made
    float embedding_scale = 1.0f, logit_scale = 1.0f, logit_cap = 0.0f;  // cap 0: none
    bool tied = true, output_bias = false;
    size_t learned_positions = 0, token_types = 0;  // rows that are added to embeddings, 0: none
    NormConfig embedding_norm, output_norm;
    std::vector<ProjectionConfig> projections;
    LayerInputConfig per_layer;  // of the embeddings for each layer, and their norm
    std::vector<Rope> ropes;
    std::vector<LayerConfig> layers;

    // Whether rows of some layer see cells beyond their own position.
    bool two_way() const {
        for (const LayerConfig& layer : layers) if (layer.has_attention() && !layer.attention.causal) return true;
        return false;
    }
    // Numbers of a vector in place of a token.
    size_t n_vector() const {
        size_t joined = 0;
        for (const LayerConfig& layer : layers) joined = std::max(joined, layer.attention.joined);
        return n_embd * (1 + deepstack) + joined;
    }
    size_t n_stream() const { return layers.empty() ? 1 : layers[0].streams.n; }
    size_t inputs() const { return layers.size() * per_layer.size; }  // numbers of a token, for all layers
};

}  // namespace stretto
