"""The sites of a model: named places in its layers, where values can be captured and changed.

A layer's sites are those of its parts, whatever its architecture: a layer without attention has no
`attn.out`, one with a mixture of experts has `experts`. Backends know them by their kind and layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase

from stretto.errors import InvalidRequest
from stretto.models.feed_forward import Experts
from stretto.models.mixers import Attention, Beside, Latent
from stretto.models.spec import Layer, ModelSpec


class Kind(IntEnum):
    """Where in a layer a site is; the numbers are the native core's (csrc/model/tap.h)."""

    EMBEDDING = 0
    RESIDUAL = 1
    MIXER_IN = 2
    HEADS = 3
    MIXER_OUT = 4
    RECURRENT_OUT = 5  # of a recurrent mixer beside attention
    FEED_IN = 6
    FEED_OUT = 7
    EXPERTS = 8
    EXPERT_WEIGHTS = 9


@dataclass(frozen=True)
class Site:
    """A place in a layer: its name, how many numbers each token has there, and how many heads these are of.

    `fixed` says why values there can be captured and not changed; "" if they can.
    """

    name: str
    kind: Kind
    layer: int
    width: int
    heads: int = 1
    fixed: str = ""


BOTH_READ = "another part of the layer reads the same values; change what the parts give (attn.out, mlp.out)"
CHOSEN = "experts are chosen by their scores; change their weights"


def list_sites(spec: ModelSpec) -> dict[str, Site]:
    """All sites of a model by name, in the order in which a pass comes to them."""
    found: list[Site] = []
    if spec.streams is None:
        found.append(Site("embedding", Kind.EMBEDDING, 0, spec.n_embd))
    for i, layer in enumerate(spec.layers):
        found += _sites_of(i, layer, spec.n_embd)
        if spec.streams is None:
            found.append(Site(f"layers.{i}.residual", Kind.RESIDUAL, i, spec.n_embd))
    return {site.name: site for site in found}


def _sites_of(i: int, layer: Layer, n: int) -> list[Site]:
    """Those of one layer's mixer and feed-forward."""
    found: list[Site] = []
    mixer, ffn = layer.mixer, layer.ffn

    def add(part: str, kind: Kind, width: int, heads: int = 1, fixed: str = "") -> None:
        found.append(Site(f"layers.{i}.{part}", kind, i, width, heads, fixed))

    shares = layer.parallel and layer.ffn_norm is None
    shares = shares or layer.low_rank is not None or isinstance(mixer, Beside)
    if mixer is not None:
        kind = "attn" if layer.attention is not None or isinstance(mixer, Latent) else "recurrent"
        add(f"{kind}.in", Kind.MIXER_IN, n, fixed=BOTH_READ if shares else "")
        attention = mixer if isinstance(mixer, Latent) else layer.attention
        if attention is not None:
            size = attention.head_size if isinstance(attention, Attention) else attention.value_size
            add("attn.heads", Kind.HEADS, attention.n_head * size, attention.n_head)
        add(f"{kind}.out", Kind.MIXER_OUT, n)
        if isinstance(mixer, Beside):
            add("recurrent.out", Kind.RECURRENT_OUT, n)
    if ffn is not None:
        add("mlp.in", Kind.FEED_IN, n)
        if isinstance(ffn, Experts):
            add("experts", Kind.EXPERTS, ffn.routing.n_used, fixed=CHOSEN)
            add("experts.weights", Kind.EXPERT_WEIGHTS, ffn.routing.n_used)
        add("mlp.out", Kind.FEED_OUT, n)
    return found


def find_sites(sites: dict[str, Site], patterns: Iterable[str], param: str) -> list[Site]:
    """The sites that patterns name, in the model's order: whole names, or their ends, with * for anything.

    >>> find_sites(list_sites(llm.spec), ["residual", "layers.3.attn.*"], "capture")
    """
    named: set[str] = set()
    for pattern in patterns:
        found = {name for name in sites if fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")}
        if not found:
            parts = sorted({name.split(".", 2)[-1] for name in sites})
            raise InvalidRequest(
                f"{param} names the site {pattern!r:.80}, which this model does not have; its layers have "
                f"{', '.join(parts)} (llm.sites() lists all)",
                param=param,
                value=pattern,
            )
        named |= found
    return [site for name, site in sites.items() if name in named]
