// Loading a model into a decoder, and the operations on its cells.

#include "model/decoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "model/recurrent_layer.h"
#include "model/rope.h"
#include "model/sums.h"
#include "threads/share.h"
#include "weights/formats.h"

namespace stretto {

namespace {

constexpr size_t kChunkBytes = size_t{16} << 20;
constexpr size_t kLine = 64;  // bytes of a cache line
constexpr size_t kPieceBytes = size_t{4} << 20;  // that are packed before the clock is looked at
// How long the first pass may have to wait for packing, and later ones, which are slower the longer it takes in all.
constexpr std::chrono::milliseconds kFirstTurn(15), kLaterTurn(200);

}  // namespace

Decoder::Decoder(Config config, size_t n_cells, CacheType cache, Precision precision, int threads,
                 const Kernels* kernels, size_t n_slots)
    : config_(std::move(config)),
      n_cells_(n_cells),
      cache_type_(cache),
      precision_(precision),
      kernels_(kernels),
      pool_(threads),
      layers_(config_.layers.size()) {
    const size_t n_embd = config_.n_embd;
    widths_ = widths_of(config_);
    tensors_.matrix("token_embd", embedding_, config_.n_vocab, n_embd);
    if (!config_.tied) tensors_.matrix("output", output_, config_.n_vocab, n_embd);
    if (config_.output_bias) tensors_.vector("output.bias", output_bias_, config_.n_vocab);
    tensors_.norm("", config_.output_norm, output_norm_, n_embd);
    double bytes = 0.0;  // in floating point, which cannot wrap around
    for (size_t i = 0; i < layers_.size(); ++i) {
        const LayerConfig& layer = config_.layers[i];
        first_plane_.push_back(planes_.size());
        if (layer.attends()) most_heads_ = std::max(most_heads_, layer.attention.n_head);
        const size_t heads = layer.cached_heads(), size = heads ? head_bytes(cache, layer.attention.head_size) : 0;
        bytes += 2.0 * static_cast<double>(heads) * static_cast<double>(size) * static_cast<double>(n_cells);
        if (bytes > 0x1p46 || planes_.size() + 2.0 * static_cast<double>(heads) > 0x1p24) {
            throw std::invalid_argument("a cache of this size cannot be; ask for fewer cells");
        }
        for (size_t head = 0; head < heads * (layer.values_apart() ? 2 : 1); ++head) {
            planes_.push_back({cell_bytes_, size, i, head >= heads, layer.attention.head_size});
            cell_bytes_ += size;
        }
        if (const size_t index = layer.latent.indexer.head_size) {
            planes_.push_back({cell_bytes_, head_bytes(cache, index), i, true, index});
            cell_bytes_ += planes_.back().bytes;
            bytes += static_cast<double>(planes_.back().bytes) * static_cast<double>(n_cells);
        }
    }
    for (size_t i = 0; i < layers_.size(); ++i) tensors_.layer(i, config_.layers[i], n_embd, layers_[i]);
    for (const LayerConfig& layer : config_.layers) {
        state_begin_.push_back(slot_floats_);
        slot_floats_ += recurrent_floats(layer);
        if (static_cast<double>(slot_floats_) * static_cast<double>(n_slots) > 0x1p44) {
            throw std::invalid_argument("states of this size cannot be; ask for fewer slots");
        }
    }
    n_slots_ = slot_floats_ ? n_slots : 0;
    states_ = Buffer(n_slots_ * slot_bytes());
    tensors_.model(config_, model_);
    block_bytes_ = cell_bytes_ * std::min(n_cells, kCellBlock);
    cache_ = Buffer((n_cells + kCellBlock - 1) / kCellBlock * block_bytes_);
}

uint8_t* Decoder::take_weights(size_t bytes) {
    const size_t needed = (bytes + kLine - 1) / kLine * kLine;
    if (weights_.empty() || weights_.back().size() - chunk_used_ < needed) {
        weights_.emplace_back(std::max(needed, kChunkBytes));
        chunk_used_ = 0;
    }
    uint8_t* at = weights_.back().data() + chunk_used_;
    chunk_used_ += needed;
    return at;
}

void Decoder::set_unpacked(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data) {
    complete_ = false;
    const Tensors::Entry* entry = tensors_.find(name);
    Layout layout;
    if (!entry || !entry->matrix || !layout_of(format, &layout)) {
        throw std::invalid_argument("no use for the matrix " + name);
    }
    *entry->matrix = matrix_for(layout, rows, columns, format);
    entry->matrix->source = data;
    entry->matrix->format = format;
    entry->matrix->ready = rows;
    // In a file with experts no page may bring others with it, as those may be of experts that nobody chose.
    const auto has_experts = [](const LayerConfig& layer) { return layer.ffn == FeedForwardKind::kExperts; };
    if (std::none_of(config_.layers.begin(), config_.layers.end(), has_experts)) return;
    const size_t bytes = bytes_of(format, rows, columns);
    read_at_random(data, bytes);
    if (name.find("_exps.") == std::string::npos) read_soon(data, bytes);
}

// Has a packed matrix wait for other rows, in the memory that it has.
void Decoder::renew(const std::string& name) {
    const Tensors::Entry* entry = tensors_.find(name);
    if (!entry || !entry->matrix || !entry->matrix->data) throw std::invalid_argument("no packed matrix " + name);
    complete_ = false;
    entry->matrix->ready = 0;
}

void Decoder::pack_rows(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data,
                        size_t count) {
    complete_ = false;
    const Tensors::Entry* entry = tensors_.find(name);
    Matrix* matrix = entry ? entry->matrix : nullptr;
    Layout layout;
    if (!matrix || !layout_of(format, &layout)) throw std::invalid_argument("no use for the matrix " + name);
    if (!matrix->data) {
        *matrix = matrix_for(layout, rows, columns, format);
        matrix->data = take_weights(matrix->bytes());
        matrix->format = format;
        weight_bytes_ += matrix->bytes();
    }
    const bool last = matrix->ready + count == rows;
    if (matrix->rows != rows || matrix->columns != columns || matrix->format != format ||
        matrix->ready + count > rows || (count % kPanelRows && !last)) {
        throw std::invalid_argument("these rows do not follow what is there of " + name);
    }
    Matrix part = *matrix;
    part.rows = count;
    uint8_t* out = const_cast<uint8_t*>(matrix->data) + matrix->ready / kPanelRows * matrix->panel_bytes;
    pack_panels_of(part, pool_.active(), 0, part.panels(), data, out);
    matrix->ready += count;
}

// Packs panels [begin, end) of a matrix, whose rows are at `data`, by so many threads.
void Decoder::pack_panels_of(const Matrix& matrix, int threads, size_t begin, size_t end, const uint8_t* data,
                             uint8_t* out) {
    const auto job = [&](int thread) {
        if (thread >= threads) return;
        const size_t first = begin + (end - begin) * thread / threads, last = begin + (end - begin) * (thread + 1) / threads;
        pack_panels(matrix.format, data, matrix, first, last, out + first * matrix.panel_bytes);
    };
    if (threads == 1) return job(0);
    pool_.run(job, Measured::kNo);
}

void Decoder::defer(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data,
                    std::shared_ptr<void> owner) {
    complete_ = false;
    const Tensors::Entry* entry = tensors_.find(name);
    Layout layout;
    if (!entry || !entry->matrix || !layout_of(format, &layout)) {
        throw std::invalid_argument("no use for the matrix " + name);
    }
    Matrix packed = matrix_for(layout, rows, columns, format);
    packed.format = format;
    *entry->matrix = packed;
    entry->matrix->source = data;
    entry->matrix->ready = rows;
    weight_bytes_ += packed.bytes();
    deferred_.push_back({entry->matrix, packed, std::move(owner)});
    n_deferred_ = deferred_.size();
}

// Until the first pass one thread is left to whoever loads what else a model has.
void Decoder::pack_deferred(const std::function<bool()>& stop) {
    using Clock = std::chrono::steady_clock;
    size_t at = 0;  // panels of the first one that have been packed
    while (!deferred_.empty() && !stop()) {
        const Turn turn(&pool_);
        const bool is_later = has_passed_;
        const int threads = is_later ? pool_.active() : std::max(pool_.active() - 1, 1);
        const auto end = Clock::now() + (is_later ? kLaterTurn : kFirstTurn);
        while (!deferred_.empty() && Clock::now() < end) {
            Deferred& next = deferred_.front();
            Matrix& packed = next.packed;
            const uint8_t* const data = next.matrix->source;
            if (!packed.data) packed.data = take_weights(packed.bytes());
            const size_t last = std::min(at + std::max<size_t>(kPieceBytes / packed.panel_bytes, 1), packed.panels());
            pack_panels_of(packed, threads, at, last, data, const_cast<uint8_t*>(packed.data));
            at = last;
            if (at < packed.panels()) continue;
            packed.ready = packed.rows;
            *next.matrix = packed;
            read_no_more(data, bytes_of(packed.format, packed.rows, packed.columns));
            released_.push_back(std::move(next.owner));
            deferred_.pop_front();
            n_deferred_ = deferred_.size();
            at = 0;
        }
    }
}

void Decoder::set_packed(const std::string& name, int format, size_t rows, size_t columns, const uint8_t* data,
                         size_t bytes) {
    complete_ = false;
    const Tensors::Entry* entry = tensors_.find(name);
    Layout layout;
    if (!entry || !entry->matrix || !layout_of(format, &layout)) {
        throw std::invalid_argument("no use for the matrix " + name);
    }
    Matrix matrix = matrix_for(layout, rows, columns, format);
    if (matrix.bytes() != bytes || reinterpret_cast<uintptr_t>(data) % kLine) {
        throw std::invalid_argument("these are not the packed bytes of " + name);
    }
    matrix.data = data;
    matrix.format = format;
    matrix.ready = rows;
    *entry->matrix = matrix;
}

std::pair<const uint8_t*, size_t> Decoder::packed(const std::string& name) {
    const Tensors::Entry* entry = tensors_.find(name);
    const Matrix* matrix = entry ? entry->matrix : nullptr;
    if (!matrix || !matrix->data || matrix->ready != matrix->rows) {
        throw std::invalid_argument("no packed matrix " + name);
    }
    return {matrix->data, matrix->bytes()};
}

void Decoder::set_vector(const std::string& name, const float* data, size_t n) {
    complete_ = false;
    const Tensors::Entry* entry = tensors_.find(name);
    if (!entry || !entry->vector) throw std::invalid_argument("no use for the vector " + name);
    entry->vector->assign(data, data + n);
    if (const size_t columns = entry->transposed) {
        for (size_t i = 0; i < n; ++i) (*entry->vector)[i % columns * (n / columns) + i / columns] = data[i];
    }
}

void Decoder::add_change(int adapter, const std::string& name, size_t rank, float scale, int a_format, const uint8_t* a,
                         int b_format, const uint8_t* b) {
    const Tensors::Entry* entry = tensors_.find(name);
    if (!entry || !entry->matrix) throw std::invalid_argument("no matrix to change: " + name);
    adapters_[adapter].add(entry->matrix, entry->rows, entry->columns, rank, scale, a_format, a, b_format, b);
}

// `first` is where its weights begin, for norms with weights for each head.
void Decoder::normalize(const Norm& norm, const float* x, size_t n, float* out, size_t first) const {
    if (!norm.config.centred) return kernels_->rms_norm(x, norm.weight.data() + first, n, norm.config.eps, out);
    const double sum = sum_of(n, [&](size_t i) { return double{x[i]}; });
    const auto mean = static_cast<float>(sum / static_cast<double>(n));
    for (size_t i = 0; i < n; ++i) out[i] = x[i] - mean;
    kernels_->rms_norm(out, norm.weight.data() + first, n, norm.config.eps, out);
    if (!norm.bias.empty()) kernels_->add(out, norm.bias.data() + first, n);
}

// A head's K of all cells stand behind each other, so that attention reads them in a stream.
uint8_t* Decoder::plane_of(const Plane& plane, size_t cell) const {
    const size_t within = plane.begin * std::min(n_cells_, kCellBlock) + cell % kCellBlock * plane.bytes;
    return cache_.data() + cell / kCellBlock * block_bytes_ + within;
}

// K and V of a layer that has none of its own are those of the layer it shares them with.
uint8_t* Decoder::head_of(size_t layer, size_t cell, bool value, size_t head) const {
    const int shared = config_.layers[layer].attention.shared;
    const size_t source = shared < 0 ? layer : static_cast<size_t>(shared);
    const LayerConfig& c = config_.layers[source];
    const size_t at = first_plane_[source] + (value && c.values_apart() ? c.attention.n_kv_head : 0) + head;
    return plane_of(planes_[at], cell);
}

// Cells lie in blocks, of which all layers have a part: whoever is the first to write to one waits for all of its pages, longer
// than a token takes. So all threads make them present, and where there is more than one row, mostly a prompt, those of the next
// block too, for the tokens that follow.
void Decoder::make_blocks_present(const Input& input) {
    const size_t last = static_cast<size_t>(*std::max_element(input.cells, input.cells + input.n));
    const size_t blocks = std::min(last / kCellBlock + (input.n > 1 ? 2 : 1), pieces_of(n_cells_, kCellBlock));
    if (blocks <= blocks_present_ || !block_bytes_) return;
    uint8_t* const first = cache_.data() + blocks_present_ * block_bytes_;
    const size_t bytes = (blocks - blocks_present_) * block_bytes_, n_pieces = pieces_of(bytes, kHugePage);
    blocks_present_ = blocks;
    const size_t n_threads = pool_.active();
    Cursors cursors(1, n_threads);
    const auto job = [&](int thread) {
        Share share(cursors, 0, n_pieces, thread, n_threads);
        for (size_t piece; share.next(&piece);) {
            make_present(first + piece * kHugePage, std::min(kHugePage, bytes - piece * kHugePage));
        }
    };
    pool_.run(job, Measured::kNo);
}

void Decoder::copy_cells(const int32_t* source, const int32_t* target, size_t n) {
    for (const Plane& plane : planes_) {
        for (size_t i = 0; i < n; ++i) std::memcpy(plane_of(plane, target[i]), plane_of(plane, source[i]), plane.bytes);
    }
}

// What a head of keys was multiplied with once it was rotated; empty: nothing.
std::vector<float> Decoder::after_rope(const Plane& plane) const {
    const AttentionConfig& a = config_.layers[plane.layer].attention;
    const Norm& norm = layers_[plane.layer].k_norm;
    if (!a.norm_after_rope || !norm.config.there()) return {};
    const size_t head = &plane - &planes_[first_plane_[plane.layer]];
    const float* from = norm.weight.data() + (norm.config.over == Over::kHeads ? head * a.head_size : 0);
    std::vector<float> weights(from, from + a.head_size);
    std::replace(weights.begin(), weights.end(), 0.0f, 1.0f);
    return weights;
}

void Decoder::rotate_cells(const int32_t* cells, size_t n, int delta) {
    for (const Plane& plane : planes_) {
        const LayerConfig& layer = config_.layers[plane.layer];
        const bool index = plane.value && layer.latent.indexer.top_k;
        const int of = index ? layer.latent.indexer.rope : layer.attention.rope;
        if ((plane.value && !index) || of < 0) continue;
        const Rope& rope = config_.ropes[of];
        const size_t pairs = rope.frequencies.size(), size = plane.size;
        const size_t first = layer.mixer == MixerKind::kLatent && !index ? layer.latent.rank : 0;  // of what is rotated
        const std::vector<float> weights = index ? std::vector<float>() : after_rope(plane);
        std::vector<float> cos(pairs), sin(pairs), head(padded(size));
        angles(delta, rope.frequencies.data(), pairs, 1.0, cos.data(), sin.data());
        for (size_t i = 0; i < n; ++i) {
            uint8_t* at = plane_of(plane, cells[i]);
            kernels_->load_head(cache_type_, at, size, head.data());
            for (size_t k = 0; k < weights.size(); ++k) head[k] /= weights[k];
            rotate(head.data() + first, cos.data(), sin.data(), pairs, rope.adjacent);
            for (size_t k = 0; k < weights.size(); ++k) head[k] *= weights[k];
            kernels_->store_head(cache_type_, head.data(), size, at);
            check_finite(at, size);
        }
    }
}

// Calls move(plane, a head in the cache, where it stands in [n][layer][K, V][head]) for every head of some cells. The
// cache has all cells of a head together and the other side all heads of a cell: going by blocks of cells, both
// sides are walked in pieces that the processor's caches hold.
template <typename Move>
void Decoder::each_head(const int32_t* cells, size_t n, Move move) const {
    for (size_t first = 0; first < n; first += kCellBlock) {
        const size_t last = std::min(n, first + kCellBlock);
        for (const Plane& plane : planes_) {
            for (size_t i = first; i < last; ++i) move(plane, plane_of(plane, cells[i]), i * cell_bytes_ + plane.begin);
        }
    }
}

void Decoder::copy_slots(const int32_t* source, const int32_t* target, size_t n) {
    for (size_t i = 0; i < n; ++i) std::memcpy(state_of(target[i], 0), state_of(source[i], 0), slot_bytes());
}

void Decoder::clear_slots(const int32_t* slots, size_t n) {
    for (size_t i = 0; i < n; ++i) std::memset(state_of(slots[i], 0), 0, slot_bytes());
}

void Decoder::read_slots(const int32_t* slots, size_t n, uint8_t* out) const {
    for (size_t i = 0; i < n; ++i) std::memcpy(out + i * slot_bytes(), state_of(slots[i], 0), slot_bytes());
}

void Decoder::write_slots(const int32_t* slots, size_t n, const uint8_t* data) {
    for (size_t i = 0; i < n; ++i) std::memcpy(state_of(slots[i], 0), data + i * slot_bytes(), slot_bytes());
}

void Decoder::read_cells(const int32_t* cells, size_t n, uint8_t* out) const {
    each_head(cells, n, [&](const Plane& plane, const uint8_t* head, size_t at) {
        std::memcpy(out + at, head, plane.bytes);
    });
}

void Decoder::write_cells(const int32_t* cells, size_t n, const uint8_t* data) {
    each_head(cells, n, [&](const Plane& plane, uint8_t* head, size_t at) {
        std::memcpy(head, data + at, plane.bytes);
        check_finite(head, plane.size);
    });
}

}  // namespace stretto
