"""The options of a request: names, types, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from stretto.engine.adapters import Parts, adapter_parts
from stretto.engine.inside import Capture, Patch
from stretto.engine.types import EditMode, Token
from stretto.errors import InvalidRequest, wrong_value
from stretto.hooks import NativeHook
from stretto.options.documenting import document_options
from stretto.options.generating import BRANCHING, BY_NAME, GENERATE, MAX_BRANCHES, OPTIONS
from stretto.options.names import check_names
from stretto.options.option import value_remedy
from stretto.sampling.params import SamplingParams, check_integer
from stretto.text.messages import check_mapping
from stretto.text.stops import RepeatGuard

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stretto.drafts import Drafter
    from stretto.options.keywords import OptionKeywords
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
    edits: EditMode = "recompute"
    draft: Drafter | None = None
    draft_branches: int = 1
    reasoning: bool = False
    reasoning_budget: int | None = None
    adapter: Parts = ()
    capture: Capture | None = None
    patch: tuple[Patch, ...] = ()
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
NAMES = tuple(option.name for option in GENERATE)  # `n` and its kin too, which `split_branching` takes


def sampling_params(options: Mapping[str, Any]) -> SamplingParams:
    """Check the options of a single sampling; a loop's are the same at every step, and checked once."""
    try:
        return _make_sampling(**options)
    except TypeError:  # something that cannot be hashed: the checks say what
        return _make_sampling.__wrapped__(**options)


@lru_cache(maxsize=64, typed=True)
def _make_sampling(**options: Any) -> SamplingParams:
    check_names(options, SAMPLING_NAMES)
    return SamplingParams(**options)


def request_params(options: Mapping[str, Any], n_vocab: int) -> RequestParams:
    """Check the options of a request, one by one; `check_combinations` says which exclude each other."""
    if "template" in options:
        raise InvalidRequest(
            "template is for chat: a prompt of generate is not rendered; chat_prompt takes its arguments",
            param="template",
            value=options["template"],
        )
    check_names(options, NAMES)
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
    patches = rest.get("patch", ())
    patches = (patches,) if isinstance(patches, Patch) else patches
    rest["patch"] = _all("patch", patches, lambda one: isinstance(one, Patch), "stretto.Patch values")
    if not isinstance(rest.get("capture"), Capture | None):
        raise wrong_value("capture", rest["capture"], "a stretto.Capture, such as Capture('residual')")
    if rest.get("capture") is not None or rest["patch"]:
        rest["may_run_ahead"] = False
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
    from stretto.drafts import AutoDrafts, Drafter, HeadDrafts, NextTokenDrafts, PromptLookup, SuffixLookup

    if isinstance(draft, str):
        named: dict[str, Callable[[], Drafter]] = {
            "lookup": PromptLookup,
            "suffix": SuffixLookup,
            "mtp": NextTokenDrafts,
            "auto": AutoDrafts,
        }
        if draft in named:
            draft = named[draft]()
        else:
            with suppress(OSError, ValueError, RuntimeError):  # no path at all is no head
                draft = HeadDrafts(draft) if draft and Path(draft).expanduser().exists() else draft
    if not isinstance(draft, Drafter):
        kinds = "'lookup', 'suffix', 'mtp', 'auto', the path of an EAGLE-3 head, or a Drafter (DraftModel …)"
        raise wrong_value("draft", draft, kinds)
    check_integer("draft.most", draft.most, 1, 256, param="draft")
    return draft


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


PENALTIES = "repetition_penalty, presence_penalty, frequency_penalty"

_TAPPED = {
    "n, best_of, beams": "texts that share a prompt share its passes; give a list of prompts",
    "draft": "drafted tokens are computed and may not be part of the text; leave it out",
    "edits": "cells of another text were not computed by this request; leave it out",
    FUSED: "the fused loop shows nothing of its passes; leave loop out",
    SHIFT: "places of tokens would move; leave it out",
}
_REFUSED = {  # this, beside these: why
    FUSED: {
        "hooks": "the fused loop runs NativeHooks only; use loop='python' for others",
        "logprobs": "the fused loop gives no log-probabilities; use loop='python'",
        "draft": "drafts are verified by the Python loop; leave loop out",
        "best_of": "the fused loop gives no log-probabilities, which best_of compares",
        "min_tokens": "end tokens are excluded by a hook; use loop='python'",
    },
    "grammar": {
        "ignore_eos": "the end token says that a text is complete",
        "min_tokens": "the grammar says when a text is complete",
    },
    "best_of": {
        "beams": "best_of samples and beams search; give one of them",
    },
    "capture": _TAPPED,
    "patch": _TAPPED,
    "beams": {
        "temperature, top_k, top_p, min_p, seed": "a beam search draws nothing; leave it out",
        "logprobs, logprob_tokens": "every result has the score of its hypothesis (logprob); leave it out",
        "sampled_logprobs": "nothing is drawn; leave it out",
        PENALTIES: "hypotheses are ranked by the model's own probabilities",
        "callback": "no token is certain before the search has ended",
        STOP_FUNCTIONS: "there is no single text to call them with; give stop strings",
        "min_tokens": "hypotheses end by the model's own probabilities",
        "include_stop": "hypotheses end before their stop strings and end tokens",
        "draft": "a hypothesis is not one text that could be drafted; leave it out",
        "continues": "a search starts after its prompt; leave it out",
        FUSED: "hypotheses are compared in Python; leave loop out",
        SHIFT: "hypotheses share their cells; a search ends at the end of the context",
    },
    PARALLEL: {
        "top_k": "max_width says how many tokens are kept",
        "top_p, min_p": "threshold says which tokens are kept",
        "seed": "nothing is drawn, and the same run comes every time; leave it out",
        PENALTIES: "use a hook, such as stretto.hooks.NoRepeat",
        "logit_bias": "use hooks=[stretto.hooks.Bias({...})]",
        "logprobs, sampled_logprobs, logprob_tokens": "every member has its probability; leave it out",
        "loop": "sets are chosen in Python; leave it out",
        "draft, draft_branches": "a set is not one token that could be drafted; leave it out",
        "edits": "its cells are exact; leave it out",
        "min_tokens": "use a hook, such as stretto.hooks.Ban",
        "repeat_guard": "a run says where it begins to repeat itself (loop); leave it out",
        "include_stop": "the text of a run ends before its stop string; leave it out",
        "special": "each member of a set has its id; leave it out",
        "reasoning_budget": "the text of a run is a path through its sets; leave it out",
        "reasoning": "the text of a run is a path through its sets; read it as it is",
        "continues": "the text of a run starts after its prompt; leave it out",
        "overflow, keep": "positions of sets cannot be moved; a run ends at the end of the context",
        "capture, patch": "tokens of one position share a pass; capture with llm.generate",
        "n, best_of": "the same run comes every time; give a list of prompts for several",
        "beams": "all probable tokens are kept already; max_width says how many",
        "length_penalty": "it is for beams; leave it out",
    },
}
REFUSALS = tuple(
    Refusal(first, second, reason)
    for first, reasons in _REFUSED.items()
    for seconds, reason in reasons.items()
    for second in seconds.split(", ")
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
    found = {
        name
        for name, value in options.items()
        if name in _CONCERNED and value not in (None, False) and not value == BY_NAME[name].default == 0
    }
    for name in ("temperature", "top_k", "top_p", "min_p", "seed"):  # 0 is a value of these
        if options.get(name) is not None:
            found.add(name)
    if options.get("loop") == "fused":
        found.add(FUSED)
    if options.get("overflow") == "shift":
        found.add(SHIFT)
    if options.get("edits") == "recompute":
        found.discard("edits")
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


# How many texts of a prompt are asked for, and options as a value.


@document_options(BRANCHING)
@dataclass(frozen=True)
class Branching:
    """How many texts come from a prompt, and how they are found."""

    n: int | None = None
    best_of: int | None = None
    beams: int | None = None
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        for option in BRANCHING:
            option.check(getattr(self, option.name))
        for name in ("best_of", "beams"):
            if (self.n or 1) > (getattr(self, name) or MAX_BRANCHES):
                raise InvalidRequest(
                    f"n is {self.n}, which is more than {name}={getattr(self, name)}", param="n", value=self.n
                )
        if self.length_penalty != 1.0 and self.beams is None:
            raise InvalidRequest("length_penalty is for beams", param="length_penalty")

    @property
    def plain(self) -> bool:
        """Whether one text is all that is asked for."""
        return self.n is None and self.best_of is None and self.beams is None


BRANCHING_NAMES = tuple(field.name for field in fields(Branching))


def split_branching(options: Mapping[str, Any]) -> tuple[Branching, dict[str, Any]]:
    """What of some options says how to branch, and the rest of them; pairs without a meaning are refused."""
    check_combinations(options)
    found = Branching(**{name: options[name] for name in BRANCHING_NAMES if name in options})
    return found, {name: value for name, value in options.items() if name not in BRANCHING_NAMES}


MAX_TOKEN = 1 << 31  # a token id that any vocabulary could have; the model itself checks the rest


@document_options(OPTIONS)
class Options(Mapping[str, Any]):
    """Options of `generate`, `stream` and `chat`, as a value. Keywords of a call win over it.

        opts = stretto.Options(temperature=0.2, stop=["\\n"])
        llm.generate("Hi", opts, seed=7)
        colder = opts | {"temperature": 0}

    Names and values are checked when it is made.
    """

    def __init__(self, **options: Unpack[OptionKeywords]) -> None:
        self._options: dict[str, Any] = dict(options)
        _, rest = split_branching(self._options)
        if (arguments := rest.pop("template", None)) is not None:
            check_mapping(arguments)
        request_params(rest, MAX_TOKEN)

    def __getitem__(self, name: str) -> Any:
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __or__(self, other: Mapping[str, Any]) -> Options:
        return Options(**{**self._options, **other})

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"Options({inside})"


def merge_options(options: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call: those of a value, if one was given, under its keywords."""
    if options is None:
        return dict(keywords)
    if isinstance(options, (list, tuple)):
        raise InvalidRequest(
            f"options must be one stretto.Options, for all prompts, not a {type(options).__name__}; "
            + per_prompt("llm.stream(prompt, options)"),
            param="options",
            value=options,
        )
    if not isinstance(options, Options):
        raise InvalidRequest(
            f"options must be a stretto.Options, not {type(options).__name__}; pass others by name",
            param="options",
            value=options,
        )
    return {**options, **keywords}
