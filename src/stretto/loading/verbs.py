"""The verbs that a model may have; those it lacks say which ones it has.

llm = stretto.load("smollm2")
llm.verbs                        # ('generate', 'stream', 'chat', 'score', 'embed', 'parallel')
llm.detect("street.jpg")         # Unsupported: smollm2 cannot detect; it can generate, stream, …
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from stretto.errors import InvalidRequest, Unsupported
from stretto.options.names import METHODS, no_attribute

Self = TypeVar("Self", bound="Verbs")


class Verbs:
    """A base of all models. `verbs` are those of this one; each of the others raises `Unsupported`.

    A model is closed by `close`, or at the end of a `with`.
    """

    verbs: tuple[str, ...] = ()

    def generate(self, *args: Any, **options: Any) -> Any:
        """Continue a prompt."""
        self._lacks("generate")

    def stream(self, *args: Any, **options: Any) -> Any:
        """Continue a prompt, token by token."""
        self._lacks("stream")

    def chat(self, *args: Any, **options: Any) -> Any:
        """Answer a conversation."""
        self._lacks("chat")

    def score(self, *args: Any, **options: Any) -> Any:
        """Say how probable a text is."""
        self._lacks("score")

    def embed(self, *args: Any, **options: Any) -> Any:
        """Turn texts into vectors."""
        self._lacks("embed")

    def rerank(self, *args: Any, **options: Any) -> Any:
        """Sort documents by how well they answer a query."""
        self._lacks("rerank")

    def classify(self, *args: Any, **options: Any) -> Any:
        """Give texts, images or files their labels."""
        self._lacks("classify")

    def detect(self, *args: Any, **options: Any) -> Any:
        """Find objects in images."""
        self._lacks("detect")

    def segment(self, *args: Any, **options: Any) -> Any:
        """Tell an image's foreground from its background."""
        self._lacks("segment")

    def read(self, *args: Any, **options: Any) -> Any:
        """Read the text in images."""
        self._lacks("read")

    def transcribe(self, *args: Any, **options: Any) -> Any:
        """Transcribe speech."""
        self._lacks("transcribe")

    if not TYPE_CHECKING:  # or every name would pass a type checker

        def __getattr__(self, name: str) -> Any:
            if name in METHODS:
                raise no_attribute(f"{type(self).__name__!r} object", name, METHODS)
            return object.__getattribute__(self, name)  # raises Python's own error

        def __call__(self, *args: Any, **options: Any) -> NoReturn:
            """Name the methods: models of other libraries are called."""
            raise InvalidRequest(f"a model is no function; call one of its methods: {', '.join(self.verbs)}")

    def close(self) -> None:
        """Release what the model holds; it cannot be used afterwards."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lacks(self, verb: str) -> NoReturn:
        name = getattr(self, "name", "") or f"this {type(self).__name__}"
        raise Unsupported(f"{name} cannot {verb}; it can {', '.join(self.verbs)}")
