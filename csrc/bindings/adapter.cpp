#include "bindings/adapter.h"

namespace stretto {

const Adapter* adapter_of(const Decoder& decoder, int number) {
    const Adapter* found = decoder.adapter(number);
    if (!found) fail("there is no adapter " + std::to_string(number));
    return found;
}

void set_adapters(const Decoder& decoder, const AdapterScales& scales, Input& input) {
    for (const auto& [number, each] : scales) {
        if (each.shape(0) != input.n) fail("an adapter needs a scale for each row");
        input.adapters.emplace_back(adapter_of(decoder, number), each.data());
    }
}

void add_change(Decoder& decoder, int adapter, const std::string& name, size_t rank, float scale, int a_code,
                Input1<uint8_t> a, int b_code, Input1<uint8_t> b) {
    const Tensors::Entry* entry = decoder.tensors().find(name);
    if (!entry || !entry->matrix) fail("there is no matrix " + name);
    check_matrix(a_code, rank, entry->columns, rank, a.shape(0));
    check_matrix(b_code, entry->rows, Adapter::columns_of(b_code, rank), entry->rows, b.shape(0));
    decoder.add_change(adapter, name, rank, scale, a_code, a.data(), b_code, b.data());
}

void add_vector(Decoder& decoder, int adapter, size_t layer, Input1<float> vector) {
    if (layer >= decoder.config().layers.size() || vector.shape(0) != decoder.config().n_embd) fail("the vector fits no layer");
    decoder.add_vector(adapter, layer, vector.data());
}

}  // namespace stretto
