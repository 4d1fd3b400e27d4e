// One thread's way through the layers of a forward pass. All threads walk together and meet at barriers.
//
// With a single row every thread does the small row-wise steps (norms, quantising) for itself, which costs a microsecond and
// saves a barrier; with more rows they share them.
#pragma once

#include "model/plan.h"

namespace stretto {

class Decoder::Walk {
public:
    Walk(Decoder& decoder, Plan& plan, int thread);

    void embed();
    void layer(size_t index);
    void add_features(size_t index);
    void steer(size_t index);  // adds adapters' vectors
    // What experts make of rows from outside.
    void mix_given(size_t layer, const GivenRows& given);
    // Shows rows at a site to those who have asked for them.
    void show(size_t layer, Site site, float* rows);
    float* residual() const { return x_; }
    // How much of its view each row sees in a layer.
    const int32_t* ends_of(size_t layer) const;
    void logits();  // and what is before them: the last norm

private:
    // Rows that one matrix multiplies, of those that were gathered for it.
    struct Group {
        size_t index;          // of the matrix: which expert, which head
        size_t first, count;   // rows, in what the groups give
        Quantized in;
        const float* floats;   // the same rows, for float layouts
    };

    // What one adapter adds to one product.
    struct Change {
        const Matrix* matrix;
        const LowRank* pair;
        const AdaptedRows* rows;
        float* narrow;         // [n][rank], A x times the scale
        Quantized bytes;       // the same as integers
    };

    void meet() { d_.pool_.barrier(thread_); }
    void meet_if_shared() { if (!alone_) meet(); }
    size_t next_task() { return task_++; }
    float* row_of(float* rows, size_t row) const { return rows + row * c_.n_embd; }
    float* stream_of(size_t stream, size_t row) const { return streams_ + (stream * n_ + row) * c_.n_embd; }

    void quantize(const float* rows, size_t columns);
    // Whether rows become integers part by part where they are made, which saves a barrier.
    bool quantizes_parts(size_t columns, size_t part) const {
        return !alone_ && d_.reads_integers_ && d_.precision_ == Precision::kStandard && columns % kBlock == 0 && part % kBlock == 0;
    }
    void quantize_part(const float* x, size_t columns, size_t row, size_t from, size_t to, const Quantized& out) const;
    void norm_rows(const Norm& norm, size_t layer, Site site);
    void renorm_before(const Norm& norm);
    void norm_sums(const Norm& norm);
    void norm_inner(const Norm& norm, float* rows, size_t columns);
    void add_rows(float* rows, const std::vector<float>& bias, const Norm& post, float scale);
    void add_output(size_t layer, Site site, float* rows, const std::vector<float>& bias, const Norm& post, float scale);
    bool is_tapped(size_t layer, Site site) const;
    void show_experts(size_t layer, const int32_t* chosen, float* weights);
    // Calls multiply(piece), then finish(piece), for the pieces of a product that this thread gets to do. Where A x is still
    // being computed, all that it gets are multiplied first.
    template <typename M, typename F>
    void each_piece(size_t panels, size_t columns, bool packed, M multiply, F finish, size_t grain = 1) {
        Pieces pieces(plan_.cursors, next_task(), panels, columns, !packed, grain, thread_, n_threads_);
        if (!changes_wait_) {
            for (Pieces::Piece piece; pieces.next(&piece);) multiply(piece), finish(piece);
            return;
        }
        multiplied_.clear();
        for (Pieces::Piece piece; pieces.next(&piece);) {
            multiply(piece);
            if (!multiplied_.empty() && multiplied_.back().precedes(piece)) {
                multiplied_.back().end = piece.end;  // longer ranges of B are read faster
            } else {
                multiplied_.push_back(piece);
            }
        }
        wait_for_changes();
        for (const Pieces::Piece& piece : multiplied_) finish(piece);
    }
    // What adapters add to the next product, before it begins: A x of all that change one of these matrices.
    void prepare_changes(std::initializer_list<const Matrix*> matrices, const float* floats, const Quantized& in, size_t n,
                         const std::vector<AdaptedRows>& adapted);
    void narrow_rows(const Change& change, const AdaptedChunk& chunk, const float* floats, const Quantized& in);
    void wait_for_changes() const;
    // The same as `multiply`, and asks for B of these panels.
    void multiply_ahead(const Matrix& w, const Rows& rows, size_t begin, size_t end, float* out) const;
    // Adds B (A x) to panels [begin, end) of a product.
    void add_changes(const Matrix& w, const Rows& rows, size_t begin, size_t end, float* out) const;
    void add_floats(const Change& change, const AdaptedChunk& chunk, size_t begin, size_t end, float* out) const;
    // Panels [begin, end) of w × some rows, without what adapters add.
    void multiply(const Matrix& w, const Rows& rows, size_t begin, size_t end, float* out) const {
        // A collector knows matrices by where they are.
        if (changes_wait_ && !d_.collector_) return multiply_ahead(w, rows, begin, end, out);
        d_.multiply(w, rows, begin, end, out, mine_.product);
    }
    void product(const Matrix& w, const float* floats, size_t columns, float* out, const Quantized& in);
    // Several products of the same rows, as one range of work: the panels of one after the other.
    struct Target {
        const Matrix* matrix;
        float* out;
    };
    void products(std::initializer_list<Target> targets, const float* floats);
    void place_groups(size_t columns);
    // Copies the groups' rows, row `r` of a group from from(group, r), as integers or for float layouts as they are.
    template <typename F>
    void gather(size_t columns, bool floats, F from);
    // Calls f(group, first panel, last panel) for the parts of all groups' products that this thread gets to do.
    template <typename F>
    void each_group(size_t panels, F f);

    void attention(size_t layer);
    const float* join_rows(size_t joined);
    void attend(size_t layer, bool prepared, bool quantizes);
    void prepare_whole_rows(size_t layer);
    void turn_head(size_t layer, size_t row, const std::vector<float>& bias, const Norm& norm, size_t head, float* x) const;
    void turn_queries(size_t layer, size_t row, size_t kv, float* out) const;
    void store_heads(size_t layer, size_t row, size_t kv);
    void measure(size_t layer, size_t row, size_t kv, const Partial& total, size_t at) const;
    double falling(const AttentionConfig& config, size_t head, size_t row, int32_t cell) const;
    void show(size_t layer, size_t at, size_t kv) const;
    float* queries_of(size_t layer, size_t row, size_t kv) const;

    void latent(size_t layer);
    void prepare_latent(size_t layer);
    void prepare_index(size_t layer, size_t row);
    void choose_cells(size_t layer);
    void score_cells(size_t layer, size_t row, size_t begin, size_t end, float* scores) const;
    void choose_best(size_t layer, size_t row, const float* scores) const;
    void attend_chosen(size_t layer);
    // Whether a row attends to an entry of its view that it sees.
    bool chooses(size_t layer, size_t row, int32_t entry) const;
    const int32_t* chosen_by(size_t row) const { return plan_.chosen_cells + row * plan_.n_chosen; }
    void head_products(const std::vector<Matrix>& matrices, const float* from, size_t stride, size_t step);

    template <typename F>
    void each_slot(size_t layer, size_t count, size_t step, F f);
    void recurrent(size_t layer, const Linear& projection, float* out);
    size_t channel_step(size_t channels) const;
    size_t delta_net(size_t layer);          // these give the width of their rows
    size_t kimi_delta(size_t layer);
    size_t short_convolution(size_t layer);
    size_t mamba(size_t layer);
    size_t mamba2(size_t layer);
    size_t time_mix(size_t layer);
    const float* mix_rows(size_t layer, size_t at, const float* shares);
    void keep_rows(size_t layer, size_t at);

    void feed_forward(size_t layer);
    const Quantized& dense(const DenseConfig& config, const DenseWeights& weights, const float* rows);
    void cut_gates(const DenseConfig& config);
    void activate(const DenseConfig& config, const float* gate_bias, const float* up_bias, float limit, float alpha, float* gate,
                  float* up, size_t n) const;
    void experts(size_t layer);
    void mix(size_t layer, const int32_t* chosen, const float* weights);
    const float* renormalize(const ExpertsConfig& config, const Norm& norm);
    void route(size_t layer, int32_t* chosen, float* weights);
    void group_rows(const ExpertsConfig& config, const int32_t* chosen);
    void combine(size_t layer, const int32_t* chosen, const float* weights, const float* shared);

    void embed_beside();
    void make_inputs();
    void finish_layer(size_t layer);
    void add_input(size_t layer);
    void add_low_rank(size_t layer);
    void route_streams(size_t layer, const float* x, float* normed, float* routed) const;
    void predict(size_t layer);
    void correct(size_t layer);
    void merge_streams();

    Decoder& d_;
    const Config& c_;
    const Kernels& kernel_;
    Plan& plan_;
    const Input& input_;
    Thread& mine_;
    int thread_;
    size_t n_threads_, n_;
    bool alone_;
    size_t first_, last_;   // the rows of this thread: alone it has the only one, in memory of its own
    float *x_, *normed_, *sum_, *renormed_, *narrow_, *inputs_, *streams_;
    Quantized quantized_;
    size_t task_ = 0;       // the next of Plan::cursors
    std::vector<Change> changes_;  // of the current product
    size_t changes_turn_ = 0;      // which of Plan::low_rank is next
    bool changes_wait_ = false;    // other threads may still compute A x
    size_t narrowed_ = 0;          // products before which this thread has computed its part of A x
    std::vector<Pieces::Piece> multiplied_;
    std::vector<size_t> changes_at_;   // where the next change of each adapter is looked for
    std::vector<float> whole_blocks_;  // a row of A x
    std::vector<Group> groups_;
    std::vector<size_t> pair_rows_, pair_of_;  // of each gathered row: which it is; of each row and choice: where it went
};

template <typename F>
void Decoder::Walk::gather(size_t columns, bool floats, F from) {
    size_t total = 0;
    for (const Group& group : groups_) total += group.count;
    const size_t begin = total * thread_ / n_threads_, end = total * (thread_ + 1) / n_threads_;
    size_t at = 0;
    for (const Group& group : groups_) {
        const size_t first = std::max(begin, at) - at, last = std::min(std::max(end, at) - at, group.count);
        for (size_t row = first; row < last; ++row) {
            const float* source = from(group, row);
            if (floats || d_.collector_) {
                std::copy(source, source + columns, plan_.gathered_floats + (at + row) * columns);
            }
            if (!floats) {
                quantize_activations(kernel_, d_.precision_, source, columns, row, group.in);
            }
        }
        at += group.count;
    }
    meet();
}

template <typename F>
void Decoder::Walk::each_group(size_t panels, F f) {
    constexpr size_t kTogether = 4, kPieces = 8;  // panels that kernels take at once; pieces for each thread
    const size_t wanted = pieces_of(groups_.size() * panels, kPieces * n_threads_);
    const size_t step = pieces_of(std::min(wanted, panels), kTogether) * kTogether, across = pieces_of(panels, step);
    Share share(plan_.cursors, next_task(), groups_.size() * across, thread_, n_threads_);
    for (size_t piece; share.next(&piece);) {
        const size_t begin = piece % across * step;
        f(groups_[piece / across], begin, std::min(begin + step, panels));
    }
}

}  // namespace stretto
