// Several tokens of one sequence without going back to Python: sample, run, sample, run …
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/decoder.h"
#include "sampling/hook.h"
#include "sampling/sampler.h"

namespace stretto {

// Number `draw` (from 0) of a request's random stream: NumPy's Philox with the key (seed, index).
double uniform(uint64_t seed, uint64_t index, uint64_t draw);

// What follows a sampled token: puts at most `room` tokens that have to come next into `more`, readies the mask
// for the one after them, and says whether anything comes then.
using Guide = std::function<bool(int32_t token, size_t room, std::vector<int32_t>& more)>;

struct Loop {
    const float* logits;            // of the last token so far
    const int32_t* cells;           // [most], taken beforehand
    size_t most;                    // tokens
    int32_t position;               // of the first
    const int32_t* view;            // the sequence's cells with those of `cells` at its end
    size_t length;                  // entries of the view before them
    const int32_t* table;
    SamplerParams params;
    SamplerHistory history;         // its tokens are copied, and grow
    uint64_t seed, index, draws;
    std::vector<int32_t> ends;      // tokens that end it
    std::vector<Hook> hooks;        // run in order before each token; they need the whole history
    const uint8_t* interrupt = nullptr; // not 0: a request waits, and the loop ends after the current token
    Guide guide;                    // called after each token, if there is one; may change history.mask

    std::vector<std::pair<const Adapter*, float>> adapters;  // of all its tokens, with a scale for each
    int32_t slot = -1;              // with recurrent layers: whose state the tokens advance
    std::vector<int32_t> tokens;    // sampled and forced tokens, an end token included
    size_t n_run = 0;               // how many of them have been run
    int error = 0;                  // a code of the sampler
    double sampling = 0.0;          // seconds in it
};

// Fills `loop.tokens`, fewer than `most` in a interrupt, and, unless the end was reached, `out` with the logits after them.
void run_loop(Decoder& decoder, Loop& loop, float* out);

}  // namespace stretto
