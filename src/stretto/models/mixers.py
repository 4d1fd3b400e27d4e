"""The mixers of a layer, as plain data: they let a token see other tokens.

`Attention` and `Latent` (attention over a compressed cache) read cells. The recurrent ones, `DeltaNet`,
`KimiDelta`, `Convolution`, `Mamba`, `Mamba2` and `TimeMix`, keep a state of fixed size instead, which
summarises all tokens before. Each names the tensors it needs, without the prefix of its layer; `slices` are
tensors that are parts of others in the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.models.parts import Norm, Rope, Shapes, Slice, Temperature


@dataclass(frozen=True)
class Attention:
    """Attention over the cells of a token's view.

    `window`: a token attends to the last `window` positions only, itself included; or, if `chunked`, to those
    before it in its chunk of so many positions. `clip`: q, k and v are kept between −clip and clip; 0 for no
    limit. Without `causal` it attends to all cells of its view, or to those less than `window` positions away
    on either side; a text is then computed in one pass. `alibi`: for each head, how much scores fall with
    each position of distance; or none. `shared`: the layer whose K and V this one reads instead of its own.
    `sinks`: a score for each head that belongs to no cell.
    `gate`: the query projection has a gate beside each head's query, whose sigmoid multiplies the head's
    result. `joined`: so many further numbers of a token's vector stand before the normalised row in what q, k
    and v read.
    """

    n_head: int
    n_kv_head: int
    head_size: int
    scale: float
    rope: Rope | None
    window: int | None = None
    cap: float = 0.0  # scores become cap × tanh(score / cap); 0: as they are
    bias: bool = False  # of the projections to q, k and v
    output_bias: bool = False
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    norm_after_rope: bool = False
    sinks: bool = False
    gate: bool = False
    shared: int | None = None
    values_are_keys: bool = False  # V is what the projection to K gives, before its norm and rope
    temperature: Temperature | None = None
    fused: bool = False  # q, k and v are one tensor of the file, attn_qkv
    causal: bool = True
    alibi: tuple[float, ...] = ()
    chunked: bool = False
    clip: float = 0.0
    mixed_norm: Norm | None = None  # of all heads' results together, before the projection of the output
    joined: int = 0

    @property
    def reach(self) -> int | None:
        """The window, below 0 if it is a chunk: what layers that attend alike have in common."""
        return -self.window if self.window is not None and self.chunked else self.window

    @property
    def kv(self) -> tuple[int, int] | None:
        """Heads and their size of K, and as much of V, in each cell; None if they are another layer's."""
        return None if self.shared is not None else (self.n_kv_head, self.head_size)

    def _rows(self) -> dict[str, int]:
        """The rows of each projection."""
        rows = {"attn_q": self.n_head * self.head_size * (2 if self.gate else 1)}
        if self.shared is None:
            rows["attn_k"] = self.n_kv_head * self.head_size
            if not self.values_are_keys:
                rows["attn_v"] = self.n_kv_head * self.head_size
        return rows

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        rows = self._rows()
        if self.fused:
            rows = {"attn_qkv": sum(rows.values())}
        shapes: Shapes = {f"{name}.weight": (n, n_embd + self.joined) for name, n in rows.items()}
        shapes["attn_output.weight"] = (n_embd, self.n_head * self.head_size)
        if self.bias:
            shapes |= {f"{name}.bias": (n,) for name, n in rows.items()}
        if self.output_bias:
            shapes["attn_output.bias"] = (n_embd,)
        norms = [(self.q_norm, self.n_head)]
        if self.shared is None:
            norms += [(self.k_norm, self.n_kv_head), (self.v_norm, self.n_kv_head)]
        for norm, heads in norms:
            if norm is not None:
                shapes |= norm.tensors(*norm.shape(heads, self.head_size))
        if self.mixed_norm is not None:
            shapes |= self.mixed_norm.tensors(self.n_head * self.head_size)
        if self.sinks:
            shapes["attn_sinks.weight"] = (self.n_head,)
        return shapes

    def slices(self) -> dict[str, Slice]:
        """The projections within a fused tensor."""
        found: dict[str, Slice] = {}
        first = 0
        for name, rows in self._rows().items() if self.fused else ():
            for kind in ("weight", "bias") if self.bias else ("weight",):
                found[f"{name}.{kind}"] = Slice(f"attn_qkv.{kind}", first, rows)
            first += rows
        return found


@dataclass(frozen=True)
class Indexer:
    """What chooses the cells that a row attends to (DeepSeek sparse attention).

    A row's score of a cell is Σ over its heads: weight × relu(query · the cell's index key) × `scale`. The
    `top_k` cells with the largest scores are attended to, of equal ones those that come first; a row that has
    no more cells than that attends to all.
    """

    n_head: int
    head_size: int
    top_k: int
    rope: Rope  # of the first numbers of queries and keys
    k_norm: Norm

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float((self.head_size * self.n_head) ** -0.5)

    def tensors(self, n_embd: int, q_rank: int) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {
            "indexer.attn_q_b.weight": (self.n_head * self.head_size, q_rank),
            "indexer.attn_k.weight": (self.head_size, n_embd),
            "indexer.proj.weight": (self.n_head, n_embd),
        }
        return shapes | self.k_norm.tensors(self.head_size)


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (MLA): a cell holds one compressed vector for all heads, and one rotated
    key.

    The matrices that would expand the vector to K and V are applied to the query and to the result instead,
    so it is attention with one K/V head of `rank` + `rope_size` numbers, the first `rank` of which are also
    V.

    With an `indexer` a row attends to some of its cells only; a cell then holds the indexer's key as well.
    `chosen_by`: the layer before this one whose indexer chose them.
    """

    n_head: int
    q_rank: int  # queries are compressed to so many numbers first; 0: not
    rank: int
    nope_size: int  # of a head's query, not rotated
    rope_size: int
    value_size: int  # of a head
    scale: float
    rope: Rope | None
    q_norm: Norm | None
    kv_norm: Norm
    fused: bool = False  # the matrices of K and V are one tensor of the file, attn_kv_b, head by head
    indexer: Indexer | None = None
    chosen_by: int | None = None

    @property
    def kv(self) -> tuple[int, int]:
        """One head of K; V is part of it."""
        return 1, self.rank + self.rope_size

    @property
    def is_sparse(self) -> bool:
        """Whether a row attends to some of its cells only."""
        return self.indexer is not None or self.chosen_by is not None

    @property
    def index_kv(self) -> tuple[int, int] | None:
        """The indexer's key, which stands in place of V."""
        return None if self.indexer is None else (1, self.indexer.head_size)

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        q = self.n_head * (self.nope_size + self.rope_size)
        shapes: Shapes = {
            "attn_kv_a_mqa.weight": (self.rank + self.rope_size, n_embd),
            "attn_output.weight": (n_embd, self.n_head * self.value_size),
        }
        if self.fused:
            rows = self.n_head * (self.nope_size + self.value_size)
            shapes["attn_kv_b.weight"] = (rows, self.rank)
        else:
            shapes |= {
                "attn_k_b.weight": (self.n_head, self.rank, self.nope_size),
                "attn_v_b.weight": (self.n_head, self.value_size, self.rank),
            }
        if self.q_rank:
            shapes |= {"attn_q_a.weight": (self.q_rank, n_embd), "attn_q_b.weight": (q, self.q_rank)}
        else:
            shapes["attn_q.weight"] = (q, n_embd)
        if self.q_norm is not None:
            shapes |= self.q_norm.tensors(self.q_rank)
        if self.indexer is not None:
            shapes |= self.indexer.tensors(n_embd, self.q_rank)
        return shapes | self.kv_norm.tensors(self.rank)

    def slices(self) -> dict[str, Slice]:
        """None."""
        return {}


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta net: a matrix for each value head that decays, and is corrected by each token.

    Value heads share key heads: value head i has key head i mod n_key_head if `tiled`, else those of one key
    head stand together. `fused`: beta and alpha are one tensor of the file, ssm_ba, key head by key head.
    """

    n_key_head: int
    n_value_head: int
    key_size: int
    value_size: int
    kernel: int  # tokens that the convolution sees
    norm: Norm  # of each head's result, before its gate
    tiled: bool = False
    fused: bool = False

    recurrent = "gated delta net"
    kv = None

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.n_key_head * self.key_size + self.n_value_head * self.value_size

    @property
    def state_floats(self) -> int:
        """The size of the state: the convolution's last inputs, and the matrices."""
        matrices = self.n_value_head * self.key_size * self.value_size
        return (self.kernel - 1) * self.channels + matrices

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        inner = self.n_value_head * self.value_size
        shapes: Shapes = {
            "attn_qkv.weight": (self.channels, n_embd),
            "attn_gate.weight": (inner, n_embd),
            "ssm_conv1d.weight": (self.channels, self.kernel),
            "ssm_dt.bias": (self.n_value_head,),
            "ssm_a": (self.n_value_head,),
            "ssm_out.weight": (n_embd, inner),
        }
        if self.fused:
            shapes["ssm_ba.weight"] = (2 * self.n_value_head, n_embd)
        else:
            shapes |= {f"ssm_{name}.weight": (self.n_value_head, n_embd) for name in ("beta", "alpha")}
        return shapes | self.norm.tensors(self.value_size)

    def slices(self) -> dict[str, Slice]:
        """None."""
        return {}


@dataclass(frozen=True)
class KimiDelta:
    """Kimi's delta attention (KDA): a gated delta net with a decay for each channel of a key.

    Decays, and the gates of the result, are made through `rank` numbers. Queries, keys and values have a
    convolution each.
    """

    n_head: int
    head_size: int  # of keys and of values
    rank: int
    kernel: int
    norm: Norm  # of each head's result, before its gate

    recurrent = "Kimi delta attention"
    kv = None

    @property
    def width(self) -> int:
        """Numbers of all heads."""
        return self.n_head * self.head_size

    @property
    def state_floats(self) -> int:
        """The size of the state: the convolutions' last inputs, and the heads' matrices."""
        return (3 * (self.kernel - 1) + self.head_size) * self.width

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {f"attn_{name}.weight": (self.width, n_embd) for name in "qkv"}
        shapes |= {f"ssm_conv1d_{name}.weight": (self.width, self.kernel) for name in "qkv"}
        for name in "fg":
            shapes[f"ssm_{name}_a.weight"] = (self.rank, n_embd)
            shapes[f"ssm_{name}_b.weight"] = (self.width, self.rank)
        shapes |= {
            "ssm_beta.weight": (self.n_head, n_embd),
            "ssm_a": (self.n_head,),
            "ssm_dt.bias": (self.width,),
            "attn_output.weight": (n_embd, self.width),
        }
        return shapes | self.norm.tensors(self.head_size)

    def slices(self) -> dict[str, Slice]:
        """None."""
        return {}


@dataclass(frozen=True)
class Convolution:
    """A short convolution between two gates."""

    width: int  # channels
    kernel: int

    recurrent = "short convolution"
    kv = None

    @property
    def state_floats(self) -> int:
        """The size of the state: the last inputs."""
        return (self.kernel - 1) * self.width

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {
            "shortconv.conv.weight": (self.width, self.kernel),
            "shortconv.in_proj.weight": (3 * self.width, n_embd),
            "shortconv.out_proj.weight": (n_embd, self.width),
        }
        return shapes

    def slices(self) -> dict[str, Slice]:
        """None."""
        return {}


@dataclass(frozen=True)
class Mamba:
    """Mamba's first version: each channel has a state of some numbers, each of which decays by itself.

    Steps, B and C are made of a token's convolved channels; the steps through `rank` numbers.
    """

    width: int  # channels
    state_size: int
    rank: int
    kernel: int
    step_norm: Norm | None = None
    b_norm: Norm | None = None
    c_norm: Norm | None = None
    conv_bias: bool = True

    recurrent = "Mamba"
    kv = None

    @property
    def state_floats(self) -> int:
        """The size of the state: the convolution's last inputs, and the channels' numbers."""
        return (self.kernel - 1 + self.state_size) * self.width

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {
            "ssm_in.weight": (2 * self.width, n_embd),
            "ssm_conv1d.weight": (self.width, self.kernel),
            "ssm_x.weight": (self.rank + 2 * self.state_size, self.width),
            "ssm_dt.weight": (self.width, self.rank),
            "ssm_dt.bias": (self.width,),
            "ssm_a": (self.width, self.state_size),
            "ssm_d": (self.width,),
            "ssm_out.weight": (n_embd, self.width),
        }
        if self.conv_bias:
            shapes["ssm_conv1d.bias"] = (self.width,)
        norms = (self.step_norm, self.rank), (self.b_norm, self.state_size), (self.c_norm, self.state_size)
        for norm, size in norms:
            if norm is not None:
                shapes |= norm.tensors(size)
        return shapes

    def slices(self) -> dict[str, Slice]:
        """The channels and their gates within one tensor; what steps, B and C are made with in another."""
        found: dict[str, Slice] = {}
        parts = {"ssm_in": {"": self.width, "_gate": self.width}}
        parts["ssm_x"] = {"_dt": self.rank, "_b": self.state_size, "_c": self.state_size}
        for tensor, sizes in parts.items():
            first = 0
            for name, rows in sizes.items():
                found[f"{tensor}{name}.weight"] = Slice(f"{tensor}.weight", first, rows)
                first += rows
        return found


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2: a state for each head that decays by one number, and the output of its groups of B and C."""

    n_head: int
    head_size: int
    n_group: int
    state_size: int
    kernel: int
    norm: Norm | None  # of the gated result, for each group
    conv_bias: bool = True

    recurrent = "Mamba-2"
    kv = None

    @property
    def inner(self) -> int:
        """The width inside."""
        return self.n_head * self.head_size

    @property
    def channels(self) -> int:
        """Of the convolution: x, B and C."""
        return self.inner + 2 * self.n_group * self.state_size

    @property
    def state_floats(self) -> int:
        """The size of the state: the convolution's last inputs, and the heads' matrices."""
        return (self.kernel - 1) * self.channels + self.inner * self.state_size

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {
            "ssm_in.weight": (self.inner + self.channels + self.n_head, n_embd),
            "ssm_conv1d.weight": (self.channels, self.kernel),
            "ssm_dt.bias": (self.n_head,),
            "ssm_a": (self.n_head, 1),
            "ssm_d": (self.n_head, 1),
            "ssm_out.weight": (n_embd, self.inner),
        }
        if self.conv_bias:
            shapes["ssm_conv1d.bias"] = (self.channels,)
        if self.norm is not None:
            shapes |= self.norm.tensors(self.n_group, self.inner // self.n_group)
        return shapes

    def slices(self) -> dict[str, Slice]:
        """None."""
        return {}


@dataclass(frozen=True)
class TimeMix:
    """RWKV 7's time mixing (WKV): a matrix for each head that decays channel by channel, and is corrected.

    What it is made of reads mixtures of a row with the one before it. Decays, the rates of the correction,
    shares of the first layer's values and gates are each made through a narrow pair of matrices.
    """

    n_head: int
    head_size: int
    decay_rank: int
    rate_rank: int
    value_rank: int  # 0: the first layer, whose values the others take a share of
    gate_rank: int  # 0: no gate
    norm: Norm | None  # of each head's result

    recurrent = "RWKV-7 time mixing"
    kv = None

    @property
    def width(self) -> int:
        """Numbers of all heads, and of a row."""
        return self.n_head * self.head_size

    @property
    def state_floats(self) -> int:
        """The size of the state: the row before, and the heads' matrices."""
        return (1 + self.head_size) * self.width

    @property
    def ranks(self) -> dict[str, int]:
        """The narrow pairs of matrices by their letter in the file."""
        ranks = {"w": self.decay_rank, "a": self.rate_rank, "v": self.value_rank, "g": self.gate_rank}
        return {name: rank for name, rank in ranks.items() if rank}

    @property
    def mixtures(self) -> str:
        """What each mixture of a row with the one before it is for, in the file's order."""
        return "rwkvag" if self.gate_rank else "rwkva"

    @property
    def unused(self) -> tuple[str, ...]:
        """Tensors that files have for the first layer, and that nothing reads."""
        return () if self.value_rank else tuple(f"time_mix_v{i}.weight" for i in range(3))

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        width = self.width
        shapes: Shapes = {"time_mix_lerp_fused.weight": (len(self.mixtures), n_embd)}
        for name, rank in self.ranks.items():
            shapes[f"time_mix_{name}1.weight"] = (rank, n_embd)
            shapes[f"time_mix_{name}2.weight"] = (width, rank)
            if name != "g":
                shapes[f"time_mix_{name}0.weight"] = (width,)
        shapes |= {f"time_mix_{name}.weight": (width,) for name in ("k_k", "k_a", "r_k")}
        shapes |= {f"time_mix_{name}.weight": (width, n_embd) for name in ("receptance", "key", "value")}
        shapes["time_mix_output.weight"] = (n_embd, width)
        return shapes | (self.norm.tensors(width) if self.norm is not None else {})

    def slices(self) -> dict[str, Slice]:
        """None."""
        return {}


@dataclass(frozen=True)
class Beside:
    """Two mixers that read the same input; what they give is added."""

    attention: Attention
    other: Mamba2

    @property
    def recurrent(self) -> str:
        """The kind of the recurrent one."""
        return self.other.recurrent

    @property
    def kv(self) -> tuple[int, int] | None:
        """Those of the attention."""
        return self.attention.kv

    @property
    def state_floats(self) -> int:
        """Those of the recurrent one."""
        return self.other.state_floats

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of both."""
        return self.attention.tensors(n_embd) | self.other.tensors(n_embd)

    def slices(self) -> dict[str, Slice]:
        """Those of the attention."""
        return self.attention.slices()


Mixer = Attention | Latent | DeltaNet | KimiDelta | Convolution | Mamba | Mamba2 | TimeMix | Beside
