// The decoder: one forward pass for any batch of any model that a Config describes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "half.h"
#include "product.h"
#include "threads.h"

namespace stretto {

struct Rope {
    std::vector<double> frequencies;
    bool adjacent = false;  // pairs (2i, 2i+1), else (i, i + d/2)
    double magnitude = 1.0;
};

struct LayerConfig {
    int rope = 0;     // which of Config::ropes
    int window = 0;   // 0: none
};

struct Config {
    size_t n_vocab, n_embd, n_ff, n_head, n_kv_head, head_size;
    float norm_eps, attention_scale, embedding_scale;
    float attention_cap, logit_cap;  // 0: none
    bool gelu, qkv_bias, qk_norm, post_norm, tied;
    std::vector<Rope> ropes;
    std::vector<LayerConfig> layers;
};

// Memory on whole cache lines; large ones on huge pages where the system has them.
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(size_t bytes);
    ~Buffer();
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    uint8_t* data() const { return data_; }
    size_t size() const { return bytes_; }
    // At least `bytes` of it; what was in it is gone if it has to grow.
    uint8_t* reserve(size_t bytes);

private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
    void* allocated_ = nullptr;  // where a small one begins
    void* mapped_ = nullptr;  // where a large one begins and how long it is
    size_t mapped_bytes_ = 0;
};

// A batch as the engine placed it. All arrays belong to the caller, and have been checked.
struct Input {
    size_t n;
    const int32_t* tokens;
    const int32_t* positions;
    const int32_t* cells;
    std::vector<const int32_t*> views;
    const int32_t* view_of;
    const int32_t* lengths;
    const int32_t* table;                 // the position of every cell
    std::vector<const float*> vectors;    // empty, or for each row a vector or null
    std::vector<size_t> wanted;           // rows
    std::vector<int32_t> probes;          // cells whose share of attention is asked for
    std::vector<size_t> watched;          // rows whose whole attention is asked for
};

class Decoder {
public:
    Decoder(Config config, size_t n_cells, CacheType cache, Precision precision, int threads, const Kernels* kernels);

    const Config& config() const { return config_; }
    const Kernels& kernels() const { return *kernels_; }
    size_t n_cells() const { return n_cells_; }
    Precision precision() const { return precision_; }
    int threads() const { return pool_.size(); }
    int active_threads() const { return pool_.active(); }
    size_t weight_bytes() const { return weight_bytes_; }
    size_t cache_bytes() const { return cache_.size(); }
    // All that the cache holds for one cell.
    size_t cell_bytes() const { return planes() * head_bytes_; }

    // A matrix as a whole, left in the file's format; the bytes must stay.
    void set_unpacked(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data);
    // Packs the next `count` rows of a matrix, a multiple of 16 unless they are the last.
    void pack_rows(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data, size_t count);
    // A norm's weights or a bias.
    void set_vector(const std::string& name, const float* data, size_t n);
    // The name of a tensor that the config needs and that has not been set, or "".
    std::string missing() const;
    // Whether nothing is missing.
    bool complete() {
        if (!complete_) complete_ = missing().empty();
        return complete_;
    }

    // Runs a batch: logits [n_wanted][n_vocab], or with `hidden` the final states [n_wanted][n_embd]. `peaks` gets the
    // largest of every kPeak logits, if it is given: [n_wanted][pieces of kPeak].
    void forward(const Input& input, float* out, bool hidden, float* peaks = nullptr);
    // What the probed cells received in the last pass: [n][probes], the mean over layers and heads.
    const std::vector<float>& received() const { return received_; }
    // The attention of the watched rows in the last pass, row after row: [n_layer][n_head][length of the row].
    const std::vector<float>& watched() const { return watched_; }
    void copy_cells(const int32_t* source, const int32_t* target, size_t n);
    void rotate_cells(const int32_t* cells, size_t n, int delta);
    // The bytes of some cells, `cell_bytes` each, in the order [n][layer][K, V][head].
    void read_cells(const int32_t* cells, size_t n, uint8_t* out) const;
    void write_cells(const int32_t* cells, size_t n, const uint8_t* data);

private:
    struct Layer {
        Matrix q, k, v, o, gate, up, down;
        std::vector<float> attn_norm, ffn_norm, q_norm, k_norm, post_attn, post_ffn, q_bias, k_bias, v_bias;
    };
    struct Plan;    // what one forward pass works on, in forward.cpp
    struct Thread;  // what each thread has of its own

    void multiply(const Matrix& w, const Rows& rows, size_t begin, size_t end, float* out,
                  const ProductScratch& scratch) const {
        multiply_activations(*kernels_, precision_, w, rows, begin, end, out, scratch);
    }
    void finish_logits(const Plan& plan, size_t first, size_t last, size_t from, size_t to) const;
    Matrix* matrix_named(const std::string& name);
    std::vector<float>* vector_named(const std::string& name);
    uint8_t* take_weights(size_t bytes);
    uint8_t* head_of(size_t layer, size_t cell, bool value, size_t head) const;
    uint8_t* plane_of(size_t plane, size_t cell) const;  // planes are [layer][K, V][head]
    size_t planes() const { return layers_.size() * 2 * config_.n_kv_head; }
    template <typename Move>
    void each_head(const int32_t* cells, size_t n, Move move) const;

    void run(Plan& plan, int thread, size_t first_layer, size_t last_layer);
    void attention(Plan& plan, int thread, size_t layer);
    void turn_head(const Plan& plan, size_t layer, size_t row, const std::vector<float>& bias,
                   const std::vector<float>& norm, size_t head, float* x) const;
    void turn_queries(const Plan& plan, size_t layer, size_t row, size_t kv, float* out) const;
    // Notes that a head's K or V is not finite.
    void check_finite(const uint8_t* head) {
        if (cache_type_ == CacheType::kHalf && !finite_halves(head, config_.head_size)) finite_ = false;
    }
    void store_heads(Plan& plan, size_t layer, size_t row, size_t kv);
    void measure(Plan& plan, size_t layer, size_t row, size_t kv, const Partial& total, size_t at,
                 float* scratch) const;
    void show(Plan& plan, size_t layer, size_t at, size_t kv, float* scratch) const;

    Config config_;
    size_t n_cells_;
    CacheType cache_type_;
    Precision precision_;
    const Kernels* kernels_;
    Pool pool_;
    std::vector<Layer> layers_;
    Matrix embedding_, output_;
    std::vector<float> output_norm_;
    std::vector<Buffer> weights_;   // chunks, each with many matrices: few pages, and all of them huge
    size_t chunk_used_ = 0;         // of the last chunk
    size_t weight_bytes_ = 0;
    Buffer cache_;      // [block of cells][layer][K, V][head][cell]: what is not used yet is not touched
    size_t head_bytes_; // of one head's K or V in one cell
    size_t block_bytes_;
    std::atomic<bool> finite_{true};  // what was ever stored as half floats
    std::vector<float> received_, watched_;
    bool complete_ = false;  // known to be, since the last tensor was set
    Buffer scratch_;    // grows to what the largest batch needed
};

}  // namespace stretto
