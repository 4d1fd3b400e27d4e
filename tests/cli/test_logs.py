"""Conversations that are kept: `run -c`, `chat -c`, `stretto logs`."""

import json
import os
import stat

import PIL.Image
import pytest

from stretto.cli import config_file, logs
from stretto.testing import mock_llm
from stretto.vision import Image


def echo():
    """A model that answers with its whole prompt, in capitals."""

    def script(seen):
        turns = []
        for token in seen:
            turns.append([]) if token == 256 else turns[-1].append(token)
        asked = "|".join(bytes(one for one in turn if one < 256).decode() for turn in turns[:-1])
        wanted = asked.replace("\n", " ").upper().encode()
        said = len(turns[-1]) - len("assistant\n")
        return 257 if said >= len(wanted) else wanted[said]

    return mock_llm(script)


def test_run_goes_on_with_the_last_conversation(cli):
    assert cli("run", "-m", "mock.gguf", "--system", "Be nice", "One")[0] == 0
    code, out, _ = cli("run", "-c", "Two", llm=mock_llm("Second"))
    assert (code, out) == (0, "Second\n")
    assert cli.loaded[0][0] == "mock.gguf"
    one = logs.last()
    assert [(message["role"], message["content"]) for message in one.messages] == [
        ("system", "Be nice"),
        ("user", "One"),
        ("assistant", "Hello there"),
        ("user", "Two"),
        ("assistant", "Second"),
    ]
    assert len(list(logs.conversations())) == 1


def test_the_model_is_asked_the_whole_conversation(cli):
    assert cli("run", "-m", "mock.gguf", "One")[0] == 0
    code, out, _ = cli("run", "-c", "-m", "other.gguf", "--system", "New", "Two", llm=echo())
    assert code == 0
    for word in ("NEW", "ONE", "HELLO THERE", "TWO"):
        assert word in out
    assert logs.last().model == "other.gguf"


def test_chat_keeps_its_turns_and_goes_on(cli):
    assert cli("chat", "-m", "mock.gguf", stdin=b"One\nTwo\n")[0] == 0
    assert logs.last().n_turns == 2
    assert cli("chat", "-c", stdin=b"Three\n/reset\nFour\n")[0] == 0
    assert cli.loaded[0][0] == "mock.gguf"
    assert [one.n_turns for one in logs.conversations()] == [1, 3]
    assert cli("run", "-c", "Five")[0] == 0
    assert (logs.last().n_turns, logs.last().command) == (2, "chat")
    code, _, err = cli("chat", "-c", "--load", "x.json")
    assert code == 2
    assert "--continue and --load" in err


def test_nothing_is_kept_of_raw_texts_or_when_it_is_off(cli):
    assert cli("run", "-m", "mock.gguf", "--raw", "Once")[0] == 0
    config_file.set_value("logs", "off")
    assert cli("run", "-m", "mock.gguf", "One")[0] == 0
    assert cli("chat", "-m", "mock.gguf", stdin=b"One\n")[0] == 0
    assert not logs.folder().exists()
    code, _, err = cli("run", "-c", "One")
    assert code == 2
    assert "stretto config set logs on" in err


def test_files_are_private(cli):
    assert cli("run", "-m", "mock.gguf", "One", "--json")[0] == 0
    (path,) = logs.folder().iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_logs_lists_shows_and_clears(cli):
    for text in ("First\nquestion", "Second"):
        assert cli("run", "-m", "mock.gguf", text)[0] == 0
    code, out, _ = cli("logs")
    assert code == 0
    assert out.index("Second") < out.index("First question")
    assert "First" not in cli("logs", "-n", "1")[1]
    first, second = reversed(json.loads(cli("logs", "--json")[1]))
    assert (first["messages"][0]["content"], second["model"]) == ("First\nquestion", "mock.gguf")
    code, out, _ = cli("logs", "show", first["id"])
    assert (code, out) == (0, "> First\n> question\n\nHello there\n\n")
    assert cli("logs", "show")[1].startswith("> Second")
    assert json.loads(cli("logs", "show", second["id"], "--json")[1]) == second
    assert "there is no conversation 'x'" in cli("logs", "show", "x")[2]
    assert cli("logs", "clear") == (0, "removed 2 conversations\n", "")
    assert "no conversations yet" in cli("logs")[2]


def test_old_ones_make_room(monkeypatch):
    monkeypatch.setattr(logs, "MOST", 3)
    for n in range(5):
        logs.Keeper("run").keep([{"role": "user", "content": str(n)}], "m")
        os.utime(logs.kept_files()[0], ns=(n, n))  # so that they differ
    assert [one.title for one in logs.conversations()] == ["4", "3", "2"]
    monkeypatch.setattr(logs, "MOST_BYTES", 1)
    logs.Keeper("run").keep([{"role": "user", "content": "last"}], "m")
    assert [one.title for one in logs.conversations()] == ["last"]


def test_files_that_others_remove_meanwhile_are_no_error(monkeypatch, capsys):
    logs.Keeper("run").keep([{"role": "user", "content": "One"}], "m")
    files = [*logs.kept_files(), logs.folder() / "gone.json"]
    monkeypatch.setattr(logs, "kept_files", lambda: files)
    logs.Keeper("run").keep([{"role": "user", "content": "Two"}], "m")
    assert "not kept" not in capsys.readouterr().err


def test_a_conversation_that_cannot_be_kept_stops_nothing(cli, monkeypatch, store_home):
    monkeypatch.setattr(logs, "LARGEST_BYTES", 100)
    code, out, err = cli("run", "-m", "mock.gguf", "One")
    assert (code, out) == (0, "Hello there\n")
    assert "this conversation is not kept: it has" in err
    store_home.mkdir(exist_ok=True)
    logs.folder().rmdir() if logs.folder().exists() else None
    logs.folder().write_text("in the way")
    code, out, err = cli("run", "-m", "mock.gguf", "One")
    assert (code, out) == (0, "Hello there\n")
    assert "this conversation is not kept" in err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"messages": [3]}',
        '{"messages": [], "command": 1}',
        '{"messages": []}',
        '{"messages": [], "command": "run", "model": "m", "begun": 1, "changed": 1e999}',
        '{"messages": [], "command": "run", "model": "m", "begun": 1, "changed": 1e30}',
        '{"messages": [], "command": "run", "model": "m", "begun": NaN, "changed": 1}',
        "[" * 100_000,
    ],
)
def test_damaged_files_are_left_out(cli, text):
    assert cli("run", "-m", "mock.gguf", "One")[0] == 0
    bad = logs.folder() / "29990101-000000-bad0.json"
    bad.write_text(text)
    (logs.folder() / "link.json").symlink_to("/etc/passwd")
    assert logs.last().title == "One"
    assert cli("logs")[0] == 0
    assert "cannot be read" in cli("logs", "show", bad.stem)[2]


def test_images_are_kept_as_marks():
    image = Image.open(PIL.Image.new("RGB", (4, 3)))
    logs.Keeper("chat").keep([{"role": "user", "content": [image, " What is it? "]}], "m")
    assert logs.last().messages[0]["content"] == "[image 4 × 3]\nWhat is it?"


def test_a_path_is_kept_so_that_it_holds_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gguf").touch()
    logs.Keeper("run").keep([{"role": "user", "content": "Hi"}], "mine.gguf")
    assert logs.last().model == str(tmp_path / "mine.gguf")
