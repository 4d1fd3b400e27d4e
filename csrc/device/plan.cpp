// From the rows of a pass to the block of integers that its kernels read.

#include "device/plan.h"

#include <algorithm>
#include <unordered_map>

namespace stretto {

namespace {

constexpr size_t kHeads = 6;        // of a kind: (number, place) of three sorts of items
constexpr size_t kRowSections = 7;  // tokens, positions, cells, offsets, rotated (3)
constexpr size_t kKindSections = 5;
constexpr size_t kSingleInts = kItemHead + 1, kSharedInts = kItemHead + kSharedRows;
constexpr size_t kPromptInts = kItemHead + kPromptRows;

// More rows than a few attend span by span too, where one program would walk many spans of theirs: so many times as many
// rows, at least so many spans, slots in all.
constexpr size_t kFewTimes = 4, kManySpans = 8, kMostSplit = 4096;

size_t whole_fours(size_t n) { return (n + 3) / 4 * 4; }

int32_t* put(int32_t* to, const std::vector<int32_t>& numbers, size_t n, int32_t rest) {
    std::copy(numbers.begin(), numbers.end(), to);
    std::fill(to + numbers.size(), to + whole_fours(n), rest);
    return to + whole_fours(n);
}

}  // namespace

// For each row the range of its view that a kind of layers attends to.
void DevicePlan::find_ranges(size_t kind) {
    const AttentionKind& k = kinds_[kind];
    AttentionWork& work = works_[kind];
    const size_t n = rows.tokens.size();
    work.firsts.assign(n, 0);
    if (!k.causal) {
        work.lengths.resize(n);
        for (size_t i = 0; i < n; ++i) work.lengths[i] = static_cast<int32_t>(rows.view_of[i]->n);
    } else if (!k.window && rows.causal) {
        work.lengths.assign(rows.causal, rows.causal + n);
    } else {
        work.lengths = rows.lengths;
    }
    if (!k.window) return;
    for (size_t i = 0; i < n; ++i) {
        const int32_t* positions = views.positions(*rows.view_of[i]);
        const size_t length = static_cast<size_t>(work.lengths[i]);
        const int64_t own = rows.positions[i], window = k.window;
        const int64_t first = window > 0 ? own - window + 1 : own - own % -window;
        work.firsts[i] = static_cast<int32_t>(index_of(positions, length, first));
        if (!k.causal) work.lengths[i] = static_cast<int32_t>(index_of(positions, length, own + window));
    }
}

// Rows of one view, where there are many of them, or where they need no spans of their own.
void DevicePlan::find_prompts(const AttentionWork& work) {
    const size_t n = rows.tokens.size();
    in_prompt_.assign(n, 0);
    prompts_.clear();
    std::unordered_map<const DeviceView*, size_t> places;
    for (size_t i = 0; i < n; ++i) {
        const auto [at, is_new] = places.try_emplace(rows.view_of[i], prompts_.size());
        if (is_new) prompts_.emplace_back(rows.view_of[i], std::vector<int32_t>{});
        prompts_[at->second].second.push_back(static_cast<int32_t>(i));
    }
    const auto is_prompt = [&](const std::vector<int32_t>& group) {
        if (group.size() < 2) return false;
        size_t most = 0;  // spans of a row
        for (const int32_t row : group) {
            most = std::max(most, (work.lengths[row] - 1) / kViewSpan + 1 - work.firsts[row] / kViewSpan);
        }
        if (group.size() <= few_) return most == 1;
        return group.size() > kFewTimes * few_ || most < kManySpans || group.size() * most > kMostSplit;
    };
    const auto rest = std::remove_if(prompts_.begin(), prompts_.end(), [&](auto& p) { return !is_prompt(p.second); });
    prompts_.erase(rest, prompts_.end());
    for (const auto& each : prompts_) {
        for (const int32_t row : each.second) in_prompt_[row] = 1;
    }
}

void DevicePlan::make() {
    const size_t n = rows.tokens.size();
    offsets_.resize(n);
    for (size_t i = 0; i < n; ++i) offsets_[i] = rows.view_of[i]->at;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
        AttentionWork& work = works_[kind];
        find_ranges(kind);
        find_prompts(work);
        std::vector<int32_t> lengths = work.lengths;
        for (size_t i = 0; i < n; ++i) {
            if (in_prompt_[i]) lengths[i] = 0;
        }
        sharing_.find(views, rows.view_of, lengths);
        work.clear(n);
        work.add_spans(offsets_, sharing_, in_prompt_);
        for (const auto& [view, group] : prompts_) work.add_prompt(view->at, group);
        work.sort_prompts();
    }
    shared_for_.clear();
}

void DevicePlan::make_decode() {
    const size_t n = rows.tokens.size();
    offsets_.resize(n);
    for (size_t i = 0; i < n; ++i) offsets_[i] = rows.view_of[i]->at;
    // A row's own cell is in no other view: appending changes nothing in what rows share.
    if (shared_for_ != rows.view_of || shared_at_ != views.changes()) {
        sharing_.find(views, rows.view_of, rows.lengths);
        shared_for_ = rows.view_of;
        shared_at_ = views.changes();
    }
    in_prompt_.assign(n, 0);
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
        find_ranges(kind);
        works_[kind].clear(n);
        works_[kind].add_spans(offsets_, sharing_, in_prompt_);
    }
}

size_t DevicePlan::items_at(size_t n) const {
    const size_t sections = kRowSections + kKindSections * kinds_.size();
    return whole_fours(kHeads * kinds_.size()) + sections * whole_fours(n) + whole_fours(5 * n + 1);
}

size_t DevicePlan::size(size_t n) const {
    size_t total = items_at(n) + kinds_.size() * kSingleInts * (n - rows.tokens.size());
    for (const AttentionWork& work : works_) total += work.single.size() + work.shared.size() + work.prompt.size();
    return total;
}

size_t DevicePlan::most_slots(size_t n) const {
    size_t most = 0;
    for (const AttentionWork& work : works_) most = std::max(most, work.n_slots + n - rows.tokens.size());
    return most;
}

bool DevicePlan::shares() const {
    return std::any_of(works_.begin(), works_.end(), [](const AttentionWork& work) { return !work.shared.empty(); });
}

std::vector<size_t> DevicePlan::counts() const {
    std::vector<size_t> found;
    for (const AttentionWork& work : works_) {
        found.push_back(work.single.size() / kSingleInts);
        found.push_back(work.shared.size() / kSharedInts);
        found.push_back(work.prompt.size() / kPromptInts);
    }
    return found;
}

int32_t* DevicePlan::write_rows(int32_t* to, size_t n) const {
    const size_t m = rows.tokens.size();
    to = put(to, rows.tokens, n, 0);
    to = put(to, rows.positions, n, 0);
    to = put(to, rows.cells, n, static_cast<int32_t>(views.n_cells()));
    std::fill(std::copy(offsets_.begin(), offsets_.end(), to), to + whole_fours(n), 0);
    to += whole_fours(n);
    std::fill(to, to + 3 * whole_fours(n), 0);
    for (size_t i = 0; i < 3 * m; ++i) to[i] = rows.rotated ? rows.rotated[i] : rows.positions[i / 3];
    to += 3 * whole_fours(n);
    for (const AttentionWork& work : works_) {
        to = put(to, work.firsts, n, 0);
        to = put(to, work.lengths, n, 1);
        int32_t* const slot0 = to;
        to = put(to, work.slot0, n, 0);
        for (size_t i = m; i < n; ++i) slot0[i] = static_cast<int32_t>(work.n_slots + i - m);
        to = put(to, work.spans, n, 1);
        to = put(to, work.wait, n, 1);
    }
    return to;
}

// rows [n], bounds [n + 1], slots [n], tiles [n][2]; rows of padding are in no run.
int32_t* DevicePlan::write_runs(int32_t* to, size_t n) const {
    const size_t m = rows.tokens.size();
    int32_t *bounds = to + n, *slots = bounds + n + 1, *tiles = slots + n;
    for (size_t i = 0; i < n; ++i) {
        to[i] = static_cast<int32_t>(i);
        bounds[i] = static_cast<int32_t>(std::min(i, m));
        slots[i] = i < m && rows.slots ? rows.slots[i] : 0;
        tiles[2 * i] = static_cast<int32_t>(i < m ? i : 0);
        tiles[2 * i + 1] = bounds[i];
    }
    bounds[n] = static_cast<int32_t>(m);
    return to + whole_fours(5 * n + 1);
}

void DevicePlan::write(int32_t* block, size_t n) const {
    int32_t *head = block, *to = block + whole_fours(kHeads * kinds_.size());
    to = write_rows(to, n);
    to = write_runs(to, n);
    const auto start = [&](size_t count) {
        *head++ = static_cast<int32_t>(count);
        *head++ = static_cast<int32_t>(to - block);
    };
    const size_t m = rows.tokens.size();
    for (const AttentionWork& work : works_) {
        start(work.single.size() / kSingleInts + n - m);
        to = std::copy(work.single.begin(), work.single.end(), to);
        for (size_t row = m; row < n; ++row) {
            for (const size_t number : {size_t{0}, size_t{0}, size_t{1}, size_t{0}, row}) {
                *to++ = static_cast<int32_t>(number);
            }
        }
        start(work.shared.size() / kSharedInts);
        to = std::copy(work.shared.begin(), work.shared.end(), to);
        start(work.prompt.size() / kPromptInts);
        to = std::copy(work.prompt.begin(), work.prompt.end(), to);
    }
}

}  // namespace stretto
