// What Python sees of the native core. Every argument is checked here; nothing behind it checks again.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>

#include "formats.h"

namespace nb = nanobind;
using stretto::Format;

namespace {

template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

const Format& format_of(int code) {
    const Format* format = stretto::find_format(code);
    if (!format) throw nb::value_error(("format " + std::to_string(code) + " is not known").c_str());
    return *format;
}

size_t whole_blocks(size_t length, size_t block, const char* what) {
    if (length % block) {
        const std::string message = std::to_string(length) + " " + what + " are not whole blocks of " +
                                    std::to_string(block);
        throw nb::value_error(message.c_str());
    }
    return length / block;
}

// An array of NumPy's that owns `data`.
template <typename T>
Output<T> give(std::unique_ptr<T[]> data, size_t length) {
    T* raw = data.release();
    nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return Output<T>(raw, {length}, owner);
}

Output<float> dequantize(int code, Input<uint8_t> data) {
    const Format& format = format_of(code);
    const size_t blocks = whole_blocks(data.shape(0), format.size, "bytes");
    std::unique_ptr<float[]> out(new float[blocks * format.block]);
    {
        nb::gil_scoped_release release;
        const uint8_t* bytes = data.data();
        for (size_t i = 0; i < blocks; ++i) {
            format.dequantize(bytes + i * format.size, out.get() + i * format.block);
        }
    }
    return give(std::move(out), blocks * format.block);
}

Output<uint8_t> quantize(int code, Input<float> values) {
    const Format& format = format_of(code);
    if (!format.quantize) throw nb::value_error("this format can only be read");
    const size_t blocks = whole_blocks(values.shape(0), format.block, "numbers");
    std::unique_ptr<uint8_t[]> out(new uint8_t[blocks * format.size]);
    {
        nb::gil_scoped_release release;
        const float* numbers = values.data();
        for (size_t i = 0; i < blocks; ++i) {
            format.quantize(numbers + i * format.block, out.get() + i * format.size);
        }
    }
    return give(std::move(out), blocks * format.size);
}

// The codes of the formats that can be read, or of those that can be written.
nb::tuple codes(bool writable) {
    size_t count;
    const Format* table = stretto::formats(&count);
    nb::list list;
    for (size_t i = 0; i < count; ++i) {
        if (!writable || table[i].quantize) list.append(table[i].code);
    }
    return nb::tuple(list);
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "The native core of Stretto.";
    m.attr("dequantizable") = codes(false);
    m.attr("quantizable") = codes(true);
    m.def("dequantize", &dequantize, nb::arg("code"), nb::arg("data").noconvert(),
          "The numbers in whole blocks of bytes, as float32.");
    m.def("quantize", &quantize, nb::arg("code"), nb::arg("values").noconvert(),
          "The bytes of finite numbers, which must fill whole blocks.");
}
