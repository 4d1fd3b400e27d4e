"""`EngineModel`: what models that run in the engine have in common."""

from __future__ import annotations

from stretto.backends.base import Backend
from stretto.engine import Engine
from stretto.engine.metrics import History, Metrics
from stretto.engine.worker import Worker
from stretto.loading.verbs import Verbs
from stretto.models import ModelSpec
from stretto.text.tokenizer import Tokenizer


class EngineModel(Verbs):
    """A model with an engine, and a worker that steps it for asynchronous callers."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._worker = Worker(engine)
        self.tokenizer = tokenizer

    @property
    def engine(self) -> Engine:
        """The engine that runs the model's requests, for programs that step it or look inside."""
        return self._engine

    @property
    def spec(self) -> ModelSpec:
        """The model's shape."""
        return self._engine.runner.spec

    @property
    def backend(self) -> Backend:
        """The backend that runs the model."""
        return self._engine.backend

    @property
    def metrics(self) -> Metrics:
        """Counters and times of the engine (stretto docs metrics)."""
        metrics = self._engine.metrics
        metrics.threads = self.backend.active_threads if metrics.width.n else 0
        if (slots := self._engine.runner.slots) is not None:
            metrics.slots, metrics.slots_used = slots.n_slots, slots.n_used
            metrics.slot_bytes = self.backend.slot_bytes
        return metrics

    @property
    def history(self) -> History:
        """The counters of the last minutes, by the second."""
        return self._engine.runner.history

    @property
    def context_length(self) -> int:
        """How many tokens a text can have: the model's limit, or the cells if they are fewer."""
        return self._engine.runner.context_length

    def close(self) -> None:
        """Cancel what runs and free everything."""
        self._worker.close(wait=not self._engine.is_stepping_here)
        self._engine.close()

    def __repr__(self) -> str:
        kind, spec = type(self).__name__, self.spec
        closed = ", closed" if self._engine.runner.closed else ""
        return f"<{kind} {spec.architecture}, {spec.n_layer} layers, backend {self.backend.name!r}{closed}>"
