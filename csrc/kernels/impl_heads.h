// A head's K or V as the cache holds it. Included by impl.h, within the namespace of an instruction set.

void store_head(CacheType type, const float* x, size_t head_size, uint8_t* out) {
    if (type == CacheType::kFloat) {
        std::memcpy(out, x, head_size * sizeof(float));
        return;
    }
    if (type == CacheType::kHalf) {
        each_vector(head_size, [&](size_t i, size_t m) {
            uint16_t halves[16];
            store_half(halves, load_some(x + i, m));
            std::memcpy(out + 2 * i, halves, 2 * m);
        });
        return;
    }
    for (size_t i = 0; i < head_size; i += 32, out += 34) {
        const size_t m = head_size - i < 32 ? head_size - i : 32;
        float block[32] = {};
        std::memcpy(block, x + i, m * sizeof(float));
        const float largest = largest_magnitude(load(block), load(block + 16));
        const uint16_t d = float_to_half(largest / 127.0f);
        std::memcpy(out, &d, 2);
        const float stored = half_to_float(d);
        const Floats inverse = splat(stored > 0.0f ? 1.0f / stored : 0.0f);
        for (size_t j = 0; j < 32; j += 16) {
            const Floats cut = max(min(mul(load(block + j), inverse), splat(127.0f)), splat(-127.0f));
            store_int8(reinterpret_cast<int8_t*>(out + 2 + j), round_to_int(cut));
        }
    }
}

// Into floats, padded with zeros to whole vectors.
void load_head(CacheType type, const uint8_t* x, size_t head_size, float* out) {
    if (type == CacheType::kFloat) {
        std::memcpy(out, x, head_size * sizeof(float));
        std::memset(out + head_size, 0, (padded(head_size) - head_size) * sizeof(float));
        return;
    }
    if (type == CacheType::kHalf) {
        size_t i = 0;
        for (; i + 16 <= head_size; i += 16) store(out + i, load_half(reinterpret_cast<const uint16_t*>(x + 2 * i)));
        if (i < head_size) {
            uint16_t halves[16] = {};
            std::memcpy(halves, x + 2 * i, 2 * (head_size - i));
            store(out + i, load_half(halves));
        }
        return;
    }
    for (size_t i = 0; i < head_size; i += 32, x += 34) {
        uint16_t d;
        std::memcpy(&d, x, 2);
        const Floats scale = splat(half_to_float(d));
        store(out + i, mul(load_int8(reinterpret_cast<const int8_t*>(x + 2)), scale));
        if (i + 16 < padded(head_size)) {
            store(out + i + 16, mul(load_int8(reinterpret_cast<const int8_t*>(x + 18)), scale));
        }
    }
}
