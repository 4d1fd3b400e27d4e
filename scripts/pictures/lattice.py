"""A drawing of a lattice of parallel tokens, with its best path."""

from itertools import pairwise, product
from math import prod

from pictures.svg import Canvas

PROMPT = "He opened the door and"
# Sets with the probability of each member after each member of the set before: made up, to show the rule.
FIRST = {"stepped": 0.5, "looked": 0.4}
EDGES = [
    {
        "stepped": {"inside": 0.40, "into": 0.45, "around": 0.03},
        "looked": {"inside": 0.35, "into": 0.10, "around": 0.40},
    },
    {
        "inside": {"the": 0.15, ".": 0.35},
        "into": {"the": 0.80, ".": 0.01},
        "around": {"the": 0.40, ".": 0.30},
    },
    {
        "the": {"room": 0.40, "He": 0.01, "house": 0.25},
        ".": {"room": 0.01, "He": 0.50, "house": 0.01},
    },
]
LEFT, GAP, WIDTH, HEIGHT = 204, 148, 88, 44
PROMPT_RIGHT, MIDDLE = 142, 150
BEST = "green"


def sets() -> list[dict[str, float]]:
    """The probability of each member: the mixture of its predecessors' distributions, as in a run."""
    found = [FIRST]
    for edges in EDGES:
        before, total = found[-1], sum(found[-1].values())
        members = next(iter(edges.values()))
        found.append(
            {name: sum(before[last] / total * edges[last][name] for last in before) for name in members}
        )
    return [dict(sorted(one.items(), key=lambda pair: -pair[1])) for one in found]


def factors(path: tuple[str, ...]) -> list[float]:
    """The probability of each token of a path after the one before."""
    return [FIRST[path[0]], *(edges[a][b] for edges, (a, b) in zip(EDGES, pairwise(path), strict=True))]


def best_path() -> tuple[str, ...]:
    """The path with the greatest product of probabilities."""
    return max(product(*sets()), key=lambda path: prod(factors(path)))


def draw_edges(canvas: Canvas, places: list[dict[str, float]], path: tuple[str, ...]) -> None:
    """Edges as thick as they are probable."""
    for i, edges in enumerate([{PROMPT: FIRST}, *EDGES]):
        for a, to in edges.items():
            for b, probability in to.items():
                start, end = ends(places, i, a, b)
                canvas.curve(start, end, "soft", 0.5 + 5 * probability)
    for i, (a, b) in enumerate(pairwise((PROMPT, *path))):
        (x0, y0), (x1, y1) = start, end = ends(places, i, a, b)
        probability = factors(path)[i]
        canvas.curve(start, end, BEST, 0.5 + 5 * probability)
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        canvas.box((x - 17, y - 9, 34, 18), "ground", BEST, 9)
        canvas.text(x, y, f"{probability:.2f}", BEST, size=12)


def ends(
    places: list[dict[str, float]], i: int, a: str, b: str
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where an edge into set i begins and ends."""
    start = (LEFT + GAP * (i - 1) + WIDTH, places[i - 1][a]) if i else (PROMPT_RIGHT, MIDDLE)
    return start, (LEFT + GAP * i, places[i][b])


def lattice() -> Canvas:
    """Four sets, all edges between them, and the best path."""
    canvas = Canvas(760, 340, "A lattice of parallel tokens and the best path through it")
    steps, path = sets(), best_path()
    places = [
        {name: MIDDLE + 74 * (row - (len(members) - 1) / 2) for row, name in enumerate(members)}
        for members in steps
    ]
    draw_edges(canvas, places, path)
    canvas.box((20, MIDDLE - 27, PROMPT_RIGHT - 20, 54))
    for y, words in ((MIDDLE - 9, PROMPT.split()[:2]), (MIDDLE + 10, PROMPT.split()[2:])):
        canvas.text(81, y, " ".join(words), size=13)
    canvas.text(81, 24, "prompt", "soft", size=13)
    for i, members in enumerate(steps):
        x = LEFT + GAP * i
        canvas.text(x + WIDTH / 2, 24, f"set {i + 1}", "soft", size=13)
        for name, probability in members.items():
            chosen, y = name == path[i], places[i][name]
            fill, stroke = (f"{BEST}-fill", BEST) if chosen else ("plain", "frame")
            canvas.box((x, y - HEIGHT / 2, WIDTH, HEIGHT), fill, stroke)
            canvas.text(x + WIDTH / 2, y - 8, name, bold=chosen)
            canvas.text(x + WIDTH / 2, y + 11, f"{probability:.2f}", "soft", size=12)
    most_probable = tuple(next(iter(members)) for members in steps)
    for y, label, words, colour in (
        (286, "best path", path, BEST),
        (314, "top member of each set", most_probable, "soft"),
    ):
        values = " × ".join(f"{value:.2f}" for value in factors(words))
        canvas.text(20, y, f"{label}:", colour, "left", 13, bold=True)
        canvas.text(216, y, " ".join(words), "ink", "left", 13)
        canvas.text(740, y, f"{values} = {prod(factors(words)):.3f}", colour, "right", 13)
    return canvas
