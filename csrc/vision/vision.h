// An image encoder: a ViT whose patches attend to each other, and its projector's matrices.
//
// Which parts a block has follows from the matrices and vectors that are set: without the bias of a norm it is one of
// mean squares, with `ffn_gate` the feed-forward is gated, and so on.
// Its parts are called one by one, on arrays of the caller's, so that he decides how much is done at a time.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "memory/carver.h"
#include "model/decoder.h"
#include "threads/share.h"

namespace stretto {

enum class Activation { kGelu, kQuickGelu, kSilu, kExactGelu, kNone };

// The limits of what goes into a matrix and of what comes out.
struct Clamp {
    float low, high, low_out, high_out;
};

class Vision {
public:
    Vision(size_t n_embd, size_t n_ff, size_t n_head, float norm_eps, Activation activation, Precision precision,
           int threads, const Kernels* kernels);

    size_t n_embd() const { return n_embd_; }
    int threads() const { return pool_.size(); }
    const Kernels& kernels() const { return *kernels_; }

    // Packs a matrix from the file's bytes; they are not needed afterwards.
    void set_matrix(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data);
    void set_vector(const std::string& name, const float* data, size_t n);
    void set_clamp(const std::string& name, const Clamp& clamp) { clamps_[name] = clamp; }
    // The factor of scores, whether V is normalised, and which two numbers of a head are rotated together.
    void set_attention(float scale, bool value_norm, std::vector<int32_t> pairs);
    size_t head_size() const { return n_embd_ / n_head_; }
    size_t n_pairs() const { return pairs_.size() / 2; }
    // The matrix or vector of that name, or null.
    const Matrix* matrix(const std::string& name) const;
    const std::vector<float>* vector(const std::string& name) const;
    // The name of what a block needs and is missing or of the wrong size, or "".
    std::string missing(const std::string& block) const;

    // out[n][rows] = activation(x[n][columns] · matrix + bias); the bias is that of the same name, if there is one.
    void multiply(const std::string& name, const float* x, size_t n, Activation activation, float* out);
    // Each row of x[n][width] normalised, in place; without weights where there are none.
    void norm(const std::string& name, float* x, size_t n, size_t width, float eps);
    // One block over x[n][length][n_embd], in place; attention stays within each n. It comes in two halves, and each in
    // as many pieces as the caller likes: first all rows look, then all of them mix what they have seen. Rows are
    // counted through all n; how they are cut changes no bit.
    //   q                  [n][length][n_embd]
    //   keys and values    [n][head][length][size of a head]
    //   rotation           [length][pairs][cosine and sine], if there are pairs
    //   windows            where each ends, the last one at `length`: attention stays within them
    void look(const std::string& name, const float* x, size_t length, size_t first, size_t last,
              const float* rotation, float* q, float* keys, float* values);
    void mix(const std::string& name, float* x, size_t length, size_t first, size_t last, const float* q,
             const float* keys, const float* values, const std::vector<int32_t>& windows);

private:
    struct Scratch;
    struct Crew;
    // Rows of one window that attend together, with one head; the window is `length` positions of the image.
    struct Patch {
        size_t image, head, row, rows, begin, length;
    };

    void normalise(const float* weight, const float* bias, size_t n, float eps, const float* x, float* out) const;
    // The norm of that name over a row of n_embd, or a copy if there is none.
    void normalise(const std::string& name, const float* x, float* out) const;
    void activate(Activation activation, float* x, size_t n, float* constant) const;
    // x = activation(x) × by
    void activate_gate(float* x, const float* by, size_t n, float* constant) const;
    // Q, K or V of one position: norms of heads, and the rotation.
    void place_heads(const std::vector<float>* weight, const float* rotation, float* x) const;
    // x += what a half of a block made, scaled or normalised first where the block says so.
    void add_output(const std::string& name, const char* scale, const char* norm, float* made, float* x) const;
    // This thread's share of a product; all of them must come, and meet afterwards.
    void share(const Matrix& w, const std::vector<float>* bias, const Clamp* clamp, const float* x, size_t n,
               Activation activation, const Quantized& quantized, const Scratch& scratch, int thread,
               const Cursors& cursors, size_t task, float* out);
    // This thread's share of the rows, as the quantised ones among the matrices that read them want them.
    void quantize(const std::vector<const Matrix*>& readers, const float* x, size_t n, const Quantized& to,
                  int thread) const;
    // Room for rows of activations, and for what a thread's products need.
    Quantized take_rows(Carver& carver, size_t rows, size_t columns) const;
    ProductScratch take_product(Carver& carver) const;
    std::vector<Patch> patches(size_t length, size_t first, size_t last, const std::vector<int32_t>& windows) const;
    void attend(const float* q, const float* keys, const float* values, const Patch& patch, const Scratch& mine,
                float* out) const;

    size_t n_embd_, n_ff_, n_head_;
    float norm_eps_;
    Activation activation_;
    Precision precision_;
    const Kernels* kernels_;
    float scale_;
    bool value_norm_ = false;
    std::vector<int32_t> pairs_;
    Pool pool_;
    std::unordered_map<std::string, Matrix> matrices_;
    std::unordered_map<std::string, std::vector<float>> vectors_;
    std::unordered_map<std::string, Clamp> clamps_;
    std::vector<float> ones_;  // [size of a head]
    std::vector<Buffer> weights_;
    Buffer scratch_;  // grows to what the largest batch needed
};

}  // namespace stretto
