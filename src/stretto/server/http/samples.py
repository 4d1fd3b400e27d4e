"""Samples of `/metrics` in Prometheus's text format: one metric with its help, its type and its values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stretto.engine.metrics import Histogram

Labels = dict[str, str]


def metric(name: str, kind: str, text: str, values: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """A counter or a gauge; nothing without values."""
    if values := list(values):
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        for labels, value in values:
            yield f"{name}{written(labels)} {value}"


def histogram(name: str, text: str, values: Iterable[tuple[Labels, Histogram]]) -> Iterator[str]:
    """A histogram; its buckets count up."""
    if values := list(values):
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} histogram"
        for labels, data in values:
            count = 0
            for bound, n in zip((*data.bounds, "+Inf"), data.counts, strict=True):
                count += n
                yield f"{name}_bucket{written({**labels, 'le': str(bound)})} {count}"
            yield f"{name}_sum{written(labels)} {data.total}"
            yield f"{name}_count{written(labels)} {count}"


def written(labels: Labels) -> str:
    """Labels as they stand behind a name."""

    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return (
        "{" + ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items()) + "}" if labels else ""
    )
