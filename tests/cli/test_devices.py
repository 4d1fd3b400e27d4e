"""`stretto devices`: a table for people, JSON for programs."""

import json
from dataclasses import asdict, fields, replace

import pytest

from found_machine import FOUND
from stretto import hardware
from stretto.cli import main
from stretto.hardware import Gpu, Hardware
from stretto.loading import choose
from stretto.loading.choose import Alternative, Route

NOTHING = replace(
    FOUND,
    vendor=None,
    cores_physical=None,
    cpu_quota=None,
    instruction_sets=(),
    caches=(),
    memory_total=None,
    memory_free=None,
    bandwidth=None,
    integer_peak=None,
    gpus=(),
    kernel_sets=("avx2",),
)


@pytest.fixture
def devices(capsys, monkeypatch):
    """Runs the command on a machine that is given: its output."""

    def run(found, *arguments):
        asked = []
        monkeypatch.setattr(hardware, "probe", lambda **options: asked.append(options) or found)
        with pytest.raises(SystemExit) as ended:
            main(("devices", *arguments))
        captured = capsys.readouterr()
        assert (ended.value.code, captured.err) == (0, "")
        assert asked == [{"refresh": "--refresh" in arguments}]
        return captured.out

    return run


def test_the_table(devices):
    output = " ".join(devices(FOUND).split())
    for words in (
        "cpu EPYC 32 (x86_64)",
        "cores 2 usable (the machine: 32 cores, 64 threads, limited to the time of 1.5)",
        "instruction sets avx2, fma",
        "kernels avx2 (STRETTO_KERNELS may be avx512, portable)",
        "caches L1d 32 × 48 KiB, L3 4 × 32 MiB",
        "memory 4.0 GB, 3.0 GB free",
        "read 10.0 GB/s one core, 20.5 GB/s all, from 268.4 MB",
        "30.0 GB/s one core, 60.0 GB/s all, from 100.0 MB",
        "int8 83 GMAC/s one core, 1,667 GMAC/s all, by avx2",
        "gpu NVIDIA H200, 150.0 GB, 149.0 GB free, driver 570.1",
    ):
        assert words in output


def test_a_gpu_that_cannot_be_used_says_what_is_missing(devices, monkeypatch):
    monkeypatch.setattr(choose, "find_missing", lambda device: f"torch is not installed for {device}")
    output = " ".join(devices(FOUND).split())
    assert "cuda not usable here: torch is not installed for cuda" in output
    monkeypatch.setattr(choose, "find_missing", lambda device: "")
    assert "not usable" not in devices(FOUND)


def test_a_machine_that_tells_nothing(devices):
    output = " ".join(devices(NOTHING).split())
    for words in (
        "cores 2 usable (the machine: 64 threads)",
        "none beyond the basic ones",
        "kernels avx2 caches",
        "caches not known",
        "memory not known",
        "read not measured",
        "int8 not measured",
        "gpu none found",
    ):
        assert words in output


@pytest.mark.parametrize("found", [FOUND, NOTHING])
def test_json_is_complete(devices, found):
    document = json.loads(devices(found, "--json"))
    assert document == json.loads(json.dumps(asdict(found)))
    assert set(document) == {field.name for field in fields(Hardware)}


def test_refresh_is_passed_on(devices):
    assert devices(FOUND, "--refresh", "--json") == devices(FOUND, "--json")


def test_a_model_gets_a_table_of_what_can_run_it(devices, monkeypatch):
    options = (
        Alternative("native", "cpu", "chosen", "the only one", 240.5, 0.0),
        Alternative("llamacpp", "cpu", "refused", "pip install it"),
    )
    asked = []
    monkeypatch.setattr(
        "stretto.loading.open.survey", lambda *args, **kw: asked.append((args, kw)) or Route(options)
    )
    output = " ".join(devices(FOUND, "--model", "x.gguf", "--threads", "2").split())
    assert "native cpu 240.5 0.0000 chosen: the only one" in output
    assert "llamacpp cpu refused: pip install it" in output
    document = json.loads(devices(FOUND, "--model", "x.gguf", "--json"))
    assert document["route"][0] == {
        "backend": "native",
        "device": "cpu",
        "state": "chosen",
        "reason": "the only one",
        "tokens_per_second": 240.5,
        "distance": 0.0,
    }
    assert asked[0] == (("x.gguf",), {"threads": 2, "refresh": False})


def test_names_reach_no_terminal_raw(devices):
    output = devices(replace(FOUND, cpu="\x1b[2J[red]", gpus=(Gpu("\x07", None, None, "\r"),)))
    assert not set("\x1b\x07\r") & set(output)
    assert "[red]" in output


def test_on_this_machine(capsys, monkeypatch):
    probe = hardware.probe
    monkeypatch.setattr(hardware, "probe", lambda **options: probe(measure=False))  # quick
    with pytest.raises(SystemExit) as ended:
        main(("devices", "--json"))
    document = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert document["cores_usable"] >= 1


def test_kernels_that_were_asked_for(capsys, monkeypatch):
    probe = hardware.probe
    monkeypatch.setattr(hardware, "probe", lambda **options: probe(measure=False))
    for wanted, code in (("portable", 0), ("abacus", 2), ("AVX2", 2)):
        monkeypatch.setenv("STRETTO_KERNELS", wanted)
        with pytest.raises(SystemExit) as ended:
            main(("devices", "--json"))
        captured = capsys.readouterr()
        assert ended.value.code == code
        if code:
            assert f"STRETTO_KERNELS={wanted!r} is none of portable, avx2" in " ".join(captured.err.split())
        else:
            assert json.loads(captured.out)["kernels"] == wanted
