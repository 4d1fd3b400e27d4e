"""Routes by fake probes: what is fastest and exact enough is opened, and every way around is said."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from stretto.backends import registry
from stretto.backends.registry import BREADTH, FIRST, ORACLE
from stretto.errors import InvalidRequest, ModelError, RouteWarning, Unsupported, UnsupportedModel
from stretto.loading.choose import BAR, SECONDS, Candidate, Comparison, onnx_candidates, survey_candidates
from stretto.loading.open import open_ranked
from stretto.loading.probe import Sample, default_path

LOGITS = np.linspace(-2, 2, 3 * 50, dtype=np.float32).reshape(3, 50)


class Fake:
    """An open backend that knows its name, and whether it was closed."""

    def __init__(self, name, log):
        self.name, self.log, self.closed = name, log, False
        log.append(name)

    def close(self):
        self.closed = True


class Bench:
    """Candidates with made-up speeds and errors; counts what is opened and probed."""

    def __init__(self):
        self.opened, self.probed, self.seconds = [], [], []
        self.speeds, self.shifts, self.exact, self.errors = {}, {}, {}, {}

    def candidate(self, backend, device="cpu", speed=100.0, shift=0.0, exactness=0, error=None, **more):
        name = f"{backend} on {device}"
        self.speeds[name], self.shifts[name], self.exact[name] = speed, shift, exactness
        self.errors[name] = error

        def opening():
            if self.errors[name] is not None:
                raise self.errors[name]
            return Fake(name, self.opened)

        return Candidate(backend, device, opening, version=lambda: "1", **more)

    def probe(self, backend, tokens, seconds):
        self.probed.append(backend.name)
        self.seconds.append(seconds)
        logits = LOGITS.copy()
        logits[:, ::2] += 2 * self.shifts[backend.name]  # half of them: softmax ignores a common shift
        return Sample(self.speeds[backend.name], logits, self.exact[backend.name])

    def comparison(self, key="file", **more):
        return Comparison(lambda: [1, 2, 3], lambda: key, self.probe, **more)


@pytest.fixture
def bench():
    return Bench()


def states(route):
    return {option.name: option.state for option in route.options}


def test_one_candidate_is_opened_without_a_probe(bench):
    backend, route = open_ranked([bench.candidate("native")], bench.comparison())
    assert (backend.name, bench.opened, bench.probed) == ("native on cpu", ["native on cpu"], [])
    assert (route.backend, route.device, route.reason) == ("native", "cpu", "it was asked for")
    assert not default_path().exists()


def test_the_oracle_and_the_breadth_do_not_compete(bench):
    several = [
        bench.candidate("native", speed=1.0),
        bench.candidate("llamacpp", speed=900.0, tier=BREADTH),
        bench.candidate("reference", speed=900.0, tier=ORACLE),
    ]
    _, route = open_ranked(several, bench.comparison())
    assert bench.opened == ["native on cpu"]
    assert bench.probed == []
    assert states(route) == {
        "native on cpu": "chosen",
        "llamacpp on cpu": "possible",
        "reference on cpu": "possible",
    }
    assert "models that the others cannot run" in str(route)


def test_the_fastest_of_a_tier_is_taken_and_remembered(bench):
    several = [bench.candidate("native", speed=100.0), bench.candidate("torch", "cuda", speed=900.0)]
    backend, route = open_ranked(several, bench.comparison())
    assert backend.name == "torch on cuda"
    assert bench.probed == ["native on cpu", "torch on cuda"]
    assert sum(bench.seconds) <= SECONDS
    assert route.chosen.tokens_per_second == 900.0
    assert route.reason == "the fastest by the probe"
    assert route.others[0].tokens_per_second == 100.0
    again, route_again = open_ranked(several, bench.comparison())
    assert len(bench.probed) == 2  # remembered
    assert (again.name, route_again) == ("torch on cuda", route)
    assert not again.closed


@pytest.mark.parametrize("change", ["file", "version", "candidates", "refresh"])
def test_what_changed_is_measured_again(bench, change):
    several = [bench.candidate("native"), bench.candidate("torch", "cuda", speed=900.0)]
    open_ranked(several, bench.comparison())
    comparison, group = bench.comparison(), list(several)
    if change == "file":
        comparison = bench.comparison(key="another file")
    elif change == "version":
        group[0] = Candidate("native", "cpu", several[0].open, version=lambda: "2")
    elif change == "candidates":
        group.append(bench.candidate("onnx"))
    else:
        comparison = bench.comparison(refresh=True)
    bench.speeds["native on cpu"] = 5000.0
    backend, _ = open_ranked(group, comparison)
    assert backend.name == "native on cpu"
    assert len(bench.probed) == 2 + len(group)


def test_a_coarser_kernel_cannot_win(bench):
    several = [
        bench.candidate("native", speed=100.0),
        bench.candidate("coarse", speed=900.0, shift=2 * BAR),
        bench.candidate("near", speed=200.0, shift=BAR / 2),
    ]
    backend, route = open_ranked(several, bench.comparison())
    assert backend.name == "near on cpu"
    assert states(route)["coarse on cpu"] == "refused"
    coarse = route.options[1]
    assert "from those of native on cpu" in coarse.reason
    assert coarse.distance > BAR > route.chosen.distance > 0


def test_the_most_exact_candidate_is_the_measure_not_the_first(bench):
    several = [
        bench.candidate("coarse", speed=900.0, shift=2 * BAR),
        bench.candidate("fine", speed=100.0, exactness=1),
    ]
    backend, route = open_ranked(several, bench.comparison())
    assert backend.name == "fine on cpu"
    assert states(route)["coarse on cpu"] == "refused"


def test_logits_that_are_no_numbers_are_refused(bench):
    several = [bench.candidate("native"), bench.candidate("broken", speed=900.0, shift=float("nan"))]
    backend, route = open_ranked(several, bench.comparison())
    assert backend.name == "native on cpu"
    assert states(route)["broken on cpu"] == "refused"


def test_a_little_faster_is_not_enough(bench):
    several = [bench.candidate("native", speed=100.0), bench.candidate("other", speed=104.0)]
    backend, route = open_ranked(several, bench.comparison())
    assert backend.name == "native on cpu"
    assert "no other is 10% faster" in route.reason


def test_a_wrong_guess_from_the_store_falls_back_loudly(bench):
    several = [bench.candidate("native"), bench.candidate("torch", "cuda", speed=900.0)]
    open_ranked(several, bench.comparison())
    bench.errors["torch on cuda"] = RuntimeError("the driver is gone")
    with pytest.warns(
        RouteWarning, match=r"torch on cuda cannot .*the driver is gone; native on cpu runs it"
    ):
        backend, route = open_ranked(several, bench.comparison())
    assert backend.name == "native on cpu"
    assert route.options[1].state == "refused"
    assert "the driver is gone" in route.options[1].reason


def test_a_candidate_that_fails_while_it_is_measured_is_named_and_tried_again(bench):
    several = [bench.candidate("native"), bench.candidate("torch", "cuda", error=MemoryError("too large"))]
    for _ in range(2):
        with pytest.warns(RouteWarning, match="torch on cuda cannot run this model: too large"):
            backend, _ = open_ranked(several, bench.comparison())
        assert backend.name == "native on cpu"
    assert bench.probed == ["native on cpu"] * 2  # nothing was remembered


def test_another_tier_is_taken_with_a_warning_that_names_both(bench):
    several = [
        bench.candidate("native", refusal="the architecture 'gpt2' is not supported"),
        bench.candidate("llamacpp", tier=BREADTH),
    ]
    with pytest.warns(RouteWarning, match=r"native on cpu cannot .*'gpt2'.*llamacpp on cpu runs it instead"):
        backend, route = open_ranked(several, bench.comparison())
    assert backend.name == "llamacpp on cpu"
    assert states(route) == {"native on cpu": "refused", "llamacpp on cpu": "chosen"}


def test_a_format_that_shows_when_it_is_opened_goes_to_another_tier(bench):
    several = [
        bench.candidate("native", error=UnsupportedModel("tensors in TQ1_0 are not supported")),
        bench.candidate("llamacpp", tier=BREADTH),
    ]
    with pytest.warns(RouteWarning, match="TQ1_0"):
        assert open_ranked(several, bench.comparison())[0].name == "llamacpp on cpu"


@pytest.mark.parametrize("error", [InvalidRequest("too many cells"), ModelError("a tensor is missing")])
def test_an_error_of_the_caller_or_the_file_is_no_reason_to_try_another_tier(bench, error):
    several = [bench.candidate("native", error=error), bench.candidate("llamacpp", tier=BREADTH)]
    with warnings.catch_warnings(), pytest.raises(type(error)) as raised:
        open_ranked(several, bench.comparison())
    assert raised.value is error
    assert bench.opened == []


def test_without_a_candidate_all_reasons_are_given(bench):
    several = [
        bench.candidate("native", refusal="of another kind"),
        bench.candidate("onnx", refusal="pip install 'stretto[onnx]'"),
        bench.candidate("reference", asked=False),
    ]
    with pytest.raises(Unsupported, match=r"native on cpu: of another kind; onnx on cpu: pip install") as no:
        open_ranked(several, bench.comparison())
    assert "reference on cpu:" not in str(no.value)


def test_a_backend_that_was_asked_for_leaves_the_others_possible(bench):
    several = [bench.candidate("reference", tier=ORACLE), bench.candidate("native", asked=False)]
    _, route = open_ranked(several, bench.comparison())
    assert (route.backend, route.reason) == ("reference", "it was asked for")
    assert str(route.others[0]) == "native on cpu: possible; reference on cpu was asked for"


def test_a_survey_measures_breadth_too_and_leaves_nothing_open(bench):
    several = [
        bench.candidate("native", speed=100.0),
        bench.candidate("llamacpp", speed=900.0, tier=BREADTH),
        bench.candidate("reference", tier=ORACLE),
        bench.candidate("onnx", refusal="a GGUF file"),
    ]
    route = survey_candidates(several, bench.comparison())
    assert route.backend == "native"
    assert [option.tokens_per_second for option in route.options] == [100.0, 900.0, None, None]
    assert json.loads(json.dumps(route.as_data()))[1]["backend"] == "llamacpp"
    assert bench.probed == ["native on cpu", "llamacpp on cpu"]


def test_tiers_are_in_order():
    assert FIRST < BREADTH < ORACLE


def test_devices_of_an_onnx_folder_compete_if_they_are_installed(bench, monkeypatch):
    installed = {"cpu", "cuda", "xnnpack"}
    entry = replace(registry.ONNX, missing=lambda device: "" if device in installed else "install it")
    monkeypatch.setattr(registry, "ONNX", entry)
    bench.candidate("onnx", "cpu", speed=10.0)
    bench.candidate("onnx", "cuda", speed=90.0)
    opening = lambda device: Fake(f"onnx on {device}", bench.opened)  # noqa: E731
    _, route = open_ranked(onnx_candidates(opening, "auto"), bench.comparison())
    assert (route.device, bench.probed) == ("cuda", ["onnx on cpu", "onnx on cuda"])
    assert states(route)["onnx on xnnpack"] == "possible"  # only if it is named
    assert states(route)["onnx on tensorrt"] == "refused"
    bench.probed.clear()
    _, route = open_ranked(onnx_candidates(opening, "cuda:1"), bench.comparison())
    assert (route.device, route.reason, bench.probed) == ("cuda:1", "it was asked for", [])
    assert states(route)["onnx on cpu"] == "possible"
    installed.remove("cuda")
    _, route = open_ranked(onnx_candidates(opening, "auto"), bench.comparison())
    assert (route.device, bench.probed) == ("cpu", [])
    with pytest.raises(Unsupported, match="onnx on cuda: install it"):
        open_ranked(onnx_candidates(opening, "cuda"), bench.comparison())
