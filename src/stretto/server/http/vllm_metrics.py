"""`/metrics` under vLLM's names, for its dashboards and for routers that read them.

The labels are vLLM's: the model's name, and the number of the engine, of which a model has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stretto.engine.metrics import Metrics
from stretto.server.http.samples import Labels, histogram, metric

GAUGES = {
    "num_requests_running": "Requests that run",
    "num_requests_waiting": "Requests that wait",
}
CACHE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")  # the same, by its newer and its older name
COUNTERS = {
    "prompt_tokens_total": "Tokens of prompts, with cached ones",
    "generation_tokens_total": "Tokens that were generated",
    "num_preemptions_total": "How often a request was sent back to the queue",
    "prefix_cache_queries_total": "Prompt tokens that were looked up in the prefix cache",
    "prefix_cache_hits_total": "Prompt tokens that were found there",
    "spec_decode_num_drafts_total": "Drafts that were verified",
    "spec_decode_num_draft_tokens_total": "Draft tokens that were verified",
    "spec_decode_num_accepted_tokens_total": "Draft tokens that were accepted",
}
HISTOGRAMS = {  # with the field of `Metrics`
    "time_to_first_token_seconds": ("first_token", "From a request to its first token"),
    "inter_token_latency_seconds": ("between_tokens", "From a token to the next of its request"),
    "time_per_output_token_seconds": ("between_tokens", "The same, by its older name"),
    "e2e_request_latency_seconds": ("total", "From a request to its end"),
    "request_queue_time_seconds": ("queue", "From a request to its start"),
    "request_prefill_time_seconds": ("prefill", "From its start to its first token"),
    "request_decode_time_seconds": ("decode", "From its first token to its last one"),
    "request_prompt_tokens": ("prompt_length", "Tokens of prompts"),
    "request_generation_tokens": ("text_length", "Tokens of texts"),
    "iteration_tokens_total": ("width", "Tokens in a forward pass"),
}
REASONS = {"timeout": "abort", "cancelled": "abort"}  # in vLLM's words; others are the same
ALWAYS = ("stop", "length", "abort", "error")  # reasons that are shown from the start


def vllm_lines(
    counted: Sequence[tuple[str, Metrics]], loaded: Mapping[str, tuple[Metrics, int]]
) -> Iterator[str]:
    """Samples with their help and type.

    `counted` are the counters of models by name; `loaded` are the gauges and cells of those that are loaded.
    """
    now = [(_labels(name), *found) for name, found in loaded.items()]
    for name, text in GAUGES.items():
        field = name.removeprefix("num_requests_")
        yield from metric(f"vllm:{name}", "gauge", text, [(label, getattr(m, field)) for label, m, _ in now])
    for name in CACHE:
        text = "Share of the cells that running requests and open sequences hold, seen once a second"
        yield from metric(f"vllm:{name}", "gauge", text, [(at, m.held_cells / max(n, 1)) for at, m, n in now])
    sizes = [({**label, "block_size": "1", "num_gpu_blocks": str(n)}, 1) for label, _, n in now]
    yield from metric("vllm:cache_config_info", "gauge", "Cells, as blocks of one token", sizes)
    values = [(_labels(name), m, _counters(m)) for name, m in counted]
    for name, text in COUNTERS.items():
        yield from metric(f"vllm:{name}", "counter", text, [(label, v[name]) for label, _, v in values])
    ended = [
        ({**label, "finished_reason": reason}, n)
        for label, m, _ in values
        for reason, n in _finished(m).items()
    ]
    yield from metric("vllm:request_success_total", "counter", "Requests by how they ended", ended)
    for name, (field, text) in HISTOGRAMS.items():
        yield from histogram(f"vllm:{name}", text, [(label, getattr(m, field)) for label, m, _ in values])


def _labels(name: str) -> Labels:
    return {"model_name": name, "engine": "0"}


def _counters(m: Metrics) -> dict[str, int]:
    prompt = m.prompt_tokens + m.short_prompts + m.cached_tokens
    return {
        "prompt_tokens_total": prompt,
        "generation_tokens_total": m.first_token.n + m.between_tokens.n,
        "num_preemptions_total": m.preempted,
        "prefix_cache_queries_total": prompt,
        "prefix_cache_hits_total": m.cached_tokens,
        "spec_decode_num_drafts_total": m.drafts,
        "spec_decode_num_draft_tokens_total": m.drafted_tokens,
        "spec_decode_num_accepted_tokens_total": m.accepted_tokens,
    }


def _finished(m: Metrics) -> dict[str, int]:
    found = dict.fromkeys(ALWAYS, 0)
    for reason, n in m.finished.items():
        name = REASONS.get(reason, reason)
        found[name] = found.get(name, 0) + n
    found["error"] += m.failed
    return found
