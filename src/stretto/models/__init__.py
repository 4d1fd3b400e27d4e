"""Architectures as data: each file here reads a model file's metadata and returns a `ModelSpec`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from stretto.errors import ModelError
from stretto.models.common import Keys
from stretto.models.encoders import add_heads
from stretto.models.missing import refuse_others, unknown_architecture
from stretto.models.spec import Layer, ModelSpec, Rope
from stretto.weights.gguf import GGUF

__all__ = ["ARCHITECTURES", "Layer", "ModelSpec", "Rope", "read_spec"]

# A module here each, imported when a file needs it, and its function where that is not `read`.
ARCHITECTURES = {
    "apertus": "apertus",
    "arcee": "arcee",
    "arwkv7": "rwkv7:read_attention_free",
    "baichuan": "baichuan",
    "bailingmoe": "bailingmoe",
    "bailingmoe2": "bailingmoe:read_second",
    "bert": "bert",
    "bitnet": "bitnet",
    "bloom": "bloom",
    "chatglm": "chatglm",
    "codeshell": "starcoder2",
    "cohere2": "cohere2",
    "cohere2moe": "cohere2moe",
    "command-r": "command_r",
    "dbrx": "dbrx",
    "deepseek2": "deepseek2",
    "deepseek32": "deepseek32",
    "dots1": "dots1",
    "ernie4_5": "ernie4_5",
    "ernie4_5-moe": "ernie4_5_moe",
    "exaone": "exaone",
    "exaone4": "exaone4",
    "exaone-moe": "exaone_moe",
    "falcon": "falcon",
    "falcon-h1": "falcon_h1",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4",
    "gemma-embedding": "gemma_embedding",
    "glm4": "glm4",
    "glm4moe": "glm4moe",
    "glm-dsa": "deepseek32:read_glm",
    "gpt-oss": "gptoss",
    "gpt2": "gpt2",
    "gptneox": "gptneox",
    "granite": "granite",
    "granitehybrid": "granitehybrid",
    "granitemoe": "granitemoe",
    "hunyuan-dense": "hunyuan_dense",
    "hunyuan-moe": "hunyuan_moe",
    "hy_v3": "hy_v3",
    "internlm2": "internlm2",
    "jais2": "nemotron",
    "jamba": "jamba",
    "jina-bert-v2": "jina_bert:read_v2",
    "jina-bert-v3": "jina_bert:read_v3",
    "kimi-linear": "kimi_linear",
    "lfm2": "lfm2",
    "lfm2moe": "lfm2moe",
    "llama": "llama",
    "llama4": "llama4",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "mellum": "mellum",
    "minicpm": "minicpm",
    "minicpm3": "minicpm:read_latent",
    "minimax-m2": "minimax_m2",
    "mistral3": "mistral3",
    "modern-bert": "modern_bert",
    "mpt": "mpt",
    "nemotron": "nemotron",
    "nemotron_h": "nemotron_h",
    "nemotron_h_moe": "nemotron_h:read_moe",
    "nomic-bert": "nomic_bert",
    "nomic-bert-moe": "nomic_bert:read_moe",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "orion": "stablelm",
    "phi2": "phi2",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "qwen": "qwen",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2moe",
    "qwen2vl": "qwen2vl",
    "qwen3": "qwen3",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35moe",
    "qwen3moe": "qwen3moe",
    "qwen3next": "qwen3next",
    "qwen3vl": "qwen3vl",
    "qwen3vlmoe": "qwen3vl:read_moe",
    "rwkv7": "rwkv7",
    "seed_oss": "seed_oss",
    "smallthinker": "smallthinker",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder": "gpt2",
    "starcoder2": "starcoder2",
    "xverse": "internlm2",
}

# Tensors of a layer that repeat metadata; some old files have them.
DERIVED = ("rope_freqs.weight", "attn_rot_embd.weight")
# Names of other converters, whose files have other tensors too.
OTHER_CONVERTERS = {"gptoss": "gpt-oss"}
# Tensors that some converters write with further axes of one.
LOOSE = ("ffn_gate_inp_shexp.weight", "exp_probs_b.bias", "ssm_a", *(f"ssm_conv1d_{x}.weight" for x in "qkv"))
LOOSE += ("time_mix_lerp_fused.weight", "channel_mix_lerp_k.weight")


def read_spec(file: GGUF, context: int | None = None) -> ModelSpec:
    """The spec of the model in `file`, once all its tensors are known to be there and to fit.

    `context`: how many tokens a sequence can have at most, where that is less than the model's context.

    >>> read_spec(GGUF("smollm2.gguf")).architecture
    'llama'
    """
    refuse_others(file)
    name = file.metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        raise _unsupported(file, name)
    keys = Keys(file, name)
    spec = add_heads(keys, reader(name)(keys))
    needed = spec.tensors()
    for tensor, shape in needed.items():
        if tensor not in file.tensors:
            raise file.error(tensor, _missing(file, tensor))
        given = file.tensors[tensor].shape
        if given != shape and not (tensor.endswith(LOOSE) and _squeezed(given) == _squeezed(shape)):
            raise file.error(f"tensor {tensor!r}", f"the shape is {given}, not {shape}")
    skipped = tuple(f"blk.{i}." for i in range(spec.n_layer, keys.n_block))
    for tensor in file.tensors.keys() - needed.keys() - spec.unused():
        if tensor.endswith(DERIVED) or tensor.startswith(skipped):
            continue
        if tensor.startswith(("blk.", "output")):
            reason = f"the tensor has no place in a {name} model of {spec.n_layer} layers"
            raise file.error(tensor, reason)
    return spec if context is None else spec.within(context)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its axes of one."""
    return tuple(n for n in shape if n > 1)


def reader(name: str) -> Callable[[Keys], ModelSpec]:
    """The function that reads the keys of an architecture."""
    module, _, function = ARCHITECTURES[name].partition(":")
    read: Callable[[Keys], ModelSpec] = getattr(import_module(f"stretto.models.{module}"), function or "read")
    return read


def _unsupported(file: GGUF, name: str) -> ModelError:
    if name not in OTHER_CONVERTERS:
        return unknown_architecture(file, name, ARCHITECTURES)
    return file.error(
        "general.architecture",
        f"{name!r} is a layout of another converter; take a file that llama.cpp's converter has written, "
        f"with the architecture {OTHER_CONVERTERS[name]!r}",
    )


def _missing(file: GGUF, tensor: str) -> str:
    """Why a tensor may be missing: outdated layouts are named."""
    layer, _, part = tensor.rpartition("blk.")[2].partition(".")
    instead = f"blk.{layer}.{part.replace('_exps.', '.0.')}"  # one tensor for each expert, as in 2023
    if part.startswith(("attn_q.", "attn_k.", "attn_v.")):
        instead = f"blk.{layer}.attn_qkv.{part.rpartition('.')[2]}"
    if instead in file.tensors:
        return (
            f"the tensor is missing, but {instead!r} is there: the file has the layout of another converter "
            "or of an old one; take a file that a recent converter of llama.cpp has written"
        )
    return "the tensor is missing; is the file complete?"
