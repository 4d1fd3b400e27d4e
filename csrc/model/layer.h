// The weights of a layer, and which tensors they come from.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "model/config.h"
#include "weights/packed.h"

namespace stretto {

struct Norm {
    NormConfig config;
    std::vector<float> weight, bias;  // weights are ones where the norm has none
};

// A product and what is added to it.
struct Linear {
    Matrix matrix;
    std::vector<float> bias;  // empty: none
};

struct DenseWeights {
    Linear gate, up, down;
    Norm inner_norm;
    std::vector<float> shares;  // of the row before, in what is read
};

struct ExpertWeights {
    Linear router;
    std::vector<float> correction;
    std::vector<Matrix> gates, ups, downs;           // one for each expert
    std::vector<float> gate_bias, up_bias, down_bias;  // of one expert after the other
    DenseWeights shared;
    std::vector<float> shared_gate;
    std::vector<float> output_scale;  // of each expert
    Norm router_norm, norm, post_norm, shared_norm, shared_post_norm;
};

// What a layer has beside mixer and feed-forward.
struct BesideWeights {
    Matrix low_rank_in, low_rank_out;
    Norm low_rank_norm;
    Matrix gate, projection;  // of its input
    Norm input_norm;
    std::vector<float> router, predict, correct, correct_scale;  // of streams: [n][n_embd], [n × n][n], [n][n], [n_embd]
    Norm router_norm;
    std::vector<float> output_scale;  // one number
};

struct ProjectionWeights {
    Linear linear;
    Norm norm;
};

// Weights beside the layers: of embeddings, of the layers' inputs, of streams, and of pooled hidden states.
struct ModelWeights {
    Matrix positions;          // a row for each position
    std::vector<float> types;  // [token types][n_embd]
    Norm embedding_norm;
    std::vector<ProjectionWeights> projections;
    Matrix inputs;             // a row for each token, with numbers for all layers
    Matrix input_projection;
    Norm input_norm;
    std::vector<Matrix> spread, merge;  // of each stream but the first
};

struct RecurrentWeights {
    Matrix in, gate, beta, alpha;  // a delta net has all of them, Mamba-2 and convolutions `in` only
    Matrix step, c;                // of Mamba, whose `alpha` and `beta` make what steps are made of, and B; of KDA,
                                   // whose `alpha` and `c` make what `step` and `gate` read
    // Of time mixing `alpha`, `beta`, `in` and `c` make what `step` (decays), `rate`, `value` and `gate` read.
    Matrix rate, value;
    std::vector<float> shares;     // of the row before, in each of the mixtures that are read
    std::vector<float> rate_bias, value_bias, removal, key_rate, bonus;  // a0, v0, k_k, k_a, r_k; `dt_bias` is w0
    std::vector<float> key_taps, value_taps;  // of KDA, whose `taps` are of queries
    std::vector<float> taps, conv_bias, dt_bias, a, d;
    Norm norm, b_norm, c_norm;
    Linear out;  // where the layer has attention too; else Layer::o
};

struct Layer {
    Norm norm, ffn_norm, post_norm, post_ffn_norm, sum_norm, ffn_sum_norm;
    Linear q, k, v, o;
    Norm q_norm, k_norm, v_norm, mixed_norm;
    std::vector<float> sinks;
    Linear q_a, kv_a;             // latent attention: q is behind q_a, and k_norm that of the compressed vectors
    std::vector<Matrix> k_b, v_b;  // one for each head
    Matrix index_q, index_k, index_weights;  // of an indexer
    Norm index_norm;
    RecurrentWeights recurrent;
    DenseWeights dense;
    ExpertWeights experts;
    BesideWeights beside;
};

// The tensors a model needs, by name, and where they go: matrices without ".weight", vectors with it.
class Tensors {
public:
    struct Entry {
        Matrix* matrix = nullptr;
        std::vector<float>* vector = nullptr;
        size_t rows = 0, columns = 0;  // of the matrix; of a vector only rows
        size_t transposed = 0;         // columns of a small matrix that is kept as a vector, column after column
    };

    void matrix(const std::string& name, Matrix& to, size_t rows, size_t columns);
    void vector(const std::string& name, std::vector<float>& to, size_t n);
    void taps(const std::string& name, std::vector<float>& to, size_t channels, size_t kernel);
    void linear(const std::string& name, Linear& to, size_t rows, size_t columns, bool bias);
    // A norm's weights and biases.
    void norm(const std::string& prefix, const NormConfig& config, Norm& to, size_t n);
    void layer(size_t index, const LayerConfig& config, size_t n_embd, Layer& to);
    void model(const Config& config, ModelWeights& to);

    Entry* find(const std::string& name);
    // The first that has not been set as it should be, or "".
    std::string missing() const;
    // Whether a matrix is not of floats.
    bool any_quantized() const;
    const std::vector<std::string>& names() const { return names_; }

private:
    void dense(const std::string& prefix, const DenseConfig& config, size_t n_embd, DenseWeights& to);
    void attention(const std::string& prefix, const AttentionConfig& config, size_t n_embd, Layer& to);
    void latent(const std::string& prefix, const LayerConfig& config, size_t n_embd, Layer& to);
    void recurrent(const std::string& prefix, const LayerConfig& config, size_t n_embd, Layer& to);
    void experts(const std::string& prefix, const ExpertsConfig& config, size_t n_embd, ExpertWeights& to);
    void beside(const std::string& prefix, const LayerConfig& config, size_t n_embd, BesideWeights& to);

    std::unordered_map<std::string, Entry> entries_;
    std::vector<std::string> names_;
};

}  // namespace stretto
