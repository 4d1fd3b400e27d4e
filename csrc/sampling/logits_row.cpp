#include "sampling/logits_row.h"

#include <cstring>

namespace stretto {

namespace {

constexpr size_t kWords = kPeak / 32;  // of a mask, for a stretch

// For each byte of a mask eight words, all ones where its bit is set: vectors can be masked without shifting bits.
struct Lanes {
    uint32_t of[256][8];

    Lanes() {
        for (uint32_t byte = 0; byte < 256; ++byte) {
            for (uint32_t bit = 0; bit < 8; ++bit) of[byte][bit] = byte >> bit & 1 ? ~uint32_t{0} : 0;
        }
    }
};

// Copies logits; tokens that may not come get −inf.
void copy_allowed(const float* row, size_t n, const uint32_t* mask, float* to) {
    static const Lanes lanes;
    uint32_t infinity;
    std::memcpy(&infinity, &kMinusInfinity, sizeof infinity);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const uint32_t word = mask[i / 32];
        if (word == 0) {
            std::fill(to + i, to + i + 32, kMinusInfinity);
        } else if (word == ~uint32_t{0}) {
            std::copy(row + i, row + i + 32, to + i);
        } else {
            uint32_t bits[32];
            std::memcpy(bits, row + i, sizeof bits);
            for (size_t byte = 0; byte < 4; ++byte) {
                const uint32_t* keep = lanes.of[word >> 8 * byte & 255];
                for (size_t k = 0; k < 8; ++k) {
                    bits[8 * byte + k] = (bits[8 * byte + k] & keep[k]) | (infinity & ~keep[k]);
                }
            }
            std::memcpy(to + i, bits, sizeof bits);
        }
    }
    for (; i < n; ++i) to[i] = mask[i / 32] >> (i % 32) & 1 ? row[i] : kMinusInfinity;
}

}  // namespace

LogitsRow::Words LogitsRow::words(size_t s) const {
    if (length(s) < kPeak) return Words::kMixed;
    uint32_t any = 0, all = ~uint32_t{0};
    for (size_t i = 0; i < kWords; ++i) {
        any |= mask[s * kWords + i];
        all &= mask[s * kWords + i];
    }
    return !any ? Words::kEmpty : all == ~uint32_t{0} ? Words::kFull : Words::kMixed;
}

const float* LogitsRow::allowed_only(size_t s, float* room) const {
    const float* from = logits + s * kPeak;
    if (words(s) == Words::kFull) return from;
    copy_allowed(from, length(s), mask + s * kWords, room);
    return room;
}

float LogitsRow::peak(size_t s) const {
    float room[kPeak], found;
    best_kernels()->peaks(stretch(s, room), length(s), &found);
    return found;
}

// Where some tokens may not come, known peaks are still no less than the true ones: only the highest have to be looked
// at.
void LogitsRow::find_peaks(const std::vector<float>* known) {
    peaks.resize(stretches(n));
    loose = known && mask;
    if (!mask && !known) best_kernels()->peaks(logits, n, peaks.data());
    if (known) peaks = *known;
    for (size_t s = 0; mask && s < peaks.size(); ++s) {
        const Words allowed = words(s);
        if (allowed == Words::kEmpty) {
            peaks[s] = kMinusInfinity;
        } else if (!known || (allowed == Words::kMixed && peaks[s] != peaks[s])) {
            peaks[s] = peak(s);
        }
    }
    for (;;) {
        const auto highest = std::max_element(peaks.begin(), peaks.end());
        best = *highest;
        if (!loose || best == kMinusInfinity) return;
        const float exact = peak(static_cast<size_t>(highest - peaks.begin()));
        if (!(exact < best)) return;
        *highest = exact;
    }
}

void LogitsRow::tighten() {
    for (size_t s = 0; loose && s < peaks.size(); ++s) {
        if (words(s) == Words::kMixed) peaks[s] = peak(s);
    }
    loose = false;
}

float LogitsRow::part(size_t s) const {
    constexpr float kNegligible = 25.0f;  // a whole vocabulary that lies so far below weighs less than 1e-5
    const float factor = 1.0f / temperature;
    if ((best - peaks[s]) * factor > kNegligible) return 0.0f;
    return best_kernels()->weigh(logits + s * kPeak, length(s), best, factor);
}

double LogitsRow::total() const {
    double sum = 0.0;
    for (size_t s = 0; s < peaks.size(); ++s) sum += double{part(s)};
    return sum;
}

}  // namespace stretto
