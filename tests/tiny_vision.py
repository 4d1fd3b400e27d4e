"""The tiny random encoders of tests/data/vision (scripts/make_tiny_vision.py) and short ways to run them."""

from functools import cache
from pathlib import Path

import numpy as np

from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.text.bpe import BPETokenizer
from stretto.text.template import ChatTemplate
from stretto.vision.encoder import encode
from stretto.vision.image import Image
from stretto.vision.native import NativeEncoder
from stretto.vision.preprocess import normalise, prepare
from stretto.vision.reference import ReferenceEncoder
from stretto.vision.spec import read_vision_spec
from stretto.vision.vision import Vision
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import LENGTH, Metadata, Strings, ValueType
from tiny_models import tiny_file

FOLDER = Path(__file__).parent / "data" / "vision"
NAMES = ["gemma3", "idefics3", "mlp"]
PICTURES = 0, 1, 2


@cache
def vision_file(name):
    return GGUF(FOLDER / f"{name}.gguf")


@cache
def vision_answers():
    with np.load(FOLDER / "golden.npz", allow_pickle=False) as stored:
        return dict(stored)


def vision_answer(name, key):
    """What transformers made: image.I, pixels.I, vectors.I, grid.I"""
    return vision_answers()[f"{name}/{key}"]


def vision_spec(name):
    return read_vision_spec(vision_file(name))


def picture(i, name="mlp"):
    return Image.open(vision_answer(name, f"image.{i}"))


def patches(name, i, spec=None):
    """float32[n, n_patches, numbers] of a picture."""
    spec = spec or vision_spec(name)
    return normalise(prepare(picture(i, name), spec).tiles, spec)


def vectors(encoder, i):
    """float32[n, n_tokens, n_out] of a picture."""
    name = encoder.spec.projector
    return encode(encoder, patches(name, i, encoder.spec))


CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.?"
SPECIALS = (
    *("<end>", "<turn>", "<image>", "<start_of_image>", "<end_of_image>", "<fake_token_around_image>"),
    *("<global-img>", *(f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3))),
)
TEMPLATE = "{% for m in messages %}<turn>{{ m.content }}{% endfor %}<turn>"
IMAGE_TEMPLATE = (
    "{% for m in messages %}<turn>{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}<turn>"
)


def small_tokenizer():
    """A tokenizer whose ids fit the tiny language models."""
    tokens = [*CHARACTERS, "Ġ", "Ċ", *"!#$%&()*+,-/:;", *SPECIALS]
    assert len(tokens) == 96
    types = np.array([1] * (len(tokens) - len(SPECIALS)) + [3] * len(SPECIALS), np.int32)
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
    file = tiny_file(text or ("gemma3" if name == "gemma3" else "llama"))
    spec, tokenizer = read_spec(file), small_tokenizer()
    if backend == "native":
        runs = NativeBackend(file, spec, cells, 2, options.pop("kv", "f16"))
        encoder = NativeEncoder(vision_file(name), vision_spec(name), 2)
    else:
        runs = ReferenceBackend(file, spec, cells)
        encoder = ReferenceEncoder(vision_file(name), vision_spec(name))
    vision = Vision(encoder, tokenizer, lambda: name, options.pop("image_cache", None))
    chat = ChatTemplate(template, tokenizer.specials)
    return LLM(runs, tokenizer, chat, fingerprint=lambda: "tiny", vision=vision, **options)
