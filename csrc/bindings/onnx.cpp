// Matrices for the operator of onnx/operator.cpp.

#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "onnx/product.h"

namespace stretto {

namespace {

constexpr size_t kMostThreads = 1024;

// Keeps a matrix registered. Sessions that were opened meanwhile have it longer.
class Registered {
public:
    Registered(int code, Input1<uint8_t> data, size_t rows, size_t columns, size_t threads, const std::string& kernels) {
        const Kernels& kernel = kernels_for(kernels);
        check_matrix(code, rows, columns, rows, data.shape(0));
        Layout layout;
        if (!layout_of(code, &layout) || is_float(layout) || columns % kBlock) fail("a quantised matrix is needed");
        if (threads < 1 || threads > kMostThreads) fail("threads must be 1 to " + std::to_string(kMostThreads));
        Unlocked unlocked;
        number_ = register_onnx_matrix(std::make_shared<OnnxMatrix>(kernel, code, data.data(), rows, columns, threads));
    }
    ~Registered() { forget_onnx_matrix(number_); }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
    int64_t number() const { return number_; }

private:
    int64_t number_ = 0;
};

}  // namespace

void bind_onnx(nb::module_& m) {
    nb::class_<Registered>(m, "OnnxMatrix", "A packed matrix that a graph of ONNX Runtime can multiply by its number.")
        .def(nb::init<int, Input1<uint8_t>, size_t, size_t, size_t, const std::string&>(), nb::arg("code"),
             nb::arg("data").noconvert(), nb::arg("rows"), nb::arg("columns"), nb::arg("threads"), nb::arg("kernels") = "")
        .def_prop_ro("number", &Registered::number);
}

}  // namespace stretto
