// Loading a model into a decoder, and the operations on its cells.

#include "decoder.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#include "rope.h"

namespace stretto {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunkBytes = size_t{16} << 20;

// Zeroed pages straight from the system, or null.
void* take_pages(size_t bytes) {
#if defined(_WIN32)
    return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
#else
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? nullptr : pages;
#endif
}

void give_pages_back(void* pages, [[maybe_unused]] size_t bytes) {
#if defined(_WIN32)
    VirtualFree(pages, 0, MEM_RELEASE);
#else
    munmap(pages, bytes);
#endif
}

}  // namespace

// Large ones are mapped, so that the system gets them back when they are freed.
Buffer::Buffer(size_t bytes) : bytes_(bytes) {
    if (!bytes) return;
    if (bytes >= kHugePage) {
        if (bytes > SIZE_MAX - 2 * kHugePage) throw std::bad_alloc();
        // One huge page more than asked for, so that the data can begin at a huge page's border.
        mapped_bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
        mapped_ = take_pages(mapped_bytes_);
        if (!mapped_) throw std::bad_alloc();
        const auto address = reinterpret_cast<uintptr_t>(mapped_);
        data_ = static_cast<uint8_t*>(mapped_) + ((address + kHugePage - 1) / kHugePage * kHugePage - address);
#if defined(__linux__)
        // A wish; nothing depends on it.
        madvise(data_, bytes, MADV_HUGEPAGE);
#endif
        return;
    }
    // Aligned by hand: some C libraries never use again all of what posix_memalign gave and got back.
    allocated_ = std::malloc(bytes + 64);
    if (!allocated_) throw std::bad_alloc();
    const auto address = reinterpret_cast<uintptr_t>(allocated_);
    data_ = static_cast<uint8_t*>(allocated_) + (64 - address % 64);
}

Buffer::~Buffer() {
    if (mapped_) {
        give_pages_back(mapped_, mapped_bytes_);
    } else {
        std::free(allocated_);
    }
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    std::swap(allocated_, other.allocated_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    return *this;
}

uint8_t* Buffer::reserve(size_t bytes) {
    if (bytes > bytes_) {
        *this = Buffer();  // frees the old memory first
        *this = Buffer(bytes);
    }
    return data_;
}

Decoder::Decoder(Config config, size_t n_cells, CacheType cache, Precision precision, int threads,
                 const Kernels* kernels)
    : config_(std::move(config)),
      n_cells_(n_cells),
      cache_type_(cache),
      precision_(precision),
      kernels_(kernels),
      pool_(threads),
      layers_(config_.layers.size()) {
    head_bytes_ = head_bytes(cache, config_.head_size);
    // In floating point, which cannot wrap around.
    const double bytes = 2.0 * static_cast<double>(layers_.size()) * static_cast<double>(config_.n_kv_head) *
                         static_cast<double>(n_cells) * static_cast<double>(head_bytes_);
    if (bytes > 0x1p46) throw std::invalid_argument("a cache of this size cannot be; ask for fewer cells");
    block_bytes_ = planes() * std::min(n_cells, kCellBlock) * head_bytes_;
    cache_ = Buffer((n_cells + kCellBlock - 1) / kCellBlock * block_bytes_);
}

uint8_t* Decoder::take_weights(size_t bytes) {
    const size_t needed = (bytes + 63) / 64 * 64;
    if (weights_.empty() || weights_.back().size() - chunk_used_ < needed) {
        weights_.emplace_back(std::max(needed, kChunkBytes));
        chunk_used_ = 0;
    }
    uint8_t* at = weights_.back().data() + chunk_used_;
    chunk_used_ += needed;
    weight_bytes_ += bytes;
    return at;
}

Matrix* Decoder::matrix_named(const std::string& name) {
    if (name == "token_embd") return &embedding_;
    if (name == "output" && !config_.tied) return &output_;
    unsigned layer = 0;
    char part[32] = {};
    if (std::sscanf(name.c_str(), "blk.%u.%31s", &layer, part) != 2 || layer >= layers_.size()) return nullptr;
    Layer& l = layers_[layer];
    const struct { const char* name; Matrix* matrix; } table[] = {
        {"attn_q", &l.q}, {"attn_k", &l.k}, {"attn_v", &l.v}, {"attn_output", &l.o},
        {"ffn_gate", &l.gate}, {"ffn_up", &l.up}, {"ffn_down", &l.down},
    };
    for (const auto& entry : table) {
        if (!std::strcmp(entry.name, part)) return entry.matrix;
    }
    return nullptr;
}

std::vector<float>* Decoder::vector_named(const std::string& name) {
    if (name == "output_norm.weight") return &output_norm_;
    unsigned layer = 0;
    char part[48] = {};
    if (std::sscanf(name.c_str(), "blk.%u.%47s", &layer, part) != 2 || layer >= layers_.size()) return nullptr;
    Layer& l = layers_[layer];
    const struct { const char* name; std::vector<float>* vector; bool wanted; } table[] = {
        {"attn_norm.weight", &l.attn_norm, true},
        {"ffn_norm.weight", &l.ffn_norm, true},
        {"attn_q_norm.weight", &l.q_norm, config_.qk_norm},
        {"attn_k_norm.weight", &l.k_norm, config_.qk_norm},
        {"post_attention_norm.weight", &l.post_attn, config_.post_norm},
        {"post_ffw_norm.weight", &l.post_ffn, config_.post_norm},
        {"attn_q.bias", &l.q_bias, config_.qkv_bias},
        {"attn_k.bias", &l.k_bias, config_.qkv_bias},
        {"attn_v.bias", &l.v_bias, config_.qkv_bias},
    };
    for (const auto& entry : table) {
        if (entry.wanted && !std::strcmp(entry.name, part)) return entry.vector;
    }
    return nullptr;
}

void Decoder::set_unpacked(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data) {
    complete_ = false;
    Matrix* matrix = matrix_named(name);
    Layout layout;
    if (!matrix || !layout_of(format, &layout)) throw std::invalid_argument("no use for the matrix " + name);
    *matrix = matrix_for(layout, rows, columns, format);
    matrix->source = data;
    matrix->format = format;
    matrix->ready = rows;
}

void Decoder::pack_rows(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data,
                        size_t count) {
    complete_ = false;
    Matrix* matrix = matrix_named(name);
    Layout layout;
    if (!matrix || !layout_of(format, &layout)) throw std::invalid_argument("no use for the matrix " + name);
    if (!matrix->data) {
        *matrix = matrix_for(layout, rows, columns, format);
        matrix->data = take_weights(matrix->bytes());
        matrix->format = format;
    }
    const bool last = matrix->ready + count == rows;
    if (matrix->rows != rows || matrix->columns != columns || matrix->format != format ||
        matrix->ready + count > rows || (count % kPanelRows && !last)) {
        throw std::invalid_argument("these rows do not follow what is there of " + name);
    }
    Matrix part = *matrix;
    part.rows = count;
    uint8_t* out = const_cast<uint8_t*>(matrix->data) + matrix->ready / kPanelRows * matrix->panel_bytes;
    const size_t panels = part.panels();
    pool_.run([&](int thread) {
        const size_t begin = panels * thread / pool_.active(), end = panels * (thread + 1) / pool_.active();
        pack_panels(format, data, part, begin, end, out + begin * part.panel_bytes);
    }, Measured::kNo);
    matrix->ready += count;
}

void Decoder::set_vector(const std::string& name, const float* data, size_t n) {
    complete_ = false;
    std::vector<float>* vector = vector_named(name);
    if (!vector) throw std::invalid_argument("no use for the vector " + name);
    vector->assign(data, data + n);
}

std::string Decoder::missing() const {
    const Config& c = config_;
    const size_t q = c.n_head * c.head_size, kv = c.n_kv_head * c.head_size;
    auto is = [](const Matrix& m, size_t rows, size_t columns) {
        return m.ready == rows && m.rows == rows && m.columns == columns;
    };
    if (!is(embedding_, c.n_vocab, c.n_embd)) return "token_embd.weight";
    if (!c.tied && !is(output_, c.n_vocab, c.n_embd)) return "output.weight";
    if (output_norm_.size() != c.n_embd) return "output_norm.weight";
    for (size_t i = 0; i < layers_.size(); ++i) {
        const Layer& l = layers_[i];
        const bool fine = is(l.q, q, c.n_embd) && is(l.k, kv, c.n_embd) && is(l.v, kv, c.n_embd) &&
                          is(l.o, c.n_embd, q) && is(l.gate, c.n_ff, c.n_embd) && is(l.up, c.n_ff, c.n_embd) &&
                          is(l.down, c.n_embd, c.n_ff) && l.attn_norm.size() == c.n_embd &&
                          l.ffn_norm.size() == c.n_embd &&
                          (!c.qk_norm || (l.q_norm.size() == c.head_size && l.k_norm.size() == c.head_size)) &&
                          (!c.post_norm || (l.post_attn.size() == c.n_embd && l.post_ffn.size() == c.n_embd)) &&
                          (!c.qkv_bias || (l.q_bias.size() == q && l.k_bias.size() == kv && l.v_bias.size() == kv));
        if (!fine) return "a tensor of blk." + std::to_string(i);
    }
    return "";
}

// A head's K of all cells stand behind each other, so that attention reads them in a stream.
uint8_t* Decoder::head_of(size_t layer, size_t cell, bool value, size_t head) const {
    return plane_of((layer * 2 + value) * config_.n_kv_head + head, cell);
}

uint8_t* Decoder::plane_of(size_t plane, size_t cell) const {
    const size_t within = plane * std::min(n_cells_, kCellBlock) + cell % kCellBlock;
    return cache_.data() + cell / kCellBlock * block_bytes_ + within * head_bytes_;
}

void Decoder::copy_cells(const int32_t* source, const int32_t* target, size_t n) {
    for (size_t plane = 0; plane < planes(); ++plane) {
        for (size_t i = 0; i < n; ++i) {
            std::memcpy(plane_of(plane, target[i]), plane_of(plane, source[i]), head_bytes_);
        }
    }
}

void Decoder::rotate_cells(const int32_t* cells, size_t n, int delta) {
    std::vector<float> head(padded(config_.head_size));
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
        const Rope& rope = config_.ropes[config_.layers[layer].rope];
        const size_t pairs = rope.frequencies.size();
        std::vector<float> cos(pairs), sin(pairs);
        angles(delta, rope.frequencies.data(), pairs, 1.0, cos.data(), sin.data());
        for (size_t i = 0; i < n; ++i) {
            for (size_t kv = 0; kv < config_.n_kv_head; ++kv) {
                uint8_t* at = head_of(layer, cells[i], false, kv);
                kernels_->load_head(cache_type_, at, config_.head_size, head.data());
                rotate(head.data(), cos.data(), sin.data(), pairs, rope.adjacent);
                kernels_->store_head(cache_type_, head.data(), config_.head_size, at);
                check_finite(at);
            }
        }
    }
}

// Calls move(a head in the cache, where it stands in [n][layer][K, V][head]) for every head of some cells. The
// cache has all cells of a head together and the other side all heads of a cell: going by blocks of cells, both
// sides are walked in pieces that the processor's caches hold.
template <typename Move>
void Decoder::each_head(const int32_t* cells, size_t n, Move move) const {
    for (size_t first = 0; first < n; first += kCellBlock) {
        const size_t last = std::min(n, first + kCellBlock);
        for (size_t plane = 0; plane < planes(); ++plane) {
            for (size_t i = first; i < last; ++i) {
                move(plane_of(plane, cells[i]), (i * planes() + plane) * head_bytes_);
            }
        }
    }
}

void Decoder::read_cells(const int32_t* cells, size_t n, uint8_t* out) const {
    each_head(cells, n, [&](const uint8_t* head, size_t at) { std::memcpy(out + at, head, head_bytes_); });
}

void Decoder::write_cells(const int32_t* cells, size_t n, const uint8_t* data) {
    each_head(cells, n, [&](uint8_t* head, size_t at) {
        std::memcpy(head, data + at, head_bytes_);
        check_finite(head);
    });
}

}  // namespace stretto
