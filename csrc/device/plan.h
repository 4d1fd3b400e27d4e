// The integers of a pass on a device, in one block that is sent at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/views.h"
#include "device/work.h"

namespace stretto {

// Layers that attend alike.
struct AttentionKind {
    int32_t window;  // positions that a row attends to, its own included; 0: all; below 0: chunks of so many
    bool causal;     // or in both directions, `window` positions each way
};

// Rows as they are given: row i writes cells[i], and attends to the first lengths[i] entries of a view.
struct DeviceRows {
    std::vector<int32_t> tokens, positions, cells, lengths;
    std::vector<const DeviceView*> view_of;
    const int32_t* causal = nullptr;   // lengths without attention ahead, for kinds without a window; or null
    const int32_t* slots = nullptr;    // of recurrent layers; or null
    const int32_t* rotated = nullptr;  // [n][3] where they are not the positions; or null
};

// Sections of the block, with n rows (padding included) each `stride` long, so that all are aligned to 16 bytes:
//   heads: for each kind the number and the place of its items, single, shared, prompt
//   tokens, positions, cells, offsets, rotated [n][3]
//   for each kind: firsts, lengths, slot0, spans, wait
//   runs: of recurrent layers, where each row has a slot of its own
//   items
class DevicePlan {
public:
    DevicePlan(size_t n_cells, size_t capacity, std::vector<AttentionKind> kinds, size_t few)
        : views(n_cells, capacity), kinds_(std::move(kinds)), works_(kinds_.size()), few_(few) {}

    DeviceViews views;
    DeviceRows rows;

    void make();         // the work of `rows`, for any batch
    void make_decode();  // the same where each row is the last of a view of its own; what rows share is kept

    size_t size(size_t n) const;      // of the block, padded to n rows
    size_t most_slots(size_t n) const;  // of all kinds
    bool shares() const;              // whether there are shared items
    std::vector<size_t> counts() const;  // of items: for each kind single, shared, prompt
    void write(int32_t* block, size_t n) const;

private:
    void find_ranges(size_t kind);
    void find_prompts(const AttentionWork& work);
    int32_t* write_rows(int32_t* to, size_t n) const;
    int32_t* write_runs(int32_t* to, size_t n) const;
    size_t items_at(size_t n) const;

    std::vector<AttentionKind> kinds_;
    std::vector<AttentionWork> works_;
    size_t few_;  // rows of one view that attend span by span; many more of them are a prompt
    std::vector<size_t> offsets_;
    std::vector<char> in_prompt_;
    std::vector<std::pair<const DeviceView*, std::vector<int32_t>>> prompts_;
    Sharing sharing_;
    std::vector<const DeviceView*> shared_for_;  // the rows and the changes for which `sharing_` is right
    uint64_t shared_at_ = 0;
};

}  // namespace stretto
