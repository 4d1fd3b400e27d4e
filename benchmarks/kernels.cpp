// What the matrix products of each kernel set reach alone, on one thread: `make bench-kernels`.
//
//     kernels [seconds] [set …]      all sets that the machine can run, if none is named
//     kernels cycles                 JSON: cycles of a block of one column, as benchmarks/raw/cycles-neoverse-n1.json
//     kernels columns [set …]        nanoseconds of a block of 16 rows × 32 numbers with 1 to 16 columns
//     kernels attention              cycles of a cell of one row's attention, three heads of 64, at depth 2,048 of SmolLM2
//
// For each layout, shape and number of columns the sets take turns, several times over. Of each piece of work the
// shortest time counts, since a busy neighbour can only make a set look slower. GMAC/s.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <vector>

#include <sys/mman.h>

#include "kernels/product.h"
#include "weights/half.h"

namespace stretto {

namespace {

// Processor time of this thread, which does not run on while others have the processor.
double now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// A matrix that is packed, or one of the file's rows where a format is given.
struct Case {
    const char* name;
    Layout layout;
    size_t rows, columns;
    int format = -1;
};

// A matrix of each shape is read from memory that is larger than the second cache, as in a model.
const Case kCases[] = {
    {"SmolLM2 gate Q4_1", Layout::kNibblesMin, 1536, 576},
    {"SmolLM2 down Q4_1", Layout::kNibblesMin, 576, 1536},
    {"Qwen 0.5B gate Q4_0", Layout::kNibbles, 4864, 896},
    {"Qwen 0.5B down Q4_0", Layout::kNibbles, 896, 4864},
    {"Llama 1B gate Q4_K", Layout::kNibblesK, 8192, 2048},
    {"Llama 1B down Q4_K", Layout::kNibblesK, 2048, 8192},
    {"SmolLM2 output Q8_0", Layout::kBytes, 8192, 576},
    {"2048 square Q5_K", Layout::kFivesK, 2048, 2048},
    {"Llama 1B down Q6_K", Layout::kSixesK, 2048, 8192},
    {"gpt-oss expert MXFP4", Layout::kLevels, 2880, 2880},
    {"Qwen 0.5B down Q4_0 rows", Layout::kRows, 896, 4864, 2},
    {"SmolLM2 down Q4_1 rows", Layout::kRows, 576, 1536, 3},
    {"Llama 1B down Q4_K rows", Layout::kRows, 2048, 8192, 12},
    {"2048 square Q5_K rows", Layout::kRows, 2048, 2048, 13},
    {"Llama 1B down Q6_K rows", Layout::kRows, 2048, 8192, 14},
    {"SmolLM2 output Q8_0 rows", Layout::kRows, 8192, 576, 8},
    {"gpt-oss MXFP4 rows", Layout::kRows, 2880, 2880, 39},
    {"2048 square Q5_0", Layout::kRows, 2048, 2048, 6},
    {"2048 square Q5_1", Layout::kRows, 2048, 2048, 7},
    {"2048 square Q2_K", Layout::kRows, 2048, 2048, 10},
    {"2048 square Q3_K", Layout::kRows, 2048, 2048, 11},
    {"2048 square IQ4_NL", Layout::kRows, 2048, 2048, 20},
    {"2048 square IQ4_XS", Layout::kRows, 2048, 2048, 23},
    {"2048 square IQ3_S", Layout::kRows, 2048, 2048, 21},
    {"2048 square IQ3_XXS", Layout::kRows, 2048, 2048, 18},
    {"2048 square IQ2_S", Layout::kRows, 2048, 2048, 22},
    {"2048 square IQ2_XS", Layout::kRows, 2048, 2048, 17},
    {"2048 square IQ2_XXS", Layout::kRows, 2048, 2048, 16},
    {"2048 square IQ1_S", Layout::kRows, 2048, 2048, 19},
    {"2048 square IQ1_M", Layout::kRows, 2048, 2048, 29},
    {"2048 square TQ1_0", Layout::kRows, 2048, 2048, 34},
    {"2048 square TQ2_0", Layout::kRows, 2048, 2048, 35},
    {"2048 square NVFP4", Layout::kRows, 2048, 2048, 40},
    {"2048 square Q1_0", Layout::kRows, 2048, 2048, 41},
    {"2048 square F16", Layout::kF16, 2048, 2048},
    {"2048 square F16 rows", Layout::kRows, 2048, 2048, 1},
};

// Memory on huge pages, as the decoder has it.
template <typename T>
struct Room {
    size_t bytes;
    T* data;

    explicit Room(size_t n) : bytes((n * sizeof(T) + kHuge - 1) / kHuge * kHuge) {
        data = static_cast<T*>(std::aligned_alloc(kHuge, bytes));
        madvise(data, bytes, MADV_HUGEPAGE);
        std::memset(data, 0, bytes);
    }
    ~Room() { std::free(data); }
    Room(const Room&) = delete;

    static constexpr size_t kHuge = size_t{2} << 20;
};

uint32_t next_bits(uint64_t& state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 32);
}

void fill(const Matrix& matrix, uint8_t* bytes) {
    if (matrix.layout == Layout::kRows || is_float(matrix.layout)) {
        // Bytes that are no infinity and no NaN as half floats, whichever of them are.
        uint64_t state = 1;
        for (size_t i = 0; i < matrix.bytes(); ++i) bytes[i] = static_cast<uint8_t>(next_bits(state) & 0x3b);
        return;
    }
    const Shape shape = shape_of(matrix.layout);
    uint64_t state = 1;
    for (size_t unit = 0; unit < matrix.bytes(); unit += shape.unit_bytes()) {
        const float scale = 0.01f;
        const size_t size = shape.scales == Scales::kFloat ? 4 : 2;
        if (shape.scales == Scales::kShort) std::memset(bytes + unit, 0x3c, shape.head_bytes());
        const size_t scales = shape.codes() ? shape.codes() : shape.head_bytes();
        for (size_t i = 0; shape.scales != Scales::kShort && i < scales; i += size) {
            if (size == 2) {
                store16(bytes + unit + i, float_to_half(scale));
            } else {
                std::memcpy(bytes + unit + i, &scale, 4);
            }
        }
        for (size_t i = scales; i < shape.unit_bytes(); ++i) {
            bytes[unit + i] = static_cast<uint8_t>(next_bits(state));
        }
    }
}

// The columns of a product, as a kernel set wants them.
struct Columns {
    size_t lanes, blocks;
    Room<int8_t> q;
    Room<float> scale, scaled, floats;
    Room<int32_t> sums;

    Columns(const Kernels& kernel, size_t n, size_t columns)
        : lanes(kernel.lanes(n)), blocks((n + lanes - 1) / lanes * lanes * (columns / kBlock)), q(blocks * kBlock),
          scale(blocks), scaled(blocks), floats(n * columns), sums(2 * blocks) {
        uint64_t state = 1;
        std::vector<float> x(columns);
        for (size_t row = 0; row < n; ++row) {
            for (float& value : x) value = static_cast<float>(next_bits(state) >> 8) * 0x1p-23f - 1.0f;
            kernel.quantize(x.data(), columns, row, view());
        }
    }
    Quantized view() { return {q.data, scale.data, scaled.data, sums.data, lanes}; }
};

// The shortest time that the whole product took, in pieces as threads take them, each measured alone.
double seconds_of(const Kernels& kernel, const Matrix& w, Columns& a, size_t n, float* out, double least) {
    constexpr size_t kPiece = 4;
    const size_t pieces = (w.panels() + kPiece - 1) / kPiece;
    std::vector<double> best(pieces, 1e9);
    const double start = now();
    do {
        for (size_t i = 0; i < pieces; ++i) {
            const double begin = now();
            multiply_activations(kernel, Precision::kStandard, w, {a.view(), a.floats.data, 0, n}, i * kPiece,
                                 std::min((i + 1) * kPiece, w.panels()), out, {});
            best[i] = std::min(best[i], now() - begin);
        }
    } while (now() - start < least);
    double sum = 0.0;
    for (const double seconds : best) sum += seconds;
    return sum;
}

// A matrix of random numbers and its memory.
struct Weights {
    Matrix matrix;
    Room<uint8_t> bytes;

    Weights(const Case& c)
        : matrix(matrix_for(c.format == 1 ? Layout::kF16 : c.layout, c.rows, c.columns, c.format)),
          bytes(matrix.bytes()) {
        matrix.format = c.format;
        fill(matrix, bytes.data);
        (c.layout == Layout::kRows ? matrix.source : matrix.data) = bytes.data;
    }
};

void measure(const std::vector<const Kernels*>& sets, const Case& c, size_t n, double least) {
    constexpr int kRounds = 5;
    const Weights weights(c);
    std::vector<std::unique_ptr<Columns>> columns;
    for (const Kernels* set : sets) columns.push_back(std::make_unique<Columns>(*set, n, c.columns));
    const Room<float> out(n * c.rows);
    std::vector<double> best(sets.size(), 1e9);
    for (int round = 0; round < kRounds; ++round) {
        for (size_t i = 0; i < sets.size(); ++i) {
            best[i] = std::min(best[i], seconds_of(*sets[i], weights.matrix, *columns[i], n, out.data, least));
        }
    }
    std::printf("%-26s %4zu", c.name, n);
    for (const double seconds : best) {
        std::printf(" %10.1f", 1e-9 * static_cast<double>(c.rows * c.columns * n) / seconds);
    }
    std::printf("\n");
}

// Seconds of a cycle: an addition in a chain of them.
double cycle_seconds() {
    constexpr int kAdditions = 1 << 20;
    double best = 1e9;
    for (int run = 0; run < 20; ++run) {
        size_t sum = 1;
        const double begin = now();
        for (int i = 0; i < kAdditions; ++i) {
            sum += 3;
            asm volatile("" : "+r"(sum));
        }
        best = std::min(best, now() - begin);
    }
    return best / kAdditions;
}

struct Format {
    const char* name;
    Layout layout;
};
const Format kFormats[] = {{"Q4_0", Layout::kNibbles},  {"Q4_1", Layout::kNibblesMin}, {"Q8_0", Layout::kBytes},
                           {"MXFP4", Layout::kLevels},  {"Q4_K", Layout::kNibblesK},   {"Q5_K", Layout::kFivesK},
                           {"Q6_K", Layout::kSixesK}};

// Cycles of a block of 16 rows × one column × 32 numbers, with weights in the first cache and from memory.
int print_cycles(const Kernels& kernel) {
    constexpr size_t kColumns = 512, kNear = 64, kFar = 1 << 16;
    constexpr int kRuns = 100;
    const double cycle = cycle_seconds();
    std::printf("{\n \"set\": \"%s\",\n \"ghz\": %.2f,\n \"cycles\": {\n", kernel.name, 1e-9 / cycle);
    const char* separator = "";
    for (const Format& format : kFormats) {
        double cycles[2];
        for (const bool far : {false, true}) {
            const size_t rows = far ? kFar : kNear;
            const Weights weights({format.name, format.layout, rows, kColumns});
            Columns column(kernel, 1, kColumns);
            const Room<float> out(rows);
            double best = 1e9;
            for (int run = 0; run < kRuns; ++run) {
                const double begin = now();
                for (size_t done = 0; done < kFar; done += kNear) {
                    const size_t first = far ? done / 16 : 0;
                    multiply_activations(kernel, Precision::kStandard, weights.matrix,
                                         {column.view(), column.floats.data, 0, 1}, first,
                                         first + kNear / 16, out.data, {});
                }
                best = std::min(best, now() - begin);
            }
            cycles[far] = best / cycle / static_cast<double>(kFar / 16 * (kColumns / 32));
        }
        std::printf("%s  \"%s\": [%.1f, %.1f]", separator, format.name, cycles[0], cycles[1]);
        separator = ",\n";
    }
    std::printf("\n }\n}\n");
    return 0;
}

// Nanoseconds of a block by its columns: weights in the first cache, and weights that no cache has, 16 panels at a time.
void print_columns(const std::vector<const Kernels*>& sets) {
    constexpr size_t kColumns = 576, kNear = 4, kFar = 16, kFarBytes = size_t{256} << 20, kTimes = 64;
    constexpr int kNearRuns = 50, kFarRuns = 5;
    std::printf("%-8s %4s", "ns", "n");
    for (const Kernels* set : sets) std::printf(" %12s near    far", set->name);
    std::printf("\n");
    for (const Format& format : kFormats) {
        const size_t panels = kFarBytes / matrix_for(format.layout, kPanelRows, kColumns).bytes() / kFar * kFar;
        const Weights weights({format.name, format.layout, panels * kPanelRows, kColumns});
        for (const size_t n : {1, 2, 3, 4, 6, 8, 16}) {
            const Room<float> out(n * weights.matrix.rows);
            std::printf("%-8s %4zu", format.name, n);
            for (const Kernels* set : sets) {
                Columns columns(*set, n, kColumns);
                const auto multiply = [&](size_t begin, size_t end) {
                    multiply_activations(*set, Precision::kStandard, weights.matrix, {columns.view(), columns.floats.data, 0, n},
                                         begin, end, out.data, {});
                };
                double near = 1e9, far = 1e9;
                for (int run = 0; run < kNearRuns; ++run) {
                    const double begin = now();
                    for (size_t i = 0; i < kTimes; ++i) multiply(0, kNear);
                    near = std::min(near, now() - begin);
                }
                for (int run = 0; run < kFarRuns; ++run) {
                    const double begin = now();
                    for (size_t at = 0; at < panels; at += kFar) multiply(at, at + kFar);
                    far = std::min(far, now() - begin);
                }
                const auto blocks = static_cast<double>(kColumns / kBlock);
                std::printf(" %17.2f %6.2f", 1e9 * near / blocks / (kNear * kTimes), 1e9 * far / blocks / static_cast<double>(panels));
            }
            std::printf("\n");
        }
    }
}

// Cycles of a cell at the depth of 2,048 tokens: 30 layers of three K/V heads, each for three heads of 64, as SmolLM2 has them.
int print_attention(const Kernels& kernel) {
    constexpr size_t kLayers = 30, kKvHeads = 3, kGroup = 3, kSize = 64, kDepth = 2048, kParts = kDepth / kSpan;
    constexpr int kRuns = 20;
    const double cycle = cycle_seconds();
    for (const CacheType type : {CacheType::kHalf, CacheType::kQ8}) {
        const size_t stride = head_bytes(type, kSize), block = kLayers * 2 * kKvHeads * kCellBlock * stride;
        Room<uint8_t> cache(block * kDepth / kCellBlock);
        std::vector<float> numbers(kSize), queries(kGroup * kSize), scratch(attention_scratch(kSize, 1, kGroup));
        uint32_t state = 1;
        auto random = [&] { return static_cast<float>(static_cast<int32_t>(state = state * 1664525u + 1013904223u)) * 0x1p-31f; };
        for (size_t at = 0; at < kLayers * 2 * kKvHeads * kDepth; ++at) {
            for (float& x : numbers) x = random();
            kernel.store_head(type, numbers.data(), kSize, cache.data + at * stride);
        }
        for (float& x : queries) x = 4.0f * random();
        std::vector<int32_t> view(kDepth);
        for (size_t i = 0; i < kDepth; ++i) view[i] = static_cast<int32_t>(i);
        std::vector<size_t> places(kDepth + kPlacesBehind);
        place_cells(view.data(), kDepth, stride, block, places.data());
        std::vector<float> max(kParts * kGroup), sum(max), out(kParts * kGroup * kSize);
        auto part = [&](size_t i) { return Partial{&max[i * kGroup], &sum[i * kGroup], &out[i * kGroup * kSize]}; };
        const int32_t begin = 0, end = kDepth;
        Attention a{};
        a.type = type;
        a.finite = type == CacheType::kHalf;
        a.places = places.data();
        a.head_size = kSize;
        a.group = kGroup;
        a.scale = 0.125f;
        a.queries = queries.data();
        a.query_stride = kGroup * kSize;
        a.begins = &begin;
        a.ends = &end;
        a.rows = 1;
        a.scratch = scratch.data();
        double best = 1e9;
        for (int run = 0; run < kRuns; ++run) {
            const double begun = now();
            for (size_t at = 0; at < kLayers * kKvHeads; ++at) {
                a.keys = cache.data + (at / kKvHeads * 2 * kKvHeads + at % kKvHeads) * kCellBlock * stride;
                a.values = a.keys + kKvHeads * kCellBlock * stride;
                for (size_t i = 0; i < kParts; ++i) kernel.attend(a, i * kSpan, (i + 1) * kSpan, part(i));
                for (size_t i = 1; i < kParts; ++i) kernel.merge(kGroup, kSize, part(0), part(i));
            }
            best = std::min(best, now() - begun);
        }
        const double cycles = best / cycle / static_cast<double>(kLayers * kKvHeads * kDepth);
        std::printf("%s, K/V %s: %.1f cycles a cell\n", kernel.name, type == CacheType::kHalf ? "f16" : "8 bits", cycles);
    }
    return 0;
}

int run(int count, char** arguments) {
    if (count == 2 && !std::strcmp(arguments[1], "attention")) return print_attention(*best_kernels());
    if (count == 2 && !std::strcmp(arguments[1], "cycles")) return print_cycles(*best_kernels());
    const bool by_columns = count > 1 && !std::strcmp(arguments[1], "columns");
    const double least = count > 1 ? std::atof(arguments[1]) : 0.01;
    std::vector<const Kernels*> sets;
    for (int i = 2; i < count; ++i) {
        const Kernels* found = kernels_named(arguments[i]);
        if (!found) {
            std::fprintf(stderr, "this machine cannot run the kernels '%s'\n", arguments[i]);
            return 2;
        }
        sets.push_back(found);
    }
    for (const char* name : kKernelNames) {
        if (count > 2) break;
        if (const Kernels* found = kernels_named(name)) sets.push_back(found);
    }
    if (by_columns) return print_columns(sets), 0;
    std::printf("%-26s %4s", "GMAC/s", "n");
    for (const Kernels* set : sets) std::printf(" %10s", set->name);
    std::printf("\n");
    for (const Case& c : kCases) {
        for (const size_t n : {1, 2, 3, 4, 6, 8, 16, 32, 64, 512}) measure(sets, c, n, least);
    }
    return 0;
}

}  // namespace

}  // namespace stretto

int main(int count, char** arguments) { return stretto::run(count, arguments); }
