// Items of attention.

#include "device/work.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace stretto {

namespace {

size_t last_span(int32_t length) { return (static_cast<size_t>(length) - 1) / kViewSpan; }

size_t aligned(size_t index) { return index / kAlign * kAlign; }

void write_single(int32_t* to, size_t offset, size_t start, size_t stop, size_t span, int32_t row) {
    to[0] = static_cast<int32_t>(offset);
    to[1] = static_cast<int32_t>(start);
    to[2] = static_cast<int32_t>(stop);
    to[3] = static_cast<int32_t>(span);
    to[4] = row;
}

}  // namespace

void Sharing::find(const DeviceViews& views, const std::vector<const DeviceView*>& view_of,
                   const std::vector<int32_t>& lengths) {
    spans.clear();
    covered.assign(lengths.size(), 0);
    std::vector<std::pair<uint64_t, int32_t>> begins;
    for (size_t row = 0; row < lengths.size(); ++row) {
        if (lengths[row] > static_cast<int32_t>(kViewSpan)) begins.emplace_back(view_of[row]->prefixes[0], row);
    }
    std::sort(begins.begin(), begins.end());
    for (size_t at = 0, end; at < begins.size(); at = end) {
        for (end = at + 1; end < begins.size() && begins[end].first == begins[at].first;) ++end;
        if (end - at < 2) continue;
        std::vector<int32_t> rows;
        for (size_t i = at; i < end; ++i) rows.push_back(begins[i].second);
        refine(views, view_of, lengths, std::move(rows), 0);
    }
}

void Sharing::refine(const DeviceViews& views, const std::vector<const DeviceView*>& view_of,
                     const std::vector<int32_t>& lengths, std::vector<int32_t> rows, size_t span) {
    while (true) {
        // The hash says that they are the same; the cells prove it.
        const int32_t* first = views.cells(*view_of[rows[0]]) + span * kViewSpan;
        rows.erase(std::remove_if(rows.begin() + 1, rows.end(),
                                  [&](int32_t row) {
                                      const int32_t* other = views.cells(*view_of[row]) + span * kViewSpan;
                                      return other != first && std::memcmp(other, first, kViewSpan * sizeof(int32_t));
                                  }),
                   rows.end());
        if (rows.size() < 2) return;
        spans.push_back({span, rows});
        for (const int32_t row : rows) covered[row] = span + 1;
        ++span;
        const auto ends = [&](int32_t row) { return last_span(lengths[row]) <= span; };
        rows.erase(std::remove_if(rows.begin(), rows.end(), ends), rows.end());
        const auto prefix = [&](int32_t row) { return view_of[row]->prefixes[span]; };
        if (rows.size() < 2) return;
        const uint64_t all = prefix(rows[0]);
        if (std::all_of(rows.begin(), rows.end(), [&](int32_t row) { return prefix(row) == all; })) continue;
        std::stable_sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) { return prefix(a) < prefix(b); });
        // Where they part, each branch with more than one row goes on by itself; the last one here.
        size_t at = 0;
        while (at < rows.size()) {
            size_t end = at + 1;
            while (end < rows.size() && prefix(rows[end]) == prefix(rows[at])) ++end;
            if (end == rows.size()) break;
            if (end - at > 1) refine(views, view_of, lengths, {rows.begin() + at, rows.begin() + end}, span);
            at = end;
        }
        rows.erase(rows.begin(), rows.begin() + at);
        if (rows.size() < 2) return;
    }
}

void AttentionWork::clear(size_t n) {
    slot0.assign(n, 0);
    spans.assign(n, 0);
    wait.assign(n, 0);
    single.clear();
    shared.clear();
    prompt.clear();
    n_slots = 0;
}

void AttentionWork::add_single(size_t offset, int32_t row, size_t span) {
    const size_t start = std::max(span * kViewSpan, aligned(firsts[row]));
    const size_t stop = std::min((span + 1) * kViewSpan, static_cast<size_t>(lengths[row]));
    single.resize(single.size() + kItemHead + 1);
    write_single(single.data() + single.size() - kItemHead - 1, offset, start, stop, span, row);
    ++wait[row];
}

void AttentionWork::add_spans(const std::vector<size_t>& offsets, const Sharing& sharing,
                              const std::vector<char>& in_prompt) {
    for (size_t row = 0; row < lengths.size(); ++row) {
        if (in_prompt[row]) continue;
        const size_t first = firsts[row] / kViewSpan, last = last_span(lengths[row]);
        slot0[row] = static_cast<int32_t>(n_slots) - static_cast<int32_t>(first);
        spans[row] = static_cast<int32_t>(last + 1 - first);
        n_slots += last + 1 - first;
        // The spans that it shares with no row; they are most of the items, so they are written in one go.
        const size_t own = std::max(first, sharing.covered[row]), size = kItemHead + 1;
        single.resize(single.size() + (last + 1 - own) * size);
        int32_t* to = single.data() + single.size() - (last + 1 - own) * size;
        const size_t start = aligned(firsts[row]), stop = static_cast<size_t>(lengths[row]);
        for (size_t span = own; span <= last; ++span, to += size) {
            const size_t begin = span * kViewSpan;
            write_single(to, offsets[row], std::max(begin, start), std::min(begin + kViewSpan, stop), span,
                         static_cast<int32_t>(row));
        }
        wait[row] += static_cast<int32_t>(last + 1 - own);
    }
    for (const SharedSpan& each : sharing.spans) {
        const size_t end = (each.span + 1) * kViewSpan;
        members_.clear();
        size_t start = end;
        for (const int32_t row : each.rows) {
            if (static_cast<size_t>(firsts[row]) >= end) continue;  // before its window
            members_.push_back(row);
            start = std::min(start, std::max(each.span * kViewSpan, aligned(firsts[row])));
        }
        if (members_.size() == 1) add_single(offsets[members_[0]], members_[0], each.span);
        if (members_.size() < 2) continue;
        const size_t n = members_.size(), items = (n + kSharedRows - 1) / kSharedRows;
        for (size_t item = 0; item < items; ++item) {  // of about the same number of rows
            const size_t from = n * item / items, to = n * (item + 1) / items;
            const int32_t head[] = {static_cast<int32_t>(offsets[members_[from]]), static_cast<int32_t>(start),
                                    static_cast<int32_t>(end), static_cast<int32_t>(each.span)};
            shared.insert(shared.end(), std::begin(head), std::end(head));
            shared.insert(shared.end(), members_.begin() + from, members_.begin() + to);
            shared.insert(shared.end(), kSharedRows - (to - from), -1);
        }
    }
}

void AttentionWork::add_prompt(size_t offset, const std::vector<int32_t>& rows) {
    for (size_t at = 0; at < rows.size(); at += kPromptRows) {
        const size_t end = std::min(rows.size(), at + kPromptRows);
        int32_t first = firsts[rows[at]], length = 0;
        for (size_t i = at; i < end; ++i) {
            first = std::min(first, firsts[rows[i]]);
            length = std::max(length, lengths[rows[i]]);
        }
        const int32_t head[] = {static_cast<int32_t>(offset), static_cast<int32_t>(aligned(first)), length, 0};
        prompt.insert(prompt.end(), std::begin(head), std::end(head));
        prompt.insert(prompt.end(), rows.begin() + at, rows.begin() + end);
        prompt.insert(prompt.end(), kPromptRows - (end - at), -1);
    }
}

void AttentionWork::sort_prompts() {
    constexpr size_t size = kItemHead + kPromptRows;
    std::vector<size_t> order(prompt.size() / size);
    std::iota(order.begin(), order.end(), 0);
    const auto cells = [&](size_t item) { return prompt[item * size + 2] - prompt[item * size + 1]; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return cells(a) > cells(b); });
    std::vector<int32_t> sorted;
    sorted.reserve(prompt.size());
    for (const size_t item : order) {
        sorted.insert(sorted.end(), prompt.begin() + item * size, prompt.begin() + (item + 1) * size);
    }
    prompt.swap(sorted);
}

}  // namespace stretto
