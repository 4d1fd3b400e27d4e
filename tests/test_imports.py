"""Dependencies point one way: which part of the package may import which, and no cycle of modules."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

from import_graph import find_cycle, import_graph

PACKAGE = Path(__file__).parent.parent / "src" / "stretto"

# What each part may use beside itself; all of them may use those in `EVERYONE`.
ALLOWED = {
    "audio": set(),
    "errors": set(),
    "options": set(),
    "options.keywords": {
        "drafts",
        "engine.inside",
        "engine.types",
        "parallel.types",
        "structured",
        "tools.check",
    },
    "weights": set(),
    "text": {"weights"},
    "models": {"weights"},
    "cache": {"weights.files", "weights.safetensors"},
    "sampling": set(),
    "hooks": {"sampling"},
    "drafts": {"cache.radix", "sampling.params", "sampling.transforms", "text"},
    "vision": {"audio", "cache.items", "models", "text", "weights"},
    "backends": {"cache", "hardware.gpus", "hooks", "models", "sampling", "weights"},
    "export": {"models", "text", "weights"},
    "quantize": {"backends.matrices", "backends.native", "hardware", "models", "text", "weights"},
    "structured": {"text"},
    "engine": {
        "backends.base",
        "cache",
        "drafts",
        "hardware.limits",
        "hooks",
        "models.sites",
        "sampling",
        "structured",
        "text",
        "weights.mapped",
        "weights.safetensors",
    },
    "inside": {"probing"},
    "probing": {"backends.base", "engine", "llm", "models.spec", "weights.safetensors"},
    "parallel": {"backends.base", "engine", "sampling", "structured", "text"},
    "loading": {
        "backends",
        "cache",
        "hardware",
        "models",
        "quantize",
        "sampling.params",
        "text",
        "vision",
        "weights",
    },
    "loading.load": {"engine", "llm", "loading", "tasks", "text", "vision"},
    "loading.verbs": set(),
    "llm": {
        "backends.base",
        "cache",
        "engine",
        "models",
        "parallel",
        "loading.choose",  # a model's route
        "loading.verbs",
        "sampling",
        "structured",
        "text",
        "tasks.results",
        "tools",
        "vision",
        "weights",
    },
    "tools": {"engine", "structured", "text"},
    "tasks": {"audio", "backends.onnx_session", "loading.verbs", "text", "vision", "weights"},
    "hardware": {"weights"},
    "hardware.fork_safety": set(),
    "hardware.kernel_sets": set(),
    "testing": {"*"},
    "bench": {
        "backends.base",
        "engine.track",
        "hardware",
        "llm",
        "loading",
        "models",
        "sampling",
        "text",
        "weights",
    },
    "evaluation": {"backends.base", "llm", "text", "weights"},
    "server.sockets": set(),
    "server": {
        "Audio",
        "Capture",
        "Grammar",
        "Image",
        "Limits",
        "Result",
        "Token",
        "audio",
        "engine.combinations",
        "engine.metrics",
        "engine.limits",  # whose requests are made
        "engine.params",  # checks the operator's defaults
        "engine.request",  # how far a call is
        "engine.sequence",  # edits that are begun before they are made
        "engine.table",  # what a page shows of an engine
        "engine.types",
        "hardware",
        "hooks",
        "probing",
        "llm",
        "load",
        "models",
        "parallel",
        "loading",
        "quantize",  # of /api/create
        "tasks",
        "text",
        "tools",
        "vision.apart",  # decodes images
        "vision.image",
        "weights",
    },
    "deploy": {"engine", "hardware", "llm", "server", "text", "tools", "weights"},
    "cli": {
        "DraftModel",
        "Grammar",
        "audio",
        "bench",
        "deploy",
        "load",
        "evaluation",
        "export",
        "hardware",
        "llm",
        "loading",
        "models",
        "quantize",
        "server",
        "tasks",
        "text",
        "vision",
        "weights",
    },
    "__init__": {"*"},
    "__main__": {"cli"},
}
# Below `server/`: the protocols, and what knows none of them. `app` and `aliases` mount them.
PROTOCOLS = {"anthropic", "cohere", "llama_cpp", "ollama", "openai", "own"}
NEUTRAL = {"generation", "http"}
EVERYONE = {"errors", "hardware.fork_safety", "hardware.kernel_sets", "options", "_native"}


def part_of(path):
    """The module if it has an entry of its own, else its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts) if ".".join(parts) in ALLOWED else parts[0]


def is_module(base, name):
    """Whether `from base import name` imports a module, or a name of the package, and not one of a module."""
    folder = PACKAGE.parent.joinpath(*base.split("."))
    return base == "stretto" or any((folder / file).exists() for file in (f"{name}.py", name))


def imported(path):
    """(line, module) for each import of one of our own modules, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            base = node.module or ""
            names = [f"{base}.{one.name}" if is_module(base, one.name) else base for one in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "stretto" and len(parts) > 1 and parts[1] != "__version__":
                yield node.lineno, ".".join(parts[1:])


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    part = part_of(path)
    assert part in ALLOWED, f"{part} is new: say in this test what it may import"
    allowed = ALLOWED[part] | EVERYONE | {part}

    def fine(module):
        return any(module == name or module.startswith(f"{name}.") for name in allowed)

    if "*" not in allowed:
        wrong = [
            f"line {line}: {part} must not import {name}" for line, name in imported(path) if not fine(name)
        ]
        assert wrong == []


def test_no_protocol_of_the_server_imports_another():
    server = PACKAGE / "server"
    for path in [path for path in FILES if path.is_relative_to(server)]:
        room = path.relative_to(server).with_suffix("").parts[0]
        foreign = PROTOCOLS - {room} if room in PROTOCOLS | NEUTRAL else set()
        found = {name.split(".")[1]: line for line, name in imported(path) if name.startswith("server.")}
        assert not foreign & found.keys(), f"{path}: a protocol is imported in line {found}"


def test_the_check_sees_imports(tmp_path):
    sample = tmp_path / "sample.py"
    sample.write_text(
        "import stretto.cli\ndef f():\n    from stretto import weights\n    from stretto.text.bpe import x\n"
    )
    assert [name for _, name in imported(sample)] == ["cli", "weights", "text.bpe"]


def test_no_module_imports_itself_by_way_of_others():
    cycle = find_cycle(import_graph(PACKAGE))
    assert cycle is None, f"these modules import each other: {' -> '.join(cycle)}"


def test_the_check_finds_cycles(tmp_path):
    package = tmp_path / "sample"
    (package / "part").mkdir(parents=True)
    files = {
        "__init__.py": "if TYPE_CHECKING:\n    from sample.part.a import A\n",
        "alone.py": "import ast\nfrom sample import A, __version__\n",
        "part/__init__.py": "",
        "part/a.py": "from sample.part import b\n",
        "part/b.py": "if TYPE_CHECKING:\n    from sample.part.c import C\n",
        "part/c.py": "",
    }
    for name, text in files.items():
        (package / name).write_text(text)
    assert import_graph(package) == {
        "sample.alone": {"sample.part.a"},
        "sample.part": set(),
        "sample.part.a": {"sample.part.b"},
        "sample.part.b": {"sample.part.c"},
        "sample.part.c": set(),
    }
    assert find_cycle(import_graph(package)) is None
    (package / "part/c.py").write_text("def f():\n    from sample import A\n")
    graph = import_graph(package)
    cycle = find_cycle(graph)
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {"sample.part.a", "sample.part.b", "sample.part.c"}
    assert all(imported in graph[module] for module, imported in pairwise(cycle))
