"""Plots of decode speed by CPU and of its cost by context length, from the samples in benchmarks/raw."""

from figures.samples import CPUS, Q4_0, SAME, SMOLLM2, Pair, llamacpp_pairs
from pictures.svg import Canvas

LEFT, RIGHT, BAR = 268, 640, 17  # of the bars, in pixels


def pairs() -> list[Pair]:
    """All decode tests beside llama.cpp."""
    return [pair for pair in llamacpp_pairs() if pair.test.startswith("decode")]


def draw_legend(canvas: Canvas, y: float) -> None:
    """The colours of the two engines."""
    for x, name, colour in ((548, "Stretto", "blue"), (640, "llama.cpp", "soft")):
        canvas.box((x, y - 7, 14, 14), colour, colour, 2)
        canvas.text(x + 20, y, name, "ink", "left", 13)


def draw_bars(
    title: str, groups: dict[str, list[tuple[str, float, float]]], form: str, longer_is_faster: bool
) -> Canvas:
    """Pairs of bars under the name of their CPU: a label, ours, theirs; then the ratio."""
    n_pairs = sum(map(len, groups.values()))
    canvas = Canvas(760, 48 + 30 * len(groups) + 52 * n_pairs, title)
    scale = (RIGHT - LEFT) / max(max(ours, peer) for rows in groups.values() for _, ours, peer in rows)
    canvas.text(20, 24, title, anchor="left", bold=True)
    draw_legend(canvas, 24)
    y = 58
    for cpu, rows in groups.items():
        canvas.text(20, y, cpu, "ink", "left", 13, bold=True)
        y += 22
        for label, ours, peer in rows:
            canvas.text(LEFT - 12, y + BAR, label, "ink", "right", 13)
            for i, (value, colour) in enumerate(((ours, "blue"), (peer, "soft"))):
                canvas.box((LEFT, y + BAR * i, scale * value, BAR - 2), colour, colour, 2)
                middle = y + BAR * i + BAR / 2 - 1
                canvas.text(LEFT + scale * value + 6, middle, form.format(value), "ink", "left", 12)
            canvas.text(
                740,
                y + BAR,
                f"{ours / peer if longer_is_faster else peer / ours:.1f} ×",
                "blue",
                "right",
                13,
                bold=True,
            )
            y += 52
        y += 8
    return canvas


def speed_by_cpu() -> Canvas:
    """Decode speed of every model that was measured."""
    groups: dict[str, list[tuple[str, float, float]]] = {}
    for cpu in CPUS.values():
        rows = [one for one in pairs() if one.cpu == cpu and "depth" not in one.test]
        rows.sort(key=lambda one: (-one.ours if one.model != SMOLLM2 else -1e9, one.file == Q4_0))
        groups[cpu] = [
            ("the same; llama.cpp: its Q4_0" if one.file == Q4_0 else one.model, one.ours, one.peer)
            for one in rows
        ]
    return draw_bars("Decode, tokens a second (longer is faster)", groups, "{:.0f}", longer_is_faster=True)


def cost_by_length() -> Canvas:
    """Milliseconds a token: at the start of a text, and after 2,048 tokens."""
    labels = {
        "decode 64": "at the start",
        "decode at depth 2048, K/V f16": "after 2,048 tokens, K/V f16",
        "decode at depth 2048, K/V 8 bits": 'after 2,048; Stretto: kv="q8"',
    }
    found = {(one.cpu, one.test): one for one in pairs() if (one.model, one.file) == (SMOLLM2, SAME)}
    groups = {}
    for cpu in CPUS.values():
        rows = [(label, found[cpu, test]) for test, label in labels.items()]
        groups[cpu] = [(label, 1000 / one.ours, 1000 / one.peer) for label, one in rows]
    return draw_bars(
        "Decode, milliseconds a token (shorter is faster)", groups, "{:.1f}", longer_is_faster=False
    )
