// Helpers that the binding files share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>

#include "bindings/unlocked.h"
#include "kernels/product.h"

namespace stretto {

namespace nb = nanobind;

template <typename T>
using Input1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Input2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Array1 = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <typename T>
using Array2 = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

// An owner that frees `data` when Python frees the array.
template <typename T>
nb::capsule owner_of(T* data) {
    return nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
}

// Arrays that own what they are made of.
template <typename T>
Array1<T> give(std::unique_ptr<T[]> data, size_t length) {
    T* raw = data.release();
    return Array1<T>(raw, {length}, owner_of(raw));
}
template <typename T>
Array2<T> give(std::unique_ptr<T[]> data, size_t rows, size_t columns) {
    T* raw = data.release();
    return Array2<T>(raw, {rows, columns}, owner_of(raw));
}

[[noreturn]] inline void fail(const std::string& message) { throw nb::value_error(message.c_str()); }

// The kernels of that name, or the best ones for "".
inline const Kernels& kernels_for(const std::string& name) {
    const Kernels* found = name.empty() ? best_kernels() : kernels_named(name.c_str());
    if (!found) fail("this machine cannot run the kernels '" + name + "'");
    return *found;
}

inline Precision precision_named(const std::string& name) {
    if (name != "standard" && name != "high") fail("precision must be 'standard' or 'high'");
    return name == "high" ? Precision::kHigh : Precision::kStandard;
}

inline CacheType cache_type_named(const std::string& kv) {
    if (kv != "f16" && kv != "q8" && kv != "f32") fail("kv must be 'f16', 'q8' or 'f32'");
    return kv == "q8" ? CacheType::kQ8 : kv == "f32" ? CacheType::kFloat : CacheType::kHalf;
}

// That a matrix of this format and shape can be, and that `count` of its rows fill `bytes`; else fails.
void check_matrix(int code, size_t rows, size_t columns, size_t count, size_t bytes);

void bind_formats(nb::module_& m);
void bind_quantize(nb::module_& m);
void bind_strings(nb::module_& m);
void bind_guard(nb::module_& m);
void bind_outline(nb::module_& m);
void bind_decoder(nb::module_& m);
void bind_sampler(nb::module_& m);
void bind_mixture(nb::module_& m);
void bind_ops(nb::module_& m);
void bind_recurrent(nb::module_& ops);
void bind_vision(nb::module_& m);
void bind_device_plan(nb::module_& m);
void bind_onnx(nb::module_& m);
void bind_experts(nb::module_& m);

}  // namespace stretto
