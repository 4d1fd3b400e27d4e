"""For tests, ours and yours: a model that follows a script.

    llm = mock_llm("Hello world")
    assert llm.generate("Say it", temperature=0).text == "Hello world"

`MockBackend` takes a script instead of weights; `byte_tokenizer` makes a token of every byte, so that ids can
be read off a text. Cells, batches, sampling and stopping are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.backends.base import Batch, Capabilities, FusedRun, NoSlots
from stretto.engine import Limits
from stretto.errors import InvalidRequest, Unsupported
from stretto.llm import LLM
from stretto.models.spec import Attention, Dense, ModelSpec, Norm, Rope, plain_layer
from stretto.text.bpe import ALPHABET, BPETokenizer
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.weights.metadata import LENGTH, Metadata, Strings, Value, ValueType

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Script = Sequence[int] | Callable[[list[int]], int | ArrayLike]

START, END = "<|start|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
FINGERPRINT = "mock"
HIGH = 20.0  # the logit of a scripted token; the others have 0


class MockBackend(NoSlots):
    """A backend whose logits follow a script.

    The script is a list of token ids, generated in order whatever the prompt, or a function that gets the
    tokens a row attends to and returns the next token or a row of logits. `batches` records the tokens of
    every forward pass.

    >>> MockBackend([1, 2, 3], n_vocab=10).spec.n_vocab
    10
    """

    name = "mock"
    precision = "exact"
    capabilities = Capabilities(hidden=False)
    cell_bytes = 4
    cell_layout = "mock token"
    active_threads = 1

    def __init__(self, script: Script, n_vocab: int, n_cells: int = 1024, context_length: int = 1024) -> None:
        mixer = Attention(n_head=1, n_kv_head=1, head_size=2, scale=1.0, rope=Rope((1.0,), "halves"))
        self.spec = ModelSpec(
            architecture="mock",
            n_vocab=n_vocab,
            n_embd=2,
            context_length=context_length,
            layers=(plain_layer(mixer, Dense(2), 1e-5),),
            output_norm=Norm("output_norm", 1e-5),
        )
        self.n_cells = n_cells
        self.script = script
        self.batches: list[list[int]] = []
        self.tokens = np.full(n_cells, -1, np.int32)  # in each cell

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab], as the script says."""
        placement = batch.placement
        if placement is None:
            raise InvalidRequest("the batch has no cells yet; call batch.place(cells) first")
        self.batches.append(batch.tokens.tolist())
        self.tokens[placement.cells] = batch.tokens
        rows = np.zeros((len(batch.wanted), self.spec.n_vocab), np.float32)
        for row, index in zip(rows, batch.wanted, strict=True):
            view = placement.views[placement.view_of[index]][: placement.lengths[index]]
            output = self._next(self.tokens[view].tolist())
            if isinstance(output, (int, np.integer)):
                row[output] = HIGH
            else:
                row[:] = output
        return rows

    def _next(self, tokens: list[int]) -> int | ArrayLike:
        if callable(self.script):
            return self.script(tokens)
        return self.script[_n_said(tokens, self.script)]

    def hidden(self, batch: Batch) -> Floats:
        """A script has no hidden states."""
        self.capabilities.require("hidden", self.name)
        raise AssertionError  # the line above has raised

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """Only the native backend has a loop of its own."""
        raise Unsupported(f"the {self.name} backend has no fused loop; backend='native' has")

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy the tokens of cells."""
        self.tokens[target] = self.tokens[source]

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Nothing to rotate: a token is the same at every position."""

    def read_cells(self, cells: Ints) -> Bytes:
        """uint8[n, 4]: the tokens in the cells."""
        return self.tokens[cells].view(np.uint8).reshape(len(cells), self.cell_bytes)

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """Fill `cells` with the bytes from `read_cells`."""
        self.tokens[cells] = np.ascontiguousarray(data).view(np.int32).reshape(len(cells))

    def close(self) -> None:
        """Nothing to free."""


def byte_tokenizer(specials: Sequence[str] = (START, END)) -> Tokenizer:
    """A tokenizer whose token n is byte n; control tokens follow from 256 on. `<|end|>` ends a text.

    >>> byte_tokenizer().encode("AB")
    [65, 66]
    """
    tokens = [*ALPHABET, *specials]
    types = np.array([1] * 256 + [3] * len(specials), np.int32)
    packed = b"".join(LENGTH.pack(len(token.encode())) + token.encode() for token in tokens)
    values: dict[str, Value] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": Strings(memoryview(packed), 0, len(tokens), "byte tokenizer"),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": Strings(memoryview(b""), 0, 0, "byte tokenizer"),
    }
    if END in specials:
        values["tokenizer.ggml.eos_token_id"] = tokens.index(END)
    kinds = {int: ValueType.UINT32, str: ValueType.STRING}
    types_of = {key: kinds.get(type(value), ValueType.ARRAY) for key, value in values.items()}
    return BPETokenizer(Metadata(values, types_of, "byte tokenizer"))


def answers_script(answers: Mapping[str, str], tokenizer: Tokenizer) -> Script:
    """A script that answers by what is asked: with the value of the first key that the prompt contains.

    In a chat the key is looked for in the last message. A key "" fits everything.
    """
    start = tokenizer.encode(START, special=True)[0]

    def script(tokens: list[int]) -> int:
        marks = [i for i, token in enumerate(tokens) if token == start]
        asked = tokenizer.decode(tokens[marks[-2] : marks[-1]] if len(marks) > 1 else tokens)
        answer = next((answer for word, answer in answers.items() if word in asked), None)
        if answer is None:
            raise InvalidRequest(f'no answer of the mock fits {asked[-100:]!r}; one for "" fits everything')
        ids = [*tokenizer.encode(answer), tokenizer.eos_id or 0]
        return ids[_n_said(tokens, ids)]

    return script


def _n_said(tokens: list[int], script: Sequence[int]) -> int:
    """How many tokens of a script have been said: the longest prefix of it that the tokens end with."""
    said = list(script)
    return next(n for n in range(len(said) - 1, -1, -1) if tokens[len(tokens) - n :] == said[:n])


def mock_llm(
    script: str | Mapping[str, str] | Script,
    *,
    cells: int = 1024,
    context_length: int = 1024,
    prefix_cache: bool = True,
    limits: Limits | None = None,
) -> LLM:
    """An `LLM` on a `MockBackend` with a byte tokenizer; a text as script is generated, then the end token.

    A mapping of words to texts answers by what the prompt, or the last message of a chat, contains.

    >>> mock_llm("Hi").generate("?", temperature=0).text
    'Hi'
    >>> mock_llm({"time": "Noon.", "": "Hm?"}).generate("What time is it?", temperature=0).text
    'Noon.'
    """
    tokenizer = byte_tokenizer()
    if isinstance(script, Mapping):
        script = answers_script(script, tokenizer)
    elif isinstance(script, str):
        script = [*tokenizer.encode(script), tokenizer.eos_id or 0]
    backend = MockBackend(script, tokenizer.n_vocab, cells, context_length)
    template = ChatTemplate(CHAT_TEMPLATE, tokenizer.specials)
    return LLM(
        backend,
        tokenizer,
        template,
        fingerprint=lambda: FINGERPRINT,
        prefix_cache=prefix_cache,
        limits=limits,
    )
