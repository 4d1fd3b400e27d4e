"""Reads the specification of an encoder of images or sounds from an `mmproj` GGUF file, and checks it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from stretto.models.common import positive
from stretto.vision.families import FAMILIES
from stretto.vision.families.base import Family
from stretto.vision.spec import VisionSpec
from stretto.weights.formats import READABLE
from stretto.weights.gguf import GGUF

# Far above any encoder; a damaged number should cost neither memory nor time.
MAX_IMAGE_PIXELS = 1 << 13  # along a side
MAX_PATCH_PIXELS = 1 << 9
MAX_PATCHES = 1 << 14
MAX_BLOCKS = 512
MAX_MELS = 1 << 10
MAX_WIDTH = 1 << 15
MAX_NUMBERS = 1 << 27  # of one array between two matrices: all positions of an image
MAX_PIXELS = 1 << 26  # of an image that is scaled to its largest size, all tiles together

SUPPORTED = f"supported are {', '.join(FAMILIES)}"
IGNORED = (
    *("v.image_newline", "v.view_seperator"),  # of LLaVA 1.6, which LLaVA 1.5 files may carry along
    *("resampler.pos_embed_k", "resampler.pos_embed"),  # of MiniCPM-V: sines and cosines, which are computed
    "v.token_embd.img_break",  # Pixtral's [IMG_BREAK], which the language model has as well
)


def read_vision_spec(file: GGUF) -> VisionSpec:
    """The spec of the encoder in an `mmproj` file, once all its tensors are known to be there and to fit.

    >>> read_vision_spec(GGUF("mmproj.gguf")).projector
    'idefics3'
    """
    arch = file.metadata.text("general.architecture")
    if arch != "clip":
        raise file.error(
            "general.architecture",
            f"{arch!r} is no image encoder; give the mmproj file as vision and the language model as model",
        )
    hears = takes_sounds(file)
    if not hears and not file.metadata.flag("clip.has_vision_encoder", True):
        raise file.error("clip.has_vision_encoder", "the file has no encoder of images or sounds")
    spec = _sound_spec(file) if hears else _spec(file)
    for name, shape in spec.tensors().items():
        if name not in file.tensors:
            raise file.error(name, "the tensor is missing; is the file complete?")
        given = file.tensors[name].shape
        if given != shape:
            raise file.error(f"tensor {name!r}", f"the shape is {given}, not {shape}")
        if (kind := file.tensors[name].format) not in READABLE:
            raise file.error(f"tensor {name!r}", f"{kind.name} is not supported")
    _refuse_others(file, spec)
    return spec


def takes_sounds(file: GGUF) -> bool:
    """Whether it is an encoder of sounds; of one that takes both, images are taken."""
    hears = file.metadata.flag("clip.has_audio_encoder", False)
    return hears and not file.metadata.flag("clip.has_vision_encoder", False)


def _spec(file: GGUF) -> VisionSpec:
    family = _family(file)
    n_embd = positive(file, "clip.vision.embedding_length", most=MAX_WIDTH)
    n_head = positive(file, "clip.vision.attention.head_count", most=n_embd)
    if n_embd % n_head:
        raise file.error(
            "clip.vision.attention.head_count", f"{n_head} heads cannot share {n_embd} numbers evenly"
        )
    image, patch = _sizes(file, family)
    n_ff = positive(file, "clip.vision.feed_forward_length", most=MAX_WIDTH)
    down = file.tensors.get("v.blk.0.ffn_down.weight")
    n_layer = _layers(file, family)
    spec = VisionSpec(
        projector=family.name,
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
        class_token="v.class_embd" in file.tensors,
        pre_norm="v.pre_ln.weight" in file.tensors,
        post_norm="v.post_ln.weight" in file.tensors,
        swapped=down is not None and down.shape == (n_ff, n_embd) and n_ff != n_embd,
        gated="v.blk.0.ffn_gate.weight" in file.tensors,
        biases=frozenset(name for name in _optional(n_layer) if name in file.tensors),
    )
    spec = family.read(file, spec)
    if spec.rope and spec.head_size % 4:
        raise file.error(
            "clip.vision.attention.head_count",
            f"heads of {spec.head_size} numbers cannot be rotated by rows and columns",
        )
    if (n := (spec.max_patches + 1) * max(n_embd, n_ff)) > MAX_NUMBERS:
        raise file.error(
            "clip.vision.feed_forward_length",
            f"an image would take arrays of {n:,} numbers, but at most {MAX_NUMBERS:,} are possible",
        )
    if (n := _pixels(spec)) > MAX_PIXELS:
        raise file.error(
            "clip.vision.image_size",
            f"an image could be scaled to {n:,} pixels, but at most {MAX_PIXELS:,} are possible",
        )
    return spec


def _pixels(spec: VisionSpec) -> int:
    """Pixels of the largest image, all tiles together."""
    tiles = spec.max_patches * spec.patch_size**2 * spec.max_tiles
    return max(tiles, *(height * width for height, width in (*spec.resolutions, (0, 0))))


def _sound_spec(file: GGUF) -> VisionSpec:
    """The spec of an encoder of sounds: Whisper's, whose windows have as many positions as their table."""
    family = _family(file, "audio")
    n_embd = positive(file, "clip.audio.embedding_length", most=MAX_WIDTH)
    n_ff = positive(file, "clip.audio.feed_forward_length", most=MAX_WIDTH)
    n_head = positive(file, "clip.audio.attention.head_count", most=n_embd)
    if n_embd % n_head:
        raise file.error(
            "clip.audio.attention.head_count", f"{n_head} heads cannot share {n_embd} numbers evenly"
        )
    table = file.tensors.get("a.position_embd.weight")
    n_positions = 0 if table is None or len(table.shape) != 2 else table.shape[0]
    if not 0 < n_positions <= MAX_PATCHES or n_positions * max(n_embd, n_ff) > MAX_NUMBERS:
        raise file.error("tensor 'a.position_embd.weight'", "a table of positions is needed")
    spec = VisionSpec(
        projector=family.name,
        image_size=0,
        patch_size=1,
        n_embd=n_embd,
        n_ff=n_ff,
        n_head=n_head,
        n_layer=positive(file, "clip.audio.block_count", most=MAX_BLOCKS),
        norm_eps=_epsilon(file, "audio"),
        activation="exact_gelu",
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        max_tokens=n_positions,
        position_shape=(n_positions, n_embd),
        mels=positive(file, "clip.audio.num_mel_bins", most=MAX_MELS),
    )
    biases = frozenset(name for name in _optional(spec.n_layer) if spec.file_name(name) in file.tensors)
    return family.read(file, replace(spec, biases=biases - {"v.patch_embd.bias"}))


def _family(file: GGUF, medium: str = "vision") -> Family:
    metadata = file.metadata
    key = "clip.projector_type" if "clip.projector_type" in metadata else f"clip.{medium}.projector_type"
    kind = metadata.text(key, "mlp")  # the oldest files, all of them LLaVA's, do not say
    if kind not in FAMILIES or FAMILIES[kind].hears != (medium == "audio"):
        raise file.error(key, f"the projector {kind!r} is not supported; {SUPPORTED}")
    return FAMILIES[kind]


def _sizes(file: GGUF, family: Family) -> tuple[int, int]:
    image = positive(file, "clip.vision.image_size", most=MAX_IMAGE_PIXELS)
    patch = positive(file, "clip.vision.patch_size", most=min(image, MAX_PATCH_PIXELS))
    if (image // patch) ** 2 > MAX_PATCHES:
        raise file.error(
            "clip.vision.patch_size",
            f"{(image // patch) ** 2} patches, but at most {MAX_PATCHES} are possible",
        )
    if image % patch and not family.any_size:
        raise file.error(
            "clip.vision.patch_size", f"an image of {image} pixels has no whole number of patches of {patch}"
        )
    return image, patch


def _layers(file: GGUF, family: Family) -> int:
    """Number of blocks to run: all, unless the file names one after which LLaVA's projector follows.

    LLaVA takes what goes into its encoder's last block, so its files have no such block.
    """
    n_block = positive(file, "clip.vision.block_count", most=MAX_BLOCKS)
    key = "clip.vision.feature_layer"
    if key not in file.metadata:
        return n_block
    layers = file.metadata.array(key)
    if family.name != "mlp" or layers.shape != (1,) or not 0 < int(layers[0]) <= n_block:
        raise file.error(
            key, f"one layer from 1 to {n_block} can be named, and only with the projector 'mlp'"
        )
    return int(layers[0])


def _epsilon(file: GGUF, medium: str = "vision") -> float:
    key = f"clip.{medium}.attention.layer_norm_epsilon"
    eps = file.metadata.number(key)
    if not 0.0 <= eps < 1.0:
        raise file.error(key, f"an epsilon of {eps}")
    return eps


def _activation(file: GGUF) -> Literal["gelu", "quick_gelu", "silu"]:
    gelu = file.metadata.flag("clip.use_gelu", False)
    silu = file.metadata.flag("clip.use_silu", False)
    if gelu and silu:
        raise file.error("clip.use_silu", "it asks for GELU and SiLU at once")
    return "gelu" if gelu else "silu" if silu else "quick_gelu"


def _channels(file: GGUF, key: str, least: float) -> tuple[float, float, float]:
    values = file.metadata.array(key)
    if len(values) != 3 or not np.isfinite(values).all() or not (values > least).all():
        raise file.error(key, f"three numbers are needed, not {values[:4].tolist()}")
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _optional(n_layer: int) -> list[str]:
    parts = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_out", "ffn_up", "ffn_down", "ffn_gate")
    return ["v.patch_embd.bias", *(f"v.blk.{i}.{part}.bias" for i in range(n_layer) for part in parts)]


def _refuse_others(file: GGUF, spec: VisionSpec) -> None:
    """Raise for tensors that would be ignored: without an unknown part the vectors would be wrong."""
    used = spec.tensors()
    for name in file.tensors:
        block = name.removeprefix("v.blk.").split(".")[0]
        known = name.startswith("v.blk.") and block.isdecimal() and len(block) < 6
        beyond = known and int(block) >= spec.n_layer  # after the last one that is run
        others = not spec.mels and name.startswith("mm.a.")  # a sound's
        ours = name.startswith(("a.", "mm.") if spec.mels else ("v.", "mm.", "resampler."))
        if ours and not (beyond or others or name in used or name in IGNORED):
            raise file.error(
                name, f"the tensor has no place in an encoder with the projector {spec.projector!r}"
            )
