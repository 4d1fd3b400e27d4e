// Matrices behind the pooling of a text's hidden states. They are small: one thread multiplies them.

#include <cmath>

#include "memory/carver.h"
#include "model/decoder.h"

namespace stretto {

void Decoder::project(size_t projection, const float* x, size_t n, float* out) {
    using Activation = ProjectionConfig::Activation;
    const ProjectionConfig& config = config_.projections[projection];
    const ProjectionWeights& w = model_.projections[projection];
    if (!n) return;
    const Turn turn(&pool_);
    const size_t columns = columns_of(precision_) * n, lanes = kernels_->lanes(columns);
    Quantized quantized;
    ProductScratch scratch;
    auto take_all = [&](uint8_t* base) {
        Carver carver(base);
        quantized = carver.quantized(columns, config.columns, lanes);
        scratch.pairs = carver.take<float>(precision_ == Precision::kHigh ? kPairFloats : 0);
        return carver.used();
    };
    take_all(scratch_.reserve(take_all(nullptr)));
    for (size_t row = 0; row < n && config.columns % kBlock == 0; ++row) {
        quantize_activations(*kernels_, precision_, x + row * config.columns, config.columns, row, quantized);
    }
    multiply(w.linear.matrix, {quantized, x, 0, n}, 0, w.linear.matrix.panels(), out, scratch);
    for (size_t row = 0; row < n; ++row, out += config.rows) {
        if (config.bias) kernels_->add(out, w.linear.bias.data(), config.rows);
        if (config.activation == Activation::kGelu) kernels_->gelu(out, nullptr, config.rows);
        if (config.activation == Activation::kGeluErf) kernels_->gelu_erf(out, nullptr, config.rows);
        if (config.activation == Activation::kTanh) {
            for (size_t i = 0; i < config.rows; ++i) out[i] = std::tanh(out[i]);
        }
        if (config.norm.there()) normalize(w.norm, out, config.rows, out);
    }
}

}  // namespace stretto
