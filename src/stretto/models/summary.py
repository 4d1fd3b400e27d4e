"""A spec in a few words and figures: the kinds of its layers, and what a token and a sequence take."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from stretto.models.mixers import Attention, Beside, Latent
from stretto.models.spec import Experts, Layer, ModelSpec
from stretto.weights.adapters import Target
from stretto.weights.gguf import GGUF
from stretto.weights.memory import Memory, memory

STATE_NUMBER_BYTES = 4  # states are float32


def layer_kinds(spec: ModelSpec) -> dict[str, int]:
    """How many layers there are of each kind of mixer, the most frequent first.

    >>> layer_kinds(read_spec(GGUF("gemma3-270m.gguf")))
    {'attention within 512 tokens': 15, 'attention': 3}
    """
    return dict(Counter(map(_kind, spec.layers)).most_common())


def expert_facts(spec: ModelSpec) -> dict[str, int] | None:
    """The experts of the widest mixture: their number, those used for a token, how many layers have them."""
    mixtures = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, Experts)]
    if not mixtures:
        return None
    widest = max(mixtures, key=lambda ffn: ffn.n_expert)
    return {
        "count": widest.n_expert,
        "used": widest.routing.n_used,
        "shared": int(widest.shared is not None),
        "layers": len(mixtures),
    }


def in_words(spec: ModelSpec) -> str:
    """The layers and experts on one line.

    >>> in_words(read_spec(GGUF("qwen3-next-80b.gguf")))
    '48 layers: 36 gated delta net, 12 attention; experts 512, 10 used, 1 shared'
    """
    kinds = ", ".join(f"{count} {kind}" for kind, count in layer_kinds(spec).items())
    words = f"{spec.n_layer} layers: {kinds}"
    if (facts := expert_facts(spec)) is not None:
        words += f"; experts {facts['count']}, {facts['used']} used"
        words += ", 1 shared" if facts["shared"] else ""
        words += f", in {facts['layers']} of the layers" if facts["layers"] < spec.n_layer else ""
    return words


def model_memory(file: GGUF, spec: ModelSpec) -> Memory:
    """The memory that loading a model needs, by its spec; `memory` guesses it from the usual keys."""
    rows: Counter[int] = Counter()
    for heads, size in spec.planes:
        rows[size] += heads
    return replace(
        memory(file),
        rows=tuple((count, size) for size, count in rows.items()),
        state_bytes=STATE_NUMBER_BYTES * spec.state_floats,
    )


def _kind(layer: Layer) -> str:
    mixer = layer.mixer
    if mixer is None:
        return "feed-forward alone"
    if isinstance(mixer, Latent):
        if mixer.indexer is not None:
            return f"latent attention to {mixer.indexer.top_k} chosen tokens"
        return "latent attention" + " to an earlier layer's choice" * (mixer.chosen_by is not None)
    if isinstance(mixer, Beside):
        return f"{_attention(mixer.attention)} beside {mixer.recurrent}"
    return _attention(mixer) if isinstance(mixer, Attention) else mixer.recurrent


def _attention(mixer: Attention) -> str:
    words = "attention" if mixer.window is None else f"attention within {mixer.window:,} tokens"
    return words if mixer.shared is None else f"{words} to another layer's K and V"


# What readers of adapters have to know of a model.


def make_target(spec: ModelSpec) -> Target:
    """The model that an adapter is to change."""
    return Target(spec.architecture, spec.tensors(), spec.head_size, spec.n_layer, spec.n_embd)
