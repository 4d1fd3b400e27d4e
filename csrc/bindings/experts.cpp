// Experts for rows from outside: a task has fixed arrays, so that a device's driver can run it between two of its own
// kernels, by the address of a function and of the task, without the interpreter.

#include <algorithm>
#include <atomic>
#include <limits>

#include "bindings/decoder.h"

namespace stretto {

namespace {

template <typename T>
using Given2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::atomic<size_t> n_failures{0};  // of all tasks

// One layer's experts for up to n rows. It holds its arrays, and Python its decoder.
class ExpertTask {
public:
    ExpertTask(Decoder& decoder, size_t layer, Input2<float> rows, Input2<int32_t> chosen, Input2<float> weights,
               Given2<float> out)
        : decoder_(decoder), layer_(layer), rows_(std::move(rows)), chosen_(std::move(chosen)), weights_(std::move(weights)),
          out_(std::move(out)) {
        const Config& c = decoder_.config();
        check_complete(decoder_);
        if (layer >= c.layers.size() || c.layers[layer].ffn != FeedForwardKind::kExperts) fail("the layer has no experts");
        const ExpertsConfig& e = c.layers[layer].experts;
        const size_t n = rows_.shape(0), n_used = e.routing.n_used;
        if (e.has_shared || e.renorms() || e.post_norm.there()) fail("only experts that read and give plain rows take a task");
        if (rows_.shape(1) != c.n_embd || out_.shape(0) != n || out_.shape(1) != c.n_embd || chosen_.shape(0) != n ||
            chosen_.shape(1) != n_used || weights_.shape(0) != n || weights_.shape(1) != n_used) {
            fail("the arrays of a task do not fit together");
        }
    }

    void run() noexcept {
        bool done = false;
        try {
            done = decoder_.mix_experts(layer_, rows_.data(), chosen_.data(), weights_.data(), rows_.shape(0), out_.data());
        } catch (...) {  // memory ran out; a driver's thread takes no exception
        }
        if (done) return;
        std::fill_n(out_.data(), out_.size(), std::numeric_limits<float>::quiet_NaN());
        failed_.store(true, std::memory_order_relaxed);
        ++n_failures;
    }

    // Whether a run failed since this was last asked.
    bool take_failure() { return failed_.exchange(false, std::memory_order_relaxed); }

private:
    Decoder& decoder_;
    size_t layer_;
    Input2<float> rows_;
    Input2<int32_t> chosen_;
    Input2<float> weights_;
    Given2<float> out_;
    std::atomic<bool> failed_{false};
};

void run_task(void* task) { static_cast<ExpertTask*>(task)->run(); }

}  // namespace

void bind_experts(nb::module_& m) {
    m.attr("expert_function") = reinterpret_cast<uintptr_t>(&run_task);
    m.def("expert_failures", [] { return n_failures.load(); }, "How many runs of tasks failed so far.");
    nb::class_<ExpertTask>(m, "ExpertTask", "A layer's experts for rows that lie where they are, as a driver's callback runs them.")
        .def(nb::init<Decoder&, size_t, Input2<float>, Input2<int32_t>, Input2<float>, Given2<float>>(), nb::arg("decoder"),
             nb::arg("layer"), nb::arg("rows").noconvert(), nb::arg("chosen").noconvert(), nb::arg("weights").noconvert(),
             nb::arg("out").noconvert(), nb::keep_alive<1, 2>())
        .def("run",
             [](ExpertTask& task) {
                 Unlocked unlocked;
                 task.run();
             })
        .def("take_failure", &ExpertTask::take_failure)
        .def_prop_ro("address", [](ExpertTask& task) { return reinterpret_cast<uintptr_t>(&task); });
}

}  // namespace stretto
