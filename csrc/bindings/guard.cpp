// Guarded mappings, by number.

#include "bindings/bindings.h"
#include "memory/guard.h"

namespace stretto {

void bind_guard(nb::module_& m) {
    m.def("guard", [](const Input1<uint8_t>& mapped) { return guard(mapped.data(), mapped.size()); }, nb::arg("mapped"),
          "Guard the mapping of a file against being cut; its number, or -1 where that cannot be.");
    m.def("unguard", &unguard, nb::arg("number"), "End a guard, before its mapping ends.");
    m.def("is_broken", &is_broken, nb::arg("number"), "Whether a page of a guarded mapping could not be read.");
    m.def("broken_mappings", &broken_mappings, "How many mappings broke so far.");
}

}  // namespace stretto
