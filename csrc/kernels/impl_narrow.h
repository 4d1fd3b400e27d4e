// Products with narrow matrices of bytes, added to what is there: B (A x) of an adapter. Included by impl_matmul.h.
//
// A panel has a block or two, and nothing is stored between the product and the sum. The bits are those of `matmul` and `add`.

// A block of a panel × a block of activations, of which `columns` at most are not zero, without the activations' scale.
inline Floats narrow_block(const uint8_t* w, const Quantized& a, size_t block, size_t columns) {
    const uint8_t* quants = w + shape_of(Layout::kBytes).quants_at(0);
    const int8_t* q = a.q + block * kBlock;
    const Floats d = load_half(reinterpret_cast<const uint16_t*>(w));
#ifdef STRETTO_HAS_TILES
    int32x4_t dots[4];
    each<4>([&](auto r) ALWAYS_LAMBDA { dots[r] = sum_start(); });
    const auto sixteen = [&](auto side) ALWAYS_LAMBDA {
        const int8x16_t x = vld1q_s8(q + side * 16);
        each<4>([&](auto i) ALWAYS_LAMBDA {
            each<4>([&](auto r) ALWAYS_LAMBDA {
                dots[r] = vdotq_laneq_s32(dots[r], Panel<Layout::kBytes>::quants(quants, r, side * 4 + i), x, i);
            });
        });
    };
    sixteen(std::integral_constant<int, 0>{});
    if (columns > 16) sixteen(std::integral_constant<int, 1>{});
    Floats part;
    each<4>([&](auto r) ALWAYS_LAMBDA {
        part.v[r] = vfmaq_f32(vmulq_n_f32(d.v[r], -kFloatBias), vreinterpretq_f32_s32(dots[r]), d.v[r]);
    });
    return part;
#else
    const int32_t excess = Quant<Layout::kBytes>::kExcess * (a.sums[2 * block] + a.sums[2 * block + 1]);
    Ints dots = splat_int(kSumStart - excess);
    for (size_t k = 0; k < kBlock && k < columns; k += 4) dots = dot_wide(dots, load_bytes(quants + k * kPanelRows), quad(q + k));
    return scaled_sum(dots, d, mul(d, splat(-kFloatBias)));
#endif
}

void add_narrow(const Matrix& b, const Quantized& a, size_t row, size_t rank, size_t begin, size_t end, float* out) {
    const size_t first = a.block_of(row, b.columns);
    for (size_t panel = begin; panel < end; ++panel) {
        const uint8_t* w = b.data + panel * b.panel_bytes;
        const size_t left = b.rows - panel * kPanelRows, rows = left < kPanelRows ? left : kPanelRows;
        Floats total = splat(0.0f);
        for (size_t column = 0, block = first; column < rank; column += kBlock, block += a.lanes) {
            total = fma(narrow_block(w, a, block, rank - column), splat(a.scale[block]), total);
            w += shape_of(Layout::kBytes).unit_bytes();
        }
        float* to = out + panel * kPanelRows;
        store_some(to, add(load_some(to, rows), total), rows);
    }
}
