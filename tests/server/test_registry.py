"""Several models: loaded on first use, unloaded by LRU under a limit, refused with the numbers."""

import asyncio

import pytest

from serving import TINY, endless, until, visiting
from stretto.cli import main
from stretto.errors import InvalidRequest, ModelError
from stretto.hardware.gpus import CudaDevice
from stretto.server.http import registry as registry_module
from stretto.server.http.errors import ApiError
from stretto.server.http.registry import Registry
from stretto.server.http.served_model import WORKING_BYTES
from stretto.server.settings import ModelEntry, Settings
from stretto.testing import mock_llm
from stretto.weights.gguf import GGUF
from stretto.weights.memory import memory


def settings(n=3, room=2, **more):
    """Models a, b, c of the same size, and memory for `room` of them."""
    entries = tuple(ModelEntry("abcdef"[i], str(TINY)) for i in range(n))
    return Settings(entries, memory=room * need() + 1000, cells=64, **more)


def need():
    with GGUF(TINY) as file:
        found = memory(file)
        return found.packed_bytes + found.cache_bytes("f16", 64) + WORKING_BYTES


def loaded(registry):
    return [name for name, slot in registry.models.items() if slot.llm is not None]


async def use(registry, name):
    with await registry.lease(name):
        pass


def test_models_are_loaded_on_first_use_and_the_oldest_goes():
    closed = []

    def opener(entry):
        llm = mock_llm("x")
        close = llm.close
        llm.close = lambda: (closed.append(entry.name), close())
        return llm

    async def run():
        registry = Registry(settings(), opener)
        assert loaded(registry) == []
        for name in "aba":
            await use(registry, name)
        assert loaded(registry) == ["a", "b"]
        assert closed == []
        await use(registry, "c")  # b was used before a
        assert (loaded(registry), closed) == (["a", "c"], ["b"])
        await use(registry, "b")
        assert (loaded(registry), closed) == (["b", "c"], ["b", "a"])
        assert registry.models["b"].loads == 2
        assert registry.loaded_bytes == 2 * need()
        await registry.close()
        assert sorted(closed) == ["a", "b", "b", "c"]

    asyncio.run(run())


def test_a_model_in_use_stays_and_others_wait_for_it():
    async def run():
        registry = Registry(settings(room=1), lambda entry: mock_llm("x"))
        first = await registry.lease("a")
        second = asyncio.create_task(registry.lease("b"))
        await asyncio.sleep(0.05)
        third = asyncio.create_task(registry.lease("a"))  # may not overtake the second
        await asyncio.sleep(0.05)
        assert not second.done()
        assert not third.done()
        first.release()
        lease = await second
        assert loaded(registry) == ["b"]
        assert lease.waited > 0.05
        lease.release()
        (await third).release()
        assert loaded(registry) == ["a"]
        await registry.close()

    asyncio.run(run())


def test_who_waits_too_long_is_told_the_numbers():
    async def run():
        registry = Registry(settings(room=1, load_seconds=0.1), lambda entry: mock_llm("x"))
        with await registry.lease("a"), pytest.raises(ApiError) as caught:
            await registry.lease("b")
        assert caught.value.status == 503
        assert caught.value.retry_after == 10
        assert (
            "b needs 67 MB; models may take 67 MB, of which those in use take 67 MB: a"
            in caught.value.message
        )
        await registry.close()

    asyncio.run(run())


def test_a_model_that_can_never_fit_is_refused_at_the_start():
    with pytest.raises(InvalidRequest, match=r"a cannot fit: it needs 67 MB .* models may take 1 MB"):
        Registry(Settings((ModelEntry("a", str(TINY)),), memory=10**6, cells=64))


def test_models_on_a_gpu_share_its_memory(monkeypatch):
    gpu = CudaDevice("A10", 24 * 10**9, (8, 6))
    monkeypatch.setattr(registry_module, "cuda_devices", lambda: (gpu,))
    made = Registry(Settings((ModelEntry("a", str(TINY)),), cells=64, device="cuda"), lambda entry: None)
    assert made.limit == int(0.8 * 24 * 10**9)


def test_a_file_that_is_not_there_is_refused_at_the_start(tmp_path):
    with pytest.raises(ModelError, match=r"nothing\.gguf"):
        Registry(Settings((ModelEntry("a", str(tmp_path / "nothing.gguf")),), memory=10**9))


def test_a_model_that_fails_to_load_can_be_asked_for_again():
    calls = []

    def opener(entry):
        calls.append(entry.name)
        if len(calls) == 1:
            raise ModelError("damaged")
        return mock_llm("x")

    async def run():
        registry = Registry(settings(), opener)
        with pytest.raises(ModelError):
            await registry.lease("a")
        await use(registry, "a")
        assert loaded(registry) == ["a"]
        await registry.close()

    asyncio.run(run())


def test_whoever_stops_waiting_leaves_nothing_behind():
    async def run():
        registry = Registry(settings(), lambda entry: mock_llm("x"))
        waiting = asyncio.create_task(registry.lease("a"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        with await registry.lease("a"):
            assert registry.models["a"].loads == 1
            assert registry.models["a"].users == 1
        assert registry.models["a"].users == 0
        await registry.close()

    asyncio.run(run())


def test_one_server_serves_several_models():
    with visiting(endless(0), models=(f"one={TINY}", f"two={TINY}")) as (server, web):
        assert [slot.llm for slot in server.state.registry.models.values()] == [None, None]
        for name in ("one", "two", "one"):
            body = {"model": name, "prompt": "a", "max_tokens": 2}
            assert web.post("/v1/completions", json=body).json()["model"] == name
        stats = web.get("/stretto/stats").json()
        assert {name: model["loads"] for name, model in stats["models"].items()} == {"one": 1, "two": 1}
        assert (
            web.post("/api/generate", json={"model": "two", "keep_alive": 0}).json()["done_reason"]
            == "unload"
        )
        assert server.llm("two") is None
        assert web.post("/api/generate", json={"model": "two"}).json()["done_reason"] == "load"
        assert server.llm("two") is not None


@pytest.mark.parametrize(
    ("text", "name", "source"),
    [
        ("smollm2", "smollm2", "smollm2"),
        ("a/b/model.gguf", "model", "a/b/model.gguf"),
        ("small=a/b/model.gguf", "small", "a/b/model.gguf"),
        ("hf:org/repo/file.gguf", "hf:org/repo/file.gguf", "hf:org/repo/file.gguf"),
        ("./a=b/model.gguf", "model", "./a=b/model.gguf"),
        ("/tmp/a=b/model.gguf", "model", "/tmp/a=b/model.gguf"),
        ("org/small=./m.gguf", "org/small", "./m.gguf"),
        ("meta-llama/Llama-3.2-1B=smollm2", "meta-llama/Llama-3.2-1B", "smollm2"),
        ("org/small-GGUF:Q8_0=./m.gguf", "org/small-GGUF:Q8_0", "./m.gguf"),
        ("a/b/c=model.gguf", "c=model", "a/b/c=model.gguf"),
    ],
)
def test_what_a_model_is_called(text, name, source):
    assert ModelEntry.parse(text) == ModelEntry(name, source)


def test_a_file_whose_path_looks_like_a_name_stays_a_path(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b=c.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert ModelEntry.parse("a/b=c.gguf") == ModelEntry("b=c", "a/b=c.gguf")


def test_a_name_with_a_slash_is_served_in_every_protocol():
    with visiting(models=(f"org/small={TINY}",)) as (_, web):
        assert web.get("/v1/models/org/small").json()["id"] == "org/small"
        asked = {"model": "org/small", "prompt": "Hi"}
        assert web.post("/v1/completions", json=asked).status_code == 200
        assert web.post("/api/generate", json={**asked, "stream": False}).json()["done"]
        said = {"model": "org/small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        assert web.post("/v1/messages", json=said).status_code == 200


@pytest.mark.parametrize("precision", ["standard", "high"])
def test_models_are_loaded_with_the_precision_of_the_settings(monkeypatch, precision):
    asked = []

    def load(path, **options):
        asked.append(options["precision"])
        return mock_llm("x")

    async def run():
        registry = Registry(settings(1, precision=precision))
        await use(registry, "a")
        await registry.close()

    monkeypatch.setattr("stretto.server.http.registry.load", load)
    asyncio.run(run())
    assert asked == [precision]


def test_a_model_is_loaded_with_the_template_that_is_given(monkeypatch, tmp_path):
    asked = []

    def load(path, **options):
        asked.append(options["chat_template"])
        return mock_llm("x")

    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages }}")
    entries = (ModelEntry.parse(f"org/a={TINY}"), ModelEntry.parse(f"b={TINY}"))
    one, two = ModelEntry.with_templates(entries, [f"org/a={file}"])
    assert (one.template, two.template) == ("{{ messages }}", None)
    (alone,) = ModelEntry.with_templates(entries[:1], ["{{ a=b }}"])
    assert alone.template == "{{ a=b }}"
    with pytest.raises(InvalidRequest, match="--chat-template"):
        ModelEntry.with_templates(entries, ["{{ a=b }}"])

    async def run():
        registry = Registry(Settings((one, two)))
        await use(registry, "org/a")
        await use(registry, "b")
        assert registry.models["org/a"].facts["template"] == "{{ messages }}"
        await registry.close()

    monkeypatch.setattr("stretto.server.http.registry.load", load)
    asyncio.run(run())
    assert asked == ["{{ messages }}", None]


def test_a_model_that_is_not_used_is_unloaded_after_a_while():
    asked = {"model": "mock", "prompt": "Say", "max_tokens": 2}
    with visiting(idle_seconds=0.05) as (_, web):
        for _ in range(2):
            assert web.post("/v1/completions", json=asked).status_code == 200
            until(lambda: web.get("/props").json()["is_sleeping"])
            assert web.get("/v1/models").json()["data"][0]["id"] == "mock"

    async def run():
        registry = Registry(settings(idle_seconds=0.01), lambda entry: mock_llm("x"))
        with await registry.lease("a"):
            watch = asyncio.create_task(registry.unload_idle(0.01))
            await use(registry, "b")
            while "b" in loaded(registry):
                await asyncio.sleep(0.005)
            assert loaded(registry) == ["a"]  # which is in use
        while loaded(registry):
            await asyncio.sleep(0.005)
        watch.cancel()

    asyncio.run(asyncio.wait_for(run(), 60))
    with pytest.raises(InvalidRequest, match="--unload-after"):
        settings(idle_seconds=0)


@pytest.mark.parametrize(("flags", "seconds"), [((), 120.0), (("--max-wait", "5"), 5.0)])
def test_operators_say_how_long_a_request_waits(monkeypatch, flags, seconds):
    taken = []
    monkeypatch.setattr("stretto.server.serve.serve", lambda settings, *_: taken.append(settings))
    monkeypatch.setattr("stretto.cli.servers.pull_missing", lambda source: None)
    with pytest.raises(SystemExit):
        main(["serve", "mock.gguf", *flags])
    assert [settings.load_seconds for settings in taken] == [seconds]
