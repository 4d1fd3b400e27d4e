// Quantising matrices, with threads.

#include <nanobind/stl/optional.h>

#include <cmath>
#include <optional>

#include "bindings/bindings.h"
#include "quantize/quantize.h"
#include "weights/formats.h"

namespace stretto {

namespace {

using Importance = std::optional<Input1<float>>;

void check_importance(const Importance& importance, size_t columns) {
    if (!importance) return;
    if (importance->shape(0) != columns) fail("the importance must have one number for each column");
    for (size_t i = 0; i < columns; ++i) {
        const float weight = importance->data()[i];
        if (!(weight >= 0.0f) || !(weight <= 1e12f)) fail("importance must be between 0 and 1e12");
    }
}

class Quantizer {
public:
    explicit Quantizer(int threads) : pool_(checked(threads)) {}

    int threads() const { return pool_.size(); }

    Array1<uint8_t> convert(int from, Input1<uint8_t> data, int to, size_t columns, Importance importance) {
        if (!find_format(from)) fail("format " + std::to_string(from) + " is not known");
        if (!find_writer(to)) fail("this format can only be read");
        const Format &source = *find_format(from), &target = *find_format(to);
        if (columns < 1 || columns > size_t{1} << 31 || columns % source.block || columns % target.block) {
            fail("a row must be whole blocks of both formats");
        }
        const size_t row = columns / source.block * source.size;
        if (data.shape(0) % row) fail("the bytes are not whole rows");
        check_importance(importance, columns);
        const size_t rows = data.shape(0) / row, bytes = bytes_of(to, rows, columns);
        std::unique_ptr<uint8_t[]> out(new uint8_t[bytes]);
        size_t wrong;
        {
            Unlocked unlocked;
            const float* weights = importance ? importance->data() : nullptr;
            wrong = convert_rows({from, to, rows, columns, data.data(), weights}, out.get(), &pool_);
        }
        if (wrong < rows) fail("row " + std::to_string(wrong) + " holds NaN or infinity");
        return give(std::move(out), bytes);
    }

private:
    static int checked(int threads) {
        if (threads < 1 || threads > 1024) fail("threads must be between 1 and 1024");
        return threads;
    }

    Pool pool_;
};

nb::tuple writable() {
    size_t count;
    const Format* table = formats(&count);
    nb::list list;
    for (size_t i = 0; i < count; ++i) {
        if (find_writer(table[i].code)) list.append(table[i].code);
    }
    return nb::tuple(list);
}

}  // namespace

void bind_quantize(nb::module_& m) {
    m.attr("quantizable") = writable();
    nb::class_<Quantizer>(m, "Quantizer", "Writes matrices in other formats. One thread may call it at a time.")
        .def(nb::init<int>(), nb::arg("threads"))
        .def_prop_ro("threads", &Quantizer::threads)
        .def("convert", &Quantizer::convert, nb::arg("source"), nb::arg("data").noconvert(), nb::arg("target"), nb::arg("columns"),
             nb::arg("importance").none() = nb::none(),
             "The bytes of a matrix in format `target`, from those in format `source`. `importance` weighs its columns.");
}

}  // namespace stretto
