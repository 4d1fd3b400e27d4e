"""The navigation of the site: four parts by what the reader wants, and the groups of pages within each."""

from pathlib import Path
from typing import Any

from titles import title

API = (
    *("load", "llm", "sequences", "results", "structured", "sites", "hooks", "drafts", "parallel", "images"),
    *("tools", "tasks", "testing", "evaluation", "quantize", "export", "hardware"),
)
# The pages of a part in groups, as the sidebar and the first page show them; "" has no heading.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "Tutorials": {
        "": (
            "tutorials/first-five-minutes.md",
            "tutorials/chat-application.md",
            "tutorials/structured-extraction.md",
            "tutorials/branching-and-cache.md",
            "tutorials/which-layer.md",
            "tutorials/images.md",
            "tutorials/serving.md",
        ),
    },
    "How-to guides": {
        "Models": (
            "how-to/choose-a-model.md",
            "how-to/quantize.md",
            "how-to/adapters.md",
            "how-to/export.md",
            "how-to/add-an-architecture.md",
        ),
        "Speed and memory": (
            "how-to/tune-cpu.md",
            "how-to/speculative.md",
            "how-to/tune-gpu.md",
            "how-to/limit-memory.md",
            "how-to/bench.md",
            "how-to/compare.md",
        ),
        "Control the text": (
            "how-to/structured.md",
            "how-to/tools.md",
            "how-to/write-a-hook.md",
            "how-to/custom-sampler.md",
            "how-to/steering.md",
            "how-to/inside.md",
            "how-to/rollouts.md",
        ),
        "Serve and deploy": (
            "how-to/several-users.md",
            "how-to/search-over-http.md",
            "how-to/deploy.md",
            "how-to/replicas.md",
            "how-to/size-replicas.md",
            "how-to/integrations.md",
            "how-to/claude-code.md",
            "how-to/codex.md",
            "how-to/opencode.md",
            "how-to/aider.md",
        ),
        "Test and evaluate": (
            "how-to/test-without-a-model.md",
            "how-to/evaluation.md",
        ),
        "Other types of models": (
            "how-to/tasks.md",
            "how-to/tasks/embed.md",
            "how-to/tasks/static-embeddings.md",
            "how-to/tasks/classify-files.md",
            "how-to/tasks/classify.md",
            "how-to/tasks/detect.md",
            "how-to/tasks/segment.md",
            "how-to/tasks/read.md",
            "how-to/tasks/transcribe.md",
            "how-to/tasks/recipes.md",
        ),
        "Migrate": (
            "how-to/migrate-from-llama-cpp-python.md",
            "how-to/migrate-from-transformers.md",
            "how-to/migrate-from-ollama.md",
            "how-to/migrate-from-vllm.md",
        ),
    },
    "Reference": {
        "Python": (
            "reference/options.md",
            "reference/combinations.md",
            "reference/grammars.md",
            "reference/control.md",
            "reference/parallel.md",
            "reference/chat.md",
            "reference/tools.md",
            "reference/images.md",
            "reference/sounds.md",
            "reference/sequences.md",
            "reference/metrics.md",
            "reference/errors.md",
        ),
        "Python names": ("reference/api/index.md", *(f"reference/api/{name}.md" for name in API)),
        "Command line": (
            "reference/commands.md",
            "reference/cli.md",
            "reference/terminal.md",
            "reference/configuration.md",
        ),
        "Server": (
            "reference/endpoints.md",
            "reference/server.md",
            "reference/server-sequences.md",
            "reference/page.md",
            "reference/replicas.md",
        ),
        "Models and files": (
            "reference/supported.md",
            "reference/models.md",
            "reference/folders.md",
            "reference/onnx.md",
            "reference/export.md",
            "reference/mixes.md",
            "reference/recipes.md",
            "reference/tokenizers.md",
        ),
        "Machines": (
            "reference/devices.md",
            "reference/bench.md",
            "reference/cuda.md",
            "reference/wheels.md",
        ),
    },
    "Explanation": {
        "How it works": (
            "explanation/architecture.md",
            "explanation/cache.md",
            "explanation/engine.md",
            "explanation/server.md",
            "explanation/page.md",
            "explanation/step.md",
            "explanation/drafts.md",
            "explanation/vision.md",
        ),
        "Parallel tokens": (
            "explanation/parallel.md",
            "explanation/parallel-tokens.md",
        ),
        "Numbers and machines": (
            "explanation/precision.md",
            "explanation/kernels.md",
            "explanation/threads.md",
            "explanation/gpu.md",
            "explanation/routing.md",
            "explanation/replica-routing.md",
        ),
        "The project": (
            "explanation/decisions.md",
            "explanation/security.md",
            "comparison.md",
        ),
    },
}
FOLDERS = {
    "Tutorials": "tutorials",
    "How-to guides": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
}


def navigation(docs: Path) -> list[Any]:
    """The navigation as MkDocs takes it: the groups of each part, then pages that are in none."""
    nav: list[Any] = [{"Home": "index.md"}]
    for part in PARTS:
        entries: list[Any] = []
        for heading, paths in _groups(docs, part).items():
            entries += [{heading: paths}] if heading else paths
        nav.append({part: entries})
    if (docs / "glossary.md").is_file():
        nav.append({"Terms": "glossary.md"})
    return nav


def page_list(docs: Path, part: str) -> str:
    """The pages of a part as lists of links, one for each group, for the page that lists them all."""
    lists = []
    for heading, paths in _groups(docs, part).items():
        head = f"**{heading}**\n\n" if heading else ""
        lists.append(head + "\n".join(f"- [{title(docs / path)}]({path})" for path in _listed(paths)))
    return "\n\n".join(lists)


def _listed(paths: list[str]) -> list[str]:
    """The pages of a group that the first page lists: those of names only by the page that lists them."""
    return [path for path in paths if not path.startswith("reference/api/") or path.endswith("/index.md")]


def _groups(docs: Path, part: str) -> dict[str, list[str]]:
    """The pages of a part that are there, by group; pages in no group come last, without a heading."""
    groups = {
        heading: [path for path in paths if (docs / path).is_file()] for heading, paths in PARTS[part].items()
    }
    named = {path for paths in groups.values() for path in paths}
    there = [path.relative_to(docs).as_posix() for path in sorted((docs / FOLDERS[part]).rglob("*.md"))]
    rest = [path for path in there if path not in named]
    return {**groups, "": [*groups.get("", []), *rest]} if rest else groups
