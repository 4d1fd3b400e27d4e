// Sites of a layer whose rows a pass shows, or lets its caller change (src/stretto/models/sites.py names them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "model/config.h"

namespace stretto {

enum class Site : int {
    kEmbedding,      // the residual stream before the first layer
    kResidual,       // the same behind a layer
    kMixerIn,        // what attention or a recurrent mixer reads, normalised
    kHeads,          // what the heads give, before the output matrix
    kMixerOut,       // what attention gives, or a recurrent mixer that stands alone
    kRecurrentOut,   // what a recurrent mixer beside attention gives
    kFeedIn,         // what the feed-forward reads, normalised
    kFeedOut,        // what it gives
    kExperts,        // the chosen experts, as floats
    kExpertWeights,  // their weights
};
constexpr int kSites = 10;

// Some rows of a batch at a site. Arrays belong to the caller.
struct Tap {
    size_t layer;
    Site site;
    size_t n, width;
    const int32_t* rows;  // [n], in order
    float* values;        // [n][width], which get the rows
    bool changes;         // the rows get them back, once `Input::change` has been called
};

// How many numbers a row has at a site; 0: the layer has no such site.
size_t width_of(const LayerConfig& layer, Site site, size_t n_embd);

// Called by one thread, while the others wait, with the index of a tap whose values are there.
using ChangeRows = std::function<void(size_t tap)>;

}  // namespace stretto
