// Dequantising whole arrays.

#include <optional>
#include <string>

#include "bindings/bindings.h"
#include "weights/formats.h"

namespace stretto {

namespace {

const Format& format_of(int code) {
    const Format* format = find_format(code);
    if (!format) fail("format " + std::to_string(code) + " is not known");
    return *format;
}

size_t whole_blocks(size_t length, size_t block, const char* what) {
    if (length % block) {
        fail(std::to_string(length) + " " + what + " are not whole blocks of " + std::to_string(block));
    }
    return length / block;
}

constexpr size_t kLongBytes = 1 << 16;

Array1<float> dequantize(int code, Input1<uint8_t> data) {
    const Format& format = format_of(code);
    const size_t blocks = whole_blocks(data.shape(0), format.size, "bytes");
    std::unique_ptr<float[]> out(new float[blocks * format.block]);
    {
        // To get the interpreter back from a busy thread takes milliseconds, which a vector does not.
        std::optional<Unlocked> unlocked;
        if (data.shape(0) > kLongBytes) unlocked.emplace();
        const uint8_t* bytes = data.data();
        for (size_t i = 0; i < blocks; ++i) {
            format.dequantize(bytes + i * format.size, out.get() + i * format.block);
        }
    }
    return give(std::move(out), blocks * format.block);
}

// The codes of the formats that can be read.
nb::tuple codes() {
    size_t count;
    const Format* table = formats(&count);
    nb::list list;
    for (size_t i = 0; i < count; ++i) list.append(table[i].code);
    return nb::tuple(list);
}

}  // namespace

void check_matrix(int code, size_t rows, size_t columns, size_t count, size_t bytes) {
    constexpr size_t kMost = size_t{1} << 31, kMostNumbers = size_t{1} << 40;  // so that no product overflows
    const Format& format = format_of(code);
    if (rows < 1 || rows > kMost || columns < 1 || columns > kMost || rows > kMostNumbers / columns ||
        columns % format.block || count > rows) {
        fail("a matrix of this shape cannot be");
    }
    if (bytes != count * (columns / format.block * format.size)) fail("the bytes do not fit the shape");
}

void bind_formats(nb::module_& m) {
    m.attr("dequantizable") = codes();
    m.def("dequantize", &dequantize, nb::arg("code"), nb::arg("data").noconvert(),
          "The numbers in whole blocks of bytes, as float32.");
}

}  // namespace stretto
