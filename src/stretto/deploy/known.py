"""The tokenizers of the models that replicas report, loaded beside the router.

Only the head of a model's file is read. Where a router's machine does not have the file, texts stand for
tokens (`stretto.deploy.asks`), and the router says so once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from stretto.deploy.prompts import TextModel

MAX_MODELS = 64

log = logging.getLogger("stretto.deploy")


class KnownModels:
    """Tokenizers by the names of models; loading is done by a thread, and requests do not wait for it."""

    def __init__(self, opener: Callable[[str], TextModel] = TextModel.open) -> None:
        self._open = opener
        self._files: dict[str, tuple[str, int]] = {}  # path and size, of all that were tried
        self._models: dict[str, TextModel] = {}
        self.is_salted = False  # API keys share no prefixes

    def reported(self, report: object) -> None:
        """Take the models that a report names."""
        facts = report if isinstance(report, Mapping) else {}
        self.is_salted = facts.get("salted") is True
        models = facts.get("models")
        for name, file in (models if isinstance(models, Mapping) else {}).items():
            if (
                _is_file(name, file)
                and self._files.get(name) != tuple(file)
                and len(self._files) < MAX_MODELS
            ):
                self._files[name] = (file[0], file[1])
                threading.Thread(target=self._load, args=(name, file[0]), daemon=True).start()

    def ready(self) -> Mapping[str, TextModel]:
        """Those that are loaded."""
        return self._models

    def _load(self, name: str, path: str) -> None:
        try:
            self._models = {**self._models, name: self._open(path)}
        except Exception as error:
            log.warning("requests for %s are routed by their text, not by tokens: %s", name, error)


# Of all deployments that this process routes to. Reached through this module: Ray may pickle the router's by
# value, and then its classes have globals of their own.
MODELS = KnownModels()


def _is_file(name: object, file: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(file, (tuple, list))
        and len(file) == 2
        and isinstance(file[0], str)
        and isinstance(file[1], int)
        and Path(file[0]).is_absolute()
    )
