// The work of attention on a device: from rows and their views to the items that the kernel takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "device/views.h"

namespace stretto {

constexpr size_t kAlign = 64;       // items start at multiples of it
constexpr size_t kSharedRows = 16;  // of a shared item
constexpr size_t kPromptRows = 32;  // of a prompt item
constexpr size_t kItemHead = 4;     // integers of an item before its rows

// Rows that attend to the same cells in a span, and in all spans before.
struct SharedSpan {
    size_t span;
    std::vector<int32_t> rows;
};

// The spans that at least two rows share, none of them the last of a row; `covered`: for each row how many of its first
// spans are among them. Rows with `length` 0 are left out.
struct Sharing {
    std::vector<SharedSpan> spans;
    std::vector<size_t> covered;

    void find(const DeviceViews& views, const std::vector<const DeviceView*>& view_of,
              const std::vector<int32_t>& lengths);

private:
    void refine(const DeviceViews& views, const std::vector<const DeviceView*>& view_of,
                const std::vector<int32_t>& lengths, std::vector<int32_t> rows, size_t span);
};

// The items of layers with one window, and where each row's partial results are.
struct AttentionWork {
    std::vector<int32_t> firsts, lengths;  // view indices that each row attends to: [first, length)
    std::vector<int32_t> slot0, spans, wait;
    std::vector<int32_t> single, shared, prompt;  // records
    size_t n_slots = 0;

    void clear(size_t n);
    // Items of all rows that are not in a prompt item.
    void add_spans(const std::vector<size_t>& offsets, const Sharing& sharing, const std::vector<char>& in_prompt);
    // Items of rows of one view, in blocks of kPromptRows.
    void add_prompt(size_t offset, const std::vector<int32_t>& rows);
    void sort_prompts();  // those with most cells first

private:
    void add_single(size_t offset, int32_t row, size_t span);
    std::vector<int32_t> members_;
};

}  // namespace stretto
