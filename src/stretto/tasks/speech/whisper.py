"""Whisper: speech to text with times, in many languages, computed by NumPy.

    stretto.load("whisper-base").transcribe("talk.wav").segments

Weights are OpenAI's checkpoint (`.pt`, whose pickle is not run) or CTranslate2's `model.bin`. Text is the
most probable one, by OpenAI's rules of times: https://github.com/openai/whisper (decoding.py).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.audio.mel import FRAMES, HOP, log_mel, log_mels
from stretto.audio.sound import RATE
from stretto.backends.onnx_session import open_session
from stretto.errors import ModelError
from stretto.tasks.model import Source
from stretto.tasks.results import Segment
from stretto.tasks.speech.transcriber import VOICE, Transcriber
from stretto.tasks.speech.voice import Samples
from stretto.text.bpe import ALPHABET
from stretto.weights.torch_file import read_torch

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]

# The transformer: an encoder of what is heard, and a decoder with a KV cache.


def linear(weights: Weights, name: str, x: Floats) -> Floats:
    """A matrix and its bias."""
    made: Floats = x @ weights[f"{name}/weight"].T + weights[f"{name}/bias"]
    return made


def norm(weights: Weights, name: str, x: Floats) -> Floats:
    """A layer norm."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(1e-5))
    made: Floats = centred / scale * weights[f"{name}/gamma"] + weights[f"{name}/beta"]
    return made


def gelu(x: Floats) -> Floats:
    """GELU with an error function that is exact to 2e-7 (Abramowitz and Stegun, 7.1.26)."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    tail = t * np.float32(1.061405429) - np.float32(1.453152027)
    for factor in (1.421413741, -0.284496736, 0.254829592):
        tail = tail * t + np.float32(factor)
    erf = np.copysign(1 - tail * t * np.exp(-z * z), x)
    made: Floats = np.float32(0.5) * x * (1 + erf)
    return made


def convolved(weights: Weights, name: str, x: Floats, step: int) -> Floats:
    """A convolution over three frames and GELU: float32[n, in] → float32[n / step, out]."""
    kernel = weights[f"{name}/weight"]  # float32[out, in, 3]
    padded = np.pad(x, ((1, 1), (0, 0)))
    parts = (padded[i : i + len(x) : step] @ kernel[:, :, i].T for i in range(3))
    return gelu(sum(parts, start=weights[f"{name}/bias"]))


class Transformer:
    """Whisper's layers, with weights by CTranslate2's names; heads have 64 numbers each."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.n_vocab, self.width = weights["decoder/embeddings/weight"].shape
        self.n_mels = weights["encoder/conv1/weight"].shape[1]
        self.n_text = len(weights["decoder/position_encodings/encodings"])
        self._heads = self.width // 64
        self._counts = {side: _count(weights, side) for side in ("encoder", "decoder")}

    def encode(self, mels: Floats) -> Floats:
        """float32[1500, width] of a spectrogram."""
        w = self._weights
        x = convolved(w, "encoder/conv2", convolved(w, "encoder/conv1", mels.T, 1), 2)
        x = x + w["encoder/position_encodings/encodings"][: len(x)]
        for number in range(self._counts["encoder"]):
            name = f"encoder/layer_{number}"
            q, k, v = self._projected(f"{name}/self_attention", x)
            x = x + linear(w, f"{name}/self_attention/linear_1", self._attended(q, k, v))
            x = self._fed_forward(name, x)
        return norm(w, "encoder/layer_norm", x)

    def hear(self, hidden: Floats) -> Decoding:
        """The decoder's state for what is heard."""
        heard = []
        for number in range(self._counts["decoder"]):
            both = linear(self._weights, f"decoder/layer_{number}/attention/linear_1", hidden)
            heard.append(tuple(map(self._split, np.split(both, 2, axis=1))))
        return Decoding(heard, [None] * self._counts["decoder"])

    def decode(self, tokens: list[int], state: Decoding) -> Floats:
        """float32[n_vocab]: the logits behind the last of these tokens."""
        w, start = self._weights, state.n_tokens
        positions = w["decoder/position_encodings/encodings"][start : start + len(tokens)]
        x = w["decoder/embeddings/weight"][tokens] + positions
        for number, heard in enumerate(state.heard):
            name = f"decoder/layer_{number}"
            q, k, v = self._projected(f"{name}/self_attention", x)
            if (before := state.own[number]) is not None:
                k, v = (np.concatenate(pair, axis=1) for pair in zip(before, (k, v), strict=True))
            state.own[number] = (k, v)
            x = x + linear(w, f"{name}/self_attention/linear_1", self._attended(q, k, v, is_causal=True))
            q = self._split(
                linear(w, f"{name}/attention/linear_0", norm(w, f"{name}/attention/layer_norm", x))
            )
            x = x + linear(w, f"{name}/attention/linear_2", self._attended(q, *heard))
            x = self._fed_forward(name, x)
        state.n_tokens += len(tokens)
        made: Floats = norm(w, "decoder/layer_norm", x[-1]) @ w["decoder/embeddings/weight"].T
        return made

    def _projected(self, name: str, x: Floats) -> tuple[Floats, ...]:
        """Queries, keys and values of float32[n, width], by their heads: float32[heads, n, 64] each."""
        made = linear(self._weights, f"{name}/linear_0", norm(self._weights, f"{name}/layer_norm", x))
        return tuple(map(self._split, np.split(made, 3, axis=1)))

    def _split(self, x: Floats) -> Floats:
        return x.reshape(len(x), self._heads, -1).transpose(1, 0, 2)

    def _attended(self, q: Floats, k: Floats, v: Floats, is_causal: bool = False) -> Floats:
        scale = np.float32(1 / q.shape[-1] ** 0.5)
        scores = ((q * scale) @ k.transpose(0, 2, 1)).astype(np.float32, copy=False)
        if is_causal and q.shape[1] > 1:
            later = np.triu(np.ones(scores.shape[1:], bool), k.shape[1] - q.shape[1] + 1)
            scores[:, later] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: Floats = scores @ v
        return mixed.transpose(1, 0, 2).reshape(q.shape[1], -1)

    def _fed_forward(self, name: str, x: Floats) -> Floats:
        w = self._weights
        inner = linear(w, f"{name}/ffn/linear_0", norm(w, f"{name}/ffn/layer_norm", x))
        made: Floats = x + linear(w, f"{name}/ffn/linear_1", gelu(inner))
        return made


@dataclass
class Decoding:
    """K and V of what is heard and of the tokens so far, by layer."""

    heard: list[Any]
    own: list[Any]
    n_tokens: int = 0


def _count(weights: Weights, side: str) -> int:
    return len(
        {name.split("/")[1] for name in weights if name.startswith(f"{side}/layer_") and "/ffn/" in name}
    )


# Files of weights, by CTranslate2's names.


def read_checkpoint(path: Path) -> Weights:
    """OpenAI's checkpoint, with the matrices of queries, keys and values joined."""
    found = {name: value.astype(np.float32) for name, value in read_torch(path).items()}
    made: dict[str, Floats] = {}

    def take(theirs: str, ours: str, *names: str) -> None:
        """Join matrices; keys have no bias."""
        matrices = [found[f"{theirs}.{name}.weight"] for name in names]
        biases = [
            found.get(f"{theirs}.{name}.bias", np.zeros(len(one), np.float32))
            for name, one in zip(names, matrices, strict=True)
        ]
        made[f"{ours}/weight"], made[f"{ours}/bias"] = np.concatenate(matrices), np.concatenate(biases)

    def take_norm(theirs: str, ours: str) -> None:
        made[f"{ours}/gamma"], made[f"{ours}/beta"] = found[f"{theirs}.weight"], found[f"{theirs}.bias"]

    try:
        for side, last in (("encoder", "ln_post"), ("decoder", "ln")):
            made[f"{side}/position_encodings/encodings"] = found[f"{side}.positional_embedding"]
            take_norm(f"{side}.{last}", f"{side}/layer_norm")
            for number in range(
                len({name.split(".")[2] for name in found if name.startswith(f"{side}.blocks.")})
            ):
                theirs, ours = f"{side}.blocks.{number}", f"{side}/layer_{number}"
                take(f"{theirs}.attn", f"{ours}/self_attention/linear_0", "query", "key", "value")
                take(f"{theirs}.attn", f"{ours}/self_attention/linear_1", "out")
                take_norm(f"{theirs}.attn_ln", f"{ours}/self_attention/layer_norm")
                if side == "decoder":
                    for i, names in enumerate((("query",), ("key", "value"), ("out",))):
                        take(f"{theirs}.cross_attn", f"{ours}/attention/linear_{i}", *names)
                    take_norm(f"{theirs}.cross_attn_ln", f"{ours}/attention/layer_norm")
                for i in range(2):
                    take(f"{theirs}.mlp", f"{ours}/ffn/linear_{i}", str(2 * i))
                take_norm(f"{theirs}.mlp_ln", f"{ours}/ffn/layer_norm")
        for i in (1, 2):
            take("encoder", f"encoder/conv{i}", f"conv{i}")
        made["decoder/embeddings/weight"] = found["decoder.token_embedding.weight"]
    except KeyError as error:
        raise ModelError(f"is no checkpoint of Whisper: {error} is missing", path=path) from None
    return made


_KINDS = ("<f4", "<i1", "<i2", "<i4", "<f2")  # by CTranslate2's numbers of data types


def read_ctranslate2(path: Path) -> Weights:
    """The floating-point variables of CTranslate2's `model.bin`, version 6."""
    data, at = path.read_bytes(), 0

    def number(kind: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{kind}", data, at)
        at += struct.calcsize(f"<{kind}")
        return int(value)

    def text() -> str:
        nonlocal at
        size = number("H")
        at += size
        return data[at - size : at].rstrip(b"\0").decode()

    made: dict[str, Floats] = {}
    try:
        version, spec, _ = number("I"), text(), number("I")
        if (version, spec) != (6, "WhisperSpec"):
            raise ModelError(f"is {spec!r:.40} of version {version}, not WhisperSpec of version 6", path=path)
        for _ in range(number("I")):
            name, shape = text(), [number("I") for _ in range(number("B"))]
            kind, size = _KINDS[number("B")], number("I")
            if kind in ("<f4", "<f2"):
                made[name] = np.frombuffer(data[at : at + size], kind).reshape(shape).astype(np.float32)
            at += size
    except (struct.error, ValueError, IndexError) as error:
        raise ModelError(f"is damaged, or no model of CTranslate2: {error}", path=path) from error
    return made


# Tokens: text, times in steps of 20 ms, languages, and what begins an answer.

_SYMBOLS = (  # that nobody says
    '" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- -( -[ (\' (" (( )) '
    "((( ))) [[ ]] {{ }} ♪♪ ♪♪♪ ♩ ♪ ♫ ♬ ♭ ♮ ♯"
)
_STEP_SECONDS = 0.02
_MAX_FIRST_SECONDS = 1.0  # before the first word
_MIN_SILENCE, _MIN_LIKELIHOOD = 0.6, -1.0  # of a window without speech: above the first, not above the second


class Tokens:
    """The vocabulary: GPT-2's for English alone, and a larger one with languages."""

    def __init__(self, vocabulary: Mapping[str, int], added: Mapping[str, int], n_vocab: int) -> None:
        self._bytes = {
            number: bytes(ALPHABET[c] for c in text)
            for text, number in vocabulary.items()
            if all(c in ALPHABET for c in text)
        }
        self.first_time = n_vocab - 1501
        self.languages = {
            text[2:-2]: number
            for text, number in added.items()
            if 4 < len(text) <= 7 and text[2:-2].isalpha()
        }
        self.end = self.first_time - 107
        self.start = self.end + 1
        self.transcribe = self.first_time - 5
        self.no_speech = self.first_time - 2
        numbers = {value: number for number, value in self._bytes.items()}
        symbols = [one.encode() for one in _SYMBOLS.split()] + [b"\xe2\x99", b"\xe2\x99\xaa"]
        spoken = {numbers.get(prefix + one, -1) for one in symbols for prefix in (b"", b" ")}
        # A dash and an apostrophe are parts of words, unless they begin one.
        spoken |= {numbers.get(one, -1) for one in (b" -", b" '")}
        self.suppressed = [*sorted(spoken - {-1}), *range(self.start, self.first_time)]

    def text(self, tokens: list[int]) -> str:
        """The text of tokens; times and others are left out."""
        return b"".join(self._bytes.get(token, b"") for token in tokens if token < self.end).decode(
            "utf-8", "replace"
        )


def allowed(logits: Floats, said: list[int], tokens: Tokens) -> Floats:
    """The logits with what the rules forbid at minus infinity.

    Times come in pairs, never go back, and stand at the beginning; where they are together more probable
    than any text, one of them comes.
    """
    first = tokens.first_time
    logits = logits.copy()
    logits[tokens.suppressed] = -np.inf
    times = [token for token in said if token >= first]
    if said and said[-1] >= first:
        if len(said) < 2 or said[-2] >= first:
            logits[first:] = -np.inf  # a pair is whole, or the first time has come: text
        else:
            logits[: tokens.end] = -np.inf  # the end of a segment: its pair, or the end of all
    if times:
        is_open = len(said) > 1 and said[-1] >= first and said[-2] < first
        logits[first : times[-1] + (not is_open)] = -np.inf
    if not said:
        logits[:first] = -np.inf
        logits[first + round(_MAX_FIRST_SECONDS / _STEP_SECONDS) + 1 :] = -np.inf
        return logits
    highest = logits[:first].max()
    with np.errstate(over="ignore"):
        if np.exp(logits[first:] - highest).sum() > 1:
            logits[:first] = -np.inf
    return logits


@dataclass
class Heard:
    """What is said in a window: tokens, their mean log-probability, and the chance that nobody speaks."""

    language: str
    said: list[int]
    likelihood: float
    silence: float

    @property
    def is_silent(self) -> bool:
        """Whether the window has no speech, by OpenAI's rule: likely silence, and unlikely text."""
        return self.silence > _MIN_SILENCE and self.likelihood <= _MIN_LIKELIHOOD


class Whisper(Transcriber):
    """Writes down speech; `transcribe` is its verb, and `languages` what it knows."""

    max_piece_seconds = 3600  # as a whole; in windows

    def __init__(self, source: Source, model: Transformer, tokens: Tokens, voice: Any) -> None:
        super().__init__(source, voice)
        self._model = model
        self._tokens = tokens
        self.languages = tuple(tokens.languages) or ("en",)

    def _write(self, samples: Samples, language: str | None) -> tuple[str, list[Segment]]:
        heard = self._hear(log_mel(samples, self._model.n_mels), language)
        if heard.is_silent:
            return heard.language, []
        return heard.language, self._cut(heard.said, len(samples) / RATE)

    def _write_whole(self, samples: Samples, language: str | None) -> tuple[str, list[Segment]]:
        """Window after window: each begins where the last whole segment of the one before ended."""
        mels, found, start = log_mels(samples, self._model.n_mels), list[Segment](), 0
        while start < mels.shape[1]:
            window = mels[:, start : start + FRAMES]
            n = window.shape[1]
            heard = self._hear(np.pad(window, ((0, 0), (0, FRAMES - n))), language)
            language = heard.language
            said, step = self._whole_segments(heard.said, n)
            if not heard.is_silent:
                seconds = start * HOP / RATE
                for one in self._cut(said, n * HOP / RATE):
                    found.append(Segment(seconds + one.start, seconds + one.end, one.text))
            start += n if heard.is_silent else step
        return language or "en", found

    def _whole_segments(self, said: list[int], n: int) -> tuple[list[int], int]:
        """The tokens of a window's whole segments, and how many of its n frames they take."""
        first = self._tokens.first_time
        pairs = [i for i in range(1, len(said)) if said[i - 1] >= first and said[i] >= first]
        ends_alone = len(said) > 1 and said[-1] >= first and said[-2] < first
        if not pairs or ends_alone:  # one segment, or nothing is said behind the last
            return said, n
        last = said[pairs[-1] - 1] - first
        return said[: pairs[-1]], max(1, round(last * _STEP_SECONDS * RATE / HOP))

    def _hear(self, mels: Floats, language: str | None) -> Heard:
        """What is said in a window float32[mels, 3000], greedily."""
        model, tokens = self._model, self._tokens
        prompt, state = [tokens.start], model.hear(model.encode(mels))
        logits = model.decode(prompt, state)
        silence = float(np.exp(_log_softmax(logits)[tokens.no_speech]))
        if numbers := list(tokens.languages.values()):
            language = language or self.languages[int(logits[numbers].argmax())]
            logits = model.decode([tokens.languages[language], tokens.transcribe], state)
        said, total = list[int](), 0.0
        while len(said) < model.n_text // 2:
            chances = _log_softmax(allowed(logits, said, tokens))
            token = int(chances.argmax())
            total += float(chances[token])
            if token == tokens.end:
                break
            said.append(token)
            logits = model.decode([token], state)
        return Heard(language or "en", said, total / (len(said) + 1), silence)

    def _cut(self, said: list[int], seconds: float) -> list[Segment]:
        """The segments between pairs of times; the last may have no end."""
        found, start, text = [], 0.0, list[int]()
        for token in [*said, self._tokens.first_time + round(seconds / _STEP_SECONDS)]:
            if token < self._tokens.first_time:
                text.append(token)
                continue
            time = min(seconds, (token - self._tokens.first_time) * _STEP_SECONDS)
            if spoken := self._tokens.text(text).strip():
                found.append(Segment(start, max(start, time), spoken))
            start, text = time, []
        return found


def _log_softmax(logits: Floats) -> Floats:
    highest = logits.max()
    made: Floats = logits - highest - np.log(np.exp(logits - highest).sum())
    return made


def read_tokens(path: Path, n_vocab: int) -> Tokens:
    """The vocabulary in `tokenizer.json`, or in GPT-2's `encoder.json`."""
    read = json.loads(path.read_bytes())
    if "added_tokens" not in read:
        return Tokens(read, {}, n_vocab)
    added = {one["content"]: one["id"] for one in read["added_tokens"]}
    return Tokens(read["model"]["vocab"], added, n_vocab)


def open_task(source: Source, device: str, threads: int | None) -> Whisper:
    """Open a bundle: a checkpoint or `model.bin`, a vocabulary, and the model of voices."""
    files = source.files
    checkpoint = next((path for name, path in files.items() if name.endswith(".pt")), None)
    weights = read_ctranslate2(files["model.bin"]) if checkpoint is None else read_checkpoint(checkpoint)
    model = Transformer(weights)
    vocabulary = files["tokenizer.json" if "tokenizer.json" in files else "encoder.json"]
    return Whisper(
        source, model, read_tokens(vocabulary, model.n_vocab), open_session(files[VOICE], "cpu", 1)
    )
