"""What a load has shown: figures of a run, and the table of all of them."""

from statistics import median

OUTSIDE = 150.0  # µs of processor time for a token, at most


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def figures(heard, seconds):
    """What the requests of a run got; times between chunks count for chunks with text."""
    first = [one.times[0] for one in heard if one.times]
    between = [b - a for one in heard for a, b in zip(one.times, one.times[1:], strict=False)]
    errors = [one.error or f"status {one.status}" for one in heard if one.error or one.status != 200]
    n_tokens = sum(one.tokens or len(one.times) for one in heard)
    return {
        "requests": len(heard),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
        "tokens": n_tokens,
        "tokens_per_second": n_tokens / seconds,
        "first_ms": [1e3 * quantile(first, share) for share in (0.5, 0.99)],
        "between_ms": [1e3 * quantile(between, share) for share in (0.5, 0.99)],
        "between_mean_ms": 1e3 * sum(between) / max(1, len(between)),
    }


def line(found):
    """A run in a line."""
    ours = found.get("outside_us")
    cost = f", {sum(ours.values()):.0f} µs a token outside forward" if ours else ""
    return (
        f"{found['server']}, {found['clients']} clients: {found['tokens_per_second']:.0f} tok/s, first "
        f"token {found['first_ms'][0]:.0f} ms, between {found['between_ms'][0]:.1f} ms, "
        f"{found['errors']} errors{cost}"
    )


COLUMNS = {  # what is shown: its value, whether more is better, and its format
    "tok/s": (lambda one: one["tokens_per_second"], True, "{:.0f}"),
    "first token p50, ms": (lambda one: one["first_ms"][0], False, "{:.0f}"),
    "p99": (lambda one: one["first_ms"][1], False, "{:.0f}"),
    "between p50, ms": (lambda one: one["between_ms"][0], False, "{:.1f}"),
    "p99 ": (lambda one: one["between_ms"][1], False, "{:.1f}"),
    "p99, of the mean": (lambda one: one["between_ms"][1] / one["between_mean_ms"], False, "{:.2f}"),
}


def table(results):
    """For each number of clients a row a server, medians of the rounds, and one of ratios (above 1: ours is
    better)."""
    yield f"| clients | server | {' | '.join(COLUMNS)} | errors | µs outside forward |"
    yield "|" + "---|" * (len(COLUMNS) + 4)
    for clients in dict.fromkeys(one["clients"] for one in results):
        runs = {}
        for one in results:
            if one["clients"] == clients:
                runs.setdefault(one["server"], []).append(one)
        middles = {
            name: {column: median(map(value, found)) for column, (value, *_) in COLUMNS.items()}
            for name, found in runs.items()
        }
        for name, found in runs.items():
            cells = [form.format(middles[name][column]) for column, (_, _, form) in COLUMNS.items()]
            costs = [sum(one["outside_us"].values()) for one in found if "outside_us" in one]
            cells += [str(sum(one["errors"] for one in found)), f"{median(costs):.0f}" if costs else ""]
            yield f"| {clients} | {name} | {' | '.join(cells)} |"
        if "peer" in runs:
            cells = [ratio(middles, column, more) for column, (_, more, _) in COLUMNS.items()]
            yield f"| {clients} | ratio | {' | '.join(cells)} | | |"


def ratio(middles, column, more):
    mine, other = middles["stretto"][column], middles["peer"][column]
    above, below = (mine, other) if more else (other, mine)
    return f"**{above / below:.2f}**" if below > 0 else ""
