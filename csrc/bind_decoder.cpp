// The decoder as a Python class.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <numeric>

#include "bind_adapter.h"
#include "bind_config.h"
#include "bind_sampler.h"
#include "decoder.h"
#include "formats.h"
#include "loop.h"

namespace stretto {

namespace {

constexpr size_t kMost = size_t{1} << 31;

// The tensors that the model needs, by name: (rows, columns) of a matrix, (size, 0) of a vector.
nb::list tensors(Decoder& decoder) {
    nb::list found;
    for (const std::string& name : decoder.tensors().names()) {
        const Tensors::Entry* entry = decoder.tensors().find(name);
        found.append(nb::make_tuple(name, entry->rows, entry->columns));
    }
    return found;
}

void set_unpacked(Decoder& decoder, const std::string& name, int code, size_t rows, size_t columns,
                  Input1<uint8_t> data) {
    check_matrix(code, rows, columns, rows, data.shape(0));
    decoder.set_unpacked(name, code, rows, columns, data.data());
}

void pack_rows(Decoder& decoder, const std::string& name, int code, size_t rows, size_t columns,
               Input1<uint8_t> data, size_t count) {
    check_matrix(code, rows, columns, count, data.shape(0));
    Unlocked unlocked;
    decoder.pack_rows(name, code, rows, columns, data.data(), count);
}

void set_packed(Decoder& decoder, const std::string& name, int code, size_t rows, size_t columns,
                Input1<uint8_t> data) {
    const Format* format = find_format(code);
    if (!format || rows < 1 || columns < 1 || rows > kMost || columns > kMost || columns % format->block) {
        fail("no such matrix of weights");
    }
    decoder.set_packed(name, code, rows, columns, data.data(), data.shape(0));
}

// A view of a packed matrix, for as long as the decoder is there.
Array1<const uint8_t> packed(nb::object self, const std::string& name) {
    const auto [data, bytes] = nb::cast<Decoder&>(self).packed(name);
    return Array1<const uint8_t>(data, {bytes}, self);
}

void check_range(const int32_t* values, size_t n, int64_t end, const char* what) {
    int32_t least = 0, most = -1;
    for (size_t i = 0; i < n; ++i) {
        least = std::min(least, values[i]);
        most = std::max(most, values[i]);
    }
    if (least < 0 || most >= end) fail(std::string(what) + " out of range");
}

void check_causal(const Decoder& decoder) {
    if (decoder.config().two_way()) fail("a model that attends in both directions cannot go on from its cells");
}

void check_complete(Decoder& decoder) {
    if (!decoder.complete()) fail("the model is incomplete: " + decoder.tensors().missing());
}

// The slots of a batch's rows, if the model has recurrent layers.
const int32_t* slots_of(const Decoder& decoder, const int32_t* slots, size_t n, size_t rows) {
    if (!decoder.slot_bytes()) return nullptr;
    if (n != rows) fail("the model has recurrent layers: a slot for each row is needed");
    check_range(slots, n, decoder.n_slots(), "slots");
    return slots;
}

// Logits, or final hidden states, of the wanted rows.
Array2<float> run(Decoder& decoder, const Input& input, bool hidden) {
    const size_t columns = hidden ? decoder.config().n_embd : decoder.config().n_vocab;
    std::unique_ptr<float[]> out(new float[input.wanted.size() * columns]);
    {
        Unlocked unlocked;
        decoder.forward(input, out.get(), hidden);
    }
    float* raw = out.release();
    return Array2<float>(raw, {input.wanted.size(), columns}, owner_of(raw));
}

Array2<float> forward(Decoder& decoder, Input1<int32_t> tokens, Input1<int32_t> positions, Input1<int32_t> cells,
                      const std::vector<Input1<int32_t>>& views, Input1<int32_t> view_of, Input1<int32_t> lengths,
                      Input1<int32_t> table, Input1<int32_t> wanted, const nb::dict& vectors, bool hidden,
                      Input1<int32_t> probes, Input1<int32_t> watched, const nb::object& rotated,
                      const Maybe<int32_t>& slots, const Maybe<int32_t>& causal, const Maybe<int32_t>& types,
                      const AdapterScales& adapters, const std::vector<size_t>& kept,
                      const Maybe<float>& states) {
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
        if (row < 0 || static_cast<size_t>(row) >= input.n || held.back().shape(0) != config.n_embd * (1 + config.deepstack)) {
            fail("a vector does not fit the batch");
        }
        input.vectors[row] = held.back().data();
    }
    check_range(probes.data(), probes.shape(0), decoder.n_cells(), "probes");
    input.probes.assign(probes.data(), probes.data() + probes.shape(0));
    check_range(watched.data(), watched.shape(0), input.n, "watched rows");
    input.watched.assign(watched.data(), watched.data() + watched.shape(0));
    set_adapters(decoder, adapters, input);
    for (const size_t layer : kept) {
        if (layer >= config.layers.size()) fail("there is no such layer");
    }
    if (!kept.empty()) {
        if (!states || states->shape(0) != kept.size() * input.n * config.n_embd) fail("states have another size");
        input.kept = kept;
        input.states = const_cast<float*>(states->data());
    }
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
    check_range(positions.data(), input.n, kMost, "positions");
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
    float* raw = out.release();
    return Array2<float>(raw, {n, at->rows}, owner_of(raw));
}

Array1<float> copy_of(const std::vector<float>& numbers) {
    float* copy = new float[numbers.size()];
    std::copy(numbers.begin(), numbers.end(), copy);
    return Array1<float>(copy, {numbers.size()}, owner_of(copy));
}

// A guide in Python: guide(token, room) -> (tokens that have to follow, does anything come then). It changes the
// mask, which it holds, in place.
Guide guide_of(const nb::object& function, size_t n_vocab) {
    if (function.is_none()) return nullptr;
    return [function = function.ptr(), n_vocab](int32_t token, size_t room, std::vector<int32_t>& more) {
        nb::gil_scoped_acquire acquire;
        const auto [follow, goes_on] =
            nb::cast<std::pair<std::vector<int32_t>, bool>>(nb::borrow(function)(token, room));
        if (follow.size() > room) fail("a guide gave more tokens than there is room for");
        check_range(follow.data(), follow.size(), n_vocab, "what a guide gave");
        more = follow;
        return goes_on;
    };
}

// (tokens, logits after them, code of the sampler's error or 0, how many of the tokens have been run, draws so far,
// seconds in the sampler)
nb::tuple loop(Decoder& decoder, Input1<float> logits, Input1<int32_t> cells, int32_t position, Input1<int32_t> view,
               size_t n_view, Input1<int32_t> table, const nb::tuple& sampling, const Maybe<int32_t>& tokens,
               size_t n_prompt, const Maybe<int32_t>& biased, const Maybe<float>& bias, uint64_t seed, uint64_t index,
               uint64_t draws, std::vector<int32_t> ends,
               const std::vector<std::pair<uintptr_t, uintptr_t>>& hooks, const Maybe<uint32_t>& mask,
               const nb::object& guide, const Maybe<uint8_t>& interrupt, int32_t slot,
               const std::vector<std::pair<int, float>>& adapters) {
    check_complete(decoder);
    check_causal(decoder);
    const size_t n_vocab = decoder.config().n_vocab;
    Loop loop;
    loop.most = cells.shape(0);
    if (logits.shape(0) != n_vocab || !loop.most || n_view <= loop.most || view.shape(0) < n_view ||
        table.shape(0) != decoder.n_cells() || position < 0 || sampling.size() != 7) {
        fail("the arrays of a loop do not fit together");
    }
    check_range(cells.data(), loop.most, decoder.n_cells(), "cells");
    check_range(view.data(), n_view, decoder.n_cells(), "the view");
    for (const auto& [number, scale] : adapters) loop.adapters.emplace_back(adapter_of(decoder, number), scale);
    loop.slot = slots_of(decoder, &slot, 1, 1) ? slot : -1;
    loop.logits = logits.data();
    loop.cells = cells.data();
    loop.position = position;
    loop.view = view.data();
    loop.length = n_view - loop.most;
    loop.table = table.data();
    loop.params.temperature = nb::cast<float>(sampling[0]);
    loop.params.top_k = nb::cast<size_t>(sampling[1]);
    loop.params.top_p = nb::cast<double>(sampling[2]);
    loop.params.min_p = nb::cast<double>(sampling[3]);
    loop.params.repetition = nb::cast<float>(sampling[4]);
    loop.params.presence = nb::cast<float>(sampling[5]);
    loop.params.frequency = nb::cast<float>(sampling[6]);
    check_params(loop.params);
    loop.history = history_of(n_vocab, tokens, n_prompt, biased, bias, mask);
    loop.seed = seed;
    loop.index = index;
    loop.draws = draws;
    loop.ends = std::move(ends);
    for (const auto& [function, state] : hooks) {
        if (!function) fail("a hook has no address");
        loop.hooks.push_back(Hook::at(function, state));
    }
    loop.guide = guide_of(guide, n_vocab);
    if (interrupt) {
        if (!interrupt->shape(0)) fail("interrupt must have an entry");
        loop.interrupt = interrupt->data();
    }
    std::unique_ptr<float[]> out(new float[n_vocab]());
    {
        Unlocked unlocked;
        run_loop(decoder, loop, out.get());
    }
    float* raw = out.release();
    return nb::make_tuple(loop.tokens, Array1<float>(raw, {n_vocab}, owner_of(raw)), loop.error,
                          loop.n_run, loop.draws, loop.sampling);
}

void copy_cells(Decoder& decoder, Input1<int32_t> source, Input1<int32_t> target) {
    if (source.shape(0) != target.shape(0)) fail("as many targets as sources are needed");
    check_range(source.data(), source.shape(0), decoder.n_cells(), "source");
    check_range(target.data(), target.shape(0), decoder.n_cells(), "target");
    Unlocked unlocked;
    decoder.copy_cells(source.data(), target.data(), source.shape(0));
}

void rotate_cells(Decoder& decoder, Input1<int32_t> cells, int delta) {
    check_complete(decoder);
    check_range(cells.data(), cells.shape(0), decoder.n_cells(), "cells");
    Unlocked unlocked;
    decoder.rotate_cells(cells.data(), cells.shape(0), delta);
}

Array2<uint8_t> read_cells(const Decoder& decoder, Input1<int32_t> cells) {
    const size_t n = cells.shape(0), bytes = decoder.cell_bytes();
    if (n > decoder.n_cells()) fail("more cells are asked for than there are");  // so that no size can overflow
    check_range(cells.data(), n, decoder.n_cells(), "cells");
    std::unique_ptr<uint8_t[]> out(new uint8_t[n * bytes]);
    {
        Unlocked unlocked;
        decoder.read_cells(cells.data(), n, out.get());
    }
    uint8_t* raw = out.release();
    return Array2<uint8_t>(raw, {n, bytes}, owner_of(raw));
}

void write_cells(Decoder& decoder, Input1<int32_t> cells, Input2<uint8_t> data) {
    const size_t n = cells.shape(0);
    if (data.shape(0) != n || data.shape(1) != decoder.cell_bytes()) {
        fail("data must be " + std::to_string(n) + " rows of " + std::to_string(decoder.cell_bytes()) + " bytes");
    }
    check_range(cells.data(), n, decoder.n_cells(), "cells");
    Unlocked unlocked;
    decoder.write_cells(cells.data(), n, data.data());
}

void copy_slots(Decoder& decoder, Input1<int32_t> source, Input1<int32_t> target) {
    if (source.shape(0) != target.shape(0)) fail("as many targets as sources are needed");
    check_range(source.data(), source.shape(0), decoder.n_slots(), "source");
    check_range(target.data(), target.shape(0), decoder.n_slots(), "target");
    for (size_t i = 0; i < source.shape(0); ++i) {
        if (source.data()[i] == target.data()[i]) fail("a slot cannot be copied to itself");
    }
    Unlocked unlocked;
    decoder.copy_slots(source.data(), target.data(), source.shape(0));
}

void clear_slots(Decoder& decoder, Input1<int32_t> slots) {
    check_range(slots.data(), slots.shape(0), decoder.n_slots(), "slots");
    Unlocked unlocked;
    decoder.clear_slots(slots.data(), slots.shape(0));
}

Array2<uint8_t> read_slots(const Decoder& decoder, Input1<int32_t> slots) {
    const size_t n = slots.shape(0), bytes = decoder.slot_bytes();
    if (n > decoder.n_slots()) fail("more slots are asked for than there are");  // so that no size can overflow
    check_range(slots.data(), n, decoder.n_slots(), "slots");
    std::unique_ptr<uint8_t[]> out(new uint8_t[n * bytes]);
    {
        Unlocked unlocked;
        decoder.read_slots(slots.data(), n, out.get());
    }
    uint8_t* raw = out.release();
    return Array2<uint8_t>(raw, {n, bytes}, owner_of(raw));
}

void write_slots(Decoder& decoder, Input1<int32_t> slots, Input2<uint8_t> data) {
    const size_t n = slots.shape(0);
    if (data.shape(0) != n || data.shape(1) != decoder.slot_bytes()) {
        fail("data must be " + std::to_string(n) + " rows of " + std::to_string(decoder.slot_bytes()) + " bytes");
    }
    check_range(slots.data(), n, decoder.n_slots(), "slots");
    Unlocked unlocked;
    decoder.write_slots(slots.data(), n, data.data());
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const char* name : kKernelNames) {
        if (kernels_named(name)) names.emplace_back(name);
    }
    return names;
}

// Of each matrix that multiplied something since `collect`: its name, the sums of squares of its inputs, how many there were.
nb::list collected(Decoder& decoder) {
    nb::list list;
    for (const std::string& name : decoder.tensors().names()) {
        const Matrix* matrix = decoder.tensors().find(name)->matrix;
        const Collector::Sums* sums = matrix && decoder.collector() ? decoder.collector()->find(*matrix) : nullptr;
        if (!sums) continue;
        auto* squares = new double[sums->squares.size()];
        std::copy(sums->squares.begin(), sums->squares.end(), squares);
        list.append(nb::make_tuple(name, Array1<double>(squares, {sums->squares.size()}, owner_of(squares)), sums->rows));
    }
    return list;
}

}  // namespace

void bind_decoder(nb::module_& m) {
    m.attr("packed_version") = kPackedVersion;
    m.def("kernels", [] { return std::string(best_kernels()->name); }, "The kernel set that is used by default.");
    m.def("uniform", &uniform, nb::arg("seed"), nb::arg("index"), nb::arg("draw"),
          "Number `draw` of a request's random stream.");
    m.def("kernel_names", &kernel_names, "The kernel sets that this machine can run, the best first.");
    m.def("check_spec", [](const nb::dict& spec) { config_of(spec); }, nb::arg("spec"),
          "Raises ValueError for a spec that a decoder cannot run.");
    nb::class_<Decoder>(m, "Decoder", "A model that is ready to run.")
        .def("__init__",
             [](Decoder* self, const nb::dict& spec, size_t n_cells, const std::string& kv, int threads,
                const std::string& kernels, const std::string& precision, size_t n_slots) {
                 const Kernels* table = kernels.empty() ? best_kernels() : kernels_named(kernels.c_str());
                 if (!table) fail("this machine cannot run the kernels '" + kernels + "'");
                 if (threads < 1 || threads > 1024) fail("threads must be from 1 to 1024");
                 if (n_cells < 1 || n_cells > kMost) fail("n_cells is out of range");
                 if (kv != "f16" && kv != "q8" && kv != "f32") fail("kv must be 'f16', 'q8' or 'f32'");
                 const CacheType type =
                     kv == "q8" ? CacheType::kQ8 : kv == "f32" ? CacheType::kFloat : CacheType::kHalf;
                 if (n_slots > kMost) fail("n_slots is out of range");
                 new (self) Decoder(config_of(spec), n_cells, type, precision_named(precision), threads, table, n_slots);
             },
             nb::arg("spec"), nb::arg("n_cells"), nb::arg("kv"), nb::arg("threads"), nb::arg("kernels"),
             nb::arg("precision") = "standard", nb::arg("n_slots") = 0)
        .def("tensors", &tensors)
        .def("set_unpacked", &set_unpacked, nb::arg("name"), nb::arg("code"), nb::arg("rows"), nb::arg("columns"),
             nb::arg("data").noconvert(), nb::keep_alive<1, 6>())
        .def("pack_rows", &pack_rows, nb::arg("name"), nb::arg("code"), nb::arg("rows"), nb::arg("columns"),
             nb::arg("data").noconvert(), nb::arg("count"))
        .def("set_packed", &set_packed, nb::arg("name"), nb::arg("code"), nb::arg("rows"), nb::arg("columns"),
             nb::arg("data").noconvert(), nb::keep_alive<1, 6>())
        .def("packed", &packed, nb::arg("name"))
        .def("set_vector",
             [](Decoder& decoder, const std::string& name, Input1<float> data) {
                 decoder.set_vector(name, data.data(), data.shape(0));
             },
             nb::arg("name"), nb::arg("data").noconvert())
        .def("forward", &forward, nb::arg("tokens").noconvert(), nb::arg("positions").noconvert(),
             nb::arg("cells").noconvert(), nb::arg("views"), nb::arg("view_of").noconvert(),
             nb::arg("lengths").noconvert(), nb::arg("table").noconvert(), nb::arg("wanted").noconvert(),
             nb::arg("vectors"), nb::arg("hidden"), nb::arg("probes").noconvert(), nb::arg("watched").noconvert(),
             nb::arg("rotated").none() = nb::none(), nb::arg("slots").noconvert() = nb::none(),
             nb::arg("causal").noconvert() = nb::none(), nb::arg("types").noconvert() = nb::none(),
             nb::arg("adapters") = AdapterScales(), nb::arg("kept") = std::vector<size_t>(),
             nb::arg("states").noconvert() = nb::none())
        .def("project", &project, nb::arg("name"), nb::arg("rows").noconvert())
        .def("decode", &decode, nb::arg("tokens"), nb::arg("positions"), nb::arg("cells"), nb::arg("views"),
             nb::arg("lengths"), nb::arg("table").noconvert(), nb::arg("slots") = std::vector<int32_t>(),
             nb::arg("adapters") = AdapterScales())
        .def("received", [](const Decoder& decoder) { return copy_of(decoder.received()); })
        .def("watched", [](const Decoder& decoder) { return copy_of(decoder.watched()); })
        .def("collect", &Decoder::collect, nb::arg("wanted"))
        .def("collected", &collected)
        .def("loop", &loop, nb::arg("logits").noconvert(), nb::arg("cells").noconvert(), nb::arg("position"),
             nb::arg("view").noconvert(), nb::arg("n_view"), nb::arg("table").noconvert(), nb::arg("sampling"),
             nb::arg("tokens").noconvert(), nb::arg("n_prompt"), nb::arg("biased").noconvert(),
             nb::arg("bias").noconvert(), nb::arg("seed"), nb::arg("index"), nb::arg("draws"), nb::arg("ends"),
             nb::arg("hooks"), nb::arg("mask").noconvert(), nb::arg("guide").none(),
             nb::arg("interrupt").noconvert() = nb::none(), nb::arg("slot") = -1,
             nb::arg("adapters") = std::vector<std::pair<int, float>>())
        .def("add_change", &add_change, nb::arg("adapter"), nb::arg("name"), nb::arg("rank"), nb::arg("scale"),
             nb::arg("a_code"), nb::arg("a").noconvert(), nb::arg("b_code"), nb::arg("b").noconvert())
        .def("add_vector", &add_vector, nb::arg("adapter"), nb::arg("layer"), nb::arg("vector").noconvert())
        .def("remove_adapter", &Decoder::remove_adapter, nb::arg("adapter"))
        .def("copy_cells", &copy_cells, nb::arg("source").noconvert(), nb::arg("target").noconvert())
        .def("rotate_cells", &rotate_cells, nb::arg("cells").noconvert(), nb::arg("delta"))
        .def("read_cells", &read_cells, nb::arg("cells").noconvert())
        .def("write_cells", &write_cells, nb::arg("cells").noconvert(), nb::arg("data").noconvert())
        .def("copy_slots", &copy_slots, nb::arg("source").noconvert(), nb::arg("target").noconvert())
        .def("clear_slots", &clear_slots, nb::arg("slots").noconvert())
        .def("read_slots", &read_slots, nb::arg("slots").noconvert())
        .def("write_slots", &write_slots, nb::arg("slots").noconvert(), nb::arg("data").noconvert())
        .def_prop_ro("n_slots", &Decoder::n_slots)
        .def_prop_ro("slot_bytes", &Decoder::slot_bytes)
        .def_prop_ro("kernels", [](const Decoder& decoder) { return std::string(decoder.kernels().name); })
        .def_prop_ro("threads", &Decoder::threads)
        .def_prop_ro("active_threads", &Decoder::active_threads)
        .def_prop_ro("weight_bytes", &Decoder::weight_bytes)
        .def_prop_ro("cache_bytes", &Decoder::cache_bytes)
        .def_prop_ro("cell_bytes", &Decoder::cell_bytes);
}

}  // namespace stretto
