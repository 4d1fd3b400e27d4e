#include "model/loop.h"

#include <algorithm>
#include <chrono>

#include "kernels/kernels.h"

namespace stretto {

namespace {

struct Product {
    uint64_t high, low;
};

Product multiply(uint64_t a, uint64_t b) {
    const uint64_t a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
    const uint64_t low = a0 * b0;
    const uint64_t middle = a1 * b0 + (low >> 32);
    const uint64_t cross = a0 * b1 + (middle & 0xffffffff);
    return {a1 * b1 + (middle >> 32) + (cross >> 32), a * b};
}

}  // namespace

double uniform(uint64_t seed, uint64_t index, uint64_t draw) {
    // Philox 4×64 with ten rounds; every counter gives four numbers, and NumPy counts from one.
    uint64_t counter[4] = {draw / 4 + 1, 0, 0, 0};
    uint64_t key[2] = {seed, index};
    for (int round = 0; round < 10; ++round) {
        const Product a = multiply(0xD2E7470EE14C6C93u, counter[0]);
        const Product b = multiply(0xCA5A826395121157u, counter[2]);
        const uint64_t next[4] = {b.high ^ counter[1] ^ key[0], b.low, a.high ^ counter[3] ^ key[1], a.low};
        std::copy(next, next + 4, counter);
        key[0] += 0x9E3779B97F4A7C15u;
        key[1] += 0xBB67AE8584CAA73Bu;
    }
    return static_cast<double>(counter[draw % 4] >> 11) * 0x1p-53;
}

void run_loop(Decoder& decoder, Loop& loop, float* out) {
    std::vector<int32_t> history(loop.history.tokens, loop.history.tokens + loop.history.n);
    const size_t n_vocab = decoder.config().n_vocab;
    const float* logits = loop.logits;
    Input input;
    input.views = {loop.view};
    input.table = loop.table;
    if (!loop.hooks.empty()) {  // they change the row, and this one is not ours
        std::copy(logits, logits + n_vocab, out);
        logits = out;
    }
    std::vector<float> peaks(stretches(n_vocab));  // of the last pass's logits, unless hooks change them
    bool known = false;
    std::vector<std::vector<float>> scales(loop.adapters.size());  // of each adapter, for each row
    std::vector<int32_t> more, positions, lengths, view_of, slots;  // of the tokens of one pass
    loop.tokens.reserve(loop.most);
    while (loop.tokens.size() < loop.most) {
        SamplerHistory past = loop.history;
        past.tokens = history.data();
        past.n = history.size();
        for (const Hook& hook : loop.hooks) hook(out, n_vocab, past.tokens, past.n);
        // Greedy sampling draws nothing, as in Python.
        const double u = loop.params.temperature == 0.0f ? 0.0 : uniform(loop.seed, loop.index, loop.draws++);
        const auto begun = std::chrono::steady_clock::now();
        const int token = sample(logits, n_vocab, loop.params, past, u, known ? &peaks : nullptr);
        loop.sampling += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
        if (token < 0) {
            loop.error = token;
            return;
        }
        const size_t first = loop.tokens.size();
        loop.tokens.push_back(token);
        if (std::find(loop.ends.begin(), loop.ends.end(), token) != loop.ends.end()) return;
        if (loop.guide) {
            more.clear();
            const bool goes_on = loop.guide(token, loop.most - loop.tokens.size(), more);
            loop.tokens.insert(loop.tokens.end(), more.begin(), more.end());
            if (!goes_on) return;
        }
        const size_t n = loop.tokens.size() - first;
        history.insert(history.end(), loop.tokens.begin() + static_cast<std::ptrdiff_t>(first), loop.tokens.end());
        positions.resize(n);
        lengths.resize(n);
        view_of.assign(n, 0);
        slots.assign(n, loop.slot);
        for (size_t i = 0; i < n; ++i) {
            positions[i] = loop.position + static_cast<int32_t>(first + i);
            lengths[i] = static_cast<int32_t>(loop.length + first + i + 1);
        }
        input.n = n;
        input.wanted = {n - 1};
        input.view_of = view_of.data();
        input.tokens = loop.tokens.data() + first;
        input.positions = positions.data();
        input.cells = loop.cells + first;
        input.lengths = lengths.data();
        input.adapters.clear();
        for (size_t i = 0; i < scales.size(); ++i) {
            scales[i].assign(n, loop.adapters[i].second);
            input.adapters.emplace_back(loop.adapters[i].first, scales[i].data());
        }
        input.slots = loop.slot < 0 ? nullptr : slots.data();
        known = loop.hooks.empty();
        decoder.forward(input, out, false, known ? peaks.data() : nullptr);
        loop.n_run = loop.tokens.size();
        logits = out;
        if (loop.interrupt && __atomic_load_n(loop.interrupt, __ATOMIC_RELAXED)) return;
    }
}

}  // namespace stretto
