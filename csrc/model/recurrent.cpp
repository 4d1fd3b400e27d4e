#include "model/recurrent.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/sums.h"

namespace stretto {

namespace {

constexpr size_t kTokens = 32;     // that pass over one tile of a state: their keys and queries fit beside it
constexpr size_t kPiece = 256;     // channels of a gated convolution at a time
constexpr float kLength = 1e-6f;   // added to the squared length that keys and queries are divided by
constexpr float kLeast = 0x1p-20f;  // scale of a head's tiles, below which they are multiplied by it

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }
// e^x for x of 0 or less, to 2 units in the last place, in operations that compilers do side by side: 2^n × e^r with
// |r| ≤ log(2) / 2. What is below e^−87 counts as that.
float exp_below(float x) {
    constexpr float kLog2E = 1.44269504f, kHigh = 0.693359375f, kLow = -2.12194440e-4f, kRound = 12582912.0f;
    x = std::max(x, -87.0f);
    const float n = (x * kLog2E + kRound) - kRound;
    const float r = (x - n * kHigh) - n * kLow;
    float e = 1.9875691500e-4f;
    for (float term : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
        e = e * r + term;
    }
    e = e * r * r + r + 1.0f;
    const int32_t power = (static_cast<int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &power, sizeof(scale));
    return e * scale;
}
// 1 / (1 + e^−x), in such operations.
float logistic_of(float x) {
    const float e = exp_below(-std::abs(x)), high = 1.0f / (1.0f + e);
    return x < 0.0f ? e * high : high;
}
float logistic(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Sixteen sums side by side, which compilers keep in vectors.
float dot_floats(const float* x, const float* y, size_t n) {
    float sums[16] = {};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (size_t j = 0; j < 16; ++j) sums[j] += x[i + j] * y[i + j];
    }
    for (size_t j = 0; i + j < n; ++j) sums[j] += x[i + j] * y[i + j];
    for (size_t step = 8; step; step /= 2) {
        for (size_t j = 0; j < step; ++j) sums[j] += sums[j + step];
    }
    return sums[0];
}

Convolution part_of(const ConvolutionWeights& w, float* history, size_t begin, size_t end, bool silu) {
    const float* bias = w.bias ? w.bias + begin : nullptr;
    return {w.kernel, end - begin, w.channels, w.taps + begin, bias, history + begin, silu};
}

// Pointers to what up to kTokens tokens have for one head.
struct Tokens {
    size_t n;
    const float* write[kTokens];
    const float* read[kTokens];
    const float* values[kTokens];
    float* out[kTokens];
    float factor[kTokens], scale[kTokens], inverse[kTokens], gain[kTokens], overlap[kTokens];

    // The decays of a token's head: `last` is the scale of its tiles.
    void decay(size_t t, float by, float* last) {
        const float now = *last * by;
        const bool small = now < kLeast;
        factor[t] = small ? now : 1.0f;
        *last = scale[t] = small ? 1.0f : now;
        inverse[t] = 1.0f / scale[t];
    }

    // Calls `advance` for each tile of a head's state, whose values stand 16 by 16.
    void pass(void (*advance)(const StateTile&), float* state, size_t rows, size_t values_size, float skip) {
        for (size_t first = 0; first < values_size; first += kStateLanes, state += rows * kStateLanes) {
            const size_t lanes = std::min(kStateLanes, values_size - first);
            const float* from[kTokens];
            float* to[kTokens];
            for (size_t t = 0; t < n; ++t) {
                from[t] = values[t] + first;
                to[t] = out[t] + first;
            }
            advance({state, rows, lanes, n, write, read, factor, scale, inverse, gain, overlap, from, to, skip});
        }
    }
};

// The scale of a head's tiles, which stands behind those of all heads. A state of zeros is that of no tokens.
float* scale_of(float* state, size_t heads, size_t head_floats, size_t head) {
    float* scale = state + heads * head_floats + head;
    if (*scale == 0.0f) *scale = 1.0f;
    return scale;
}

// The numbers of a delta net's scratch.
struct DeltaScratch {
    float *keys, *queries;    // [kTokens][key_size], of length 1 and key_size^−½
    float *to_key, *to_query;  // [key_size]: weights with which an RMS norm makes them so
    float* gate;              // [value_size]

    DeltaScratch(const DeltaNetWeights& w, float* memory)
        : keys(memory),
          queries(keys + kTokens * w.key_size),
          to_key(queries + kTokens * w.key_size),
          to_query(to_key + w.key_size),
          gate(to_query + w.key_size) {
        const float size = static_cast<float>(w.key_size);
        std::fill_n(to_key, w.key_size, 1.0f / std::sqrt(size));
        std::fill_n(to_query, w.key_size, 1.0f / size);
    }
};

// What token t of a block, batch row `row`, has for value head `head`.
void take_token(const Kernels& kernels, const DeltaNetWeights& w, const DeltaNetRows& rows, const DeltaScratch& s,
                size_t head, size_t row, size_t t, float* scale, Tokens* tokens) {
    const size_t shared = w.n_value_head / w.n_key_head;
    const size_t key_head = w.tiled ? head % w.n_key_head : head / shared;
    const float* qkv = rows.qkv.row(row);
    float* key = s.keys + t * w.key_size;
    float* query = s.queries + t * w.key_size;
    const float eps = kLength / static_cast<float>(w.key_size);
    kernels.rms_norm(qkv + key_head * w.key_size, s.to_query, w.key_size, eps, query);
    kernels.rms_norm(qkv + (w.n_key_head + key_head) * w.key_size, s.to_key, w.key_size, eps, key);
    const float *beta = rows.beta.row(row) + head, *alpha = nullptr;
    if (w.fused) {
        beta = rows.beta.row(row) + 2 * shared * (head / shared) + head % shared;
        alpha = beta + shared;
    } else {
        alpha = rows.alpha.row(row) + head;
    }
    tokens->write[t] = key;
    tokens->read[t] = query;
    tokens->values[t] = qkv + 2 * w.n_key_head * w.key_size + head * w.value_size;
    tokens->out[t] = rows.out.row(row) + head * w.value_size;
    tokens->decay(t, std::exp(w.a[head] * softplus(*alpha + w.dt_bias[head])), scale);
    tokens->gain[t] = logistic(*beta);
    tokens->overlap[t] = dot_floats(key, query, w.key_size);
}

}  // namespace

void convolve(const Kernels& kernels, const ConvolutionWeights& w, const SlotRows& rows, Columns<float> x,
              float* history, size_t begin, size_t end) {
    const Convolution part = part_of(w, history, begin, end, true);
    for (size_t t = 0; t < rows.n; ++t) {
        float* row = x.row(rows[t]) + begin;
        kernels.convolve(part, row, row);
    }
}

void convolve_gated(const Kernels& kernels, const ConvolutionWeights& w, const SlotRows& rows,
                    Columns<const float> bcx, Columns<float> out, float* history, size_t begin, size_t end) {
    float gated[kPiece];
    for (size_t first = begin; first < end; first += kPiece) {
        const size_t last = std::min(first + kPiece, end);
        const Convolution part = part_of(w, history, first, last, false);
        for (size_t t = 0; t < rows.n; ++t) {
            const float *b = bcx.row(rows[t]) + first, *c = b + w.channels, *x = c + w.channels;
            float* to = out.row(rows[t]) + first;
            for (size_t i = 0; i < last - first; ++i) gated[i] = b[i] * x[i];
            kernels.convolve(part, gated, gated);
            for (size_t i = 0; i < last - first; ++i) to[i] = c[i] * gated[i];
        }
    }
}

size_t DeltaNetWeights::scratch_floats() const { return 2 * (kTokens + 1) * key_size + value_size; }

void correct_heads(const Kernels& kernels, const DeltaNetWeights& w, const DeltaNetRows& rows, float* state,
                   float* scratch, size_t begin, size_t end) {
    const DeltaScratch s(w, scratch);
    Tokens tokens;
    for (size_t head = begin; head < end; ++head) {
        float* scale = scale_of(state, w.n_value_head, w.head_floats(), head);
        for (size_t first = 0; first < rows.rows.n; first += kTokens) {
            tokens.n = std::min(kTokens, rows.rows.n - first);
            for (size_t t = 0; t < tokens.n; ++t) {
                take_token(kernels, w, rows, s, head, rows.rows[first + t], t, scale, &tokens);
            }
            tokens.pass(kernels.correct_state, state + head * w.head_floats(), w.key_size, w.value_size, 0.0f);
            for (size_t t = 0; t < tokens.n; ++t) {  // the norm, then the gate
                const float* gate = rows.gate.row(rows.rows[first + t]) + head * w.value_size;
                std::copy_n(gate, w.value_size, s.gate);
                kernels.rms_norm(tokens.out[t], w.norm, w.value_size, w.eps, tokens.out[t]);
                kernels.silu(s.gate, tokens.out[t], w.value_size);
                std::copy_n(s.gate, w.value_size, tokens.out[t]);
            }
        }
    }
}

void correct_channels(const Kernels& kernels, const KimiDeltaWeights& w, const KimiDeltaRows& rows, float* state,
                      float* scratch, size_t begin, size_t end) {
    const size_t size = w.head_size;
    float *key = scratch, *query = key + size, *decay = query + size;
    const float root = std::sqrt(static_cast<float>(size));
    for (size_t head = begin; head < end; ++head) {
        const size_t at = head * size;
        float* matrix = state + at * size;
        for (size_t t = 0; t < rows.rows.n; ++t) {
            const size_t row = rows.rows[t];
            const float *q = rows.q.row(row) + at, *k = rows.k.row(row) + at, *v = rows.v.row(row) + at;
            const float *step = rows.step.row(row) + at, *gate = rows.gate.row(row) + at;
            const float q_scale = 1.0f / (root * std::sqrt(dot_floats(q, q, size) + kLength));
            const float k_scale = 1.0f / std::sqrt(dot_floats(k, k, size) + kLength);
            for (size_t r = 0; r < size; ++r) {
                query[r] = q[r] * q_scale;
                key[r] = k[r] * k_scale;
                decay[r] = exp_below(w.a[head] * softplus(step[r] + w.dt_bias[at + r]));
            }
            const float gain = logistic(rows.beta.row(row)[head]);
            float* out = rows.out.row(row) + at;
            for (size_t first = 0; first < size; first += kStateLanes) {
                const size_t lanes = std::min(kStateLanes, size - first);
                float found[kStateLanes] = {}, change[kStateLanes], sum[kStateLanes] = {};
                for (size_t r = 0; r < size; ++r) {
                    float* numbers = matrix + r * size + first;
                    for (size_t i = 0; i < lanes; ++i) {
                        numbers[i] *= decay[r];
                        found[i] += key[r] * numbers[i];
                    }
                }
                for (size_t i = 0; i < lanes; ++i) change[i] = gain * (v[first + i] - found[i]);
                for (size_t r = 0; r < size; ++r) {
                    float* numbers = matrix + r * size + first;
                    for (size_t i = 0; i < lanes; ++i) {
                        numbers[i] += key[r] * change[i];
                        sum[i] += query[r] * numbers[i];
                    }
                }
                std::copy_n(sum, lanes, out + first);
            }
            kernels.rms_norm(out, w.norm, size, w.eps, out);
            for (size_t i = 0; i < size; ++i) out[i] *= logistic(gate[i]);
        }
    }
}

constexpr size_t kMixed = 16;  // tokens whose vectors are made before the state advances
constexpr float kFastest = -0.60653066f;  // −e^−½: the log of the fastest decay
constexpr float kLeastLength = 1e-24f;    // squared

size_t TimeMixWeights::scratch_floats() const { return (4 * kMixed + 1) * head_size; }

void advance_heads(const Kernels& kernels, const TimeMixWeights& w, const TimeMixRows& rows, float* state, float* scratch,
                   size_t begin, size_t end) {
    const size_t size = w.head_size;
    const float *decay[kMixed], *find[kMixed], *correct[kMixed], *write[kMixed], *read[kMixed], *values[kMixed];
    float *out[kMixed], *product = scratch + 4 * kMixed * size;
    for (size_t head = begin; head < end; ++head) {
        const size_t at = head * size;
        for (size_t first = 0; first < rows.rows.n; first += kMixed) {
            const size_t n = std::min(kMixed, rows.rows.n - first);
            for (size_t t = 0; t < n; ++t) {
                const size_t row = rows.rows[first + t];
                float *decays = scratch + 4 * t * size, *found = decays + size, *corrects = found + size;
                float *keys = corrects + size, *value = rows.value.row(row) + at;
                const float *k = rows.key.row(row) + at, *raw = rows.decay.row(row) + at, *rate = rows.rate.row(row) + at;
                for (size_t i = 0; i < size; ++i) found[i] = k[i] * w.removal[at + i];
                const float length = 1.0f / std::sqrt(std::max(dot_floats(found, found, size), kLeastLength));
                for (size_t i = 0; i < size; ++i) {
                    const float gain = logistic_of(rate[i] + w.rate_bias[at + i]);
                    decays[i] = exp_below(kFastest * logistic_of(raw[i] + w.decay_bias[at + i]));
                    found[i] *= length;
                    corrects[i] = -found[i] * gain;
                    keys[i] = k[i] * (1.0f + (gain - 1.0f) * w.key_rate[at + i]);
                }
                if (rows.share.data) {
                    const float *share = rows.share.row(row) + at, *from = rows.first.row(row) + at;
                    for (size_t i = 0; i < size; ++i) {
                        value[i] += (from[i] - value[i]) * logistic_of(share[i] + w.value_bias[at + i]);
                    }
                }
                decay[t] = decays, find[t] = found, correct[t] = corrects, write[t] = keys;
                read[t] = rows.receptance.row(row) + at;
            }
            float* tile = state + head * w.head_floats();
            for (size_t from = 0; from < size; from += kStateLanes, tile += size * kStateLanes) {
                for (size_t t = 0; t < n; ++t) {
                    values[t] = rows.value.row(rows.rows[first + t]) + at + from;
                    out[t] = rows.out.row(rows.rows[first + t]) + at + from;
                }
                const size_t lanes = std::min(kStateLanes, size - from);
                kernels.decay_state({tile, size, lanes, n, decay, find, correct, write, read, values, out});
            }
            for (size_t t = 0; t < n; ++t) {
                const size_t row = rows.rows[first + t];
                float* made = rows.out.row(row) + at;
                const float* value = rows.value.row(row) + at;
                if (w.norm) {
                    const double sum = sum_of(size, [&](size_t i) { return double{made[i]}; });
                    const auto mean = static_cast<float>(sum / static_cast<double>(size));
                    for (size_t i = 0; i < size; ++i) made[i] -= mean;
                    kernels.rms_norm(made, w.norm + at, size, w.eps, made);
                    kernels.add(made, w.norm_bias + at, size);
                }
                for (size_t i = 0; i < size; ++i) product[i] = write[t][i] * w.bonus[at + i];
                const float own = dot_floats(product, read[t], size);
                for (size_t i = 0; i < size; ++i) made[i] += own * value[i];
                const float* gate = rows.gate.data ? rows.gate.row(row) + at : nullptr;
                for (size_t i = 0; gate && i < size; ++i) made[i] *= gate[i];
            }
        }
    }
}

void scan_channels(const Kernels& kernels, const MambaWeights& w, const MambaRows& rows, float* state, size_t begin,
                   size_t end) {
    float step[kStateLanes], added[kStateLanes], sum[kStateLanes];
    for (size_t first = begin; first < end; first += kStateLanes) {
        const size_t lanes = std::min(kStateLanes, end - first);
        for (size_t t = 0; t < rows.rows.n; ++t) {
            const size_t row = rows.rows[t];
            const float *x = rows.x.row(row) + first, *b = rows.b.row(row), *c = rows.c.row(row);
            float *gate = rows.gate.row(row) + first, *out = rows.out.row(row) + first;
            for (size_t i = 0; i < lanes; ++i) {
                step[i] = softplus(out[i] + w.dt_bias[first + i]);
                added[i] = step[i] * x[i];
                sum[i] = w.d[first + i] * x[i];
            }
            for (size_t s = 0; s < w.state_size; ++s) {
                float* numbers = state + s * w.width + first;
                const float* a = w.a + s * w.width + first;
                for (size_t i = 0; i < lanes; ++i) {
                    numbers[i] = numbers[i] * exp_below(step[i] * a[i]) + added[i] * b[s];
                    sum[i] += numbers[i] * c[s];
                }
            }
            kernels.silu(gate, sum, lanes);
            std::copy_n(gate, lanes, out);
        }
    }
}

void scan_heads(const Kernels& kernels, const Mamba2Weights& w, const Mamba2Rows& rows, float* state, size_t begin,
                size_t end) {
    Tokens tokens;
    for (size_t head = begin; head < end; ++head) {
        const size_t group = head / (w.n_head / w.n_group);
        float* scale = scale_of(state, w.n_head, w.head_floats(), head);
        for (size_t first = 0; first < rows.rows.n; first += kTokens) {
            tokens.n = std::min(kTokens, rows.rows.n - first);
            for (size_t t = 0; t < tokens.n; ++t) {
                const size_t row = rows.rows[first + t];
                const float* x = rows.projected.row(row) + w.inner();
                const float* b = x + w.inner() + group * w.state_size;
                const float step = softplus(x[w.channels() + head] + w.dt_bias[head]);
                tokens.write[t] = b;
                tokens.read[t] = b + w.n_group * w.state_size;
                tokens.values[t] = x + head * w.head_size;
                tokens.out[t] = rows.out.row(row) + head * w.head_size;
                tokens.decay(t, std::exp(step * w.a[head]), scale);
                tokens.gain[t] = step;
            }
            tokens.pass(kernels.add_to_state, state + head * w.head_floats(), w.state_size, w.head_size, w.d[head]);
        }
    }
}

void gate_groups(const Kernels& kernels, const Mamba2Weights& w, const Mamba2Rows& rows, float* scratch, size_t begin,
                 size_t end) {
    const size_t size = w.inner() / w.n_group;
    for (size_t t = 0; t < rows.rows.n; ++t) {
        for (size_t group = begin; group < end; ++group) {  // the gate, then the norm
            float* out = rows.out.row(rows.rows[t]) + group * size;
            std::copy_n(rows.projected.row(rows.rows[t]) + group * size, size, scratch);
            kernels.silu(scratch, out, size);
            if (w.norm) {
                kernels.rms_norm(scratch, w.norm + group * size, size, w.eps, out);
            } else {
                std::copy_n(scratch, size, out);
            }
        }
    }
}

}  // namespace stretto
