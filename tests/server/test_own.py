"""`/stretto/…`, `/metrics`, `/docs`: what only Stretto has."""

import itertools
import json
import re
import time

import httpx
import numpy as np
import pytest

from serving import HELLO, serving
from stretto import LLM, inside
from stretto.backends.native import NativeBackend
from stretto.parallel.types import Attention
from stretto.server.own import endpoints
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec


def tiny(entry):
    """A real model, random and tiny."""
    return LLM(NativeBackend(tiny_file("llama"), tiny_spec("llama"), 256, 1), byte_tokenizer())


@pytest.fixture(scope="module")
def small():
    with serving(tiny) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        yield client


def test_tokens_and_texts(web):
    found = web.post("/stretto/tokenize", json={"model": "mock", "text": "Hé<|end|>"}).json()
    assert found["tokens"] == [72, 195, 169, 257]
    assert found["count"] == 4
    assert found["pieces"][-1] == "<|end|>"
    assert found["timings"]["total"] > 0
    back = web.post("/stretto/tokenize", json={"model": "mock", "tokens": found["tokens"]}).json()
    assert back["text"] == "Hé<|end|>"
    plain = web.post("/stretto/tokenize", json={"model": "mock", "text": "<|end|>", "special": False}).json()
    assert plain["count"] == 7
    for wrong in ({}, {"text": "a", "tokens": [1]}):
        assert web.post("/stretto/tokenize", json={"model": "mock", **wrong}).status_code == 400
    assert web.post("/stretto/tokenize", json={"model": "mock", "tokens": [999]}).status_code == 400


def test_scores_are_those_of_the_model(small):
    tokens = [1, 5, 9, 2, 7]
    found = small.post("/stretto/score", json={"model": "mock", "text": tokens}).json()
    with tiny(None) as llm:
        expected = llm.score(tokens)
    assert found["logprobs"][0] is None
    assert found["logprobs"][1:] == pytest.approx(expected.tolist())
    assert found["total"] == pytest.approx(float(expected.sum()), rel=1e-5)
    assert small.post("/stretto/score", json={"model": "mock", "text": [1]}).status_code == 400


def test_layers_say_what_the_lens_shows(small):
    tokens = [1, 5, 9, 2, 7]
    with tiny(None) as llm:
        lens = inside.logit_lens(llm, tokens, top=3)
    for place, expected in [(None, 4), (-2, 3), (1, 1)]:
        asked = {"model": "mock", "prompt": tokens, "top": 3} | ({} if place is None else {"place": place})
        found = small.post("/stretto/layers", json=asked).json()
        assert (found["place"], found["token"]) == (expected, tokens[expected])
        ids = [[one["id"] for one in layer] for layer in found["layers"]]
        assert ids == lens.tokens[:, expected].tolist()
        logprobs = [[one["logprob"] for one in layer] for layer in found["layers"]]
        np.testing.assert_allclose(logprobs, lens.logprobs[:, expected], atol=1e-4)
    for wrong in ({"place": 5}, {"place": -6}, {"top": 0}, {"prompt": []}):
        asked = {"model": "mock", "prompt": tokens} | wrong
        assert small.post("/stretto/layers", json=asked).status_code == 400


def test_models_that_show_no_layers_say_so(web):
    asked = {"model": "mock", "prompt": "Hi"}
    assert web.post("/stretto/layers", json=asked).status_code == 400


def test_embeddings_are_those_of_the_model(small):
    asked = {"model": "mock", "input": [[1, 2, 3], [4, 5]], "pooling": "last", "normalize": False}
    found = small.post("/v1/embeddings", json=asked).json()
    with tiny(None) as llm:
        expected = llm.embed([[1, 2, 3], [4, 5]], pooling="last", normalize=False)
    assert [item["index"] for item in found["data"]] == [0, 1]
    for item, vector in zip(found["data"], expected, strict=True):
        assert item["embedding"] == pytest.approx(vector.tolist())
    assert found["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    cut = small.post("/v1/embeddings", json={**asked, "dimensions": 5, "normalize": True}).json()
    first = expected[0][:5] / np.linalg.norm(expected[0][:5])
    assert cut["data"][0]["embedding"] == pytest.approx(first.tolist(), rel=1e-5)
    wrong = small.post("/v1/embeddings", json={**asked, "dimensions": 100_000})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "dimensions")
    assert small.post("/v1/embeddings", json={**asked, "input": [[1] * 300]}).status_code == 400


def test_texts_to_embed_may_be_mixtures_and_objects(small):
    def vectors(given):
        answer = small.post("/v1/embeddings", json={"input": given})
        assert answer.status_code == 200, answer.text
        return [item["embedding"] for item in answer.json()["data"]]

    parts = {"content": [{"type": "text", "text": "HELLO "}, {"type": "text", "text": "YOU"}]}
    plain, one, two, three = vectors(
        ["HELLO YOU", {"prompt_string": "HELLO YOU"}, parts, ["HELLO", 32, "YOU"]]
    )
    assert plain == one == two == three
    assert (
        vectors(parts) == vectors({"prompt_string": "HELLO YOU"}) == vectors(["HELLO", 32, "YOU"]) == [plain]
    )
    assert small.post("/v1/embeddings", json={"input": {"content": []}}).status_code == 400


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_vectors_in_llama_servers_form(small, path):
    with tiny(None) as llm:
        pooled, plain = llm.embed([[1, 2, 3], [4, 5]]), llm.token_vectors([[1, 2, 3], [4, 5]])
        assert plain[0].mean(axis=0) == pytest.approx(llm.embed([[1, 2, 3]], normalize=False)[0], rel=1e-4)
    found = small.post(path, json={"input": [[1, 2, 3], [4, 5]]}).json()
    assert [one["index"] for one in found] == [0, 1]
    for one, vector in zip(found, pooled, strict=True):
        assert one["embedding"][0] == pytest.approx(vector.tolist())
    found = small.post(path, json={"content": [[1, 2, 3], [4, 5]], "pooling": "none"}).json()
    assert [len(one["embedding"]) for one in found] == [3, 2]
    for one, rows in zip(found, plain, strict=True):
        assert np.array(one["embedding"]) == pytest.approx(rows, rel=1e-5)
    assert small.post("/v1/embeddings", json={"input": "HELLO", "pooling": "none"}).status_code == 400
    assert small.post(path, json={}).json()["error"]["param"] == "input"


def test_a_model_without_states_says_so(web):
    refused = web.post("/v1/embeddings", json={"model": "mock", "input": "a"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported")


def test_parallel_steps_are_streamed(small):
    asked = {"model": "mock", "prompt": [1, 2, 3], "threshold": 0.01, "max_tokens": 6, "ignore_eos": True}
    whole = small.post("/stretto/parallel", json=asked).json()
    assert len(whole["steps"]) == 6
    assert whole["timings"]["total"] > 0
    lines = [
        line
        for line in small.post("/stretto/parallel", json={**asked, "stream": True}).text.split("\n\n")
        if line
    ]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    steps = [event["step"] for event in events[:-1]]
    assert [[m["id"] for m in step["members"]] for step in steps] == [
        [m["id"] for m in step["members"]] for step in whole["steps"]
    ]
    assert max(len(step["members"]) for step in steps) > 1
    assert events[-1]["result"]["brackets"] == whole["brackets"]
    with tiny(None) as llm:
        alone = llm.parallel([1, 2, 3], threshold=0.01, max_tokens=6, ignore_eos=True)
    assert whole["brackets"] == alone.brackets


def events_of(client, body):
    """The events of a streamed run."""
    lines = client.post("/stretto/parallel", json={**body, "stream": True}).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]


def test_parallel_says_what_is_wrong(small):
    for wrong, param in [
        ({"threshold": 0}, "threshold"),
        ({"mode": "x"}, "mode"),
        ({"prompt": []}, "prompt"),
    ]:
        body = {"model": "mock", "prompt": [1, 2], "stream": True, **wrong}
        refused = small.post("/stretto/parallel", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_a_streamed_step_has_its_edges_and_what_was_pruned(small):
    asked = {"model": "mock", "prompt": [1, 2, 3], "threshold": 0.01, "max_tokens": 9, "ignore_eos": True}
    events = events_of(small, {**asked, "prune": 0.99, "prune_after": 1})
    steps, result = [event["step"] for event in events[:-1]], events[-1]["result"]
    for before, step in itertools.pairwise(steps):
        assert len(step["edges"]) in (1, len(before["members"]))
        assert {len(row) for row in step["edges"]} == {len(step["members"])}
    found = {tuple(place) for step in steps for place in step["pruned"]}
    removed = {
        (i, j)
        for i, step in enumerate(result["steps"])
        for j, member in enumerate(step["members"])
        if not member["kept"]
    }
    assert found
    assert found <= removed


def test_attention_of_a_run_comes_in_brief(small):
    asked = {"model": "mock", "prompt": [1, 2, 3], "threshold": 0.01, "max_tokens": 5, "ignore_eos": True}
    whole = small.post("/stretto/parallel", json={**asked, "attention": True}).json()
    with tiny(None) as llm:
        alone = llm.parallel([1, 2, 3], threshold=0.01, max_tokens=5, ignore_eos=True, attention=True)
    assert "attention" not in whole["steps"][-1]  # the last set is not computed
    for told, step in zip(whole["steps"][:-1], alone.steps[:-1], strict=True):
        found = told["attention"]
        np.testing.assert_allclose(found["weights"], step.attention.weights.mean((0, 1)), atol=1e-5)
        assert found["tokens"] == step.attention.tokens.tolist()
        assert found["positions"] == step.attention.positions.tolist()
        assert len(found["pieces"]) == len(found["cells"]) == len(found["tokens"])
    events = events_of(small, {**asked, "attention": True})
    streamed = [event["attention"] for event in events if "attention" in event]
    assert [found.pop("index") for found in streamed] == [0, 1, 2, 3]
    assert [found["weights"] for found in streamed] == [
        step["attention"]["weights"] for step in whole["steps"][:-1]
    ]


def test_attention_that_takes_too_much_memory_is_refused(small, monkeypatch):
    monkeypatch.setattr(endpoints, "ATTENTION_BYTES", 1 << 20)
    body = {"model": "mock", "prompt": [1, 2], "attention": True}
    refused = small.post("/stretto/parallel", json={**body, "max_width": 256})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "attention")
    assert "max_tokens" in refused.json()["error"]["message"]
    assert small.post("/stretto/parallel", json={**body, "max_tokens": 4}).status_code == 200


def test_only_the_columns_with_the_most_attention_are_told():
    n = 3 * endpoints.ATTENTION_COLUMNS
    weights = np.linspace(0, 1, n, dtype=np.float32)[::-1].reshape(1, 1, 1, n)
    numbers = np.arange(n, dtype=np.int32)
    found = endpoints.shorten_attention(
        Attention(weights, numbers, numbers, numbers * 0 - 1), byte_tokenizer()
    )
    assert found["positions"] == list(range(endpoints.ATTENTION_COLUMNS))
    assert set(found["pieces"]) == {""}  # an image has no text


def test_the_cells_are_shown(web, server):
    web.post("/v1/completions", json={"model": "mock", "prompt": "abc", "temperature": 0})
    found = web.get("/stretto/cells?model=mock").json()
    assert found["cells"] == 1024
    assert len(found["used"]) == found["cells"] - found["free"]
    by_cell = {entry["cell"]: entry for entry in found["used"]}
    sequence = next(s for s in found["sequences"] if by_cell[s["cells"][0]]["token"] == ord("a"))
    assert sequence["state"] == "parked"
    assert bytes(by_cell[cell]["token"] for cell in sequence["cells"]).decode().startswith("abc" + HELLO[:10])
    assert [by_cell[cell]["position"] for cell in sequence["cells"]] == list(range(len(sequence["cells"])))
    assert web.get("/stretto/cells").status_code == 400
    assert web.get("/stretto/cells?model=x").status_code == 404


def test_statistics_and_hardware(web):
    web.post("/v1/completions", json={"model": "mock", "prompt": "abc"})
    stats = web.get("/stretto/stats").json()
    mock = stats["models"]["mock"]
    assert mock["loaded"]
    assert mock["engine"]["decoded_tokens"] > 0
    assert mock["cache"]["cells"] == 1024
    assert stats["memory"]["loaded"] == mock["need"]
    assert stats["cpu"]["process"] >= stats["cpu"]["loop"] > 0
    assert web.get("/stretto/hardware").json()["cores_usable"] >= 1


METRIC = re.compile(r'(llamacpp:|vllm:)?[a-z_0-9]+(\{([a-z_]+="[^"\n]*",?)*\})? [0-9.e+-]+(inf)?')


def test_metrics_can_be_read_by_prometheus(web):
    web.post("/v1/completions", json={"model": "mock", "prompt": "abc", "max_tokens": 3, "temperature": 0})
    answer = web.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    for line in lines:
        assert line.startswith(("# HELP ", "# TYPE ")) or METRIC.fullmatch(line), line
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert int(values['stretto_http_responses_total{path="/v1/completions",status="200"}']) >= 1
    assert float(values['stretto_finished_total{model="mock",reason="length"}']) >= 1
    buckets = [float(v) for k, v in values.items() if k.startswith("stretto_first_token_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == float(values['stretto_first_token_seconds_count{model="mock"}'])


VLLM = """num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc cache_config_info
prompt_tokens_total generation_tokens_total num_preemptions_total prefix_cache_queries_total
prefix_cache_hits_total request_success_total time_to_first_token_seconds_bucket
time_per_output_token_seconds_bucket inter_token_latency_seconds_bucket e2e_request_latency_seconds_bucket
request_queue_time_seconds_sum request_prefill_time_seconds_sum request_decode_time_seconds_sum
request_prompt_tokens_bucket request_generation_tokens_bucket iteration_tokens_total_count"""


def test_dashboards_for_vllm_find_their_names(web):
    body = {"model": "mock", "prompt": "abcdefgh", "max_tokens": 3, "temperature": 0}
    web.post("/v1/completions", json=body)
    lines = [line for line in web.get("/metrics").text.splitlines() if not line.startswith("#")]
    values = dict(line.rsplit(" ", 1) for line in lines)
    labels = 'model_name="mock",engine="0"'
    for name in VLLM.split():
        assert any(key.startswith(f"vllm:{name}{{{labels}") for key in values), name
    finished = f'vllm:request_success_total{{{labels},finished_reason="length"}}'
    assert float(values[finished]) >= 1
    n_texts = float(values['stretto_request_seconds_count{model="mock"}'])
    for name in ("e2e_request_latency_seconds", "request_generation_tokens"):
        assert float(values[f"vllm:{name}_count{{{labels}}}"]) == n_texts
    assert float(values['stretto_queue_seconds_count{model="mock"}']) == n_texts


def test_metrics_tell_of_the_process(web):
    lines = [line for line in web.get("/metrics").text.splitlines() if line.startswith("process_")]
    values = {name: float(value) for name, value in (line.split() for line in lines)}
    assert values["process_cpu_seconds_total"] > 0
    assert abs(time.time() - values["process_start_time_seconds"]) < 86400
    assert 3 <= values["process_open_fds"] <= values["process_max_fds"]
    assert values["process_resident_memory_bytes"] > 1 << 20


def test_the_page_of_documentation_loads_nothing(web):
    page = web.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"(src|href)=[\"']?https?:", page.text)
    for path in web.get("/openapi.json").json()["paths"]:
        assert path in page.text
    for field in ("min_p", "repetition_penalty", "cache_pin", "response_format"):
        assert field in page.text


def test_health_needs_no_model(web):
    assert web.get("/health").json()["status"] == "ok"
