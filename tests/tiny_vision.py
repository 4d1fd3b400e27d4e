"""The tiny random encoders of tests/data/vision (scripts/make_tiny_vision.py) and short ways to run them."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import PIL

from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.text.bpe import BPETokenizer
from stretto.text.template import ChatTemplate
from stretto.vision.encoder import encode
from stretto.vision.image import Image
from stretto.vision.native import NativeEncoder
from stretto.vision.queue import find_grid, normalise, prepare
from stretto.vision.reading import read_vision_spec
from stretto.vision.reference import ReferenceEncoder
from stretto.vision.vision import Vision
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import LENGTH, Metadata, Strings, ValueType
from tiny_models import tiny_file

FOLDER = Path(__file__).parent / "data" / "vision"
NAMES = ["gemma3", "idefics3", "mlp"]
TILED = ["internvl", "llava-next", "llama4"]
SHAPED = ["pixtral", "qwen3vl", "gemma4v"]  # images keep their shape
VARIANTS = ["pixtral-12b", "qwen35", "internvl-6b", "qwen2vl", "qwen25vl"]
ENCODERS = [*NAMES, *TILED, *SHAPED, *VARIANTS]
PROJECTORS = {
    "qwen2vl": "qwen2vl_merger",
    "qwen25vl": "qwen2.5vl_merger",
    "qwen3vl": "qwen3vl_merger",
    "qwen35": "qwen3vl_merger",
    "llava-next": "mlp",
}
# The answers were made with Pillow 13, which resizes the last one a little differently from earlier ones.
PICTURES = (0, 1, 2) if int(PIL.__version__.partition(".")[0]) >= 13 else (0, 1)


@cache
def vision_file(name):
    """A tiny file; one that is open already is taken as it is."""
    return name if isinstance(name, GGUF) else GGUF(FOLDER / f"{name}.gguf")


@cache
def vision_answers():
    found = {}
    for name in ("golden", "shapes"):
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as stored:
            found |= dict(stored)
    return found


def vision_answer(name, key):
    """What transformers made: image.I, pixels.I, vectors.I, grid.I"""
    return vision_answers()[f"{name}/{key}"]


def vision_spec(name):
    return read_vision_spec(vision_file(name))


def picture(i):
    return Image.open(vision_answer("mlp", f"image.{i}"))


def patches(name, i, spec=None):
    """float32[n, patches, numbers] of a picture, and their grid."""
    spec = spec or vision_spec(name)
    tiles = prepare(picture(i), spec).tiles
    return normalise(tiles, spec), find_grid(tiles, spec)


def vectors(encoder, name, i):
    """float32[n, tokens, n_vector] of a picture."""
    return encode(encoder, *patches(name, i, encoder.spec))


CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.?"
SPECIALS = (
    *("<end>", "<turn>", "<image>", "<start_of_image>", "<end_of_image>", "<fake_token_around_image>"),
    *("<global-img>", *(f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3))),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "<img>", "</img>", "<|image>", "<image|>", "<|image|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
)
LLAMA4_SPECIALS = (
    *("<end>", "<turn>", "<|image_start|>", "<|image_end|>", "<|patch|>", "<|image|>"),
    *("<|tile_x_separator|>", "<|tile_y_separator|>"),
    *(f"<spare {i}>" for i in range(len(SPECIALS) - 8)),
)
TEMPLATE = "{% for m in messages %}<turn>{{ m.content }}{% endfor %}<turn>"
IMAGE_TEMPLATE = (
    "{% for m in messages %}<turn>{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}<turn>"
)


def small_tokenizer(specials=SPECIALS):
    """A tokenizer whose ids fit the tiny language models."""
    tokens = [*CHARACTERS, "Ġ", "Ċ", *"!,:", *specials]
    assert len(tokens) == 96
    types = np.array([1] * (len(tokens) - len(specials)) + [3] * len(specials), np.int32)
    packed = b"".join(LENGTH.pack(len(token.encode())) + token.encode() for token in tokens)
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": Strings(memoryview(packed), 0, len(tokens), "small"),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": Strings(memoryview(b""), 0, 0, "small"),
        "tokenizer.ggml.eos_token_id": tokens.index("<end>"),
    }
    kinds = {int: ValueType.UINT32, str: ValueType.STRING}
    types_of = {key: kinds.get(type(value), ValueType.ARRAY) for key, value in values.items()}
    return BPETokenizer(Metadata(values, types_of, "small"))


def seeing_llm(name, backend="native", *, text=None, template=TEMPLATE, cells=256, **options):
    """A tiny language model that sees through a tiny encoder."""
    file = text if isinstance(text, GGUF) else tiny_file(text or ("gemma3" if name == "gemma3" else "llama"))
    spec, tokenizer = read_spec(file), small_tokenizer(options.pop("specials", SPECIALS))
    sees = vision_spec(name)
    sees = replace(sees, bidirectional=sees.bidirectional or spec.windowed_images)
    if backend == "native":
        runs = NativeBackend(file, spec, cells, 2, options.pop("kv", "f16"), n_slots=16)
        encoder = NativeEncoder(vision_file(name), sees, 2)
    elif backend == "torch":  # in float32, as the reference
        from stretto.backends.torch.backend import TorchBackend
        from stretto.vision.torch import TorchEncoder

        device = options.pop("device", "cpu")
        runs = TorchBackend(file, spec, cells, device, "f32", "high", 16)
        encoder = TorchEncoder(vision_file(name), sees, device, "high")
    else:
        runs = ReferenceBackend(file, spec, cells, n_slots=16)
        encoder = ReferenceEncoder(vision_file(name), sees)
    vision = Vision(encoder, tokenizer, lambda: str(name), options.pop("image_cache", None))
    chat = ChatTemplate(template, tokenizer.specials)
    return LLM(runs, tokenizer, chat, fingerprint=lambda: "tiny", vision=vision, **options)


def logits_behind(llm, parts, after):
    """float32[1 + tokens, n_vocab]: behind texts and images, and behind each token that follows them."""
    seq = llm.sequence(parts[0])
    for part in parts[1:]:
        seq.append(part)
    found = [seq.logits.copy()]
    for token in after:
        seq.append(token)
        found.append(seq.logits.copy())
    return np.stack(found)
