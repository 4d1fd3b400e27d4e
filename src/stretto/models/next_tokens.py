"""Layers behind a decoder that predict the token after the next one (multi-token prediction, `nextn`).

Such a layer reads, for each token, the decoder's final hidden state of the token before and the embedding of
the token itself: a matrix makes one vector of both, a layer like the decoder's last ones attends from it to
those before, and the output matrix gives the logits of the next token. It is for drafts: `draft="mtp"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stretto.errors import ModelError, Unsupported
from stretto.models import reader
from stretto.models.common import Keys
from stretto.models.parts import Head, Norm, Projection
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF

JOIN = "nextn.eh_proj"


@dataclass(frozen=True)
class NextLayer:
    """A layer for drafts, as a model of its own, and the names of that model's tensors in the file."""

    spec: ModelSpec
    names: Mapping[str, str]
    embedding_norm: str
    state_norm: str


class _AllKeys(Keys):
    """Keys of a file by which readers make the first layer for drafts too, as one more of the decoder's."""

    @property
    def n_layer(self) -> int:
        return super().n_layer + 1


def read_next_layer(file: GGUF, spec: ModelSpec) -> NextLayer | None:
    """The first layer for drafts behind a decoder; None if the file has none, or not all of its tensors."""
    number, architecture = spec.n_layer, file.metadata.text("general.architecture")
    prefix = f"blk.{number}."
    norm = spec.output_norm
    if f"{prefix}{JOIN}.weight" not in file.tensors or norm is None or norm.kind != "rms" or not norm.weight:
        return None
    if spec.streams or spec.per_layer or spec.embedding_norm or spec.learned_positions or spec.token_types:
        return None
    try:
        wide = reader(architecture)(_AllKeys(file, architecture)).within(spec.context_length)
    except (ModelError, Unsupported):  # the decoder can be read, and that is enough
        return None
    if wide.n_layer <= number:
        return None
    layer = wide.layers[number]
    if layer.recurrent:  # of hybrids it attends, whatever the turn of its number
        layer = next(one for one in reversed(wide.layers) if not one.recurrent)
    if getattr(layer.mixer, "chosen_by", None) is not None:  # what it attends to is chosen in the decoder
        return None
    alone = replace(
        spec,
        layers=(layer,),
        output_norm=Norm("output_norm", norm.eps),
        tied=True,
        deepstack=0,
        embedder=Head("mean", (Projection(JOIN, spec.n_embd, 2 * spec.n_embd),)),
    )
    output = "token_embd.weight" if spec.tied else "output.weight"
    own = {
        "token_embd.weight": (f"{prefix}nextn.shared_head_head.weight", output),
        "output_norm.weight": (f"{prefix}nextn.shared_head_norm.weight", "output_norm.weight"),
        f"{JOIN}.weight": (f"{prefix}{JOIN}.weight",),
    }
    names: dict[str, str] = {}
    for name, shape in alone.tensors().items():
        of_layer = (name.replace("blk.0.", prefix, 1),)
        found = next((one for one in own.get(name, of_layer) if one in file.tensors), None)
        if found is None or file.tensors[found].shape != shape:
            return None
        names[name] = found
    names |= {
        f"blk.0.{name.removeprefix(prefix)}": name
        for name in file.tensors
        if name.startswith(prefix) and ".nextn." not in name
    }
    norms = f"{prefix}nextn.enorm.weight", f"{prefix}nextn.hnorm.weight"
    if any(one not in file.tensors or file.tensors[one].shape != (spec.n_embd,) for one in norms):
        return None
    return NextLayer(alone, names, *norms)
