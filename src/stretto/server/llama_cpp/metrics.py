"""`/metrics` under llama-server's names, for its dashboards: sums over all models since the server started.

Its two rates are those since the scrape before, 0 if nothing was computed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from stretto.engine.metrics import Metrics

COUNTERS = {
    "prompt_tokens_total": "Prompt tokens that were computed, without cached ones",
    "prompt_tokens_cached_total": "Prompt tokens found in the prefix cache",
    "prompt_seconds_total": "Seconds from requests to their first tokens",
    "tokens_predicted_total": "Tokens that were generated",
    "tokens_predicted_seconds_total": "Seconds from first tokens to last tokens",
    "n_decode_total": "Forward passes",
    "n_tokens_max": "Tokens of the longest text so far, with its prompt",
    "spec_decode_num_draft_tokens_total": "Draft tokens that were verified",
    "spec_decode_num_accepted_tokens_total": "Draft tokens that were accepted",
    "spec_decode_num_drafts_total": "Drafts that were verified",
}
GAUGES = {
    "prompt_tokens_seconds": "Prompt tokens per second since the last scrape",
    "predicted_tokens_seconds": "Tokens generated per second and request since then, without first ones",
    "requests_processing": "Requests that run",
    "requests_deferred": "Requests that wait",
    "n_busy_slots_per_decode": "Requests that ran, on average over forward passes",
}


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
    values = _values(engines, scrapes)
    for kind, names in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name, text in names.items():
            yield f"# HELP llamacpp:{name} {text}"
            yield f"# TYPE llamacpp:{name} {kind}"
            yield f"llamacpp:{name} {values[name]}"


def start_header(uptime: float) -> dict[str, str]:
    """The header in which llama-server says when it was started, in seconds since 1970."""
    return {"Process-Start-Time-Unix": str(int(time.time() - uptime))}


def _values(engines: list[Metrics], scrapes: Scrapes) -> dict[str, float]:
    prompt = sum(one.prompt_tokens + one.short_prompts for one in engines)
    until_first = sum(one.first_token.total for one in engines)
    n_later = sum(one.between_tokens.n for one in engines)
    later = sum(one.between_tokens.total for one in engines)
    passes = sum(one.width.n for one in engines)
    return {
        "prompt_tokens_total": prompt,
        "prompt_tokens_cached_total": sum(one.cached_tokens for one in engines),
        "prompt_seconds_total": until_first,
        "tokens_predicted_total": sum(one.first_token.n for one in engines) + n_later,
        "tokens_predicted_seconds_total": later,
        "n_decode_total": passes,
        "n_tokens_max": max((one.longest for one in engines), default=0),
        "spec_decode_num_draft_tokens_total": sum(one.drafted_tokens for one in engines),
        "spec_decode_num_accepted_tokens_total": sum(one.accepted_tokens for one in engines),
        "spec_decode_num_drafts_total": sum(one.drafts for one in engines),
        "prompt_tokens_seconds": scrapes.rate("prompt", prompt, until_first),
        "predicted_tokens_seconds": scrapes.rate("predicted", n_later, later),
        "requests_processing": sum(one.running for one in engines),
        "requests_deferred": sum(one.waiting for one in engines),
        "n_busy_slots_per_decode": sum(one.pass_requests for one in engines) / max(passes, 1),
    }
