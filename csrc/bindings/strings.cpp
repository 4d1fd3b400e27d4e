// Arrays of strings in a GGUF file, a length of eight bytes before each: vocabularies have hundreds of thousands.

#include <nanobind/stl/optional.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// The numbers of strings that are not empty, by their bytes.
class TokenNumbers {
public:
    explicit TokenNumbers(size_t count) {
        size_t size = 16;
        while (size < 2 * count) size *= 2;
        slots_.assign(size, -1);
        strings_.reserve(count);
    }

    // False where too many strings have come to lie together, which no real vocabulary does.
    bool add(std::string_view text) {
        const auto number = static_cast<int32_t>(strings_.size());
        strings_.push_back(text);
        if (text.empty()) return true;
        int32_t* const slot = find(text);
        if (slot) *slot = number;
        return slot != nullptr;
    }
    // The number of a string, or −1.
    int32_t operator[](std::string_view text) {
        const int32_t* const slot = text.empty() ? nullptr : find(text);
        return slot ? *slot : -1;
    }

private:
    // Where a string is or would be; null after too many attempts.
    int32_t* find(std::string_view text) {
        constexpr size_t kAttempts = 128;
        const size_t first = std::hash<std::string_view>()(text);
        for (size_t i = 0; i < kAttempts; ++i) {
            int32_t& slot = slots_[(first + i) & (slots_.size() - 1)];
            if (slot < 0 || strings_[static_cast<size_t>(slot)] == text) return &slot;
        }
        return nullptr;
    }

    std::vector<std::string_view> strings_;
    std::vector<int32_t> slots_;  // of a power of two
};

// Of each merge ("left right") the numbers of left, right and both together among the tokens: int32[merges][3]; None if one
// has no such parts.
std::optional<Array2<int32_t>> merge_ids(const Input1<uint8_t>& data, size_t tokens_at, size_t n_tokens, size_t merges_at,
                                         size_t n_merges) {
    std::optional<Array2<int32_t>> none;
    if (n_tokens > data.shape(0) || n_merges > data.shape(0)) return none;  // each takes some bytes
    std::unique_ptr<int32_t[]> found(new int32_t[3 * n_merges]);
    {
        Unlocked unlocked;
        const char* text;
        size_t length;
        TokenNumbers numbers(n_tokens);
        Walk tokens(data, tokens_at);
        for (size_t i = 0; i < n_tokens; ++i) {
            if (!tokens.next(&text, &length) || !numbers.add({text, length})) return none;
        }
        Walk merges(data, merges_at);
        std::string both;
        for (size_t i = 0; i < n_merges; ++i) {
            if (!merges.next(&text, &length)) return none;
            const std::string_view line(text, length);
            const size_t space = line.find(' ');
            if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) return none;
            const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
            both.assign(left).append(right);
            const int32_t ids[3] = {numbers[left], numbers[right], numbers[both]};
            for (size_t k = 0; k < 3; ++k) {
                if (ids[k] < 0) return none;
                found[3 * i + k] = ids[k];
            }
        }
    }
    return give(std::move(found), n_merges, 3);
}

}  // namespace

void bind_strings(nb::module_& m) {
    m.def("strings_end", &strings_end, nb::arg("data").noconvert(), nb::arg("offset"), nb::arg("count"),
          "Where so many strings from a byte on end; None where one is cut off.");
    m.def("read_strings", &read_strings, nb::arg("data").noconvert(), nb::arg("offset"), nb::arg("count"),
          "So many strings from a byte on, up to the first that is cut off or not UTF-8.");
    m.def("merge_ids", &merge_ids, nb::arg("data").noconvert(), nb::arg("tokens_at"), nb::arg("n_tokens"),
          nb::arg("merges_at"), nb::arg("n_merges"),
          "The ids of left, right and both of each merge: int32[merges, 3]; None where one has no such parts.");
}

}  // namespace stretto
