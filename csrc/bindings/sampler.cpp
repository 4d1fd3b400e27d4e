// The sampler as a Python function.

#include "bindings/sampler.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/decoder.h"
#include "sampling/hook.h"

namespace stretto {

namespace {

using Row = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;  // writable

// Rows so short keep the interpreter's lock: they take less time than it takes to get it back from another thread.
constexpr size_t kShortRow = 2048;

int sample_row(Input1<float> logits, double uniform, float temperature, size_t top_k, double top_p, double min_p,
               float repetition, float presence, float frequency, const Maybe<int32_t>& tokens, size_t n_prompt,
               const Maybe<int32_t>& biased, const Maybe<float>& bias, const Maybe<uint32_t>& mask) {
    const size_t n = logits.shape(0);
    check_row_length(n);
    const SamplerParams params{temperature, top_k, top_p, min_p, repetition, presence, frequency};
    check_params(params);
    const SamplerHistory history = history_of(n, tokens, n_prompt, biased, bias, mask);
    if (n <= kShortRow) return sample(logits.data(), n, params, history, uniform);
    Unlocked unlocked;
    return sample(logits.data(), n, params, history, uniform);
}

double log_probability_of(Input1<float> logits, size_t token) {
    if (token >= logits.shape(0)) fail("the token has no logit");
    Unlocked unlocked;
    return log_probability(logits.data(), logits.shape(0), token);
}

using ChainNumbers = std::tuple<float, size_t, double, double>;  // temperature, top-k, top-p, min-p
using Token = std::pair<int, double>;

SamplerParams params_of(const ChainNumbers& numbers) {
    SamplerParams params;
    std::tie(params.temperature, params.top_k, params.top_p, params.min_p) = numbers;
    check_params(params);
    return params;
}

std::vector<Token> draw_rows(const std::vector<Input1<float>>& rows, const ChainNumbers& numbers,
                             const std::vector<double>& uniforms, Decoder* decoder) {
    const size_t n = rows.empty() ? 1 : rows[0].shape(0);
    check_row_length(n);
    if (uniforms.size() != rows.size()) fail("a random number is needed for each row");
    std::vector<const float*> logits;
    for (const auto& row : rows) {
        if (row.shape(0) != n) fail("all rows must have the same length");
        logits.push_back(row.data());
    }
    const SamplerParams params = params_of(numbers);
    std::vector<Token> tokens;
    Unlocked unlocked;
    const Turn turn(pool_of(decoder));
    for (const Drawn& one : draw_each(logits, n, params, uniforms, pool_of(decoder))) {
        tokens.emplace_back(one.token, one.log_probability);
    }
    return tokens;
}

std::vector<int> sample_rows(Input2<float> rows, const std::vector<ChainNumbers>& numbers,
                             const std::vector<double>& uniforms, Decoder* decoder) {
    const size_t count = rows.shape(0), n = rows.shape(1);
    check_row_length(n);
    if (numbers.size() != count || uniforms.size() != count) fail("parameters and a random number are needed for each row");
    std::vector<const float*> logits;
    std::vector<SamplerParams> params;
    for (size_t i = 0; i < count; ++i) {
        logits.push_back(rows.data() + i * n);
        params.push_back(params_of(numbers[i]));
    }
    Unlocked unlocked;
    const Turn turn(pool_of(decoder));
    return sample_each(logits, n, params, uniforms, pool_of(decoder));
}

void call_hook(uintptr_t function, uintptr_t state, Row logits, Input1<int32_t> tokens) {
    if (!function) fail("a hook has no address");
    if (logits.shape(0) > kMostTokens || tokens.shape(0) > kMostTokens) fail("a row or a history is too long");
    Unlocked unlocked;
    Hook::at(function, state)(logits.data(), logits.shape(0), tokens.data(), tokens.shape(0));
}

}  // namespace

void check_row_length(size_t n) {
    if (n < 1) fail("logits must have at least one entry");
    if (n > kMostTokens) fail("logits must have at most 2^31 - 1 entries");
}

void check_params(const SamplerParams& params) {
    if (!(params.temperature >= 0.0f) || !(params.top_p > 0.0) || !(params.min_p >= 0.0) ||
        !(params.repetition > 0.0f)) {
        fail("a sampling parameter is out of range");
    }
}

SamplerHistory history_of(size_t n_vocab, const Maybe<int32_t>& tokens, size_t n_prompt, const Maybe<int32_t>& biased,
                          const Maybe<float>& bias, const Maybe<uint32_t>& mask) {
    const auto check = [n_vocab](const Input1<int32_t>& some, const char* what) {
        for (size_t i = 0; i < some.shape(0); ++i) {
            const int32_t token = some.data()[i];
            if (token < 0 || static_cast<size_t>(token) >= n_vocab) fail(std::string(what) + " out of range");
        }
    };
    SamplerHistory history;
    if (tokens) {
        check(*tokens, "tokens");
        history.tokens = tokens->data();
        history.n = tokens->shape(0);
        history.n_prompt = n_prompt;
    }
    if (biased.has_value() != bias.has_value() || (biased && biased->shape(0) != bias->shape(0))) {
        fail("as many biases as biased tokens are needed");
    }
    if (biased) {
        check(*biased, "biased tokens");
        history.biased = biased->data();
        history.bias = bias->data();
        history.n_bias = bias->shape(0);
    }
    if (mask) {
        if (mask->shape(0) < (n_vocab + 31) / 32) fail("the mask must have a bit for each of the logits");
        history.mask = mask->data();
    }
    return history;
}

void bind_sampler(nb::module_& m) {
    m.def("sample", &sample_row, nb::arg("logits").noconvert(), nb::arg("uniform"), nb::arg("temperature"),
          nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("repetition"), nb::arg("presence"),
          nb::arg("frequency"), nb::arg("tokens").noconvert() = nb::none(), nb::arg("n_prompt") = 0,
          nb::arg("biased").noconvert() = nb::none(), nb::arg("bias").noconvert() = nb::none(),
          nb::arg("mask").noconvert() = nb::none(),
          "A token drawn from a row, of those whose bits in the mask are set; or -1 (NaN), -2 (everything "
          "excluded), -3 (infinity).");
    m.def("log_probability", &log_probability_of, nb::arg("logits").noconvert(), nb::arg("token"),
          "The log-probability of a token in the distribution of a row of logits.");
    m.def("draw_rows", &draw_rows, nb::arg("rows").noconvert(), nb::arg("numbers"), nb::arg("uniforms"),
          nb::arg("decoder").none() = nb::none(),
          "Of each row a token, as `sample` draws it, and its log-probability. A decoder lends its threads; no pass may "
          "run meanwhile.");
    m.def("sample_rows", &sample_rows, nb::arg("rows").noconvert(), nb::arg("numbers"), nb::arg("uniforms"),
          nb::arg("decoder").none() = nb::none(),
          "Of each row a token, as `sample` draws it, with parameters of its own. A decoder lends its threads; no "
          "pass may run meanwhile.");
    m.def("call_hook", &call_hook, nb::arg("function"), nb::arg("state"), nb::arg("logits").noconvert(),
          nb::arg("tokens").noconvert(), "Call a native hook by its address, without the GIL.");
}

}  // namespace stretto
