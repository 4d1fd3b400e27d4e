#include "weights/grids.h"

#include <cstddef>

#include "weights/grids_data.h"

namespace stretto {

namespace {

// An entry of `text`, `length` characters of six bits each.
uint32_t entry(const char* text, size_t index, size_t length) {
    uint32_t bits = 0;
    for (size_t i = 0; i < length; ++i) bits |= static_cast<uint32_t>(text[index * length + i] - '0') << 6 * i;
    return bits;
}

// Entries of eight numbers with two bits each, which choose one of three levels.
template <size_t N>
void expand(const char* text, const int8_t (&levels)[3], uint64_t (&out)[N]) {
    for (size_t i = 0; i < N; ++i) {
        const uint32_t bits = entry(text, i, 3);
        out[i] = 0;
        for (size_t j = 0; j < 8; ++j) {
            out[i] |= static_cast<uint64_t>(static_cast<uint8_t>(levels[bits >> 2 * j & 3])) << 8 * j;
        }
    }
}

// Entries of four numbers with three bits each.
template <size_t N>
void expand(const char* text, const uint8_t (&levels)[8], uint32_t (&out)[N]) {
    for (size_t i = 0; i < N; ++i) {
        const uint32_t bits = entry(text, i, 2);
        out[i] = 0;
        for (size_t j = 0; j < 4; ++j) out[i] |= static_cast<uint32_t>(levels[bits >> 3 * j & 7]) << 8 * j;
    }
}

Grids made() {
    const int8_t two[3] = {8, 25, 43}, one[3] = {-8, 0, 8};
    const uint8_t xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62}, s[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    Grids grids;
    expand(kGridIq2Xxs, two, grids.iq2_xxs);
    expand(kGridIq2Xs, two, grids.iq2_xs);
    expand(kGridIq2S, two, grids.iq2_s);
    expand(kGridIq1, one, grids.iq1);
    expand(kGridIq3Xxs, xxs, grids.iq3_xxs);
    expand(kGridIq3S, s, grids.iq3_s);
    for (unsigned i = 0; i < 128; ++i) {
        unsigned parity = i ^ i >> 4;
        parity ^= parity >> 2;
        parity ^= parity >> 1;
        grids.signs[i] = static_cast<uint8_t>(i | (parity & 1) << 7);
    }
    return grids;
}

}  // namespace

const Grids& grids() {
    static const Grids all = made();
    return all;
}

}  // namespace stretto
