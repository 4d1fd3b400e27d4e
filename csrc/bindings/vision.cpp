// The image encoder as a Python class.

#include <nanobind/stl/string.h>

#include <cstring>

#include "bindings/bindings.h"
#include "vision/vision.h"

namespace stretto {

namespace {

using Input3 = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Rows3 = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Array3 = nb::ndarray<nb::numpy, float, nb::ndim<3>>;

constexpr size_t kMostSize = size_t{1} << 20;   // of any size that a caller names
constexpr size_t kMostNumbers = size_t{1} << 32;

Activation activation_named(const std::string& name) {
    if (name == "gelu") return Activation::kGelu;
    if (name == "quick_gelu") return Activation::kQuickGelu;
    if (name == "silu") return Activation::kSilu;
    if (name == "exact_gelu") return Activation::kExactGelu;
    if (name == "") return Activation::kNone;
    fail("there is no activation " + name);
}

Array3 copy_of(const Input3& x, size_t columns) {
    const size_t n = x.shape(0) * x.shape(1) * columns;
    float* data = new float[n];
    return Array3(data, {x.shape(0), x.shape(1), columns}, owner_of(data));
}

void check_rows(const Input3& x) {
    if (!x.shape(0) || !x.shape(1) || !x.shape(2)) fail("an array without numbers");
    if (x.shape(0) > kMostSize || x.shape(1) > kMostSize || x.shape(0) * x.shape(1) * x.shape(2) > kMostNumbers) {
        fail("an array of too many numbers");
    }
}

Vision* make(size_t n_embd, size_t n_ff, size_t n_head, float norm_eps, const std::string& activation, int threads,
             const std::string& kernels, const std::string& precision) {
    if (!n_embd || n_embd > kMostSize || !n_ff || n_ff > kMostSize || !n_head || n_embd % n_head) fail("sizes out of range");
    if (threads < 1 || threads > 1024) fail("threads out of range");
    const Kernels* table = kernels.empty() ? best_kernels() : kernels_named(kernels.c_str());
    if (!table) fail("no kernels called " + kernels);
    return new Vision(n_embd, n_ff, n_head, norm_eps, activation_named(activation), precision_named(precision), threads,
                      table);
}

void set_matrix(Vision& vision, const std::string& name, int code, size_t rows, size_t columns, Input1<uint8_t> data) {
    check_matrix(code, rows, columns, rows, data.shape(0));
    Unlocked unlocked;
    vision.set_matrix(name, code, rows, columns, data.data());
}

void set_vector(Vision& vision, const std::string& name, Input1<float> data) {
    vision.set_vector(name, data.data(), data.shape(0));
}

Array3 multiply(Vision& vision, const std::string& name, Input3 x, const std::string& activation) {
    const Matrix* matrix = vision.matrix(name + ".weight");
    const std::vector<float>* bias = vision.vector(name + ".bias");
    check_rows(x);
    if (!matrix || x.shape(2) != matrix->columns || (bias && bias->size() != matrix->rows)) {
        fail("no matrix " + name + " for rows of " + std::to_string(x.shape(2)));
    }
    if (x.shape(0) * x.shape(1) * matrix->rows > kMostNumbers) fail("an array of too many numbers");
    const Activation chosen = activation_named(activation);
    Array3 out = copy_of(x, matrix->rows);
    {
        Unlocked unlocked;
        vision.multiply(name, x.data(), x.shape(0) * x.shape(1), chosen, out.data());
    }
    return out;
}

Array3 norm(Vision& vision, const std::string& name, Input3 x, float eps) {
    check_rows(x);
    const std::vector<float>* weight = vision.vector(name + ".weight");
    const std::vector<float>* bias = vision.vector(name + ".bias");
    const size_t width = x.shape(2);
    if ((!weight && !name.empty()) || (weight && weight->size() != width) || (bias && bias->size() != width)) {
        fail("no norm " + name + " for rows of " + std::to_string(width));
    }
    Array3 out = copy_of(x, width);
    std::memcpy(out.data(), x.data(), x.size() * sizeof(float));
    {
        Unlocked unlocked;
        vision.norm(name, out.data(), x.shape(0) * x.shape(1), width, eps);
    }
    return out;
}

void set_clamp(Vision& vision, const std::string& name, float low, float high, float low_out, float high_out) {
    vision.set_clamp(name, {low, high, low_out, high_out});
}

void set_attention(Vision& vision, float scale, bool value_norm,
                   nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu> pairs) {
    const size_t size = vision.head_size();
    if (pairs.shape(0) > size) fail("more pairs than a head has numbers");
    std::vector<int32_t> found(pairs.data(), pairs.data() + pairs.size());
    for (const int32_t at : found) {
        if (at < 0 || static_cast<size_t>(at) >= size) fail("a pair that is not in a head");
    }
    vision.set_attention(scale, value_norm, std::move(found));
}

// The arrays of a piece of a block, checked: rows [first, last) of x.
void check_piece(const Vision& vision, const std::string& name, const Rows3& x, const Rows3& q, const Rows3& keys,
                 const Rows3& values, size_t first, size_t last) {
    const size_t n = x.shape(0), length = x.shape(1);
    if (!n || !length || n > kMostSize || length > kMostSize || n * length * vision.n_embd() > kMostNumbers) {
        fail("an array of too few or too many numbers");
    }
    for (const Rows3* one : {&x, &q, &keys, &values}) {
        if (one->shape(0) != n || one->shape(1) != length || one->shape(2) != vision.n_embd()) {
            fail("rows of the wrong size");
        }
    }
    if (first >= last || last > n * length) fail("rows out of range");
    const std::string missing = vision.missing(name);
    if (!missing.empty()) fail("the encoder is incomplete: " + missing);
}

void look(Vision& vision, const std::string& name, Rows3 x, Rows3 q, Rows3 keys, Rows3 values, Input3 rotation,
          size_t first, size_t last) {
    check_piece(vision, name, x, q, keys, values, first, last);
    if (vision.n_pairs() && (rotation.shape(0) != x.shape(1) || rotation.shape(1) != vision.n_pairs() ||
                             rotation.shape(2) != 2)) {
        fail("a rotation of the wrong size");
    }
    Unlocked unlocked;
    vision.look(name, x.data(), x.shape(1), first, last, rotation.data(), q.data(), keys.data(), values.data());
}

void mix(Vision& vision, const std::string& name, Rows3 x, Rows3 q, Rows3 keys, Rows3 values, Input1<int32_t> windows,
         size_t first, size_t last) {
    check_piece(vision, name, x, q, keys, values, first, last);
    const std::vector<int32_t> ends(windows.data(), windows.data() + windows.shape(0));
    int32_t start = 0;
    for (const int32_t end : ends) {
        if (end <= start) fail("windows out of order");
        start = end;
    }
    if (static_cast<size_t>(start) != x.shape(1)) fail("windows that are not all of an image");
    Unlocked unlocked;
    vision.mix(name, x.data(), x.shape(1), first, last, q.data(), keys.data(), values.data(), ends);
}

}  // namespace

void bind_vision(nb::module_& m) {
    nb::class_<Vision>(m, "Vision")
        .def(nb::new_(&make), nb::arg("n_embd"), nb::arg("n_ff"), nb::arg("n_head"), nb::arg("norm_eps"),
             nb::arg("activation"), nb::arg("threads"), nb::arg("kernels"), nb::arg("precision") = "standard")
        .def_prop_ro("threads", &Vision::threads)
        .def_prop_ro("kernels", [](const Vision& vision) { return vision.kernels().name; })
        .def("set_matrix", &set_matrix)
        .def("set_vector", &set_vector)
        .def("set_clamp", &set_clamp)
        .def("set_attention", &set_attention)
        .def("multiply", &multiply)
        .def("norm", &norm)
        .def("look", &look)
        .def("mix", &mix);
}

}  // namespace stretto
