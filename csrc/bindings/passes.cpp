// One forward pass from Python: any batch, a step of decoding, and the projections of pooled hidden states.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "bindings/adapter.h"
#include "bindings/decoder.h"
#include "bindings/sampler.h"

namespace stretto {

namespace {

// Logits, or final hidden states, of the wanted rows.
Array2<float> run(Decoder& decoder, const Input& input, bool hidden) {
    const size_t columns = hidden ? decoder.config().n_embd : decoder.config().n_vocab;
    std::unique_ptr<float[]> out(new float[input.wanted.size() * columns]);
    {
        Unlocked unlocked;
        decoder.forward(input, out.get(), hidden);
    }
    return give(std::move(out), input.wanted.size(), columns);
}

// A layer, a site, rows, [rows][width] of values that get them, and whether these go back changed.
using TapGiven = std::tuple<size_t, int, Input1<int32_t>, nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>, bool>;

void set_taps(const Config& config, const std::vector<TapGiven>& taps, Input& input) {
    for (const auto& [layer, site, rows, values, changes] : taps) {
        if (layer >= config.layers.size() || site < 0 || site >= kSites) fail("there is no such site");
        const size_t n = rows.shape(0), width = width_of(config.layers[layer], static_cast<Site>(site), config.n_embd);
        check_range(rows.data(), n, input.n, "tapped rows");
        if (!width || values.shape(0) != n || values.shape(1) != width) fail("the values of a site have another shape");
        input.taps.push_back({layer, static_cast<Site>(site), n, width, rows.data(), values.data(), changes});
    }
}

Array2<float> forward(Decoder& decoder, Input1<int32_t> tokens, Input1<int32_t> positions, Input1<int32_t> cells,
                      const std::vector<Input1<int32_t>>& views, Input1<int32_t> view_of, Input1<int32_t> lengths,
                      Input1<int32_t> table, Input1<int32_t> wanted, const nb::dict& vectors, bool hidden,
                      Input1<int32_t> probes, Input1<int32_t> watched, const nb::object& rotated,
                      const Maybe<int32_t>& slots, const Maybe<int32_t>& causal, const Maybe<int32_t>& types,
                      const AdapterScales& adapters, const std::vector<TapGiven>& taps,
                      const nb::object& change) {
    const Config& config = decoder.config();
    check_complete(decoder);
    Input input;
    input.n = tokens.shape(0);
    if (!input.n || positions.shape(0) != input.n || cells.shape(0) != input.n || view_of.shape(0) != input.n ||
        lengths.shape(0) != input.n || table.shape(0) != decoder.n_cells()) {
        fail("the arrays of a batch have different lengths");
    }
    check_range(tokens.data(), input.n, config.n_vocab, "tokens");
    check_range(positions.data(), input.n, kMost, "positions");
    check_range(cells.data(), input.n, decoder.n_cells(), "cells");
    check_range(view_of.data(), input.n, views.size(), "view_of");
    for (const auto& view : views) {
        check_range(view.data(), view.shape(0), decoder.n_cells(), "a view");
        input.views.push_back(view.data());
    }
    for (size_t i = 0; i < input.n; ++i) {
        const int32_t length = lengths.data()[i];
        if (length < 1 || static_cast<size_t>(length) > views[view_of.data()[i]].shape(0)) fail("lengths out of range");
    }
    if (causal) {
        if (causal->shape(0) != input.n) fail("the arrays of a batch have different lengths");
        for (size_t i = 0; i < input.n; ++i) {
            if (causal->data()[i] < 1 || causal->data()[i] > lengths.data()[i]) fail("causal lengths out of range");
        }
        input.causal = causal->data();
    }
    if (config.learned_positions) check_range(positions.data(), input.n, config.learned_positions, "positions");
    if (types && config.token_types) {
        if (types->shape(0) != input.n) fail("the arrays of a batch have different lengths");
        check_range(types->data(), input.n, config.token_types, "token types");
        input.types = types->data();
    }
    for (size_t i = 0; i < wanted.shape(0); ++i) {
        const int32_t row = wanted.data()[i];
        if (row < 0 || static_cast<size_t>(row) >= input.n || (i && row <= wanted.data()[i - 1])) {
            fail("wanted rows must be in the batch, in order, each once");
        }
        input.wanted.push_back(row);
    }
    std::vector<Input1<float>> held;
    if (vectors.size()) input.vectors.assign(input.n, nullptr);
    for (auto [key, value] : vectors) {
        const auto row = nb::cast<int64_t>(key);
        held.push_back(nb::cast<Input1<float>>(value));
        if (row < 0 || static_cast<size_t>(row) >= input.n || held.back().shape(0) != config.n_vector()) {
            fail("a vector does not fit the batch");
        }
        input.vectors[row] = held.back().data();
    }
    check_range(probes.data(), probes.shape(0), decoder.n_cells(), "probes");
    input.probes.assign(probes.data(), probes.data() + probes.shape(0));
    check_range(watched.data(), watched.shape(0), input.n, "watched rows");
    input.watched.assign(watched.data(), watched.data() + watched.shape(0));
    set_adapters(decoder, adapters, input);
    set_taps(config, taps, input);
    input.change = [&](size_t tap) {
        nb::gil_scoped_acquire acquire;
        change(tap);
    };
    input.tokens = tokens.data();
    input.positions = positions.data();
    input.cells = cells.data();
    input.view_of = view_of.data();
    input.lengths = lengths.data();
    std::vector<int32_t> whole;  // the lengths of whole views
    if (config.two_way()) {
        for (size_t i = 0; i < input.n; ++i) whole.push_back(static_cast<int32_t>(views[view_of.data()[i]].shape(0)));
        input.causal = causal ? input.causal : input.lengths;
        input.lengths = whole.data();
    }
    input.table = table.data();
    input.slots = slots_of(decoder, slots ? slots->data() : nullptr, slots ? slots->shape(0) : 0, input.n);
    Input2<int32_t> turned;
    if (!rotated.is_none()) {
        turned = nb::cast<Input2<int32_t>>(rotated);
        if (turned.shape(0) != input.n || turned.shape(1) != 3) fail("three rotated positions a row are needed");
        check_range(turned.data(), 3 * input.n, kMost, "rotated positions");
        input.rotated = turned.data();
    }
    return run(decoder, input, hidden);
}

// A step of decoding: row i is a token that sees the first lengths[i] entries of a view of its own; all rows
// get logits. Views may be longer than what they hold.
Array2<float> decode(Decoder& decoder, const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                     const std::vector<int32_t>& cells, const std::vector<Input1<int32_t>>& views,
                     const std::vector<int32_t>& lengths, Input1<int32_t> table, const std::vector<int32_t>& slots,
                     const AdapterScales& adapters) {
    check_complete(decoder);
    check_causal(decoder);
    Input input;
    input.n = tokens.size();
    if (!input.n || positions.size() != input.n || cells.size() != input.n || views.size() != input.n ||
        lengths.size() != input.n || table.shape(0) != decoder.n_cells()) {
        fail("the lists of a step have different lengths");
    }
    check_range(tokens.data(), input.n, decoder.config().n_vocab, "tokens");
    const size_t n_learned = decoder.config().learned_positions;
    check_range(positions.data(), input.n, n_learned ? n_learned : kMost, "positions");
    check_range(cells.data(), input.n, decoder.n_cells(), "cells");
    input.wanted.resize(input.n);
    std::iota(input.wanted.begin(), input.wanted.end(), 0);
    const std::vector<int32_t> view_of(input.wanted.begin(), input.wanted.end());
    for (size_t i = 0; i < input.n; ++i) {
        if (lengths[i] < 1 || static_cast<size_t>(lengths[i]) > views[i].shape(0)) fail("lengths out of range");
        check_range(views[i].data(), static_cast<size_t>(lengths[i]), decoder.n_cells(), "a view");
        input.views.push_back(views[i].data());
    }
    input.tokens = tokens.data();
    input.positions = positions.data();
    input.cells = cells.data();
    input.view_of = view_of.data();
    input.lengths = lengths.data();
    input.table = table.data();
    input.slots = slots_of(decoder, slots.data(), slots.size(), input.n);
    set_adapters(decoder, adapters, input);
    return run(decoder, input, false);
}

// Pooled hidden states times one of the model's projections.
Array2<float> project(Decoder& decoder, const std::string& name, Input2<float> rows) {
    check_complete(decoder);
    const std::vector<ProjectionConfig>& all = decoder.config().projections;
    const auto at = std::find_if(all.begin(), all.end(), [&](const ProjectionConfig& p) { return p.name == name; });
    if (at == all.end()) fail("the model has no projection " + name);
    const size_t n = rows.shape(0);
    if (rows.shape(1) != at->columns) fail("rows of " + std::to_string(at->columns) + " numbers are needed");
    std::unique_ptr<float[]> out(new float[n * at->rows]);
    {
        Unlocked unlocked;
        decoder.project(static_cast<size_t>(at - all.begin()), rows.data(), n, out.get());
    }
    return give(std::move(out), n, at->rows);
}

Array1<float> copy_of(const std::vector<float>& numbers) {
    float* copy = new float[numbers.size()];
    std::copy(numbers.begin(), numbers.end(), copy);
    return Array1<float>(copy, {numbers.size()}, owner_of(copy));
}

}  // namespace

void bind_passes(DecoderClass& decoder) {
    decoder
        .def("forward", &forward, nb::arg("tokens").noconvert(), nb::arg("positions").noconvert(),
             nb::arg("cells").noconvert(), nb::arg("views"), nb::arg("view_of").noconvert(),
             nb::arg("lengths").noconvert(), nb::arg("table").noconvert(), nb::arg("wanted").noconvert(),
             nb::arg("vectors"), nb::arg("hidden"), nb::arg("probes").noconvert(), nb::arg("watched").noconvert(),
             nb::arg("rotated").none() = nb::none(), nb::arg("slots").noconvert() = nb::none(),
             nb::arg("causal").noconvert() = nb::none(), nb::arg("types").noconvert() = nb::none(),
             nb::arg("adapters") = AdapterScales(), nb::arg("taps") = std::vector<TapGiven>(),
             nb::arg("change").none() = nb::none())
        .def("project", &project, nb::arg("name"), nb::arg("rows").noconvert())
        .def("decode", &decode, nb::arg("tokens"), nb::arg("positions"), nb::arg("cells"), nb::arg("views"),
             nb::arg("lengths"), nb::arg("table").noconvert(), nb::arg("slots") = std::vector<int32_t>(),
             nb::arg("adapters") = AdapterScales())
        .def("received", [](const Decoder& decoder) { return copy_of(decoder.received()); })
        .def("watched", [](const Decoder& decoder) { return copy_of(decoder.watched()); });
}

}  // namespace stretto
