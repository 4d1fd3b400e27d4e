"""Errors to plant into specs: each returns the spec with one thing wrong."""

from dataclasses import replace


def layers(change):
    """`change` made to every layer."""
    return lambda spec: replace(spec, layers=tuple(change(layer) for layer in spec.layers))


def mixers(change):
    """`change` made to every mixer."""
    return layers(lambda layer: replace(layer, mixer=change(layer.mixer)))


def mixer(**fields):
    """Every mixer with these fields."""
    return mixers(lambda mixer: replace(mixer, **fields))


def ropes(change):
    """`change` made to every rope that there is."""
    return mixers(lambda mixer: replace(mixer, rope=mixer.rope and change(mixer.rope)))


def rope_everywhere(spec):
    """Every layer with the first layer's rope."""
    return mixer(rope=spec.layers[0].mixer.rope)(spec)


def windows(change):
    """`change` made to every window that there is."""
    return mixers(lambda mixer: replace(mixer, window=mixer.window and change(mixer.window)))


def ffns(**fields):
    """Every feed-forward with these fields."""
    return layers(lambda layer: replace(layer, ffn=replace(layer.ffn, **fields)))


def norms(change):
    """`change` made to every norm: of the layers, of q and k, and the last one."""

    def changed(norm):
        return norm and change(norm)

    def change_layer(layer):
        mixer = replace(layer.mixer, q_norm=changed(layer.mixer.q_norm), k_norm=changed(layer.mixer.k_norm))
        names = "norm", "ffn_norm", "post_norm", "post_ffn_norm"
        return replace(layer, mixer=mixer, **{name: changed(getattr(layer, name)) for name in names})

    def change_spec(spec):
        return replace(layers(change_layer)(spec), output_norm=change(spec.output_norm))

    return change_spec


def other_pairs(rope):
    """The rope with its pairs made of other numbers."""
    return replace(rope, pairs={"halves": "adjacent", "adjacent": "halves"}[rope.pairs])


def pattern_shifted(spec):
    """The layers' pattern begun one layer later; the layers that move are alike but for their mixers."""
    moved = spec.layers[1:] + spec.layers[:1]
    both = zip(spec.layers, moved, strict=True)
    return replace(spec, layers=tuple(replace(old, mixer=new.mixer) for old, new in both))
