"""Options that have no meaning together, in one table: what is refused, why, and what to do instead.

`docs/reference/combinations.md` prints it; everything that is not in it can be combined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import InvalidRequest
from stretto.hooks import NativeHook

PARALLEL = "llm.parallel"  # a parallel run, as it stands in the table
FUSED = "loop='fused'"
SHIFT = "overflow='shift'"
STOP_FUNCTIONS = "stop functions"


@dataclass(frozen=True)
class Refusal:
    """Two options, or a call and an option, that exclude each other."""

    first: str
    second: str
    reason: str

    @property
    def param(self) -> str:
        """The parameter to blame."""
        return "stop" if self.second == STOP_FUNCTIONS else self.second.split("=")[0]

    def __str__(self) -> str:
        return f"{self.first} and {self.second} do not go together: {self.reason}"


_SEARCH = "a beam search draws nothing; leave it out"
_NO_REPEAT = "use a hook, such as stretto.hooks.NoRepeat"
_SAME_RUN = "the same run comes every time; give a list of prompts for several"
_END = "positions of sets cannot be moved; a run ends at the end of the context"

REFUSALS = (
    Refusal(FUSED, "hooks", "the fused loop runs NativeHooks only; use loop='python' for others"),
    Refusal(FUSED, "logprobs", "the fused loop gives no log-probabilities; use loop='python'"),
    Refusal(FUSED, "draft", "drafts are verified by the Python loop; leave loop out"),
    Refusal(FUSED, "best_of", "the fused loop gives no log-probabilities, which best_of compares"),
    Refusal(FUSED, "min_tokens", "end tokens are excluded by a hook; use loop='python'"),
    Refusal("grammar", "ignore_eos", "the end token says that a text is complete"),
    Refusal("grammar", "min_tokens", "the grammar says when a text is complete"),
    Refusal("best_of", "beams", "best_of samples and beams search; give one of them"),
    Refusal("beams", "temperature", _SEARCH),
    Refusal("beams", "top_k", _SEARCH),
    Refusal("beams", "top_p", _SEARCH),
    Refusal("beams", "min_p", _SEARCH),
    Refusal("beams", "seed", _SEARCH),
    Refusal("beams", "logprobs", "every result has the score of its hypothesis (logprob); leave it out"),
    Refusal("beams", "sampled_logprobs", "nothing is drawn; leave it out"),
    Refusal(
        "beams", "logprob_tokens", "every result has the score of its hypothesis (logprob); leave it out"
    ),
    Refusal("beams", "repetition_penalty", "hypotheses are ranked by the model's own probabilities"),
    Refusal("beams", "presence_penalty", "hypotheses are ranked by the model's own probabilities"),
    Refusal("beams", "frequency_penalty", "hypotheses are ranked by the model's own probabilities"),
    Refusal("beams", "callback", "no token is certain before the search has ended"),
    Refusal("beams", STOP_FUNCTIONS, "there is no single text to call them with; give stop strings"),
    Refusal("beams", "min_tokens", "hypotheses end by the model's own probabilities"),
    Refusal("beams", "include_stop", "hypotheses end before their stop strings and end tokens"),
    Refusal("beams", "draft", "a hypothesis is not one text that could be drafted; leave it out"),
    Refusal("beams", "continues", "a search starts after its prompt; leave it out"),
    Refusal("beams", FUSED, "hypotheses are compared in Python; leave loop out"),
    Refusal("beams", SHIFT, "hypotheses share their cells; a search ends at the end of the context"),
    Refusal(PARALLEL, "top_k", "max_width says how many tokens are kept"),
    Refusal(PARALLEL, "top_p", "threshold says which tokens are kept"),
    Refusal(PARALLEL, "min_p", "threshold says which tokens are kept"),
    Refusal(PARALLEL, "seed", "nothing is drawn, and the same run comes every time; leave it out"),
    Refusal(PARALLEL, "repetition_penalty", _NO_REPEAT),
    Refusal(PARALLEL, "presence_penalty", _NO_REPEAT),
    Refusal(PARALLEL, "frequency_penalty", _NO_REPEAT),
    Refusal(PARALLEL, "logit_bias", "use hooks=[stretto.hooks.Bias({...})]"),
    Refusal(PARALLEL, "logprobs", "every member has its probability; leave it out"),
    Refusal(PARALLEL, "sampled_logprobs", "every member has its probability; leave it out"),
    Refusal(PARALLEL, "logprob_tokens", "every member has its probability; leave it out"),
    Refusal(PARALLEL, "loop", "sets are chosen in Python; leave it out"),
    Refusal(PARALLEL, "draft", "a set is not one token that could be drafted; leave it out"),
    Refusal(PARALLEL, "draft_branches", "a set is not one token that could be drafted; leave it out"),
    Refusal(PARALLEL, "min_tokens", "use a hook, such as stretto.hooks.Ban"),
    Refusal(PARALLEL, "repeat_guard", "a run says where it begins to repeat itself (loop); leave it out"),
    Refusal(PARALLEL, "include_stop", "the text of a run ends before its stop string; leave it out"),
    Refusal(PARALLEL, "special", "each member of a set has its id; leave it out"),
    Refusal(PARALLEL, "reasoning_budget", "the text of a run is a path through its sets; leave it out"),
    Refusal(PARALLEL, "reasoning", "the text of a run is a path through its sets; read it as it is"),
    Refusal(PARALLEL, "continues", "the text of a run starts after its prompt; leave it out"),
    Refusal(PARALLEL, "overflow", _END),
    Refusal(PARALLEL, "keep", _END),
    Refusal(PARALLEL, "n", _SAME_RUN),
    Refusal(PARALLEL, "best_of", _SAME_RUN),
    Refusal(PARALLEL, "beams", "all probable tokens are kept already; max_width says how many"),
    Refusal(PARALLEL, "length_penalty", "it is for beams; leave it out"),
)

_WITH_PARALLEL = {refusal.second: refusal for refusal in REFUSALS if refusal.first == PARALLEL}
_PAIRS = tuple(refusal for refusal in REFUSALS if refusal.first != PARALLEL)
_CONCERNED = frozenset(name for refusal in _PAIRS for name in (refusal.first, refusal.second))


def check_combinations(options: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` if options of `generate`, `stream` or `chat` exclude each other."""
    given = _given(options)
    if len(given) < 2:
        return
    for refusal in _PAIRS:
        if refusal.first in given and refusal.second in given:
            value = options.get(refusal.param)
            raise InvalidRequest(str(refusal), param=refusal.param, value=value)


def check_parallel(options: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for options that have no meaning in a parallel run."""
    for name, value in options.items():
        if name in _WITH_PARALLEL:
            raise InvalidRequest(str(_WITH_PARALLEL[name]), param=name, value=value)


def _given(options: Mapping[str, Any]) -> Collection[str]:
    """The options that were given, by their names in the table."""
    found = {name for name, value in options.items() if name in _CONCERNED and value not in (None, 0, False)}
    for name in ("temperature", "top_k", "top_p", "min_p", "seed"):  # 0 is a value of these
        if options.get(name) is not None:
            found.add(name)
    if options.get("loop") == "fused":
        found.add(FUSED)
    if options.get("overflow") == "shift":
        found.add(SHIFT)
    hooks = options.get("hooks") or ()
    if isinstance(hooks, Iterable) and all(isinstance(hook, NativeHook) for hook in hooks):
        found.discard("hooks")
    stops = options.get("stop")
    if callable(stops) or (isinstance(stops, (list, tuple)) and any(callable(stop) for stop in stops)):
        found.add(STOP_FUNCTIONS)
    return found


def as_markdown() -> str:
    """The table as `docs/reference/combinations.md` prints it."""
    rows = [f"| `{r.first}` | `{r.second}` | {r.reason} |" for r in REFUSALS]
    return "\n".join(("| this | beside this | why it is refused, and what to do |", "|---|---|---|", *rows))
