"""The study of parallel tokens: what its file of results covers, and that its plots can be drawn."""

import importlib.util
import json
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def study():
    spec = importlib.util.spec_from_file_location("parallel_study", ROOT / "benchmarks" / "parallel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results():
    return json.loads((ROOT / "benchmarks" / "raw" / "parallel.json").read_text("utf-8"))


def test_the_results_cover_every_comparison():
    found, module = results(), study()
    assert set(found) == set(module.PARTS)
    assert found["modes"]["prompts"] >= 50
    for name in ("kl", "kl_later", "top10", "attention"):
        mean, low, high = found["modes"][name]
        assert low < mean < high
    assert [float(threshold) for threshold in found["widths"]] == list(module.THRESHOLDS)
    for mode in ("isolated", "visible"):
        assert found["pruning"][mode]["prompts"] >= 50
        mean, low, high = found["pruning"][mode]["without"]
        assert 0 < low < mean < high
    assert [int(width) for width in found["costs"]["relative"]] == list(range(1, 9))
    assert found["costs"]["relative"]["4"] <= 2.0
    assert set(found["strategies"]) == set(module.STRATEGIES)
    for name, of in found["strategies"].items():
        assert (of["kl"][0] == 0) == (name in ("merge by sets", "reprocessing", "no cache"))
        assert of["seconds"] > 0


def test_plots(tmp_path):
    study().draw(tmp_path, results())
    drawn = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert set(drawn) == {"modes.svg", "width.svg", "cost.svg", "pruning.svg", "strategies.svg"}
    for name, text in drawn.items():
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert text == (ROOT / "docs" / "parallel" / name).read_text("utf-8")  # those of the documentation
