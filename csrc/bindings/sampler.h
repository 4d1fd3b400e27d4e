// The sampler's arguments from Python. Arrays that are not given cost nothing: each takes time to unpack.
#pragma once

#include <nanobind/stl/optional.h>

#include "bindings/bindings.h"
#include "sampling/sampler.h"

namespace stretto {

template <typename T>
using Maybe = std::optional<Input1<T>>;

constexpr size_t kMostTokens = (size_t{1} << 31) - 1;  // ids fit into an int32_t

void check_row_length(size_t n);  // of logits
void check_params(const SamplerParams& params);

SamplerHistory history_of(size_t n_vocab, const Maybe<int32_t>& tokens, size_t n_prompt, const Maybe<int32_t>& biased,
                          const Maybe<float>& bias, const Maybe<uint32_t>& mask);

}  // namespace stretto
