"""`stretto doctor` and `stretto score`; and that every verb has its command."""

import json
from dataclasses import replace

import pytest

from found_machine import FOUND
from stretto import hardware
from stretto.cli import app, main
from stretto.cli import doctor as tuning
from stretto.cli.doctor import broken_folders, checks
from stretto.loading.verbs import Verbs
from stretto.testing import mock_llm
from stretto.weights.hub import Store


@pytest.fixture
def machine(monkeypatch):
    """A machine with nothing wrong, whatever this one is like."""
    fine = replace(FOUND, cores_usable=32, cpu_quota=None, kernels="avx512", gpus=())
    monkeypatch.setattr(hardware, "probe", lambda **options: fine)
    monkeypatch.setattr(tuning, "huge_pages", lambda: "madvise")
    monkeypatch.setattr(tuning, "governor", lambda: None)
    monkeypatch.setattr(tuning, "busy_processors", lambda: 0.1)
    return fine


@pytest.fixture
def doctor(capsys, machine):
    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


def found(machine, name):
    """The first check of that name."""
    return next(check for check in checks(machine, Store.default()) if check.name == name)


def test_a_machine_with_nothing_wrong(doctor):
    code, output, errors = doctor()
    assert (code, errors) == (0, "")
    for name in ("compiler", "processor", "threads", "huge pages", "memory", "gpu", "extra cuda", "models"):
        assert name in output
    assert "broken" not in output


def test_json_has_every_check(doctor):
    code, output, _ = doctor("--json")
    document = json.loads(output)
    assert (code, document["ok"]) == (0, True)
    assert {check["name"] for check in document["checks"]} >= {"stretto", "bandwidth", "extra onnx"}
    assert all(check.keys() == {"name", "state", "found", "advice"} for check in document["checks"])


def test_advice_on_a_build_of_another_machine(machine, monkeypatch):
    monkeypatch.setattr("stretto.cli.doctor.available", lambda: ("portable",))
    monkeypatch.setattr("stretto.cli.doctor.left_out", lambda: ("avx2",))
    slow = replace(machine, kernels="portable", kernel_sets=("portable",))
    assert "lacks avx2: `make clean chat`" in found(slow, "processor").advice
    monkeypatch.setattr("stretto.cli.doctor.available", lambda: ("avx512", "portable"))
    assert found(machine, "processor").advice == ""  # avx512 is as good as it gets here


def test_advice_on_speed(machine, monkeypatch):
    assert found(replace(machine, kernels="avx2"), "processor").advice.startswith("unset STRETTO_KERNELS")
    slow = replace(machine, kernels="portable", kernel_sets=("portable",))
    assert "AVX2 or NEON" in found(slow, "processor").advice
    assert (
        "a quota of 1.5 processors"
        in found(replace(machine, cores_usable=1, cpu_quota=1.5), "threads").advice
    )
    assert "--kv q8" in found(replace(machine, memory_free=10**8), "memory").advice
    assert found(replace(machine, memory_free=None), "memory").found == "not known"
    assert found(machine, "bandwidth").found.startswith("20.5 GB/s: at most")
    monkeypatch.setattr(tuning, "huge_pages", lambda: "never")
    monkeypatch.setattr(tuning, "governor", lambda: "powersave")
    monkeypatch.setattr(tuning, "busy_processors", lambda: 40.0)
    assert "echo madvise" in found(machine, "huge pages").advice
    assert "performance" in found(machine, "frequency").advice
    assert "other processes" in found(machine, "load").advice


def test_settings_of_the_system(tmp_path):
    assert tuning.huge_pages(tmp_path) is None
    path = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    path.parent.mkdir(parents=True)
    path.write_text("always [madvise] never\n")
    assert tuning.huge_pages(tmp_path) == "madvise"
    path.write_text("damaged\n")
    assert tuning.huge_pages(tmp_path) is None
    assert tuning.governor(tmp_path) is None


def test_a_broken_model_is_named_and_makes_the_exit_code_1(doctor, store_home, tiny, capsys):
    with pytest.raises(SystemExit):
        main(["pull", tiny.name])
    capsys.readouterr()
    assert doctor("--verify")[0] == 0
    (file,) = (store_home / "models" / tiny.name).glob("*.gguf")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert doctor()[0] == 0
    code, output, _ = doctor("--verify", "--json")
    assert code == 1
    assert "stretto pull --force tiny" in output
    file.write_bytes(data[:-1])
    assert broken_folders(Store.default()) == ["tiny"]
    code, output, _ = doctor()
    assert (code, "tiny: damaged or incomplete" in output) == (1, True)


def test_score_shows_each_token_and_the_perplexity(cli):
    def fair(seen):
        return [0.0] * 258

    code, output, errors = cli("score", "-m", "mock.gguf", "abc", llm=mock_llm(fair))
    assert code == 0
    assert [line.split()[-1] for line in output.splitlines()] == ["a", "b", "c"]
    assert "3 tokens" in errors
    assert "perplexity 258.0000" in errors
    document = json.loads(cli("score", "-m", "mock.gguf", "--json", stdin=b"abc\n", llm=mock_llm(fair))[1])
    assert [token["text"] for token in document["tokens"]] == ["a", "b", "c"]
    assert document["tokens"][0]["logprob"] is None
    assert document["perplexity"] == pytest.approx(258)


def test_every_verb_has_its_command():
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    names |= {group.name for group in app.registered_groups}
    verbs = {name for name, value in vars(Verbs).items() if callable(value) and not name.startswith("_")}
    verbs -= {"close", "generate", "stream"}  # the latter two are `stretto run`
    more = {"parallel", "quantize", "convert", "perplexity", "compare", "eval", "imatrix", "merge", "bench"}
    more |= {"export", "serve", "devices", "doctor", "inspect", "tokenize", "pull", "models", "rm", "run"}
    assert verbs | more <= names
