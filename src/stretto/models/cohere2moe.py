"""Command A+ and North Mini: Command A with experts; the mean of their sum and of one for all tokens."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Attention, Experts, Layer, ModelSpec, Norm

PERIOD = 4  # every fourth layer is global, unless the file says otherwise


def read(keys: Keys) -> ModelSpec:
    """The spec of a cohere2moe file."""
    common.refuse_caps(keys)
    by_rms = keys.rms_epsilon in keys
    norm = Norm("attn_norm", keys.eps if by_rms else keys.layer_eps, "rms" if by_rms else "layer")
    layers = zip(attentions(keys), common.routed(keys, experts(keys)), strict=True)
    return common.decoder(
        keys,
        (Layer(mixer, ffn, norm, None, parallel=True) for mixer, ffn in layers),
        output_norm=replace(norm, name="output_norm"),
        logit_scale=keys.number("logit_scale"),
    )


def attentions(keys: Keys) -> list[Attention]:
    """The attention of each layer: windows; of the others only dense layers at the start have a rope."""
    rotated = common.attention(keys, "adjacent")
    near = replace(rotated, window=keys.size("attention.sliding_window"))
    n_dense = common.dense_first(keys)
    mixers = common.alternate(keys, near, common.remove_rope(rotated), PERIOD)
    return [rotated if i < n_dense and mixer.window is None else mixer for i, mixer in enumerate(mixers)]


def experts(keys: Keys) -> Experts:
    """The experts of all layers that have a router."""
    shared = common.shared_experts(keys)
    # The mean of the experts' sum and the shared one: half of each.
    share = 0.5 if shared is not None else 1.0
    normalize = keys.flag("expert_weights_norm", False)
    choice = common.routing(keys, common.gating(keys, "sigmoid"), normalize=normalize)
    choice = replace(choice, scale=share * choice.scale)
    return common.mixture(keys, choice, shared=shared, shared_scale=share)
