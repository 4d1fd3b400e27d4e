"""The specification of an image encoder, as plain data, read from an `mmproj` GGUF file and checked.

An encoder is a ViT with learned positions. A block of it is

    x += out(attention([norm] x))          every patch attends to every patch
    x += down(activation(up([norm] x)))

and a projector turns its patches into vectors that a language model takes in place of token embeddings:

    mlp        LLaVA 1.5: each patch through two matrices
    idefics3   SmolVLM: squares of patches side by side in one vector, then one matrix; large images in tiles
    gemma3     the mean over squares of patches, a norm, one matrix; an image's tokens attend to each other
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stretto.errors import ModelError
from stretto.models.common import positive
from stretto.weights.formats import READABLE
from stretto.weights.gguf import GGUF

Projector = Literal["mlp", "idefics3", "gemma3"]
PROJECTORS: tuple[Projector, ...] = ("mlp", "idefics3", "gemma3")

# Far above any encoder; a damaged number should cost neither memory nor time.
MAX_IMAGE_PIXELS = 1 << 13  # along a side
MAX_PATCH_PIXELS = 1 << 9
MAX_PATCHES = 1 << 14
MAX_BLOCKS = 512
MAX_WIDTH = 1 << 15
MAX_NUMBERS = 1 << 27  # of one array between two matrices: all positions of an image
MAX_TILES = 32  # along the longest edge

SUPPORTED = f"supported are {', '.join(PROJECTORS)}"
GEMMA_MERGE = 4  # patches along each side of a square, where the file does not say
IDEFICS_MERGE = 2
IDEFICS_TILES = 4  # along the longest edge, where the file does not say
IGNORED = ("v.image_newline", "v.view_seperator")  # of LLaVA 1.6, which LLaVA 1.5 files may carry along


@dataclass(frozen=True)
class VisionSpec:
    """The shape and the parts of an encoder and its projector."""

    projector: Projector
    image_size: int  # pixels along each side of an image or tile
    patch_size: int
    n_embd: int
    n_ff: int
    n_head: int
    n_layer: int  # blocks that are run
    norm_eps: float
    activation: Literal["gelu", "quick_gelu", "silu"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    n_out: int  # numbers of a vector that the language model takes
    merge: int = 1  # patches along each side of a square that becomes one vector
    longest_edge: int = 0  # idefics3: pixels, to which an image is resized before it is split
    class_token: bool = False  # a position before the patches, dropped after the last block
    pre_norm: bool = False
    post_norm: bool = False
    swapped: bool = False  # old files call the up matrix "down" and vice versa
    biases: frozenset[str] = frozenset()  # the optional vectors that the file has

    @property
    def n_side(self) -> int:
        """Patches along each side."""
        return self.image_size // self.patch_size

    @property
    def n_patches(self) -> int:
        """Patches of an image or a tile."""
        return self.n_side**2

    @property
    def n_positions(self) -> int:
        """Positions of a block's input: the patches, and the class token if there is one."""
        return self.n_patches + self.class_token

    @property
    def n_tokens(self) -> int:
        """Tokens of an image or a tile."""
        return self.n_patches // self.merge**2

    @property
    def patch_numbers(self) -> int:
        """Numbers of a patch, three for each pixel."""
        return 3 * self.patch_size**2

    @property
    def bidirectional(self) -> bool:
        """Whether the tokens of an image attend to each other in the language model."""
        return self.projector == "gemma3"

    @property
    def head_size(self) -> int:
        """Numbers of a head."""
        return self.n_embd // self.n_head

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of all tensors that are used, by the names of the file."""
        n, ff, out = self.n_embd, self.n_ff, self.n_out
        up, down = ("ffn_down", "ffn_up") if self.swapped else ("ffn_up", "ffn_down")
        shapes: dict[str, tuple[int, ...]] = {
            "v.patch_embd.weight": (n, 3, self.patch_size, self.patch_size),
            "v.position_embd.weight": (self.n_positions, n),
        }
        if self.class_token:
            shapes["v.class_embd"] = (n,)
        for norm, there in (("v.pre_ln", self.pre_norm), ("v.post_ln", self.post_norm)):
            if there:
                shapes |= {f"{norm}.weight": (n,), f"{norm}.bias": (n,)}
        for i in range(self.n_layer):
            block = f"v.blk.{i}."
            shapes |= {
                f"{block}{norm}.{part}": (n,) for norm in ("ln1", "ln2") for part in ("weight", "bias")
            }
            shapes |= {f"{block}{name}.weight": (n, n) for name in ("attn_q", "attn_k", "attn_v", "attn_out")}
            shapes |= {f"{block}{up}.weight": (ff, n), f"{block}{down}.weight": (n, ff)}
        for name in self.biases:
            shapes[name] = (ff,) if name.endswith(f"{up}.bias") else (n,)
        squares = self.merge**2
        if self.projector == "mlp":
            shapes |= {"mm.0.weight": (out, n), "mm.0.bias": (out,)}
            shapes |= {"mm.2.weight": (out, out), "mm.2.bias": (out,)}
        elif self.projector == "idefics3":
            shapes["mm.model.fc.weight"] = (out, n * squares)
        else:
            shapes |= {"mm.soft_emb_norm.weight": (n,), "mm.input_projection.weight": (n, out)}
        return shapes


def read_vision_spec(file: GGUF) -> VisionSpec:
    """The spec of the encoder in an `mmproj` file, once all its tensors are known to be there and to fit.

    >>> read_vision_spec(GGUF("mmproj.gguf")).projector
    'idefics3'
    """
    arch = file.metadata.text("general.architecture")
    if arch != "clip":
        raise ModelError(
            f"{arch!r} is no image encoder; give the mmproj file as vision and the language model as model",
            path=file.path,
            field="general.architecture",
        )
    if not file.metadata.flag("clip.has_vision_encoder", True):
        raise ModelError("the file has no image encoder", path=file.path, field="clip.has_vision_encoder")
    spec = _spec(file)
    for name, shape in spec.tensors().items():
        if name not in file.tensors:
            raise ModelError("the tensor is missing; is the file complete?", path=file.path, field=name)
        given = file.tensors[name].shape
        if given != shape:
            raise ModelError(f"the shape is {given}, not {shape}", path=file.path, field=f"tensor {name!r}")
        if (kind := file.tensors[name].format) not in READABLE:
            raise ModelError(f"{kind.name} is not supported", path=file.path, field=f"tensor {name!r}")
    _refuse_others(file, spec)
    return spec


def _spec(file: GGUF) -> VisionSpec:
    metadata = file.metadata
    key = "clip.projector_type" if "clip.projector_type" in metadata else "clip.vision.projector_type"
    kind = metadata.text(key, "mlp")  # the oldest files, all of them LLaVA's, do not say
    projector = next((name for name in PROJECTORS if name == kind), None)
    if projector is None:
        raise ModelError(f"the projector {kind!r} is not supported; {SUPPORTED}", path=file.path, field=key)
    for unknown in ("clip.vision.image_grid_pinpoints", "clip.vision.mm_patch_merge_type"):
        value = metadata.get(unknown, "flat")
        if not isinstance(value, str) or value != "flat":
            raise ModelError("LLaVA 1.6's grids are not supported", path=file.path, field=unknown)
    n_embd = positive(file, "clip.vision.embedding_length", most=MAX_WIDTH)
    n_head = positive(file, "clip.vision.attention.head_count", most=n_embd)
    if n_embd % n_head:
        raise ModelError(
            f"{n_head} heads cannot share {n_embd} numbers evenly",
            path=file.path,
            field="clip.vision.attention.head_count",
        )
    image, patch = _sizes(file)
    merge = 1
    if projector != "mlp":
        usual = GEMMA_MERGE if projector == "gemma3" else IDEFICS_MERGE
        merge = positive(file, "clip.vision.projector.scale_factor", usual, most=image // patch)
        if image // patch % merge:
            raise ModelError(
                f"{image // patch} patches along a side cannot be merged by {merge}",
                path=file.path,
                field="clip.vision.projector.scale_factor",
            )
    longest = 0
    if projector == "idefics3":
        most = min(MAX_IMAGE_PIXELS, MAX_TILES * image)
        longest = positive(file, "clip.vision.preproc_image_size", IDEFICS_TILES * image, most=most)
    n_ff = positive(file, "clip.vision.feed_forward_length", most=MAX_WIDTH)
    if (n := ((image // patch) ** 2 + 1) * max(n_embd, n_ff)) > MAX_NUMBERS:
        raise ModelError(
            f"an image would take arrays of {n:,} numbers, but at most {MAX_NUMBERS:,} are possible",
            path=file.path,
            field="clip.vision.feed_forward_length",
        )
    down = file.tensors.get("v.blk.0.ffn_down.weight")
    n_layer = _layers(file, projector)
    return VisionSpec(
        projector=projector,
        image_size=image,
        patch_size=patch,
        n_embd=n_embd,
        n_ff=n_ff,
        n_head=n_head,
        n_layer=n_layer,
        norm_eps=_epsilon(file),
        activation=_activation(file),
        mean=_channels(file, "clip.vision.image_mean", least=-math.inf),
        std=_channels(file, "clip.vision.image_std", least=0.0),
        n_out=_outputs(file, projector),
        merge=merge,
        longest_edge=longest,
        class_token="v.class_embd" in file.tensors,
        pre_norm="v.pre_ln.weight" in file.tensors,
        post_norm="v.post_ln.weight" in file.tensors,
        swapped=down is not None and down.shape == (n_ff, n_embd),
        biases=frozenset(name for name in _optional(n_layer) if name in file.tensors),
    )


def _sizes(file: GGUF) -> tuple[int, int]:
    image = positive(file, "clip.vision.image_size", most=MAX_IMAGE_PIXELS)
    patch = positive(file, "clip.vision.patch_size", most=min(image, MAX_PATCH_PIXELS))
    if (image // patch) ** 2 > MAX_PATCHES:
        raise ModelError(
            f"{(image // patch) ** 2} patches, but at most {MAX_PATCHES} are possible",
            path=file.path,
            field="clip.vision.patch_size",
        )
    if image % patch:
        raise ModelError(
            f"an image of {image} pixels has no whole number of patches of {patch}",
            path=file.path,
            field="clip.vision.patch_size",
        )
    return image, patch


def _layers(file: GGUF, projector: Projector) -> int:
    """Number of blocks to run: all, unless the file names one after which LLaVA's projector follows.

    LLaVA takes what goes into its encoder's last block, so its files have no such block.
    """
    n_block = positive(file, "clip.vision.block_count", most=MAX_BLOCKS)
    key = "clip.vision.feature_layer"
    if key not in file.metadata:
        return n_block
    layers = file.metadata.array(key)
    if projector != "mlp" or layers.shape != (1,) or not 0 < int(layers[0]) <= n_block:
        raise ModelError(
            f"one layer from 1 to {n_block} can be named, and only with the projector 'mlp'",
            path=file.path,
            field=key,
        )
    return int(layers[0])


def _epsilon(file: GGUF) -> float:
    key = "clip.vision.attention.layer_norm_epsilon"
    eps = file.metadata.number(key)
    if not 0.0 <= eps < 1.0:
        raise ModelError(f"an epsilon of {eps}", path=file.path, field=key)
    return eps


def _activation(file: GGUF) -> Literal["gelu", "quick_gelu", "silu"]:
    gelu = file.metadata.flag("clip.use_gelu", False)
    silu = file.metadata.flag("clip.use_silu", False)
    if gelu and silu:
        raise ModelError("it asks for GELU and SiLU at once", path=file.path, field="clip.use_silu")
    return "gelu" if gelu else "silu" if silu else "quick_gelu"


def _channels(file: GGUF, key: str, least: float) -> tuple[float, float, float]:
    values = file.metadata.array(key)
    if len(values) != 3 or not np.isfinite(values).all() or not (values > least).all():
        raise ModelError(f"three numbers are needed, not {values[:4].tolist()}", path=file.path, field=key)
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _outputs(file: GGUF, projector: Projector) -> int:
    name, axis = {
        "mlp": ("mm.0.weight", 0),
        "idefics3": ("mm.model.fc.weight", 0),
        "gemma3": ("mm.input_projection.weight", 1),
    }[projector]
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise ModelError("the projector's matrix is missing", path=file.path, field=name)
    return tensor.shape[axis]


def _optional(n_layer: int) -> list[str]:
    parts = ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down")
    return ["v.patch_embd.bias", *(f"v.blk.{i}.{part}.bias" for i in range(n_layer) for part in parts)]


def _refuse_others(file: GGUF, spec: VisionSpec) -> None:
    """Raise for tensors that would be ignored: without an unknown part the vectors would be wrong."""
    used = spec.tensors()
    for name in file.tensors:
        block = name.removeprefix("v.blk.").split(".")[0]
        known = name.startswith("v.blk.") and block.isdecimal() and len(block) < 6
        beyond = known and int(block) >= spec.n_layer  # after the last one that is run
        if name.startswith(("v.", "mm.")) and not beyond and name not in used and name not in IGNORED:
            raise ModelError(
                f"the tensor has no place in an encoder with the projector {spec.projector!r}",
                path=file.path,
                field=name,
            )
