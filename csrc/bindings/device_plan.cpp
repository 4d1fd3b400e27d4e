// The planner of passes on a device as a Python class. Kernels cannot raise, so everything is checked here. After an
// error the caller clears the views: the device lacks what a pass that did not run would have appended.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>

#include "bindings/bindings.h"
#include "device/plan.h"

namespace stretto {

namespace {

using Block = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;  // writable
using Numbers = std::vector<int32_t>;

constexpr size_t kMostCells = (size_t{1} << 31) - 1;

void check_range(const int32_t* values, size_t n, size_t end, const char* what) {
    for (size_t i = 0; i < n; ++i) {
        if (values[i] < 0 || static_cast<size_t>(values[i]) >= end) {
            fail(std::string(what) + ": " + std::to_string(values[i]) + " in row " + std::to_string(i) +
                 " is out of range (0 to " + std::to_string(end - 1) + ")");
        }
    }
}

struct Planner {
    Planner(size_t n_cells, size_t n_vocab, size_t n_slots, size_t capacity,
            const std::vector<std::pair<int32_t, bool>>& kinds, size_t few)
        : n_vocab(n_vocab), n_slots(n_slots), plan(n_cells, capacity, kinds_of(kinds), few) {
        if (!n_cells || n_cells >= kMostCells || capacity > kMostCells / 4 || few < 1) fail("a size of the planner is out of range");
    }

    static std::vector<AttentionKind> kinds_of(const std::vector<std::pair<int32_t, bool>>& kinds) {
        std::vector<AttentionKind> found;
        for (const auto& [window, causal] : kinds) {
            if (window < 0 && !causal) fail("chunks are of attention in one direction");
            found.push_back({window, causal});
        }
        return found;
    }

    size_t n_vocab, n_slots;
    DevicePlan plan;

    void check_rows(const int32_t* slots, size_t n) {
        const DeviceRows& rows = plan.rows;
        check_range(rows.tokens.data(), rows.tokens.size(), n_vocab, "tokens");
        check_range(rows.positions.data(), rows.positions.size(), kMostCells, "positions");
        check_range(rows.cells.data(), rows.cells.size(), plan.views.n_cells(), "cells");
        if (n_slots) {
            if (n != rows.tokens.size()) fail("the model has recurrent layers: a slot for each row is needed");
            check_range(slots, n, n_slots, "slots");
        }
        plan.rows.slots = n_slots ? slots : nullptr;
    }

    const int32_t* check_rotated(const nb::object& rotated, Input2<int32_t>& held, size_t n) {
        if (rotated.is_none()) return nullptr;
        held = nb::cast<Input2<int32_t>>(rotated);
        if (held.shape(0) != n || held.shape(1) != 3) fail("three rotated positions a row are needed");
        check_range(held.data(), 3 * n, kMostCells, "rotated positions");
        return held.data();
    }

    const DeviceView* set_view(int64_t sequence, int64_t edits, Input1<int32_t> cells, size_t n, Input1<int32_t> table) {
        if (!n || n > cells.shape(0)) fail("lengths: a view has " + std::to_string(cells.shape(0)) + " cells, not " +
                                           std::to_string(n));
        check_range(cells.data(), n, plan.views.n_cells(), "a view");
        return plan.views.set(sequence, edits, cells.data(), n, table.data());
    }

    void check_table(Input1<int32_t> table) {
        if (table.shape(0) != plan.views.n_cells()) fail("the table must have a position for each cell");
    }

    // Begins again with an empty pool, so large that this batch takes half of it at most; device tensors of another size
    // are needed then.
    void make_room(size_t entries) {
        size_t capacity = plan.views.capacity();
        while (capacity < 4 * entries) capacity *= 2;
        if (capacity > kMostCells) fail("the views of the batch have too many entries for a device");
        plan.views.clear(capacity);
    }

    // One token at the end of each of some sequences. Returns (integers of the block, whether rows share spans); with no
    // integers if the step does not fit the block or has more partial results than there are slots for.
    std::pair<size_t, bool> decode(Numbers tokens, Numbers positions, Numbers cells, const std::vector<int64_t>& sequences,
                                   const std::vector<int64_t>& edits, Numbers counts, const nb::list& stores,
                                   Input1<int32_t> table, const Numbers& slots, const nb::object& rotated, size_t bucket,
                                   size_t most_slots, Block block) {
        DeviceRows& rows = plan.rows;
        const size_t n = tokens.size();
        if (!n || n > bucket || positions.size() != n || cells.size() != n || sequences.size() != n ||
            edits.size() != n || counts.size() != n || stores.size() != n) {
            fail("the lists of a step have different lengths, or more rows than the bucket");
        }
        check_table(table);
        rows.tokens.swap(tokens);
        rows.positions.swap(positions);
        rows.cells.swap(cells);
        rows.lengths.swap(counts);
        rows.causal = nullptr;
        check_rows(slots.data(), slots.size());
        Input2<int32_t> held;
        rows.rotated = check_rotated(rotated, held, n);
        if (!find_views(sequences, edits, stores, table)) {
            size_t entries = 0;
            for (const int32_t length : rows.lengths) entries += static_cast<size_t>(length) + kViewSpan;
            make_room(entries);
            if (!find_views(sequences, edits, stores, table)) fail("there is no room for the views of the batch");
        }
        plan.make_decode();
        const size_t size = plan.size(bucket);
        if (size > block.shape(0) || plan.most_slots(bucket) > most_slots) {
            // The device will not append the rows' cells in this step.
            for (const DeviceView* view : rows.view_of) plan.views.send(view->at + view->n - 1, view->at + view->n);
            return {0, false};
        }
        plan.write(block.data(), bucket);
        return {size, plan.shares()};
    }

    bool find_views(const std::vector<int64_t>& sequences, const std::vector<int64_t>& edits, const nb::list& stores,
                    Input1<int32_t> table) {
        DeviceRows& rows = plan.rows;
        const size_t n = sequences.size();
        rows.view_of.assign(n, nullptr);
        for (size_t i = 0; i < n; ++i) {
            const size_t length = static_cast<size_t>(std::max(rows.lengths[i], 0));
            if (plan.views.append(sequences[i], edits[i], length, rows.cells[i], rows.positions[i], rows.view_of[i])) continue;
            const auto store = nb::cast<Input1<int32_t>>(stores[i]);
            rows.view_of[i] = set_view(sequences[i], edits[i], store, length, table);
            if (!rows.view_of[i]) return false;
        }
        return true;
    }

    // Any batch. Returns (integers of its block, slots of partial results, for each kind the numbers of items).
    nb::tuple any(Input1<int32_t> tokens, Input1<int32_t> positions, Input1<int32_t> cells,
                  const std::vector<Input1<int32_t>>& views, const std::vector<int64_t>& sequences,
                  const std::vector<int64_t>& edits, Input1<int32_t> view_of, Input1<int32_t> lengths,
                  const nb::object& causal, Input1<int32_t> table, const nb::object& slots, const nb::object& rotated,
                  size_t n_padded) {
        DeviceRows& rows = plan.rows;
        const size_t n = tokens.shape(0);
        if (!n || n > n_padded || positions.shape(0) != n || cells.shape(0) != n || view_of.shape(0) != n ||
            lengths.shape(0) != n || sequences.size() != views.size() || edits.size() != views.size()) {
            fail("the arrays of a batch have different lengths");
        }
        check_table(table);
        check_range(view_of.data(), n, views.size(), "view_of");
        rows.tokens.assign(tokens.data(), tokens.data() + n);
        rows.positions.assign(positions.data(), positions.data() + n);
        rows.cells.assign(cells.data(), cells.data() + n);
        rows.lengths.assign(lengths.data(), lengths.data() + n);
        for (size_t i = 0; i < n; ++i) {
            check_range(&rows.lengths[i], 1, views[view_of.data()[i]].shape(0) + 1, "lengths");
            if (!rows.lengths[i]) fail("lengths: a row attends to at least one cell");
        }
        Input1<int32_t> held_causal, held_slots;
        rows.causal = nullptr;
        if (!causal.is_none()) {
            held_causal = nb::cast<Input1<int32_t>>(causal);
            if (held_causal.shape(0) != n) fail("the arrays of a batch have different lengths");
            for (size_t i = 0; i < n; ++i) {
                if (held_causal.data()[i] < 1 || held_causal.data()[i] > rows.lengths[i]) fail("causal lengths out of range");
            }
            rows.causal = held_causal.data();
        }
        if (!slots.is_none()) held_slots = nb::cast<Input1<int32_t>>(slots);
        check_rows(slots.is_none() ? nullptr : held_slots.data(), slots.is_none() ? 0 : held_slots.shape(0));
        Input2<int32_t> held;
        rows.rotated = check_rotated(rotated, held, n);
        std::vector<const DeviceView*> found;
        const auto find = [&] {
            found.clear();
            for (size_t i = 0; i < views.size(); ++i) {
                found.push_back(set_view(sequences[i], edits[i], views[i], views[i].shape(0), table));
                if (!found.back()) return false;
            }
            return true;
        };
        if (!find()) {
            size_t entries = 0;
            for (const auto& view : views) entries += view.shape(0) + kViewSpan;
            make_room(entries);
            if (!find()) fail("there is no room for the views of the batch");
        }
        rows.view_of.resize(n);
        for (size_t i = 0; i < n; ++i) rows.view_of[i] = found[view_of.data()[i]];
        plan.make();
        block_.resize(plan.size(n_padded));
        plan.write(block_.data(), n_padded);
        return nb::make_tuple(block_.size(), plan.most_slots(n_padded), plan.counts());
    }

    // A block of padding alone; returns its integers.
    size_t blank(size_t bucket, Block block) {
        plan.rows = DeviceRows{};
        plan.make();
        const size_t size = plan.size(bucket);
        if (size > block.shape(0)) fail("the block is too small");
        plan.write(block.data(), bucket);
        return size;
    }

    // The block of the last batch that was no decode step.
    void copy_block(Block block) {
        if (block.shape(0) < block_.size()) fail("the block is too small");
        std::copy(block_.begin(), block_.end(), block.data());
    }

    size_t unsent() const {
        size_t n = 0;
        for (const auto& [first, last] : plan.views.unsent()) n += last - first;
        return n;
    }

    // Entries of the pool that the device lacks: their places, cells and positions, one array after the other.
    void copy_unsent(Block block) {
        const size_t n = unsent();
        if (block.shape(0) < 3 * n) fail("the block is too small");
        int32_t* to = block.data();
        for (const auto& [first, last] : plan.views.unsent()) {
            for (size_t i = first; i < last; ++i, ++to) {
                to[0] = static_cast<int32_t>(i);
                to[n] = plan.views.pool(false)[i];
                to[2 * n] = plan.views.pool(true)[i];
            }
        }
        plan.views.sent();
    }

    void clear() { plan.views.clear(plan.views.capacity()); }
    size_t capacity() const { return plan.views.capacity(); }

private:
    Numbers block_;
};

}  // namespace

void bind_device_plan(nb::module_& m) {
    m.attr("SPAN") = kViewSpan;
    m.attr("ALIGN") = kAlign;
    m.attr("SHARED_ROWS") = kSharedRows;
    m.attr("PROMPT_ROWS") = kPromptRows;
    nb::class_<Planner>(m, "DevicePlanner", "Plans passes on a device: views, and the work of attention over them.")
        .def(nb::init<size_t, size_t, size_t, size_t, const std::vector<std::pair<int32_t, bool>>&, size_t>(),
             nb::arg("n_cells"), nb::arg("n_vocab"), nb::arg("n_slots"), nb::arg("capacity"), nb::arg("kinds"),
             nb::arg("few"))
        .def("decode", &Planner::decode, nb::arg("tokens"), nb::arg("positions"), nb::arg("cells"), nb::arg("sequences"),
             nb::arg("edits"), nb::arg("counts"), nb::arg("stores"), nb::arg("table").noconvert(), nb::arg("slots"),
             nb::arg("rotated").none(), nb::arg("bucket"), nb::arg("most_slots"), nb::arg("block").noconvert())
        .def("plan", &Planner::any, nb::arg("tokens").noconvert(), nb::arg("positions").noconvert(),
             nb::arg("cells").noconvert(), nb::arg("views"), nb::arg("sequences"), nb::arg("edits"),
             nb::arg("view_of").noconvert(), nb::arg("lengths").noconvert(), nb::arg("causal").none(),
             nb::arg("table").noconvert(), nb::arg("slots").none(), nb::arg("rotated").none(), nb::arg("n_padded"))
        .def("blank", &Planner::blank, nb::arg("bucket"), nb::arg("block").noconvert())
        .def("copy_block", &Planner::copy_block, nb::arg("block").noconvert())
        .def("copy_unsent", &Planner::copy_unsent, nb::arg("block").noconvert())
        .def("clear", &Planner::clear)
        .def_prop_ro("unsent", &Planner::unsent)
        .def_prop_ro("capacity", &Planner::capacity);
}

}  // namespace stretto
