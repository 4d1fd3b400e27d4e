// The decoder as a Python class: its weights, and what it says about itself. What it runs is in passes.cpp and
// loop.cpp, its cells and slots are in cells.cpp.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/adapter.h"
#include "bindings/config.h"
#include "bindings/decoder.h"
#include "hardware/probe.h"
#include "model/loop.h"
#include "weights/formats.h"

namespace stretto {

namespace {

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

// Packs what was deferred, and lets go of the arrays that held it.
void pack_deferred(Decoder& decoder, const Input1<uint8_t>& stop) {
    if (!stop.shape(0)) fail("stop must have an entry");
    const uint8_t* const wanted = stop.data();
    {
        Unlocked unlocked;
        decoder.pack_deferred([wanted] { return __atomic_load_n(wanted, __ATOMIC_RELAXED) || is_finishing(); });
    }
    decoder.release();
}

void defer(Decoder& decoder, const std::string& name, int code, size_t rows, size_t columns, Input1<uint8_t> data) {
    check_matrix(code, rows, columns, rows, data.shape(0));
    decoder.defer(name, code, rows, columns, data.data(), std::make_shared<Input1<uint8_t>>(data));
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

std::vector<std::string> kernel_names(bool compiled) {
    std::vector<std::string> names;
    for (const char* name : kKernelNames) {
        if (compiled ? kernels_named(name) != nullptr : cpu_runs(name)) names.emplace_back(name);
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

void bind_decoder(nb::module_& m) {
    m.attr("packed_version") = kPackedVersion;
    m.def("kernels", [] { return std::string(best_kernels()->name); }, "The kernel set that is used by default.");
    m.def("uniform", &uniform, nb::arg("seed"), nb::arg("index"), nb::arg("draw"),
          "Number `draw` of a request's random stream.");
    m.def("kernel_names", &kernel_names, nb::arg("compiled") = true,
          "The kernel sets that this machine can run, the best first: those of this build, or with compiled=False all of them.");
    m.def("check_spec", [](const nb::dict& spec) { config_of(spec); }, nb::arg("spec"),
          "Raises ValueError for a spec that a decoder cannot run.");
    DecoderClass decoder(m, "Decoder", "A model that is ready to run.");
    decoder
        .def("__init__",
             [](Decoder* self, const nb::dict& spec, size_t n_cells, const std::string& kv, int threads,
                const std::string& kernels, const std::string& precision, size_t n_slots) {
                 const Kernels& table = kernels_for(kernels);
                 if (threads < 1 || threads > 1024) fail("threads must be from 1 to 1024");
                 if (n_cells < 1 || n_cells > kMost) fail("n_cells is out of range");
                 const CacheType type = cache_type_named(kv);
                 if (n_slots > kMost) fail("n_slots is out of range");
                 new (self) Decoder(config_of(spec), n_cells, type, precision_named(precision), threads, &table, n_slots);
             },
             nb::arg("spec"), nb::arg("n_cells"), nb::arg("kv"), nb::arg("threads"), nb::arg("kernels"),
             nb::arg("precision") = "standard", nb::arg("n_slots") = 0)
        .def("tensors", &tensors)
        .def("set_unpacked", &set_unpacked, nb::arg("name"), nb::arg("code"), nb::arg("rows"), nb::arg("columns"),
             nb::arg("data").noconvert(), nb::keep_alive<1, 6>())
        .def("pack_rows", &pack_rows, nb::arg("name"), nb::arg("code"), nb::arg("rows"), nb::arg("columns"),
             nb::arg("data").noconvert(), nb::arg("count"))
        .def("renew", &Decoder::renew, nb::arg("name"))
        .def("defer", &defer, nb::arg("name"), nb::arg("code"), nb::arg("rows"), nb::arg("columns"),
             nb::arg("data").noconvert())
        .def("pack_deferred", &pack_deferred, nb::arg("stop").noconvert())
        .def_prop_ro("n_deferred", &Decoder::n_deferred)
        .def("set_packed", &set_packed, nb::arg("name"), nb::arg("code"), nb::arg("rows"), nb::arg("columns"),
             nb::arg("data").noconvert(), nb::keep_alive<1, 6>())
        .def("packed", &packed, nb::arg("name"))
        .def("set_vector",
             [](Decoder& decoder, const std::string& name, Input1<float> data) {
                 decoder.set_vector(name, data.data(), data.shape(0));
             },
             nb::arg("name"), nb::arg("data").noconvert())
        .def("collect", &Decoder::collect, nb::arg("wanted"))
        .def("collected", &collected)
        .def("add_change", &add_change, nb::arg("adapter"), nb::arg("name"), nb::arg("rank"), nb::arg("scale"),
             nb::arg("a_code"), nb::arg("a").noconvert(), nb::arg("b_code"), nb::arg("b").noconvert())
        .def("add_vector", &add_vector, nb::arg("adapter"), nb::arg("layer"), nb::arg("vector").noconvert())
        .def("remove_adapter", &Decoder::remove_adapter, nb::arg("adapter"))
        .def_prop_ro("n_slots", &Decoder::n_slots)
        .def_prop_ro("slot_bytes", &Decoder::slot_bytes)
        .def_prop_ro("kernels", [](const Decoder& decoder) { return std::string(decoder.kernels().name); })
        .def_prop_ro("threads", &Decoder::threads)
        .def_prop_ro("active_threads", &Decoder::active_threads)
        .def_prop_ro("weight_bytes", &Decoder::weight_bytes)
        .def_prop_ro("cache_bytes", &Decoder::cache_bytes)
        .def_prop_ro("cell_bytes", &Decoder::cell_bytes);
    bind_passes(decoder);
    bind_loop(decoder);
    bind_cells(decoder);
}

}  // namespace stretto
