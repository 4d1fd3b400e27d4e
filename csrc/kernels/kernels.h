// The kernels of one instruction set, as a table of functions. All tables do the same things; within one
// table a result does not depend on how work was cut into tiles, batches or threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/packed.h"

namespace stretto {

// Activations as the integer kernels read them: int8 in blocks of 32 with a float scale. `lanes` rows stand
// together, block by block: 1 is row after row, matrix units want 16 at once. n is made up to whole lanes. How the
// bytes of lanes stand within a block is a matter between `quantize` and `matmul` of a set.
struct Quantized {
    int8_t* q;         // [n / lanes][columns / 32][lanes][32]
    float* scale;      // [n / lanes][columns / 32][lanes]
    float* scaled;     // the same, scale × sum of the block
    int32_t* sums;     // [n / lanes][columns / 32][lanes][2], sums of 16
    size_t lanes = 1;

    // The same from a row on, which is the first of its lanes.
    Quantized from(size_t row, size_t columns) const {
        const size_t at = row * (columns / kBlock);
        return {q + at * kBlock, scale + at, scaled + at, sums + 2 * at, lanes};
    }
    // Where a row's first block is; the next one is `lanes` further.
    size_t block_of(size_t row, size_t columns) const {
        return row / lanes * (columns / kBlock) * lanes + row % lanes;
    }
};

// A panel of bytes whose last block has no more columns than it needs, in sixteens: most adapters have rank 16 or less.
inline size_t narrow_panel_bytes(size_t columns) {
    const Shape shape = shape_of(Layout::kBytes);
    const size_t last = (columns - 1) / kBlock;
    return last * shape.unit_bytes() + shape.quants_at(0) + kPanelRows * (columns - last * kBlock <= 16 ? 16 : kBlock);
}

enum class CacheType { kHalf, kQ8, kFloat };

// Bytes that one head's K or V of one cell takes.
inline size_t head_bytes(CacheType type, size_t head_size) {
    if (type == CacheType::kFloat) return 4 * head_size;
    return type == CacheType::kHalf ? 2 * head_size : (head_size + 31) / 32 * 34;
}

constexpr size_t kCellBlock = 256;  // cells that lie next to each other; what follows is a block further
constexpr size_t kChunk = 32;   // cells that attention takes at a time
constexpr size_t kSpan = 256;   // cells whose partial result is one unit of work
constexpr size_t kMostHeads = 8;  // that a kernel takes together

// Attention of some rows with one view, for one K/V head and the heads that share it.
struct Attention {
    CacheType type;
    bool finite = false;      // half floats, and none of the cache is infinite or NaN
    const uint8_t* keys;      // of the first cell, this head
    const uint8_t* values;
    const size_t* places;     // of the view's cells, as place_cells finds them
    size_t head_size;
    size_t group;             // heads that share K and V
    float scale;
    float cap;                // scores become cap × tanh(score / cap); 0: as they are
    const float* queries;     // [rows][query_stride], the group's heads first
    size_t query_stride;
    const int32_t* begins;    // [rows]: the first entry of the view a row sees
    const int32_t* ends;      // [rows]: behind the last
    size_t rows;
    float* scratch;           // attention_scratch() floats
    const uint8_t* next_keys = nullptr;  // what is probably read after this, which may be asked for; null: unknown
    const size_t* next_places = nullptr;
    const float* slopes = nullptr;       // [group]: what scores fall by with each position of distance; null: nothing
    const int32_t* view = nullptr;       // indices of cells, if there are slopes
    const int32_t* positions = nullptr;  // [rows], if there are slopes
    const int32_t* table = nullptr;      // the position of every cell
};

// The scores that an indexer gives to cells, for one row.
struct IndexScores {
    CacheType type;
    const uint8_t* keys;    // of the first cell
    const size_t* places;   // of the cells, kPlacesBehind more of them
    size_t head_size;
    size_t n_head;
    const float* queries;   // [n_head][head_size]
    const float* weights;   // [n_head]
    float* scratch;         // attention_scratch() floats
};

// How many bytes the n cells of a view are behind the first cell, the same for all heads of a layer; kPlacesBehind more entries
// repeat the last. `cell_stride` bytes are from one cell to the next within a block, `block_stride` from one block to the next.
constexpr size_t kPlacesBehind = 2 * kChunk;  // that kernels may read, of whole chunks and of what is asked for ahead
inline void place_cells(const int32_t* view, size_t n, size_t cell_stride, size_t block_stride, size_t* out) {
    for (size_t i = 0; i < n; ++i) {
        const auto cell = static_cast<size_t>(view[i]);
        out[i] = cell / kCellBlock * block_stride + cell % kCellBlock * cell_stride;
    }
    for (size_t i = n; i < n + kPlacesBehind; ++i) out[i] = n ? out[n - 1] : 0;
}

// A partial result: for each row and head the largest score, the sum of weights and the weighted values.
struct Partial {
    float* max;    // [rows][group]
    float* sum;    // [rows][group]
    float* out;    // [rows][group][padded head size]
};

constexpr size_t kPeak = 128;  // numbers of which `peaks` tells the largest and `weigh` the weight
inline size_t stretches(size_t n) { return (n + kPeak - 1) / kPeak; }

inline size_t padded(size_t head_size) { return (head_size + 15) / 16 * 16; }
inline size_t attention_scratch(size_t head_size, size_t rows, size_t group) {
    const size_t wide = 1 + (head_size + 31) / 32 * 16;  // a query as integers of 16 bits, and its scale
    return (kChunk + kMostHeads) * padded(head_size) + rows * group * (kSpan + wide);
}

// Some channels of a causal convolution: `kernel` inputs of each, the newest last, times its taps.
struct Convolution {
    size_t kernel;        // 2 or more
    size_t channels;
    size_t stride;        // from one tap, or one row of the history, to the next
    const float* taps;    // [kernel][stride]
    const float* bias;    // [channels]; null: none
    float* history;       // [kernel − 1][stride]: the inputs before; a row becomes the newest of them
    bool silu;            // the result goes through it
};

constexpr size_t kStateLanes = 16;  // values of a head that stand together in a state
inline size_t state_tiles(size_t values) { return (values + kStateLanes - 1) / kStateLanes; }

// Tokens that advance kStateLanes values of a head's state, with pointers to these values of each token. The state
// is a tile times a scale: a decay makes the scale smaller, which costs nothing, until the tile is multiplied by it.
struct StateTile {
    float* tile;                 // [rows][kStateLanes]
    size_t rows;                 // keys of a delta net, the state size of Mamba-2
    size_t lanes;                // values that there are, kStateLanes at most
    size_t n;                    // tokens
    const float* const* write;   // [n] of [rows]: keys; B
    const float* const* read;    // [n] of [rows]: queries; C
    const float* factor;         // [n]: of the tile before this token; 1 for most
    const float* scale;          // [n]: of the tile at this token, decayed
    const float* inverse;        // [n]: 1 / scale
    const float* gain;           // [n]: of the correction; of what is added
    const float* overlap;        // [n]: key · query; null for Mamba-2
    const float* const* values;  // [n] of [lanes]
    float* const* out;           // [n] of [lanes]
    float skip;                  // Mamba-2: of the value itself in the output
};

// Tokens that advance kStateLanes values of a head's state in which each row decays by itself (RWKV 7).
struct DecayingTile {
    float* tile;                  // [rows][kStateLanes]
    size_t rows;                  // keys
    size_t lanes;                 // values that there are, kStateLanes at most
    size_t n;                     // tokens
    const float* const* decay;    // [n] of [rows]
    const float* const* find;     // [n] of [rows]: what reads the state before it decays
    const float* const* correct;  // [n] of [rows]: what writes back what was found
    const float* const* write;    // [n] of [rows]: keys
    const float* const* read;     // [n] of [rows]: receptances
    const float* const* values;   // [n] of [lanes]
    float* const* out;            // [n] of [lanes]
};
struct DirectKernels;  // direct.h

struct Kernels {
    const char* name;
    // How many rows stand together when n of them are multiplied: Quantized::lanes.
    size_t (*lanes)(size_t n);
    // `columns` floats, a multiple of 32, become a row of `out`.
    void (*quantize)(const float* x, size_t columns, size_t row, const Quantized& out);
    // The same as two rows, 2 × row and the next: the second has what rounding took from the first. Their sum is x
    // to 16 bits, the same numbers in all tables.
    void (*quantize_pair)(const float* x, size_t columns, size_t row, const Quantized& out);
    // out[c][r] = row r of the matrix · column c, for the rows of panels [begin, end) and n columns. Quantised
    // layouts read `a`, float layouts `x` ([n][columns]). Rows of the file are for `direct`.
    void (*matmul)(const Matrix& w, const Quantized& a, const float* x, size_t n, size_t begin, size_t end,
                   float* out, size_t out_stride);
    // out[r] += row r of B · a row of activations, for the rows of panels [begin, end): B of bytes in narrow panels, and
    // activations that are zeros from column `rank` on. The bits are those of matmul and add.
    void (*add_narrow)(const Matrix& b, const Quantized& a, size_t row, size_t rank, size_t begin, size_t end, float* out);
    void (*rms_norm)(const float* x, const float* weight, size_t n, float eps, float* out);
    void (*add)(float* x, const float* y, size_t n);
    // gate = activation(gate) × up, or without `up` activation(gate)
    void (*silu)(float* gate, const float* up, size_t n);
    void (*gelu)(float* gate, const float* up, size_t n);
    void (*gelu_erf)(float* gate, const float* up, size_t n);  // as it is defined, not by tanh
    // For every kPeak numbers of x the largest one, or NaN if there is one among them.
    void (*peaks)(const float* x, size_t n, float* out);
    // The sum of e^((x − top) × factor) over n numbers; top is no less than any of them. What is
    // below e^−87 counts as that.
    float (*weigh)(const float* x, size_t n, float top, float factor);
    // The K or V of one head of one cell.
    void (*store_head)(CacheType type, const float* x, size_t head_size, uint8_t* out);
    void (*load_head)(CacheType type, const uint8_t* x, size_t head_size, float* out);
    // The partial result of view entries [first, last), one span at most.
    void (*attend)(const Attention& a, size_t first, size_t last, const Partial& out);
    // out[i] = Σ over heads: weight × relu(query · key of cell i), for n cells; there is room for whole chunks.
    void (*score_index)(const IndexScores& a, size_t n, float* out);
    // total = total merged with part, which comes after it.
    void (*merge)(size_t count, size_t head_size, const Partial& total, const Partial& part);
    // One row of a convolution; x and out may be the same.
    void (*convolve)(const Convolution& c, const float* x, float* out);
    // Token after token: S, decayed, becomes S + write × gain × (value − write · S); out = read · S.
    void (*correct_state)(const StateTile& state);
    // Token after token: S, decayed, becomes S + write × gain × value; out = read · S + skip × value.
    void (*add_to_state)(const StateTile& state);
    // Token after token: row r of S becomes decay × S + correct × (find · S) + write × value; out = read · S.
    void (*decay_state)(const DecayingTile& state);
    // The same products with rows as they stand in the file.
    const DirectKernels* direct;
};

constexpr const char* kKernelNames[] = {"amx", "avx512", "avx2", "i8mm", "neon", "portable"};  // the best first

// The table by name, or null if this machine cannot run it.
const Kernels* kernels_named(const char* name);
// The best table for this machine.
const Kernels* best_kernels();

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#elif defined(__aarch64__)
extern const Kernels kNeon;
#endif

}  // namespace stretto
