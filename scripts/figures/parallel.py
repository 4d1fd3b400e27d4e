"""Tables of docs/explanation/parallel-tokens.md, from samples of benchmarks/."""

from collections.abc import Iterable
from statistics import median
from typing import Any

Found = dict[str, Any]  # by model: texts and tasks, by way of decoding

TITLES = {"smollm2": "SmolLM2", "gemma3-270m": "Gemma 3"}
TASKS = {"sums": "sums", "copies": "copies", "choices": "multiple choice"}
THRESHOLDS = 0.25, 0.2, 0.15, 0.1, 0.05


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def span(interval: list[float], form: str = "{:.2f}") -> str:
    """A mean with its interval."""
    mean, low, high = (form.format(value) for value in interval)
    return f"{mean} [{low}, {high}]"


def percent(interval: list[float]) -> str:
    """A share with its interval."""
    mean, low, high = (f"{100 * value:.0f}" for value in interval)
    return f"{mean} % [{low}, {high}]"


def whole_percent(interval: list[float]) -> str:
    """The mean of a share."""
    return f"{100 * interval[0]:.0f} %"


def nats(interval: list[float], form: str = "{:.2f}") -> str:
    """A mean of nats with its interval."""
    mean, low, high = (form.format(value) for value in interval)
    return f"{mean} nats [{low}, {high}]"


def texts(parts: Found) -> str:
    """Cross-entropy of the texts of one model, by way of decoding."""
    head = "way", "rows a token", "nats a token", "the other model's nats a character", "distinct pairs"
    rows = [
        [way, f"{one['rows']:.2f}", span(one["own"]), span(one["other"]), f"{one['distinct'][0]:.2f}"]
        for way, one in parts["texts"].items()
    ]
    return table(head, rows)


def tasks(found: Found) -> str:
    """Shares of right answers of both models; for multiple choice also the rows that a question takes."""
    columns = [(model, task) for model in TITLES for task in TASKS]
    ways = list(dict.fromkeys(way for parts in found.values() for way in parts["tasks"]))
    rows = []
    for way in ways:
        cells = [way]
        for model, task in columns:
            one = found[model]["tasks"].get(way, {}).get(task)
            compute = f"; {one['rows']:.1f} rows" if one and task == "choices" else ""
            cells.append(percent(one["right"]) + compute if one else "")
        rows.append(cells)
    return table(["way", *(f"{TITLES[model]}, {TASKS[task]}" for model, task in columns)], rows)


def thresholds(found: Found) -> str:
    """What a threshold shows and costs: isolated sets of both models."""
    head = ["threshold"]
    for title in TITLES.values():
        head += [f"{title}: steps wider than one", "rows a token", "nats a token"]
    rows = [["greedy"], *([f"{threshold:g}"] for threshold in THRESHOLDS)]
    ways = ["greedy", *(f"isolated, {threshold:g}" for threshold in THRESHOLDS)]
    for row, way in zip(rows, ways, strict=True):
        for model in TITLES:
            one = found[model]["texts"][way]
            wider = 0.0 if way == "greedy" else one["wider"]
            row += [f"{100 * wider:.0f} %", f"{one['rows']:.2f}", span(one["own"])]
    return table(head, rows)


def modes(found: Found) -> str:
    """Isolated against visible sets."""
    rows = {
        "KL of the next distribution, isolated ‖ visible": nats(found["kl"]),
        "overlap of their 10 best tokens": percent(found["top10"]),
        "attention that visible members give to each other": percent(found["attention"]),
        "KL of the distribution one token later": nats(found["kl_later"]),
    }
    return table(["", ""], rows.items())


def widths(found: Found) -> str:
    """Widths of sets by threshold."""
    means = [one["mean"] for one in found.values()]
    wider = [whole_percent(one["wider"]) for one in found.values()]
    return table(
        ["threshold", *found],
        [
            ["mean width", *(f"{mean:.2f}" for mean, _, _ in means)],
            ["interval", *(f"[{low:.2f}, {high:.2f}]" for _, low, high in means)],
            ["steps wider than one", *wider],
        ],
    )


def pruning(found: Found) -> str:
    """How far a pruned run is from others, by mode."""
    runs = {"to a run without the members at all": "without", "to a run that keeps them": "unpruned"}
    rows = [[title, *(nats(one[name], "{:.3f}") for one in found.values())] for title, name in runs.items()]
    return table(
        ["", *found], [*rows, ["members pruned", *(percent(one["share"]) for one in found.values())]]
    )


def costs(found: Found) -> str:
    """The cost of a step by width."""
    relative = found["relative"]
    return table(["width", *relative], [["× a plain step", *(f"{cost:.2f}" for cost in relative.values())]])


def strategies(found: Found) -> str:
    """Ways to keep the cache, by error and time."""
    titles = {
        "merge by sets": "merge by sets (what `llm.parallel` does)",
        "first member's cache only": "the first member's cache only",
        "one after another": "members fed one after another",
        "reprocessing": "reprocessing past and set",
        "no cache": "no cache at all",
    }
    merging = found["merge by sets"]["seconds"]
    rows = []
    for name, title in titles.items():
        one = found[name]
        exact = "0" if one is found["merge by sets"] else "0, the same bits"
        exact = nats(one["kl"]) if one["kl"][2] else exact
        rows.append([title, exact, f"{one['seconds'] / merging:.2f}"])
    return table(["", "error", "time, merging = 1"], rows)


def packed(samples: list[Found]) -> str:
    """Forks by the time of packed continuations: medians of the ratios of each round."""
    rows = []
    for n, shared in dict.fromkeys((one["n"], one["n_shared"]) for one in samples):
        rounds = [one["seconds"] for one in samples if (one["n"], one["n_shared"]) == (n, shared)]
        ratios = (median(one[way] / one["packed"] for one in rounds) for way in ("together", "one by one"))
        rows.append([str(n), str(shared), "1", *(f"{ratio:.2f} ×" for ratio in ratios)])
    return table(["candidates", "of 6 tokens shared", "packed", "forks together", "forks one by one"], rows)
