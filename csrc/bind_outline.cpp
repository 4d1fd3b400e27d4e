// The outline of a JSON text.

#include <algorithm>

#include "bindings.h"
#include "outline.h"

namespace stretto {
namespace {

constexpr size_t kUnlockBytes = 1 << 15;  // less is done before another thread would have the lock

nb::tuple outline(const nb::bytes& data, size_t piece_bytes, size_t max_depth) {
    Outline found;
    if (data.size() > kUnlockBytes) {
        Unlocked unlocked;
        found = outline_of(data.c_str(), data.size(), piece_bytes, max_depth);
    } else {
        found = outline_of(data.c_str(), data.size(), piece_bytes, max_depth);
    }
    nb::list pieces;
    for (const Piece& piece : found.pieces)
        pieces.append(nb::make_tuple(static_cast<int>(piece.part), piece.begin, piece.end));
    return nb::make_tuple(found.values, found.most_fields, found.longest_number, found.is_whole, pieces);
}

}  // namespace

void bind_outline(nb::module_& m) {
    m.def("json_outline", &outline, nb::arg("data"), nb::arg("piece_bytes"), nb::arg("max_depth"),
          "Values, fields of the largest object, characters of the longest number, whether all of it ends, and pieces "
          "(part, begin, end).");
}

}  // namespace stretto
