"""`/metrics`: the engines' counters, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterator

from stretto import __version__
from stretto.llm import LLM
from stretto.llm.base import EngineModel
from stretto.server.http.logs import n_lost_lines
from stretto.server.http.samples import histogram, metric, written
from stretto.server.http.served_model import ServedModel
from stretto.server.http.state import State
from stretto.server.http.usage import process_facts
from stretto.server.http.vllm_metrics import vllm_lines
from stretto.server.llama_cpp.metrics import llama_lines

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

COUNTERS = {
    "added": "requests taken into the queue",
    "failed": "requests ended by an exception",
    "refused": "requests refused because the queue was full",
    "preempted": "how often a request was sent back to the queue",
    "steps": "steps of the engine",
    "prompt_tokens": "tokens of prompts that were computed",
    "decoded_tokens": "tokens that were computed one at a time",
    "cached_tokens": "prompt tokens found in the prefix cache",
    "drafted_tokens": "draft tokens that were verified",
    "accepted_tokens": "draft tokens that were accepted",
}
SECONDS = {
    "forward": "seconds of steps in the backend",
    "encoding": "seconds of steps in the image encoder",
    "sampling": "seconds of steps in the sampler",
    "python": "seconds of steps in Python",
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


def render(state: State) -> str:
    """All metrics as text."""
    return "\n".join(_labelled(line, state.labels) for line in _lines(state)) + "\n"


def _labelled(line: str, labels: dict[str, str]) -> str:
    """A sample with more labels, in front of its own."""
    if not labels or line.startswith("#"):
        return line
    name, _, value = line.rpartition(" ")
    name, _, own = name.partition("{")
    more = written(labels)[:-1]
    return f"{name}{more},{own} {value}" if own else f"{name}{more}}} {value}"


def _lines(state: State) -> Iterator[str]:
    registry, traffic = state.registry, state.traffic
    yield from metric("stretto_info", "gauge", "the version", [({"version": __version__}, 1)])
    yield from metric(
        "stretto_http_responses_total",
        "counter",
        "answers by path and status",
        [
            ({"path": path, "status": str(status)}, n)
            for (path, status), n in sorted(traffic.answered.items())
        ],
    )
    yield from metric("stretto_http_active", "gauge", "requests under way", [({}, traffic.active)])
    yield from metric(
        "stretto_log_lines_lost_total",
        "counter",
        "lines that could not be written to the log",
        [({}, n_lost_lines())],
    )
    models = list(registry.models.values())
    names = [({"model": served.name}, served) for served in models]
    yield from metric(
        "stretto_model_loaded",
        "gauge",
        "whether a model is loaded",
        [(label, int(s.llm is not None)) for label, s in names],
    )
    yield from metric(
        "stretto_model_loads_total", "counter", "loads", [(label, s.loads) for label, s in names]
    )
    yield from metric(
        "stretto_models_bytes", "gauge", "what the loaded models take", [({}, registry.loaded_bytes)]
    )
    yield from metric("stretto_models_limit_bytes", "gauge", "what they may take", [({}, registry.limit)])
    yield from _tasks(models)
    engines = [(label, served, one) for label, served in names if (one := served.metrics) is not None]
    counted = [(label, one) for label, served, one in engines if served.generates]
    computing = [(label, s.llm.metrics) for label, s in names if isinstance(s.llm, EngineModel)]
    loaded = [(label, s.llm.metrics, s.llm) for label, s in names if isinstance(s.llm, LLM)]
    for name, text in COUNTERS.items():
        yield from metric(
            f"stretto_{name}_total", "counter", text, [(label, getattr(m, name)) for label, m in counted]
        )
    for name, text in SECONDS.items():
        yield from metric(
            f"stretto_{name}_seconds_total",
            "counter",
            text,
            [(label, getattr(m, name)) for label, m in counted],
        )
    yield from metric(
        "stretto_finished_total",
        "counter",
        "requests by how they ended",
        [
            ({**label, "reason": reason}, n)
            for label, m in counted
            for reason, n in sorted(m.finished.items())
        ],
    )
    for name in ("running", "waiting"):
        yield from metric(
            f"stretto_{name}",
            "gauge",
            f"requests {name} now",
            [(label, getattr(m, name)) for label, m, _ in loaded],
        )
    yield from metric(
        "stretto_threads",
        "gauge",
        "threads of a forward pass: fewer than given while others use the cores, 0 before the first pass",
        [(label, m.threads) for label, m in computing],
    )
    for name, text in SLOTS.items():
        yield from metric(
            f"stretto_{name}", "gauge", text, [(label, getattr(m, name)) for label, m, _ in loaded if m.slots]
        )
    for key, (name, text) in HISTOGRAMS.items():
        yield from histogram(f"stretto_{name}", text, [(label, getattr(m, key)) for label, m in counted])
    yield from llama_lines([one for *_, one in engines], state.scrapes)
    yield from vllm_lines(
        [(served.name, one) for _, served, one in engines if served.generates],
        {s.name: (s.llm.metrics, len(s.llm.cells)) for _, s in names if isinstance(s.llm, LLM)},
    )
    for name, kind, text, value in process_facts():
        yield from metric(name, kind, text, [({}, value)])
    for kind in ("free", "used"):
        yield from metric(
            f"stretto_cells_{kind}",
            "gauge",
            f"cells {kind}",
            [(label, getattr(x.cells, f"n_{kind}")) for label, _, x in loaded],
        )


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
