"""Names that Ollama's clients give to models: served models, and models made from them (`/api/create`).

A made model is a name with a system message, parameters, a template and messages of its own, on a model that
is served. It is a small file of JSON in the model store; no weights are copied.
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stretto.server.errors import ApiError
from stretto.server.registry import Registry
from stretto.server.served_model import ServedModel
from stretto.weights.hub.store import Store

TAG = ":latest"
MAX_MADE = 256
MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?")


@dataclass(frozen=True)
class Made:
    """A model that was made from another."""

    name: str
    base: str
    system: str = ""
    template: str = ""
    license: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)


class MadeModels:
    """The made models of a store, read when they are first needed. Thread-safe."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._made: dict[str, Made] | None = None
        self._lock = threading.Lock()

    def all(self) -> dict[str, Made]:
        """The made models by name."""
        with self._lock:
            if self._made is None:
                self._made = _read_all(self._folder())
            return dict(self._made)

    def add(self, made: Made) -> None:
        """Keep a model; one of the same name is replaced."""
        text = self.check(made)
        with self._lock:
            folder = self._folder()
            folder.mkdir(parents=True, exist_ok=True)
            path = _path(folder, made.name)
            staged = path.with_suffix(".new")
            staged.write_text(text, "utf-8")
            staged.replace(path)
            self._made = {**(self._made or {}), made.name: made}

    def check(self, made: Made) -> str:
        """The text of a model's file; raises for a model that cannot be kept."""
        check_name(made.name)
        text = json.dumps(asdict(made))
        known = self.all()
        if len(text) > MAX_BYTES:
            message = f"the model's texts have {len(text):,} bytes as JSON; at most {MAX_BYTES:,} are kept"
            raise ApiError(400, message, param="model", code="over_limit")
        if len(known) >= MAX_MADE and made.name not in known:
            message = f"{MAX_MADE} models have been made already; delete one with /api/delete"
            raise ApiError(400, message, param="model", code="over_limit")
        return text

    def remove(self, name: str) -> bool:
        """Forget a model; False if there is none of that name."""
        if name not in self.all():
            return False
        with self._lock:
            _path(self._folder(), name).unlink(missing_ok=True)
            self._made = {key: made for key, made in (self._made or {}).items() if key != name}
        return True

    def resolve(self, name: str, registry: Registry) -> tuple[ServedModel, Made]:
        """The served model behind a name, and what is to be added to requests for it."""
        name = plain(name)
        made = self.all().get(name)
        if made is None:
            served = registry.find(name)
            return served, Made(name, name)
        return registry.find(made.base), made

    def _folder(self) -> Path:
        if self._home is None:
            self._home = Store.default().home
        return self._home / "made"


def check_name(name: str) -> None:
    """Raise for a name that no model can be given."""
    if not _NAME.fullmatch(name):
        raise ApiError(
            400, f"{name[:100]!r} is no name for a model: letters, digits, . _ - and a tag", param="model"
        )


def plain(model: str) -> str:
    """A model's name without the tag that Ollama's clients append."""
    return model.removesuffix(TAG)


def tagged(name: str) -> str:
    """A model's name as Ollama's clients show it."""
    return name if ":" in name else name + TAG


def rebased(made: Made, name: str, base: Made) -> Made:
    """A model made from one that was made itself: what it does not say comes from that."""
    return replace(
        made,
        name=name,
        base=base.base,
        system=made.system or base.system,
        template=made.template or base.template,
        license=made.license or base.license,
        parameters={**base.parameters, **made.parameters},
        messages=made.messages or base.messages,
    )


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(':', '%3A')}.json"


def _read_all(folder: Path) -> dict[str, Made]:
    found: dict[str, Made] = {}
    paths = sorted(folder.glob("*.json"))[:MAX_MADE] if folder.is_dir() else []
    for path in paths:
        with suppress(OSError, ValueError, TypeError):  # a damaged one is none
            if path.stat().st_size <= MAX_BYTES:
                made = Made(**json.loads(path.read_text("utf-8")))
                if isinstance(made.name, str) and _path(folder, made.name) == path:
                    found[made.name] = made
    return found
