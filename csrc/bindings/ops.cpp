// The operators of the decoder one by one, as `_native.ops`: what the tests compare with numpy.
//
// Memory is taken in exact sizes here, so that a sanitizer sees a kernel that steps outside.

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "model/adapter.h"
#include "model/rope.h"
#include "threads/governor.h"
#include "weights/half.h"

namespace stretto {

namespace {

constexpr size_t kMostColumns = size_t{1} << 24;

template <typename T>
using Input3 = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Array3 = nb::ndarray<nb::numpy, T, nb::ndim<3>>;

void check_same(const Input2<float>& a, const Input2<float>& b) {
    if (a.shape(0) != b.shape(0) || a.shape(1) != b.shape(1)) fail("both arrays must have the same shape");
}

void check_filled(size_t rows, size_t columns) {
    if (!rows || !columns || columns > kMostColumns) fail("an array of this shape cannot be");
}

template <typename T>
std::unique_ptr<T[]> room(size_t n) { return std::unique_ptr<T[]>(new T[n]); }

// Rows of activations as int8.
struct Activations {
    size_t blocks;  // of 32, of all rows
    std::unique_ptr<int8_t[]> q;
    std::unique_ptr<float[]> scale, scaled;
    std::unique_ptr<int32_t[]> sums;
    size_t lanes;

    Activations(const Kernels& kernel, Precision precision, const float* x, size_t n, size_t columns, size_t n_lanes)
        : blocks((columns_of(precision) * n + n_lanes - 1) / n_lanes * n_lanes * (columns / kBlock)),
          q(room<int8_t>(blocks * kBlock)),
          scale(room<float>(blocks)),
          scaled(room<float>(blocks)),
          sums(room<int32_t>(2 * blocks)),
          lanes(n_lanes) {
        for (size_t row = 0; row < n; ++row) quantize_activations(kernel, precision, x + row * columns, columns, row, view());
    }
    Quantized view() const { return {q.get(), scale.get(), scaled.get(), sums.get(), lanes}; }
};

// A matrix with the memory it is in.
struct Packed {
    std::vector<uint8_t> bytes;
    Matrix matrix;

    Packed(int code, const Input1<uint8_t>& data, size_t rows, size_t columns) {
        check_matrix(code, rows, columns, rows, data.shape(0));
        Layout layout;
        if (!layout_of(code, &layout)) fail("format " + std::to_string(code) + " cannot be multiplied");
        matrix = matrix_for(layout, rows, columns, code);
        bytes.resize(matrix.bytes());
        matrix.data = bytes.data();
        Unlocked unlocked;
        pack_panels(code, data.data(), matrix, 0, matrix.panels(), bytes.data());
    }

    // float32[n, rows]
    void multiply(const Kernels& kernel, const float* x, size_t n, float* out,
                  Precision precision = Precision::kStandard) const {
        const size_t columns = is_float(matrix.layout) ? 0 : matrix.columns;
        const Activations a(kernel, precision, x, n, columns, kernel.lanes(columns_of(precision) * n));
        const auto pairs = room<float>(precision == Precision::kHigh ? kPairFloats : 0);
        ProductScratch scratch;
        scratch.pairs = pairs.get();
        multiply_activations(kernel, precision, matrix, {a.view(), x, 0, n}, 0, matrix.panels(), out, scratch);
    }
};

using QuantizedRows = std::tuple<Array2<int8_t>, Array2<float>, Array2<float>, Array2<int32_t>>;

QuantizedRows quantize_rows(Input2<float> x, const std::string& kernels, const std::string& precision) {
    const Kernels& kernel = kernels_for(kernels);
    const Precision chosen = precision_named(precision);
    const size_t columns = x.shape(1), n = columns_of(chosen) * x.shape(0);
    check_filled(n, columns);
    if (columns % kBlock) fail("rows must be whole blocks of " + std::to_string(kBlock));
    Activations a(kernel, chosen, x.data(), x.shape(0), columns, 1);
    return {give(std::move(a.q), n, columns), give(std::move(a.scale), n, columns / kBlock),
            give(std::move(a.scaled), n, columns / kBlock), give(std::move(a.sums), n, columns / 16)};
}

Array2<float> matmul(int code, Input1<uint8_t> data, size_t rows, size_t columns, Input2<float> x,
                     const std::string& kernels, const std::string& precision) {
    const Kernels& kernel = kernels_for(kernels);
    const Precision chosen = precision_named(precision);
    const size_t n = x.shape(0);
    if (!n || x.shape(1) != columns) fail("x must have rows of `columns` numbers");
    const Packed w(code, data, rows, columns);
    auto out = room<float>(n * rows);
    {
        Unlocked unlocked;
        w.multiply(kernel, x.data(), n, out.get(), chosen);
    }
    return give(std::move(out), n, rows);
}

// y + B x, where B has rows of Q8_0 in whole blocks and x is zero from column `rank` on.
Array2<float> add_narrow(Input1<uint8_t> data, size_t rank, Input2<float> x, Input2<float> y, const std::string& kernels) {
    constexpr int kQ8_0 = 8;
    const Kernels& kernel = kernels_for(kernels);
    const size_t n = x.shape(0), columns = x.shape(1), rows = y.shape(1);
    check_filled(n, rows);
    if (y.shape(0) != n || !rank || columns != (rank + kBlock - 1) / kBlock * kBlock) fail("x and y must have fitting shapes");
    check_matrix(kQ8_0, rows, columns, rows, data.shape(0));
    Matrix b = narrow_matrix(rows, rank, kQ8_0);
    const auto packed = room<uint8_t>(b.bytes());
    pack_narrow(data.data(), b, packed.get());
    b.data = packed.get();
    const Activations a(kernel, Precision::kStandard, x.data(), n, columns, 1);
    auto out = room<float>(n * rows);
    std::copy_n(y.data(), n * rows, out.get());
    for (size_t row = 0; row < n; ++row) kernel.add_narrow(b, a.view(), row, rank, 0, b.panels(), out.get() + row * rows);
    return give(std::move(out), n, rows);
}

Array2<float> unpack(int code, Input1<uint8_t> data, size_t rows, size_t columns) {
    const Packed w(code, data, rows, columns);
    auto out = room<float>(rows * columns);
    for (size_t row = 0; row < rows; ++row) read_row(w.matrix, row, out.get() + row * columns);
    return give(std::move(out), rows, columns);
}

size_t packed_bytes(int code, size_t rows, size_t columns) {
    Layout layout;
    if (!layout_of(code, &layout)) fail("format " + std::to_string(code) + " cannot be multiplied");
    return matrix_for(layout, rows, columns, code).bytes();
}

Array2<float> rms_norm(Input2<float> x, Input1<float> weight, float eps, const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    const size_t n = x.shape(0), columns = x.shape(1);
    check_filled(n, columns);
    if (weight.shape(0) != columns) fail("a weight for each column is needed");
    auto out = room<float>(n * columns);
    for (size_t row = 0; row < n; ++row) {
        kernel.rms_norm(x.data() + row * columns, weight.data(), columns, eps, out.get() + row * columns);
    }
    return give(std::move(out), n, columns);
}

// Calls f(row, other row, columns) on a copy of x, which is then given.
template <typename F>
Array2<float> by_rows(const Input2<float>& x, const Input2<float>& y, F f) {
    check_same(x, y);
    const size_t n = x.shape(0), columns = x.shape(1);
    check_filled(n, columns);
    auto out = room<float>(n * columns);
    std::copy_n(x.data(), n * columns, out.get());
    for (size_t row = 0; row < n; ++row) f(out.get() + row * columns, y.data() + row * columns, columns);
    return give(std::move(out), n, columns);
}

Array2<float> add(Input2<float> x, Input2<float> y, const std::string& kernels) {
    return by_rows(x, y, kernels_for(kernels).add);
}
Array2<float> silu(Input2<float> gate, Input2<float> up, const std::string& kernels) {
    return by_rows(gate, up, kernels_for(kernels).silu);
}
Array2<float> gelu(Input2<float> gate, Input2<float> up, const std::string& kernels) {
    return by_rows(gate, up, kernels_for(kernels).gelu);
}

Array2<float> gelu_erf(Input2<float> gate, Input2<float> up, const std::string& kernels) {
    return by_rows(gate, up, kernels_for(kernels).gelu_erf);
}

// down · (activation(gate · x) × up · x); the three matrices have one format.
Array2<float> ffn(int code, Input1<uint8_t> gate, Input1<uint8_t> up, Input1<uint8_t> down, size_t n_ff,
                  Input2<float> x, const std::string& activation, const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    if (activation != "silu" && activation != "gelu") fail("activation must be 'silu' or 'gelu'");
    const size_t n = x.shape(0), n_embd = x.shape(1);
    check_filled(n, n_embd);
    const Packed g(code, gate, n_ff, n_embd), u(code, up, n_ff, n_embd), d(code, down, n_embd, n_ff);
    auto wide = room<float>(n * n_ff), other = room<float>(n * n_ff), out = room<float>(n * n_embd);
    {
        Unlocked unlocked;
        g.multiply(kernel, x.data(), n, wide.get());
        u.multiply(kernel, x.data(), n, other.get());
        (activation == "gelu" ? kernel.gelu : kernel.silu)(wide.get(), other.get(), n * n_ff);
        d.multiply(kernel, wide.get(), n, out.get());
    }
    return give(std::move(out), n, n_embd);
}

// Heads [n][size] at positions [n].
Array2<float> rope(Input2<float> x, Input1<int32_t> positions, Input1<double> frequencies, const std::string& pairs,
                   double magnitude) {
    const size_t n = x.shape(0), size = x.shape(1), count = frequencies.shape(0);
    check_filled(n, size);
    if (pairs != "adjacent" && pairs != "halves") fail("pairs must be 'adjacent' or 'halves'");
    if (positions.shape(0) != n) fail("a position for each row is needed");
    if (2 * count > size) fail("more rotated numbers than a head has");
    auto out = room<float>(n * size);
    std::copy_n(x.data(), n * size, out.get());
    std::vector<float> cos(count), sin(count);
    for (size_t row = 0; row < n; ++row) {
        angles(positions.data()[row], frequencies.data(), count, magnitude, cos.data(), sin.data());
        rotate(out.get() + row * size, cos.data(), sin.data(), count, pairs == "adjacent");
    }
    return give(std::move(out), n, size);
}

Array2<uint8_t> store_heads(Input2<float> x, const std::string& kv, const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    const CacheType type = cache_type_named(kv);
    const size_t n = x.shape(0), size = x.shape(1), bytes = head_bytes(type, size);
    check_filled(n, size);
    auto out = room<uint8_t>(n * bytes);
    for (size_t row = 0; row < n; ++row) kernel.store_head(type, x.data() + row * size, size, out.get() + row * bytes);
    return give(std::move(out), n, bytes);
}

Array2<float> load_heads(Input2<uint8_t> data, size_t head_size, const std::string& kv, const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    const CacheType type = cache_type_named(kv);
    const size_t n = data.shape(0);
    check_filled(n, head_size);
    const size_t bytes = head_bytes(type, head_size);
    if (data.shape(1) != bytes) fail("a head of this size has " + std::to_string(bytes) + " bytes");
    std::vector<uint8_t> head(bytes);
    std::vector<float> numbers(padded(head_size));
    auto out = room<float>(n * head_size);
    for (size_t row = 0; row < n; ++row) {
        std::copy_n(data.data() + row * bytes, bytes, head.data());  // wherever the array was, this is aligned
        kernel.load_head(type, head.data(), head_size, numbers.data());
        std::copy_n(numbers.data(), head_size, out.get() + row * head_size);
    }
    return give(std::move(out), n, head_size);
}

struct Range {
    size_t first, last;
};

// The part of a view that any of the rows sees.
Range seen_by_rows(const Input1<int32_t>& view, const Input1<int32_t>& begins, const Input1<int32_t>& ends,
                   size_t rows, size_t cells) {
    if (begins.shape(0) != rows || ends.shape(0) != rows) fail("begins and ends are needed for each row");
    for (size_t i = 0; i < view.shape(0); ++i) {
        const int32_t cell = view.data()[i];
        if (cell < 0 || static_cast<size_t>(cell) >= cells) fail("a view entry is out of range");
    }
    Range seen{view.shape(0), 0};
    for (size_t row = 0; row < rows; ++row) {
        const int32_t begin = begins.data()[row], end = ends.data()[row];
        if (begin < 0 || end <= begin || static_cast<size_t>(end) > view.shape(0)) fail("a row's part is out of range");
        seen.first = std::min(seen.first, static_cast<size_t>(begin));
        seen.last = std::max(seen.last, static_cast<size_t>(end));
    }
    return seen;
}

struct Part {
    std::vector<float> max, sum, out;

    Part(size_t count, size_t width) : max(count), sum(count), out(count * width) {}
    Partial view() { return {max.data(), sum.data(), out.data()}; }
};

// Span after span, merged in order, as the decoder does it.
void attend_spans(const Kernels& kernel, const Attention& a, Range seen, float* out) {
    const size_t count = a.rows * a.group, width = padded(a.head_size);
    Part total(count, width), part(count, width);
    const size_t start = seen.first / kSpan * kSpan;
    kernel.attend(a, start, std::min(start + kSpan, seen.last), total.view());
    for (size_t at = start + kSpan; at < seen.last; at += kSpan) {
        kernel.attend(a, at, std::min(at + kSpan, seen.last), part.view());
        kernel.merge(count, a.head_size, total.view(), part.view());
    }
    for (size_t i = 0; i < count; ++i) {
        const float inverse = 1.0f / total.sum[i];
        for (size_t j = 0; j < a.head_size; ++j) out[i * a.head_size + j] = total.out[i * width + j] * inverse;
    }
}

// Attention of a block of rows that share a view: queries [rows][group][size], K and V [cells][size], which
// go through the cache. Row r sees entries begins[r] … ends[r] − 1 of the view.
Array3<float> attention(Input3<float> queries, Input2<float> keys, Input2<float> values, Input1<int32_t> view,
                        Input1<int32_t> begins, Input1<int32_t> ends, float scale, float cap,
                        const std::string& kv, const std::string& kernels) {
    const Kernels& kernel = kernels_for(kernels);
    const CacheType type = cache_type_named(kv);
    const size_t rows = queries.shape(0), group = queries.shape(1), size = queries.shape(2), cells = keys.shape(0);
    check_filled(rows, group);
    check_filled(cells, size);
    check_same(keys, values);
    if (!(cap >= 0.0f)) fail("cap must not be negative");
    if (keys.shape(1) != size) fail("keys and queries must have the same head size");
    const Range seen = seen_by_rows(view, begins, ends, rows, cells);

    const size_t stride = head_bytes(type, size);
    std::vector<uint8_t> k(cells * stride), v(cells * stride);
    std::vector<float> scratch(attention_scratch(size, rows, group));
    std::vector<size_t> places(view.shape(0) + kPlacesBehind);
    auto out = room<float>(rows * group * size);
    {
        Unlocked unlocked;
        for (size_t cell = 0; cell < cells; ++cell) {
            kernel.store_head(type, keys.data() + cell * size, size, k.data() + cell * stride);
            kernel.store_head(type, values.data() + cell * size, size, v.data() + cell * stride);
        }
        Attention a;
        a.type = type;
        a.finite = type == CacheType::kHalf && finite_halves(k.data(), cells * size) && finite_halves(v.data(), cells * size);
        a.keys = k.data();
        a.values = v.data();
        place_cells(view.data(), view.shape(0), stride, kCellBlock * stride, places.data());
        a.places = places.data();
        a.head_size = size;
        a.group = group;
        a.scale = scale;
        a.cap = cap;
        a.queries = queries.data();
        a.query_stride = group * size;
        a.begins = begins.data();
        a.ends = ends.data();
        a.rows = rows;
        a.scratch = scratch.data();
        attend_spans(kernel, a, seen, out.get());
    }
    float* raw = out.release();
    return Array3<float>(raw, {rows, group, size}, owner_of(raw));
}

}  // namespace

void bind_ops(nb::module_& m) {
    nb::module_ ops = m.def_submodule("ops", "The operators of the decoder, each callable alone.");
    nb::class_<Governor>(ops, "Governor", "How many threads of a pool to use.")
        .def(nb::init<int>(), nb::arg("most"))
        .def("add", &Governor::add, nb::arg("wall"), nb::arg("computed"), nb::arg("now"),
             nb::arg("kind") = 0)
        .def_prop_ro("active", &Governor::active);
    const auto kernels = nb::arg("kernels") = "";
    const auto precision = nb::arg("precision") = "standard";
    ops.def("quantize_rows", &quantize_rows, nb::arg("x").noconvert(), kernels, precision,
            "int8 rows, their scales, scale × sum of each block, and sums of 16; two for each row in high precision.");
    ops.def("matmul", &matmul, nb::arg("code"), nb::arg("data").noconvert(), nb::arg("rows"), nb::arg("columns"),
            nb::arg("x").noconvert(), kernels, precision, "float32[n, rows]: each row of x times a matrix of the file.");
    ops.def("add_narrow", &add_narrow, nb::arg("data").noconvert(), nb::arg("rank"), nb::arg("x").noconvert(),
            nb::arg("y").noconvert(), kernels, "y + B x, for B of Q8_0 as adapters have it.");
    ops.def("unpack", &unpack, nb::arg("code"), nb::arg("data").noconvert(), nb::arg("rows"), nb::arg("columns"),
            "The numbers of a matrix that was packed for the kernels.");
    ops.def("packed_bytes", &packed_bytes, nb::arg("code"), nb::arg("rows"), nb::arg("columns"),
            "The memory that a matrix takes once it is packed.");
    ops.def("rms_norm", &rms_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("eps"), kernels);
    ops.def("add", &add, nb::arg("x").noconvert(), nb::arg("y").noconvert(), kernels);
    ops.def("silu", &silu, nb::arg("gate").noconvert(), nb::arg("up").noconvert(), kernels);
    ops.def("gelu", &gelu, nb::arg("gate").noconvert(), nb::arg("up").noconvert(), kernels);
    ops.def("gelu_erf", &gelu_erf, nb::arg("gate").noconvert(), nb::arg("up").noconvert(), kernels);
    ops.def("ffn", &ffn, nb::arg("code"), nb::arg("gate").noconvert(), nb::arg("up").noconvert(),
            nb::arg("down").noconvert(), nb::arg("n_ff"), nb::arg("x").noconvert(), nb::arg("activation") = "silu",
            kernels, "The feed-forward part of a layer.");
    ops.def("rope", &rope, nb::arg("x").noconvert(), nb::arg("positions").noconvert(),
            nb::arg("frequencies").noconvert(), nb::arg("pairs"), nb::arg("magnitude") = 1.0);
    ops.def("store_heads", &store_heads, nb::arg("x").noconvert(), nb::arg("kv"), kernels,
            "Heads as the bytes that the cache holds.");
    ops.def("load_heads", &load_heads, nb::arg("data").noconvert(), nb::arg("head_size"), nb::arg("kv"), kernels);
    ops.def("attention", &attention, nb::arg("queries").noconvert(), nb::arg("keys").noconvert(),
            nb::arg("values").noconvert(), nb::arg("view").noconvert(), nb::arg("begins").noconvert(),
            nb::arg("ends").noconvert(), nb::arg("scale"), nb::arg("cap") = 0.0f, nb::arg("kv") = "f16", kernels,
            "Attention of rows that share a view, with K and V as the cache holds them.");
    bind_recurrent(ops);
}

}  // namespace stretto
