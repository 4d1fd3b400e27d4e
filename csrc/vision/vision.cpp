#include "vision/vision.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "model/plan.h"
#include "vision/parts.h"

namespace stretto {

namespace {

constexpr float kQuick = 1.702f;
constexpr float kRootHalf = 0.70710678f;

}  // namespace

Vision::Vision(size_t n_embd, size_t n_ff, size_t n_head, float norm_eps, Activation activation, Precision precision,
               int threads, const Kernels* kernels)
    : n_embd_(n_embd), n_ff_(n_ff), n_head_(n_head), norm_eps_(norm_eps), activation_(activation),
      precision_(precision), kernels_(kernels), scale_(1.0f / std::sqrt(static_cast<float>(n_embd / n_head))),
      pool_(threads), ones_(n_embd / n_head, 1.0f) {}

Quantized Vision::take_rows(Carver& carver, size_t rows, size_t columns) const {
    const size_t n = columns_of(precision_) * rows;
    return carver.quantized(n, columns / kBlock * kBlock, kernels_->lanes(n));
}
ProductScratch Vision::take_product(Carver& carver) const {
    ProductScratch scratch;
    scratch.pairs = carver.take<float>(precision_ == Precision::kHigh ? kPairFloats : 0);
    return scratch;
}

void Vision::set_matrix(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data) {
    Layout layout;
    if (!layout_of(format, &layout)) throw std::invalid_argument("no layout for the matrix " + name);
    Matrix matrix = matrix_for(layout, rows, columns, format);
    weights_.emplace_back(matrix.bytes());
    uint8_t* out = weights_.back().data();
    const size_t panels = matrix.panels();
    pool_.run([&](int thread) {
        const size_t begin = panels * thread / pool_.active(), end = panels * (thread + 1) / pool_.active();
        pack_panels(format, data, matrix, begin, end, out + begin * matrix.panel_bytes);
    }, Measured::kNo);
    matrix.data = out;
    matrix.ready = rows;
    matrices_[name] = matrix;
}

void Vision::set_vector(const std::string& name, const float* data, size_t n) { vectors_[name].assign(data, data + n); }

const Matrix* Vision::matrix(const std::string& name) const {
    const auto found = matrices_.find(name);
    return found == matrices_.end() ? nullptr : &found->second;
}

const std::vector<float>* Vision::vector(const std::string& name) const {
    const auto found = vectors_.find(name);
    return found == vectors_.end() ? nullptr : &found->second;
}

void Vision::set_attention(float scale, bool value_norm, std::vector<int32_t> pairs) {
    scale_ = scale;
    value_norm_ = value_norm;
    pairs_ = std::move(pairs);
}

std::string Vision::missing(const std::string& block) const {
    auto is = [&](const char* part, size_t rows, size_t columns) {
        const Matrix* m = matrix(block + part + ".weight");
        const std::vector<float>* bias = vector(block + part + ".bias");
        return m && m->rows == rows && m->columns == columns && (!bias || bias->size() == rows);
    };
    auto fits = [&](const std::string& name, size_t size) {
        const std::vector<float>* found = vector(name);
        return !found || found->size() == size;
    };
    for (const char* part : {"attn_q", "attn_k", "attn_v", "attn_out"}) {
        if (!is(part, n_embd_, n_embd_)) return block + part;
    }
    if (!is("ffn_up", n_ff_, n_embd_)) return block + "ffn_up";
    if (!is("ffn_down", n_embd_, n_ff_)) return block + "ffn_down";
    if (matrix(block + "ffn_gate.weight") && !is("ffn_gate", n_ff_, n_embd_)) return block + "ffn_gate";
    for (const char* part : {"ln1.weight", "ln2.weight"}) {
        if (!vector(block + part)) return block + part;
    }
    for (const char* part : {"ln1.weight", "ln2.weight", "ln1.bias", "ln2.bias", "ls1.weight", "ls2.weight",
                             "attn_post_norm.weight", "ffn_post_norm.weight"}) {
        if (!fits(block + part, n_embd_)) return block + part;
    }
    for (const char* part : {"attn_q_norm.weight", "attn_k_norm.weight"}) {
        if (!fits(block + part, n_embd_) && !fits(block + part, head_size())) return block + part;
    }
    return "";
}

// (x − mean) / √(variance + eps) × weight + bias: what is centred first, the root of mean squares does.
void Vision::normalise(const float* weight, const float* bias, size_t n, float eps, const float* x, float* out) const {
    if (!bias) return kernels_->rms_norm(x, weight, n, eps, out);
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) sum += x[i];
    const float mean = static_cast<float>(sum / static_cast<double>(n));
    for (size_t i = 0; i < n; ++i) out[i] = x[i] - mean;
    kernels_->rms_norm(out, weight, n, eps, out);
    kernels_->add(out, bias, n);
}

void Vision::normalise(const std::string& name, const float* x, float* out) const {
    const std::vector<float>*weight = vector(name + ".weight"), *bias = vector(name + ".bias");
    if (!weight) {
        if (x != out) std::memcpy(out, x, n_embd_ * sizeof(float));
        return;
    }
    normalise(weight->data(), bias ? bias->data() : nullptr, n_embd_, norm_eps_, x, out);
}

// x × sigmoid(1.702 x) is silu(1.702 x) / 1.702, so one kernel serves both.
void Vision::activate(Activation activation, float* x, size_t n, float* constant) const {
    switch (activation) {
        case Activation::kNone: return;
        case Activation::kExactGelu:
            for (size_t i = 0; i < n; ++i) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * kRootHalf));
            return;
        case Activation::kQuickGelu:
            for (size_t i = 0; i < n; ++i) x[i] *= kQuick;
            std::fill(constant, constant + n, 1.0f / kQuick);
            return kernels_->silu(x, constant, n);
        case Activation::kSilu:
            std::fill(constant, constant + n, 1.0f);
            return kernels_->silu(x, constant, n);
        case Activation::kGelu:
            std::fill(constant, constant + n, 1.0f);
            return kernels_->gelu(x, constant, n);
    }
}

void Vision::activate_gate(float* x, const float* by, size_t n, float* constant) const {
    if (activation_ == Activation::kSilu) return kernels_->silu(x, by, n);
    if (activation_ == Activation::kGelu) return kernels_->gelu(x, by, n);
    activate(activation_, x, n, constant);
    for (size_t i = 0; i < n; ++i) x[i] *= by[i];
}

void Vision::quantize(const std::vector<const Matrix*>& readers, const float* x, size_t n, const Quantized& to,
                      int thread) const {
    const bool wanted = std::any_of(readers.begin(), readers.end(), [](const Matrix* w) { return !is_float(w->layout); });
    if (!wanted) return;
    const size_t columns = (*readers.begin())->columns, n_threads = pool_.active();
    for (size_t row = n * thread / n_threads; row < n * (thread + 1) / n_threads; ++row) {
        quantize_activations(*kernels_, precision_, x + row * columns, columns, row, to);
    }
}

void Vision::share(const Matrix& w, const std::vector<float>* bias, const Clamp* clamp, const float* x, size_t n,
                   Activation activation, const Quantized& quantized, const Scratch& scratch, int thread,
                   const Cursors& cursors, size_t task, float* out) {
    Pieces pieces(cursors, task, w.panels(), n, false, 1, thread, pool_.active());
    for (Pieces::Piece piece; pieces.next(&piece);) {
        multiply_activations(*kernels_, precision_, w, {quantized, x, piece.first, piece.last}, piece.begin, piece.end,
                             out, scratch.product);
        const size_t from = piece.begin * kPanelRows, to = std::min(piece.end * kPanelRows, w.rows);
        for (size_t row = piece.first; row < piece.last; ++row) {
            float* at = out + row * w.rows + from;
            if (bias) kernels_->add(at, bias->data() + from, to - from);
            if (clamp) clamp_row(clamp->low_out, clamp->high_out, at, to - from, at);
            activate(activation, at, to - from, scratch.constant);
        }
    }
}

void Vision::multiply(const std::string& name, const float* x, size_t n, Activation activation, float* out) {
    const Matrix& w = matrices_.at(name + ".weight");
    const std::vector<float>* bias = vector(name + ".bias");
    const size_t n_threads = pool_.active(), quantized_columns = is_float(w.layout) ? 0 : w.columns;
    Quantized quantized;
    std::vector<Scratch> threads(n_threads);
    auto carve = [&](uint8_t* base) {
        Carver carver(base);
        quantized = take_rows(carver, n, quantized_columns);
        for (Scratch& mine : threads) {
            mine.constant = carver.take<float>(w.rows);
            mine.product = take_product(carver);
        }
        return carver.used();
    };
    carve(scratch_.reserve(carve(nullptr)));
    const Cursors cursors(1, n_threads);
    pool_.run([&](int thread) {
        quantize({&w}, x, n, quantized, thread);
        pool_.barrier(thread);
        share(w, bias, nullptr, x, n, activation, quantized, threads[thread], thread, cursors, 0, out);
    });
}

void Vision::norm(const std::string& name, float* x, size_t n, size_t width, float eps) {
    const std::vector<float>*weight = vector(name + ".weight"), *bias = vector(name + ".bias");
    const std::vector<float> ones(weight ? 0 : width, 1.0f);
    pool_.run([&](int thread) {
        const size_t n_threads = pool_.active();
        for (size_t row = n * thread / n_threads; row < n * (thread + 1) / n_threads; ++row) {
            normalise(weight ? weight->data() : ones.data(), bias ? bias->data() : nullptr, width, eps, x + row * width,
                      x + row * width);
        }
    });
}

}  // namespace stretto
