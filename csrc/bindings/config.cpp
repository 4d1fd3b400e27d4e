// A Config from the dictionaries that Python makes of a ModelSpec. Every number is checked here, and every field has
// to be read.

#include "bindings/config.h"

#include <algorithm>
#include <cmath>

#include <nanobind/stl/vector.h>

#include "bindings/part.h"

namespace stretto {

namespace {

constexpr int64_t kMostValue = int64_t{1} << 31;

size_t size_in(const Part& spec, const char* name, int64_t least = 1) {
    const auto value = nb::cast<int64_t>(spec[name]);
    if (value < least || value > kMostValue) fail(std::string(name) + " is out of range");
    return static_cast<size_t>(value);
}

float number_in(const Part& spec, const char* name) { return nb::cast<float>(spec[name]); }
bool flag_in(const Part& spec, const char* name) { return nb::cast<bool>(spec[name]); }
std::string text_in(const Part& spec, const char* name) { return nb::cast<std::string>(spec[name]); }
Part part_in(const Part& spec, const char* name) { return nb::cast<nb::dict>(spec[name]); }
bool has(const Part& spec, const char* name) { return spec.has(name); }

// One of the named choices, as its number.
size_t choice_in(const Part& spec, const char* name, std::initializer_list<const char*> choices) {
    const std::string value = text_in(spec, name);
    size_t at = 0;
    for (const char* choice : choices) {
        if (value == choice) return at;
        ++at;
    }
    fail(std::string(name) + " cannot be " + value);
}

NormConfig norm_in(const Part& spec, const char* name) {
    NormConfig norm;
    if (!has(spec, name)) return norm;
    const Part given = part_in(spec, name);
    norm.name = text_in(given, "name");
    norm.eps = number_in(given, "eps");
    norm.centred = choice_in(given, "kind", {"rms", "layer"}) == 1;
    norm.weight = flag_in(given, "weight");
    norm.bias = flag_in(given, "bias");
    norm.over = static_cast<Over>(choice_in(given, "over", {"head", "heads", "all"}));
    norm.weight_name = norm.name + (flag_in(given, "bare") ? "" : ".weight");
    norm.given = true;
    if (norm.name.empty() && (norm.weight || norm.bias)) fail("a norm with tensors needs a name");
    given.check();
    return norm;
}

NormConfig needed_norm_in(const Part& spec, const char* name) {
    if (!has(spec, name)) fail(std::string(name) + " is missing");
    return norm_in(spec, name);
}

Rope rope_of(const Part& spec) {
    Rope rope;
    rope.frequencies = nb::cast<std::vector<double>>(spec["frequencies"]);
    rope.adjacent = choice_in(spec, "pairs", {"halves", "adjacent"}) == 1;
    rope.magnitude = nb::cast<double>(spec["magnitude"]);
    if (has(spec, "axes")) rope.axes = nb::cast<std::vector<int>>(spec["axes"]);
    if (!rope.axes.empty() && rope.axes.size() != rope.frequencies.size()) fail("an axis for each pair is needed");
    for (int axis : rope.axes) if (axis < 0 || axis > 2) fail("an axis is out of range");
    if (has(spec, "stretch")) {
        const Part stretch = part_in(spec, "stretch");
        rope.stretch_length = size_in(stretch, "length");
        rope.stretch_factor = nb::cast<double>(stretch["factor"]);
        stretch.check();
        if (rope.frequencies.size() < 2 || !(rope.stretch_factor >= 1.0)) fail("such a rope cannot be stretched");
    }
    spec.check();
    return rope;
}

int rope_in(const Part& spec, const std::vector<Rope>& ropes, size_t size) {
    if (!has(spec, "rope")) return -1;
    const auto rope = nb::cast<int64_t>(spec["rope"]);
    if (rope < 0 || static_cast<size_t>(rope) >= ropes.size()) fail("a rope is out of range");
    if (2 * ropes[rope].frequencies.size() > size) fail("more rotated numbers than a head has");
    return static_cast<int>(rope);
}

AttentionConfig attention_of(const Part& spec, const std::vector<Rope>& ropes, size_t layer) {
    AttentionConfig a;
    a.n_head = size_in(spec, "n_head");
    a.n_kv_head = size_in(spec, "n_kv_head");
    a.head_size = size_in(spec, "head_size");
    if (a.n_head % a.n_kv_head) fail("n_head is not a multiple of n_kv_head");
    a.scale = number_in(spec, "scale");
    a.cap = number_in(spec, "cap");
    a.rope = rope_in(spec, ropes, a.head_size);
    if (has(spec, "window")) a.window = static_cast<int>(std::min<int64_t>(size_in(spec, "window"), INT32_MAX));
    a.chunked = flag_in(spec, "chunked");
    if (a.chunked && !a.window) fail("chunks need a size");
    a.clip = number_in(spec, "clip");
    if (has(spec, "shared")) {
        a.shared = static_cast<int>(size_in(spec, "shared", 0));
        if (static_cast<size_t>(a.shared) >= layer) fail("K and V can be shared with an earlier layer only");
    }
    a.bias = flag_in(spec, "bias");
    a.output_bias = flag_in(spec, "output_bias");
    a.sinks = flag_in(spec, "sinks");
    a.gate = flag_in(spec, "gate");
    a.values_are_keys = flag_in(spec, "values_are_keys");
    a.norm_after_rope = flag_in(spec, "norm_after_rope");
    a.q_norm = norm_in(spec, "q_norm");
    a.k_norm = norm_in(spec, "k_norm");
    a.v_norm = norm_in(spec, "v_norm");
    a.mixed_norm = norm_in(spec, "mixed_norm");
    if (has(spec, "temperature")) {
        const Part t = part_in(spec, "temperature");
        a.slope = number_in(t, "slope");
        a.offset = number_in(t, "offset");
        a.length = static_cast<int>(std::min<int64_t>(size_in(t, "length"), INT32_MAX));
        t.check();
    }
    a.joined = size_in(spec, "joined", 0);
    a.causal = flag_in(spec, "causal");
    a.alibi = nb::cast<std::vector<float>>(spec["alibi"]);
    if (!a.alibi.empty() && a.alibi.size() != a.n_head) fail("a slope for each head is needed");
    if (a.chunked && !a.causal) fail("chunks are of attention in one direction");
    if (a.v_norm.over != Over::kHead) fail("v_norm has to be of each head");
    if (a.norm_after_rope && (a.q_norm.over == Over::kAll || a.k_norm.over == Over::kAll || a.k_norm.bias)) {
        fail("such a norm cannot come after the rope");
    }
    spec.check({"fused"});
    return a;
}

LatentConfig latent_of(const Part& spec, const std::vector<Rope>& ropes) {
    LatentConfig l;
    l.q_rank = size_in(spec, "q_rank", 0);
    l.rank = size_in(spec, "rank");
    l.nope_size = size_in(spec, "nope_size");
    l.rope_size = size_in(spec, "rope_size");
    l.value_size = size_in(spec, "value_size");
    if (l.q_rank || has(spec, "q_norm")) l.q_norm = needed_norm_in(spec, "q_norm");
    l.kv_norm = needed_norm_in(spec, "kv_norm");
    if (has(spec, "indexer")) {
        const Part given = part_in(spec, "indexer");
        l.indexer.n_head = size_in(given, "n_head");
        l.indexer.head_size = size_in(given, "head_size");
        l.indexer.top_k = l.top_k = size_in(given, "top_k");
        l.indexer.scale = 1.0f / std::sqrt(static_cast<float>(l.indexer.n_head * l.indexer.head_size));
        l.indexer.rope = rope_in(given, ropes, l.indexer.head_size);
        l.indexer.k_norm = needed_norm_in(given, "k_norm");
        given.check();
        if (!l.q_rank || l.indexer.rope < 0) fail("an indexer needs compressed queries and a rope");
    }
    if (has(spec, "chosen_by")) l.chosen_by = static_cast<int>(size_in(spec, "chosen_by", 0));
    return l;
}

// Its attention, over compressed vectors.
AttentionConfig latent_attention_of(const Part& spec, const LatentConfig& l, const std::vector<Rope>& ropes) {
    AttentionConfig a;
    a.n_head = size_in(spec, "n_head");
    a.n_kv_head = 1;
    a.head_size = l.rank + l.rope_size;
    a.scale = number_in(spec, "scale");
    a.rope = rope_in(spec, ropes, l.rope_size);
    spec.check({"fused"});
    return a;
}

// What a dense feed-forward and each of several experts have.
DenseConfig inner_of(const Part& spec) {
    DenseConfig d;
    d.n_ff = size_in(spec, "n_ff");
    d.activation = static_cast<FeedActivation>(choice_in(spec, "activation", {"silu", "gelu", "relu2", "gelu_erf", "relu", "xielu"}));
    d.gated = flag_in(spec, "gated");
    d.bias = flag_in(spec, "bias");
    return d;
}

DenseConfig dense_of(const Part& spec) {
    DenseConfig d = inner_of(spec);
    d.suffix = text_in(spec, "suffix");
    d.down_bias = has(spec, "down_bias") ? flag_in(spec, "down_bias") : d.bias;
    const auto xielu = nb::cast<std::vector<float>>(spec["xielu"]);
    if (xielu.size() != (d.activation == FeedActivation::kXielu ? 4 : 0)) fail("xIELU has four numbers");
    if (!xielu.empty()) d.xielu = {xielu[0], xielu[1], xielu[2], xielu[3]};
    d.sparse = has(spec, "cutoff");
    d.inner_norm = norm_in(spec, "inner_norm");
    d.shift = size_in(spec, "shift", 0);
    if (d.sparse) d.cutoff = number_in(spec, "cutoff");
    if (d.sparse && !d.gated) fail("a cutoff is one of gates");
    spec.check({"fused"});
    return d;
}

RoutingConfig routing_of(const Part& spec, size_t n_expert) {
    RoutingConfig r;
    r.n_used = size_in(spec, "n_used");
    r.n_group = size_in(spec, "n_group");
    r.n_group_used = size_in(spec, "n_group_used");
    r.group_best = size_in(spec, "group_best");
    r.weights = static_cast<Weights>(choice_in(spec, "weights", {"softmax", "sigmoid", "chosen", "one by one"}));
    r.early = flag_in(spec, "early");
    r.jitter = number_in(spec, "jitter");
    if (r.early && has(spec, "norm")) fail("an early router reads the row as it is");
    r.normalize = flag_in(spec, "normalize");
    r.correction = flag_in(spec, "correction");
    r.bias = flag_in(spec, "bias");
    r.scale = number_in(spec, "scale");
    r.norm = norm_in(spec, "norm");
    r.score_scale = number_in(spec, "score_scale");
    spec.check({"bare"});
    if (n_expert % r.n_group || r.n_group_used > r.n_group || r.group_best > n_expert / r.n_group ||
        r.n_used > n_expert / r.n_group * r.n_group_used) {
        fail("the groups of experts do not fit");
    }
    return r;
}

ExpertsConfig experts_of(const Part& spec) {
    ExpertsConfig e;
    e.n_expert = size_in(spec, "n_expert");
    e.expert = inner_of(spec);
    if (e.expert.activation == FeedActivation::kXielu) fail("experts have no xIELU");
    e.weighs_inputs = flag_in(spec, "weighs_inputs");
    if (e.weighs_inputs && e.expert.bias) fail("experts whose inputs are weighed have no biases");
    e.routing = routing_of(part_in(spec, "routing"), e.n_expert);
    e.limit = number_in(spec, "limit");
    e.alpha = number_in(spec, "alpha");
    e.has_shared = has(spec, "shared");
    if (e.has_shared) e.shared = dense_of(part_in(spec, "shared"));
    if (e.shared.shift) fail("a shared expert reads no row before");
    e.shared_scale = number_in(spec, "shared_scale");
    e.shared_gate = flag_in(spec, "shared_gate");
    if (e.shared_gate && !e.has_shared) fail("a gate without a shared expert");
    e.output_scale = flag_in(spec, "output_scale");
    e.norm = norm_in(spec, "norm");
    e.post_norm = norm_in(spec, "post_norm");
    e.shared_norm = norm_in(spec, "shared_norm");
    e.shared_post_norm = norm_in(spec, "shared_post_norm");
    spec.check({"fused", "apart"});
    return e;
}

RecurrentConfig recurrent_of(const Part& spec, MixerKind kind) {
    RecurrentConfig r;
    if (kind == MixerKind::kTimeMix) {
        r.n_head = size_in(spec, "n_head");
        r.head_size = size_in(spec, "head_size");
        r.rank = size_in(spec, "decay_rank");
        r.rate_rank = size_in(spec, "rate_rank");
        r.value_rank = size_in(spec, "value_rank", 0);
        r.gate_rank = size_in(spec, "gate_rank", 0);
        r.norm = norm_in(spec, "norm");
        if (r.norm.there() && !(r.norm.centred && r.norm.weight && r.norm.bias)) {
            fail("time mixing has a layer norm of its heads, with a bias");
        }
        r.width = r.n_head * r.head_size;
        spec.check();
        return r;
    }
    r.kernel = size_in(spec, "kernel", 2);
    if (kind == MixerKind::kConvolution) {
        r.width = size_in(spec, "width");
        spec.check();
        return r;
    }
    if (kind == MixerKind::kKimiDelta) {
        r.n_head = size_in(spec, "n_head");
        r.head_size = size_in(spec, "head_size");
        r.rank = size_in(spec, "rank");
        r.norm = needed_norm_in(spec, "norm");
        r.width = r.n_head * r.head_size;
        spec.check();
        return r;
    }
    if (kind == MixerKind::kMamba) {
        r.width = size_in(spec, "width");
        r.state_size = size_in(spec, "state_size");
        r.rank = size_in(spec, "rank");
        r.conv_bias = flag_in(spec, "conv_bias");
        r.norm = norm_in(spec, "step_norm");
        r.b_norm = norm_in(spec, "b_norm");
        r.c_norm = norm_in(spec, "c_norm");
        spec.check();
        return r;
    }
    r.norm = norm_in(spec, "norm");
    if (kind == MixerKind::kDeltaNet) {
        r.n_key_head = size_in(spec, "n_key_head");
        r.n_value_head = size_in(spec, "n_value_head");
        r.key_size = size_in(spec, "key_size");
        r.value_size = size_in(spec, "value_size");
        r.tiled = flag_in(spec, "tiled");
        r.fused = flag_in(spec, "fused");
        if (r.n_value_head % r.n_key_head) fail("n_value_head is not a multiple of n_key_head");
        if (!r.norm.there()) fail("a delta net needs its norm");
        spec.check();
        return r;
    }
    r.n_head = size_in(spec, "n_head");
    r.head_size = size_in(spec, "head_size");
    r.n_group = size_in(spec, "n_group");
    r.state_size = size_in(spec, "state_size");
    r.conv_bias = flag_in(spec, "conv_bias");
    if (r.n_head % r.n_group) fail("n_head is not a multiple of n_group");
    spec.check();
    return r;
}

LowRankConfig low_rank_in(const Part& spec) {
    LowRankConfig low_rank;
    if (!has(spec, "low_rank")) return low_rank;
    const Part given = part_in(spec, "low_rank");
    low_rank.rank = size_in(given, "rank");
    low_rank.norm = needed_norm_in(given, "norm");
    given.check();
    return low_rank;
}

LayerInputConfig input_in(const Part& spec, const char* name) {
    LayerInputConfig input;
    if (!has(spec, name)) return input;
    const Part given = part_in(spec, name);
    input.size = size_in(given, "size");
    input.norm = needed_norm_in(given, "norm");
    given.check();
    return input;
}

StreamsConfig streams_in(const Part& spec) {
    StreamsConfig streams;
    if (!has(spec, "streams")) return streams;
    const Part given = part_in(spec, "streams");
    streams.n = size_in(given, "n", 2);
    streams.norm = needed_norm_in(given, "norm");
    given.check();
    if (streams.n > kMostStreams) fail("too many streams");
    return streams;
}

LayerConfig layer_of(const Part& spec, const std::vector<Rope>& ropes, size_t index) {
    LayerConfig layer;
    if (has(spec, "mixer")) {
        const Part mixer = part_in(spec, "mixer");
        layer.mixer = static_cast<MixerKind>(
            1 + choice_in(mixer, "part", {"Attention", "Latent", "DeltaNet", "KimiDelta", "Convolution", "Mamba", "Mamba2", "TimeMix", "Beside"}));
        const bool beside = layer.mixer == MixerKind::kBeside;
        if (layer.mixer == MixerKind::kLatent) {
            layer.latent = latent_of(mixer, ropes);
            layer.attention = latent_attention_of(mixer, layer.latent, ropes);
        } else if (layer.has_attention()) {
            layer.attention = attention_of(beside ? part_in(mixer, "attention") : mixer, ropes, index);
        }
        if (layer.is_recurrent()) {
            layer.recurrent = recurrent_of(beside ? part_in(mixer, "other") : mixer, layer.mixer);
        }
    }
    if (has(spec, "ffn")) {
        const Part ffn = part_in(spec, "ffn");
        layer.ffn = static_cast<FeedForwardKind>(1 + choice_in(ffn, "part", {"Dense", "Experts"}));
        if (layer.ffn == FeedForwardKind::kDense) layer.dense = dense_of(ffn);
        if (layer.ffn == FeedForwardKind::kExperts) layer.experts = experts_of(ffn);
    }
    layer.norm = norm_in(spec, "norm");
    layer.ffn_norm = norm_in(spec, "ffn_norm");
    layer.post_norm = norm_in(spec, "post_norm");
    layer.post_ffn_norm = norm_in(spec, "post_ffn_norm");
    layer.sum_norm = norm_in(spec, "sum_norm");
    layer.ffn_sum_norm = norm_in(spec, "ffn_sum_norm");
    layer.parallel = flag_in(spec, "parallel");
    layer.residual_scale = number_in(spec, "residual_scale");
    layer.low_rank = low_rank_in(spec);
    layer.input = input_in(spec, "input");
    layer.streams = streams_in(spec);
    layer.output_scale = flag_in(spec, "output_scale");
    spec.check();
    if (layer.dense.shift && (layer.parallel || !layer.is_recurrent())) fail("channel mixing stands behind a recurrent mixer");
    if (layer.low_rank.rank && layer.mixer == MixerKind::kNone) fail("a low-rank residual stands beside a mixer");
    if (layer.latent.q_rank && (layer.parallel || layer.low_rank.rank)) {
        fail("what latent attention reads cannot be read beside it");
    }
    return layer;
}

// The matrices of a head, which Python applies one after the other.
void add_projections(const Part& spec, const char* name, std::vector<ProjectionConfig>& to) {
    if (!has(spec, name)) return;
    const Part head = part_in(spec, name);
    for (nb::handle item : nb::cast<nb::list>(head["projections"])) {
        const Part given = nb::cast<nb::dict>(item);
        ProjectionConfig p;
        p.name = text_in(given, "name");
        p.rows = size_in(given, "rows");
        p.columns = size_in(given, "columns");
        p.bias = flag_in(given, "bias");
        p.activation = static_cast<ProjectionConfig::Activation>(
            choice_in(given, "activation", {"none", "tanh", "gelu", "gelu_erf"}));
        p.norm = norm_in(given, "norm");
        given.check();
        const auto same = [&](const ProjectionConfig& other) { return other.name == p.name; };
        if (std::none_of(to.begin(), to.end(), same)) to.push_back(p);
    }
    head.check({"pooling", "labels", "softmax"});
}

}  // namespace

Config config_of(const nb::dict& dictionary) {
    const Part spec = dictionary;
    Config c;
    c.n_vocab = size_in(spec, "n_vocab");
    c.n_embd = size_in(spec, "n_embd");
    if (has(spec, "deepstack")) c.deepstack = size_in(spec, "deepstack", 0);
    c.windowed_images = flag_in(spec, "windowed_images");
    c.embedding_scale = number_in(spec, "embedding_scale");
    c.logit_scale = number_in(spec, "logit_scale");
    c.logit_cap = number_in(spec, "logit_cap");
    c.tied = flag_in(spec, "tied");
    c.output_bias = flag_in(spec, "output_bias");
    c.output_norm = norm_in(spec, "output_norm");
    c.embedding_norm = norm_in(spec, "embedding_norm");
    c.learned_positions = size_in(spec, "learned_positions", 0);
    c.token_types = size_in(spec, "token_types", 0);
    add_projections(spec, "embedder", c.projections);
    add_projections(spec, "classifier", c.projections);
    c.per_layer = input_in(spec, "per_layer");
    for (nb::handle rope : nb::cast<nb::list>(spec["ropes"])) c.ropes.push_back(rope_of(nb::cast<nb::dict>(rope)));
    for (nb::handle item : nb::cast<nb::list>(spec["layers"])) {
        c.layers.push_back(layer_of(nb::cast<nb::dict>(item), c.ropes, c.layers.size()));
        const LayerConfig& layer = c.layers.back();
        if (layer.input.size && layer.input.size != c.per_layer.size) fail("a layer's input does not fit");
        if (layer.dense.shift && layer.dense.shift != c.n_embd) fail("channel mixing is of whole rows");
        if (layer.is_time_mix() && layer.recurrent.width != c.n_embd) fail("heads of time mixing make whole rows");
        if (layer.is_time_mix()) {
            const auto n_mix = std::count_if(c.layers.begin(), c.layers.end(), [](const LayerConfig& l) { return l.is_time_mix(); });
            if ((n_mix == 1) != !layer.recurrent.value_rank) fail("all layers of time mixing but the first take its values");
        }
        if (layer.attention.joined && c.deepstack) fail("a vector is for joined rows or for early layers");
        if (layer.streams.n != c.n_stream()) fail("all layers need the same streams");
        if (layer.latent.chosen_by >= 0) {
            // Of all choices only the last one is kept.
            size_t last = c.layers.size() - 1;
            while (last > 0 && !c.layers[last - 1].latent.indexer.top_k) --last;
            if (layer.latent.indexer.top_k || last != static_cast<size_t>(layer.latent.chosen_by) + 1) {
                fail("a layer takes the choice of the last one before it that has an indexer");
            }
            c.layers.back().latent.top_k = c.layers[last - 1].latent.top_k;
        }
        if (!layer.has_attention() || layer.attention.shared < 0) continue;
        const LayerConfig& source = c.layers[layer.attention.shared];
        if (!source.has_attention() || source.attention.shared >= 0 ||
            source.attention.n_kv_head != layer.attention.n_kv_head ||
            source.attention.head_size != layer.attention.head_size) {
            fail("shared K and V do not fit");
        }
    }
    spec.check({"architecture", "context_length"});
    return c;
}

}  // namespace stretto
