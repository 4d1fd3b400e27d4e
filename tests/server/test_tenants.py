"""Keys are tenants: nothing of one key's text, cells, pins or images is seen by another."""

import base64
import io
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from PIL import Image as Pillow

from serving import serving
from stretto.errors import CacheFull
from stretto.server.http.errors import translate
from tiny_vision import seeing_llm

KEYS = {"api_keys": ("ann", "bob"), "admin_keys": ("boss",)}
SECRET = "The password of the safe is 1234, and nobody is to know it."
ASK = {"model": "mock", "prompt": SECRET, "max_tokens": 4, "temperature": 0}


def client(server, key):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=server.url, timeout=60, headers=headers)


@contextmanager
def clients(*opener, **settings):
    """A server, and clients of two users and of an admin."""
    with serving(*opener, **KEYS, **settings) as server, ExitStack() as stack:
        yield server, *(stack.enter_context(client(server, key)) for key in ("ann", "bob", "boss"))


@pytest.fixture
def three():
    """Clients of two users and of an admin."""
    with clients() as (_, *found):
        yield found


def cached(web, **fields):
    answer = web.post("/v1/completions", json={**ASK, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def tokens(web):
    return bytes(cell["token"] for cell in web.get("/stretto/cells?model=mock").json()["used"]).decode()


def test_no_guess_is_confirmed_by_the_prefix_cache(three):
    ann, bob, boss = three
    assert [cached(web) for web in (ann, bob, boss)] == [0, 0, 0]
    assert [cached(web) for web in (ann, bob, boss)] == [len(SECRET) - 1] * 3
    messages = [{"role": "user", "content": SECRET}]
    found = []
    for web in (ann, bob, bob):
        chat = web.post("/v1/chat/completions", json={"model": "mock", "messages": messages, "max_tokens": 1})
        found.append(chat.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        web.post("/api/chat", json={"model": "mock", "messages": messages, "stream": False})
    assert found[0] == found[1] < found[2]
    for web, hit in ((ann, 0), (bob, 0), (ann, 1)):
        before = boss.get("/stretto/stats").json()["models"]["mock"]["cache"]["hits"]
        body = {"model": "mock", "prompt": "Side by side", "max_tokens": 2}
        assert web.post("/stretto/parallel", json=body).status_code == 200
        assert boss.get("/stretto/stats").json()["models"]["mock"]["cache"]["hits"] == before + hit


def test_cells_show_a_caller_its_own_text_alone(three):
    ann, bob, boss = three
    cached(ann)
    assert SECRET in tokens(ann)
    assert tokens(bob) == ""
    shown = bob.get("/stretto/cells?model=mock").json()
    assert (shown["used"], shown["sequences"]) == ([], [])
    assert 0 < shown["free"] < shown["cells"]
    assert SECRET in tokens(boss)


def test_pins_belong_to_their_caller(three):
    ann, bob, boss = three
    cached(ann, cache_pin="safe")
    assert bob.get("/stretto/pins?model=mock").json()["pins"] == []
    assert bob.delete("/stretto/pins/safe?model=mock").status_code == 404
    cached(bob, prompt="Another", cache_pin="safe")  # a name of its own
    assert ann.get("/stretto/pins?model=mock").json()["pins"] == [{"name": "safe", "tokens": len(SECRET)}]
    listed = {pin["caller"]: pin["tokens"] for pin in boss.get("/stretto/pins?model=mock").json()["pins"]}
    assert sorted(listed.values()) == [len("Another"), len(SECRET)]
    whose = next(caller for caller, n in listed.items() if n == len(SECRET))
    refused = bob.delete(f"/stretto/pins/safe?model=mock&caller={whose}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_only")
    assert boss.delete(f"/stretto/pins/safe?model=mock&caller={whose}").status_code == 200
    assert ann.get("/stretto/pins?model=mock").json()["pins"] == []
    assert bob.delete("/stretto/pins/safe?model=mock").status_code == 200


def test_a_full_cache_tells_nothing_of_others():
    error = CacheFull("5 cells are needed; sequence 7 has 900", n_needed=5, n_free=1)
    told = translate(error)
    assert (told.status, told.code) == (429, "cache_full")
    assert "5 cells" in told.message
    assert "sequence" not in told.message


def test_only_an_admin_unloads_a_model(three):
    ann, _, boss = three
    cached(ann)
    body = {"model": "mock", "keep_alive": 0}
    assert ann.post("/api/generate", json=body).status_code == 403
    assert ann.get("/stretto/stats").json()["models"]["mock"]["loaded"]
    assert boss.post("/api/generate", json=body).json()["done_reason"] == "unload"


def test_every_key_may_read_the_counters(three):
    ann, bob, _ = three
    cached(ann)
    assert SECRET not in bob.get("/metrics").text + bob.get("/stretto/stats").text


def test_prefixes_can_be_shared_on_purpose():
    with clients(share_prefixes=True) as (_, ann, bob, boss):
        assert [cached(web) for web in (ann, bob)] == [0, len(SECRET) - 1]
        assert tokens(ann) == tokens(bob) == ""  # shared cells have no owner
        assert SECRET in tokens(boss)


def test_one_key_shares_everything_with_itself():
    with serving(api_keys=("ann",)) as server, client(server, "ann") as ann:
        assert [cached(ann), cached(ann)] == [0, len(SECRET) - 1]
        assert SECRET in tokens(ann)
        assert ann.post("/api/generate", json={"model": "mock", "keep_alive": 0}).status_code == 403


def test_without_keys_everybody_on_this_machine_is_an_admin():
    with serving() as server, client(server, "") as web:
        cached(web)
        assert SECRET in tokens(web)
        assert web.post("/api/generate", json={"model": "mock", "keep_alive": 0}).status_code == 200


def test_images_are_encoded_for_each_caller():
    data = io.BytesIO()
    Pillow.new("RGB", (32, 24), "red").save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    body = {"model": "mock", "messages": messages, "max_tokens": 1}
    with clients(lambda entry: seeing_llm("mlp")) as (server, ann, bob, _):
        counts = []
        for web in (ann, bob, ann, bob):
            assert web.post("/v1/chat/completions", json=body).status_code == 200
            counts.append(server.llm().vision.n_encoded)
    assert counts[1] == counts[2] == counts[3] == 2 * counts[0] > 0
