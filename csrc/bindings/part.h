// Parts of a ModelSpec as Python passes them: dictionaries, one for each dataclass.
#pragma once

#include <nanobind/stl/string.h>

#include <algorithm>
#include <set>
#include <string>

#include "bindings/bindings.h"

namespace stretto {

// A dictionary that remembers which of its fields were read. A field that nothing reads is a part of the model that
// would be left out in silence, so `check` refuses it.
class Part {
public:
    Part(nb::dict fields) : fields_(std::move(fields)) {}

    nb::object operator[](const char* name) const {
        read_.insert(name);
        return fields_[name];
    }
    bool has(const char* name) const {
        read_.insert(name);
        return fields_.contains(name) && !nb::object(fields_[name]).is_none();
    }
    // Refuses fields that were not read. Those in `others` only say where in the file tensors are, or name things.
    void check(std::initializer_list<const char*> others = {}) const {
        for (auto [key, value] : fields_) {
            const auto name = nb::cast<std::string>(key);
            if (name == "part" || read_.count(name) || std::find(others.begin(), others.end(), name) != others.end()) continue;
            const std::string part = fields_.contains("part") ? nb::cast<std::string>(fields_["part"]) : "the spec";
            fail(part + " has a field that the native decoder does not know: " + name);
        }
    }

private:
    nb::dict fields_;
    mutable std::set<std::string> read_;
};

}  // namespace stretto
