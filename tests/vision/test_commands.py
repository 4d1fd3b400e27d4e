"""Images on the command line: `stretto run --image`, and `/image` in a chat."""

import PIL.Image
import pytest

import stretto.llm
from stretto.cli import main
from stretto.cli.chat import Chat
from stretto.cli.conversation import Conversation
from tiny_vision import picture, seeing_llm

SETTINGS = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cat.png"
    PIL.Image.fromarray(picture(0).pixels).save(path)
    return path


@pytest.fixture
def loaded(monkeypatch):
    """Commands load a model that sees, whatever they ask for; what they ask for is noted."""
    asked = []

    def load(model, **options):
        asked.append(options)
        return seeing_llm("mlp")

    monkeypatch.setattr(stretto.llm, "load", load)
    return asked


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--model", "m.gguf", "--temperature", "0", "-n", "4", *map(str, arguments)])
    return ended.value.code


def answer(*parts):
    with seeing_llm("mlp") as llm:
        return llm.generate(parts, temperature=0, max_tokens=4).text


def test_run(loaded, file, capsys):
    assert run("--vision", "mm.gguf", "--image", file, "--image", file, "AB") == 0
    assert capsys.readouterr().out.rstrip("\n") == answer(picture(0), picture(0), "AB").rstrip("\n")
    assert loaded[0]["vision"] == "mm.gguf"


def test_run_chat(loaded, file, capsys):
    assert run("--vision", "mm.gguf", "--chat", "--image", file, "AB") == 0
    with seeing_llm("mlp") as llm:
        wanted = llm.chat([{"role": "user", "content": [picture(0), "AB"]}], temperature=0, max_tokens=4)
    assert capsys.readouterr().out.rstrip("\n") == wanted.text.rstrip("\n")


def test_run_without_vision_or_file(loaded, file, capsys):
    assert run("--image", file, "AB") != 0
    assert "--vision" in capsys.readouterr().err
    assert run("--image", "nowhere.png", "--vision", "mm.gguf", "AB") != 0
    assert "nowhere.png" in capsys.readouterr().err
    assert not loaded


def test_chat(file, capsys):
    with seeing_llm("mlp") as llm:
        chat = Chat(llm, "m", Conversation(), SETTINGS, stats=False)
        assert chat.take(f"/image {file}")
        assert "40 × 40" in capsys.readouterr().err
        assert chat.take("AB")
        first = chat.conversation.turns[0]["content"]
        assert [type(part).__name__ for part in first] == ["Image", "str"]
        assert chat.take("CD")  # the image stays in the conversation, and is not shown again
        assert chat.conversation.turns[2]["content"] == "CD"
        assert llm.vision.n_encoded == 1
        capsys.readouterr()
        assert chat.take("/save x.json")
        assert "images cannot be saved" in capsys.readouterr().err
        assert chat.take("/image")
        assert "needs the name" in capsys.readouterr().err
        llm.vision = None
        assert chat.take(f"/image {file}")
        assert "--vision" in capsys.readouterr().err
