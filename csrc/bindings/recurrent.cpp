// The recurrent layers of the decoder, in `_native.ops`: what the tests compare with numpy.
//
// Each gets a state and gives the one after its rows. `parts` is into how many shares channels and heads are cut, as
// threads cut them.

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "model/recurrent.h"

namespace stretto {

namespace {

using FloatRows = Input2<float>;
using Vector = Input1<float>;
using Result = std::tuple<Array2<float>, Array1<float>>;  // the rows, and the state after them

void check(bool holds, const char* what) {
    if (!holds) fail(std::string("the shapes do not fit: ") + what);
}

Columns<const float> columns(const FloatRows& x) { return {x.data(), x.shape(1)}; }

// Calls f(begin, end) for the shares of `count`.
template <typename F>
void each_part(size_t count, size_t parts, F f) {
    check(parts > 0, "parts");
    for (size_t i = 0; i < parts; ++i) {
        const size_t begin = count * i / parts, end = count * (i + 1) / parts;
        if (begin < end) f(begin, end);
    }
}

// Rows and state to be changed, with room for one array each.
struct Made {
    size_t n, width;
    std::unique_ptr<float[]> rows, state;
    size_t state_size;

    Made(size_t n_rows, size_t columns, const Vector& before, size_t state_floats)
        : n(n_rows), width(columns), rows(new float[n_rows * columns]()), state(new float[state_floats]),
          state_size(state_floats) {
        check(before.shape(0) == state_floats, "state");
        std::copy_n(before.data(), state_floats, state.get());
    }
    Columns<float> out() { return {rows.get(), width}; }
    Result result() { return {give(std::move(rows), n, width), give(std::move(state), state_size)}; }
};

ConvolutionWeights convolution(const FloatRows& taps, const Vector& bias) {
    const size_t kernel = taps.shape(0), channels = taps.shape(1);
    check(kernel >= 2 && channels > 0, "taps");
    check(bias.shape(0) == 0 || bias.shape(0) == channels, "bias");
    return {kernel, channels, taps.data(), bias.shape(0) ? bias.data() : nullptr};
}

Result convolve_rows(FloatRows x, FloatRows taps, Vector bias, Vector history, size_t parts, const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    const ConvolutionWeights w = convolution(taps, bias);
    check(x.shape(1) == w.channels, "x");
    Made made(x.shape(0), w.channels, history, w.state_floats());
    std::copy_n(x.data(), x.shape(0) * w.channels, made.rows.get());
    each_part(w.channels, parts, [&](size_t begin, size_t end) {
        convolve(kernel, w, {x.shape(0)}, made.out(), made.state.get(), begin, end);
    });
    return made.result();
}

Result convolve_gated_rows(FloatRows bcx, FloatRows taps, Vector history, size_t parts, const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    const ConvolutionWeights w{taps.shape(0), taps.shape(1), taps.data(), nullptr};
    check(w.kernel >= 2 && bcx.shape(1) == 3 * w.channels, "bcx");
    Made made(bcx.shape(0), w.channels, history, w.state_floats());
    each_part(w.channels, parts, [&](size_t begin, size_t end) {
        convolve_gated(kernel, w, {bcx.shape(0)}, columns(bcx), made.out(), made.state.get(), begin, end);
    });
    return made.result();
}

// `alpha` is empty where beta has both.
Result delta_net(FloatRows qkv, FloatRows gate, FloatRows beta, FloatRows alpha, Vector a, Vector dt_bias, Vector norm, float eps,
                 size_t n_key_head, bool tiled, Vector state, size_t parts, const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    DeltaNetWeights w{n_key_head, a.shape(0), 0, norm.shape(0), tiled, alpha.shape(1) == 0, a.data(), dt_bias.data(),
                      norm.data(), eps};
    const size_t n = qkv.shape(0), inner = w.n_value_head * w.value_size;
    check(n_key_head && w.n_value_head && w.n_value_head % n_key_head == 0, "heads");
    check(qkv.shape(1) > inner && (qkv.shape(1) - inner) % (2 * n_key_head) == 0, "qkv");
    w.key_size = (qkv.shape(1) - inner) / (2 * n_key_head);
    check(gate.shape(0) == n && gate.shape(1) == inner, "gate");
    check(beta.shape(0) == n && beta.shape(1) == (w.fused ? 2 : 1) * w.n_value_head, "beta");
    check(alpha.shape(0) == n && (w.fused || alpha.shape(1) == w.n_value_head), "alpha");
    check(dt_bias.shape(0) == w.n_value_head && w.value_size > 0, "weights");
    Made made(n, inner, state, w.state_floats());
    const DeltaNetRows rows{{n}, columns(qkv), columns(gate), columns(beta), columns(alpha), made.out()};
    std::vector<float> scratch(w.scratch_floats());
    each_part(w.n_value_head, parts, [&](size_t begin, size_t end) {
        correct_heads(kernel, w, rows, made.state.get(), scratch.data(), begin, end);
    });
    return made.result();
}

Result mamba2(FloatRows projected, Vector a, Vector d, Vector dt_bias, Vector norm, float eps, size_t head_size,
              size_t n_group, size_t state_size, Vector state, size_t parts, const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    const Mamba2Weights w{a.shape(0), head_size, n_group, state_size, a.data(), d.data(), dt_bias.data(),
                          norm.shape(0) ? norm.data() : nullptr, eps};
    const size_t n = projected.shape(0);
    check(w.n_head && n_group && w.n_head % n_group == 0 && head_size && state_size, "heads");
    check(d.shape(0) == w.n_head && dt_bias.shape(0) == w.n_head, "weights");
    check(!w.norm || norm.shape(0) == w.inner(), "norm");
    check(projected.shape(1) == w.projected(), "projected");
    Made made(n, w.inner(), state, w.state_floats());
    const Mamba2Rows rows{{n}, columns(projected), made.out()};
    each_part(w.n_head, parts, [&](size_t begin, size_t end) {
        scan_heads(kernel, w, rows, made.state.get(), begin, end);
    });
    std::vector<float> scratch(w.inner() / n_group);
    each_part(n_group, parts, [&](size_t begin, size_t end) {
        gate_groups(kernel, w, rows, scratch.data(), begin, end);
    });
    return made.result();
}

// `given` has in each row receptance, key, value, what decays and rates are made of; then, if there are such, what the share
// of the first layer's values is made of, and these; then a gate. `vectors` are w0, a0, v0, k_k, k_a, r_k, and those of a norm.
Result time_mix(FloatRows given, FloatRows vectors, float eps, size_t head_size, Vector state, size_t parts,
                const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    const size_t n = given.shape(0), width = vectors.shape(1), pieces = width ? given.shape(1) / width : 0;
    check(head_size && width && width % head_size == 0, "heads");
    check(pieces >= 5 && pieces <= 8 && given.shape(1) == pieces * width, "given");
    check(vectors.shape(0) == 6 || vectors.shape(0) == 8, "vectors");
    const auto vector = [&](size_t i) { return i < vectors.shape(0) ? vectors.data() + i * width : nullptr; };
    const auto part = [&](size_t i) { return Columns<const float>{given.data() + i * width, given.shape(1)}; };
    const TimeMixWeights w{width / head_size, head_size, vector(0), vector(1), vector(2), vector(3), vector(4), vector(5),
                           vector(6), vector(7), eps};
    Made made(n, width, state, w.state_floats());
    std::vector<float> values(n * width), scratch(w.scratch_floats());
    for (size_t row = 0; row < n; ++row) std::copy_n(part(2).row(row), width, values.data() + row * width);
    const bool shares = pieces >= 7, gated = pieces % 2 == 0;
    const Columns<const float> none{nullptr, 0};
    const TimeMixRows rows{{n}, part(0), part(1), part(3), part(4), {values.data(), width}, shares ? part(5) : none,
                           shares ? part(6) : none, gated ? part(pieces - 1) : none, made.out()};
    each_part(w.n_head, parts, [&](size_t begin, size_t end) {
        advance_heads(kernel, w, rows, made.state.get(), scratch.data(), begin, end);
    });
    return made.result();
}

}  // namespace

void bind_recurrent(nb::module_& ops) {
    const auto parts = nb::arg("parts") = 1;
    const auto kernels = nb::arg("kernels") = "";
    ops.def("convolve", &convolve_rows, nb::arg("x").noconvert(), nb::arg("taps").noconvert(),
            nb::arg("bias").noconvert(), nb::arg("history").noconvert(), parts, kernels,
            "silu of a causal convolution, and the inputs that the next row needs.");
    ops.def("convolve_gated", &convolve_gated_rows, nb::arg("bcx").noconvert(), nb::arg("taps").noconvert(),
            nb::arg("history").noconvert(), parts, kernels, "c × convolution(b × x), and the inputs the next row needs.");
    ops.def("delta_net", &delta_net, nb::arg("qkv").noconvert(), nb::arg("gate").noconvert(),
            nb::arg("beta").noconvert(), nb::arg("alpha").noconvert(), nb::arg("a").noconvert(),
            nb::arg("dt_bias").noconvert(), nb::arg("norm").noconvert(), nb::arg("eps"), nb::arg("n_key_head"),
            nb::arg("tiled"), nb::arg("state").noconvert(), parts, kernels,
            "A gated delta net after its convolution, and its state.");
    ops.def("mamba2", &mamba2, nb::arg("projected").noconvert(), nb::arg("a").noconvert(), nb::arg("d").noconvert(),
            nb::arg("dt_bias").noconvert(), nb::arg("norm").noconvert(), nb::arg("eps"), nb::arg("head_size"),
            nb::arg("n_group"), nb::arg("state_size"), nb::arg("state").noconvert(), parts, kernels,
            "A Mamba-2 layer after its convolution, and its state.");
    ops.def("time_mix", &time_mix, nb::arg("given").noconvert(), nb::arg("vectors").noconvert(), nb::arg("eps"),
            nb::arg("head_size"), nb::arg("state").noconvert(), parts, kernels,
            "RWKV 7's time mixing between its matrices, and its state.");
}

}  // namespace stretto
