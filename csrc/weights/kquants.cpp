// Formats in blocks of 256 numbers: a float scale for the block, small integer scales for its groups.

#include "weights/formats.h"
#include "weights/half.h"

namespace stretto {

// scales[16] (scale low half, minimum high half), quants[64], d, dmin
void dequantize_q2_k(const uint8_t* bytes, float* out) {
    const uint8_t* scales = bytes;
    const float d = half_to_float(load16(bytes + 80));
    const float dmin = half_to_float(load16(bytes + 82));
    for (int group = 0; group < 16; ++group) {
        // Two halves of 128 numbers; in each, 32 bytes hold four runs of 32 numbers, two bits a run.
        const uint8_t* q = bytes + 16 + group / 8 * 32 + group % 2 * 16;
        const int shift = group % 8 / 2 * 2;
        const float scale = d * static_cast<float>(scales[group] & 15);
        const float min = dmin * static_cast<float>(scales[group] >> 4);
        for (int j = 0; j < 16; ++j) *out++ = scale * static_cast<float>(q[j] >> shift & 3) - min;
    }
}

// high bits[32], quants[64], scales[12], d
void dequantize_q3_k(const uint8_t* bytes, float* out) {
    const uint8_t* scales = bytes + 96;
    const float d = half_to_float(load16(bytes + 108));
    for (int group = 0; group < 16; ++group) {
        // A 6-bit scale: four bits in the halves of bytes 0–7, two bits in bytes 8–11.
        const int low = scales[group % 8] >> (group / 8 * 4) & 15;
        const int high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        const float scale = d * static_cast<float>((low | high << 4) - 32);
        const uint8_t* q = bytes + 32 + group / 8 * 32 + group % 2 * 16;
        const uint8_t* mask = bytes + group % 2 * 16;
        const int shift = group % 8 / 2 * 2;
        const int bit = group / 2;
        for (int j = 0; j < 16; ++j) {
            // The third bit is stored so that its absence subtracts four.
            const int value = (q[j] >> shift & 3) - (mask[j] >> bit & 1 ? 0 : 4);
            *out++ = scale * static_cast<float>(value);
        }
    }
}

// d, dmin, scales[12], quants[128]
void dequantize_q4_k(const uint8_t* bytes, float* out) {
    const float d = half_to_float(load16(bytes));
    const float dmin = half_to_float(load16(bytes + 2));
    for (int group = 0; group < 8; ++group) {
        const ScaleMin packed = scale_min(bytes + 4, group);
        const float scale = d * static_cast<float>(packed.scale);
        const float min = dmin * static_cast<float>(packed.min);
        const uint8_t* q = bytes + 16 + group / 2 * 32;
        const int shift = group % 2 * 4;
        for (int j = 0; j < 32; ++j) *out++ = scale * static_cast<float>(q[j] >> shift & 15) - min;
    }
}

// d, dmin, scales[12], high bits[32], quants[128]
void dequantize_q5_k(const uint8_t* bytes, float* out) {
    const float d = half_to_float(load16(bytes));
    const float dmin = half_to_float(load16(bytes + 2));
    const uint8_t* high = bytes + 16;
    for (int group = 0; group < 8; ++group) {
        const ScaleMin packed = scale_min(bytes + 4, group);
        const float scale = d * static_cast<float>(packed.scale);
        const float min = dmin * static_cast<float>(packed.min);
        const uint8_t* q = bytes + 48 + group / 2 * 32;
        const int shift = group % 2 * 4;
        for (int j = 0; j < 32; ++j) {
            const int value = (q[j] >> shift & 15) | (high[j] >> group & 1) << 4;
            *out++ = scale * static_cast<float>(value) - min;
        }
    }
}

// low bits[128], high bits[64], scales[16] (int8), d
void dequantize_q6_k(const uint8_t* bytes, float* out) {
    const uint8_t* scales = bytes + 192;
    const float d = half_to_float(load16(bytes + 208));
    for (int group = 0; group < 16; ++group) {
        // In each half of 128: four runs of 32 numbers. Runs 0 and 1 have their low bits in the low
        // halves of bytes 0–31 and 32–63, runs 2 and 3 in the high halves; the upper two bits of all
        // four share a byte.
        const int half = group / 8;
        const int run = group % 8 / 2;
        const uint8_t* low = bytes + half * 64 + run % 2 * 32 + group % 2 * 16;
        const uint8_t* high = bytes + 128 + half * 32 + group % 2 * 16;
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[group]));
        for (int j = 0; j < 16; ++j) {
            const int value = (low[j] >> (run / 2 * 4) & 15) | (high[j] >> (run * 2) & 3) << 4;
            *out++ = scale * static_cast<float>(value - 32);
        }
    }
}

// d, upper scale bits: u16, lower scale bits[4], quants[128]
void dequantize_iq4_xs(const uint8_t* bytes, float* out) {
    const float d = half_to_float(load16(bytes));
    const int upper = load16(bytes + 2);
    for (int group = 0; group < 8; ++group) {
        const int low = bytes[4 + group / 2] >> (group % 2 * 4) & 15;
        const int high = upper >> (group * 2) & 3;
        const float scale = d * static_cast<float>((low | high << 4) - 32);
        const uint8_t* q = bytes + 8 + group * 16;
        for (int j = 0; j < 16; ++j) {
            out[j] = scale * static_cast<float>(kIq4Levels[q[j] & 15]);
            out[j + 16] = scale * static_cast<float>(kIq4Levels[q[j] >> 4]);
        }
        out += 32;
    }
}

}  // namespace stretto
