// The module that Python sees. Every argument is checked in the binding files; nothing behind them checks again.

#include "bindings/bindings.h"

#include "bindings/probe.h"

NB_MODULE(_native, m) {
    nanobind::set_leak_warnings(false);  // a model that is still open when the interpreter exits is no bug
    m.doc() = "The native core of Stretto.";
    stretto::bind_formats(m);
    stretto::bind_quantize(m);
    stretto::bind_strings(m);
    stretto::bind_guard(m);
    stretto::bind_outline(m);
    stretto::bind_decoder(m);
    stretto::bind_sampler(m);
    stretto::bind_mixture(m);
    stretto::bind_ops(m);
    stretto::bind_probe(m);
    stretto::bind_vision(m);
    stretto::bind_device_plan(m);
    stretto::bind_onnx(m);
    stretto::bind_experts(m);
    m.def("finish_unlocked", &stretto::finish_unlocked, nanobind::arg("seconds"),
          "Wait until no native code runs in other threads; what comes later keeps the interpreter's lock.");
    // Registered first, so it runs last.
    nanobind::module_::import_("atexit").attr("register")(m.attr("finish_unlocked"), 60.0);
}
