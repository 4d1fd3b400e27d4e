// The class of a decoder in Python, method by method, and the checks of what it is given.
#pragma once

#include "bindings/bindings.h"
#include "model/decoder.h"

namespace stretto {

using DecoderClass = nb::class_<Decoder>;

constexpr size_t kMost = size_t{1} << 31;

// These fail for numbers that are not from 0 up to `end`, for models that cannot go on from their cells, and for
// models that lack a tensor.
void check_range(const int32_t* values, size_t n, int64_t end, const char* what);
void check_causal(const Decoder& decoder);
void check_complete(Decoder& decoder);

// The threads that a decoder lends in a turn, if there is one.
inline Pool* pool_of(Decoder* decoder) { return decoder ? &decoder->pool() : nullptr; }

// The slots of a batch's rows, if the model has recurrent layers.
const int32_t* slots_of(const Decoder& decoder, const int32_t* slots, size_t n, size_t rows);

void bind_passes(DecoderClass& decoder);
void bind_loop(DecoderClass& decoder);
void bind_cells(DecoderClass& decoder);

}  // namespace stretto
