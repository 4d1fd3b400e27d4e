"""Real client packages against the server: each does its main job, as tests/clients/use_*.py says.

    python scripts/check_clients.py                       # all of them
    python scripts/check_clients.py litellm instructor    # some

Packages that cannot share an environment with the tests are installed into build/clients, by uv. The server
has a real model, and one by script that uses tools as agents expect (tests/clients/scripted.py).
"""

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "clients"
PYTHON = FOLDER / "bin" / "python"
HERE = ("openai", "ollama", "anthropic", "llm")  # in the environment of the tests, which have them
PACKAGES = {
    "litellm": ["litellm", "mcp"],  # it imports that for calls of tools, without asking for it
    "instructor": ["instructor"],
    "langchain-openai": ["langchain-openai"],
    "langchain-ollama": ["langchain-ollama"],
    "llama-index": ["llama-index-llms-openai-like"],
    "pydantic-ai": ["pydantic-ai-slim[openai,anthropic]", "anthropic<1"],  # it knows no later ones
    "dspy": ["dspy"],
    "smolagents": ["smolagents[openai]"],
    "openai-agents": ["openai-agents"],
    "lm-eval": ["lm-eval[api]", "transformers"],
}
SECONDS = 300  # that a client may take

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "clients")]


def install(names):
    """Install what these clients need; what is there already takes a moment."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    uv = FOLDER / "bin" / "uv"
    if not uv.exists():
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "uv"], check=True)
    wanted = [package for name in names for package in PACKAGES[name]]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", PYTHON, *wanted], check=True)


def opener(entry):
    """The models of the server."""
    from scripted import scripted_llm

    import stretto

    return scripted_llm() if entry.name == "agent" else stretto.load(entry.source, cells=4096)


def write_tokenizer():
    """Write the real model's tokenizer as files that transformers reads; returns their folder."""
    from stretto.export.folder import tokenizer_config, tokenizer_json
    from stretto.text.loading import load_tokenizer
    from stretto.weights import hub
    from stretto.weights.gguf import GGUF

    folder = FOLDER / "tokenizer"
    folder.mkdir(exist_ok=True)
    with GGUF(hub.resolve("smollm2")) as file:
        tokenizer = load_tokenizer(file.metadata)
        files = {
            "tokenizer.json": tokenizer_json(file.metadata, tokenizer),
            "tokenizer_config.json": tokenizer_config(tokenizer, 2048, ""),
        }
    for name, document in files.items():
        (folder / name).write_text(json.dumps(document))
    return folder


def check(name, url):
    """Run a client; returns whether it did its job."""
    begun = time.monotonic()
    if name in HERE:
        command = [sys.executable, "-m", "pytest", "--quiet", "tests/server/test_clients.py", "-k", name]
    else:
        command = [PYTHON, f"tests/clients/use_{name.replace('-', '_')}.py", url]
        command += [write_tokenizer()] if name == "lm-eval" else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    ending = "ok" if done.returncode == 0 else "FAILED"
    print(f"{name:18} {ending:8}{time.monotonic() - begun:6.1f} s", flush=True)
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-4000:], sep="\n", flush=True)
    return done.returncode == 0


def main():
    names = sys.argv[1:] or [*HERE, *PACKAGES]
    if unknown := [name for name in names if name not in HERE and name not in PACKAGES]:
        sys.exit(f"no such client: {', '.join(unknown)}; there are {', '.join([*HERE, *PACKAGES])}")
    if others := [name for name in names if name in PACKAGES]:
        install(others)
    from serving import TINY, serving
    from stretto.weights import hub

    models = (f"agent={TINY}", f"smollm2={hub.resolve('smollm2')}")
    with serving(opener, models=models) as server:
        failed = [name for name in names if not check(name, server.url)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
