"""Files that are no language model of a supported architecture: what they are, and what to do instead.

`models.read_spec` asks here before it reads a file, and when it does not know the architecture.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.errors import ModelError, UnsupportedModel
from stretto.models.common import MAX_LAYERS, Keys
from stretto.models.spec import Layer, ModelSpec, Norm
from stretto.weights.gguf import GGUF

ARCHITECTURE = "general.architecture"

ADAPTER = (
    "a LoRA adapter, the changes to a model and not the model; load its base model and this with "
    "llm.load_adapter, or merge both (stretto merge)"
)
PROJECTOR = "an mmproj, the image encoder of a model; load the language model, and pass it as vision="
IMPORTANCE = "an importance matrix, which is for quantising a model; load the model itself"
VOCABULARY = (
    "a vocabulary without weights; load the file of the whole model (stretto tokenize works with this one)"
)
CONTROL = "a control vector, which changes a model's activations; load the model itself"

# `general.type` of files that are no model.
TYPES = {"adapter": ADAPTER, "imatrix": IMPORTANCE, "mmproj": PROJECTOR}

# Architectures of models that are no language models.
OTHERS = {
    "clip": PROJECTOR,
    "controlvector": CONTROL,
    "wavtokenizer-dec": "a decoder that makes sound of tokens; load the language model that belongs to it",
    **dict.fromkeys(
        ("eagle3", "dflash", "gemma4-assistant"), "a drafter that works only with its model's activations"
    ),
    **dict.fromkeys(
        ("neo-bert", "eurobert", "llama-embed", "t5encoder"),
        "an encoder of a kind that is not supported yet; BERT's, Nomic's, Jina's, ModernBERT's and "
        "EmbeddingGemma's are",
    ),
    **dict.fromkeys(
        (
            *("flux", "sd1", "sdxl", "sd3", "aura", "wan", "ltxv", "hidream", "lumina2", "cosmos", "hyvid"),
            *("qwen_image", "z_image"),
        ),
        "a model that makes images or video, not text",
    ),
}

_EXPERTS = "a reader for its mixture of experts"
_LAYER_NORM = "layers with LayerNorm, biases and learned positions"
_ALIBI = "attention with ALiBi biases instead of rotary positions"
_DIFFUSION = "generation by diffusion: tokens are filled in any order, not one after the other"
_RWKV = "RWKV's recurrent mixer"
_SPARSE = "sparse attention that chooses tokens with an indexer"
_SIMILAR = "a reader of its metadata; its layers are near to the supported ones"

# Language models that exist in llama.cpp's files and are not supported: what each would need.
NEEDS = {
    "rwkv6": _RWKV,
    "rwkv6qwen2": _RWKV,
    "rwkv7": _RWKV,
    "arwkv7": _RWKV,
    "mamba": "Mamba's first recurrent mixer",
    "mamba2": "a model of Mamba-2 layers alone",
    "jamba": "Mamba's first recurrent mixer beside attention, and a mixture of experts",
    "plamo2": "Mamba layers with norms of their own",
    "kimi-linear": "Kimi's delta attention with a decay for each channel",
    "t5": "an encoder beside the decoder, and relative position biases",
    "bitnet": "BitLinear layers with norms inside, and ternary activations",
    "dream": _DIFFUSION,
    "llada": _DIFFUSION,
    "llada-moe": _DIFFUSION,
    "rnd1": _DIFFUSION,
    "bloom": _ALIBI,
    "mpt": _ALIBI,
    "refact": _ALIBI,
    "jais": _ALIBI,
    "falcon": "attention and feed-forward side by side, with LayerNorm",
    "gptj": "attention and feed-forward side by side, with LayerNorm",
    "gptneox": "attention and feed-forward side by side, with LayerNorm",
    "phi2": "attention and feed-forward side by side, with LayerNorm",
    "stablelm": "LayerNorm, and rotary positions on a part of each head",
    "gpt2": _LAYER_NORM,
    "starcoder": _LAYER_NORM,
    "codeshell": _LAYER_NORM,
    "grok": _EXPERTS + ", and caps on router and attention",
    "dbrx": _EXPERTS + ", and clamped Q, K and V",
    "arctic": _EXPERTS + " beside a dense feed-forward",
    "llama4": _EXPERTS + ", and attention in chunks",
    "deepseek": _EXPERTS,
    "olmoe": _EXPERTS,
    "phimoe": _EXPERTS,
    "bailingmoe": _EXPERTS,
    "bailingmoe2": _EXPERTS,
    "dots1": _EXPERTS,
    "afmoe": _EXPERTS + ", and gated attention",
    "ernie4_5-moe": _EXPERTS,
    "exaone-moe": _EXPERTS,
    "hunyuan-moe": _EXPERTS,
    "hy_v3": _EXPERTS,
    "cohere2moe": _EXPERTS,
    "grovemoe": _EXPERTS + " with experts that share parts",
    "smallthinker": _EXPERTS + " that is routed before attention",
    "minimax-m2": _EXPERTS,
    "mimo2": _EXPERTS + ", and keys and values of different sizes",
    "step35": _EXPERTS,
    "mistral4": _EXPERTS,
    "deepseek32": _SPARSE,
    "deepseek4": _SPARSE,
    "glm-dsa": _SPARSE,
    "deepseek2-ocr": "its image encoder, and a reader of its metadata",
    "apertus": "the xIELU activation",
    "minicpm3": "latent attention in a dense model",
    "plm": "latent attention in a dense model",
    "openelm": "layers of different widths",
    "deci": "layers that leave attention or feed-forward out",
    "qwen2vl": "positions in three dimensions (M-RoPE)",
    "qwen3vl": "positions in three dimensions (M-RoPE) and image features in several layers",
    "qwen3vlmoe": "positions in three dimensions (M-RoPE) and image features in several layers",
    "hunyuan_vl": "positions in several dimensions",
    "paddleocr": "positions in three dimensions (M-RoPE)",
    "cogvlm": "weights of its own for image tokens",
    "chameleon": "image tokens, and norms of queries and keys for each head",
    **dict.fromkeys(
        (
            *("arcee", "baichuan", "chatglm", "exaone", "internlm2", "jais2", "laguna", "maincoder"),
            *("mellum", "minicpm", "nemotron", "olmo", "orion", "pangu-embedded", "plamo", "plamo3", "qwen"),
            *("talkie", "xverse"),
        ),
        _SIMILAR,
    ),
}  # fmt: skip


def refuse_others(file: GGUF) -> None:
    """Raise `ModelError` for a file that is no language model, saying what it is."""
    kind, name = file.metadata.get("general.type"), file.metadata.get(ARCHITECTURE)
    if isinstance(kind, str) and kind in TYPES:
        raise _error(file, TYPES[kind], "general.type")
    if "adapter.type" in file.metadata:  # adapters from before there was general.type
        raise _error(file, ADAPTER, "adapter.type")
    if isinstance(name, str) and name in OTHERS:
        raise _error(file, f"{name!r} is {OTHERS[name]}", ARCHITECTURE, "")
    if not file.tensors and "tokenizer.ggml.tokens" in file.metadata:
        raise _error(file, VOCABULARY, "tensors")


def unknown_architecture(file: GGUF, name: str, supported: Iterable[str]) -> UnsupportedModel:
    """The error for an architecture that is not supported: what it would need, where that is known."""
    need = f" yet: it would need {NEEDS[name]}" if name in NEEDS else ""
    return UnsupportedModel(
        f"the architecture {name!r} is not supported{need}; supported are {', '.join(sorted(supported))}",
        path=file.path,
        field=ARCHITECTURE,
    )


def _error(file: GGUF, what: str, field: str, lead: str = "this is ") -> ModelError:
    return ModelError(f"{lead}{what}", path=file.path, field=field)


# The spec of a model whose architecture Stretto does not know, for backends that read the file themselves.
#
# It has the sizes that the engine needs, and layers without parts: nothing of ours could run it.

EMBEDDINGS = "token_embd.weight"
EMPTY_LAYER = Layer(mixer=None, ffn=None, norm=None, ffn_norm=None)


def bare_spec(file: GGUF) -> ModelSpec:
    """The sizes of any language model that follows GGUF's names.

    >>> bare_spec(GGUF("gpt2.gguf")).n_layer
    12
    """
    refuse_others(file)
    keys = Keys(file, file.metadata.text(ARCHITECTURE))
    embeddings = file.tensors.get(EMBEDDINGS)
    if embeddings is None or len(embeddings.shape) != 2:
        raise ModelError("a language model has a matrix of embeddings", path=file.path, field=EMBEDDINGS)
    return ModelSpec(
        architecture=keys.arch,
        n_vocab=embeddings.shape[0],
        n_embd=keys.size("embedding_length"),
        context_length=keys.size("context_length"),
        layers=(EMPTY_LAYER,) * keys.size("block_count", most=MAX_LAYERS),
        output_norm=Norm("output_norm", 1e-5),
    )
