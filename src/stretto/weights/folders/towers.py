"""The encoders of Hugging Face folders, in the form of `mmproj` files: one entry for each kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import ModelError, UnsupportedModel
from stretto.weights.folders.conversion import (
    COLUMN,
    MAX_LAYERS,
    MODULES,
    Conversion,
    adjacent,
    plus,
    rename,
    shaped,
    without_axis,
)
from stretto.weights.folders.stored import Sources
from stretto.weights.json_file import Fields, read_object
from stretto.weights.safetensors import Shard
from stretto.weights.tensor import Op

# Of tensors' names, that depend on the class they were saved from.
PREFIXES = tuple(
    f"{outer}{inner}"
    for inner in ("vision_tower.vision_model.", "vision_tower.", "vision_model.", "visual.", "")
    for outer in ("model.", "")
    if outer or inner
)
SOUND_PREFIXES = "model.audio_tower.", "audio_tower.", "model."
UNUSED = r"(?:language_model|text_model|layers|embed_tokens|norm|lm_head)\..*|.*position_ids|.*inv_freq"
UNHEARD = r"(?:language_model|lm_head)\..*"  # of a model that hears
PROCESSORS = "preprocessor_config.json", "processor_config.json"
ACTIVATIONS = {"quick_gelu": "", "silu": "use_silu", "gelu_pytorch_tanh": "use_gelu"}
EXACT = {"gelu": "use_gelu"}  # of projectors whose encoders have the exact GELU

# Settings that configurations leave out, where the classes of transformers have them as defaults.
SIGLIP = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
SMOLVLM = SIGLIP | {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}


# Of encoders of sounds.
WHISPER = {"activation_function": "gelu"}
WHISPER_NAMES = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}
WHISPER_WHOLE = {"embed_positions": "a.position_embd", "layer_norm": "a.post_ln"}
SPECTROGRAM = {"n_fft": 400, "hop_length": 160, "sampling_rate": 16_000}


@dataclass(frozen=True)
class Tower:
    """An encoder and its projector: names of tensors, and what else has to be converted.

    `convert` gets the whole configuration and that of the image processor.
    """

    projector: str
    family: str  # names of a layer's modules, in tables.json
    layer: str  # what stands before them
    whole: Mapping[str, str]  # other modules
    convert: Callable[[Conversion, Fields, Fields], None]
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ops: Mapping[str, Callable[[int], Op]] = field(default_factory=dict)  # of modules, by the size of a head


@dataclass(frozen=True)
class SoundTower:
    """Whisper's encoder, and the modules of its projector."""

    projector: str
    whole: Mapping[str, str]
    stacks: bool = False  # the projector takes several positions at once


def convert_tower(config: Fields, shards: list[Shard], folder: Path) -> Conversion:
    """The metadata and tensors of a folder's encoder; `UnsupportedModel` for an unknown kind.

    Of a folder with encoders of images and sounds it is that of images.
    """
    if "vision_config" not in config:
        if "audio_config" in config:
            return _convert_sounds(config, shards, folder)
        raise ModelError(
            "has no vision_config and no audio_config, so no encoder of images or sounds", path=config.path
        )
    inner, kind = config.object("vision_config"), config.text("model_type")
    if inner.get("model_type") == "pixtral":
        kind = "mistral3"
    if kind not in TOWERS:
        raise UnsupportedModel(
            f"image encoders of folders of model_type {kind!r} are not supported, only those of "
            f"{', '.join(sorted(TOWERS))}; give the mmproj file of a GGUF model",
            path=folder,
            field="config.json model_type",
        )
    tower, processor = TOWERS[kind], _processor(folder)
    inner = Fields({**tower.defaults, **dict(inner)}, config.path, "vision_config.")
    conversion = Conversion("clip", inner, Sources(shards, PREFIXES), folder, UNUSED)
    try:
        _convert(conversion, tower, config, processor)
    except (ArithmeticError, ValueError) as error:  # of numbers that no model has
        raise ModelError(f"its settings make no sense: {error}", path=config.path) from None
    conversion.finish()
    return conversion


def _convert(conversion: Conversion, tower: Tower, config: Fields, processor: Fields) -> None:
    inner, keys = conversion.config, conversion.keys
    keys |= {
        "has_vision_encoder": True,
        "projector_type": tower.projector,
        "vision.embedding_length": _integer(inner, "embed_dim" if "embed_dim" in inner else "hidden_size"),
        "vision.block_count": _integer(
            inner, "depth" if "depth" in inner else "num_hidden_layers", most=MAX_LAYERS
        ),
        "vision.attention.head_count": _integer(
            inner, "num_heads" if "num_heads" in inner else "num_attention_heads"
        ),
        "vision.patch_size": _integer(inner, "patch_size"),
        "vision.attention.layer_norm_epsilon": inner.number("layer_norm_eps", 1e-5),
    }
    for name in ("image_mean", "image_std"):
        channels = processor.list(name)
        if not all(type(one) in (int, float) for one in channels):
            raise processor.error(name, f"three numbers are needed, not {channels!r:.60}")
        keys[f"vision.{name}"] = [float(one) for one in channels]
    activation = inner.text("hidden_act")
    if activation not in tower.activations:
        raise inner.error(
            "hidden_act", f"{activation!r} is not supported, only {', '.join(tower.activations)}"
        )
    if tower.activations[activation]:
        keys[tower.activations[activation]] = True
    tower.convert(conversion, config, processor)
    if "vision.image_size" not in keys:
        keys["vision.image_size"] = _integer(inner, "image_size")
    if "vision.feed_forward_length" not in keys:
        keys["vision.feed_forward_length"] = _integer(inner, "intermediate_size")
    head = keys["vision.embedding_length"] // keys["vision.attention.head_count"]
    ops = {name: op(head) for name, op in tower.ops.items()}
    n_layer = keys["vision.block_count"]
    conversion.take_layers(MODULES[tower.family], ops, tower.layer, n_layer, prefix="v.blk.")
    for source, target in tower.whole.items():
        conversion.take_module(target, source)


def _convert_sounds(config: Fields, shards: list[Shard], folder: Path) -> Conversion:
    """An encoder of sounds, which is Whisper's."""
    kind = config.text("model_type")
    if kind not in SOUND_TOWERS:
        raise UnsupportedModel(
            f"encoders of sounds of folders of model_type {kind!r} are not supported, only those of "
            f"{', '.join(sorted(SOUND_TOWERS))}; give the mmproj file of a GGUF model",
            path=folder,
            field="config.json model_type",
        )
    tower, inner = SOUND_TOWERS[kind], config.object("audio_config")
    inner = Fields({**WHISPER, **dict(inner)}, config.path, "audio_config.")
    conversion = Conversion("clip", inner, Sources(shards, SOUND_PREFIXES), folder, UNHEARD)
    rename(conversion, WHISPER_NAMES)
    inner, keys = conversion.config, conversion.keys
    if inner.text("activation_function") != "gelu" or config.text("projector_hidden_act", "gelu") != "gelu":
        raise inner.error("activation_function", "only 'gelu' is supported, and behind the encoder as well")
    conversion.refuse("scale_embedding", "scaling of what the convolutions make")
    _check_spectrogram(inner, folder)
    n_layer = inner.integer("num_hidden_layers", least=1, most=MAX_LAYERS)
    keys |= {
        "has_audio_encoder": True,
        "projector_type": tower.projector,
        "audio.embedding_length": inner.integer("hidden_size", least=1),
        "audio.feed_forward_length": inner.integer("intermediate_size", least=1),
        "audio.block_count": n_layer,
        "audio.attention.head_count": inner.integer("num_attention_heads", least=1),
        "audio.attention.layer_norm_epsilon": 1e-5,
        "audio.num_mel_bins": inner.integer("num_mel_bins", least=1),
    }
    if tower.stacks:  # positions, in as many numbers as a feed-forward has
        keys["audio.projector.stack_factor"] = (
            keys["audio.feed_forward_length"] // keys["audio.embedding_length"]
        )
    for i in (1, 2):
        conversion.take(f"a.conv1d.{i}.weight", f"conv{i}.weight")
        conversion.take(f"a.conv1d.{i}.bias", f"conv{i}.bias", op=COLUMN)
    conversion.take_layers(MODULES["whisper_tower"], {}, "layers.{}.", n_layer, prefix="a.blk.")
    for source, target in {**WHISPER_WHOLE, **tower.whole}.items():
        conversion.take_module(target, source)
    conversion.finish()
    return conversion


def _check_spectrogram(inner: Fields, folder: Path) -> None:
    """Raise if the processor computes another spectrogram than `audio.mel`, or windows of another length."""
    if not any((folder / name).exists() for name in PROCESSORS):
        return
    processor = _processor(folder, "feature_extractor")
    wanted = SPECTROGRAM | {"feature_size": inner.integer("num_mel_bins")}
    for name, value in wanted.items():
        if processor.get(name, value) != value:
            raise processor.error(name, f"{processor[name]!r}, but only {value} is supported")
    frames = 2 * inner.integer("max_source_positions", least=1)
    if processor.get("nb_max_frames", frames) != frames:
        raise processor.error(
            "nb_max_frames", f"{processor['nb_max_frames']!r}, but the encoder takes {frames}"
        )


def _processor(folder: Path, part: str = "image_processor") -> Fields:
    """The configuration of a processor, in a file of its own or in that of the whole processor."""
    for name in PROCESSORS:
        if (folder / name).exists():
            found = read_object(folder / name)
            return found.object(part) if part in found else found
    raise ModelError(f"has no {PROCESSORS[0]}, which says how images are prepared", path=folder)


def _integer(config: Fields, name: str, most: int = 1 << 31) -> int:
    """An integer, or two equal ones, for rows and columns."""
    value = config.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return Fields({name: value[0]}, config.path, config.prefix).integer(name, least=1, most=most)
    return config.integer(name, least=1, most=most)


def _qwen2(conversion: Conversion, config: Fields, processor: Fields) -> None:
    """A patch is two frames; limits of pixels."""
    inner, keys = conversion.config, conversion.keys
    keys["vision.attention.layer_norm_epsilon"] = 1e-6
    if "embed_dim" in inner:
        keys["vision.feed_forward_length"] = int(inner.integer("embed_dim") * inner.number("mlp_ratio", 4.0))
    keys["vision.spatial_merge_size"] = merge = inner.integer("spatial_merge_size", 2, least=1, most=64)
    keys["vision.image_size"] = 16 * merge * keys["vision.patch_size"]  # images need not have it
    size = processor.object("size", {})
    for key, old, new in (("min", "min_pixels", "shortest_edge"), ("max", "max_pixels", "longest_edge")):
        source, name = (processor, old) if old in processor else (size, new)
        if name in source:
            keys[f"vision.image_{key}_pixels"] = source.integer(name, least=1)
    for i, name in enumerate(("v.patch_embd.weight", "v.patch_embd.weight.1")):
        conversion.take(name, "patch_embed.proj.weight", op=_frame(i))


def _frame(which: int) -> Op:
    """One of the two frames of a patch."""

    def shape(given: tuple[int, ...]) -> tuple[int, ...]:
        if len(given) != 5 or given[2] != 2:
            raise ValueError(f"{given} is no kernel of two frames")
        return (*given[:2], *given[3:])

    return Op(lambda array: array[:, :, which], shape)


def _qwen25(conversion: Conversion, config: Fields, processor: Fields) -> None:
    """Windows, but in every so many blocks."""
    _qwen2(conversion, config, processor)
    inner, n_layer = conversion.config, conversion.keys["vision.block_count"]
    whole = inner.list("fullatt_block_indexes", [7, 15, 23, 31])
    every = whole[0] + 1 if whole and type(whole[0]) is int and whole[0] >= 0 else n_layer + 1
    if whole != list(range(every - 1, n_layer, every)):
        raise inner.error("fullatt_block_indexes", f"{whole}: every so many of {n_layer} blocks are needed")
    conversion.keys["vision.n_wa_pattern"] = every
    conversion.keys["vision.window_size"] = inner.integer("window_size", 112, least=1)


def _qwen3(conversion: Conversion, config: Fields, processor: Fields) -> None:
    """A table of positions, and features of early blocks."""
    _qwen2(conversion, config, processor)
    conversion.take("v.patch_embd.bias", "patch_embed.proj.bias")
    conversion.take("v.position_embd.weight", "pos_embed.weight")
    taps = conversion.config.list("deepstack_visual_indexes", [])
    n_layer = conversion.keys["vision.block_count"]
    conversion.keys["vision.is_deepstack_layers"] = [i in taps for i in range(n_layer)]
    for number, i in enumerate(taps):
        for source, target in (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2")):
            conversion.take_module(f"v.deepstack.{i}.{target}", f"deepstack_merger_list.{number}.{source}")


def _llava(conversion: Conversion, config: Fields, processor: Fields) -> None:
    """What goes into one of the last blocks; in LLaVA 1.6 tiles of several resolutions."""
    keys, n_layer = conversion.keys, conversion.keys["vision.block_count"]
    layer = config.get("vision_feature_layer", -2)
    if type(layer) is not int or not -n_layer <= layer < 0:
        raise config.error("vision_feature_layer", f"{layer!r} is not supported, only one from the end")
    keys["vision.block_count"] = n_layer + 1 + layer
    conversion.ignore(
        rf"encoder\.layers\.(?:{'|'.join(str(i) for i in range(n_layer + 1 + layer, n_layer))})\..*"
    )
    conversion.ignore(r"post_layernorm\..*|head\..*")
    if conversion.has("embeddings.class_embedding"):
        conversion.take("v.class_embd", "embeddings.class_embedding")
    if config.text("model_type") == "llava_next":
        pairs = config.list("image_grid_pinpoints")
        if not all(isinstance(pair, list) and [type(n) for n in pair] == [int, int] for pair in pairs):
            raise config.error("image_grid_pinpoints", "pairs of heights and widths are needed")
        keys["vision.image_grid_pinpoints"] = [n for height, width in pairs for n in (width, height)]
        keys["vision.mm_patch_merge_type"] = "spatial_unpad"
        conversion.take("v.image_newline", "image_newline")


def _pixtral(conversion: Conversion, config: Fields, processor: Fields) -> None:
    """The longest edge of images is the processor's."""
    inner = conversion.config
    keys, theta = conversion.keys, inner.object("rope_parameters", {}).number("rope_theta", 10_000.0)
    if inner.number("rope_theta", theta) != 10_000.0:
        raise inner.error("rope_theta", "must be 10000")
    keys["vision.image_size"] = processor.object("size", {}).integer(
        "longest_edge", _integer(inner, "image_size"), least=1
    )
    if "spatial_merge_size" in config:
        keys["vision.spatial_merge_size"] = config.integer("spatial_merge_size", least=1, most=64)


def _internvl(conversion: Conversion, config: Fields, processor: Fields) -> None:
    """Tiles; scales of layers; the class token and positions have axes of one."""
    inner, keys = conversion.config, conversion.keys
    keys["vision.attention.layer_norm_epsilon"] = inner.number("layer_norm_eps", 1e-6)
    _scale_factor(conversion, config, "downsample_ratio", 0.5)
    for end in ("min", "max"):
        if f"{end}_patches" in processor:
            keys[f"vision.preproc_{end}_tiles"] = processor.integer(f"{end}_patches", least=1)
    conversion.take("v.class_embd", "embeddings.cls_token", op=shaped(-1))
    conversion.take("v.position_embd.weight", "embeddings.position_embeddings", op=without_axis(0))
    for i in range(keys["vision.block_count"]):
        for n in (1, 2):
            conversion.take(f"v.blk.{i}.ls{n}.weight", f"encoder.layer.{i}.lambda_{n}")
    conversion.ignore(r"embeddings\.mask_token")


def _scale_factor(conversion: Conversion, config: Fields, name: str, default: float) -> None:
    """Set how many patches along each side become one vector, from the ratio of both."""
    ratio = config.number(name, default)
    if not 0 < ratio <= 1 or 1 % ratio:
        raise config.error(name, f"{ratio}, but one over an integer is needed")
    conversion.keys["vision.projector.scale_factor"] = round(1 / ratio)


def _gemma3(conversion: Conversion, config: Fields, processor: Fields) -> None:
    """Norms with the one added; as many tokens as the configuration says."""
    keys, side = conversion.keys, math.isqrt(config.integer("mm_tokens_per_image", 256, least=1))
    keys["vision.projector.scale_factor"] = (
        _integer(conversion.config, "image_size") // keys["vision.patch_size"] // side
    )
    conversion.take("mm.soft_emb_norm.weight", "multi_modal_projector.mm_soft_emb_norm.weight", op=plus(1.0))
    conversion.take("mm.input_projection.weight", "multi_modal_projector.mm_input_projection_weight")


def _idefics3(conversion: Conversion, config: Fields, processor: Fields) -> None:
    """Tiles of an image whose longest edge is the processor's."""
    keys, size = conversion.keys, _integer(conversion.config, "image_size")
    keys["vision.projector.scale_factor"] = config.integer("scale_factor", 2, least=1, most=64)
    keys["vision.preproc_image_size"] = processor.object("size", {}).integer(
        "longest_edge", 4 * size, least=1
    )
    tile = processor.object("max_image_size", {}).integer("longest_edge", size)
    if tile != size or not processor.flag("do_image_splitting", True):
        raise processor.error(
            "max_image_size", f"images that are not cut into tiles of {size} are not supported"
        )


def _llama4(conversion: Conversion, config: Fields, processor: Fields) -> None:
    """A class token behind the patches, tiles."""
    inner, keys = conversion.config, conversion.keys
    keys["vision.attention.layer_norm_epsilon"] = 1e-5
    if inner.object("rope_parameters", {}).number("rope_theta", inner.number("rope_theta", 1e4)) != 1e4:
        raise inner.error("rope_theta", "must be 10000")
    _scale_factor(conversion, inner, "pixel_shuffle_ratio", 0.5)
    keys["vision.preproc_max_tiles"] = processor.integer("max_patches", 16, least=1)
    if processor.flag("resize_to_max_canvas", False):
        raise processor.error("resize_to_max_canvas", "only images that are not enlarged are supported")
    conversion.take("v.class_embd", "class_embedding")
    conversion.take("v.position_embd.weight", "positional_embedding_vlm")


QWEN_MERGER = {"merger.ln_q": "v.post_ln", "merger.mlp.0": "mm.0", "merger.mlp.2": "mm.2"}
CLIP = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "pre_layrnorm": "v.pre_ln",
}
LLAVA = CLIP | {"multi_modal_projector.linear_1": "mm.0", "multi_modal_projector.linear_2": "mm.2"}
CLIP_LAYER = "clip_tower", "encoder.layers.{}."
QWEN3 = Tower(
    "qwen3vl_merger",
    "qwen_tower",
    "blocks.{}.",
    {"merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"},
    _qwen3,
    defaults={"hidden_act": "gelu_pytorch_tanh"},
)
SMOL = Tower(
    "idefics3",
    *CLIP_LAYER,
    CLIP | {"post_layernorm": "v.post_ln", "connector.modality_projection.proj": "mm.model.fc"},
    _idefics3,
    defaults=SMOLVLM,
)

# By the model_type of the whole model; a LLaVA with Pixtral's encoder counts as a Mistral 3.
TOWERS: dict[str, Tower] = {
    "gemma3": Tower("gemma3", *CLIP_LAYER, CLIP | {"post_layernorm": "v.post_ln"}, _gemma3, defaults=SIGLIP),
    "idefics3": SMOL,
    "internvl": Tower(
        "internvl",
        "internvl_tower",
        "encoder.layer.{}.",
        {
            "embeddings.patch_embeddings.projection": "v.patch_embd",
            "layernorm": "v.post_ln",
            "multi_modal_projector.layer_norm": "mm.model.mlp.0",
            "multi_modal_projector.linear_1": "mm.model.mlp.1",
            "multi_modal_projector.linear_2": "mm.model.mlp.3",
        },
        _internvl,
        EXACT,
        {"hidden_act": "gelu"},
    ),
    "llama4": Tower(
        "llama4",
        "llama4_tower",
        "model.layers.{}.",
        {
            "patch_embedding.linear": "v.patch_embd",
            "layernorm_pre": "v.pre_ln",
            "layernorm_post": "v.post_ln",
            "vision_adapter.mlp.fc1": "mm.model.mlp.1",
            "vision_adapter.mlp.fc2": "mm.model.mlp.2",
            "multi_modal_projector.linear_1": "mm.model.fc",
        },
        _llama4,
        EXACT,
        {"hidden_act": "gelu"},
    ),
    "llava": Tower("mlp", *CLIP_LAYER, LLAVA, _llava, defaults={"hidden_act": "quick_gelu"}),
    "llava_next": Tower("mlp", *CLIP_LAYER, LLAVA, _llava, defaults={"hidden_act": "quick_gelu"}),
    "mistral3": Tower(
        "pixtral",
        "pixtral_tower",
        "transformer.layers.{}.",
        {
            "patch_conv": "v.patch_embd",
            "ln_pre": "v.pre_ln",
            "multi_modal_projector.norm": "mm.input_norm",
            "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
            "multi_modal_projector.linear_1": "mm.1",
            "multi_modal_projector.linear_2": "mm.2",
        },
        _pixtral,
        ops={"attn_q": adjacent, "attn_k": adjacent},
    ),
    "qwen2_vl": Tower(
        "qwen2vl_merger",
        "qwen_tower",
        "blocks.{}.",
        QWEN_MERGER,
        _qwen2,
        defaults={"hidden_act": "quick_gelu"},
    ),
    "qwen2_5_vl": Tower(
        "qwen2.5vl_merger", "qwen_tower", "blocks.{}.", QWEN_MERGER, _qwen25, defaults={"hidden_act": "silu"}
    ),
    "qwen3_vl": QWEN3,
    "qwen3_vl_moe": QWEN3,
    "qwen3_5": QWEN3,
    "qwen3_5_moe": QWEN3,
    "smolvlm": SMOL,
}

SOUND_TOWERS: dict[str, SoundTower] = {
    "qwen2_audio": SoundTower("qwen2a", {"multi_modal_projector.linear": "mm.a.fc"}),
    "voxtral": SoundTower(
        "voxtral",
        {"multi_modal_projector.linear_1": "mm.a.mlp.1", "multi_modal_projector.linear_2": "mm.a.mlp.2"},
        stacks=True,
    ),
}
