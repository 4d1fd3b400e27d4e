"""`/v1/sequences`: fork, append, edit, generate, score, save and close; whose they are, and for how long."""

import json
import threading
from contextlib import contextmanager

import httpx
import pytest

from serving import HELLO, endless, mock, serving, until, visiting
from stretto import LLM
from stretto.backends.native import NativeBackend
from stretto.engine.engine import Engine
from stretto.errors import CacheFull
from stretto.server.settings import RequestLimits
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import tiny_file, tiny_spec

TEXT = "THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG."  # its bytes are in the tiny vocabulary
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def tiny(entry):
    """A real model, random and tiny."""
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 512, 1)
    return LLM(backend, byte_tokenizer(), fingerprint=lambda: "tiny")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def both():
    """A server with a real model, and a client of it."""
    with visiting(tiny) as found:
        yield found


@pytest.fixture
def small(both):
    """A client, behind which no sequence stays open."""
    yield both[1]
    for one in both[1].get("/v1/sequences").json()["data"]:
        both[1].delete(f"/v1/sequences/{one['id']}")


def ask(web, path, status=200, **body):
    answer = web.post(f"/v1/sequences{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()["error"] if status >= 400 else answer.json()


def opened(web, prompt=TEXT, **more):
    return ask(web, "", prompt=prompt, **more)["sequence"]["id"]


def read(web, name):
    return web.get(f"/v1/sequences/{name}").json()


# -- what they do --


def test_a_sequence_is_made_and_continued(small):
    made = ask(small, "", prompt=TEXT)
    sequence = made["sequence"]
    assert sequence["id"].startswith("seq_")
    assert (sequence["tokens"], sequence["pending"], sequence["edit_mode"]) == (len(TEXT), len(TEXT), None)
    found = ask(small, f"/{sequence['id']}/generate", **GREEDY)
    (text,) = found["texts"]
    assert len(text["token_ids"]) == 8
    assert text["finish_reason"] == "length"
    assert found["usage"]["prompt_tokens"] == len(TEXT)
    assert found["usage"]["completion_tokens"] == 8
    assert found["sequence"]["tokens"] == len(TEXT) + 8
    whole = read(small, sequence["id"])
    assert whole["token_ids"] == [*TEXT.encode(), *text["token_ids"]]
    assert whole["positions"] == list(range(len(TEXT) + 8))
    again = ask(small, f"/{sequence['id']}/generate", **GREEDY)
    assert again["usage"]["cached_tokens"] >= len(TEXT) + 7
    plain = {"model": "mock", "prompt": TEXT, "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    expected = small.post("/v1/completions", json={**plain, "return_token_ids": True}).json()
    assert text["token_ids"] + again["texts"][0]["token_ids"] == expected["choices"][0]["token_ids"]


def test_a_stream_is_the_text_token_by_token(small):
    name = opened(small)
    (fork,) = ask(small, f"/{name}/fork")["forks"]
    expected = ask(small, f"/{name}/generate", **GREEDY, logprobs=2)["texts"][0]
    body = {**GREEDY, "stream": True, "logprobs": 2}
    with small.stream("POST", f"/v1/sequences/{fork['id']}/generate", json=body) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events.pop() == "[DONE]"
    *tokens, end, last = map(json.loads, events)
    assert [one["token"] for one in tokens] == expected["token_ids"]
    assert [one["logprob"] for one in tokens] == [one["logprob"] for one in expected["logprobs"]]
    assert all(len(one["top"]) == 2 for one in tokens)
    assert "".join(one["text"] for one in tokens) == expected["text"]
    assert end == {"index": 0, "finish_reason": "length", "stop_reason": None}
    assert last["sequence"]["tokens"] == len(TEXT) + 8
    assert last["usage"]["completion_tokens"] == 8


def test_several_texts_leave_the_sequence_as_it_is(small):
    name = opened(small)
    found = ask(small, f"/{name}/generate", n=3, max_tokens=6, temperature=1.0, seed=3, ignore_eos=True)
    assert len({tuple(text["token_ids"]) for text in found["texts"]}) > 1
    assert found["sequence"]["tokens"] == len(TEXT)


@pytest.mark.parametrize("mode", ["recompute", "shift", "heal"])
def test_edits_name_their_mode(small, mode):
    name = opened(small, compute=True)
    found = ask(small, f"/{name}/replace", start=4, stop=9, text="SLOW", mode=mode)
    used = "shift" if mode == "shift" else "recompute"  # so few tokens are behind it
    assert (found["edit"]["asked"], found["edit"]["mode"]) == (mode, used)
    assert (found["edit"]["added"], found["edit"]["removed"]) == (4, 5)
    assert (
        found["usage"]["edit_mode"]
        == found["sequence"]["edit_mode"]
        == (None if used == "recompute" else mode)
    )
    assert read(small, name)["text"] == TEXT.replace("QUICK", "SLOW")
    made = ask(small, f"/{name}/generate", **GREEDY)
    assert made["usage"]["edit_mode"] == found["usage"]["edit_mode"]
    if mode != "shift":
        fresh = ask(small, f"/{opened(small, TEXT.replace('QUICK', 'SLOW'))}/generate", **GREEDY)
        assert made["texts"] == fresh["texts"]


def test_text_is_inserted_removed_and_appended():
    with visiting() as (_, web):
        name = opened(web)
        ask(web, f"/{name}/insert", at=0, text="OH! ")
        ask(web, f"/{name}/remove", start=8, stop=14)
        ask(web, f"/{name}/append", text=" <|end|>")
        ask(web, f"/{name}/append", tokens=[33, 33])
        assert read(web, name)["text"] == "OH! THE BROWN FOX JUMPS OVER THE LAZY DOG. <|end|>!!"
        ask(web, f"/{name}/append", text="<|end|>", special=True)
        assert read(web, name)["token_ids"][-1] == 257
        ask(web, f"/{name}/remove", start=4, stop=8, mode="hole")
        assert read(web, name)["positions"][3:5] == [3, 8]


def test_continuations_are_scored(small):
    name = opened(small)
    words = [" AND", " THE CAT", list(b" OR")]
    found = ask(small, f"/{name}/score", continuations=words)
    with tiny(None) as llm:
        expected = llm.score(TEXT, [" AND", " THE CAT", " OR"])
    assert [one["logprobs"] for one in found["data"]] == [pytest.approx(one.tolist()) for one in expected]
    assert [one["total"] for one in found["data"]] == [pytest.approx(float(one.sum())) for one in expected]
    assert read(small, name)["text"] == TEXT


def test_a_conversation_in_the_models_format():
    with visiting() as (_, web), mock_llm("") as llm:
        name = ask(web, "", messages=[{"role": "user", "content": "Hi"}])["sequence"]["id"]
        assert read(web, name)["token_ids"] == llm.chat_prompt("Hi")
        assert ask(web, f"/{name}/generate", temperature=0)["texts"][0]["text"] == HELLO


def test_sixteen_forks_of_2000_tokens_cost_one_prefill():
    with visiting(mock("Hello", context_length=2400, cells=8192)) as (server, web):
        name = opened(web, "x" * 2000)
        forks = ask(web, f"/{name}/fork", n=16)["forks"]
        for fork in forks:
            ask(web, f"/{fork['id']}/append", text="?")
            assert ask(web, f"/{fork['id']}/generate", temperature=0)["texts"][0]["text"] == "Hello"
        computed = sum(map(len, server.llm().backend.batches))
        assert computed <= 2000 + 16 * (1 + len("Hello") + 1)
        assert computed >= 2000
        held = server.llm().cache.stats().held
        assert held <= 2000 + 16 * 8


def test_forks_have_seeds_of_their_own(small):
    name = opened(small)
    forks = ask(small, f"/{name}/fork", n=4, seed=7)["forks"]
    sampled = {"max_tokens": 8, "temperature": 1.0, "ignore_eos": True}
    texts = [ask(small, f"/{fork['id']}/generate", **sampled)["texts"][0]["token_ids"] for fork in forks]
    assert len(set(map(tuple, texts))) > 1
    again = ask(small, f"/{name}/fork", n=4, seed=7)["forks"]
    assert texts == [
        ask(small, f"/{fork['id']}/generate", **sampled)["texts"][0]["token_ids"] for fork in again
    ]


# -- saved --


def test_a_saved_sequence_outlives_the_server(home):
    with visiting(tiny) as (server, web):
        name = opened(web)
        saved = ask(web, f"/{name}/save", name="fox")["saved"]
        expected = ask(web, f"/{name}/generate", **GREEDY)["texts"]
        (listed,) = web.get("/v1/sequences/saved").json()["data"]
        assert (listed["name"], listed["bytes"]) == ("fox", saved["bytes"])
        port = server.port
    (folder,) = (home / "sequences").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    with visiting(tiny, port=port) as (server, web):
        folder.rename(folder.with_name(str(server.state.settings.port)))
        again = ask(web, "", restore="fox")["sequence"]
        assert (again["tokens"], again["pending"]) == (len(TEXT), 0)
        assert ask(web, f"/{again['id']}/generate", **GREEDY)["texts"] == expected
        assert web.delete("/v1/sequences/saved/fox").json()["deleted"]
        error = ask(web, "", 404, restore="fox")
        assert "GET /v1/sequences/saved" in error["message"]
        assert error["param"] == "restore"
        (listed,) = (home / "sequences" / str(server.state.settings.port)).iterdir()
        (listed / "gone.safetensors").symlink_to("nothing")  # as one that is deleted in that moment
        assert web.get("/v1/sequences/saved").json()["data"] == []


@pytest.mark.parametrize("name", ["../fox", ".fox", "a/b", "", "x" * 65])
def test_names_stay_in_their_folder(small, name):
    assert ask(small, f"/{opened(small)}/save", 400, name=name)["param"] == "name"
    assert ask(small, "", 400, restore=name)["param"] == "restore"


def test_saved_sequences_have_a_quota():
    with visiting(tiny, limits=RequestLimits(saved_sequences=1)) as (_, web):
        name = opened(web)
        ask(web, f"/{name}/save", name="one")
        ask(web, f"/{name}/save", name="one")
        assert "at most 1 are kept" in ask(web, f"/{name}/save", 413, name="two")["message"]


# -- whose they are, for how long, how many --


def test_a_key_sees_its_own_only():
    with serving(tiny, api_keys=("ann", "bob"), admin_keys=("boss",)) as server:
        webs = [
            httpx.Client(base_url=server.url, timeout=60, headers={"authorization": f"Bearer {key}"})
            for key in ("ann", "bob", "boss")
        ]
        ann, *others = webs
        name = opened(ann)
        ask(ann, f"/{name}/save", name="mine")
        for web in others:
            assert web.get("/v1/sequences").json()["data"] == []
            assert web.get(f"/v1/sequences/{name}").status_code == 404
            assert web.delete(f"/v1/sequences/{name}").status_code == 404
            for path, body in (
                ("fork", {}),
                ("append", {"text": "X"}),
                ("generate", {}),
                ("save", {"name": "x"}),
            ):
                assert ask(web, f"/{name}/{path}", 404, **body)["code"] == "not_found"
            assert ask(web, "", 404, restore="mine")["code"] == "not_found"
            assert web.get("/v1/sequences/saved").json()["data"] == []
            assert ask(web, f"/{opened(web)}/generate", max_tokens=1)["usage"]["cached_tokens"] == 0
        assert [one["id"] for one in ann.get("/v1/sequences").json()["data"]] == [name]
        for web in webs:
            web.close()


def test_a_sequence_without_requests_is_closed():
    with visiting(tiny, sequence_seconds=0.2) as (server, web):
        name = opened(web, compute=True)
        until(lambda: server.llm().cache.stats().held == 0)
        error = ask(web, f"/{name}/generate", 404)
        assert error["param"] == "sequence_id"
        assert "unused for 0.2 s" in error["message"]
        assert web.get("/v1/sequences").json()["data"] == []


def test_a_closed_sequence_frees_its_cells(both, small):
    server, _ = both
    name = opened(small, compute=True)
    assert server.llm().cache.stats().held == len(TEXT)
    assert small.delete(f"/v1/sequences/{name}").json() == {"id": name, "object": "sequence", "closed": True}
    assert server.llm().cache.stats().held == 0
    assert small.delete(f"/v1/sequences/{name}").status_code == 404


def test_a_sequence_that_cannot_be_computed_is_closed(both, small, monkeypatch):
    async def fail(self, sequences):
        raise CacheFull("the cache is full", n_needed=44, n_free=0)

    monkeypatch.setattr(LLM, "alogits", fail)
    assert ask(small, "", 429, prompt=TEXT, compute=True)["code"] == "cache_full"
    assert small.get("/v1/sequences").json()["data"] == []


def test_sequences_are_counted():
    with visiting(tiny, max_sequences=3) as (_, web):
        names = [opened(web) for _ in range(2)]
        assert "at most 3 may be" in ask(web, f"/{names[0]}/fork", 429, n=2)["message"]
        ask(web, f"/{names[0]}/fork")
        assert ask(web, "", 429, prompt="X")["code"] == "over_limit"
        web.delete(f"/v1/sequences/{names[1]}")
        opened(web)


def test_sequences_hold_half_of_the_cells():
    with visiting(mock("Hello", context_length=256, cells=256)) as (_, web):
        error = ask(web, "", 400, prompt="x" * 129)
        assert (error["param"], error["code"]) == ("prompt", "over_limit")
        name = opened(web, "x" * 100)
        for path, body in (("append", {"text": "y" * 30}), ("insert", {"at": 3, "text": "y" * 30})):
            assert "128 of 256" in ask(web, f"/{name}/{path}", 429, **body)["message"]
        assert ask(web, "", 429, prompt="y" * 30)["code"] == "over_limit"
        ask(web, f"/{name}/fork", n=8)  # shared cells count once
        opened(web, "y" * 20)


@contextmanager
def as_ann(limits, cells):
    """A client with a key that has limits, beside another key."""
    opener = mock("Hello", context_length=256, cells=cells)
    with (
        serving(opener, api_keys=(f"ann {limits}", "bob")) as server,
        httpx.Client(base_url=server.url, headers={"authorization": "Bearer ann"}, timeout=60) as ann,
    ):
        yield ann


def test_sequences_of_a_key_hold_no_more_cells_than_its_requests_may_ask_for():
    with as_ann("cells=40", cells=256) as ann:
        opened(ann, "x" * 30)
        assert "above the 40 of 256" in ask(ann, "", 429, prompt="y" * 20)["message"]


@pytest.mark.parametrize("mode", ["shift", "heal", "recompute"])
def test_edits_of_forks_take_cells_of_their_own(mode):
    with visiting(mock("Hello", context_length=256, cells=256)) as (server, web):
        name = opened(web, "x" * 50, compute=True)
        forks = [one["id"] for one in ask(web, f"/{name}/fork", n=3)["forks"]]
        ask(web, f"/{forks[0]}/remove", start=2, stop=4, mode=mode)  # 48 that were shared
        error = ask(web, f"/{forks[1]}/remove", 429, start=2, stop=4, mode=mode)
        assert (error["param"], error["code"]) == ("start", "over_limit")
        ask(web, f"/{forks[1]}/remove", start=45, stop=47, mode=mode)
        ask(web, f"/{forks[2]}/remove", start=2, stop=4, mode="hole")
        assert server.llm().cache.stats().held <= 128


@pytest.mark.parametrize("before", ["edited", "pending", "hole", "cleared"])
@pytest.mark.parametrize("mode", ["shift", "heal"])
def test_no_edit_computes_many_new_tokens_while_others_wait(mode, before, monkeypatch):
    at_once = []
    compute = Engine.compute

    def counted(self, tracks):
        several = list(tracks)
        at_once.extend(track.n_pending for track in several)
        compute(self, several)

    monkeypatch.setattr(Engine, "compute", counted)
    with visiting(mock("Hello", context_length=1024, cells=2048)) as (server, web):
        name = opened(web, "x" * 300, compute=True)
        if before == "edited":
            ask(web, f"/{name}/remove", start=4, stop=8, mode="shift")
        elif before == "hole":
            ask(web, f"/{name}/remove", start=4, stop=8, mode="hole")
        elif before == "pending":
            ask(web, f"/{name}/append", text="zz")
        else:
            server.llm().cache.clear()
        at_once.clear()
        server.llm().backend.batches.clear()
        edit = ask(web, f"/{name}/insert", at=20, text="y" * 400, mode=mode)["edit"]
        assert (edit["mode"], edit["added"]) == (mode, 400)
        assert max(at_once, default=0) <= 1 + 32
        assert sum(map(len, server.llm().backend.batches)) <= 400 + 1 + 32
        assert server.llm().cache.stats().held <= 704


@pytest.mark.parametrize("mode", ["shift", "heal"])
def test_many_new_tokens_are_computed_once(mode):
    with visiting(mock("Hello", context_length=1024, cells=2048)) as (server, web):
        name = opened(web, "x" * 300, compute=True)
        server.llm().backend.batches.clear()
        edit = ask(web, f"/{name}/insert", at=20, text="y" * 400, mode=mode)["edit"]
        assert (edit["mode"], edit["added"]) == (mode, 400)
        assert sum(map(len, server.llm().backend.batches)) <= 400 + 1 + 32
        assert read(web, name)["text"] == "x" * 20 + "y" * 400 + "x" * 280
        assert server.llm().cache.stats().held <= 700
        assert ask(web, f"/{name}/insert", 400, at=900, text="y" * 300, mode=mode)["param"] == "at"


def test_texts_end_where_the_share_of_cells_does():
    with visiting(endless(context_length=256, cells=256)) as (server, web):
        names = [opened(web, "x" * 10) for _ in range(2)]
        found = ask(web, f"/{names[0]}/generate", temperature=0)
        assert found["texts"][0]["finish_reason"] == "length"
        assert found["sequence"]["tokens"] == 128 - 10
        assert ask(web, f"/{names[1]}/generate", 429)["param"] == "max_tokens"
        web.delete(f"/v1/sequences/{names[0]}")
        ask(web, f"/{names[1]}/generate", max_tokens=100, temperature=0)
        assert server.llm().cache.stats().held <= 128


def test_requests_at_the_same_time_hold_no_more_together():
    with visiting(endless(context_length=256, cells=256)) as (_, web):
        names = [opened(web, "x") for _ in range(8)]

        def generate(name):
            web.post(f"/v1/sequences/{name}/generate", json={"max_tokens": 40, "temperature": 0})

        threads = [threading.Thread(target=generate, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        n_tokens = [one["tokens"] for one in web.get("/v1/sequences").json()["data"]]
        assert 41 in n_tokens
        assert sum(n_tokens) <= 128


def test_only_computed_tokens_count_for_a_key():
    with as_ann("tokens=90", cells=1024) as ann:
        name = opened(ann, "x" * 50)
        for fork in ask(ann, f"/{name}/fork", n=4)["forks"]:
            ask(ann, f"/{fork['id']}/append", text="??")
            usage = ask(ann, f"/{fork['id']}/generate", temperature=0, max_tokens=3)["usage"]
            assert (usage["prompt_tokens"], usage["cached_tokens"]) == (52, 50)
        ask(ann, f"/{name}/score", continuations=["abcd"])
        lines = ann.get("/metrics").text
        assert 'stretto_key_tokens_total{key="key-1",kind="prompt"} 61' in lines  # 50, 4 times 2, 3
        assert 'stretto_key_tokens_total{key="key-1",kind="generated"} 12' in lines
        ask(ann, f"/{name}/insert", at=0, text="y" * 20, mode="shift")
        error = ask(ann, f"/{name}/append", 429, text="?")
        assert (error["param"], error["code"]) == ("tokens", "key_limit")


def test_one_request_at_a_time_uses_a_sequence():
    with visiting(endless()) as (_, web):
        name, answers = opened(web, "x"), []

        def generate():
            answers.append(ask(web, f"/{name}/generate", max_tokens=60, temperature=0))

        thread = threading.Thread(target=generate)
        thread.start()
        until(lambda: web.get("/stretto/requests").json()["requests"])
        error = ask(web, f"/{name}/append", 409, text="y")
        assert (error["param"], error["code"]) == ("sequence_id", "in_use")
        assert "fork it before" in error["message"]
        thread.join(60)
        assert answers[0]["sequence"]["tokens"] == 61
        ask(web, f"/{name}/append", text="y")


def test_a_stream_that_its_client_leaves_gives_the_sequence_back():
    with visiting(endless()) as (_, web):
        name = opened(web, "x")
        body = {"stream": True, "temperature": 0}
        with web.stream("POST", f"/v1/sequences/{name}/generate", json=body) as answer:
            next(answer.iter_lines())
        until(lambda: web.post(f"/v1/sequences/{name}/append", json={"text": "y"}).status_code == 200)
        assert read(web, name)["text"].startswith("x")


def test_sequences_of_an_unloaded_model_are_gone():
    with visiting(tiny) as (_, web):
        name = opened(web)
        assert web.post("/models/unload", json={"model": "mock"}).status_code == 200
        assert ask(web, f"/{name}/generate", 404)["code"] == "not_found"
        assert web.get("/v1/sequences").json()["data"] == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"prompt": "x", "restore": "y"}, "restore"),
        ("", {"prompt": "x", "tools": []}, "tools"),
        ("", {"prompt": 3}, "prompt"),
        ("", {"prompt": "x", "model": "gone"}, "model"),
        ("/ID/append", {}, "text"),
        ("/ID/append", {"text": "X", "tokens": [1]}, "text"),
        ("/ID/append", {"tokens": [1 << 20]}, "tokens"),
        ("/ID/replace", {"start": 5, "stop": 3, "text": "X"}, "start"),
        ("/ID/replace", {"start": 5, "stop": 7, "text": "X", "mode": "quick"}, "mode"),
        ("/ID/insert", {"at": 500, "text": "X"}, "at"),
        ("/ID/remove", {"start": 1}, "stop"),
        ("/ID/score", {"continuations": []}, "continuations"),
        ("/ID/score", {"continuations": [""]}, "continuations"),
        ("/ID/fork", {"n": 0}, "n"),
        ("/ID/fork", {"n": 1000}, "n"),
        ("/ID/generate", {"n": 17}, "n"),
        ("/ID/generate", {"grammar": "root ::= "}, "grammar"),
        ("/ID/generate", {"prompt": "x"}, "prompt"),
    ],
)
def test_wrong_fields_are_named(small, path, body, param):
    name = opened(small)
    answer = small.post(f"/v1/sequences{path.replace('ID', name)}", json=body)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert read(small, name)["text"] == TEXT
