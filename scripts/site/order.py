"""The navigation of the site: four parts by what the reader wants, and the order of pages within each."""

from pathlib import Path
from typing import Any

API = (
    *("load", "llm", "sequences", "results", "structured", "hooks", "drafts", "parallel", "images", "tools"),
    *("tasks", "testing", "evaluation", "quantize", "export", "hardware"),
)
PARTS: dict[str, tuple[str, ...]] = {
    "Tutorials": (
        "tutorials/first-five-minutes.md",
        "tutorials/chat-application.md",
        "tutorials/structured-extraction.md",
        "tutorials/branching-and-cache.md",
        "tutorials/images.md",
        "tutorials/serving.md",
    ),
    "How-to guides": (
        "how-to/choose-a-model.md",
        "how-to/tune-cpu.md",
        "how-to/tune-gpu.md",
        "how-to/limit-memory.md",
        "how-to/structured.md",
        "how-to/tools.md",
        "how-to/write-a-hook.md",
        "how-to/custom-sampler.md",
        "how-to/several-users.md",
        "how-to/deploy.md",
        "deploy.md",
        "how-to/test-without-a-model.md",
    ),
    "Reference": (
        "reference/options.md",
        "reference/combinations.md",
        "reference/api/index.md",
        *(f"reference/api/{name}.md" for name in API),
        "reference/errors.md",
        "reference/commands.md",
        "reference/cli.md",
        "reference/terminal.md",
        "reference/endpoints.md",
        "reference/server.md",
        "reference/page.md",
        "reference/configuration.md",
        "reference/supported.md",
        "reference/models.md",
    ),
    "Explanation": (
        "explanation/architecture.md",
        "explanation/cache.md",
        "explanation/engine.md",
        "explanation/step.md",
        "explanation/drafts.md",
        "explanation/parallel.md",
        "explanation/parallel-tokens.md",
        "explanation/vision.md",
        "explanation/precision.md",
        "explanation/kernels.md",
        "explanation/threads.md",
        "explanation/routing.md",
        "explanation/security.md",
        "explanation/decisions.md",
        "comparison.md",
    ),
}
FOLDERS = {
    "Tutorials": "tutorials",
    "How-to guides": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
}
SECTIONS = {"how-to/tasks": "Other types of models", "reference/api": "Python names"}


def navigation(docs: Path) -> list[Any]:
    """The navigation as MkDocs takes it: pages of each part in order, then others by name."""
    nav: list[Any] = [{"Home": "index.md"}]
    for part in PARTS:
        nav.append({part: _grouped(_ordered(docs, part))})
    if (docs / "glossary.md").is_file():
        nav.append({"Terms": "glossary.md"})
    return nav


def page_list(docs: Path, part: str) -> str:
    """The pages of a part as a list of links, for the page that lists them all."""
    return "\n".join(f"- [{_title(docs / path)}]({path})" for path in _paths(docs, part))


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as lines:
        return next(line.removeprefix("# ").strip() for line in lines if line.startswith("# "))


def _paths(docs: Path, part: str) -> list[str]:
    """The pages of a part in order, without those within sections."""
    return [
        path for path in _ordered(docs, part) if not path.startswith(tuple(f"{one}/" for one in SECTIONS))
    ]


def _ordered(docs: Path, part: str) -> list[str]:
    order = PARTS[part]
    there = [path.relative_to(docs).as_posix() for path in sorted((docs / FOLDERS[part]).rglob("*.md"))]
    there += [path for path in order if "/" not in path and (docs / path).is_file()]
    first = [path for path in order if path in there]
    return [*first, *(path for path in there if path not in first)]


def _grouped(paths: list[str]) -> list[Any]:
    """Pages, those of a folder within a part under one heading."""
    groups: dict[str, list[Any]] = {}
    entries: list[Any] = []
    for path in paths:
        section = next((name for name in SECTIONS if path.startswith(f"{name}/")), None)
        if section is None:
            entries.append(path)
        elif section in groups:
            groups[section].append(path)
        else:
            groups[section] = [path]
            entries.append({SECTIONS[section]: groups[section]})
    return entries
