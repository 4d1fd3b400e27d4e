"""The options of a request: names, types, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stretto.engine.adapters import Parts, adapter_parts
from stretto.engine.repeats import RepeatGuard
from stretto.engine.types import Token
from stretto.errors import InvalidRequest
from stretto.hooks import NativeHook
from stretto.options.generating import BY_NAME, GENERATE
from stretto.options.names import unknown_name
from stretto.options.option import value_remedy
from stretto.sampling.params import SamplingParams, check_integer

if TYPE_CHECKING:
    from stretto.drafts import Drafter
    from stretto.structured import Compiled, Grammar


Hook = Callable[[NDArray[np.float32], list[int]], None]
Callback = Callable[[Token], Any]
Stop = str | Callable[[str], bool]

MAX_STOPS = 64
MAX_STOP_CHARACTERS = 8192  # of all together
MAX_LOGPROBS = int(BY_NAME["logprobs"].high)


@dataclass(frozen=True)
class RequestParams:
    """A request's options, checked: those of `stretto.options.generating`, and what is made of them.

    - `stop_functions`: the functions among the entries of `stop`
    - `grammar`: the engine wants it compiled
    - `fused`: `loop="fused"`
    - `may_run_ahead`: `loop="auto"`: several tokens at a time where the backend gains by it
    - `scored`: the log-probability of the whole is summed up
    """

    sampling: SamplingParams
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_functions: tuple[Callable[[str], bool], ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False
    repeat_guard: bool = False
    min_tokens: int = 0
    include_stop: bool = False
    special: bool = False
    timeout: float | None = None
    logprobs: int = 0
    logprob_tokens: tuple[int, ...] = ()
    sampled_logprobs: bool = False
    hooks: tuple[Hook, ...] = ()
    grammar: Grammar | Compiled | None = None
    callback: Callback | None = None
    fused: bool = False
    may_run_ahead: bool = True
    priority: int = 0
    overflow: Literal["error", "shift"] = "error"
    keep: int = 0
    draft: Drafter | None = None
    draft_branches: int = 1
    reasoning: bool = False
    reasoning_budget: int | None = None
    adapter: Parts = ()
    cache_salt: str | None = None
    continues: int = 0
    scored: bool = False

    @property
    def new_guard(self) -> RepeatGuard | None:
        """A repeat guard for a text, if it has one: a text without an end is asked for by `ignore_eos`."""
        return RepeatGuard() if self.repeat_guard and not self.ignore_eos else None

    @property
    def native_hooks(self) -> tuple[NativeHook, ...]:
        """The hooks that the fused loop can run; with `fused` these are all."""
        return tuple(hook for hook in self.hooks if isinstance(hook, NativeHook))


SAMPLING_NAMES = tuple(field.name for field in fields(SamplingParams))
NAMES = tuple(option.name for option in GENERATE)  # `n` and its kin too, which `branching` takes


def sampling_params(options: Mapping[str, Any]) -> SamplingParams:
    """Check the options of a single sampling; a loop's are the same at every step, and checked once."""
    if options.get("logit_bias") is None:
        try:
            return _same_again(**options)
        except TypeError:  # something that cannot be hashed: the checks say what
            pass
    _known(options, SAMPLING_NAMES)
    return SamplingParams(**options)


@lru_cache(maxsize=64, typed=True)
def _same_again(**options: Any) -> SamplingParams:
    _known(options, SAMPLING_NAMES)
    return SamplingParams(**options)


def request_params(options: Mapping[str, Any], n_vocab: int) -> RequestParams:
    """Check the options of a request, one by one; `check_combinations` says which exclude each other."""
    if "template" in options:
        raise InvalidRequest(
            "template is for chat: a prompt of generate is not rendered; chat_prompt takes its arguments",
            param="template",
            value=options["template"],
        )
    _known(options, NAMES)
    _check_single(options)
    for name, value in options.items():
        if name not in SAMPLING_NAMES:  # SamplingParams checks those
            BY_NAME[name].check(value)
    rest = dict(options)
    sampling = SamplingParams(**{name: rest.pop(name) for name in SAMPLING_NAMES if name in rest})
    if rest.get("grammar") is not None:
        from stretto.structured import Compiled, as_grammar

        if not isinstance(rest["grammar"], Compiled):
            rest["grammar"] = as_grammar(rest["grammar"])
    loop = rest.pop("loop", "auto")
    rest["fused"], rest["may_run_ahead"] = loop == "fused", loop != "python"
    if rest.get("max_tokens") is not None and rest.get("min_tokens", 0) > rest["max_tokens"]:
        raise InvalidRequest(
            f"min_tokens is {rest['min_tokens']}, which is more than max_tokens={rest['max_tokens']}",
            param="min_tokens",
            value=rest["min_tokens"],
        )
    if rest.get("keep") and rest.get("overflow") != "shift":
        raise InvalidRequest(
            "keep is for overflow='shift': how many first tokens are not forgotten",
            param="keep",
            value=rest["keep"],
        )
    if rest.get("reasoning_budget") is not None and not rest.get("reasoning"):
        raise InvalidRequest(
            "reasoning_budget bounds the reasoning, which reasoning=True tells apart from the answer; "
            "give both, as chat does",
            param="reasoning_budget",
            value=rest["reasoning_budget"],
        )
    rest["adapter"] = adapter_parts(rest.get("adapter"))
    rest["hooks"] = _all("hooks", rest.get("hooks", ()), callable, "functions")
    rest["draft"] = _drafter(rest)
    stops = rest.pop("stop", ())
    stops = (stops,) if isinstance(stops, str) or callable(stops) else stops
    if "" in (stops if isinstance(stops, (list, tuple)) else ()):
        raise InvalidRequest("a stop string is empty; leave it out", param="stop", value="")
    stops = _all(
        "stop", stops, lambda stop: callable(stop) or (isinstance(stop, str) and stop), "strings or functions"
    )
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop has {len(stops)} entries; at most {MAX_STOPS} are allowed", param="stop")
    rest["stop"] = tuple(stop for stop in stops if isinstance(stop, str))
    if (total := sum(map(len, rest["stop"]))) > MAX_STOP_CHARACTERS:
        raise InvalidRequest(
            f"stop has {total:,} characters in all; at most {MAX_STOP_CHARACTERS:,} are allowed", param="stop"
        )
    rest["stop_functions"] = tuple(stop for stop in stops if not isinstance(stop, str))
    rest["stop_tokens"] = frozenset(_token_ids("stop_tokens", rest, n_vocab))
    rest["logprob_tokens"] = _token_ids("logprob_tokens", rest, n_vocab)
    if (n := len(rest["logprob_tokens"])) > MAX_LOGPROBS or (n and not rest.get("logprobs")):
        raise InvalidRequest(
            f"logprob_tokens needs logprobs of at least 1, and has at most {MAX_LOGPROBS} ids",
            param="logprob_tokens",
        )
    for token in sampling.logit_bias or ():
        check_integer("a token of logit_bias", token, 0, n_vocab - 1, param="logit_bias")
    return RequestParams(sampling, **rest)


def _token_ids(name: str, options: Mapping[str, Any], n_vocab: int) -> tuple[int, ...]:
    """The ids of an option, each checked to be in the vocabulary."""
    tokens = _all(name, options.get(name, ()), lambda t: isinstance(t, (int, np.integer)), "token ids")
    for token in tokens:
        check_integer(f"a token of {name}", token, 0, n_vocab - 1, param=name)
    return tuple(int(token) for token in tokens)


def _drafter(options: Mapping[str, Any]) -> Drafter | None:
    """The drafter that an option names."""
    draft, branches = options.get("draft"), options.get("draft_branches", 1)
    if draft is None:
        if branches > 1:
            raise InvalidRequest(
                "draft_branches is for draft: how many continuations are drafted",
                param="draft_branches",
                value=branches,
            )
        return None
    from stretto.drafts import Drafter, PromptLookup

    if isinstance(draft, str) and draft == "lookup":
        draft = PromptLookup()
    if not isinstance(draft, Drafter):
        raise InvalidRequest(
            f"draft must be 'lookup' or a Drafter such as DraftModel(llm), not {draft!r}",
            param="draft",
            value=draft,
        )
    check_integer("draft.most", draft.most, 1, 256, param="draft")
    return draft


def _known(options: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in options:
        if name not in names:
            raise InvalidRequest(unknown_name(name, names), param=name)


def per_prompt(call: str) -> str:
    """The remedy for a list of values, one for each prompt: a `call` for each of them."""
    return (
        f"prompts with options of their own are streams, which run in the same steps: [{call} for …], "
        "then .result of each"
    )


def _check_single(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if BY_NAME[name].is_single and isinstance(value, (list, tuple)):
            raise InvalidRequest(
                f"{name} must be one value, for all prompts, not a {type(value).__name__}; "
                + per_prompt(f"llm.stream(prompt, {name}=…)"),
                param=name,
                value=value,
            )


def _all(name: str, values: Any, test: Callable[[Any], Any], what: str) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise InvalidRequest(
            f"{name} must be a list of {what}, not {values!r}{value_remedy(name, values)}",
            param=name,
            value=values,
        )
    found = tuple(values)
    for value in found:
        if not test(value):
            raise InvalidRequest(f"{name} must hold {what}, not {value!r}", param=name, value=value)
    return found


# Options that have no meaning together, in one table: what is refused, why, and what to do instead.
#
# `docs/reference/combinations.md` prints it; everything that is not in it can be combined.

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


def combinations_as_markdown() -> str:
    """The table as `docs/reference/combinations.md` prints it."""
    rows = [f"| `{r.first}` | `{r.second}` | {r.reason} |" for r in REFUSALS]
    return "\n".join(("| this | beside this | why it is refused, and what to do |", "|---|---|---|", *rows))
