"""Where `stretto run` takes model and prompt from, what constrains its answer, and answers that are empty."""

import json
import os
import re
import subprocess
import sys

import pytest

from stretto.cli import prompts
from stretto.cli.generation import Answer
from stretto.cli.prompts import model_and_prompt, names_model
from stretto.cli.run import MAX_FILE_BYTES, constraint, text_or_file
from stretto.drafts import DraftModel
from stretto.errors import InvalidRequest
from stretto.testing import mock_llm
from tiny_models import FOLDER

STRETTO = [sys.executable, "-c", "from stretto.cli import main; main()"]


@pytest.fixture
def asked(cli):
    """The model that `stretto run` loads, and the prompt it gets, as it is."""

    def call(*arguments, **options):
        llm = mock_llm("ok")
        code, _, errors = cli("run", "--raw", *arguments, llm=llm, **options)
        if code:
            return errors
        prompt = llm.tokenizer.decode(llm.backend.batches[0], special=True)
        return cli.loaded[0][0], prompt

    return call


# -- model or prompt --


@pytest.mark.parametrize(
    ("words", "model", "expected"),
    [
        ([], None, (None, None)),
        (["Hello"], None, (None, "Hello")),
        (["What is smollm2?"], None, (None, "What is smollm2?")),
        (["smollm2"], None, ("smollm2", None)),
        (["smollm2"], "gemma3-270m", ("gemma3-270m", "smollm2")),
        (["smollm2", "smollm2"], None, ("smollm2", "smollm2")),
        (["hf:org/repo/file.gguf"], None, ("hf:org/repo/file.gguf", None)),
        (["either/or"], None, (None, "either/or")),
        (["missing.gguf"], None, ("missing.gguf", None)),
        (["Why is it missing.gguf"], None, (None, "Why is it missing.gguf")),
        (["./here.gguf", "Hi"], None, ("./here.gguf", "Hi")),
        (["nul\0"], None, (None, "nul\0")),
        (["x/" * 5000], None, (None, "x/" * 5000)),
    ],
)
def test_one_argument_is_the_prompt_unless_it_names_a_model_and_two_are_both(words, model, expected):
    assert model_and_prompt(words, model) == expected


def test_files_and_folders_of_models_are_models(tmp_path):
    assert names_model(str(FOLDER / "qwen35.gguf"))
    assert not names_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert names_model(str(tmp_path))


def test_a_prompt_without_quotes_is_explained():
    with pytest.raises(InvalidRequest, match="put all of it in quotes"):
        model_and_prompt(["Hello", "there"], None)
    with pytest.raises(InvalidRequest, match="3 arguments; a prompt of several words needs quotes"):
        model_and_prompt(["What", "is", "this?"], None)


def test_a_model_before_the_prompt(asked, tmp_path):
    path = tmp_path / "mine.gguf"
    path.touch()
    assert asked(path, "Hi") == (str(path), "Hi")
    assert asked(path, stdin=b"from a pipe\n") == (str(path), "from a pipe")


# -- stdin --


def test_stdin_joins_the_prompt_and_stands_before_it(asked):
    where = ("-m", "mock.gguf")
    assert asked(*where, "Summarise", stdin=b"Some notes.\n") == ("mock.gguf", "Some notes.\n\nSummarise")
    assert asked(*where, "Summarise", stdin=b"\n") == ("mock.gguf", "Summarise")
    assert asked(*where, "-", stdin=b"Notes\n") == ("mock.gguf", "Notes")
    assert "not UTF-8" in asked(*where, "Summarise", stdin=b"\xff")


def test_a_closed_stdin_is_no_prompt(asked, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert prompts.join_prompt("Hi") == "Hi"
    assert prompts.prompt_text(None) == ""


def test_a_pipe_that_says_nothing_is_mentioned(monkeypatch, capsys):
    reading, writing = os.pipe()
    monkeypatch.setattr(prompts, "STDIN_PATIENCE_SECONDS", 0.01)
    # silent for a while, then it ends
    monkeypatch.setattr(prompts.select, "select", lambda *args: (os.close(writing), ([], [], []))[1])
    with os.fdopen(reading) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        assert prompts.join_prompt("Hi") == "Hi"
    assert "waiting for stdin to end" in capsys.readouterr().err


def test_a_file_on_stdin_of_a_real_process(tmp_path):
    model = FOLDER / "llama.gguf"
    code = (
        "import sys, stretto\n"
        "from stretto.testing import mock_llm\n"
        "from stretto.cli import main\n"
        "llm = mock_llm('ok'); stretto.load = lambda model, **options: llm\n"
        "try:\n    main()\n"
        "finally:\n    print(llm.tokenizer.decode(llm.backend.batches[0], special=True))\n"
    )
    (tmp_path / "notes.txt").write_text("Three notes.\n")
    with (tmp_path / "notes.txt").open() as notes:
        done = subprocess.run(
            [sys.executable, "-c", code, "run", "--raw", str(model), "Summarise"],
            stdin=notes,
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stdout) == (0, "ok\nThree notes.\n\nSummarise\n"), done.stderr


# -- a terminal --


@pytest.mark.golden
def test_in_a_terminal_a_prompt_is_typed_or_given(smollm2_path):
    pexpect = pytest.importorskip("pexpect")
    from terminals import finish

    options = ["run", str(smollm2_path), "--temperature", "0", "-n", "24"]
    child = pexpect.spawn(STRETTO[0], [*STRETTO[1:], *options], encoding="utf-8", timeout=120)
    child.expect("Type the prompt; Ctrl-D on a line of its own ends it.")
    child.sendline("What is 2+2?")
    child.sendeof()
    child.expect(r"\b4\b")
    child.expect(r"[\d.]+ tok/s")
    child.expect(pexpect.EOF)
    assert finish(child) == 0
    given = [*options, "What is two plus two?", "--no-stats"]
    child = pexpect.spawn(STRETTO[0], [*STRETTO[1:], *given], encoding="utf-8", timeout=120)
    child.expect(pexpect.EOF)
    assert re.search(r"\w", child.before)
    assert "tok/s" not in child.before


# -- constraints and other options --


def test_constraints_from_text_and_from_files(tmp_path):
    assert constraint(None, None, None, None) is None
    assert constraint('{"type": "integer"}', None, None, None).kind == "json"
    (tmp_path / "answer.lark").write_text('start: "yes" | "no"')
    assert constraint(None, f"@{tmp_path / 'answer.lark'}", None, None).text == 'start: "yes" | "no"'
    assert constraint(None, None, None, ["a", "b"]).kind == "choices"


def test_files_of_constraints_are_bounded_text(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match=r"--schema: .* is not UTF-8"):
        text_or_file("--schema", f"@{path}")
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidRequest, match="more than"):
        text_or_file("--schema", f"@{path}")


def free_choice():
    """A model to which all tokens are alike."""
    return mock_llm(lambda seen: [0.0] * 258)


def test_the_answer_keeps_to_its_constraint(cli):
    where = ("run", "-m", "mock.gguf", "Hi")
    output = cli(*where, "--choice", "yes", "--choice", "no", llm=free_choice())[1]
    assert output in ("yes\n", "no\n")
    output = cli(*where, "--schema", '{"enum": [12]}', llm=free_choice())[1]
    assert json.loads(output) == 12
    assert cli(*where, "--grammar", 'start: "ab"', llm=free_choice())[1] == "ab\n"
    assert cli(*where, "--regex", "[x]{3}", llm=free_choice())[1] == "xxx\n"


def test_penalties_reach_the_request(cli, monkeypatch):
    llm, seen = mock_llm("ok"), {}
    real = llm.stream
    monkeypatch.setattr(
        llm, "stream", lambda prompt, **options: seen.update(options) or real(prompt, **options)
    )
    names = ("repetition", "presence", "frequency")
    given = [word for i, name in enumerate(names) for word in (f"--{name}-penalty", 1 + i / 10)]
    assert cli("run", "-m", "mock.gguf", "Hi", *given, llm=llm)[0] == 0
    assert [seen[f"{name}_penalty"] for name in names] == [1.0, 1.1, 1.2]


def test_drafts_by_lookup_and_by_a_model(cli, monkeypatch):
    seen = []
    models = {"mock.gguf": mock_llm("abcabcabc"), "small.gguf": mock_llm("abcabcabc")}
    real = models["mock.gguf"].stream

    def stream(prompt, **options):
        seen.append(options.get("draft"))
        return real(prompt, **options)

    monkeypatch.setattr(models["mock.gguf"], "stream", stream)

    def run(*draft):
        return cli("run", "-m", "mock.gguf", "Hi", *draft, llm=models["mock.gguf"])

    assert run("--draft", "lookup")[:2] == (0, "abcabcabc\n")
    models["mock.gguf"] = mock_llm("abcabcabc")
    real = models["mock.gguf"].stream
    monkeypatch.setattr(models["mock.gguf"], "stream", stream)
    assert run("--draft", "small.gguf")[1] == "abcabcabc\n"
    assert seen[0] == "lookup"
    assert isinstance(seen[1], DraftModel)


# -- nothing --


def test_an_answer_of_no_tokens_says_so(cli):
    code, output, errors = cli("run", "-m", "mock.gguf", "Hi", llm=mock_llm(""))
    assert (code, output) == (0, "")
    assert errors.startswith("the model ended its answer at once")
    assert errors.count("\n") == 1


def test_why_there_is_no_answer():
    assert Answer("text", 1, 0.1, 1.0, "stop").nothing is None
    assert "before the timeout" in Answer("", 0, 0.0, 0.0, "timeout").nothing
    assert "only reasoned, 7 tokens" in Answer("", 7, 0.1, 1.0, "length", reasoning="hm").nothing
