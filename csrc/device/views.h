// Views of sequences as a device holds them: cells in one pool, each view a contiguous region of it. The pool is
// mirrored here, so that only what changed is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace stretto {

constexpr size_t kViewSpan = 256;  // entries of a view whose attention is one partial result

// A sequence's view. It starts with `n` valid entries.
struct DeviceView {
    size_t at = 0, room = 0;  // its region of the pool
    size_t n = 0;
    int64_t edits = 0;  // the number of the last edit that was no appending; 0: not known
    std::vector<uint64_t> prefixes;  // for each full span a hash of all cells up to its end
};

class DeviceViews {
public:
    // The first entry of the pool belongs to rows of padding: it is the cell after the last.
    DeviceViews(size_t n_cells, size_t capacity);

    // Writes one more cell of a known view; false if it is not known, was edited, or its region is full. The device
    // does the same by itself, so it is not sent: if it does not, `clear` is needed.
    bool append(int64_t sequence, int64_t edits, size_t n, int32_t cell, int32_t position, const DeviceView*& found);

    // A view with these cells; entries that differ from what the device has are to be sent. Null: the pool is full.
    const DeviceView* set(int64_t sequence, int64_t edits, const int32_t* cells, size_t n, const int32_t* table);

    void clear(size_t capacity);  // forgets all views
    void send(size_t first, size_t last) { unsent_.emplace_back(first, last); }  // entries that the device lacks
    void sent() { unsent_.clear(); }                                             // it has everything

    size_t n_cells() const { return n_cells_; }
    size_t capacity() const { return cells_.size(); }
    size_t used() const { return used_; }
    uint64_t changes() const { return changes_; }  // changes with each one that is no appending by the device
    const int32_t* cells(const DeviceView& view) const { return cells_.data() + view.at; }
    const int32_t* positions(const DeviceView& view) const { return positions_.data() + view.at; }
    // What has to be sent: entries [first, second) of the pool.
    const std::vector<std::pair<size_t, size_t>>& unsent() const { return unsent_; }
    const int32_t* pool(bool positions) const { return positions ? positions_.data() : cells_.data(); }

private:
    void hash(DeviceView& view);

    size_t n_cells_, used_ = 0;
    uint64_t changes_ = 0;
    std::vector<int32_t> cells_, positions_;
    std::vector<std::pair<size_t, size_t>> unsent_;
    std::unordered_map<int64_t, DeviceView> views_;
};

// The first view index at a position of at least `position`, of n entries in position order.
size_t index_of(const int32_t* positions, size_t n, int64_t position);

}  // namespace stretto
