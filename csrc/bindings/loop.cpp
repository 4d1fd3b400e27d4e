// The fused loop from Python: several tokens of one sequence, sampled and run in native code.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/adapter.h"
#include "bindings/decoder.h"
#include "bindings/sampler.h"
#include "model/loop.h"

namespace stretto {

namespace {

// A guide in Python: guide(token, room) -> (tokens that have to follow, does anything come then). It changes the
// mask, which it holds, in place.
Guide guide_of(const nb::object& function, size_t n_vocab) {
    if (function.is_none()) return nullptr;
    return [function = function.ptr(), n_vocab](int32_t token, size_t room, std::vector<int32_t>& more) {
        nb::gil_scoped_acquire acquire;
        const auto [follow, goes_on] =
            nb::cast<std::pair<std::vector<int32_t>, bool>>(nb::borrow(function)(token, room));
        if (follow.size() > room) fail("a guide gave more tokens than there is room for");
        check_range(follow.data(), follow.size(), n_vocab, "what a guide gave");
        more = follow;
        return goes_on;
    };
}

// (tokens, logits after them, code of the sampler's error or 0, how many of the tokens have been run, draws so far,
// seconds in the sampler)
nb::tuple loop(Decoder& decoder, Input1<float> logits, Input1<int32_t> cells, int32_t position, Input1<int32_t> view,
               size_t n_view, Input1<int32_t> table, const nb::tuple& sampling, const Maybe<int32_t>& tokens,
               size_t n_prompt, const Maybe<int32_t>& biased, const Maybe<float>& bias, uint64_t seed, uint64_t index,
               uint64_t draws, std::vector<int32_t> ends,
               const std::vector<std::pair<uintptr_t, uintptr_t>>& hooks, const Maybe<uint32_t>& mask,
               const nb::object& guide, const Maybe<uint8_t>& interrupt, int32_t slot,
               const std::vector<std::pair<int, float>>& adapters) {
    check_complete(decoder);
    check_causal(decoder);
    const size_t n_vocab = decoder.config().n_vocab;
    Loop loop;
    loop.most = cells.shape(0);
    if (logits.shape(0) != n_vocab || !loop.most || n_view <= loop.most || view.shape(0) < n_view ||
        table.shape(0) != decoder.n_cells() || position < 0 || sampling.size() != 7) {
        fail("the arrays of a loop do not fit together");
    }
    const size_t n_learned = decoder.config().learned_positions;
    if (n_learned && (loop.most > n_learned || static_cast<size_t>(position) > n_learned - loop.most)) {
        fail("positions out of range");
    }
    check_range(cells.data(), loop.most, decoder.n_cells(), "cells");
    check_range(view.data(), n_view, decoder.n_cells(), "the view");
    for (const auto& [number, scale] : adapters) loop.adapters.emplace_back(adapter_of(decoder, number), scale);
    loop.slot = slots_of(decoder, &slot, 1, 1) ? slot : -1;
    loop.logits = logits.data();
    loop.cells = cells.data();
    loop.position = position;
    loop.view = view.data();
    loop.length = n_view - loop.most;
    loop.table = table.data();
    loop.params.temperature = nb::cast<float>(sampling[0]);
    loop.params.top_k = nb::cast<size_t>(sampling[1]);
    loop.params.top_p = nb::cast<double>(sampling[2]);
    loop.params.min_p = nb::cast<double>(sampling[3]);
    loop.params.repetition = nb::cast<float>(sampling[4]);
    loop.params.presence = nb::cast<float>(sampling[5]);
    loop.params.frequency = nb::cast<float>(sampling[6]);
    check_params(loop.params);
    loop.history = history_of(n_vocab, tokens, n_prompt, biased, bias, mask);
    loop.seed = seed;
    loop.index = index;
    loop.draws = draws;
    loop.ends = std::move(ends);
    for (const auto& [function, state] : hooks) {
        if (!function) fail("a hook has no address");
        loop.hooks.push_back(Hook::at(function, state));
    }
    loop.guide = guide_of(guide, n_vocab);
    if (interrupt) {
        if (!interrupt->shape(0)) fail("interrupt must have an entry");
        loop.interrupt = interrupt->data();
    }
    std::unique_ptr<float[]> out(new float[n_vocab]());
    {
        Unlocked unlocked;
        run_loop(decoder, loop, out.get());
    }
    return nb::make_tuple(loop.tokens, give(std::move(out), n_vocab), loop.error, loop.n_run, loop.draws, loop.sampling);
}

}  // namespace

void bind_loop(DecoderClass& decoder) {
    decoder
        .def("loop", &loop, nb::arg("logits").noconvert(), nb::arg("cells").noconvert(), nb::arg("position"),
             nb::arg("view").noconvert(), nb::arg("n_view"), nb::arg("table").noconvert(), nb::arg("sampling"),
             nb::arg("tokens").noconvert(), nb::arg("n_prompt"), nb::arg("biased").noconvert(),
             nb::arg("bias").noconvert(), nb::arg("seed"), nb::arg("index"), nb::arg("draws"), nb::arg("ends"),
             nb::arg("hooks"), nb::arg("mask").noconvert(), nb::arg("guide").none(),
             nb::arg("interrupt").noconvert() = nb::none(), nb::arg("slot") = -1,
             nb::arg("adapters") = std::vector<std::pair<int, float>>());
}

}  // namespace stretto
