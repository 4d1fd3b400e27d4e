// What a pass shows of its rows, site by site. A pass with taps has all rows in memory that threads share, also a single one.

#include "model/tap.h"

#include <algorithm>

#include "model/walk.h"

namespace stretto {

size_t width_of(const LayerConfig& layer, Site site, size_t n_embd) {
    switch (site) {
        case Site::kHeads:
            if (layer.mixer == MixerKind::kLatent) return layer.attention.n_head * layer.latent.value_size;
            return layer.has_attention() ? layer.attention.width() : 0;
        case Site::kMixerOut: return layer.mixer == MixerKind::kNone ? 0 : n_embd;
        case Site::kMixerIn: return layer.mixer == MixerKind::kNone ? 0 : n_embd;
        case Site::kRecurrentOut: return layer.mixer == MixerKind::kBeside ? n_embd : 0;
        case Site::kFeedIn:
        case Site::kFeedOut: return layer.ffn == FeedForwardKind::kNone ? 0 : n_embd;
        case Site::kExperts:
        case Site::kExpertWeights: return layer.ffn == FeedForwardKind::kExperts ? layer.experts.routing.n_used : 0;
        default: return n_embd;
    }
}

bool Decoder::Walk::is_tapped(size_t layer, Site site) const {
    return std::any_of(input_.taps.begin(), input_.taps.end(),
                       [&](const Tap& tap) { return tap.layer == layer && tap.site == site; });
}

// Rows are this thread's alone, until they are changed: then all threads meet, before and after.
void Decoder::Walk::show(size_t layer, Site site, float* rows) {
    for (size_t t = 0; t < input_.taps.size(); ++t) {
        const Tap& tap = input_.taps[t];
        if (tap.layer != layer || tap.site != site) continue;
        for (size_t i = 0; i < tap.n; ++i) {
            const auto row = static_cast<size_t>(tap.rows[i]);
            if (row >= first_ && row < last_) std::copy_n(rows + row * tap.width, tap.width, tap.values + i * tap.width);
        }
        if (!tap.changes) continue;
        meet();
        if (thread_ == 0) d_.change_rows(input_, t);
        meet();
        for (size_t i = 0; i < tap.n; ++i) {
            const auto row = static_cast<size_t>(tap.rows[i]);
            if (row >= first_ && row < last_) std::copy_n(tap.values + i * tap.width, tap.width, rows + row * tap.width);
        }
    }
}

void Decoder::Walk::show_experts(size_t layer, const int32_t* chosen, float* weights) {
    const size_t n_used = c_.layers[layer].experts.routing.n_used;
    for (const Tap& tap : input_.taps) {
        if (tap.layer != layer || tap.site != Site::kExperts) continue;
        for (size_t i = 0; i < tap.n; ++i) {
            const auto row = static_cast<size_t>(tap.rows[i]);
            if (row >= first_ && row < last_) std::copy_n(chosen + row * n_used, n_used, tap.values + i * n_used);
        }
    }
    show(layer, Site::kExpertWeights, weights);
}

// `add_rows`, showing what is added as the mixer or the feed-forward gives it: with its bias.
void Decoder::Walk::add_output(size_t layer, Site site, float* rows, const std::vector<float>& bias, const Norm& post,
                               float scale) {
    if (!is_tapped(layer, site)) return add_rows(rows, bias, post, scale);
    for (size_t row = first_; row < last_; ++row) {
        float* sum = row_of(sum_, row);
        if (rows != sum_) std::copy_n(row_of(rows, row), c_.n_embd, sum);
        if (!bias.empty()) kernel_.add(sum, bias.data(), c_.n_embd);
    }
    show(layer, site, sum_);
    add_rows(sum_, {}, post, scale);
}

// An exception ends the pass, but not before all threads have come to its end.
void Decoder::change_rows(const Input& input, size_t tap) {
    if (change_error_) return;
    try {
        input.change(tap);
    } catch (...) {
        change_error_ = std::current_exception();
    }
}

}  // namespace stretto
