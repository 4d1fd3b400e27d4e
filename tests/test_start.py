"""What a start imports, and Ctrl-C while it does. Times are in benchmarks/start.py."""

import subprocess
import sys

import pytest

from strange_models import llama

# Packages that take long to import, and parts of Stretto that most calls do not need.
HEAVY = {
    "PIL",
    "asyncio",
    "email",
    "fastapi",
    "http.client",
    "huggingface_hub",
    "importlib.metadata",
    "jinja2",
    "llguidance",
    "onnxruntime",
    "prompt_toolkit",
    "pydantic",
    "rich",
    "ssl",
    "stretto.backends.onnx",
    "stretto.parallel",
    "stretto.structured",
    "stretto.tasks",
    "stretto.tools",
    "stretto.vision",
    "stretto.weights.onnx",
    "torch",
    "urllib.request",
}
LIGHT = {"stretto.server", "stretto.server.sockets"}  # how commands ask a server that runs
LOADED = (
    f"import sys; used = sys.modules.keys(); server = {{m for m in used if m.startswith('stretto.server')}}; "
    f"print(sorted({HEAVY} & used | server - {LIGHT}), file=sys.stderr)"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return llama(tmp_path_factory.mktemp("start") / "llama.gguf")


def python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_import_and_load_import_what_they_use(model):
    code = f"import sys, stretto; stretto.load(sys.argv[1]).generate('Once', max_tokens=2); {LOADED}"
    assert python(code, str(model)).stderr == "[]\n"


def test_run_imports_what_it_uses(model):
    code = f"import atexit; from stretto.cli import main; atexit.register(lambda: exec({LOADED!r})); main()"
    raw = python(code, "run", "-m", str(model), "--raw", "-n", "2", "--seed", "1", "Once")
    assert raw.stderr == "[]\n"
    chat = python(code, "run", "-m", str(model), "-n", "2", "--stop", "x", "--temperature", "0.5", "Once")
    assert chat.stderr == "['jinja2']\n"


def test_only_the_command_that_runs_is_imported():
    code = (
        "import sys\nfrom stretto.cli import main\n"
        "try:\n    main(['ps'])\nfinally:\n"
        "    print(sorted(m for m in sys.modules if m in ('stretto.cli.run', 'stretto.cli.tasks')))\n"
    )
    assert python(code).stdout.endswith("\n[]\n")


@pytest.mark.parametrize("given", [None, "26"])
def test_threads_of_numpy_do_not_spin_on_our_cores(given, monkeypatch):
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    if given is not None:
        monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", given)
    code = "import os, stretto; print(os.environ['OPENBLAS_THREAD_TIMEOUT'])"
    assert python(code).stdout == f"{given or 20}\n"


@pytest.mark.parametrize("module", ["typer", "stretto.cli.run", "numpy", "tokenizers"])
def test_ctrl_c_during_an_import_is_one_line(model, module):
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder)\n"
        "from stretto.cli import main\n"
        "main()\n"
    )
    done = python(code, "run", "-m", str(model), "Once")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")
