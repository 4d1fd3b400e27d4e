"""Which format each tensor of a model gets in a mix: the same as in llama.cpp.

Matrices that matter more get more bits: the output, V, and the second matrix of some feed-forwards. Norms,
biases, routers and other small tensors stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stretto.errors import InvalidRequest, ModelError
from stretto.weights.formats import WRITABLE, Format
from stretto.weights.metadata import Metadata
from stretto.weights.tensor import Tensor

# Mixes, by llama.cpp's names (mixes.json): a format for most matrices of a model, and others for some.
#
# >>> find_mix("q4_k_m").format.name, find_mix("Q4_K").name ('Q4_K', 'q4_k_m')

VERSION = 2  # of the quantised formats, for general.quantization_version


@dataclass(frozen=True)
class Mix:
    """A mix: its name, its number in `general.file_type`, and the format of most matrices."""

    name: str
    file_type: int
    format: Format

    @property
    def is_plain(self) -> bool:
        """Whether its format is a plain float, which all matrices get."""
        return self.format.block == 1


# By name: the number, and the format.
_data = json.loads(Path(__file__).with_name("mixes.json").read_bytes())
_ALL = tuple(Mix(name, number, Format[fmt]) for name, (number, fmt) in _data.items())
MIXES = {mix.name: mix for mix in _ALL if mix.format in WRITABLE}
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}


def find_mix(name: str, param: str = "mix") -> Mix:
    """The mix of that name, in small or capital letters; `InvalidRequest` lists those there are."""
    lower = name.lower() if isinstance(name, str) else ""
    found = MIXES.get(ALIASES.get(lower, lower))
    if found is None:
        unwritable = any(mix.name == lower for mix in _ALL)
        reason = "can be read, but not written" if unwritable else "is not known"
        what = "the mix" if param == "mix" else f"{param}: the mix"
        raise InvalidRequest(
            f"{what} {name!r} {reason}; use one of {', '.join(MIXES)}", param=param, value=name
        )
    return found


def find_format(name: str) -> Format:
    """The format of that name, if it can be written; `InvalidRequest` lists those that can."""
    fmt = Format.__members__.get(name.upper())
    if fmt is None or fmt not in WRITABLE:
        known = ", ".join(fmt.name.lower() for fmt in sorted(WRITABLE))
        raise InvalidRequest(
            f"cannot write the format {name!r}; use one of {known}", param="format", value=name
        )
    return fmt


# Parts of names of tensors that stay as they are.
_KEPT = (
    "_norm.weight ffn_gate_inp.weight ffn_gate_tid2eid.weight altup laurel per_layer_model_proj ssm_conv1d "
    "shortconv.conv.weight indexer.k_proj.weight indexer.q_proj.weight time_mix_first.weight "
    "time_mix_w0.weight time_mix_w1.weight time_mix_w2.weight time_mix_v0.weight time_mix_v1.weight "
    "time_mix_v2.weight time_mix_a0.weight time_mix_a1.weight time_mix_a2.weight time_mix_g1.weight "
    "time_mix_g2.weight time_mix_decay_w1.weight time_mix_decay_w2.weight time_mix_lerp_fused.weight "
    "attn_rel_b.weight .position_embd sam.pos_embd sam.neck. sam.net_ .rel_pos .patch_embd .patch_merger"
)
_KEPT_NAMES = frozenset({"position_embd.weight", "token_types.weight"})
_EMBEDDINGS = frozenset({"token_embd.weight", "per_layer_token_embd.weight"})
_VALUES = ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")
_LAYER = re.compile(r"blk\.(\d+)\.")

# Formats for rows that are no whole blocks of 256.
FALLBACKS = {
    **dict.fromkeys(
        "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS".split(),  # noqa: SIM905
        Format.IQ4_NL,
    ),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), Format.Q4_0),
    "Q4_K": Format.Q5_0,
    "Q5_K": Format.Q5_1,
    "Q6_K": Format.Q8_0,
}
_LOW = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m")
_OUTPUT_Q5 = (*_LOW, "iq3_xxs")
_EIGHT_EXPERTS_Q5 = "q2_k iq3_xs iq3_xxs q3_k_s q3_k_m iq4_nl q4_k_s q4_k_m iq3_s iq3_m iq4_xs"


@dataclass(frozen=True)
class Facts:
    """What the choice depends on beside a tensor's name and shape."""

    n_layer: int
    n_expert: int
    heads_per_kv: int
    is_70b: bool  # V is an eighth of Q there, and gets more bits
    is_tied: bool  # the embeddings are the output too
    n_values: int  # layers with a matrix for V
    has_imatrix: bool


def read_facts(metadata: Metadata, tensors: Iterable[str], has_imatrix: bool) -> Facts:
    """The facts of a model."""
    arch = metadata.text("general.architecture")
    names = list(tensors)
    heads, kv_heads = (_first(metadata, f"{arch}.attention.head_count{end}") for end in ("", "_kv"))
    n_layer = metadata.integer(f"{arch}.block_count", 0)
    return Facts(
        n_layer=n_layer,
        n_expert=metadata.integer(f"{arch}.expert_count", 0),
        heads_per_kv=heads // kv_heads if kv_heads else 0,
        is_70b=arch in ("llama", "qwen2") and n_layer == 80 and heads != kv_heads,
        is_tied="output.weight" not in names,
        n_values=sum(any(part in name for part in _VALUES) for name in names),
        has_imatrix=has_imatrix,
    )


def _first(metadata: Metadata, key: str) -> int:
    """The number at a key, or the first one that is not 0 if there is one for each layer."""
    value = metadata.get(key, 0)
    if isinstance(value, np.ndarray):
        return int(next((one for one in value.reshape(-1).tolist() if one), 0))
    return int(value) if isinstance(value, int) else 0


def choose_formats(
    mix: Mix,
    metadata: Metadata,
    tensors: Mapping[str, Tensor],
    *,
    has_imatrix: bool = False,
    overrides: Sequence[tuple[re.Pattern[str], Format]] = (),
    pure: bool = False,
) -> dict[str, Format]:
    """The format of each tensor in a mix; the first override whose pattern is in a name decides it.

    With `pure` all matrices get the format of the mix.
    """
    chooser = _Chooser(mix, read_facts(metadata, tensors, has_imatrix))
    chosen: dict[str, Format] = {}
    for name in sorted(tensors, key=lambda name: (find_layer(name), name)):
        tensor = tensors[name]
        if not is_quantised(tensor):
            chosen[name] = tensor.format
            continue
        manual = next((fmt for pattern, fmt in overrides if pattern.search(name)), None)
        fmt = manual if manual is not None else mix.format
        if manual is None and not mix.is_plain and not pure:
            fmt = chooser.choose(tensor)
        chosen[name] = fit_row(fmt, tensor.shape[-1])
    return {name: chosen[name] for name in tensors}


def find_layer(name: str) -> int:
    """The layer of a tensor, −1 for none."""
    found = _LAYER.match(name)
    return int(found[1]) if found else -1


def is_quantised(tensor: Tensor) -> bool:
    """Whether a tensor is a matrix that mixes are for."""
    name = tensor.name
    matrix = sum(n > 1 for n in tensor.shape[:-1]) > 0 and name.endswith("weight")
    return matrix and name not in _KEPT_NAMES and not any(part in name for part in _KEPT.split())


def fit_row(fmt: Format, columns: int) -> Format:
    """The format, or the one to use instead for rows that are no whole blocks of it."""
    if columns % fmt.block == 0:
        return fmt
    other = FALLBACKS.get(fmt.name, Format.F16)
    return other if columns % other.block == 0 else Format.F16


class _Chooser:
    """Chooses formats of matrices, which are given in the order of layers: some rules count them."""

    def __init__(self, mix: Mix, facts: Facts) -> None:
        self.mix, self.facts = mix, facts
        self._counts: dict[str, int] = {}

    def choose(self, tensor: Tensor) -> Format:
        """The format of the next matrix."""
        name, mix = tensor.name, self.mix.name
        if name == "output.weight" or (self.facts.is_tied and name in _EMBEDDINGS):
            return self._output(tensor)
        if mix == "mxfp4_moe":
            return Format.MXFP4 if len(tensor.shape) == 3 and tensor.shape[0] > 1 else Format.Q8_0
        if name in _EMBEDDINGS:
            return self._embedding()
        if mix in _LOW:
            return self._low(name)
        if any(part in name for part in _VALUES):
            return self._value()
        if "attn_k.weight" in name or "attn_q.weight" in name:
            return self._query_key(name)
        if "attn_output.weight" in name:
            return self._attention_output()
        if "ffn_up" in name or "ffn_gate" in name:
            return self._up("ffn_up" if "ffn_up" in name else "ffn_gate", name)
        if "ffn_down" in name:
            return self._down(name)
        return self.mix.format

    def _count(self, kind: str) -> int:
        """How many of a kind came before."""
        self._counts[kind] = self._counts.get(kind, -1) + 1
        return self._counts[kind]

    def _layer(self, kind: str, name: str) -> int:
        """The layer of a matrix, by counting; models with experts have several in a layer."""
        count = self._count(kind)
        if self.facts.n_expert <= 1:
            return count
        if not 0 <= find_layer(name) < self.facts.n_layer:
            raise ModelError(f"is of none of the {self.facts.n_layer} layers", field=f"tensor {name!r}")
        return find_layer(name)

    def _output(self, tensor: Tensor) -> Format:
        if self.mix.name == "mxfp4_moe" or tensor.shape[-1] % self.mix.format.block:
            return Format.Q8_0
        if self.mix.name in _OUTPUT_Q5:
            return Format.Q5_K
        return Format.Q8_0 if self.mix.format is Format.Q8_0 else Format.Q6_K

    def _embedding(self) -> Format:
        if self.mix.name in ("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"):
            return Format.Q2_K
        if self.mix.name in ("iq2_s", "iq2_m", "iq3_xxs"):
            return Format.IQ3_S
        return Format.Q4_K if self.mix.name in ("tq1_0", "tq2_0") else self.mix.format

    def _low(self, name: str) -> Format:
        """Mixes of about two bits."""
        more = Format.IQ3_S if self.mix.name in ("iq2_s", "iq2_m") else Format.Q2_K
        if any(part in name for part in _VALUES):
            return Format.Q4_K if self.facts.heads_per_kv >= 4 or self.facts.n_expert >= 4 else more
        if "attn_k.weight" in name and self.facts.n_expert == 8:
            return Format.Q4_K
        if "ffn_down" in name:
            return more if self._count("down") < self.facts.n_layer // 8 else self.mix.format
        if "attn_output.weight" in name:
            if self.facts.n_expert == 8:
                return Format.Q5_K
            if self.mix.name in ("iq1_s", "iq1_m"):
                return Format.IQ2_XXS
            return Format.IQ3_S if self.mix.name in ("iq2_s", "iq2_m") else self.mix.format
        return self.mix.format

    def _value(self) -> Format:
        index, mix, shared = self._count("value"), self.mix.name, self.facts.heads_per_kv >= 4
        fmt = self.mix.format
        if mix == "q2_k":
            fmt = Format.Q4_K if shared else Format.Q3_K
        elif mix == "iq3_xxs":
            fmt = Format.Q4_K if shared else Format.IQ3_XXS if self.facts.has_imatrix else Format.IQ3_S
        elif mix == "iq3_m" or (mix in ("q2_k_s", "iq3_xs", "iq3_s") and shared):
            fmt = Format.Q4_K
        elif mix == "q3_k_m":
            fmt = Format.Q5_K if index < 2 else Format.Q4_K
        elif mix == "q3_k_l" or (mix in ("iq4_nl", "iq4_xs") and shared):
            fmt = Format.Q5_K
        elif mix in ("q4_k_m", "q5_k_m") and _more_bits(index, self.facts.n_values):
            fmt = Format.Q6_K
        elif mix == "q4_k_s" and index < 4:
            fmt = Format.Q5_K
        if self.facts.is_70b and fmt in (Format.Q3_K, Format.Q4_K):
            fmt = Format.Q5_K
        return Format.Q8_0 if self.facts.n_expert == 8 else fmt

    def _query_key(self, name: str) -> Format:
        if "attn_k.weight" in name and self.facts.n_expert == 8:
            return Format.Q8_0
        if self.mix.name == "iq3_xs":
            return Format.IQ3_XXS
        return Format.IQ2_S if self.mix.name == "iq3_xxs" else self.mix.format

    def _attention_output(self) -> Format:
        if self.facts.n_expert == 8:
            return Format.Q5_K if self.mix.name in _EIGHT_EXPERTS_Q5.split() else self.mix.format
        return {
            "q2_k": Format.Q3_K,
            "iq3_xxs": Format.IQ3_S,
            "q3_k_m": Format.Q4_K,
            "q3_k_l": Format.Q5_K,
            "iq3_m": Format.Q4_K,
        }.get(self.mix.name, self.mix.format)

    def _up(self, kind: str, name: str) -> Format:
        layer, n = self._layer(kind, name), self.facts.n_layer
        middle = n // 8 <= layer < 7 * n // 8
        return Format.IQ3_XXS if self.mix.name == "iq3_xs" and middle else self.mix.format

    def _down(self, name: str) -> Format:
        layer, n, mix = self._layer("down", name), self.facts.n_layer, self.mix.name
        early, more = layer < n // 8, _more_bits(layer, n)
        if mix == "q2_k":
            return Format.Q3_K
        if mix == "q2_k_s" and early:
            return Format.Q4_K
        if mix == "iq3_xxs" and not self.facts.has_imatrix:
            return Format.Q4_K if early else Format.Q3_K
        if mix == "q3_k_m":
            return Format.Q5_K if layer < n // 16 else Format.Q4_K
        if mix == "iq3_m" and (early or (self.facts.n_expert == 8 and more)):
            return Format.Q4_K
        if mix == "q3_k_l":
            return Format.Q5_K
        if mix in ("q4_k_m", "q5_k_m") and more:
            return Format.Q6_K
        if mix in ("iq4_nl", "iq4_xs") and early and not self.facts.has_imatrix:
            return Format.Q5_K
        if mix == "q4_k_s" and early:
            return Format.Q5_K
        if mix in ("q4_0", "q5_0") and early and self.facts.has_imatrix:
            return Format.Q4_1 if mix == "q4_0" else Format.Q5_1
        return self.mix.format


def _more_bits(index: int, n: int) -> bool:
    """Whether the matrix of a layer gets more bits: the first and last eighth, and every third between."""
    return index < n // 8 or index >= 7 * n // 8 or (index - n // 8) % 3 == 2
