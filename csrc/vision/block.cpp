// A block of an image encoder: attention, then the feed-forward, each over as many rows as the caller likes.

#include <cmath>
#include <initializer_list>

#include "vision/parts.h"

namespace stretto {

namespace {

constexpr size_t kRowsOfAttention = 16;

}  // namespace

// One head's rows over all positions of their window: K and V stand behind each other, as floats.
void Vision::attend(const float* q, const float* keys, const float* values, const Patch& patch, const Scratch& mine,
                    float* out) const {
    const size_t size = n_embd_ / n_head_, length = patch.length, rows = patch.rows, head = patch.head;
    int32_t begins[kRowsOfAttention] = {}, ends[kRowsOfAttention];
    std::fill(ends, ends + rows, static_cast<int32_t>(length));
    Attention a;
    a.type = CacheType::kFloat;
    a.keys = reinterpret_cast<const uint8_t*>(keys);
    a.values = reinterpret_cast<const uint8_t*>(values);
    a.places = mine.places + patch.begin;
    a.head_size = size;
    a.group = 1;
    a.scale = scale_;
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
    struct Product {
        const char* part;
        Activation activation;
        size_t task;
        float* to;
    };

    Vision& vision;
    const std::string& name;
    size_t rows;
    Quantized quantized;
    float* clamped;  // [rows][widest], what goes into a matrix that has limits
    std::vector<Scratch> threads;
    Cursors cursors;  // of five tasks

    const Matrix& weight(const char* part) const { return vision.matrices_.at(name + part + ".weight"); }

    const Clamp* clamp(const char* part) const {
        const auto found = vision.clamps_.find(name + part);
        return found == vision.clamps_.end() ? nullptr : &found->second;
    }

    // Several products of the same rows, whose quantised form they share. No thread begins before all have finished
    // the rows, and none waits at the end.
    void multiply(std::initializer_list<Product> products, const float* from, int thread) {
        const bool limited =
            std::any_of(products.begin(), products.end(), [&](const Product& p) { return clamp(p.part); });
        if (limited) {
            for (const Product& p : products) multiply_clamped(p, from, thread);
            return;
        }
        std::vector<const Matrix*> readers;
        for (const Product& p : products) readers.push_back(&weight(p.part));
        prepare(readers, from, thread);
        for (const Product& p : products) product(p, from, thread);
    }

    void multiply_clamped(const Product& p, const float* from, int thread) {
        const Clamp* limits = clamp(p.part);
        const Matrix& w = weight(p.part);
        const size_t n_threads = vision.pool_.active();
        vision.pool_.barrier(thread);
        if (limits) {
            const size_t begin = rows * thread / n_threads, end = rows * (thread + 1) / n_threads;
            clamp_row(limits->low, limits->high, from + begin * w.columns, (end - begin) * w.columns,
                      clamped + begin * w.columns);
            from = clamped;
        }
        prepare({&w}, from, thread);
        product(p, from, thread);
    }

    void product(const Product& p, const float* from, int thread) {
        vision.share(weight(p.part), vision.vector(name + p.part + ".bias"), clamp(p.part), from, rows, p.activation,
                     quantized, threads[thread], thread, cursors, p.task, p.to);
    }

    void prepare(const std::vector<const Matrix*>& readers, const float* from, int thread) {
        vision.pool_.barrier(thread);
        vision.quantize(readers, from, rows, quantized, thread);
        vision.pool_.barrier(thread);
    }
};

void Vision::place_heads(const std::vector<float>* weight, const float* rotation, float* x) const {
    const size_t size = head_size();
    if (weight && weight->size() == n_embd_ && n_head_ > 1) {
        kernels_->rms_norm(x, weight->data(), n_embd_, norm_eps_, x);
    } else if (weight) {
        for (size_t head = 0; head < n_head_; ++head) {
            kernels_->rms_norm(x + head * size, weight->data(), size, norm_eps_, x + head * size);
        }
    }
    if (!rotation) return;
    for (size_t head = 0; head < n_head_; ++head) {
        float* at = x + head * size;
        for (size_t i = 0; i < n_pairs(); ++i) {
            float &a = at[pairs_[2 * i]], &b = at[pairs_[2 * i + 1]];
            const float cosine = rotation[2 * i], sine = rotation[2 * i + 1], old = a;
            a = old * cosine - b * sine;
            b = old * sine + b * cosine;
        }
    }
}

void Vision::add_output(const std::string& name, const char* scale, const char* norm, float* made, float* x) const {
    if (const std::vector<float>* factors = vector(name + scale + ".weight")) {
        for (size_t i = 0; i < n_embd_; ++i) made[i] *= (*factors)[i];
    }
    normalise(name + norm, made, made);
    kernels_->add(x, made, n_embd_);
}

void Vision::look(const std::string& name, const float* x, size_t length, size_t first, size_t last,
                  const float* rotation, float* q, float* keys, float* values) {
    const size_t n_threads = pool_.active(), size = head_size();
    const std::vector<float>*q_norm = vector(name + "attn_q_norm.weight"), *k_norm = vector(name + "attn_k_norm.weight");
    Crew crew{*this, name, last - first, {}, nullptr, std::vector<Scratch>(n_threads), Cursors(5, n_threads)};
    const size_t rows = crew.rows;
    float *normed, *k, *v;
    auto carve = [&](uint8_t* base) {
        Carver carver(base);
        normed = carver.take<float>(rows * n_embd_);
        k = carver.take<float>(rows * n_embd_);
        v = carver.take<float>(rows * n_embd_);
        crew.clamped = carver.take<float>(clamps_.empty() ? 0 : rows * n_embd_);
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
            normalise(name + "ln1", x + (first + row) * n_embd_, normed + row * n_embd_);
        }
        crew.multiply({{"attn_q", Activation::kNone, 0, q + first * n_embd_},
                       {"attn_k", Activation::kNone, 1, k},
                       {"attn_v", Activation::kNone, 2, v}},
                      normed, thread);
        pool_.barrier(thread);
        // [n][head][position]: what one head reads lies in a row.
        for (size_t row = begin; row < end; ++row) {
            const size_t image = (first + row) / length, position = (first + row) % length;
            const float* angles = n_pairs() ? rotation + position * n_pairs() * 2 : nullptr;
            place_heads(q_norm, angles, q + (first + row) * n_embd_);
            place_heads(k_norm, angles, k + row * n_embd_);
            place_heads(value_norm_ ? &ones_ : nullptr, nullptr, v + row * n_embd_);
            for (size_t head = 0; head < n_head_; ++head) {
                const size_t from = row * n_embd_ + head * size, to = ((image * n_head_ + head) * length + position) * size;
                kernels_->store_head(CacheType::kFloat, k + from, size, reinterpret_cast<uint8_t*>(keys + to));
                kernels_->store_head(CacheType::kFloat, v + from, size, reinterpret_cast<uint8_t*>(values + to));
            }
        }
    });
}

std::vector<Vision::Patch> Vision::patches(size_t length, size_t first, size_t last,
                                           const std::vector<int32_t>& windows) const {
    std::vector<Patch> found;
    for (size_t image = first / length; image * length < last; ++image) {
        size_t start = 0;
        for (const int32_t window : windows) {
            const size_t stop = static_cast<size_t>(window), at = image * length;
            const size_t begin = std::max(first, at + start), end = std::min(last, at + stop);
            for (size_t head = 0; head < n_head_; ++head) {
                for (size_t row = begin; row < end; row += kRowsOfAttention) {
                    found.push_back({image, head, row, std::min(kRowsOfAttention, end - row), start, stop - start});
                }
            }
            start = stop;
        }
    }
    return found;
}

void Vision::mix(const std::string& name, float* x, size_t length, size_t first, size_t last, const float* q,
                 const float* keys, const float* values, const std::vector<int32_t>& windows) {
    const size_t n_threads = pool_.active(), size = head_size(), widest = std::max(n_embd_, n_ff_);
    const bool gated = matrix(name + "ffn_gate.weight") != nullptr;
    const std::vector<Patch> patches = this->patches(length, first, last, windows);
    Crew crew{*this, name, last - first, {}, nullptr, std::vector<Scratch>(n_threads), Cursors(5, n_threads)};
    const size_t rows = crew.rows;
    float *normed, *added, *hidden, *gate;
    size_t* places;
    auto carve = [&](uint8_t* base) {
        Carver carver(base);
        normed = carver.take<float>(rows * n_embd_);
        added = carver.take<float>(rows * n_embd_);
        hidden = carver.take<float>(rows * n_ff_);
        gate = carver.take<float>(gated ? rows * n_ff_ : 0);
        places = carver.take<size_t>(length + kPlacesBehind);
        crew.clamped = carver.take<float>(clamps_.empty() ? 0 : rows * widest);
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
            mine.places = places;
        }
        return carver.used();
    };
    carve(scratch_.reserve(carve(nullptr)));
    const size_t stride = head_bytes(CacheType::kFloat, size);
    for (size_t i = 0; i < length + kPlacesBehind; ++i) places[i] = std::min(i, length - 1) * stride;

    pool_.run([&](int thread) {
        const size_t begin = rows * thread / n_threads, end = rows * (thread + 1) / n_threads;
        Share pieces(crew.cursors, 0, patches.size(), thread, n_threads);
        for (size_t piece; pieces.next(&piece);) {
            const Patch& p = patches[piece];
            const size_t plane = (p.image * n_head_ + p.head) * length * size;
            attend(q + p.row * n_embd_, keys + plane, values + plane, p, crew.threads[thread],
                   normed + (p.row - first) * n_embd_);
        }
        crew.multiply({{"attn_out", Activation::kNone, 1, added}}, normed, thread);
        pool_.barrier(thread);
        for (size_t row = begin; row < end; ++row) {
            float* at = x + (first + row) * n_embd_;
            add_output(name, "ls1", "attn_post_norm", added + row * n_embd_, at);
            normalise(name + "ln2", at, normed + row * n_embd_);
        }
        if (gated) {
            crew.multiply({{"ffn_gate", Activation::kNone, 2, gate}, {"ffn_up", Activation::kNone, 3, hidden}}, normed,
                          thread);
            pool_.barrier(thread);
            for (size_t row = begin; row < end; ++row) {
                activate_gate(gate + row * n_ff_, hidden + row * n_ff_, n_ff_, crew.threads[thread].constant);
            }
        } else {
            crew.multiply({{"ffn_up", activation_, 2, hidden}}, normed, thread);
        }
        crew.multiply({{"ffn_down", Activation::kNone, 4, added}}, gated ? gate : hidden, thread);
        pool_.barrier(thread);
        for (size_t row = begin; row < end; ++row) {
            add_output(name, "ls2", "ffn_post_norm", added + row * n_embd_, x + (first + row) * n_embd_);
        }
    });
}

}  // namespace stretto
