"""Images on the command line: `stretto run --image`, and `/image` in a chat."""

import sys

import PIL.Image
import pytest

import stretto
from stretto.cli import main
from stretto.cli.chat import take
from stretto.cli.chatting.conversation import Conversation, load_chat
from stretto.cli.chatting.session import Chat, find_images
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

    monkeypatch.setattr(stretto, "load", load)
    monkeypatch.setattr(sys, "stdin", None)
    return asked


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--model", "m.gguf", "--temperature", "0", "-n", "4", *map(str, arguments)])
    return ended.value.code


def answer(*parts):
    with seeing_llm("mlp") as llm:
        return llm.generate(parts, temperature=0, max_tokens=4).text


def test_run(loaded, file, capsys):
    assert run("--vision", "mm.gguf", "--raw", "--image", file, "--image", file, "AB") == 0
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


def parts(turn):
    return [type(part).__name__ for part in turn.question]


def test_chat(file, capsys, tmp_path):
    with seeing_llm("mlp") as llm:
        chat = Chat(llm, "m", Conversation(), SETTINGS)
        assert take(chat, f"/image {file}")
        assert "40 × 40" in capsys.readouterr().err
        assert take(chat, "AB")
        assert parts(chat.conversation.turns[1]) == ["Image", "str"]
        assert take(chat, "CD")  # the image stays in the conversation, and is not shown again
        assert chat.conversation.turns[2].question == "CD"
        assert llm.vision.n_encoded == 1
        capsys.readouterr()
        assert take(chat, f"/save {tmp_path}/x.json")
        saved = load_chat(tmp_path / "x.json")
        first, second = saved.turns[1].question
        assert (first.pixels == picture(0).pixels).all()
        assert second == "AB"
        assert take(chat, "/image")
        assert "needs the name" in capsys.readouterr().err
        llm.vision = None
        assert take(chat, f"/image {file}")
        assert "--vision" in capsys.readouterr().err


def test_paths_of_images_anywhere_in_a_line(file, capsys, monkeypatch):
    monkeypatch.chdir(file.parent)
    with seeing_llm("mlp") as llm:
        chat = Chat(llm, "m", Conversation(), SETTINGS)
        assert take(chat, f"{file} and 'cat.png': alike?")
        assert parts(chat.conversation.turns[1]) == ["Image", "str", "Image", "str"]
        assert take(chat, "/edit")
        assert (chat.draft, len(chat.images)) == ("and : alike?", 2)
        llm.vision = None
        chat.images = []
        assert take(chat, "See cat.png")
        assert "sees no images" in capsys.readouterr().err
        assert chat.conversation.last().question == "See cat.png"


def test_which_words_are_images(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spaced = tmp_path / "a cat.png"
    spaced.write_bytes(file.read_bytes())
    for line, found in {
        "What is in cat.png?": ["cat.png"],
        "(cat.png) ./cat.png, ok": ["cat.png", "./cat.png"],
        "a\\ cat.png": ["a\\ cat.png"],
        '"a cat.png" cat.png': ['"a cat.png"', "cat.png"],
        "no.png, cat.txt, a\0.png, it's cat": [],
    }.items():
        assert [line[start:end] for start, end, _ in find_images(line)] == found
