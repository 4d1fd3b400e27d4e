// The outline of a JSON text: how much there is in it, and where it can be cut into pieces that are parsed one by one.
//
// Nothing here says that a text is right: whoever parses the pieces sees that. It is one pass, needs no interpreter, and
// takes memory for the brackets that are open and for the pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stretto {

enum class Part : uint8_t {
    kMembers,  // members of the container that is open, with commas between them and none around
    kList,     // a list opens; the bytes are those before its bracket, since the last comma
    kObject,   // the same, an object
    kClose,    // it closes; the bytes are those behind its bracket, until the next comma or bracket
};

struct Piece {
    Part part;
    size_t begin, end;
};

struct Outline {
    size_t values = 1;          // more or less: commas, colons and opening brackets, and one
    size_t most_fields = 0;     // of one object
    size_t longest_number = 0;  // in characters
    bool is_whole = false;      // every text, list and object ends, and none is deeper than allowed
    std::vector<Piece> pieces;  // empty for a text that is one piece
};

// Pieces have about `piece_bytes`, or one value that cannot be cut: containers are cut where they are larger.
Outline outline_of(const char* data, size_t bytes, size_t piece_bytes, size_t max_depth);

}  // namespace stretto
