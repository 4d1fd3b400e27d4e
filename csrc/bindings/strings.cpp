// Arrays of strings in a GGUF file, a length of eight bytes before each: vocabularies have hundreds of thousands.

#include <nanobind/stl/optional.h>

#include <cstring>
#include <optional>

#include "bindings/bindings.h"

namespace stretto {

namespace {

// Walks over strings from `offset` on.
class Walk {
public:
    Walk(const Input1<uint8_t>& data, size_t offset) : data_(data.data()), size_(data.shape(0)), at_(offset) {}

    // The next string; false where it does not end within the data.
    bool next(const char** text, size_t* length) {
        uint64_t bytes;
        if (at_ > size_ || size_ - at_ < sizeof bytes) return false;
        std::memcpy(&bytes, data_ + at_, sizeof bytes);
        if (size_ - at_ - sizeof bytes < bytes) return false;
        *text = reinterpret_cast<const char*>(data_ + at_ + sizeof bytes);
        *length = static_cast<size_t>(bytes);
        at_ += sizeof bytes + *length;
        return true;
    }
    size_t at() const { return at_; }

private:
    const uint8_t* data_;
    size_t size_, at_;
};

std::optional<size_t> strings_end(const Input1<uint8_t>& data, size_t offset, size_t count) {
    Walk walk(data, offset);
    const char* text;
    size_t length;
    for (size_t i = 0; i < count; ++i) {
        if (!walk.next(&text, &length)) return std::nullopt;
    }
    return walk.at();
}

nb::list read_strings(const Input1<uint8_t>& data, size_t offset, size_t count) {
    Walk walk(data, offset);
    const char* text;
    size_t length;
    nb::list found;
    for (size_t i = 0; i < count && walk.next(&text, &length); ++i) {
        PyObject* string = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), nullptr);
        if (!string && !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) throw nb::python_error();
        if (!string) {
            PyErr_Clear();
            break;
        }
        found.append(nb::steal(string));
    }
    return found;
}

}  // namespace

void bind_strings(nb::module_& m) {
    m.def("strings_end", &strings_end, nb::arg("data").noconvert(), nb::arg("offset"), nb::arg("count"),
          "Where so many strings from a byte on end; None where one is cut off.");
    m.def("read_strings", &read_strings, nb::arg("data").noconvert(), nb::arg("offset"), nb::arg("count"),
          "So many strings from a byte on, up to the first that is cut off or not UTF-8.");
}

}  // namespace stretto
