// The outline of a JSON text: how much there is in it, and where it can be cut into pieces that are parsed one by one.
//
// Nothing here says that a text is right: whoever parses the pieces sees that. It is one pass, needs no interpreter, and
// takes memory for the brackets that are open and for the pieces.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "bindings/bindings.h"

namespace stretto {
namespace {

enum class PieceKind : uint8_t {
    kMembers,  // members of the container that is open, with commas between them and none around
    kList,     // a list opens; the bytes are those before its bracket, since the last comma
    kObject,   // the same, an object
    kClose,    // it closes; the bytes are those behind its bracket, until the next comma or bracket
};

struct Piece {
    PieceKind kind;
    size_t begin, end;
};

struct Outline {
    size_t values = 1;          // more or less: commas, colons and opening brackets, and one
    size_t most_fields = 0;     // of one object
    size_t longest_number = 0;  // in characters
    bool is_whole = false;      // every text, list and object ends, and none is deeper than allowed
    std::vector<Piece> pieces;  // empty for a text that is one piece
};

// A list or object that is open.
struct Open {
    size_t bracket;
    bool is_object;
    size_t fields = 0;
    size_t member;          // where its present member begins
    size_t run;             // where members begin that are in no piece yet
    size_t first;           // its pieces begin here
    size_t child_end = 0;   // behind the present member, if that was cut into pieces
};

enum CharKind : uint8_t { kOther, kDigit, kQuote, kMark };

constexpr std::array<uint8_t, 256> kinds() {
    std::array<uint8_t, 256> found{};
    for (char c : {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '+', '-', '.', 'e', 'E'})
        found[static_cast<uint8_t>(c)] = kDigit;
    for (char c : {',', ':', '[', ']', '{', '}'}) found[static_cast<uint8_t>(c)] = kMark;
    found['"'] = kQuote;
    return found;
}
constexpr std::array<uint8_t, 256> kKinds = kinds();

// Behind the text that begins after the quote at `at`, or `bytes` if it does not end.
size_t skip_text(const char* data, size_t bytes, size_t at) {
    const size_t begin = at + 1;
    for (size_t from = begin; from < bytes;) {
        const void* found = std::memchr(data + from, '"', bytes - from);
        if (!found) return bytes + 1;
        const size_t quote = static_cast<const char*>(found) - data;
        size_t backslashes = 0;
        while (quote - backslashes > begin && data[quote - backslashes - 1] == '\\') ++backslashes;
        from = quote + 1;
        if (backslashes % 2 == 0) return from;
    }
    return bytes + 1;
}

class Outliner {
public:
    Outliner(const char* data, size_t bytes, size_t piece_bytes, size_t max_depth)
        : data_(data), bytes_(bytes), piece_bytes_(piece_bytes), max_depth_(max_depth) {}

    Outline run() {
        size_t at = 0, number = 0;
        while (at < bytes_) {
            const uint8_t kind = kKinds[static_cast<uint8_t>(data_[at])];
            if (kind == kDigit) {
                ++number;
            } else {
                out_.longest_number = std::max(out_.longest_number, number);
                number = 0;
            }
            if (kind == kQuote) {
                at = skip_text(data_, bytes_, at);
                if (at > bytes_) return std::move(out_);
                continue;
            }
            if (kind == kMark && !mark(at)) return std::move(out_);
            ++at;
        }
        out_.longest_number = std::max(out_.longest_number, number);
        out_.is_whole = open_.empty();
        return std::move(out_);
    }

private:
    // False if the text cannot be right.
    bool mark(size_t at) {
        switch (data_[at]) {
            case '[':
            case '{':
                ++out_.values;
                if (open_.size() >= max_depth_) return false;
                open_.push_back({at, data_[at] == '{', 0, at + 1, at + 1, out_.pieces.size()});
                return true;
            case ':':
                ++out_.values;
                if (!open_.empty()) out_.most_fields = std::max(out_.most_fields, ++open_.back().fields);
                return true;
            case ',':
                ++out_.values;
                if (open_.empty()) return false;
                comma(open_.back(), at);
                return true;
            default:
                return close(at);
        }
    }

    void comma(Open& open, size_t at) {
        if (open.child_end) {
            end_child(open, at);
            open.run = at + 1;
        } else if (at - open.run >= piece_bytes_) {
            out_.pieces.push_back({PieceKind::kMembers, open.run, at});
            open.run = at + 1;
        }
        open.member = at + 1;
    }

    // The bytes between a member that was cut and what follows it.
    void end_child(Open& open, size_t at) {
        out_.pieces.back().begin = open.child_end;
        out_.pieces.back().end = at;
        open.child_end = 0;
    }

    bool close(size_t at) {
        if (open_.empty() || open_.back().is_object != (data_[at] == '}')) return false;
        Open open = open_.back();
        open_.pop_back();
        if (at + 1 - open.bracket <= piece_bytes_) {
            out_.pieces.resize(open.first);
            return true;
        }
        if (open.child_end)
            end_child(open, at);
        else
            out_.pieces.push_back({PieceKind::kMembers, open.run, at});
        out_.pieces.push_back({PieceKind::kClose, at + 1, bytes_});
        return put_into_parent(open, at);
    }

    // Puts what comes before the pieces of a container before them.
    bool put_into_parent(const Open& open, size_t at) {
        const PieceKind kind = open.is_object ? PieceKind::kObject : PieceKind::kList;
        auto first = out_.pieces.begin() + open.first;
        if (open_.empty()) {
            if (open.first) return false;  // a second value
            out_.pieces.insert(first, {kind, 0, open.bracket});
            return true;
        }
        Open& parent = open_.back();
        if (parent.child_end) return false;  // two values without a comma between them
        const bool has_members = parent.member > parent.run;
        first = out_.pieces.insert(first, {kind, parent.member, open.bracket});
        if (has_members) out_.pieces.insert(first, {PieceKind::kMembers, parent.run, parent.member - 1});
        parent.child_end = at + 1;
        return true;
    }

    const char* data_;
    size_t bytes_, piece_bytes_, max_depth_;
    std::vector<Open> open_;
    Outline out_;
};

// Pieces have about `piece_bytes`, or one value that cannot be cut: containers are cut where they are larger.
Outline outline_of(const char* data, size_t bytes, size_t piece_bytes, size_t max_depth) {
    return Outliner(data, bytes, piece_bytes, max_depth).run();
}

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
        pieces.append(nb::make_tuple(static_cast<int>(piece.kind), piece.begin, piece.end));
    return nb::make_tuple(found.values, found.most_fields, found.longest_number, found.is_whole, pieces);
}

}  // namespace

void bind_outline(nb::module_& m) {
    m.def("json_outline", &outline, nb::arg("data"), nb::arg("piece_bytes"), nb::arg("max_depth"),
          "Values, fields of the largest object, characters of the longest number, whether all of it ends, and pieces "
          "(part, begin, end).");
}

}  // namespace stretto
