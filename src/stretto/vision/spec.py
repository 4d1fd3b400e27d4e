"""The specification of an encoder, as plain data. `reading.py` reads one from an `mmproj` GGUF file.

An encoder is a ViT. A block of it is

    x += [scale] [norm] out(attention([norm] x))      every patch attends to all of its image or window
    x += [scale] [norm] down(activation(up(norm x)))  or down(activation(gate(norm x)) × up(norm x))

with learned positions, or a rotation of Q and K by a patch's row and column, or both. What a projector is,
how images are resized and what belongs around their tokens, is in `families/`, a file for each.

An encoder of sounds is the same behind two convolutions over the frames of a spectrogram (`mels`): a window
of the sound is an image of one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Grid = tuple[int, int]  # rows and columns of patches
Shape = tuple[int, ...]
CLAMP_ENDS = ("input_min", "input_max", "output_min", "output_max")
ROW_END = "v.image_newline"
QUERY = "resampler.query"  # what reads an image, where that is not its patches
Clamp = tuple[float, float, float, float]  # least and most of a matrix's input and of its output


@dataclass(frozen=True)
class VisionSpec:
    """The shape and the parts of an encoder and its projector."""

    projector: str
    image_size: int  # pixels along each side of an image or tile
    patch_size: int
    n_embd: int
    n_ff: int
    n_head: int
    n_layer: int  # blocks that are run
    norm_eps: float
    activation: Literal["gelu", "quick_gelu", "silu", "exact_gelu"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    n_out: int = 0  # numbers of a token's embedding in the language model
    merge: int = 1  # patches along each side of a square that becomes one vector
    n_query: int = 0  # vectors of each image or tile, whatever its size; 0: as many as squares

    # sizes of images
    longest_edge: int = 0  # pixels, to which an image is resized before it is split, or which it may have
    min_tiles: int = 1
    max_tiles: int = 1
    min_tokens: int = 1
    max_tokens: int = 0  # 0: every image has the same size
    resolutions: tuple[
        tuple[int, int], ...
    ] = ()  # heights and widths in pixels, one of which is cut into tiles

    # parts of the encoder
    positions: Literal["", "learned", "bilinear", "axes", "buckets"] = "learned"
    position_shape: Shape = ()  # of their table, where it does not follow from the sizes
    rope: Literal["", "adjacent", "halves", "quarters", "columns"] = ""  # which numbers of a head form pairs
    rope_base: float = 10_000.0
    class_token: bool = False  # a position before the patches, dropped after the last block
    class_last: bool = False  # the table of positions has that of the class token in its last row
    flat_patches: bool = False  # the file has the kernel as a matrix
    pre_norm: bool = False
    post_norm: bool = False
    rms_norm: bool = False  # norms without mean and bias
    swapped: bool = False  # old files call the up matrix "down" and vice versa
    gated: bool = False
    fused_qkv: bool = False
    two_frames: bool = False  # a patch is two frames of a video, in an image the same one
    qk_norm: Literal["", "head", "all"] = ""
    value_norm: bool = False
    attention_scale: float = 0.0  # 0: 1 / √(size of a head)
    layer_scale: bool = False
    output_norms: bool = False  # behind attention and feed-forward
    deepstack: tuple[int, ...] = ()  # blocks whose results go to the language model too
    bidirectional: bool = False  # the tokens of an image attend to each other in the language model
    window: int = 0  # patches along each side of the squares that patches attend in; 0: in the whole image
    global_blocks: frozenset[int] = frozenset()  # blocks whose patches attend in the whole image nevertheless
    row_ends: bool = False  # each tile has one more vector, the file's, for ends of rows
    grid_positions: bool = False  # image tokens have rows and columns as positions in the language model
    biases: frozenset[str] = frozenset()  # the optional vectors that the file has
    clamps: tuple[tuple[str, Clamp], ...] = ()
    mels: int = 0  # bins of the spectrogram that an encoder of sounds takes; 0: it encodes images
    stack: int = 1  # positions in a row that become one vector, of a sound
    transposed: frozenset[str] = frozenset()  # matrices that the file has transposed
    projector_tensors: tuple[tuple[str, Shape], ...] = ()

    @property
    def n_side(self) -> int:
        """Patches along each side of an image of `image_size`, as many as can be merged."""
        return self.image_size // self.patch_size // self.merge * self.merge

    @property
    def grid(self) -> Grid:
        """The patches of an image of `image_size`, or the positions of a window of sound, in one row."""
        return (1, self.max_patches) if self.mels else (self.n_side, self.n_side)

    @property
    def n_patches(self) -> int:
        """Patches of an image of `image_size`, or of a tile."""
        return self.n_side**2

    @property
    def n_tokens(self) -> int:
        """Tokens of an image of `image_size`, or of a tile."""
        return self.count_tokens(self.grid)

    @property
    def max_patches(self) -> int:
        """Patches of the largest image or tile, or positions of a window of sound."""
        return max(self.n_patches, self.max_tokens * self.merge**2 * self.stack)

    @property
    def patch_numbers(self) -> int:
        """Numbers of a patch, three for each pixel."""
        return 3 * self.patch_size**2

    @property
    def head_size(self) -> int:
        """Numbers of a head."""
        return self.n_embd // self.n_head

    @property
    def scale(self) -> float:
        """The factor of attention's scores."""
        return self.attention_scale or 1 / math.sqrt(self.head_size)

    @property
    def n_vector(self) -> int:
        """Numbers of a token's vector: an embedding, and what is added behind early layers."""
        return self.n_out * (1 + len(self.deepstack))

    def count_positions(self, grid: Grid) -> int:
        """Positions of a block's input: the patches, and the class token if there is one."""
        return grid[0] * grid[1] + self.class_token

    def count_tokens(self, grid: Grid) -> int:
        """Vectors of an image or tile with this grid of patches, or of a window of sound."""
        if self.n_query:
            return self.n_query
        return (grid[0] // self.merge) * (grid[1] // self.merge) // self.stack + self.row_ends

    def tensors(self) -> dict[str, Shape]:
        """The names and shapes of all tensors that are used, by the names of the file."""
        n = self.n_embd
        size = self.patch_size
        kernel: Shape = (n, self.patch_numbers) if self.flat_patches else (n, 3, size, size)
        if self.mels:
            kernel = n, self.mels, 3
        shapes: dict[str, Shape] = {"v.patch_embd.weight": kernel}
        if self.mels:  # two convolutions, of which the first counts as that of patches
            column = n, 1
            shapes |= {
                "v.patch_embd.bias": column,
                "v.conv1d.2.weight": (n, n, 3),
                "v.conv1d.2.bias": column,
            }
        if self.two_frames:
            shapes["v.patch_embd.weight.1"] = kernel
        if self.positions:
            shapes["v.position_embd.weight"] = self.position_shape or (self.count_positions(self.grid), n)
        if self.class_token:
            shapes["v.class_embd"] = (n,)
        for norm, there in (("v.pre_ln", self.pre_norm), ("v.post_ln", self.post_norm)):
            if there:
                shapes |= self._norm(norm)
        for i in range(self.n_layer):
            shapes |= self._block(f"v.blk.{i}.")
        for name in self.biases:
            shapes[name] = (self._rows(name),)
        for name, _ in self.clamps:
            shapes |= {
                f"{name}.{end}": (1,) for end in ("input_min", "input_max", "output_min", "output_max")
            }
        shapes = {self.file_name(name): shape for name, shape in shapes.items()}
        return shapes | dict(self.projector_tensors)

    def file_name(self, name: str) -> str:
        """The name of an encoder's tensor in the file: those of sounds begin with another letter."""
        if not self.mels:
            return name
        return name.replace("v.patch_embd.", "a.conv1d.1.") if "patch_embd" in name else f"a.{name[2:]}"

    def _block(self, block: str) -> dict[str, Shape]:
        n, ff = self.n_embd, self.n_ff
        up, down = ("ffn_down", "ffn_up") if self.swapped else ("ffn_up", "ffn_down")
        shapes: dict[str, Shape] = self._norm(f"{block}ln1") | self._norm(f"{block}ln2")
        if self.fused_qkv:
            shapes[f"{block}attn_qkv.weight"] = (3 * n, n)
        else:
            shapes |= {f"{block}attn_{part}.weight": (n, n) for part in "qkv"}
        shapes |= {f"{block}attn_out.weight": (n, n)}
        shapes |= {f"{block}{up}.weight": (ff, n), f"{block}{down}.weight": (n, ff)}
        if self.gated:
            shapes[f"{block}ffn_gate.weight"] = (ff, n)
        if self.qk_norm:
            size = self.head_size if self.qk_norm == "head" else n
            shapes |= {f"{block}attn_{part}_norm.weight": (size,) for part in "qk"}
        if self.layer_scale:
            shapes |= {f"{block}ls1.weight": (n,), f"{block}ls2.weight": (n,)}
        if self.output_norms:
            shapes |= {f"{block}attn_post_norm.weight": (n,), f"{block}ffn_post_norm.weight": (n,)}
        return shapes

    def _norm(self, name: str) -> dict[str, Shape]:
        parts = ("weight",) if self.rms_norm else ("weight", "bias")
        return {f"{name}.{part}": (self.n_embd,) for part in parts}

    def _rows(self, bias: str) -> int:
        wide = ("ffn_down.bias" if self.swapped else "ffn_up.bias", "ffn_gate.bias")
        return self.n_ff if bias.endswith(wide) else 3 * self.n_embd if "attn_qkv" in bias else self.n_embd
