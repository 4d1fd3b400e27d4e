"""`/metrics`: the engines' counters, in Prometheus's text format; those of vLLM and llama-server too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from stretto import __version__
from stretto.engine.metrics import Histogram, Metrics
from stretto.llm import LLM
from stretto.llm.base import EngineModel
from stretto.server.http.keys import KINDS, Keys
from stretto.server.http.logs import n_lost_lines
from stretto.server.http.served_model import ServedModel
from stretto.server.http.state import Caller, State
from stretto.server.http.usage import process_facts

Labels = dict[str, str]
Sampled = tuple[str, str, str, Iterable[tuple[Labels, float]]]  # name, kind, help, values

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

COUNTERS = {  # by the fields of `Metrics`
    "added": ("added_total", "requests taken into the queue"),
    "failed": ("failed_total", "requests ended by an exception"),
    "refused": ("refused_total", "requests refused because the queue was full"),
    "preempted": ("preempted_total", "how often a request was sent back to the queue"),
    "steps": ("steps_total", "steps of the engine"),
    "prompt_tokens": ("prompt_tokens_total", "tokens of prompts that were computed"),
    "decoded_tokens": ("decoded_tokens_total", "tokens that were computed one at a time"),
    "cached_tokens": ("cached_tokens_total", "prompt tokens found in the prefix cache"),
    "stored_tokens": ("stored_tokens_total", "prompt tokens whose cells were read from disk"),
    "stored_bytes": ("stored_bytes_total", "bytes of cells that were written to disk"),
    "drafted_tokens": ("drafted_tokens_total", "draft tokens that were verified"),
    "accepted_tokens": ("accepted_tokens_total", "draft tokens that were accepted"),
    "forward": ("forward_seconds_total", "seconds of steps in the backend"),
    "encoding": ("encoding_seconds_total", "seconds of steps in the image encoder"),
    "sampling": ("sampling_seconds_total", "seconds of steps in the sampler"),
    "python": ("python_seconds_total", "seconds of steps in Python"),
}
SLOTS = {  # of models with recurrent layers only
    "slots": "state slots of recurrent layers",
    "slots_used": "state slots in use",
    "slot_bytes": "bytes of a state slot",
}
HISTOGRAMS = {
    "first_token": ("first_token_seconds", "from a request to its first token"),
    "between_tokens": ("between_tokens_seconds", "from a token to the next of its request"),
    "width": ("step_width_tokens", "tokens in a forward pass"),
    "queue": ("queue_seconds", "from a request to its start"),
    "prefill": ("prefill_seconds", "from the start of a request to its first token"),
    "decode": ("decode_seconds", "from the first token of a request to its last one"),
    "total": ("request_seconds", "from a request to its end, whatever ended it"),
    "prompt_length": ("prompt_length_tokens", "tokens of prompts, with cached ones"),
    "text_length": ("text_length_tokens", "tokens of texts"),
}


def render(state: State, caller: Caller) -> str:
    """All metrics as text; of keys those that the caller may see."""
    lines = (*_lines(state), *_key_lines(state, caller))
    return "\n".join(_labelled(line, state.labels) for line in lines) + "\n"


def _labelled(line: str, labels: dict[str, str]) -> str:
    """A sample with more labels, in front of its own."""
    if not labels or line.startswith("#"):
        return line
    name, _, value = line.rpartition(" ")
    name, _, own = name.partition("{")
    more = write_labels(labels)[:-1]
    return f"{name}{more},{own} {value}" if own else f"{name}{more}}} {value}"


def _lines(state: State) -> Iterator[str]:
    models = list(state.registry.models.values())
    names = [({"model": served.name}, served) for served in models]
    engines = [(label, served, one) for label, served in names if (one := served.metrics) is not None]
    counted = [(label, one) for label, served, one in engines if served.generates]
    loaded = [(label, s.llm.metrics, s.llm) for label, s in names if isinstance(s.llm, LLM)]
    for name, kind, text, values in (*_server_metrics(state), *_model_metrics(names, counted, loaded)):
        yield from metric(f"stretto_{name}", kind, text, values)
    yield from _tasks(models)
    for key, (name, text) in HISTOGRAMS.items():
        yield from histogram(f"stretto_{name}", text, [(label, getattr(m, key)) for label, m in counted])
    yield from llama_lines([one for *_, one in engines], state.part(Scrapes))
    yield from vllm_lines(
        [(served.name, one) for _, served, one in engines if served.generates],
        {s.name: (s.llm.metrics, len(s.llm.cells)) for _, s in names if isinstance(s.llm, LLM)},
    )
    for name, kind, text, value in process_facts():
        yield from metric(name, kind, text, [({}, value)])


def _server_metrics(state: State) -> Iterator[Sampled]:
    """What the server counts itself."""
    registry, traffic = state.registry, state.traffic
    yield "info", "gauge", "the version", [({"version": __version__}, 1)]
    answers = [
        ({"path": path, "status": str(status)}, n) for (path, status), n in sorted(traffic.answered.items())
    ]
    yield "http_responses_total", "counter", "answers by path and status", answers
    yield "http_active", "gauge", "requests under way", [({}, traffic.active)]
    lost: list[tuple[Labels, float]] = [({}, n_lost_lines())]
    yield "log_lines_lost_total", "counter", "lines that could not be written to the log", lost
    yield "models_bytes", "gauge", "what the loaded models take", [({}, registry.loaded_bytes)]
    yield "models_limit_bytes", "gauge", "what they may take", [({}, registry.limit)]


def _model_metrics(
    names: list[tuple[Labels, ServedModel]],
    counted: list[tuple[Labels, Metrics]],
    loaded: list[tuple[Labels, Metrics, LLM]],
) -> Iterator[Sampled]:
    """Counters and gauges of models: of all, of those that have generated, of those that are loaded."""
    are_loaded = [(label, int(s.llm is not None)) for label, s in names]
    yield "model_loaded", "gauge", "whether a model is loaded", are_loaded
    yield "model_loads_total", "counter", "loads", [(label, s.loads) for label, s in names]
    for field, (name, text) in COUNTERS.items():
        yield name, "counter", text, [(label, getattr(m, field)) for label, m in counted]
    ended = [
        ({**label, "reason": reason}, n) for label, m in counted for reason, n in sorted(m.finished.items())
    ]
    yield "finished_total", "counter", "requests by how they ended", ended
    for name in ("running", "waiting"):
        yield name, "gauge", f"requests {name} now", [(label, getattr(m, name)) for label, m, _ in loaded]
    text = "threads of a forward pass: fewer than given while others use the cores, 0 before the first pass"
    computing = [(label, s.llm.metrics.threads) for label, s in names if isinstance(s.llm, EngineModel)]
    yield "threads", "gauge", text, computing
    for name, text in SLOTS.items():
        yield name, "gauge", text, [(label, getattr(m, name)) for label, m, _ in loaded if m.slots]
    for kind in ("free", "used"):
        cells = [(label, getattr(llm.cells, f"n_{kind}")) for label, _, llm in loaded]
        yield f"cells_{kind}", "gauge", f"cells {kind}", cells


def _key_lines(state: State, caller: Caller) -> Iterator[str]:
    """What keys have under way and have used."""
    uses = [({"key": use.label}, use) for use in state.part(Keys).shown(caller)]
    now, total = [(at, use.n_now) for at, use in uses], [(at, use.n_requests) for at, use in uses]
    yield from metric("stretto_key_requests", "gauge", "requests of a key under way", now)
    yield from metric("stretto_key_requests_total", "counter", "requests of a key", total)
    tokens = [({**at, "kind": kind}, use.tokens[kind]) for at, use in uses for kind in KINDS]
    yield from metric(
        "stretto_key_tokens_total", "counter", "tokens of a key's requests that have ended", tokens
    )
    refused = [({**at, "limit": limit}, n) for at, use in uses for limit, n in sorted(use.refused.items())]
    yield from metric(
        "stretto_key_refused_total", "counter", "requests refused by a limit of the key", refused
    )
    limits = [
        ({**at, "limit": name}, value)
        for at, use in uses
        for name, value in vars(use.limits).items()
        if value is not None
    ]
    yield from metric("stretto_key_limit", "gauge", "limits of a key, and its weight", limits)


def _tasks(models: list[ServedModel]) -> Iterator[str]:
    """The work of models that do not generate, by verb."""
    for name, text, values in (
        ("stretto_task_inputs_total", "inputs of verbs that do not generate", "done"),
        ("stretto_task_seconds_total", "seconds of computing them", "seconds"),
    ):
        found = [
            ({"model": served.name, "verb": verb}, value)
            for served in models
            for verb, value in sorted(getattr(served, values).items())
        ]
        yield from metric(name, "counter", text, found)


# Samples: one metric with its help, its type and its values.


def metric(name: str, kind: str, text: str, values: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """A counter or a gauge; nothing without values."""
    if values := list(values):
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        for labels, value in values:
            yield f"{name}{write_labels(labels)} {value}"


def histogram(name: str, text: str, values: Iterable[tuple[Labels, Histogram]]) -> Iterator[str]:
    """A histogram; its buckets count up."""
    if values := list(values):
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} histogram"
        for labels, data in values:
            count = 0
            for bound, n in zip((*data.bounds, "+Inf"), data.counts, strict=True):
                count += n
                yield f"{name}_bucket{write_labels({**labels, 'le': str(bound)})} {count}"
            yield f"{name}_sum{write_labels(labels)} {data.total}"
            yield f"{name}_count{write_labels(labels)} {count}"


def write_labels(labels: Labels) -> str:
    """Labels as they stand behind a name."""

    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return (
        "{" + ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items()) + "}" if labels else ""
    )


# The same under vLLM's names, for its dashboards and for routers that read them.
#
# The labels are vLLM's: the model's name, and the number of the engine, of which a model has one.

VLLM_GAUGES = {
    "num_requests_running": "Requests that run",
    "num_requests_waiting": "Requests that wait",
}
VLLM_CACHE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")  # the same, by its newer and its older name
VLLM_HISTOGRAMS = {  # with the field of `Metrics`
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
VLLM_REASONS = {"timeout": "abort", "cancelled": "abort"}  # in vLLM's words; others are the same
VLLM_ALWAYS = ("stop", "length", "abort", "error")  # reasons that are shown from the start


def vllm_lines(
    counted: Sequence[tuple[str, Metrics]], loaded: Mapping[str, tuple[Metrics, int]]
) -> Iterator[str]:
    """Samples with their help and type.

    `counted` are the counters of models by name; `loaded` are the gauges and cells of those that are loaded.
    """
    now = [(_vllm_labels(name), *found) for name, found in loaded.items()]
    for name, text in VLLM_GAUGES.items():
        field = name.removeprefix("num_requests_")
        yield from metric(f"vllm:{name}", "gauge", text, [(label, getattr(m, field)) for label, m, _ in now])
    for name in VLLM_CACHE:
        text = "Share of the cells that running requests and open sequences hold, seen once a second"
        yield from metric(f"vllm:{name}", "gauge", text, [(at, m.held_cells / max(n, 1)) for at, m, n in now])
    sizes = [({**label, "block_size": "1", "num_gpu_blocks": str(n)}, 1) for label, _, n in now]
    yield from metric("vllm:cache_config_info", "gauge", "Cells, as blocks of one token", sizes)
    values = [(_vllm_labels(name), m) for name, m in counted]
    for name, (text, count) in VLLM_COUNTERS.items():
        yield from metric(f"vllm:{name}", "counter", text, [(label, count(m)) for label, m in values])
    ended = [
        ({**label, "finished_reason": reason}, n)
        for label, m in values
        for reason, n in _vllm_finished(m).items()
    ]
    yield from metric("vllm:request_success_total", "counter", "Requests by how they ended", ended)
    for name, (field, text) in VLLM_HISTOGRAMS.items():
        yield from histogram(f"vllm:{name}", text, [(label, getattr(m, field)) for label, m in values])


def _vllm_labels(name: str) -> Labels:
    return {"model_name": name, "engine": "0"}


def _count_prompt_tokens(m: Metrics) -> int:
    return m.prompt_tokens + m.short_prompts + m.cached_tokens


VLLM_COUNTERS: dict[str, tuple[str, Callable[[Metrics], int]]] = {
    "prompt_tokens_total": ("Tokens of prompts, with cached ones", _count_prompt_tokens),
    "generation_tokens_total": (
        "Tokens that were generated",
        lambda m: m.first_token.n + m.between_tokens.n,
    ),
    "num_preemptions_total": ("How often a request was sent back to the queue", lambda m: m.preempted),
    "prefix_cache_queries_total": (
        "Prompt tokens that were looked up in the prefix cache",
        _count_prompt_tokens,
    ),
    "prefix_cache_hits_total": ("Prompt tokens that were found there", lambda m: m.cached_tokens),
    "spec_decode_num_drafts_total": ("Drafts that were verified", lambda m: m.drafts),
    "spec_decode_num_draft_tokens_total": ("Draft tokens that were verified", lambda m: m.drafted_tokens),
    "spec_decode_num_accepted_tokens_total": (
        "Draft tokens that were accepted",
        lambda m: m.accepted_tokens,
    ),
}


def _vllm_finished(m: Metrics) -> dict[str, int]:
    found = dict.fromkeys(VLLM_ALWAYS, 0)
    for reason, n in m.finished.items():
        name = VLLM_REASONS.get(reason, reason)
        found[name] = found.get(name, 0) + n
    found["error"] += m.failed
    return found


# And under llama-server's names, for its dashboards: sums over all models since the server started.
#
# Its two rates are those since the scrape before, 0 if nothing was computed meanwhile.


class Scrapes:
    """The tokens and seconds at the last scrape, which rates are counted from."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def rate(self, name: str, n_tokens: int, seconds: float) -> float:
        """Tokens per second since the last call; these are all so far."""
        n, spent = self._last.get(name, (0, 0.0))
        self._last[name] = (n_tokens, seconds)
        return (n_tokens - n) / (seconds - spent) if seconds > spent and n_tokens > n else 0.0


def llama_lines(engines: list[Metrics], scrapes: Scrapes) -> Iterator[str]:
    """Samples with their help and type, without labels, as llama-server has them."""
    for name, kind, text, value in _llama_metrics(engines, scrapes):
        yield from metric(f"llamacpp:{name}", kind, text, [({}, value)])


def start_header(uptime: float) -> dict[str, str]:
    """The header in which llama-server says when it was started, in seconds since 1970."""
    return {"Process-Start-Time-Unix": str(int(time.time() - uptime))}


def _llama_metrics(engines: list[Metrics], scrapes: Scrapes) -> Iterator[tuple[str, str, str, float]]:
    prompt = sum(one.prompt_tokens + one.short_prompts for one in engines)
    cached = sum(one.cached_tokens for one in engines)
    until_first = sum(one.first_token.total for one in engines)
    n_firsts = sum(one.first_token.n for one in engines)
    n_later = sum(one.between_tokens.n for one in engines)
    later = sum(one.between_tokens.total for one in engines)
    passes = sum(one.width.n for one in engines)
    longest = max((one.longest for one in engines), default=0)
    drafted = sum(one.drafted_tokens for one in engines)
    accepted = sum(one.accepted_tokens for one in engines)
    busy = sum(one.pass_requests for one in engines) / max(passes, 1)
    yield "prompt_tokens_total", "counter", "Prompt tokens that were computed, without cached ones", prompt
    yield "prompt_tokens_cached_total", "counter", "Prompt tokens found in the prefix cache", cached
    yield "prompt_seconds_total", "counter", "Seconds from requests to their first tokens", until_first
    yield "tokens_predicted_total", "counter", "Tokens that were generated", n_firsts + n_later
    yield "tokens_predicted_seconds_total", "counter", "Seconds from first tokens to last tokens", later
    yield "n_decode_total", "counter", "Forward passes", passes
    yield "n_tokens_max", "counter", "Tokens of the longest text so far, with its prompt", longest
    yield "spec_decode_num_draft_tokens_total", "counter", "Draft tokens that were verified", drafted
    yield "spec_decode_num_accepted_tokens_total", "counter", "Draft tokens that were accepted", accepted
    drafts = sum(one.drafts for one in engines)
    yield "spec_decode_num_drafts_total", "counter", "Drafts that were verified", drafts
    speed = scrapes.rate("prompt", prompt, until_first)
    yield "prompt_tokens_seconds", "gauge", "Prompt tokens per second since the last scrape", speed
    text = "Tokens generated per second and request since then, without first ones"
    yield "predicted_tokens_seconds", "gauge", text, scrapes.rate("predicted", n_later, later)
    yield "requests_processing", "gauge", "Requests that run", sum(one.running for one in engines)
    yield "requests_deferred", "gauge", "Requests that wait", sum(one.waiting for one in engines)
    text = "Requests that ran, on average over forward passes"
    yield "n_busy_slots_per_decode", "gauge", text, busy
