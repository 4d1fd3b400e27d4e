"""Tables of public names in docs/reference/api: the files list what the site describes in full."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from reference.markdown import plain, table

TARGET = re.compile(r"^::: (stretto[\w.]*)$", re.MULTILINE)
BLOCK = re.compile(r"\n<!-- names -->.*?<!-- /names -->\n", re.DOTALL)


def with_names(page: str) -> str:
    """A page of names with its table, before the first object that mkdocstrings describes."""
    bare = BLOCK.sub("", page)
    first = TARGET.search(bare)
    if first is None:
        return page
    rows = [row for target in TARGET.findall(bare) for row in names_of(target)]
    block = f"<!-- names -->\n\n{table(('name', 'what it is'), rows)}\n\n<!-- /names -->\n\n"
    return bare[: first.start()].rstrip("\n") + "\n\n" + block + bare[first.start() :]


def names_of(target: str) -> Iterator[tuple[str, str]]:
    """Rows for an object and its public members; of a module the members only."""
    found = resolve(target)
    if isinstance(found, ModuleType):
        for name in public(found):
            yield f"`{target}.{name}`", summary(getattr(found, name))
        return
    yield f"`{target}`", summary(found)
    if inspect.isclass(found):
        for name, member in members(found).items():
            if not name.startswith("_") and is_described(member):
                yield f"`{found.__name__}.{name}`", summary(member)


def resolve(target: str) -> Any:
    """The object of a dotted name: a module, or an attribute of one."""
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError:
        module, _, name = target.rpartition(".")
        return getattr(importlib.import_module(module), name)


def members(found: type) -> dict[str, Any]:
    """The attributes of a class and of those that it inherits from in this package."""
    bases = [base for base in found.__mro__ if base.__module__.startswith("stretto")]
    return {name: member for base in reversed(bases) for name, member in vars(base).items()}


def public(module: ModuleType) -> list[str]:
    """The names that a module offers: its `__all__`, or the classes and functions that it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return [
        name
        for name, member in vars(module).items()
        if not name.startswith("_") and getattr(member, "__module__", None) == module.__name__
    ]


def is_described(member: Any) -> bool:
    """Whether a member of a class is a method or property with a docstring."""
    routine = isinstance(member, staticmethod | classmethod | property) or inspect.isroutine(member)
    return routine and bool(inspect.getdoc(member))


def summary(member: Any) -> str:
    """The first sentence of a docstring."""
    if not (
        inspect.isroutine(member) or inspect.isclass(member) or isinstance(member, property | ModuleType)
    ):
        member = getattr(member, "__func__", None) if isinstance(member, staticmethod | classmethod) else None
    paragraph = (inspect.getdoc(member) or "").split("\n\n")[0] if member is not None else ""
    sentence = re.split(r"(?<=[.!?])\s", " ".join(paragraph.split()))[0]
    return plain(sentence)


def pages(folder: Path) -> dict[Path, str]:
    """The pages of names with their tables as they should be."""
    return {page: with_names(page.read_text("utf-8")) for page in sorted(folder.glob("*.md"))}
