// The mirror of the views that a device holds.

#include "device/views.h"

#include <algorithm>

namespace stretto {

namespace {

constexpr size_t kLeastRoom = 64;

// Room for a view to grow: twice as much, so that it rarely moves.
size_t room_for(size_t n) {
    size_t room = kLeastRoom;
    while (room < n + n / 4) room *= 2;
    return room;
}

uint64_t mix(uint64_t hash, const int32_t* cells) {
    for (size_t i = 0; i < kViewSpan; ++i) {
        hash = (hash ^ static_cast<uint32_t>(cells[i])) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 29;
    }
    return hash;
}

}  // namespace

DeviceViews::DeviceViews(size_t n_cells, size_t capacity) : n_cells_(n_cells) { clear(capacity); }

void DeviceViews::clear(size_t capacity) {
    views_.clear();
    cells_.resize(std::max(capacity, kLeastRoom));
    positions_.resize(cells_.size());
    cells_[0] = static_cast<int32_t>(n_cells_);
    positions_[0] = 0;
    unsent_.assign(1, {0, 1});
    used_ = kLeastRoom;
    ++changes_;
}

bool DeviceViews::append(int64_t sequence, int64_t edits, size_t n, int32_t cell, int32_t position,
                         const DeviceView*& found) {
    const auto at = views_.find(sequence);
    if (at == views_.end()) return false;
    DeviceView& view = at->second;
    if (view.edits != edits || !edits || view.n + 1 != n || n > view.room) return false;
    cells_[view.at + view.n] = cell;
    positions_[view.at + view.n] = position;
    view.n = n;
    if (n % kViewSpan == 0) hash(view);
    found = &view;
    return true;
}

const DeviceView* DeviceViews::set(int64_t sequence, int64_t edits, const int32_t* cells, size_t n,
                                   const int32_t* table) {
    DeviceView& view = views_[sequence];
    const bool moves = n > view.room;
    if (moves) {
        const size_t room = room_for(n);
        if (used_ + room > capacity()) return nullptr;
        view = DeviceView{};
        view.at = used_;
        view.room = room;
        used_ += room;
    }
    int32_t *mine = cells_.data() + view.at, *places = positions_.data() + view.at;
    const bool grown = edits && view.edits == edits && n >= view.n;  // what is there is still true
    size_t same = grown ? view.n : 0;
    for (const size_t most = std::min(n, view.n); !grown && same < most; ++same) {
        if (mine[same] != cells[same] || places[same] != table[cells[same]]) break;
    }
    for (size_t i = same; i < n; ++i) {
        mine[i] = cells[i];
        places[i] = table[cells[i]];
    }
    view.n = n;
    view.edits = edits;
    view.prefixes.resize(std::min(view.prefixes.size(), same / kViewSpan));
    hash(view);
    if (same < n) send(view.at + same, view.at + n);
    if (!grown || same < n) ++changes_;
    return &view;
}

void DeviceViews::hash(DeviceView& view) {
    const int32_t* cells = cells_.data() + view.at;
    for (size_t span = view.prefixes.size(); span < view.n / kViewSpan; ++span) {
        view.prefixes.push_back(mix(span ? view.prefixes.back() : 0, cells + span * kViewSpan));
    }
}

size_t index_of(const int32_t* positions, size_t n, int64_t position) {
    // Where positions have no gaps the place is known.
    const int64_t guess = position - (n ? positions[n - 1] - static_cast<int64_t>(n - 1) : 0);
    const bool is_inside = guess > 0 && static_cast<size_t>(guess) < n;
    if (is_inside && positions[guess] >= position && positions[guess - 1] < position) return static_cast<size_t>(guess);
    return static_cast<size_t>(std::lower_bound(positions, positions + n, position) - positions);
}

}  // namespace stretto
