// Adapters from Python: their matrices and vectors, and which rows of a batch have them.
#pragma once

#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "model/decoder.h"

namespace stretto {

// Adapters by their numbers, with a scale for each row.
using AdapterScales = std::vector<std::pair<int, Input1<float>>>;

// These fail for numbers that no adapter has, and for sizes that do not fit.
const Adapter* adapter_of(const Decoder& decoder, int number);
void set_adapters(const Decoder& decoder, const AdapterScales& scales, Input& input);
void add_change(Decoder& decoder, int adapter, const std::string& name, size_t rank, float scale, int a_code,
                Input1<uint8_t> a, int b_code, Input1<uint8_t> b);
void add_vector(Decoder& decoder, int adapter, size_t layer, Input1<float> vector);

}  // namespace stretto
