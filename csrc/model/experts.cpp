// A mixture of experts: rows are grouped by the experts that their router chose, so that each expert's matrices are read
// once for all its rows, and those of experts that no row chose are not touched.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "model/walk.h"
#include "weights/formats.h"

namespace stretto {

namespace {

void softmax(float* x, size_t n) {
    const float most = *std::max_element(x, x + n);
    float sum = 0.0f;
    for (size_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - most);
    for (size_t i = 0; i < n; ++i) x[i] /= sum;
}

// The `count` best of n by their scores, the best first, of equal ones the first; NaN is never better.
template <typename Score>
void best_of(size_t n, size_t count, Score score, int32_t* out) {
    for (size_t k = 0; k < count; ++k) {
        int32_t best = -1;
        for (size_t i = 0; i < n; ++i) {
            if (std::find(out, out + k, static_cast<int32_t>(i)) != out + k) continue;
            if (best < 0 || score(i) > score(best)) best = static_cast<int32_t>(i);
        }
        out[k] = best;
    }
}

// Marks the experts outside the best groups, by the sum of each group's best.
void keep_best_groups(const RoutingConfig& c, float* order, size_t n) {
    const size_t size = n / c.n_group;
    std::vector<float> sums(c.n_group);
    std::vector<int32_t> best(std::max(c.group_best, c.n_group_used));
    for (size_t g = 0; g < c.n_group; ++g) {
        const float* scores = order + g * size;
        best_of(size, c.group_best, [&](size_t i) { return scores[i]; }, best.data());
        for (size_t k = 0; k < c.group_best; ++k) sums[g] += scores[best[k]];
    }
    best_of(c.n_group, c.n_group_used, [&](size_t g) { return sums[g]; }, best.data());
    for (size_t g = 0; g < c.n_group; ++g) {
        if (std::find(best.begin(), best.begin() + c.n_group_used, static_cast<int32_t>(g)) !=
            best.begin() + c.n_group_used) {
            continue;
        }
        std::fill(order + g * size, order + (g + 1) * size, -std::numeric_limits<float>::infinity());
    }
}

// One expert after the other, each with its share in a softmax of those that are left and not much worse (SparseMixer):
// all whose distance from the best, as a share of the larger of both, is above 2 × jitter have no part in it.
void choose_one_by_one(const RoutingConfig& c, const float* scores, size_t n, int32_t* chosen, float* weights) {
    std::vector<float> left(scores, scores + n);
    for (size_t k = 0; k < c.n_used; ++k) {
        best_of(n, 1, [&](size_t i) { return left[i]; }, chosen + k);
        const float most = left[chosen[k]];
        float sum = 0.0f;
        for (size_t i = 0; i < n; ++i) {
            const float larger = std::max(std::abs(scores[i]), most);
            const bool is_worse = (most - scores[i]) / larger > 2.0f * c.jitter;
            if (!is_worse) sum += std::exp(left[i] - most);
        }
        weights[k] = 1.0f / sum;
        left[chosen[k]] = -std::numeric_limits<float>::infinity();
    }
}

// One row's experts and their weights, from the router's scores, which are changed.
void choose(const RoutingConfig& c, float* scores, size_t n, const std::vector<float>& correction, int32_t* chosen,
            float* weights) {
    if (c.weights == Weights::kOneByOne) return choose_one_by_one(c, scores, n, chosen, weights);
    if (c.weights == Weights::kSoftmax) softmax(scores, n);
    if (c.weights == Weights::kSigmoid) {
        for (size_t i = 0; i < n; ++i) scores[i] = 1.0f / (1.0f + std::exp(-scores[i]));
    }
    std::vector<float> order(scores, scores + n);
    for (size_t i = 0; i < correction.size(); ++i) order[i] += correction[i];
    if (c.n_group > 1) keep_best_groups(c, order.data(), n);
    best_of(n, c.n_used, [&](size_t i) { return order[i]; }, chosen);
    for (size_t k = 0; k < c.n_used; ++k) weights[k] = scores[chosen[k]];
    if (c.weights == Weights::kChosen) softmax(weights, c.n_used);
    if (c.normalize) {
        const float sum = std::accumulate(weights, weights + c.n_used, 0.0f);
        for (size_t k = 0; k < c.n_used; ++k) weights[k] /= sum;
    }
    for (size_t k = 0; k < c.n_used; ++k) weights[k] *= c.scale;
}

// An expert's weights that were not packed come from the file together, not page after page as kernels get to them.
void fetch(const std::vector<Matrix>& experts, size_t index) {
    if (experts.empty() || experts[index].data) return;
    const Matrix& w = experts[index];
    read_soon(w.source, bytes_of(w.format, w.rows, w.columns));
}

}  // namespace

void Decoder::Walk::place_groups(size_t columns) {
    const size_t each = columns_of(d_.precision_);
    size_t at = 0, rows = 0;
    for (Group& group : groups_) {
        group.in = plan_.gathered.from(at, columns);
        group.in.lanes = kernel_.lanes(each * group.count);
        group.floats = plan_.gathered_floats + rows * columns;
        at += pieces_of(each * group.count, kMostLanes) * kMostLanes;
        rows += group.count;
    }
}

// Alone, every thread does it for itself, as for all that is row by row.
void Decoder::Walk::route(size_t layer, int32_t* chosen, float* weights) {
    const ExpertsConfig& c = c_.layers[layer].experts;
    const ExpertWeights& w = d_.layers_[layer].experts;
    const size_t n_used = c.routing.n_used;
    std::vector<float> scores(c.n_expert);
    for (size_t row = first_; row < last_; ++row) {
        std::copy_n(plan_.scores + row * c.n_expert, c.n_expert, scores.begin());
        if (c.routing.bias) kernel_.add(scores.data(), w.router.bias.data(), c.n_expert);
        if (c.routing.score_scale != 1.0f) {
            for (float& score : scores) score *= c.routing.score_scale;
        }
        choose(c.routing, scores.data(), c.n_expert, w.correction, chosen + row * n_used, weights + row * n_used);
        for (size_t k = row * n_used; k < (row + 1) * n_used && c.output_scale; ++k) weights[k] *= w.output_scale[chosen[k]];
    }
    meet_if_shared();
}

// Every row's choices, sorted by expert. All threads do it, each for itself.
void Decoder::Walk::group_rows(const ExpertsConfig& c, const int32_t* chosen) {
    const size_t n_used = c.routing.n_used, pairs = n_ * n_used;
    std::vector<size_t> begins(c.n_expert + 1, 0);
    for (size_t p = 0; p < pairs; ++p) ++begins[chosen[p] + 1];
    for (size_t e = 0; e < c.n_expert; ++e) begins[e + 1] += begins[e];
    groups_.clear();
    for (size_t e = 0; e < c.n_expert; ++e) {
        if (begins[e + 1] > begins[e]) groups_.push_back({e, begins[e], begins[e + 1] - begins[e], {}, nullptr});
    }
    pair_rows_.resize(pairs);
    pair_of_.resize(pairs);
    for (size_t p = 0; p < pairs; ++p) {
        const size_t at = begins[chosen[p]]++;
        pair_rows_[at] = p / n_used;
        pair_of_[p] = at;
    }
}

// The rows that router, experts or the shared one read, quantised: the layer's own, or with a norm of theirs.
const float* Decoder::Walk::renormalize(const ExpertsConfig& c, const Norm& norm) {
    if (!c.renorms()) return normed_;
    const bool again = norm.config.there();
    for (size_t row = first_; row < last_ && again; ++row) {
        d_.normalize(norm, row_of(normed_, row), c_.n_embd, row_of(renormed_, row));
    }
    const float* rows = again ? renormed_ : normed_;
    quantize(rows, c_.n_embd);
    return rows;
}

// Leaves the sum of the experts in the thread's `sum_`.
void Decoder::Walk::experts(size_t layer) {
    const ExpertsConfig& c = c_.layers[layer].experts;
    const ExpertWeights& w = d_.layers_[layer].experts;
    if (!c.routing.early) {
        product(w.router.matrix, renormalize(c, w.router_norm), n_, plan_.scores, quantized_);
        meet();
    }
    std::vector<int32_t> own_chosen(alone_ ? c.routing.n_used : 0);
    std::vector<float> own_weights(own_chosen.size());
    int32_t* chosen = alone_ ? own_chosen.data() : plan_.chosen;
    float* weights = alone_ ? own_weights.data() : plan_.chosen_weights;
    route(layer, chosen, weights);
    if (!input_.taps.empty()) show_experts(layer, chosen, weights);
    mix(layer, chosen, weights);
}

// What the chosen experts make of the normalised rows, which are quantised, and the shared one, into the thread's `sum_`.
void Decoder::Walk::mix(size_t layer, const int32_t* chosen, const float* weights) {
    const ExpertsConfig& c = c_.layers[layer].experts;
    const ExpertWeights& w = d_.layers_[layer].experts;
    const size_t n_ff = c.expert.n_ff, n_embd = c_.n_embd, each = columns_of(d_.precision_);
    group_rows(c, chosen);
    for (size_t g = thread_; g < groups_.size(); g += n_threads_) {
        for (const auto* matrices : {&w.gates, &w.ups, &w.downs}) fetch(*matrices, groups_[g].index);
    }

    const float* rows = renormalize(c, w.norm);
    if (alone_) {  // all experts read the same row
        for (Group& group : groups_) group.in = quantized_, group.floats = rows;
    } else {
        place_groups(n_embd);
        gather(n_embd, is_float(w.ups[0].layout), [&](const Group& group, size_t row) {
            return rows + pair_rows_[group.first + row] * n_embd;
        });
    }
    float* up_out = c.expert.gated ? plan_.expert_up : plan_.expert_gate;
    // What an expert's input is multiplied with: its products are, which is the same.
    const auto share_of = [&](size_t pair) {
        const size_t row = pair_rows_[pair];
        for (size_t k = row * c.routing.n_used;; ++k) if (pair_of_[k] == pair) return weights[k];
    };
    each_group(w.ups[0].panels(), [&](const Group& group, size_t begin, size_t end) {
        const Rows inputs{group.in, group.floats, 0, group.count};
        const size_t at = group.first * n_ff, from = begin * kPanelRows, to = std::min(end * kPanelRows, n_ff);
        if (c.expert.gated) {
            d_.multiply(w.gates[group.index], inputs, begin, end, plan_.expert_gate + at, mine_.product);
        }
        d_.multiply(w.ups[group.index], inputs, begin, end, up_out + at, mine_.product);
        const size_t bias = group.index * n_ff + from;
        for (size_t row = 0; row < group.count; ++row) {
            const float share = c.weighs_inputs ? share_of(group.first + row) : 1.0f;
            for (float* made : {plan_.expert_gate, plan_.expert_up}) {
                if (!c.weighs_inputs || (made == plan_.expert_up && !c.expert.gated)) continue;
                for (size_t i = from; i < to; ++i) made[at + row * n_ff + i] *= share;
            }
            activate(c.expert, c.expert.bias && c.expert.gated ? w.gate_bias.data() + bias : nullptr,
                     c.expert.bias ? w.up_bias.data() + bias : nullptr, c.limit, c.alpha,
                     plan_.expert_gate + at + row * n_ff + from, up_out + at + row * n_ff + from, to - from);
        }
    });
    const float* shared = nullptr;
    if (c.has_shared) {
        const Quantized& inner = dense(c.shared, w.shared, renormalize(c, w.shared_norm));  // meets
        product(w.shared.down.matrix, plan_.gate, n_, plan_.added, inner);
        shared = plan_.added;
    } else {
        meet();
    }

    if (alone_) {
        size_t at = 0;
        for (Group& group : groups_) {
            group.in = mine_.experts.from(at, n_ff);
            group.in.lanes = kernel_.lanes(each);
            group.floats = plan_.expert_gate + group.first * n_ff;
            if (n_ff % kBlock == 0) quantize_activations(kernel_, d_.precision_, group.floats, n_ff, 0, group.in);
            at += kMostLanes;
        }
    } else {
        place_groups(n_ff);
        gather(n_ff, is_float(w.downs[0].layout), [&](const Group& group, size_t row) {
            return plan_.expert_gate + (group.first + row) * n_ff;
        });
    }
    each_group(w.downs[0].panels(), [&](const Group& group, size_t begin, size_t end) {
        d_.multiply(w.downs[group.index], {group.in, group.floats, 0, group.count}, begin, end,
                    plan_.grouped + group.first * n_embd, mine_.product);
    });
    meet();
    combine(layer, chosen, weights, shared);
}

// The sum of a row's experts, in the order of its choices, and then the shared one: one order, whatever else is in the batch.
void Decoder::Walk::combine(size_t layer, const int32_t* chosen, const float* weights, const float* shared) {
    const ExpertsConfig& c = c_.layers[layer].experts;
    const ExpertWeights& w = d_.layers_[layer].experts;
    const size_t n_used = c.routing.n_used, n = c_.n_embd;
    for (size_t row = first_; row < last_; ++row) {
        float* sum = row_of(sum_, row);
        std::fill(sum, sum + n, 0.0f);
        for (size_t k = row * n_used; k < (row + 1) * n_used; ++k) {
            const float* out = plan_.grouped + pair_of_[k] * n;
            const float* bias = c.expert.bias ? w.down_bias.data() + chosen[k] * n : nullptr;
            const float weight = c.weighs_inputs ? 1.0f : weights[k];
            for (size_t i = 0; i < n; ++i) sum[i] += weight * (bias ? out[i] + bias[i] : out[i]);
        }
        if (c.post_norm.there()) d_.normalize(w.post_norm, sum, n, sum);
        if (shared) {
            float factor = c.shared_scale;
            if (c.shared_gate) {
                double score = 0.0;
                for (size_t i = 0; i < n; ++i) score += double{row_of(normed_, row)[i]} * double{w.shared_gate[i]};
                factor *= static_cast<float>(1.0 / (1.0 + std::exp(-score)));
            }
            const float* bias = c.shared.bias ? w.shared.down.bias.data() : nullptr;
            const float* out = row_of(const_cast<float*>(shared), row);
            if (c.shared_post_norm.there()) {
                float* normed = row_of(renormed_, row);
                std::memcpy(normed, out, n * sizeof(float));
                if (bias) kernel_.add(normed, bias, n);
                d_.normalize(w.shared_post_norm, normed, n, normed);
                out = normed;
                bias = nullptr;
            }
            for (size_t i = 0; i < n; ++i) sum[i] += factor * (bias ? out[i] + bias[i] : out[i]);
        }
    }
}

void Decoder::Walk::mix_given(size_t layer, const GivenRows& given) {
    task_ = kLayerTasks * layer;
    for (size_t row = first_; row < last_; ++row) {
        std::memcpy(row_of(normed_, row), given.rows + given.live[row] * c_.n_embd, c_.n_embd * sizeof(float));
    }
    quantize(normed_, c_.n_embd);
    mix(layer, plan_.chosen, plan_.chosen_weights);
    for (size_t row = first_; row < last_ && (!alone_ || thread_ == 0); ++row) {
        std::memcpy(given.out + given.live[row] * c_.n_embd, row_of(sum_, row), c_.n_embd * sizeof(float));
    }
}

bool Decoder::mix_experts(size_t layer, const float* rows, const int32_t* chosen, const float* weights, size_t n, float* out) {
    const ExpertsConfig& c = config_.layers[layer].experts;
    const size_t n_used = c.routing.n_used;
    std::fill(out, out + n * config_.n_embd, 0.0f);
    GivenRows given{rows, {}, out};
    for (size_t row = 0; row < n; ++row) {
        const int32_t* its = chosen + row * n_used;
        const auto is_none = [](int32_t e) { return e == kNoExpert; };
        const auto is_one = [&](int32_t e) { return e >= 0 && static_cast<size_t>(e) < c.n_expert; };
        if (std::all_of(its, its + n_used, is_none)) continue;
        if (!std::all_of(its, its + n_used, is_one)) return false;
        given.live.push_back(row);
    }
    if (given.live.empty()) return true;
    const Turn turn(&pool_);
    has_passed_ = true;
    Input input{};
    input.n = given.live.size();
    Plan plan;
    plan.input = &input;
    plan.most = widths_;
    plan.alone = input.n == 1;
    plan.split.assign(layers_.size(), 0);
    plan.spans = 1;
    plan.out = out;
    plan.hidden = true;
    carve(plan);
    plan.cursors = Cursors(layers_.size() * kLayerTasks + kOtherTasks, pool_.size());
    for (size_t row = 0; row < input.n; ++row) {
        std::copy_n(chosen + given.live[row] * n_used, n_used, plan.chosen + row * n_used);
        std::copy_n(weights + given.live[row] * n_used, n_used, plan.chosen_weights + row * n_used);
    }
    const auto job = [&](int thread) { Walk(*this, plan, thread).mix_given(layer, given); };
    pool_.run(job, Measured::kYes, input.n);
    return true;
}

}  // namespace stretto
