"""Samples of benchmarks/raw, as the medians that the documents show."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

RAW = Path(__file__).parents[2] / "benchmarks" / "raw"
X86, ARM = "x86-64, Emerald Rapids", "ARM, Neoverse N1"
CPUS = {"Intel(R) Xeon(R) Processor": X86, "Neoverse N1": ARM}
COMPARED = {
    "stretto native": "Stretto, the GGUF file",
    "stretto onnx": "Stretto, the exported folder",
    "onnxruntime-genai": "ONNX Runtime GenAI, the exported folder",
    "transformers": "transformers, the GGUF file as float32",
}
SMOLLM2, CODER, SAME, Q4_0 = "SmolLM2 135M Q4_1", "Qwen2.5-Coder 1.5B Q4_K_M", "same file", "its Q4_0"


@cache
def raw(name: str) -> Any:
    """The contents of a file of samples."""
    return json.loads((RAW / f"{name}.json").read_text("utf-8"))


@dataclass
class Pair:
    """A test of one CPU, Stretto and llama.cpp by turns: the tokens of a run, and the seconds of both."""

    cpu: str
    model: str
    test: str
    file: str
    count: int
    ours_seconds: float
    peer_seconds: float

    @property
    def ours(self) -> float:
        """Stretto's tokens a second."""
        return self.count / self.ours_seconds

    @property
    def peer(self) -> float:
        """llama.cpp's tokens a second."""
        return self.count / self.peer_seconds

    @property
    def ratio(self) -> float:
        """How many times as fast Stretto is."""
        return self.peer_seconds / self.ours_seconds


@cache
def llamacpp_pairs() -> list[Pair]:
    """All tests of vs_llamacpp.py, each in the setting that is best for llama.cpp, as RESULTS.md has them."""
    settings: defaultdict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for file in sorted(RAW.glob("vs_llamacpp-*.json")):
        found = raw(file.stem)
        samples: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
        for one in found["samples"]:
            key = (CPUS[found["cpu"]], one["model"], one["test"], one["file"], json.dumps(one["way"]))
            samples[key].append(one)
        for key, rounds in samples.items():
            ours, peer = (median(one[whose]["seconds"] for one in rounds) for whose in ("ours", "peer"))
            settings[key[:4]].append(Pair(*key[:4], rounds[0]["count"], ours, peer))
    return [min(pairs, key=lambda pair: pair.peer_seconds) for pairs in settings.values()]


def pairs_of(cpu: str, test: str, model: str, file: str = SAME) -> list[Pair]:
    """One test of vs_llamacpp.py, whose name may be shortened; empty if it was not measured on that CPU."""
    found = (one for one in llamacpp_pairs() if (one.cpu, one.model, one.file) == (cpu, model, file))
    return [pair for pair in found if pair.test.startswith(test)][:1]


def llamacpp_pair(cpu: str, test: str, file: str = SAME, model: str = SMOLLM2) -> Pair:
    """The same, of a test that has to be there."""
    for pair in pairs_of(cpu, test, model, file):
        return pair
    raise KeyError(f"{test} of {model} on {cpu}, {file}")


def x86_ratios(test: str, threads: int) -> list[float]:
    """Stretto by the better setting of llama.cpp for each shape of x86.py; "tg" is decoding, "pp" prefill."""
    speeds: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in raw("x86")["samples"]:
        if (one["test"], one["threads"]) == (test, threads):
            speeds[one["model"]][one["who"]].append(one["speed"])
    return [
        median(by["stretto"]) / max(median(by[setting]) for setting in ("flash 0", "flash 1"))
        for by in speeds.values()
    ]


def served(server: str, clients: int) -> tuple[float, float]:
    """Tokens a second of all clients together, and the median of milliseconds to the first token."""
    found = raw("serve-intel-xeon-processor")["results"]
    rounds = [one for one in found if (one["server"], one["clients"]) == (server, clients)]
    return median(one["tokens_per_second"] for one in rounds), median(one["first_ms"][0] for one in rounds)


def architecture_ratios(test: str) -> list[float]:
    """Stretto by llama.cpp with flash attention, for each shape with experts of architectures.py."""
    return [
        median(one["peer"]["seconds"] for one in found) / median(one["ours"]["seconds"] for one in found)
        for run in raw("architectures-neoverse-n1")
        if (found := [one for one in run["samples"] if is_expert_test(one, test)])
    ]


def is_expert_test(sample: Any, test: str) -> bool:
    """Whether a sample of architectures.py is such a test of a mixture of experts, llama.cpp at its best."""
    experts = not sample["model"].startswith("qwen3.5")
    return experts and sample["test"].startswith(test) and sample["way"] == {"flash": True}


def exported(engine: str, figure: str = "decode_median") -> float:
    """Tokens a second of CPU time of onnx_export.py."""
    return float(raw("onnx-export-cpu-neoverse-n1")["speed"][engine][figure])


def gpu(test: str, who: str) -> float:
    """A median of gpu.py: tokens a second, or milliseconds."""
    for one in raw("gpu-h200")["figures"]:
        if (one["test"], one["who"]) == (test, who):
            return float(one["median"])
    raise KeyError(f"{test}, {who}")


def encoded(library: str, texts: int) -> float:
    """Texts a second of encoders.py."""
    for one in raw("encoders-neoverse-n1")["samples"]:
        if (one["library"], one["texts"]) == (library, texts):
            return texts / median(one["seconds"])
    raise KeyError(f"{library}, {texts} texts")


def batch_of_16() -> float:
    """16 requests of mixed lengths by batch.py: Stretto's tokens a second by llama.cpp's best."""
    found = raw("batch")["tokens a second"]["16"]
    return median(found["together"]) / max(median(found[name]) for name in found if "flash" in name)


def lookup_ratio(kind: str, temperature: float = 0.0) -> float:
    """How many times as fast a kind of text is with prompt lookup: the median of the pairs of drafts.py."""
    return median(
        one["seconds"]["plain"] / one["seconds"]["lookup"]
        for one in raw("drafts-intel-xeon-processor")["samples"]
        if (one["kind"], one["temperature"]) == (kind, temperature)
    )


def distance(model: str, kv: str, precision: str) -> tuple[float, float]:
    """The mean and the greatest distance from exact log-probabilities, by precision.py."""
    for one in raw("precision-neoverse-n1")["distances"]:
        if (one["model"], one["kv"], one["precision"]) == (model, kv, precision):
            return one["mean"], one["most"]
    raise KeyError(f"{model}, {kv}, {precision}")


def simulated(policy: str, replicas: int) -> Any:
    """A row of fleet.py, with the lengths of LMSYS-Chat-1M."""
    for row in raw("fleet")["rows"]:
        if (row["kind"], row["policy"], row["replicas"]) == ("lmsys", policy, replicas):
            return row
    raise KeyError(f"{policy}, {replicas} replicas")


def compared(engine: str, figure: str) -> float:
    """A median of the runs of `stretto compare`, of one round each."""
    return median(
        one["figures"][figure]["median"]
        for run in raw("compare-neoverse-n1")["runs"]
        for one in run["standings"]
        if one["name"] == engine
    )


def span(values: Iterable[float], digits: int = 1) -> str:
    """The least and the greatest of some values: “1.5–2.2”."""
    several = list(values)
    return f"{min(several):.{digits}f}–{max(several):.{digits}f}"
