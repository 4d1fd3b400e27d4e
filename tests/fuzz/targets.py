"""What is fuzzed: seeds, and a function that raises nothing but `StrettoError` whatever it gets."""

import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image as Pillow

from stretto import Audio, Grammar, Image
from stretto.audio.mel import log_mels
from stretto.cache.snapshot import SnapshotFile
from stretto.engine.saving import expected_by
from stretto.models import read_spec
from stretto.server.generation.requests import ChatRequest, CompletionRequest
from stretto.server.http.bodies import parse_json, validate
from stretto.server.settings import RequestLimits
from stretto.testing import CHAT_TEMPLATE, byte_tokenizer, mock_llm
from stretto.text.loading import load_tokenizer
from stretto.text.template import ChatTemplate
from stretto.vision.families import FAMILIES
from stretto.vision.queue import find_grid, prepare
from stretto.vision.reading import read_vision_spec
from stretto.weights.gguf import GGUF
from stretto.weights.onnx import read_onnx
from stretto.weights.safetensors import Shard
from stretto.weights.writer import write_gguf

DATA = Path(__file__).parents[1] / "data"
SCRATCH = TemporaryDirectory(prefix="stretto-fuzz-")
INPUT = Path(SCRATCH.name) / "input"
MAX_PIXELS = 1_000_000
NARROW = Image(np.zeros((2, 300, 3), np.uint8))
ENCODERS = (
    *(
        "vision/mlp",
        "vision/qwen3vl",
        "vision/qwen25vl",
        "vision/llama4",
        "vision/llava-next",
        "vision/minicpmv",
    ),
    *("sounds/voxtral/mmproj", "sounds/qwen2audio/mmproj"),
)


@dataclass(frozen=True)
class Target:
    """Something that reads hostile bytes."""

    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], object]


def written(data: bytes, ending: str = ".gguf") -> Path:
    path = INPUT.with_suffix(ending)
    path.write_bytes(data)
    return path


@cache
def llm():
    return mock_llm("abc", cells=64)


# -- files of weights --


def run_gguf(data):
    with GGUF(written(data)) as file:
        for value in file.metadata.values():
            repr(value)[:100]
        read_spec(file)


def run_mmproj(data):
    with GGUF(written(data)) as file:
        spec = read_vision_spec(file)
        prepared = prepare(Audio(np.zeros(9, np.float32)) if spec.mels else NARROW, spec)
        list(FAMILIES[spec.projector].parts(prepared, spec, find_grid(prepared.tiles, spec)))


def run_tokenizer(data):
    with GGUF(written(data)) as file:
        load_tokenizer(file.metadata).encode("Hello, 12 worlds! \u4e00")


def run_safetensors(data):
    shard = Shard(written(data, ".safetensors"))
    sum(len(one.data) for one in shard.stored.values())
    shard.close()


def run_onnx(data):
    read_onnx(written(data, ".onnx"))


def run_state(data):
    engine = llm().engine
    with SnapshotFile(written(data, ".saved"), expected_by(engine.runner, engine.fingerprint)) as file:
        for _ in file.pieces():
            pass


def state_seeds():
    path = INPUT.with_suffix(".state")
    with llm().sequence("The cat sat") as sequence:
        sequence.save(path)
    return [path.read_bytes()]


def tokenizer_seeds():
    """The metadata of a byte-level vocabulary."""
    tokens = [*byte_tokenizer().vocabulary.tokens, "ab", "abc"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.ones(len(tokens), np.int32),
        "tokenizer.ggml.merges": ["a b", "ab c"],
    }
    write_gguf(INPUT.with_suffix(".gguf"), metadata, {})
    return [INPUT.with_suffix(".gguf").read_bytes()]


# -- what requests bring --


def image_seeds():
    pixels = np.random.default_rng(1).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    seeds = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP"):
        file = io.BytesIO()
        Pillow.fromarray(pixels).save(file, kind)
        seeds.append(file.getvalue())
    return seeds


def run_image(data):
    Image.open(data, max_pixels=MAX_PIXELS)


def sound_seeds():
    """WAV files of several formats."""
    samples = np.linspace(-1, 0.9, 600, dtype=np.float32)
    seeds = []
    for tag, channels, numbers in (
        (1, 1, samples * 2**15),
        (1, 2, samples * 2**31),
        (3, 1, samples),
        (3, 3, samples),
    ):
        data = numbers.astype("<f4" if tag == 3 else f"<i{2 * channels}").tobytes()
        width = len(data) // len(samples)
        form = struct.pack("<HHIIHH", tag, channels, 8_000, 8_000 * width, channels * width, 8 * width)
        body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data))
        seeds.append(b"RIFF" + struct.pack("<I", len(body) + len(data)) + body + data)
    return seeds


def run_sound(data):
    assert np.isfinite(log_mels(Audio.open(data, max_seconds=10).samples, 80)).all()


GRAMMARS = [
    json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}).encode(),
    json.dumps({"anyOf": [{"type": "string", "pattern": "^a+$"}, {"enum": [1, None]}]}).encode(),
    b'start: "a" | B\nB: /[0-9]+/\n',
    b"(yes|no)[a-z]{2,5}",
]


def run_grammar(data):
    text = data[:4096].decode(errors="replace")
    if text.startswith("{"):
        grammar = Grammar.json(parse_json(data[:4096], RequestLimits()))
    else:
        grammar = (Grammar.lark if "start" in text else Grammar.regex)(text)
    llm().engine.grammars.compile(grammar).guide()


def template_seeds():
    files = sorted((DATA / "templates").glob("*.jinja"))
    return [CHAT_TEMPLATE.encode(), *(path.read_bytes() for path in files)]


def run_template(data):
    template = ChatTemplate(data.decode(errors="replace"), {"<|end|>": 1})
    template.parts([{"role": "user", "content": "Hello"}], add_generation_prompt=True)


def run_body(data):
    value = parse_json(data, RequestLimits())
    validate(ChatRequest if isinstance(value, dict) and "messages" in value else CompletionRequest, value)


BODIES = [
    json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stop": ["a"], "n": 2}
    ).encode(),
    json.dumps({"model": "m", "prompt": [1, 2, 3], "logit_bias": {"5": -1.5}}).encode(),
]


def files(*names):
    return lambda: [(DATA / name).read_bytes() for name in names]


TARGETS = {
    "gguf": Target(files("tiny/llama.gguf", "tiny/qwen3.gguf"), run_gguf),
    "mmproj": Target(files(*(f"{name}.gguf" for name in ENCODERS)), run_mmproj),
    "tokenizer": Target(tokenizer_seeds, run_tokenizer),
    "safetensors": Target(state_seeds, run_safetensors),
    "state": Target(state_seeds, run_state),
    "onnx": Target(lambda: [next((DATA / "onnx").rglob("*.onnx")).read_bytes()], run_onnx),
    "image": Target(image_seeds, run_image),
    "sound": Target(sound_seeds, run_sound),
    "grammar": Target(lambda: GRAMMARS, run_grammar),
    "template": Target(template_seeds, run_template),
    "body": Target(lambda: BODIES, run_body),
}
