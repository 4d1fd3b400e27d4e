"""Programs that people have already, unchanged, against `stretto serve` with a real model."""

import asyncio
import json
import os
import shutil
import subprocess
import sys

import anthropic
import ollama
import openai
import pytest

import stretto
from serving import STRETTO

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def address(smollm2_path):
    """The command itself, in a process of its own, with a key."""
    command = [*STRETTO, "serve", "--port", "0", "--model", f"smollm2={smollm2_path}", "--cells", "4096"]
    environment = {**os.environ, "STRETTO_API_KEY": "a-key"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def expected(smollm2_path):
    """What the model says without a server: the same bits."""
    with stretto.load(smollm2_path, cells=512) as llm:
        yield llm.chat(MESSAGES, temperature=0, max_tokens=20).text


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="a-key", max_retries=0, timeout=60) as made:
        yield made


def test_openai_answers(client, expected):
    answer = client.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        temperature=0,
        max_tokens=20,
        seed=1,
        logprobs=True,
        top_logprobs=2,
    )
    (choice,) = answer.choices
    assert choice.message.content == expected
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens == len(choice.logprobs.content) - (choice.finish_reason == "stop")
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    assert answer.model_extra["timings"]["tokens_per_second"] > 0


def test_openai_streams(client, expected):
    with client.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        temperature=0,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == expected
    assert 0 < chunks[-1].usage.completion_tokens <= 20


def test_openai_with_asyncio(address):
    async def run():
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="a-key", max_retries=0) as client:

            async def one(number):
                stream = await client.completions.create(
                    model="smollm2", prompt=f"{number} and", max_tokens=8, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            together = await asyncio.gather(*(one(number) for number in range(6)))
            return together, [await one(number) for number in range(6)]

    together, alone = asyncio.run(run())
    assert together == alone
    assert all(together)


def test_openai_responds_and_goes_on(client, expected):
    first = client.responses.create(
        model="smollm2", input=MESSAGES[0]["content"], temperature=0, max_output_tokens=20
    )
    assert first.output_text == expected
    second = client.responses.create(
        model="smollm2", input="And of Italy?", previous_response_id=first.id, max_output_tokens=5
    )
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens


def test_openai_completes_several(client):
    answer = client.completions.create(
        model="smollm2", prompt=["One, two,", "A, B,"], n=2, max_tokens=4, temperature=0, stop=["five"]
    )
    assert len(answer.choices) == 4
    assert answer.choices[0].text == answer.choices[1].text != answer.choices[2].text


def test_openai_embeds(client):
    texts = ["a cat", "a kitten", "the stock market fell"]
    found = client.embeddings.create(model="smollm2", input=texts)  # in base64, as the package asks for it
    vectors = [item.embedding for item in found.data]
    plain = client.embeddings.create(model="smollm2", input=texts, encoding_format="float").data
    assert vectors[0] == pytest.approx(plain[0].embedding)
    assert sum(x * x for x in vectors[0]) == pytest.approx(1, abs=1e-4)

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2])
    assert found.usage.prompt_tokens > 3


def test_openai_lists_models(client):
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "stretto"


def test_openai_raises_what_it_should(client, address):
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="smollm2", messages=MESSAGES, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(model="smollm2", messages=MESSAGES, extra_body={"bogus": 1})
    assert unknown.value.code == "unknown_field"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    stranger = openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="smollm2", prompt="word " * 5000)
    assert long.value.code == "context_length_exceeded"
    assert "4096" in str(long.value)


def test_openai_takes_extensions(client):
    extra = {"min_p": 0.1, "repetition_penalty": 1.2, "top_k": 5, "cache_pin": "france"}
    answer = client.chat.completions.create(
        model="smollm2", messages=MESSAGES, max_tokens=5, seed=7, extra_body=extra
    )
    again = client.chat.completions.create(
        model="smollm2", messages=MESSAGES, max_tokens=5, seed=7, extra_body=extra
    )
    assert answer.choices[0].message.content == again.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def test_anthropic_answers_and_streams(address, expected):
    asked = {"model": "smollm2", "max_tokens": 20, "messages": MESSAGES, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=address, api_key="a-key", max_retries=0) as made:
        assert made.messages.create(**asked).content[0].text == expected
        with made.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == expected
        counted = made.messages.count_tokens(model="smollm2", messages=MESSAGES).input_tokens
        usage = stream.get_final_message().usage
        assert counted == usage.input_tokens + usage.cache_read_input_tokens


@pytest.fixture(scope="module")
def llama(address):
    made = ollama.Client(host=address, headers={"authorization": "Bearer a-key"})
    yield made
    made.close()


def test_ollama_chats(llama, expected):
    options = {"temperature": 0, "num_predict": 20}
    whole = llama.chat(model="smollm2", messages=MESSAGES, options=options)
    assert whole.message.content == expected
    assert whole.done_reason in ("stop", "length")
    assert whole.eval_count <= 20
    assert whole.total_duration > whole.eval_duration > 0
    stream = list(llama.chat(model="smollm2:latest", messages=MESSAGES, options=options, stream=True))
    assert "".join(piece.message.content for piece in stream) == whole.message.content
    assert stream[-1].done


def test_ollama_generates(llama):
    options = {"temperature": 0, "num_predict": 5, "stop": ["."], "seed": 3, "repeat_penalty": 1.1}
    raw = llama.generate(model="smollm2", prompt="One, two, three,", raw=True, options=options)
    assert "four" in raw.response
    pieces = list(
        llama.generate(model="smollm2", prompt="Hi", system="Be brief.", options=options, stream=True)
    )
    assert pieces[-1].done
    assert pieces[-1].prompt_eval_count > 5


def test_ollama_lists_shows_and_embeds(llama):
    (model,) = llama.list().models
    assert model.model == "smollm2:latest"
    assert model.size == 98_362_432
    assert model.details.family == "llama"
    shown = llama.show("smollm2")
    assert shown.modelinfo["general.architecture"] == "llama"
    assert "<|im_start|>" in shown.template
    found = llama.embed(model="smollm2", input=["a cat", "a dog"])
    assert [len(vector) for vector in found.embeddings] == [576, 576]


def test_ollama_raises_what_it_should(llama):
    with pytest.raises(ollama.ResponseError, match="there is no model 'llama3'") as missing:
        llama.chat(model="llama3", messages=MESSAGES)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="num_ctx"):
        llama.chat(model="smollm2", messages=MESSAGES, options={"num_ctx": 100_000})
    with pytest.raises(ollama.ResponseError, match="mirostat"):
        llama.chat(model="smollm2", messages=MESSAGES, options={"mirostat": 2})


@pytest.mark.slow
def test_the_llm_command(address, expected, tmp_path):
    entry = f"- model_id: here\n  model_name: smollm2\n  api_base: {address}/v1\n  api_key_name: stretto\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    (tmp_path / "keys.json").write_text(json.dumps({"stretto": "a-key"}))
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    command = [sys.executable, "-m", "llm", "-m", "here", "-o", "temperature", "0", "-o", "max_tokens", "20"]
    for more in ([], ["--no-stream"]):
        done = subprocess.run(
            [*command, *more, MESSAGES[0]["content"]],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == expected.strip()


def test_curl(address):
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")

    def curl(*words):
        done = subprocess.run(
            ["curl", "-sS", "-N", "-H", "Authorization: Bearer a-key", *words],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    body = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 5, "temperature": 0}
    assert json.loads(curl(f"{address}/v1/chat/completions", "-d", json.dumps(body)))["choices"]
    streamed = curl(f"{address}/v1/chat/completions", "-d", json.dumps({**body, "stream": True}))
    assert streamed.startswith("data: {")
    assert streamed.endswith("data: [DONE]\n\n")
    assert json.loads(curl(f"{address}/health"))["status"] == "ok"
    assert "stretto_decoded_tokens_total" in curl(f"{address}/metrics")
