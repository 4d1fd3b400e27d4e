// Cells and state slots of a decoder from Python: copied, rotated, read and written.

#include "bindings/decoder.h"

namespace stretto {

namespace {

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
    return give(std::move(out), n, bytes);
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
    return give(std::move(out), n, bytes);
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

}  // namespace

void bind_cells(DecoderClass& decoder) {
    decoder
        .def("copy_cells", &copy_cells, nb::arg("source").noconvert(), nb::arg("target").noconvert())
        .def("rotate_cells", &rotate_cells, nb::arg("cells").noconvert(), nb::arg("delta"))
        .def("read_cells", &read_cells, nb::arg("cells").noconvert())
        .def("write_cells", &write_cells, nb::arg("cells").noconvert(), nb::arg("data").noconvert())
        .def("copy_slots", &copy_slots, nb::arg("source").noconvert(), nb::arg("target").noconvert())
        .def("clear_slots", &clear_slots, nb::arg("slots").noconvert())
        .def("read_slots", &read_slots, nb::arg("slots").noconvert())
        .def("write_slots", &write_slots, nb::arg("slots").noconvert(), nb::arg("data").noconvert());
}

}  // namespace stretto
