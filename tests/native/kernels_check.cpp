// The kernel sets of a machine against the portable one, without Python: for machines that are only emulated,
// and for compilers that the module is not built with.
//
//     kernels_check [set …]       all that the machine can run, if none is named
//
// tests/backends/test_ops.py asks more, where Python runs.

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "kernels/direct.h"
#include "kernels/kernels.h"
#include "weights/formats.h"
#include "weights/half.h"

namespace stretto {

namespace {

int failures = 0, checks = 0;

void check(bool fine, const char* what, ...) __attribute__((format(printf, 2, 3)));

void check(bool fine, const char* what, ...) {
    ++checks;
    if (fine) return;
    ++failures;
    std::va_list arguments;
    va_start(arguments, what);
    std::fputs("FAILED  ", stderr);
    std::vfprintf(stderr, what, arguments);
    std::fputc('\n', stderr);
    va_end(arguments);
}

// The same numbers on every machine.
struct Random {
    uint64_t state;

    uint32_t bits() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state >> 32);
    }
    float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f; }  // from −1 to 1
    std::vector<float> floats(size_t n, float scale = 1.0f) {
        std::vector<float> x(n);
        for (float& value : x) value = uniform() * scale;
        return x;
    }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && !std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

bool none_finite(const float* x, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        if (std::isfinite(x[i])) return false;
    }
    return true;
}

// Whether |a − b| ≤ relative × |b| + absolute everywhere.
bool close(const std::vector<float>& a, const std::vector<float>& b, float relative, float absolute) {
    for (size_t i = 0; i < a.size(); ++i) {
        if (!(std::fabs(a[i] - b[i]) <= relative * std::fabs(b[i]) + absolute)) return false;
    }
    return a.size() == b.size();
}

// -- products --

struct Rows {
    size_t n, columns, lanes, blocks;
    std::vector<int8_t> q;
    std::vector<float> x, scale, scaled;
    std::vector<int32_t> sums;

    Rows(const Kernels& kernel, std::vector<float> numbers, size_t n_columns, size_t n_lanes = 1)
        : n(numbers.size() / n_columns), columns(n_columns), lanes(n_lanes),
          blocks((n + lanes - 1) / lanes * lanes * (columns / kBlock)), q(blocks * kBlock), x(std::move(numbers)),
          scale(blocks), scaled(blocks), sums(2 * blocks) {
        for (size_t row = 0; row < n; ++row) kernel.quantize(x.data() + row * columns, columns, row, view());
    }
    // The first half of the rows as pairs, in place of what was there.
    void pair(const Kernels& kernel) {
        for (size_t row = 0; row < n / 2; ++row) kernel.quantize_pair(x.data() + row * columns, columns, row, view());
    }
    Quantized view() { return {q.data(), scale.data(), scaled.data(), sums.data(), lanes}; }
};

// The product with n rows of x from `first` on.
std::vector<float> product(const Kernels& kernel, const Matrix& w, const std::vector<float>& x, size_t first, size_t n) {
    const auto at = x.begin() + static_cast<std::ptrdiff_t>(first * w.columns);
    Rows rows(kernel, {at, at + static_cast<std::ptrdiff_t>(n * w.columns)}, w.columns, kernel.lanes(n));
    std::vector<float> out(n * w.rows);
    kernel.matmul(w, rows.view(), rows.x.data(), n, 0, w.panels(), out.data(), w.rows);
    return out;
}

struct Weights {
    std::vector<uint8_t> bytes;
    Matrix matrix;
};

void put_float(Random& random, Layout layout, uint8_t* at) {
    const float value = random.uniform();
    const uint32_t bits = bits_of_float(value);
    if (layout == Layout::kF32) {
        std::memcpy(at, &value, 4);
    } else {
        store16(at, layout == Layout::kF16 ? float_to_half(value) : static_cast<uint16_t>(bits >> 16));
    }
}

// Random numbers of a layout; `extreme` puts the quants at the ends of their range and makes all scales 1.
Weights weights_of(Random& random, Layout layout, size_t rows, size_t columns, bool extreme) {
    const uint8_t ends[] = {0, 255, 15, 240, 128, 127};
    Weights w;
    w.matrix = matrix_for(layout, rows, columns);
    w.bytes.resize(w.matrix.bytes());
    w.matrix.data = w.bytes.data();
    if (is_float(layout)) {
        const size_t size = layout == Layout::kF32 ? 4 : 2;
        for (size_t at = 0; at < w.bytes.size(); at += size) put_float(random, layout, w.bytes.data() + at);
        return w;
    }
    const Shape shape = shape_of(layout);
    for (size_t unit = 0; unit < w.bytes.size(); unit += shape.unit_bytes()) {
        uint8_t* at = w.bytes.data() + unit;
        const size_t size = shape.scales == Scales::kFloat ? 4 : 2;
        if (shape.scales == Scales::kShort) {
            for (size_t i = 0; i < shape.head_bytes(); i += 2) store16(at + i, extreme ? 0x3f80 : 0x3c00 + random.bits() % 512);
            for (size_t i = shape.head_bytes(); i < shape.unit_bytes(); ++i) at[i] = static_cast<uint8_t>(random.bits());
            continue;
        }
        const size_t scales = (shape.codes() ? shape.codes() : shape.head_bytes()) / size;
        for (size_t i = 0; i < scales; ++i) {
            // As exact as the scales of any format: see packed.h.
            const float scale = extreme ? 1.0f : float_of_bits(bits_of_float(random.uniform() * 0.1f) & ~31u);
            if (size == 2) {
                store16(at + 2 * i, float_to_half(shape.codes() ? scale / 64 : scale));
            } else {
                std::memcpy(at + 4 * i, &scale, 4);
            }
        }
        // Codes have signs where there are no minima; the others have six bits.
        for (size_t i = scales * size; i < shape.head_bytes(); ++i) {
            const auto code = static_cast<uint8_t>(random.bits());
            at[i] = extreme ? (shape.min || code & 1 ? 64 : 192) : shape.min ? code & 63 : code;
        }
        for (size_t i = shape.head_bytes(); i < shape.unit_bytes(); ++i) {
            at[i] = extreme ? ends[random.bits() % 6] : static_cast<uint8_t>(random.bits());
        }
    }
    return w;
}

constexpr Layout kLayouts[] = {Layout::kNibbles, Layout::kNibblesMin, Layout::kNibblesK, Layout::kFivesK,
                               Layout::kSixesK, Layout::kBytes, Layout::kLevels, Layout::kBytesF,
                               Layout::kBytesMinF, Layout::kBytes16F, Layout::kBytes16MinF, Layout::kF32, Layout::kF16, Layout::kBF16};

// Columns that a layout can have: whole units.
size_t whole(Layout layout, size_t columns) {
    const size_t unit = kBlock * (is_float(layout) ? 1 : shape_of(layout).blocks());
    return (columns + unit - 1) / unit * unit;
}

void check_products(const Kernels& kernel) {
    Random random{1};
    for (const Layout layout : kLayouts) {
        const int name = static_cast<int>(layout);
        for (const size_t rows : {1, 15, 16, 17, 50}) {
            for (const size_t some : {32, 96, 512, 1088}) {
                const size_t columns = whole(layout, some);
                const Weights w = weights_of(random, layout, rows, columns, false);
                const std::vector<float> x = random.floats(33 * columns);
                const std::vector<float> all = product(kernel, w.matrix, x, 0, 33);
                const float large = static_cast<float>(columns) * (is_float(layout) ? 1.0f : 26.0f);
                check(close(all, product(kPortable, w.matrix, x, 0, 33), 0.0f, large * 1e-6f),
                      "product, layout %d, %zu × %zu", name, rows, columns);
                for (const size_t n : {1, 2, 3, 5, 6, 7, 8, 12, 16, 17, 31, 32}) {
                    const std::vector<float> some = product(kernel, w.matrix, x, 33 - n, n);
                    check(same(some, {all.end() - static_cast<std::ptrdiff_t>(n * rows), all.end()}),
                          "same bits, layout %d, %zu × %zu, batch of %zu", name, rows, columns, n);
                }
            }
        }
        const Weights w = weights_of(random, layout, 40, 256, true);
        std::vector<float> x(25 * 256);
        for (float& value : x) value = random.bits() & 1 ? 127.0f : -127.0f;
        for (const size_t n : {1, 9, 16, 25}) {
            if (is_float(layout)) break;
            check(same(product(kernel, w.matrix, x, 0, n), product(kPortable, w.matrix, x, 0, n)),
                  "whole numbers are exact, layout %d, batch of %zu", name, n);
        }
        x[40] = NAN;
        x[256 + 200] = INFINITY;
        for (const size_t n : {9, 25}) {
            const std::vector<float> bad = product(kernel, w.matrix, x, 0, n);
            check(none_finite(bad.data(), 80), "NaN and infinity show, layout %d, batch of %zu", name, n);
        }
    }
}

// Rows of the file: with few columns as they are, with many as panels. Any bytes will do, so NaN may be among them.
void check_direct(const Kernels& kernel) {
    Random random{7};
    size_t count;
    const Format* all = formats(&count);
    for (const Format* format = all; format < all + count; ++format) {
        for (const size_t rows : {1, 17, 38}) {
            const size_t columns = 1280, row_bytes = columns / format->block * format->size;
            std::vector<uint8_t> bytes(rows * row_bytes);
            for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.bits());
            Matrix file = matrix_for(Layout::kRows, rows, columns, format->code);
            file.data = bytes.data();
            Matrix packed = matrix_for(staged_layout(format->code), rows, columns);
            std::vector<uint8_t> panels(packed.bytes());
            packed.data = panels.data();
            if (is_float(packed.layout)) {
                pack_panels(format->code, bytes.data(), packed, 0, packed.panels(), panels.data());
            } else {
                for (size_t i = 0; i < packed.panels(); ++i) {
                    kernel.direct->stage(file, i, panels.data() + i * packed.panel_bytes);
                }
            }
            const std::vector<float> x = random.floats(7 * columns);
            for (const size_t n : {1, 2, 3, 7}) {
                Rows a(kernel, {x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n * columns)}, columns, kernel.lanes(n));
                std::vector<float> out(n * rows);
                kernel.direct->multiply(file, a.view(), a.x.data(), n, 0, file.panels(), out.data(), rows);
                std::vector<float> expected = product(kernel, packed, x, 0, n);
                for (size_t i = 0; i < out.size(); ++i) {
                    if (std::isnan(out[i]) && std::isnan(expected[i])) out[i] = expected[i] = 0.0f;
                }
                check(same(out, expected), "rows of format %d, %zu × %zu, batch of %zu", format->code, rows, columns, n);
            }
        }
    }
}

// Memory that ends where the process may not read: a sanitizer does not see what matrix units load.
template <typename T>
class Fenced {
public:
    explicit Fenced(const std::vector<T>& from) : bytes_((from.size() * sizeof(T) + kPage - 1) / kPage * kPage + kPage) {
        pages_ = static_cast<uint8_t*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (pages_ == MAP_FAILED || mprotect(pages_ + bytes_ - kPage, kPage, PROT_NONE)) std::abort();
        data = reinterpret_cast<T*>(pages_ + bytes_ - kPage) - from.size();
        std::copy(from.begin(), from.end(), data);
    }
    ~Fenced() { munmap(pages_, bytes_); }
    Fenced(const Fenced&) = delete;

    T* data;

private:
    static constexpr size_t kPage = 1 << 16;
    size_t bytes_;
    uint8_t* pages_;
};

void check_fences(const Kernels& kernel) {
    Random random{4};
    for (const Layout layout : kLayouts) {
        const size_t columns = whole(layout, 96);
        const Weights w = weights_of(random, layout, 50, columns, false);
        const std::vector<float> x = random.floats(33 * columns);
        const Fenced<uint8_t> bytes(w.bytes);
        Matrix matrix = w.matrix;
        matrix.data = bytes.data;
        for (const size_t n : {1, 2, 5, 9, 14, 16, 17, 33}) {
            const Rows rows(kernel, {x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n * columns)}, columns,
                            kernel.lanes(n));
            const Fenced<int8_t> q(rows.q);
            const Fenced<float> numbers(rows.x), scale(rows.scale), scaled(rows.scaled), out(std::vector<float>(n * 50));
            const Fenced<int32_t> sums(rows.sums);
            const Quantized a{q.data, scale.data, scaled.data, sums.data, rows.lanes};
            kernel.matmul(matrix, a, numbers.data, n, 0, matrix.panels(), out.data, 50);
            check(same({out.data, out.data + n * 50}, product(kernel, w.matrix, x, 0, n)),
                  "within its arrays, layout %d, batch of %zu", static_cast<int>(layout), n);
        }
    }
}

// -- rows --

void check_rows(const Kernels& kernel) {
    Random random{2};
    for (const float scale : {0.0f, 1e-45f, 1e-40f, 1e-37f, 1e-3f, 1.0f, 1e30f}) {
        std::vector<float> x = random.floats(4 * 96, scale);
        for (int pass = 0; pass < 2; ++pass) {
            Rows a(kernel, x, 96), b(kPortable, x, 96);
            auto equal = [&] {
                const bool finite = same(a.scaled, b.scaled) || pass;  // NaN may have any bits
                return a.q == b.q && a.sums == b.sums && same(a.scale, b.scale) && finite;
            };
            check(equal(), "quantize at %g", double{scale});
            a.pair(kernel);
            b.pair(kPortable);
            check(equal(), "quantize_pair at %g", double{scale});
            x[3] = -INFINITY;
            x[200] = INFINITY;
        }
    }
    for (const size_t n : {1, 15, 16, 17, 100, 576}) {
        const std::vector<float> x = random.floats(n, 4.0f), y = random.floats(n);
        std::vector<float> a(n), b(n);
        kernel.rms_norm(x.data(), y.data(), n, 1e-5f, a.data());
        kPortable.rms_norm(x.data(), y.data(), n, 1e-5f, b.data());
        check(close(a, b, 1e-5f, 0.0f), "rms_norm of %zu", n);
        auto both = [&](auto pick) {
            a = b = x;
            pick(kernel)(a.data(), y.data(), n);
            pick(kPortable)(b.data(), y.data(), n);
        };
        both([](const Kernels& k) { return k.add; });
        check(same(a, b), "add of %zu", n);
        both([](const Kernels& k) { return k.silu; });
        check(close(a, b, 1e-5f, 1e-30f), "silu of %zu", n);
        both([](const Kernels& k) { return k.gelu; });
        check(close(a, b, 1e-5f, 1e-30f), "gelu of %zu", n);
    }
    for (const size_t n : {1, 16, 17, 255, 256, 257, 1000}) {
        std::vector<float> x = random.floats(n, 4.0f), a((n + kPeak - 1) / kPeak), b(a.size());
        for (float& v : x) v -= 8.0f;  // none is as large as the zeros that fill a vector
        for (const float planted : {0.0f, -INFINITY, INFINITY}) {
            x[n / 2] = planted ? planted : x[n / 2];
            kernel.peaks(x.data(), n, a.data());
            kPortable.peaks(x.data(), n, b.data());
            bool right = same(a, b);
            for (size_t i = 0; i < a.size(); ++i) {
                const size_t end = std::min(n, (i + 1) * kPeak);
                right = right && a[i] == *std::max_element(x.data() + i * kPeak, x.data() + end);
            }
            check(right, "peaks of %zu with %g", n, double{planted});
        }
        for (const size_t at : {size_t{0}, n / 2, n - 1}) {
            std::vector<float> y = x;
            y[at] = NAN;
            kernel.peaks(y.data(), n, a.data());
            check(a[at / kPeak] != a[at / kPeak], "peaks of %zu with a NaN at %zu", n, at);
        }
    }
    for (const size_t n : {1, 16, 17, 255, 256}) {
        for (const float factor : {0.01f, 1.0f, 1e6f}) {
            std::vector<float> x = random.floats(n, 4.0f);
            x[n / 3] = -INFINITY;
            x[n / 2] = 50.0f;  // the largest
            double exact = 0.0;
            for (const float v : x) exact += std::exp((double{v} - 50.0) * double{factor});
            const double found = double{kernel.weigh(x.data(), n, 50.0f, factor)};
            check(std::fabs(found - exact) <= 1e-6 * exact, "weight of %zu by %g: %g", n, double{factor}, found);
        }
    }
    const std::vector<float> far = {-1e30f, -200.0f, -88.0f, 88.0f, 200.0f, 1e30f, 0.0f, -0.0f}, one(8, 1.0f);
    for (const auto activation : {&Kernels::silu, &Kernels::gelu}) {
        std::vector<float> a = far, b = far;
        (kernel.*activation)(a.data(), one.data(), 8);
        (kPortable.*activation)(b.data(), one.data(), 8);
        check(close(a, b, 1e-5f, 1e-7f), "an activation far out");
    }
}

// -- the cache and attention --

void check_heads(const Kernels& kernel) {
    Random random{3};
    for (const CacheType type : {CacheType::kHalf, CacheType::kQ8}) {
        for (const size_t size : {1, 8, 20, 64, 80, 128}) {
            for (const float scale : {0.0f, 1e-8f, 1e-4f, 1.0f, 3e4f, 1e6f}) {
                const std::vector<float> x = random.floats(size, scale);
                std::vector<uint8_t> a(head_bytes(type, size)), b(a);
                kernel.store_head(type, x.data(), size, a.data());
                kPortable.store_head(type, x.data(), size, b.data());
                check(a == b, "store_head of %zu at %g", size, double{scale});
                std::vector<float> c(padded(size)), d(c);
                kernel.load_head(type, b.data(), size, c.data());
                kPortable.load_head(type, b.data(), size, d.data());
                check(same(c, d), "load_head of %zu at %g", size, double{scale});
            }
        }
    }
    std::vector<uint16_t> halves(1 << 16);
    std::vector<float> numbers(halves.size());
    for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
    kernel.load_head(CacheType::kHalf, reinterpret_cast<const uint8_t*>(halves.data()), halves.size(), numbers.data());
    bool equal = true;
    for (size_t i = 0; i < halves.size(); ++i) {
        const float expected = half_to_float(halves[i]);
        equal &= std::isnan(expected) ? std::isnan(numbers[i]) : bits_of_float(numbers[i]) == bits_of_float(expected);
    }
    check(equal, "every half");
}

// Attention of rows with views of cells in a row or scattered: floats [rows][group][size].
std::vector<float> attend(const Kernels& kernel, Attention a, size_t last) {
    const size_t count = a.rows * a.group, width = padded(a.head_size);
    std::vector<float> scratch(attention_scratch(a.head_size, a.rows, a.group));
    a.scratch = scratch.data();
    std::vector<float> max[2], sum[2], out[2];
    Partial parts[2];
    for (int i = 0; i < 2; ++i) {
        max[i].resize(count);
        sum[i].resize(count);
        out[i].resize(count * width);
        parts[i] = {max[i].data(), sum[i].data(), out[i].data()};
    }
    for (size_t at = 0; at < last; at += kSpan) {
        kernel.attend(a, at, at + kSpan < last ? at + kSpan : last, parts[at > 0]);
        if (at) kernel.merge(count, a.head_size, parts[0], parts[1]);
    }
    std::vector<float> result(count * a.head_size);
    for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < a.head_size; ++j) result[i * a.head_size + j] = out[0][i * width + j] / sum[0][i];
    }
    return result;
}

void check_attention(const Kernels& kernel, CacheType type, size_t size, size_t group, size_t length) {
    Random random{length * 1000 + size};
    const size_t rows = 5, stride = head_bytes(type, size);
    std::vector<uint8_t> keys(length * stride), values(length * stride);
    for (size_t cell = 0; cell < length; ++cell) {
        const float scale = cell % 5 ? 1.0f : 1e-6f;  // some halves are subnormal
        kPortable.store_head(type, random.floats(size, scale).data(), size, keys.data() + cell * stride);
        kPortable.store_head(type, random.floats(size, scale).data(), size, values.data() + cell * stride);
    }
    std::vector<int32_t> view(length), begins(rows, 0), ends(rows);
    for (size_t i = 0; i < length; ++i) view[i] = static_cast<int32_t>(i);
    for (size_t i = length - 1; length % 2 && i > 0; --i) std::swap(view[i], view[random.bits() % (i + 1)]);
    for (size_t row = 0; row < rows; ++row) {
        ends[row] = static_cast<int32_t>(length > 2 * row ? length - 2 * row : 1);
        if (row % 2 && ends[row] > 20) begins[row] = ends[row] - 20;
    }
    std::vector<size_t> places(length + kPlacesBehind);
    place_cells(view.data(), length, stride, kCellBlock * stride, places.data());
    std::vector<float> queries = random.floats(rows * group * size, 4.0f);
    Attention a{};
    a.type = type;
    a.finite = type == CacheType::kHalf;
    a.keys = keys.data();
    a.values = values.data();
    a.places = places.data();
    a.head_size = size;
    a.group = group;
    a.scale = 1.0f / std::sqrt(static_cast<float>(size));
    a.queries = queries.data();
    a.query_stride = group * size;
    a.begins = begins.data();
    a.ends = ends.data();
    a.rows = rows;
    const std::vector<float> whole = attend(kernel, a, length);
    // ARM's kernels make integers of 16 bits of queries and weights where K and V have 8.
    const bool wide = !std::strcmp(kernel.name, "neon") || !std::strcmp(kernel.name, "i8mm");
    const float most = type == CacheType::kQ8 && wide ? 3e-4f : 1e-5f;
    check(close(whole, attend(kPortable, a, length), 0.0f, most), "attention, %zu × %zu, length %zu", group, size, length);
    const size_t one = group * size;
    for (size_t row = 0; row < rows; ++row) {
        Attention alone = a;
        alone.queries += row * one;
        alone.begins += row;
        alone.ends += row;
        alone.rows = 1;
        const auto at = whole.begin() + static_cast<std::ptrdiff_t>(row * one);
        check(same(attend(kernel, alone, length), {at, at + static_cast<std::ptrdiff_t>(one)}),
              "same bits of row %zu, %zu × %zu, length %zu", row, group, size, length);
        alone.finite = false;
        check(same(attend(kernel, alone, length), {at, at + static_cast<std::ptrdiff_t>(one)}),
              "row %zu unless all is finite, %zu × %zu, length %zu", row, group, size, length);
    }
    // The last cell, which only the first row sees, has infinite scales or numbers: nothing of it shows in other rows.
    if (length > 2 * rows) {
        const uint16_t infinity = 0x7c00;
        const auto last = static_cast<size_t>(view[length - 1]) * stride;
        std::memcpy(keys.data() + last, &infinity, sizeof infinity);
        std::memcpy(values.data() + last, &infinity, sizeof infinity);
        Attention others = a;
        others.finite = false;
        others.queries += one;
        others.begins += 1;
        others.ends += 1;
        others.rows = rows - 1;
        const auto at = whole.begin() + static_cast<std::ptrdiff_t>(one);
        check(same(attend(kernel, others, length), {at, whole.end()}), "an infinite cell that no row sees, %zu × %zu", group, size);
        others.rows = 1;
        check(same(attend(kernel, others, length), {at, at + static_cast<std::ptrdiff_t>(one)}),
              "an infinite cell that the row does not see, %zu × %zu", group, size);
    }
    queries[0] = NAN;
    check(none_finite(attend(kernel, a, length).data(), size), "attention, NaN shows");
}

// A set whose matrix unit does exactly what another set's vectors do.
void check_twin(const Kernels& kernel, const Kernels& vectors) {
    Random random{5};
    for (const Layout layout : kLayouts) {
        for (const size_t some : {32, 1088}) {
            const size_t columns = whole(layout, some);
            const Weights w = weights_of(random, layout, 50, columns, false);
            const std::vector<float> x = random.floats(70 * columns);
            for (const size_t n : {1, 4, 7, 8, 9, 12, 14, 16, 33, 70}) {
                check(same(product(kernel, w.matrix, x, 70 - n, n), product(vectors, w.matrix, x, 70 - n, n)),
                      "bits of %s, layout %d, %zu columns, batch of %zu", vectors.name, static_cast<int>(layout), columns, n);
            }
        }
    }
}

void check_set(const Kernels& kernel) {
    for (const auto& [matrix_unit, vectors] : {std::pair{"amx", "avx512"}, std::pair{"i8mm", "neon"}}) {
        if (!std::strcmp(kernel.name, matrix_unit)) check_twin(kernel, *kernels_named(vectors));
    }
    check_products(kernel);
    check_fences(kernel);
    check_direct(kernel);
    check_rows(kernel);
    check_heads(kernel);
    size_t group = 0;
    for (const CacheType type : {CacheType::kHalf, CacheType::kQ8}) {
        for (const size_t size : {8, 16, 64, 80, 128, 256}) {
            for (const size_t length : {1, 31, 32, 33, 255, 256, 257, 513, 1100}) {
                check_attention(kernel, type, size, 1 + group++ % 8, length);
            }
        }
    }
}

}  // namespace

}  // namespace stretto

int main(int count, char** names) {
    std::vector<const char*> wanted(names + 1, names + count);
    if (wanted.empty()) {
        for (const char* name : stretto::kKernelNames) {
            if (stretto::kernels_named(name)) wanted.push_back(name);
        }
    }
    for (const char* name : wanted) {
        const stretto::Kernels* kernel = stretto::kernels_named(name);
        if (!kernel) {
            std::fprintf(stderr, "this machine cannot run the kernels '%s'\n", name);
            return 2;
        }
        stretto::checks = stretto::failures = 0;
        stretto::check_set(*kernel);
        std::printf("%s: %d checks, %d failed\n", name, stretto::checks, stretto::failures);
        if (stretto::failures) return 1;
    }
    return 0;
}
