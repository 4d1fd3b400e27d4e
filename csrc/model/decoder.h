// The decoder: one forward pass for any batch of any model that a Config describes.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/product.h"
#include "memory/memory.h"
#include "model/adapter.h"
#include "model/collector.h"
#include "model/config.h"
#include "model/layer.h"
#include "model/tap.h"
#include "model/widths.h"
#include "threads/pool.h"
#include "weights/half.h"

namespace stretto {

// A batch as the engine placed it. All arrays belong to the caller, and have been checked.
struct Input {
    size_t n;
    const int32_t* tokens;
    const int32_t* positions;
    const int32_t* rotated = nullptr;     // [n][3], what rows are rotated by if not by their positions
    const int32_t* cells;
    std::vector<const int32_t*> views;
    const int32_t* view_of;
    const int32_t* lengths;               // of a model that attends in both directions: the whole views
    const int32_t* causal = nullptr;      // the lengths if no row attended beyond its own position; null: the same
    const int32_t* table;                 // the position of every cell
    const int32_t* types = nullptr;       // the token type of each row; null: all are 0
    const int32_t* slots = nullptr;       // with recurrent layers: the slot whose state each row advances
    std::vector<const float*> vectors;    // empty, or for each row a vector or null
    std::vector<std::pair<const Adapter*, const float*>> adapters;  // with a scale for each row, 0: not for it
    std::vector<size_t> wanted;           // rows
    std::vector<int32_t> probes;          // cells whose share of attention is asked for
    std::vector<size_t> watched;          // rows whose whole attention is asked for
    std::vector<Tap> taps;                // sites whose rows are asked for
    ChangeRows change;                    // of the taps that change them
};

// In place of an expert: the row is padding, and its result 0.
constexpr int32_t kNoExpert = -1;

class Decoder {
public:
    Decoder(Config config, size_t n_cells, CacheType cache, Precision precision, int threads, const Kernels* kernels,
            size_t n_slots = 0);

    const Config& config() const { return config_; }
    const Kernels& kernels() const { return *kernels_; }
    size_t n_cells() const { return n_cells_; }
    Precision precision() const { return precision_; }
    int threads() const { return pool_.size(); }
    Pool& pool() { return pool_; }  // for work between passes, in a turn
    int active_threads() const { return pool_.active(); }
    size_t weight_bytes() const { return weight_bytes_; }
    size_t cache_bytes() const { return cache_.size(); }
    // All that the cache holds for one cell.
    size_t cell_bytes() const { return cell_bytes_; }
    // States of recurrent layers, and the bytes of one.
    size_t n_slots() const { return n_slots_; }
    size_t slot_bytes() const { return slot_floats_ * sizeof(float); }

    // The tensors that the config needs: matrices without ".weight", each expert's and each head's for itself.
    Tensors& tensors() { return tensors_; }
    // A matrix as a whole, left in the file's format; the bytes must stay.
    void set_unpacked(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data);
    void renew(const std::string& name);
    // Packs the next `count` rows of a matrix, a multiple of 16 unless they are the last.
    void pack_rows(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data, size_t count);
    // A matrix as a whole, which `pack_deferred` packs; until then passes read the file's rows, which gives the same bits.
    // `owner` is released by `release` once the bytes are not needed any more.
    void defer(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data,
               std::shared_ptr<void> owner);
    // Packs what was deferred, in turns with passes; returns when all of it has been packed, or `stop` says so. One thread
    // calls it.
    void pack_deferred(const std::function<bool()>& stop);
    void release() { released_.clear(); }
    size_t n_deferred() const { return n_deferred_; }
    // A matrix that `pack_rows` has packed, here or in another process: `bytes` on whole cache lines, which must stay.
    void set_packed(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data, size_t bytes);
    // The bytes of a matrix that has been packed as a whole; throws for any other.
    std::pair<const uint8_t*, size_t> packed(const std::string& name);
    // A norm's weights or a bias.
    void set_vector(const std::string& name, const float* data, size_t n);
    // Whether no tensor is missing.
    bool complete() {
        if (!complete_) {
            complete_ = tensors_.missing().empty();
            reads_integers_ = tensors_.any_quantized();
        }
        return complete_;
    }

    // Adds the change of a matrix to an adapter, which begins with its first.
    void add_change(int adapter, const std::string& name, size_t rank, float scale, int a_format, const uint8_t* a,
                    int b_format, const uint8_t* b);
    void add_vector(int adapter, size_t layer, const float* vector) {
        adapters_[adapter].add_vector(layer, vector, config_.n_embd);
    }
    void remove_adapter(int adapter) { adapters_.erase(adapter); }
    // An adapter by its number, or null.
    const Adapter* adapter(int number) const {
        const auto at = adapters_.find(number);
        return at == adapters_.end() ? nullptr : &at->second;
    }

    // Runs a batch: logits [n_wanted][n_vocab], or with `hidden` the final states [n_wanted][n_embd]. `peaks` gets the
    // largest of every kPeak logits, if it is given: [n_wanted][pieces of kPeak].
    void forward(const Input& input, float* out, bool hidden, float* peaks = nullptr);
    // Rows of pooled hidden states times one of Config::projections, with what comes behind it: [n][its rows].
    void project(size_t projection, const float* x, size_t n, float* out);
    // The weighted sum of the chosen experts of a layer, [n][n_embd], for rows that are normalised and routed elsewhere: [n]
    // [n_embd] and [n][n_used]. A row has the same bits whatever the others are. False, and nothing is computed, where a choice
    // is no expert; a row whose choices are all kNoExpert is left out.
    bool mix_experts(size_t layer, const float* rows, const int32_t* chosen, const float* weights, size_t n, float* out);
    // What the probed cells received in the last pass: [n][probes], the mean over layers and heads.
    const std::vector<float>& received() const { return received_; }
    // The attention of the watched rows in the last pass, row after row: [n_layer][most heads][length of the row].
    const std::vector<float>& watched() const { return watched_; }
    // From now on, or no longer, sums the squares of what each matrix multiplies.
    void collect(bool wanted) { collector_ = wanted ? std::make_unique<Collector>() : nullptr; }
    const Collector* collector() const { return collector_.get(); }
    void copy_cells(const int32_t* source, const int32_t* target, size_t n);
    void rotate_cells(const int32_t* cells, size_t n, int delta);
    // The bytes of some cells, `cell_bytes` each, in the order [n][layer][K, V][head].
    void read_cells(const int32_t* cells, size_t n, uint8_t* out) const;
    void write_cells(const int32_t* cells, size_t n, const uint8_t* data);
    void copy_slots(const int32_t* source, const int32_t* target, size_t n);
    void clear_slots(const int32_t* slots, size_t n);
    void read_slots(const int32_t* slots, size_t n, uint8_t* out) const;
    void write_slots(const int32_t* slots, size_t n, const uint8_t* data);

private:
    // One head's K or V of all cells: where it begins in a block's bytes for one cell, and how long it is.
    struct Plane {
        size_t begin, bytes;
        size_t layer;
        bool value;  // V, or the key of an indexer
        size_t size;
    };
    // A matrix that is still to be packed.
    struct Deferred {
        Matrix* matrix;
        Matrix packed;
        std::shared_ptr<void> owner;
    };
    // Rows from outside, and which of them are no padding.
    struct GivenRows {
        const float* rows;
        std::vector<size_t> live;
        float* out;
    };
    struct Plan;    // what one forward pass works on, in plan.h
    struct Thread;  // what each thread has of its own
    class Walk;     // a thread's way through the layers, in walk.h

    void multiply(const Matrix& w, const Rows& rows, size_t begin, size_t end, float* out,
                  const ProductScratch& scratch) const {
        if (collector_ && begin == 0) collector_->add(w, rows);
        multiply_activations(*kernels_, precision_, w, rows, begin, end, out, scratch);
    }
    void normalize(const Norm& norm, const float* x, size_t n, float* out, size_t first = 0) const;
    uint8_t* take_weights(size_t bytes);
    void pack_panels_of(const Matrix& matrix, int threads, size_t begin, size_t end, const uint8_t* data, uint8_t* out);
    uint8_t* plane_of(const Plane& plane, size_t cell) const;
    float* state_of(size_t slot, size_t layer) const {
        return reinterpret_cast<float*>(states_.data()) + slot * slot_floats_ + state_begin_[layer];
    }
    uint8_t* head_of(size_t layer, size_t cell, bool value, size_t head) const;
    // The key of a layer's indexer.
    uint8_t* index_of(size_t layer, size_t cell) const { return plane_of(planes_[first_plane_[layer] + 1], cell); }
    size_t head_stride(size_t layer) const { return head_bytes(cache_type_, config_.layers[layer].attention.head_size); }
    std::vector<float> after_rope(const Plane& plane) const;
    template <typename Move>
    void each_head(const int32_t* cells, size_t n, Move move) const;

    void change_rows(const Input& input, size_t tap);
    void make_blocks_present(const Input& input);
    void make_plan(Plan& plan, const Input& input, float* out, bool hidden, float* peaks);
    void place_rows(Plan& plan) const;
    void group_slots(Plan& plan) const;
    void find_windows(Plan& plan) const;
    void find_strides(Plan& plan) const;
    void find_probes(Plan& plan);
    void find_adapted(Plan& plan) const;
    void carve(Plan& plan);
    void finish_logits(const Plan& plan, size_t first, size_t last, size_t from, size_t to) const;
    // Notes that a head's K or V is not finite.
    void check_finite(const uint8_t* head, size_t size) {
        if (cache_type_ == CacheType::kHalf && !finite_halves(head, size)) finite_ = false;
    }

    Config config_;
    size_t n_cells_;
    CacheType cache_type_;
    Precision precision_;
    const Kernels* kernels_;
    Pool pool_;
    std::vector<Layer> layers_;
    std::map<int, Adapter> adapters_;
    Matrix embedding_, output_;
    Norm output_norm_;
    std::vector<float> output_bias_;
    ModelWeights model_;
    Tensors tensors_;
    size_t most_heads_ = 0;         // of any layer
    Widths widths_;                 // of the buffers that a pass needs for each row
    std::vector<Buffer> weights_;   // chunks, each with many matrices: few pages, and all of them huge
    size_t chunk_used_ = 0;         // of the last chunk
    size_t weight_bytes_ = 0;
    std::deque<Deferred> deferred_;
    std::vector<std::shared_ptr<void>> released_;
    std::atomic<size_t> n_deferred_{0};
    std::atomic<bool> has_passed_{false};  // whether there was a pass
    Buffer cache_;      // [block of cells][layer][K, V][head][cell]: what is not used yet is not touched
    std::vector<Plane> planes_;
    std::vector<size_t> first_plane_;  // of each layer
    size_t cell_bytes_ = 0, block_bytes_ = 0;
    size_t blocks_present_ = 0;  // the first ones, whose pages need not be waited for
    Buffer states_;     // [slot][layer]: what is not used yet is not touched
    size_t n_slots_ = 0, slot_floats_ = 0;
    std::vector<size_t> state_begin_;  // of each layer, in a slot
    std::atomic<bool> finite_{true};  // what was ever stored as half floats
    std::vector<float> received_, watched_;
    std::exception_ptr change_error_;  // of what changes the rows of a pass
    std::unique_ptr<Collector> collector_;  // null: nothing is collected
    bool complete_ = false;  // known to be, since the last tensor was set
    bool reads_integers_ = true;  // whether any product reads activations as integers
    Buffer scratch_;    // grows to what the largest batch needed
};

}  // namespace stretto
