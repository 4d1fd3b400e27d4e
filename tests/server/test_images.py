"""Images in requests: seen by a model that sees, refused by one that does not, and never fetched unasked."""

import base64
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import ollama
import openai
import pytest
from PIL import Image as Pillow

from serving import TINY, serving, until, visiting
from stretto import InvalidRequest
from stretto.server.generation import images
from stretto.server.settings import ModelEntry, RequestLimits
from tiny_vision import IMAGE_TEMPLATE, TEMPLATE, seeing_llm

SMALL = RequestLimits(images=2, image=10_000, pixels=10_000)


def picture(color, size=(32, 24), kind="PNG"):
    data = io.BytesIO()
    Pillow.new("RGB", size, color).save(data, kind)
    return data.getvalue()


def url_of(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def shown(*urls, text="What?"):
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


RED, BLUE = picture("red"), picture("blue")


@pytest.fixture(scope="module", params=[TEMPLATE, IMAGE_TEMPLATE], ids=["plain", "knows images"])
def server(request):
    with serving(lambda entry: seeing_llm("mlp", template=request.param), limits=SMALL) as running:
        yield running


def ask(client, messages, **more):
    return client.chat.completions.create(
        model="mock", messages=messages, temperature=0, max_tokens=4, logprobs=True, **more
    )


def test_anthropics_clients_send_blocks(client, server):
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
    text = {"type": "text", "text": "What?"}
    asked = {"model": "mock", "max_tokens": 4, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as other:
        content = [{"type": "image", "source": source}, text]
        message = other.messages.create(**asked, messages=[{"role": "user", "content": content}])
        used = message.usage
        assert message.content[0].text == ask(client, shown(url_of(RED))).choices[0].message.content
        same = ask(client, shown(url_of(RED))).usage.prompt_tokens
        assert used.input_tokens + used.cache_read_input_tokens == same
        content[0]["source"] = {"type": "url", "url": "http://127.0.0.1/x.png"}
        with pytest.raises(anthropic.BadRequestError, match="only data: URLs are taken"):
            other.messages.create(**asked, messages=[{"role": "user", "content": content}])


def test_a_picture_is_seen(client, server):
    red, blue, again = (ask(client, shown(url_of(data))) for data in (RED, BLUE, RED))
    said = [[entry.logprob for entry in one.choices[0].logprobs.content] for one in (red, blue, again)]
    assert said[0] == said[2] != said[1]
    assert red.usage.prompt_tokens > ask(client, [{"role": "user", "content": "What?"}]).usage.prompt_tokens
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    llm = server.llm()
    alone = llm.chat(
        [{"role": "user", "content": [images.Image.open(RED), "What?"]}], temperature=0, max_tokens=4
    )
    assert red.choices[0].message.content == alone.text


def test_ollama_shows_pictures(server):
    client = ollama.Client(host=server.url)
    options = {"temperature": 0, "num_predict": 4}
    messages = [{"role": "user", "content": "What?", "images": [RED]}]
    chat = client.chat(model="mock", messages=messages, options=options)
    drawn = client.generate(model="mock", prompt="What?", images=[RED], options=options)
    assert chat.message.content == drawn.response
    assert chat.prompt_eval_count == drawn.prompt_eval_count > 10
    assert "vision" not in client.show("mock").capabilities  # the file says nothing of it, the opener does
    with pytest.raises(ollama.ResponseError, match="raw"):
        client.generate(model="mock", prompt="What?", images=[RED], raw=True)
    with pytest.raises(ollama.ResponseError, match=r"base64|cannot be|none of"):
        client.chat(model="mock", messages=[{"role": "user", "content": "a", "images": [b"no picture"]}])
    client.close()


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (["data:image/png;base64,AAAA"], "none of"),
        (["data:image/png;base64,!!"], "not base64"),
        ([url_of(picture("red", (200, 200)))], "10,000"),
        ([url_of(RED)] * 3, "at most 2"),
        (["data:image/png;base64," + "A" * 20_000], "at most 10,000"),
        (["https://example.org/cat.png"], "has not allowed"),
        (["/etc/passwd"], "has not allowed"),
        (["file:///etc/passwd"], "has not allowed"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_picture_is_refused(client, urls, said):
    with pytest.raises(openai.BadRequestError, match=said) as refused:
        ask(client, shown(*urls))
    assert refused.value.param.startswith(("messages[0].content[0]", "images"))


def test_a_model_that_sees_nothing_says_so():
    with visiting() as (_, web):
        body = {"model": "mock", "messages": shown(url_of(RED))}
        refused = web.post("/v1/chat/completions", json=body).json()["error"]
        assert (refused["code"], refused["param"]) == ("unsupported", "messages")


def test_pictures_are_fetched_where_that_is_allowed(monkeypatch):
    asked = []

    def fetch(url, param, most, seconds=10.0):
        asked.append((url, most))
        return RED

    monkeypatch.setattr(images, "fetch", fetch)
    with visiting(lambda entry: seeing_llm("mlp"), remote_images=True) as (_, web):
        body = {"model": "mock", "messages": shown("https://example.org/cat.png"), "max_tokens": 2}
        assert web.post("/v1/chat/completions", json=body).status_code == 200
        assert asked == [("https://example.org/cat.png", RequestLimits().image)]
        monkeypatch.undo()
        inside = {**body, "messages": shown("http://127.0.0.1/cat.png")}
        refused = web.post("/v1/chat/completions", json=inside).json()["error"]
        assert refused["code"] == "private_address"


def test_a_site_that_does_not_answer_holds_up_nobody_else(monkeypatch):
    answer = threading.Event()

    def fetch(url, param, most, seconds=10.0):
        answer.wait(60)
        return RED

    monkeypatch.setattr(images, "fetch", fetch)
    with serving(lambda entry: seeing_llm("mlp"), remote_images=True) as server:
        body = {"model": "mock", "messages": shown("https://slow.example/cat.png"), "max_tokens": 2}
        url = f"{server.url}/v1/chat/completions"
        with ThreadPoolExecutor(32) as clients, httpx.Client(timeout=60) as web:
            waiting = [clients.submit(httpx.post, url, json=body, timeout=60) for _ in range(32)]
            until(lambda: len(server.state.generations) == 32)
            plain = {**body, "messages": [{"role": "user", "content": "What?"}]}
            assert web.post(url, json=plain).status_code == 200
            answer.set()
            assert {one.result().status_code for one in waiting} == {200}


def test_which_model_sees():
    entries = (ModelEntry("a", str(TINY)), ModelEntry("b", str(TINY)))
    assert [entry.vision for entry in ModelEntry.with_vision(entries, ["b=m.gguf"])] == [None, "m.gguf"]
    assert ModelEntry.with_vision(entries[:1], ["m.gguf"])[0].vision == "m.gguf"
    for wrong in ("m.gguf", "c=m.gguf", "a="):
        with pytest.raises(InvalidRequest, match="--vision takes"):
            ModelEntry.with_vision(entries, [wrong])


def test_images_of_all_requests_have_a_limit():
    """They take memory until their request ends, whoever sent it."""

    def slow(entry):
        llm = seeing_llm("mlp")
        loop = llm.backend.loop

        def later(run):
            time.sleep(0.3)
            return loop(run)

        llm.backend.loop = later
        return llm

    with serving(slow, limits=RequestLimits(all_images=1)) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        with client:
            messages = shown(url_of(RED))
            more = {"model": "mock", "stream": True, "max_tokens": 100, "extra_body": {"ignore_eos": True}}
            with client.chat.completions.create(messages=messages, **more) as stream:
                next(iter(stream))
                with pytest.raises(openai.RateLimitError, match="1 images are being processed") as refused:
                    ask(client, messages)
                assert refused.value.response.headers["retry-after"] == "1"
                assert ask(client, [{"role": "user", "content": "What?"}]).choices
            until(lambda: not running.state.generations)
            assert ask(client, messages).choices
