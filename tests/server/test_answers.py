"""The one interface by which protocols write answers."""

import importlib
from pathlib import Path

import stretto.server
from stretto.server.generation.answer import Answer

SERVER = Path(stretto.server.__file__).parent
PROTOCOLS = ("anthropic", "llama_cpp", "ollama", "openai", "own")


def subclasses(kind):
    return {kind, *(inner for one in kind.__subclasses__() for inner in subclasses(one))}


def test_every_protocol_writes_its_answers_by_the_one_interface():
    for name in PROTOCOLS:
        for path in (SERVER / name).glob("[a-z]*.py"):
            importlib.import_module(f"stretto.server.{name}.{path.stem}")
    modules = [one.__module__ for one in subclasses(Answer) - {Answer}]
    assert {module.split(".")[2] for module in modules if module.startswith("stretto.")} == set(PROTOCOLS)


def test_protocols_leave_reading_texts_to_it():
    for name in PROTOCOLS:
        for path in (SERVER / name).glob("*.py"):
            text = path.read_text()
            assert "prompt_steps(" not in text, path
            assert "astream_many" not in text, path
            assert "Streamed(" not in text or name == "own", path  # steps of parallel runs are no texts
