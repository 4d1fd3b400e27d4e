// Writers of formats with code books: IQ1, IQ2 and IQ3. Each entry is tried for every four or eight numbers that stand together.
//
// With a scale s the error of an entry g is Σ w x² − 2 s Σ w x g + s² Σ w g². The two sums do not depend on the scale, so they
// are computed once for every entry, and scales are then compared cheaply.

#include <vector>

#include "quantize/groups.h"
#include "quantize/quantize.h"
#include "weights/formats.h"
#include "weights/grids.h"

namespace stretto {

namespace {

constexpr size_t kSuper = 256, kMostEntries = 4096, kMostVectors = 8;

// A code book, entries beside each other for each of their numbers.
struct Book {
    size_t entries, width;
    std::vector<float> numbers, squares;  // [width][entries]
    float most = 0.0f;

    // number(entry, j) is number j of an entry.
    template <typename Number>
    Book(size_t n, size_t numbers_of_entry, Number number)
        : entries(n), width(numbers_of_entry), numbers(n * width), squares(n * width) {
        for (size_t e = 0; e < n; ++e) {
            for (size_t j = 0; j < width; ++j) {
                const float g = number(e, j);
                numbers[j * n + e] = g;
                squares[j * n + e] = g * g;
                most = std::max(most, g);
            }
        }
    }
};

template <typename Entry>
Book unsigned_book(const Entry* table, size_t n, size_t width) {
    return Book(n, width, [&](size_t e, size_t j) { return static_cast<float>(table[e] >> 8 * j & 255); });
}

// Entries of IQ1 in eighths, an eighth more or less: both after each other, or one of them.
Book eighths_book(bool more, bool less) {
    constexpr size_t kEntries = 2048;
    return Book(more && less ? 2 * kEntries : kEntries, 8, [=](size_t e, size_t j) {
        const auto g = static_cast<int8_t>(grids().iq1[e % kEntries] >> 8 * j & 255);
        return static_cast<float>(g + (e >= kEntries || !more ? -1 : 1));
    });
}

enum class Signs { kEight, kSeven, kInBook };

// A format: numbers that share a scale, whose code c stands for unit × (2c + 1); how signs are stored.
struct GridKind {
    const Book& book;
    size_t group;
    float codes;  // the largest
    Signs signs;
    const Book* other = nullptr;  // a group has all its entries from one of two books
};

// What is written for a group.
struct Chosen {
    float scale = 0.0f, gain = 0.0f;  // of the squared error, against zeros
    uint16_t entry[kMostVectors];
};

// Sums of every entry for the vectors of a group.
struct Sums {
    alignas(16) float gg[kMostVectors][kMostEntries], xg[kMostVectors][kMostEntries];
};

// The entry with the least error at a scale, and its sums.
struct Best {
    size_t entry;
    float gg, xg;
};

Best best_entry(const float* gg, const float* xg, size_t n, float scale) {
    const Float4 s{scale, scale, scale, scale}, two{2.0f, 2.0f, 2.0f, 2.0f};
    Float4 least_cost{3e38f, 3e38f, 3e38f, 3e38f};
    Int4 found{}, at{0, 1, 2, 3};
    for (size_t e = 0; e < n; e += 4) {
        Float4 g, x;
        std::memcpy(&g, gg + e, sizeof g);
        std::memcpy(&x, xg + e, sizeof x);
        const Float4 cost = s * g - two * x;
        const Int4 better = cost < least_cost;
        least_cost = least(cost, least_cost);
        found = (better & at) | (~better & found);
        at += 4;
    }
    size_t lane = 0;
    for (size_t i = 1; i < 4; ++i) {
        if (least_cost[i] < least_cost[lane]) lane = i;
    }
    const auto entry = static_cast<size_t>(found[lane]);
    return {entry, gg[entry], xg[entry]};
}

void sum_entries(const Book& book, const float* x, const float* w, size_t vectors, Sums* sums) {
    for (size_t v = 0; v < vectors; ++v) {
        float* gg = sums->gg[v];
        float* xg = sums->xg[v];
        std::fill(gg, gg + book.entries, 0.0f);
        std::fill(xg, xg + book.entries, 0.0f);
        for (size_t j = 0; j < book.width; ++j) {
            const float weight = w[v * book.width + j], product = weight * x[v * book.width + j];
            const float* g = book.numbers.data() + j * book.entries;
            const float* squares = book.squares.data() + j * book.entries;
            for (size_t e = 0; e < book.entries; ++e) {
                gg[e] += weight * squares[e];
                xg[e] += product * g[e];
            }
        }
    }
}

// The best entries at a scale; the sums give the best scale for them.
void choose_entries(const Book& book, const Sums& sums, size_t vectors, float scale, Chosen* out, float* gg, float* xg) {
    *gg = *xg = 0.0f;
    for (size_t v = 0; v < vectors; ++v) {
        const Best best = best_entry(sums.gg[v], sums.xg[v], book.entries, scale);
        out->entry[v] = static_cast<uint16_t>(best.entry);
        *gg += best.gg;
        *xg += best.xg;
    }
}

// Candidates take the largest number to 0.65 … 1.25 times the largest of the book, or with three levels to 0.8 … 2 times;
// the last one refines the best.
Chosen fit_group(const Book& book, const Sums& sums, size_t vectors, float most) {
    const float first = book.most < 10.0f ? 0.8f : 0.65f, step = book.most < 10.0f ? 0.15f : 0.075f;
    Chosen best, now;
    float gg, xg;
    for (int k = 0; k < 10 && most > 0.0f; ++k) {
        const float scale = k < 9 ? most / (book.most * (first + step * static_cast<float>(k))) : best.scale;
        choose_entries(book, sums, vectors, scale, &now, &gg, &xg);
        if (gg <= 0.0f || xg <= 0.0f || xg * xg <= best.gain * gg) continue;
        best = now;
        best.scale = xg / gg;
        best.gain = xg * xg / gg;
    }
    return best;
}

// A block: signs taken off, scales coded, entries chosen again for the coded scales.
struct GridBlock {
    float x[kSuper], w[kSuper];
    uint8_t signs[kSuper / 8];  // eight of them
    uint16_t entry[kSuper / 4];
    uint8_t code[kSuper / 16];
    bool from_other[kSuper / 16];
    uint16_t unit_bits = 0;

    void take(const float* values, const float* importance, Signs form) {
        float squares = 0.0f;
        for (size_t i = 0; i < kSuper; ++i) {
            x[i] = std::min(std::fabs(values[i]), kMostValue);
            squares += x[i] * x[i] * (1.0f / kSuper);
        }
        for (size_t i = 0; i < kSuper; ++i) {
            w[i] = (importance ? importance[i] : 1.0f) * std::sqrt(squares + x[i] * x[i]);
        }
        if (form == Signs::kInBook) {
            for (size_t i = 0; i < kSuper; ++i) x[i] = values[i] < 0.0f ? -x[i] : x[i];
            return;
        }
        for (size_t v = 0; v < kSuper / 8; ++v) {
            unsigned bits = 0, count = 0;
            for (size_t j = 0; j < 8; ++j) {
                if (values[8 * v + j] < 0.0f) bits |= 1u << j, ++count;
            }
            if (form == Signs::kSeven && count % 2) {  // the number that matters least gets the wrong sign
                size_t least_at = 8 * v;
                for (size_t i = 8 * v; i < 8 * v + 8; ++i) {
                    if (w[i] * x[i] * x[i] < w[least_at] * x[least_at] * x[least_at]) least_at = i;
                }
                bits ^= 1u << (least_at - 8 * v);
                x[least_at] = -x[least_at];
            }
            signs[v] = static_cast<uint8_t>(bits);
        }
    }

    void fit(const GridKind& kind, const float* values, const float* importance) {
        static thread_local Sums sums;
        take(values, importance, kind.signs);
        const size_t groups = kSuper / kind.group, vectors = kind.group / kind.book.width;
        float scales[kSuper / 16], largest = 0.0f;
        for (size_t g = 0; g < groups; ++g) {
            const float* from = x + g * kind.group;
            float most_value = 0.0f;
            for (size_t i = 0; i < kind.group; ++i) most_value = std::max(most_value, std::fabs(from[i]));
            sum_entries(kind.book, from, w + g * kind.group, vectors, &sums);
            Chosen chosen = fit_group(kind.book, sums, vectors, most_value);
            from_other[g] = false;
            if (kind.other) {
                sum_entries(*kind.other, from, w + g * kind.group, vectors, &sums);
                const Chosen second = fit_group(*kind.other, sums, vectors, most_value);
                from_other[g] = second.gain > chosen.gain;
                chosen = from_other[g] ? second : chosen;
            }
            scales[g] = chosen.scale;
            largest = std::max(largest, chosen.scale);
        }
        unit_bits = half_scale(largest / (2.0f * kind.codes + 1.0f) * unit_factor);
        const float unit = half_to_float(unit_bits) / unit_factor;
        for (size_t g = 0; g < groups; ++g) {
            const float wanted = unit > 0.0f ? (scales[g] / unit - 1.0f) * 0.5f : 0.0f;
            code[g] = static_cast<uint8_t>(std::min(std::max(std::nearbyint(wanted), 0.0f), kind.codes));
            const float scale = unit * static_cast<float>(2 * code[g] + 1);
            const Book& book = from_other[g] ? *kind.other : kind.book;
            sum_entries(book, x + g * kind.group, w + g * kind.group, vectors, &sums);
            Chosen chosen;
            float gg, xg;
            choose_entries(book, sums, vectors, scale, &chosen, &gg, &xg);
            std::copy_n(chosen.entry, vectors, entry + g * vectors);
        }
    }

    float unit_factor = 1.0f;  // of the half float, to the unit of scales
};

template <typename Put>
void write_grid(const GridKind& kind, float factor, size_t size, const float* x, const float* importance, size_t blocks, uint8_t* out,
                Put put) {
    GridBlock block;
    block.unit_factor = factor;
    for (size_t i = 0; i < blocks; ++i, x += kSuper, out += size) {
        block.fit(kind, x, importance ? importance + i * kSuper : nullptr);
        std::memset(out, 0, size);
        put(block, out);
    }
}

}  // namespace

void write_iq2_xxs(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    static const Book book = unsigned_book(grids().iq2_xxs, 256, 8);
    write_grid({book, 32, 15.0f, Signs::kSeven}, 8.0f, 66, x, importance, blocks, out, [](const GridBlock& block, uint8_t* to) {
        store16(to, block.unit_bits);
        for (size_t g = 0; g < 8; ++g) {
            uint32_t word = static_cast<uint32_t>(block.code[g]) << 28;
            for (size_t v = 0; v < 4; ++v) {
                to[2 + 8 * g + v] = static_cast<uint8_t>(block.entry[4 * g + v]);
                word |= static_cast<uint32_t>(block.signs[4 * g + v] & 127) << 7 * v;
            }
            store32(to + 2 + 8 * g + 4, word);
        }
    });
}

void write_iq2_xs(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    static const Book book = unsigned_book(grids().iq2_xs, 512, 8);
    write_grid({book, 16, 15.0f, Signs::kSeven}, 8.0f, 74, x, importance, blocks, out, [](const GridBlock& block, uint8_t* to) {
        store16(to, block.unit_bits);
        for (size_t v = 0; v < 32; ++v) {
            store16(to + 2 + 2 * v, static_cast<uint16_t>(block.entry[v] | (block.signs[v] & 127) << 9));
        }
        for (size_t g = 0; g < 8; ++g) to[66 + g] = static_cast<uint8_t>(block.code[2 * g] | block.code[2 * g + 1] << 4);
    });
}

void write_iq2_s(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    static const Book book = unsigned_book(grids().iq2_s, 1024, 8);
    write_grid({book, 16, 15.0f, Signs::kEight}, 8.0f, 82, x, importance, blocks, out, [](const GridBlock& block, uint8_t* to) {
        store16(to, block.unit_bits);
        for (size_t v = 0; v < 32; ++v) {
            to[2 + v] = static_cast<uint8_t>(block.entry[v]);
            to[34 + v] = block.signs[v];
            to[66 + v / 4] |= static_cast<uint8_t>((block.entry[v] >> 8) << v % 4 * 2);
        }
        for (size_t g = 0; g < 8; ++g) to[74 + g] = static_cast<uint8_t>(block.code[2 * g] | block.code[2 * g + 1] << 4);
    });
}

void write_iq3_xxs(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    static const Book book = unsigned_book(grids().iq3_xxs, 256, 4);
    write_grid({book, 32, 15.0f, Signs::kSeven}, 4.0f, 98, x, importance, blocks, out, [](const GridBlock& block, uint8_t* to) {
        store16(to, block.unit_bits);
        for (size_t v = 0; v < 64; ++v) to[2 + v] = static_cast<uint8_t>(block.entry[v]);
        for (size_t g = 0; g < 8; ++g) {
            uint32_t word = static_cast<uint32_t>(block.code[g]) << 28;
            for (size_t v = 0; v < 4; ++v) word |= static_cast<uint32_t>(block.signs[4 * g + v] & 127) << 7 * v;
            store32(to + 66 + 4 * g, word);
        }
    });
}

void write_iq3_s(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    static const Book book = unsigned_book(grids().iq3_s, 512, 4);
    write_grid({book, 32, 15.0f, Signs::kEight}, 1.0f, 110, x, importance, blocks, out, [](const GridBlock& block, uint8_t* to) {
        store16(to, block.unit_bits);
        for (size_t v = 0; v < 64; ++v) {
            to[2 + v] = static_cast<uint8_t>(block.entry[v]);
            to[66 + v / 8] |= static_cast<uint8_t>((block.entry[v] >> 8) << v % 8);
        }
        for (size_t v = 0; v < 32; ++v) to[74 + v] = block.signs[v];
        for (size_t g = 0; g < 4; ++g) to[106 + g] = static_cast<uint8_t>(block.code[2 * g] | block.code[2 * g + 1] << 4);
    });
}

void write_iq1_s(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    static const Book more = eighths_book(true, false), less = eighths_book(false, true);
    const GridKind kind{more, 32, 7.0f, Signs::kInBook, &less};
    write_grid(kind, 8.0f, 50, x, importance, blocks, out, [](const GridBlock& block, uint8_t* to) {
        store16(to, block.unit_bits);
        for (size_t g = 0; g < 8; ++g) {
            unsigned word = static_cast<unsigned>(block.code[g]) << 12 | (block.from_other[g] ? 0x8000u : 0u);
            for (size_t v = 0; v < 4; ++v) {
                to[2 + 4 * g + v] = static_cast<uint8_t>(block.entry[4 * g + v]);
                word |= static_cast<unsigned>(block.entry[4 * g + v] >> 8) << 3 * v;
            }
            store16(to + 34 + 2 * g, static_cast<uint16_t>(word));
        }
    });
}

void write_iq1_m(const float* x, const float* importance, size_t blocks, uint8_t* out) {
    static const Book book = eighths_book(true, true);
    const GridKind kind{book, 16, 7.0f, Signs::kInBook};
    write_grid(kind, 8.0f, 56, x, importance, blocks, out, [](const GridBlock& block, uint8_t* to) {
        for (size_t v = 0; v < 32; ++v) {
            to[v] = static_cast<uint8_t>(block.entry[v]);
            to[32 + v / 2] |= static_cast<uint8_t>((block.entry[v] >> 8) << v % 2 * 4);  // the fourth bit: an eighth less
        }
        for (size_t word = 0; word < 4; ++word) {
            unsigned bits = (block.unit_bits >> 4 * word & 15u) << 12;
            for (size_t g = 0; g < 4; ++g) bits |= static_cast<unsigned>(block.code[4 * word + g]) << 3 * g;
            store16(to + 48 + 2 * word, static_cast<uint16_t>(bits));
        }
    });
}

}  // namespace stretto
