"""A drawing of one step of the engine."""

from pictures.svg import Canvas

COLUMNS = (20, 285, 550)  # left edges of boxes that are 190 wide
WIDTH = 190
TOP, BOTTOM = 46, 246


def draw_part(canvas: Canvas, x: float, y: float, height: float, title: str, lines: tuple[str, ...]) -> None:
    """A box with a title at its top and small lines at its bottom."""
    canvas.box((x, y, WIDTH, height))
    canvas.text(x + WIDTH / 2, y + 18, title, bold=True)
    for i, line in enumerate(reversed(lines)):
        canvas.text(x + WIDTH / 2, y + height - 14 - 17 * i, line, "soft", size=12)


def draw_chips(canvas: Canvas, x: float, y: float, chips: list[tuple[str, str]], width: float) -> None:
    """Small boxes in a row: a text and a colour each."""
    for i, (text, colour) in enumerate(chips):
        fill, stroke = (f"{colour}-fill", colour) if colour != "plain" else ("ground", "soft")
        canvas.box((x + i * (width + 4), y, width, 24), fill, stroke, 4)
        canvas.text(x + i * (width + 4) + width / 2, y + 12, text, size=12)


def draw_requests(canvas: Canvas) -> None:
    """The queue, and the requests that run."""
    x = COLUMNS[0]
    draw_part(canvas, x, TOP, 62, "waiting", ())
    draw_chips(canvas, x + 51, TOP + 31, [("R4", "plain"), ("R5", "plain")], 42)
    draw_part(canvas, x, TOP + 90, 82, "running", ("R1, R2 decode; R3 prefills",))
    draw_chips(canvas, x + 28, TOP + 120, [("R1", "blue"), ("R2", "amber"), ("R3", "green")], 42)
    canvas.arrow([(x + 95, TOP + 62), (x + 95, TOP + 90)])
    canvas.text(x + 106, TOP + 75, "if it fits", "soft", "left", 12)


def draw_pass(canvas: Canvas) -> None:
    """The batch, the forward pass and its logits."""
    left, right = COLUMNS[1:]
    draw_part(canvas, left, TOP, 172, "batch", ("decode: one token each,", "prefill: a piece of the prompt"))
    tokens = [("1", "blue"), ("2", "amber"), *[("3", "green")] * 4]
    draw_chips(canvas, left + 12, TOP + 62, tokens, 24)
    draw_part(
        canvas, right, TOP, 172, "forward pass", ("all weights are read once;", "each token gets a cell")
    )
    canvas.text(right + 95, TOP + 50, "KV cache", "soft", size=12)
    cells = ["blue", "blue", "amber", "green", "amber", "plain", "plain"]
    for row in range(2):
        for i, colour in enumerate(cells if row == 0 else ["green"] * 4 + ["amber", "blue", "plain"]):
            fill = "ground" if colour == "plain" else f"{colour}-fill"
            canvas.box((right + 25 + 20 * i, TOP + 64 + 22 * row, 18, 18), fill, "frame", 2)
    draw_part(canvas, right, BOTTOM, 118, "logits", ("a row each; none for R3:", "its prompt goes on"))
    for i, (colour, heights) in enumerate((("blue", (8, 22, 12, 5, 9)), ("amber", (14, 6, 9, 24, 4)))):
        for j, height in enumerate(heights):
            x, bottom = right + 40 + 62 * i + 10 * j, BOTTOM + 62
            canvas.box((x, bottom - height, 7, height), colour, colour, 1)


def step() -> Canvas:
    """Requests become a batch, the batch becomes logits, and these become tokens."""
    canvas = Canvas(760, 416, "One step of the engine: requests, batch, forward pass, sampling, tokens")
    canvas.text(20, 24, "One step", anchor="left", bold=True)
    first, second, third = COLUMNS
    draw_requests(canvas)
    draw_pass(canvas)
    lines = ("each with its own parameters", "and random numbers")
    draw_part(canvas, second, BOTTOM, 118, "hooks, then sampling", lines)
    draw_chips(canvas, second + 51, BOTTOM + 40, [("R1", "blue"), ("R2", "amber")], 42)
    draw_part(canvas, first, BOTTOM, 118, "tokens", ("text, stop strings, events",))
    draw_chips(canvas, first + 43, BOTTOM + 45, [("mat", "blue"), ("is", "amber")], 50)
    middle, low = TOP + 131, BOTTOM + 59
    canvas.arrow([(first + WIDTH, middle), (second, middle)])
    canvas.text(first + WIDTH + 37, middle - 12, "plan", "soft", size=12)
    canvas.arrow([(second + WIDTH, middle), (third, middle)])
    canvas.text(second + WIDTH + 37, middle - 12, "run", "soft", size=12)
    canvas.arrow([(third + 95, TOP + 172), (third + 95, BOTTOM)])
    canvas.arrow([(third, low), (second + WIDTH, low)])
    canvas.arrow([(second, low), (first + WIDTH, low)])
    canvas.arrow([(first + 95, BOTTOM), (first + 95, TOP + 172)])
    canvas.text(first + 106, (BOTTOM + TOP + 172) / 2, "the next step computes them", "soft", "left", 12)
    canvas.text(
        first, 390, "Requests that finish leave; their cells stay in the prefix cache.", "soft", "left", 12
    )
    return canvas
