"""`open_best`: opens a model with the best of its candidates, and says what was chosen and why.

One candidate is opened at once. Several of one tier are probed, for a second together, and the figures are
remembered: a candidate whose logits are too far from those of the most exact one is refused, and of the
others the fastest is taken. Falling back is never silent: a `RouteWarning` names what could not run the
model, and what runs it instead.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stretto.backends.base import Backend
from stretto.backends.registry import ORACLE
from stretto.errors import InvalidRequest, ModelError, RouteWarning, Unsupported, UnsupportedModel
from stretto.routing.candidates import TIER_WORDS, Candidate
from stretto.routing.probe import Probe, Sample, distance, measure
from stretto.routing.remembered import Figures, recall, remember
from stretto.routing.route import Option, Route

BAR = 0.09  # the greatest distance from the most exact candidate
MARGIN = 1.1  # a later candidate must be so much faster than an earlier one
SECONDS = 1.0  # of all probes together

ASKED = "it was asked for"
ONLY = "the only backend that competes for this model"


@dataclass(frozen=True)
class Trial:
    """How candidates are compared: the tokens to run and the key of the figures, both made when needed."""

    tokens: Callable[[], Sequence[int]]
    key: Callable[[], str]  # of the model file, the machine and the options
    probe: Probe = measure
    refresh: bool = False

    def full_key(self, group: Sequence[Candidate]) -> str:
        """The key with the names and versions of what is compared."""
        return " | ".join((self.key(), *(f"{each.name} {each.version()}" for each in group)))


def open_best(candidates: Sequence[Candidate], trial: Trial) -> tuple[Backend, Route]:
    """Open the model with the best candidate that can; raises what the first one raised if none can."""
    usable = [each for each in candidates if each.asked and not each.refusal]
    if not usable:
        raise _none_can(candidates)
    failures: dict[str, Exception] = {}
    figures: list[Figures] = []
    for tier in sorted({each.tier for each in usable}):
        group = [each for each in usable if each.tier == tier]
        if len(group) > 1:
            figures = compare(group, trial, failures)
            group = ranking(group, figures)
        for each in group:
            try:
                backend = each.open()
            except Exception as error:  # a library of others may raise anything
                failures[each.name] = error
                continue
            _warn(candidates, each, failures)
            return backend, route(candidates, each, figures, failures)
        if failures and all(_is_final(error) for error in failures.values()):
            break  # another tier would be refused for the same reason
    raise next(iter(failures.values()), _none_can(candidates))


def survey(candidates: Sequence[Candidate], trial: Trial) -> Route:
    """Measure all candidates that can run the model, the oracle left out; open none of them for use."""
    usable = [each for each in candidates if each.asked and not each.refusal]
    if not usable:
        raise _none_can(candidates)
    measured = [each for each in usable if each.tier < ORACLE] or usable
    failures: dict[str, Exception] = {}
    figures = compare(measured, trial, failures)
    for tier in sorted({each.tier for each in measured}):
        if ranked := ranking([each for each in measured if each.tier == tier], figures):
            return route(candidates, ranked[0], figures, failures)
    raise next(iter(failures.values()), _none_can(candidates))


def unmeasured(candidates: Sequence[Candidate]) -> Route:
    """The route by tiers alone, of a model that a probe cannot time."""
    usable = [each for each in candidates if each.asked and not each.refusal]
    if not usable:
        raise _none_can(candidates)
    return route(candidates, min(usable, key=lambda each: each.tier), [], {})


def compare(group: Sequence[Candidate], trial: Trial, failures: dict[str, Exception]) -> list[Figures]:
    """Figures of candidates, remembered or measured one after the other; those that failed have none."""
    key = trial.full_key(group)
    known = None if trial.refresh else recall(key)
    if known is not None and {(each.backend, each.device) for each in known} == {
        (each.backend, each.device) for each in group
    }:
        return known
    tokens, samples = trial.tokens(), {}
    for each in group:
        try:
            samples[each.name] = _sample(each, trial.probe, tokens, SECONDS / len(group))
        except Exception as error:  # as above: it is out, and the route says why
            failures[each.name] = error
    figures = _figures(group, samples)
    if len(samples) == len(group):  # a failure may pass: it is tried again next time
        remember(key, figures)
    return figures


def ranking(group: Sequence[Candidate], figures: Sequence[Figures]) -> list[Candidate]:
    """The candidates with usable figures, the best first."""
    by_name = {each.name: each for each in figures}
    good = [each for each in group if each.name in by_name and not by_name[each.name].problem]
    if not good:
        return []
    best = good[0]
    for each in good[1:]:
        if by_name[each.name].tokens_per_second > MARGIN * by_name[best.name].tokens_per_second:
            best = each
    rest = sorted(
        (each for each in good if each is not best), key=lambda each: -by_name[each.name].tokens_per_second
    )
    return [best, *rest]


def route(
    candidates: Sequence[Candidate],
    chosen: Candidate,
    figures: Sequence[Figures],
    failures: dict[str, Exception],
) -> Route:
    """The route with a reason for each candidate."""
    by_name = {each.name: each for each in figures}

    def option(each: Candidate) -> Option:
        found = by_name.get(each.name)
        speed = found.tokens_per_second if found and found.tokens_per_second else None
        far = found.distance if found and speed else None
        mine = (each.backend, each.device)
        if each is chosen:
            return Option(*mine, "chosen", _why(candidates, chosen, by_name), speed, far)
        if each.refusal:
            return Option(*mine, "refused", each.refusal)
        if found and found.problem:
            return Option(*mine, "refused", found.problem, speed, far)
        if each.name in failures:
            return Option(*mine, "refused", f"it could not be opened: {failures[each.name]}", speed, far)
        if not each.asked:
            return Option(*mine, "possible", f"{chosen.name} was asked for")
        if each.tier != chosen.tier:
            return Option(*mine, "possible", TIER_WORDS.get(each.tier, ONLY), speed, far)
        return Option(*mine, "possible", f"not faster than {chosen.name} by enough", speed, far)

    return Route(tuple(option(each) for each in candidates))


def _why(candidates: Sequence[Candidate], chosen: Candidate, by_name: dict[str, Figures]) -> str:
    rivals = [each for each in candidates if each.asked]
    if len(rivals) == 1:
        return ASKED
    found = by_name.get(chosen.name)
    others = [by_name[each.name] for each in rivals if each.tier == chosen.tier and each.name in by_name]
    if found is None or len(others) == 1:
        return ONLY
    faster = max(each.tokens_per_second for each in others if not each.problem)
    if faster > found.tokens_per_second:
        return f"no other is {MARGIN - 1:.0%} faster by the probe"
    return "the fastest by the probe"


def _sample(candidate: Candidate, probe: Probe, tokens: Sequence[int], seconds: float) -> Sample:
    backend = candidate.open()
    try:
        return probe(backend, tokens, seconds)
    finally:
        backend.close()


def _figures(group: Sequence[Candidate], samples: dict[str, Sample]) -> list[Figures]:
    """Speeds, and distances from the most exact candidate; of equals, from the first."""
    if not samples:
        return []
    exact = max(samples, key=lambda name: samples[name].exactness)
    figures = []
    for each in group:
        if each.name not in samples:
            continue
        speed = samples[each.name].tokens_per_second
        far = distance(samples[exact].logits, samples[each.name].logits)
        problem = ""
        if not far <= BAR:
            problem = f"its log-probabilities are {far:.3f} from those of {exact}; {BAR} is allowed"
        figures.append(Figures(each.backend, each.device, speed, min(far, 1e9), problem))
    return figures


def _warn(candidates: Sequence[Candidate], chosen: Candidate, failures: dict[str, Exception]) -> None:
    """Say that another backend than the first choice runs the model, where that is so."""
    for each in candidates:
        if not each.asked or each is chosen:
            continue
        if each.name in failures or (each.refusal and each.tier < chosen.tier):
            why = failures.get(each.name) or each.refusal
            warnings.warn(
                f"{each.name} cannot run this model: {why}; {chosen.name} runs it instead "
                f"(backend={chosen.backend!r} says so without this warning)",
                RouteWarning,
                stacklevel=_caller(),
            )
            return


def _caller() -> int:
    """The `stacklevel` of `_warn`'s warning that is the first line outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("stretto."):
        frame, level = frame.f_back, level + 1
    return level


def _is_final(error: Exception) -> bool:
    """Whether an error is about the file or the options, and not about the backend."""
    if isinstance(error, UnsupportedModel):
        return False
    return isinstance(error, (ModelError, InvalidRequest))


def _none_can(candidates: Sequence[Candidate]) -> Unsupported:
    reasons = "; ".join(
        f"{each.name}: {each.refusal or 'its logits are no numbers'}" for each in candidates if each.asked
    )
    others = [each.name for each in candidates if not (each.asked or each.refusal or each.tier == ORACLE)]
    remedy = f"; {others[0]} can: leave backend and device out" if others else ""
    return Unsupported(f"no backend can run this model here: {reasons}{remedy}", param="backend")
