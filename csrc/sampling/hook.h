// A hook in native code: it may change a row of logits before a token is sampled from it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stretto {

struct Hook {
    // float logits[n_vocab], the ids of all n tokens so far, and whatever the hook asked to be handed.
    using Function = void (*)(float* logits, int32_t n_vocab, const int32_t* tokens, int32_t n, void* state);

    Function function;
    void* state;

    // Addresses come from Python as numbers; that they are right is the caller's to answer for.
    static Hook at(uintptr_t function, uintptr_t state) {
        return {reinterpret_cast<Function>(function), reinterpret_cast<void*>(state)};
    }

    void operator()(float* logits, size_t n_vocab, const int32_t* tokens, size_t n) const {
        function(logits, static_cast<int32_t>(n_vocab), tokens, static_cast<int32_t>(n), state);
    }
};

}  // namespace stretto
