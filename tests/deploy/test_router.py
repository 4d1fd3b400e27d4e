"""The router on Ray's own classes, without a cluster: it orders replicas, learns, never raises."""

import asyncio
import json
import random
from types import SimpleNamespace

import pytest

pytest.importorskip("ray.serve", reason="Ray is not installed")

from ray import cloudpickle
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from stretto.deploy import router as module
from stretto.deploy.asks import TextModel, read_ask
from stretto.deploy.policy import Ask
from stretto.deploy.prefixes import chain, hash_tenant, pack_keys, seed
from stretto.deploy.router import Ingress, KnownModels, PrefixRouter, RayRouter, configure
from stretto.errors import InvalidRequest
from stretto.testing import mock_llm

HERE = DeploymentID(name="stretto", app_name="app")
CHAT = list(range(1, 11))
SAID = [{"role": "user", "content": "Tell me all about the mouse behind the clock, please, and slowly. " * 4}]


class FakeReplica:
    """A replica as routers see it."""

    def __init__(self, name, report=None):
        self.replica_id = ReplicaID(name, deployment_id=HERE)
        self.routing_stats = report or {}


class Strange:
    """Something with an attribute that raises whatever is asked."""

    def __getattr__(self, name):
        raise AttributeError(name) if name.startswith("__") else RuntimeError(name)


def made(**fields):
    found = PrefixRouter(HERE, DeploymentHandleSource.UNKNOWN)
    found.initialize_state(**fields)
    return found


def pending(*args, session=""):
    metadata = RequestMetadata(request_id="1", internal_request_id="1", session_id=session)
    return PendingRequest(list(args), {}, metadata, future=SimpleNamespace())


def names(router, replicas, request=None):
    chosen = asyncio.run(router.choose_replicas(replicas, request))
    return [replica.replica_id.unique_id for rank in chosen for replica in rank]


def test_a_request_goes_to_the_replica_that_reported_its_prefix():
    replicas = [FakeReplica("a"), FakeReplica("b", {"keys": pack_keys(CHAT)}), FakeReplica("c")]
    router = made()
    assert names(router, replicas, pending(Ask(CHAT)))[0] == "b"
    replicas[1].routing_stats = {"keys": b""}  # evicted
    replicas[2].routing_stats = {"keys": pack_keys(CHAT[:9])}
    router.holdings.picks.clear()
    assert names(router, replicas, pending(Ask(CHAT)))[0] == "c"


def test_the_next_turn_follows_before_any_report():
    router, replicas = made(), [FakeReplica(name) for name in "abcd"]
    place = names(router, replicas, pending(Ask(CHAT)))[0]
    others = [names(router, replicas, pending(Ask(range(100 * n, 100 * n + 10))))[0] for n in range(2, 5)]
    assert place not in others
    assert names(router, replicas, pending(Ask([*CHAT, 11])))[0] == place


def test_every_replica_is_offered_and_a_gone_one_is_not():
    router, replicas = made(), [FakeReplica(name) for name in "abc"]
    assert sorted(names(router, replicas, pending(Ask(CHAT)))) == ["a", "b", "c"]
    assert sorted(names(router, replicas[:2], pending(Ask(CHAT)))) == ["a", "b"]
    assert names(router, [], pending(Ask(CHAT))) == []


def test_a_session_header_sticks_where_there_is_no_body():
    router, replicas = made(), [FakeReplica(name) for name in "abcd"]
    placed = {names(router, replicas, pending(b"asgi", session="ann"))[0] for _ in range(3)}
    assert len(placed) == 1


def test_requests_back_off_while_all_replicas_are_full():
    request = pending(Ask())
    names(made(), [FakeReplica("a")], request)
    assert request.routing_context.should_backoff


@pytest.mark.parametrize("kind", [PrefixRouter, RayRouter])
def test_a_request_that_names_its_replica_goes_there_and_to_no_other(kind):
    replicas = [FakeReplica(name) for name in "abc"]
    router = kind(deployment_id=HERE, handle_source=DeploymentHandleSource.UNKNOWN)
    router.initialize_state()
    router._replica_id_set, router._replicas = (
        {one.replica_id for one in replicas},
        {one.replica_id: one for one in replicas},
    )
    assert names(router, replicas, pending({}, Ask(replica="b"))) == ["b"]
    gone = names(router, replicas, pending({}, Ask(replica="z")))
    assert len(gone) >= 2  # any of them says that it has not got it


@pytest.mark.parametrize(
    "argument",
    [None, 5, b"bytes", {"body": 1}, SimpleNamespace(body=[]), Strange(), Ask(CHAT, "\ud800", 1 << 70)],
)
def test_no_argument_raises(argument):
    router, replicas = made(), [FakeReplica("a"), FakeReplica("b")]
    assert sorted(names(router, replicas, pending(Strange() if argument == "strange" else argument))) == [
        "a",
        "b",
    ]
    assert sorted(names(router, replicas, None)) == ["a", "b"]
    assert sorted(names(router, replicas, Strange())) == ["a", "b"]


@pytest.mark.parametrize(
    "report", ["text", {"keys": 5}, {"running": "x", "models": [1]}, {"models": {1: 2}}, 7]
)
def test_no_report_raises(report):
    replicas = [FakeReplica("a", report), FakeReplica("b")]
    assert sorted(names(made(), replicas, pending(Ask(CHAT)))) == ["a", "b"]


def test_no_hostile_body_raises_in_the_router():
    llm, rng = mock_llm("Hi"), random.Random(11)
    models = {"mock": TextModel(llm.tokenizer, llm.template)}
    router, replicas = made(), [FakeReplica(name) for name in "abc"]
    whole = json.dumps({"model": "mock", "messages": SAID, "previous_response_id": "r", "tools": []}).encode()

    async def route_all():
        for _ in range(500):
            data = bytearray(whole)
            for _ in range(rng.randint(0, 5)):
                at = rng.randrange(len(data))
                data[at : at + rng.randint(1, 20)] = rng.choice((b"", b"[", b"{", b"\x00", b"1e400", b'"'))
            ask = read_ask(bytes(data), models, rng.choice(("", "s", "\x00")))
            assert len(await router.choose_replicas(replicas, pending(ask))) == 3

    asyncio.run(route_all())


class Chosen:
    def __init__(self, handle, ask):
        handle.asks.append(ask)
        self._replica = FakeReplica("a")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None


class FakeHandle:
    """A handle that notes what it is asked for."""

    def __init__(self, error=None):
        self.asks, self.error = [], error

    def _init(self, **options):
        pass

    def choose_replica(self, ask, _reserve):
        assert _reserve is False
        if self.error is not None:
            raise self.error
        return Chosen(self, ask)


def routed(handle, body, headers=()):
    """The status and the JSON that HAProxy gets for a body in two pieces."""
    pieces = [body[: len(body) // 2], body[len(body) // 2 :]]
    sent = []

    async def receive():
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/internal/route", "headers": list(headers)}
    asyncio.run(Ingress(handle).__serve_build_asgi_app__()(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture
def known(monkeypatch):
    llm = mock_llm("Hi")
    found = KnownModels(lambda path: TextModel(llm.tokenizer, llm.template))
    found.models["mock"] = TextModel(llm.tokenizer, llm.template)
    monkeypatch.setattr("stretto.deploy.router.MODELS", found)
    return found


def test_the_ingress_answers_with_the_name_that_haproxy_knows(known):
    handle = FakeHandle()
    status, answer = routed(handle, json.dumps({"model": "mock", "messages": SAID}).encode())
    assert (status, answer) == (200, {"replica_id": FakeReplica("a").replica_id.to_full_id_str()})
    (ask,) = handle.asks
    assert ask.is_exact
    assert len(ask.keys) > 4


def test_the_ingress_takes_the_session_header(known):
    handle = FakeHandle()
    routed(handle, b"{}", [(b"x-session-id", b"ann")])
    assert handle.asks[0].session == "ann"


def test_the_ingress_salts_keys_where_tenants_share_nothing(known, monkeypatch):
    monkeypatch.setattr(module, "SESSION_HEADER", "authorization")
    text = "The mouse lives behind the clock in the hall."
    handle, body = FakeHandle(), json.dumps({"model": "mock", "prompt": text}).encode()
    for is_salted in (True, False):
        known.is_salted = is_salted
        routed(handle, body, [(b"authorization", b"Bearer ann")])
    assert list(handle.asks[0].keys) == chain(seed("mock", "", hash_tenant("ann")), list(text.encode()))
    assert list(handle.asks[1].keys) == chain(seed("mock"), list(text.encode()))
    assert [ask.session for ask in handle.asks] == ["", ""]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff" * 100, b"[" * 9999, b'{"model": []}', b'{"messages": {}}']
)
def test_the_ingress_answers_to_any_body(known, body):
    assert routed(FakeHandle(), body)[0] == 200


def test_the_ingress_starts_and_ends_as_servers_ask():
    asked, sent = ["lifespan.startup", "lifespan.shutdown"], []

    async def receive():
        return {"type": asked.pop(0)}

    async def send(message):
        sent.append(message["type"])

    application = Ingress(FakeHandle()).__serve_build_asgi_app__()
    asyncio.run(application({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_an_ingress_without_replicas_says_so(known):
    assert routed(FakeHandle(RuntimeError("none")), b"{}")[0] == 503


def test_models_that_replicas_report_are_loaded_once():
    opened = []
    found = KnownModels(lambda path: opened.append(path) or mock_llm("x"))
    for _ in range(3):
        found.take_report({"models": {"m": ("/models/m.gguf", 5)}, "salted": True})
    found.take_report({"models": {"n": ("relative", 5), 3: ("/x", 1), "o": "/x", "p": ("/x",)}})
    while not found.ready():
        pass
    assert opened == ["/models/m.gguf"]


def test_a_model_that_cannot_be_read_is_left_out():
    found = KnownModels()
    found.load("m", "/there/is/no.gguf")
    assert not found.ready()


def test_a_configuration_names_the_router_and_checks_its_fields():
    options = configure({"num_replicas": 2}, margin=8)
    assert options["num_replicas"] == 2
    assert options["request_router_config"].get_request_router_class() is PrefixRouter
    with pytest.raises(InvalidRequest, match="margin"):
        configure({}, margin=-1)


def test_ingress_and_router_know_the_same_models_when_pickled_by_value(monkeypatch):
    """As Ray does with modules that are not in site-packages; requests were then routed by their text."""
    cloudpickle.register_pickle_by_value(module)
    try:
        ingress, router = (cloudpickle.loads(cloudpickle.dumps(kind)) for kind in (Ingress, PrefixRouter))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    globals_of = ingress.ask.__globals__, router.learn.__globals__
    assert globals_of[0] is not globals_of[1]
    assert globals_of[0]["known_models"]() is globals_of[1]["known_models"]() is module.MODELS
