"""Comparisons: with engines made up for the test, with our own server by URL, and with what is installed."""

import json
import os
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from serving import mock, serving
from strange_models import TOKENS, deci
from stretto.bench import comparing
from stretto.bench.comparing import ComparePlan, Contestant, Found, Skipped, page
from stretto.bench.comparing.results import Prompts, plot
from stretto.bench.comparing.run import Failed, Process
from stretto.cli import main
from stretto.errors import InvalidRequest
from stretto.loading.describe import open_tokenizer
from stretto.testing import byte_tokenizer

SMALL = ComparePlan(prompt=24, tokens=6, sequences=2, rounds=1, threads=1)
PEER_PYTHONS = os.environ.get("STRETTO_PEER_PYTHONS", "").split(os.pathsep)  # with packages to compare with

ONNX = Path(__file__).parent.parent / "data" / "onnx" / "genai"

FAKE = """
import os, time
class Worker:
    def about(self):
        return {"version": "fake 1.0"}
    def load(self, model, threads, cells, tokens=(), fail=""):
        self.tokens, self.fail = list(tokens), fail
        assert os.environ["OMP_NUM_THREADS"] == str(threads)
        if fail == "load":
            raise RuntimeError("no such thing")
        print("a library that talks")
    def generate(self, prompts, tokens):
        if self.fail == "die":
            os._exit(3)
        if self.fail == "sleep":
            time.sleep(60)
        time.sleep(0.002)
        return {"ids": [(self.tokens or list(range(tokens)))[:tokens] for _ in prompts], "first": 0.001}
"""


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Makes contestants of the worker above, on a file that nobody reads but for its tokenizer."""
    (tmp_path / "worker_fake.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    model = tmp_path / "model.gguf"
    deci(model)

    def make(name, **options):
        return Contestant(name, sys.executable, "worker_fake", str(model), options)

    return make


def test_a_prompt_has_the_length_that_was_asked_for():
    prompts = Prompts(byte_tokenizer())
    made = [prompts.make(100, seed) for seed in range(12)]
    assert {len(prompt["ids"]) for prompt in made} == {100}
    assert len({prompt["text"] for prompt in made}) == 12
    assert len({prompt["text"][:12] for prompt in made}) == 12  # they differ from the beginning
    assert all(prompts.tokenizer.encode(prompt["text"]) == prompt["ids"] for prompt in made)


@pytest.mark.parametrize("wrong", [{"tokens": 1}, {"rounds": 0}, {"prompt": -1}, {"sequences": "8"}])
def test_sizes_that_cannot_be(wrong):
    with pytest.raises(InvalidRequest) as refused:
        ComparePlan(**wrong)
    assert refused.value.param == next(iter(wrong))


def test_every_contestant_is_measured_in_every_round(fake):
    found = Found([fake("stretto a"), fake("b", tokens=[0, 1, 9, 9, 9, 9])], [Skipped("c", "too old")])
    said = []
    result = comparing.compare("model", found, replace(SMALL, rounds=2), said.append)
    assert said == [
        "round 1 of 2: stretto a",
        "round 1 of 2: b",
        "round 2 of 2: b",
        "round 2 of 2: stretto a",
    ]
    ours, other = result.standings
    assert set(ours.figures) == set(comparing.MEASURES)
    assert all(len(figure.samples) == 2 for figure in ours.figures.values())
    assert (ours.agreed, ours.compared) == (6, 6)
    assert (other.agreed, other.compared) == (2, 6)
    assert (other.version, other.threads) == ("fake 1.0", 1)
    data = json.loads(json.dumps(result.as_data()))
    assert data["skipped"] == [{"name": "c", "reason": "too old"}]
    assert data["standings"][0]["figures"]["decode"]["unit"] == "tok/s"
    assert data["threads"] == 1
    assert data["nbytes"] > 10_000


def test_one_that_fails_is_left_out_with_what_it_said(fake):
    contestants = [
        fake("good"),
        fake("broken", fail="load"),
        fake("dead", fail="die"),
        Contestant("none", "/no/such/python", "worker_fake", fake("x").model),
        fake("slow", fail="sleep"),
    ]
    result = comparing.compare("model", Found(contestants, []), SMALL, seconds=3.0)
    assert [each.name for each in result.standings] == ["good"]
    reasons = {each.name: each.reason for each in result.skipped}
    assert reasons["broken"] == "RuntimeError: no such thing"
    assert "its process ended at 'generate'" in reasons["dead"]
    assert "cannot be started" in reasons["none"]
    assert "ended at 'generate'" in reasons["slow"]


def test_without_a_contestant_the_reasons_are_given():
    with pytest.raises(InvalidRequest, match="nothing here can run m: x: not installed"):
        comparing.compare("m", Found([], [Skipped("x", "not installed")]), SMALL)


def test_what_a_library_prints_does_not_reach_the_answers(fake):
    each = fake("a")
    with Process(each.python, each.worker, 1, 30.0) as process:
        answer = process.ask("load", model="m", threads=1, cells=1)
        assert answer["memory_bytes"] > 1_000_000
        with pytest.raises(Failed, match="no attribute 'sing'"):
            process.ask("sing")


class Links(HTMLParser):
    """Collects what a page would load, and whether its tags are closed."""

    def __init__(self):
        super().__init__()
        self.loaded, self.open = [], []

    def handle_starttag(self, tag, attributes):
        self.loaded += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]
        if tag not in ("meta", "br", "rect", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("rect", "path"):
            assert self.open.pop() == tag


def test_the_page_stands_alone_and_escapes_what_others_said(fake):
    found = Found([fake("stretto a"), fake("<script>alert(1)</script>")], [Skipped("<b>", "&nbsp;")])
    result = comparing.compare("<model>", found, SMALL)
    text = page(result)
    reader = Links()
    reader.feed(text)
    assert (reader.loaded, reader.open) == ([], [])
    assert "<script" not in text
    assert "http" not in text
    assert "url(" not in text
    assert text.count("<svg") == len(comparing.MEASURES)
    assert "&lt;model&gt;" in text
    assert plot(result, "decode").count("<rect") == 2


def test_the_command_prints_a_table_and_writes_the_page(fake, capsys, monkeypatch, tmp_path):
    found = Found([fake("stretto a"), fake("b")], [Skipped("c", "too old")])
    asked = []
    monkeypatch.setattr(comparing, "find", lambda model, **options: asked.append((model, options)) or found)
    sizes = ["--prompt", "24", "--tokens", "6", "--sequences", "2", "--rounds", "1", "--threads", "1"]
    extra = ["--peer-python", "p", "--url", "http://x#m", "--html", str(tmp_path / "page.html")]
    with pytest.raises(SystemExit) as ended:
        main(["compare", "model", *sizes, *extra])
    output = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "c did not take part: too old" in output
    assert "6 of 6" in output
    assert "fake 1.0, 1 threads" in output
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert asked[0][1]["peer_pythons"] == ["p"]
    with pytest.raises(SystemExit):
        main(["compare", "model", *sizes, "--json"])
    assert json.loads(capsys.readouterr().out)["plan"]["rounds"] == 1


def test_our_own_backends_are_found_without_the_oracle(smollm2_path):
    found = comparing.find(str(smollm2_path))
    names = [each.name for each in found.contestants]
    assert names[0] == "stretto native"
    assert "stretto reference" not in names
    asked = comparing.find(str(smollm2_path), backends=["reference"])
    assert "stretto reference" in [each.name for each in asked.contestants]
    with pytest.raises(InvalidRequest, match="backend must be one of native"):
        comparing.find(str(smollm2_path), backends=["abacus"])


def test_a_python_that_is_none_is_named(smollm2_path, tmp_path):
    found = comparing.find(str(smollm2_path), peer_pythons=[str(tmp_path / "nothing")])
    assert any(each.name == str(tmp_path / "nothing") for each in found.skipped)


def test_stretto_itself_is_measured(smollm2_path):
    found = comparing.find(str(smollm2_path))
    ours = Found(found.contestants[:1], [])
    result = comparing.compare(str(smollm2_path), ours, SMALL)
    (standing,) = result.standings
    assert standing.version.startswith("stretto ")
    assert standing.figures["memory"].median > 50
    assert standing.agreed == 6


@pytest.mark.parametrize("api", ["Ollama", "OpenAI"])
def test_a_server_by_url_takes_part(api, tmp_path):
    model = deci(tmp_path / "model.gguf")
    with serving(mock("Hello world, this is a mock." * 4, cells=4096, context_length=2048)) as running:
        url = f"{running.url}/v1#mock" if api == "OpenAI" else running.url
        each = Contestant("server", sys.executable, "worker_http", str(model), {"url": url})
        result = comparing.compare("model", Found([each], []), SMALL)
    assert result.skipped == []
    (standing,) = result.standings
    assert set(standing.figures) == {"first token", "prefill", "decode", "batch"}
    assert standing.threads is None
    assert standing.version.startswith(f"{api}'s API")
    assert "model mock" in standing.notes


def test_a_server_that_is_not_there_says_so(tmp_path):
    model = deci(tmp_path / "model.gguf")
    each = Contestant("gone", sys.executable, "worker_http", str(model), {"url": "http://127.0.0.1:9"})
    files = Contestant("file", sys.executable, "worker_http", str(model), {"url": "file:///etc/passwd"})
    result = comparing.compare("model", Found([each, files], []), SMALL)
    reasons = {one.name: one.reason for one in result.skipped}
    assert "refused" in reasons["gone"]
    assert "no http:// or https:// address" in reasons["file"]


def test_texts_of_a_server_agree_by_their_tokens(fake, tmp_path):
    tokenizer = open_tokenizer(fake("x").model)
    words = tokenizer.encode("Hello world")
    (tmp_path / "worker_text.py").write_text(
        FAKE.replace(
            '"ids": [(self.tokens or list(range(tokens)))[:tokens] for _ in prompts]',
            '"texts": ["Hell no"] * len(prompts), "counts": [tokens] * len(prompts)',
        )
    )
    text = Contestant("server", sys.executable, "worker_text", fake("x").model)
    result = comparing.compare("model", Found([fake("a", tokens=words), text], []), SMALL)
    assert [(each.agreed, each.compared) for each in result.standings] == [(6, 6), (4, 6)]
    assert len(TOKENS) == tokenizer.n_vocab


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama.cpp", "transformers", "onnxruntime-genai"])
def test_a_peer_that_is_installed_gives_the_same_tokens(name, smollm2_path):
    model = ONNX if name == "onnxruntime-genai" else smollm2_path
    found = comparing.find(str(model), peer_pythons=[each for each in PEER_PYTHONS if each])
    chosen = [each for each in found.contestants if each.name in ("stretto native", "stretto onnx", name)]
    if len(chosen) < 2:
        pytest.skip(f"{name} is in no Python that STRETTO_PEER_PYTHONS names")
    plan = ComparePlan(prompt=16, tokens=4, sequences=2, rounds=1, threads=1)
    result = comparing.compare(str(model), Found(chosen, []), plan)
    assert result.skipped == []
    assert result.standings[1].agreed >= 1
    assert set(result.standings[1].figures) == set(comparing.MEASURES)
