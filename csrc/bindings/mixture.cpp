// The mixture of a set's distributions as a Python class.

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <vector>

#include "bindings/decoder.h"
#include "bindings/sampler.h"
#include "sampling/mixture.h"

namespace stretto {

namespace {

using Table = std::vector<std::vector<double>>;

// A mixture, and the array that its rows are in.
class BoundMixture {
public:
    BoundMixture(Input2<float> rows, const std::vector<size_t>& order, float temperature, Decoder* decoder)
        : rows_(std::move(rows)) {
        const size_t n = rows_.shape(1);
        if (order.empty()) fail("a mixture needs at least one row");
        check_row_length(n);
        if (!(temperature > 0.0f)) fail("the temperature must be above 0");
        std::vector<const float*> members;
        for (const size_t row : order) {
            if (row >= rows_.shape(0)) fail("the order names a row that is not there");
            members.push_back(rows_.data() + row * n);
        }
        Unlocked unlocked;
        const Turn turn(pool_of(decoder));
        mixture_ = std::make_unique<Mixture>(members, n, temperature, pool_of(decoder));
    }

    int error() const { return mixture_->error(); }

    std::tuple<int32_t, std::vector<int32_t>, std::vector<float>> pick(const std::vector<double>& weights,
                                                                       float threshold, size_t most) const {
        if (mixture_->error()) fail("a row is no distribution");
        if (weights.size() != mixture_->members()) fail("a weight is needed for each row");
        double total = 0.0;
        for (const double weight : weights) {
            if (!(weight >= 0.0)) fail("weights must not be below 0");
            total += weight;
        }
        if (!(total > 0.0) || !(threshold >= 0.0f) || most < 1) fail("a weight and a token are needed");
        const Picked picked = mixture_->pick(weights, threshold, most);
        return {picked.best, picked.tokens, picked.probabilities};
    }

    Table probabilities(const std::vector<size_t>& tokens) const {
        return table(tokens, [&](size_t i, size_t token) { return mixture_->probability(i, token); });
    }

    Table log_probabilities(const std::vector<size_t>& tokens) const {
        return table(tokens, [&](size_t i, size_t token) { return mixture_->log_probability(i, token); });
    }

private:
    // What f says of each member and each token, as a float.
    template <typename F>
    Table table(const std::vector<size_t>& tokens, F f) const {
        for (const size_t token : tokens) {
            if (token >= mixture_->n_vocab()) fail("the token has no logit");
        }
        Table values(mixture_->members());
        for (size_t i = 0; i < values.size(); ++i) {
            for (const size_t token : tokens) values[i].push_back(double{static_cast<float>(f(i, token))});
        }
        return values;
    }

    Input2<float> rows_;
    std::unique_ptr<const Mixture> mixture_;
};

}  // namespace

void bind_mixture(nb::module_& m) {
    nb::class_<BoundMixture>(m, "Mixture", "The distributions of rows of logits, and the best tokens of their mixture.")
        .def(nb::init<Input2<float>, const std::vector<size_t>&, float, Decoder*>(), nb::arg("rows").noconvert(),
             nb::arg("order"), nb::arg("temperature") = 1.0f, nb::arg("decoder").none() = nb::none(),
             "A decoder lends its threads; no pass may run meanwhile.")
        .def_prop_ro("error", &BoundMixture::error,
                     "0, or what is wrong with a row: -1 (NaN), -2 (everything excluded), -3 (infinity).")
        .def("pick", &BoundMixture::pick, nb::arg("weights"), nb::arg("threshold"), nb::arg("most"),
             "The best token; and those that reach the threshold, at most so many, with their probabilities.")
        .def("probabilities", &BoundMixture::probabilities, nb::arg("tokens"), "Of tokens, in each row.")
        .def("log_probabilities", &BoundMixture::log_probabilities, nb::arg("tokens"), "Of tokens, in each row.");
}

}  // namespace stretto
