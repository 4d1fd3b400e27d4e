#include "vision.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "plan.h"

namespace stretto {

namespace {

constexpr size_t kRowsOfAttention = 16;
constexpr float kQuick = 1.702f;
constexpr float kRootHalf = 0.70710678f;

}  // namespace

// What each thread has for itself.
struct Vision::Scratch {
    float* attention;
    Partial partial, total;
    float* constant;      // [widest], what an activation multiplies with
    ProductScratch product;
    const int32_t* view;  // 0, 1, 2, …
};

Vision::Vision(size_t n_embd, size_t n_ff, size_t n_head, float norm_eps, Activation activation, Precision precision,
               int threads, const Kernels* kernels)
    : n_embd_(n_embd), n_ff_(n_ff), n_head_(n_head), norm_eps_(norm_eps), activation_(activation),
      precision_(precision), kernels_(kernels), pool_(threads) {}

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

std::string Vision::missing(const std::string& block) const {
    auto is = [&](const char* part, size_t rows, size_t columns) {
        const Matrix* m = matrix(block + part + ".weight");
        const std::vector<float>* bias = vector(block + part + ".bias");
        return m && m->rows == rows && m->columns == columns && (!bias || bias->size() == rows);
    };
    for (const char* part : {"attn_q", "attn_k", "attn_v", "attn_out"}) {
        if (!is(part, n_embd_, n_embd_)) return block + part;
    }
    if (!is("ffn_up", n_ff_, n_embd_)) return block + "ffn_up";
    if (!is("ffn_down", n_embd_, n_ff_)) return block + "ffn_down";
    for (const char* part : {"ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"}) {
        const std::vector<float>* v = vector(block + part);
        if (!v || v->size() != n_embd_) return block + part;
    }
    return "";
}

// (x − mean) / √(variance + eps) × weight + bias: what is centred first, the root of mean squares does.
void Vision::normalise(const std::vector<float>& weight, const std::vector<float>& bias, const float* x,
                       float* out) const {
    const size_t n = weight.size();
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) sum += x[i];
    const float mean = static_cast<float>(sum / static_cast<double>(n));
    for (size_t i = 0; i < n; ++i) out[i] = x[i] - mean;
    kernels_->rms_norm(out, weight.data(), n, norm_eps_, out);
    kernels_->add(out, bias.data(), n);
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

void Vision::quantize(std::initializer_list<const Matrix*> readers, const float* x, size_t n, const Quantized& to,
                      int thread) const {
    const bool wanted = std::any_of(readers.begin(), readers.end(), [](const Matrix* w) { return !is_float(w->layout); });
    if (!wanted) return;
    const size_t columns = (*readers.begin())->columns, n_threads = pool_.active();
    for (size_t row = n * thread / n_threads; row < n * (thread + 1) / n_threads; ++row) {
        quantize_activations(*kernels_, precision_, x + row * columns, columns, row, to);
    }
}

void Vision::share(const Matrix& w, const std::vector<float>* bias, const float* x, size_t n, Activation activation,
                   const Quantized& quantized, const Scratch& scratch, int thread, const Cursors& cursors, size_t task,
                   float* out) {
    Pieces pieces(cursors, task, w.panels(), n, false, 1, thread, pool_.active());
    for (Pieces::Piece piece; pieces.next(&piece);) {
        multiply_activations(*kernels_, precision_, w, {quantized, x, piece.first, piece.last}, piece.begin, piece.end,
                             out, scratch.product);
        const size_t from = piece.begin * kPanelRows, to = std::min(piece.end * kPanelRows, w.rows);
        for (size_t row = piece.first; row < piece.last; ++row) {
            float* at = out + row * w.rows + from;
            if (bias) kernels_->add(at, bias->data() + from, to - from);
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
        share(w, bias, x, n, activation, quantized, threads[thread], thread, cursors, 0, out);
    });
}

void Vision::norm(const std::string& name, float* x, size_t n) {
    const std::vector<float>& weight = vectors_.at(name + ".weight");
    const std::vector<float>& bias = vectors_.at(name + ".bias");
    pool_.run([&](int thread) {
        const size_t n_threads = pool_.active();
        for (size_t row = n * thread / n_threads; row < n * (thread + 1) / n_threads; ++row) {
            normalise(weight, bias, x + row * n_embd_, x + row * n_embd_);
        }
    });
}

// One head's rows over all positions of their image: K and V stand behind each other, as floats.
void Vision::attend(const float* q, const float* keys, const float* values, size_t length, size_t rows, size_t head,
                    const Scratch& mine, float* out) const {
    const size_t size = n_embd_ / n_head_;
    int32_t begins[kRowsOfAttention] = {}, ends[kRowsOfAttention];
    std::fill(ends, ends + rows, static_cast<int32_t>(length));
    Attention a;
    a.type = CacheType::kFloat;
    a.keys = reinterpret_cast<const uint8_t*>(keys);
    a.values = reinterpret_cast<const uint8_t*>(values);
    a.cell_stride = head_bytes(CacheType::kFloat, size);
    a.block_stride = kCellBlock * a.cell_stride;
    a.view = mine.view;
    a.head_size = size;
    a.group = 1;
    a.scale = 1.0f / std::sqrt(static_cast<float>(size));
    a.cap = 0.0f;
    a.queries = q + head * size;
    a.query_stride = n_embd_;
    a.begins = begins;
    a.ends = ends;
    a.rows = rows;
    a.scratch = mine.attention;
    kernels_->attend(a, 0, std::min(kSpan, length), mine.total);
    for (size_t at = kSpan; at < length; at += kSpan) {
        kernels_->attend(a, at, std::min(at + kSpan, length), mine.partial);
        kernels_->merge(rows, size, mine.total, mine.partial);
    }
    for (size_t r = 0; r < rows; ++r) {
        const float inverse = 1.0f / mine.total.sum[r];
        const float* from = mine.total.out + r * padded(size);
        float* to = out + r * n_embd_ + head * size;
        for (size_t i = 0; i < size; ++i) to[i] = from[i] * inverse;
    }
}

// What `look` and `mix` share: their products, one thread's part of each.
struct Vision::Crew {
    Vision& vision;
    const std::string& name;
    size_t rows;
    Quantized quantized;
    std::vector<Scratch> threads;
    Cursors cursors;  // of four tasks

    const Matrix& weight(const char* part) const { return vision.matrices_.at(name + part + ".weight"); }

    void product(const char* part, const float* from, Activation activation, size_t task, int thread, float* to) {
        vision.share(weight(part), vision.vector(name + part + ".bias"), from, rows, activation, quantized,
                     threads[thread], thread, cursors, task, to);
    }
    // Quantises the input that several products share; no thread reads it before all have finished.
    void prepare(std::initializer_list<const Matrix*> readers, const float* from, int thread) {
        vision.pool_.barrier(thread);
        vision.quantize(readers, from, rows, quantized, thread);
        vision.pool_.barrier(thread);
    }
};

void Vision::look(const std::string& name, const float* x, size_t length, size_t first, size_t last, float* q,
                  float* keys, float* values) {
    const std::vector<float>&ln1 = vectors_.at(name + "ln1.weight"), &ln1_bias = vectors_.at(name + "ln1.bias");
    const size_t n_threads = pool_.active(), size = n_embd_ / n_head_;
    Crew crew{*this, name, last - first, {}, std::vector<Scratch>(n_threads), Cursors(4, n_threads)};
    const size_t rows = crew.rows;
    float *normed, *k, *v;
    auto carve = [&](uint8_t* base) {
        Carver carver(base);
        normed = carver.take<float>(rows * n_embd_);
        k = carver.take<float>(rows * n_embd_);
        v = carver.take<float>(rows * n_embd_);
        crew.quantized = take_rows(carver, rows, n_embd_);
        for (Scratch& mine : crew.threads) {
            mine.constant = carver.take<float>(n_embd_);
            mine.product = take_product(carver);
        }
        return carver.used();
    };
    carve(scratch_.reserve(carve(nullptr)));

    pool_.run([&](int thread) {
        const size_t begin = rows * thread / n_threads, end = rows * (thread + 1) / n_threads;
        for (size_t row = begin; row < end; ++row) {
            normalise(ln1, ln1_bias, x + (first + row) * n_embd_, normed + row * n_embd_);
        }
        crew.prepare({&crew.weight("attn_q"), &crew.weight("attn_k"), &crew.weight("attn_v")}, normed, thread);
        crew.product("attn_q", normed, Activation::kNone, 0, thread, q + first * n_embd_);
        crew.product("attn_k", normed, Activation::kNone, 1, thread, k);
        crew.product("attn_v", normed, Activation::kNone, 2, thread, v);
        pool_.barrier(thread);
        // [n][head][position]: what one head reads lies in a row.
        for (size_t row = begin; row < end; ++row) {
            const size_t image = (first + row) / length, position = (first + row) % length;
            for (size_t head = 0; head < n_head_; ++head) {
                const size_t from = row * n_embd_ + head * size, to = ((image * n_head_ + head) * length + position) * size;
                kernels_->store_head(CacheType::kFloat, k + from, size, reinterpret_cast<uint8_t*>(keys + to));
                kernels_->store_head(CacheType::kFloat, v + from, size, reinterpret_cast<uint8_t*>(values + to));
            }
        }
    });
}

std::vector<Vision::Patch> Vision::patches(size_t length, size_t first, size_t last) const {
    std::vector<Patch> found;
    for (size_t image = first / length; image * length < last; ++image) {
        const size_t begin = std::max(first, image * length), end = std::min(last, (image + 1) * length);
        for (size_t head = 0; head < n_head_; ++head) {
            for (size_t row = begin; row < end; row += kRowsOfAttention) {
                found.push_back({image, head, row, std::min(kRowsOfAttention, end - row)});
            }
        }
    }
    return found;
}

void Vision::mix(const std::string& name, float* x, size_t length, size_t first, size_t last, const float* q,
                 const float* keys, const float* values) {
    const std::vector<float>&ln2 = vectors_.at(name + "ln2.weight"), &ln2_bias = vectors_.at(name + "ln2.bias");
    const size_t n_threads = pool_.active(), size = n_embd_ / n_head_, widest = std::max(n_embd_, n_ff_);
    const std::vector<Patch> patches = this->patches(length, first, last);
    Crew crew{*this, name, last - first, {}, std::vector<Scratch>(n_threads), Cursors(4, n_threads)};
    const size_t rows = crew.rows;
    float *normed, *added, *hidden;
    int32_t* view;
    auto carve = [&](uint8_t* base) {
        Carver carver(base);
        normed = carver.take<float>(rows * n_embd_);
        added = carver.take<float>(rows * n_embd_);
        hidden = carver.take<float>(rows * n_ff_);
        view = carver.take<int32_t>(length);
        crew.quantized = take_rows(carver, rows, widest);
        for (Scratch& mine : crew.threads) {
            auto partial = [&] {
                return Partial{carver.take<float>(kRowsOfAttention), carver.take<float>(kRowsOfAttention),
                               carver.take<float>(kRowsOfAttention * padded(size))};
            };
            mine.attention = carver.take<float>(attention_scratch(size, kRowsOfAttention, 1));
            mine.partial = partial();
            mine.total = partial();
            mine.constant = carver.take<float>(widest);
            mine.product = take_product(carver);
            mine.view = view;
        }
        return carver.used();
    };
    carve(scratch_.reserve(carve(nullptr)));
    for (size_t i = 0; i < length; ++i) view[i] = static_cast<int32_t>(i);

    pool_.run([&](int thread) {
        const size_t begin = rows * thread / n_threads, end = rows * (thread + 1) / n_threads;
        Share pieces(crew.cursors, 0, patches.size(), thread, n_threads);
        for (size_t piece; pieces.next(&piece);) {
            const Patch& p = patches[piece];
            const size_t plane = (p.image * n_head_ + p.head) * length * size;
            attend(q + p.row * n_embd_, keys + plane, values + plane, length, p.rows, p.head, crew.threads[thread],
                   normed + (p.row - first) * n_embd_);
        }
        crew.prepare({&crew.weight("attn_out")}, normed, thread);
        crew.product("attn_out", normed, Activation::kNone, 1, thread, added);
        pool_.barrier(thread);
        for (size_t row = begin; row < end; ++row) {
            kernels_->add(x + (first + row) * n_embd_, added + row * n_embd_, n_embd_);
            normalise(ln2, ln2_bias, x + (first + row) * n_embd_, normed + row * n_embd_);
        }
        crew.prepare({&crew.weight("ffn_up")}, normed, thread);
        crew.product("ffn_up", normed, activation_, 2, thread, hidden);
        crew.prepare({&crew.weight("ffn_down")}, hidden, thread);
        crew.product("ffn_down", hidden, Activation::kNone, 3, thread, added);
        pool_.barrier(thread);
        for (size_t row = begin; row < end; ++row) {
            kernels_->add(x + (first + row) * n_embd_, added + row * n_embd_, n_embd_);
        }
    });
}

}  // namespace stretto
