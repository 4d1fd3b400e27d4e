"""Drawings of the KV cache: cells and forks, and the cells of an image."""

from dataclasses import dataclass

from pictures.svg import Canvas

SHARED, FIRST, SECOND, FREE = "green", "blue", "amber", "plain"
LEFT = 120  # where the first cell begins


@dataclass
class Cell:
    """One cell of the table: its token and position, and the colour that says whose it is."""

    token: str
    position: int
    owner: str
    width: float = 58

    def is_seen_by(self, sequence: str) -> bool:
        """Whether the sequence of this colour attends to the cell."""
        return self.owner in (SHARED, sequence)


def draw_cell(canvas: Canvas, x: float, y: float, cell: Cell, height: float = 36) -> None:
    """A box with a token in it."""
    fill, stroke = (FREE, "frame") if cell.owner == FREE else (f"{cell.owner}-fill", cell.owner)
    canvas.box((x + 1.5, y, cell.width - 3, height), fill, stroke, dashed=cell.owner == FREE)
    canvas.text(x + cell.width / 2, y + height / 2, cell.token, size=13)


def draw_table(canvas: Canvas, y: float, cells: list[Cell], names: dict[str, str]) -> None:
    """A row of cells with their numbers and positions, and a row for each sequence, by its colour."""
    for row, label in ((y - 12, "cell"), (y + 18, "token"), (y + 50, "position")):
        canvas.text(LEFT - 14, row, label, "soft", "right", 13)
    for i, (colour, name) in enumerate(names.items()):
        canvas.text(LEFT - 14, y + 76 + 26 * i, name, colour, "right", 13, bold=True)
    x: float = LEFT
    for index, cell in enumerate(cells):
        middle = x + cell.width / 2
        canvas.text(middle, y - 12, str(index), "soft", size=12)
        draw_cell(canvas, x, y, cell)
        if cell.owner != FREE:
            canvas.text(middle, y + 50, str(cell.position), "soft", size=12)
        for i, colour in enumerate(names):
            if cell.is_seen_by(colour) and cell.owner != FREE:
                canvas.box((x, y + 69 + 26 * i, cell.width, 14), colour, colour, 0)
        x += cell.width


def draw_view(canvas: Canvas, y: float, cells: list[Cell], sequence: str, name: str) -> None:
    """The cells that a sequence attends to, in order of position."""
    canvas.text(LEFT - 14, y + 15, name, sequence, "right", 13, bold=True)
    x: float = LEFT
    for cell in sorted((cell for cell in cells if cell.is_seen_by(sequence)), key=lambda one: one.position):
        draw_cell(canvas, x, y, cell, 30)
        x += cell.width


def forks() -> Canvas:
    """Two sequences that share the cells of their common prefix."""
    canvas = Canvas(760, 330, "Cells and forks: two sequences share the cells of their common prefix")
    cells = [Cell(token, i, SHARED) for i, token in enumerate(("The", "cat", "sat", "on", "the"))]
    cells += [Cell("mat", 5, FIRST), Cell("sofa", 5, SECOND), Cell(".", 6, SECOND)]
    cells += [Cell("free", 0, FREE), Cell("free", 0, FREE)]
    canvas.text(20, 24, "The table of cells", anchor="left", bold=True)
    draw_table(canvas, 66, cells, {FIRST: "sequence A", SECOND: "sequence B"})
    canvas.text(20, 210, "What each sequence attends to, by position", anchor="left", bold=True)
    draw_view(canvas, 230, cells, FIRST, "A")
    draw_view(canvas, 270, cells, SECOND, "B")
    canvas.text(LEFT + 2.5 * 58, 314, "the same five cells: nothing is copied", "green", size=13)
    canvas.text(LEFT + 5 * 58 + 4, 314, "its own", "soft", "left", 13)
    return canvas


PATCHES = ("bbba", "gbgg")  # a sun over a valley: blue, amber, green


def draw_image(canvas: Canvas, x: float, y: float, side: float) -> None:
    """A small image of patches, each with the name of its token."""
    colours = {"b": "blue-fill", "a": "amber-fill", "g": "green-fill"}
    for i, patch in enumerate("".join(PATCHES)):
        left, top = x + i % 4 * side, y + i // 4 * side
        canvas.box((left, top, side, side), colours[patch], "ground", 0)
        canvas.text(left + side / 2, top + side / 2, f"i{i + 1}", size=12)


def images() -> Canvas:
    """An image between texts, and two questions about it."""
    canvas = Canvas(760, 360, "Image cells: two questions share the cells of one image")
    draw_image(canvas, LEFT, 48, 40)
    for x, title, detail in (
        (326, "encoder", "and projector"),
        (496, "vectors", "kept in a cache"),
    ):
        canvas.box((x, 60, 124, 56))
        canvas.text(x + 62, 79, title, bold=True)
        canvas.text(x + 62, 99, detail, "soft", size=12)
    canvas.text(20, 24, "An image is encoded once", anchor="left", bold=True)
    canvas.arrow([(284, 88), (322, 88)])
    canvas.arrow([(454, 88), (492, 88)])
    canvas.arrow([(558, 120), (558, 150), (322, 150), (322, 180)])
    canvas.text(548, 137, "in place of token embeddings", "soft", "right", 12)

    cells = [Cell("Look", 0, SHARED, 46), Cell(":", 1, SHARED, 28)]
    cells += [Cell(f"i{n}", 1 + n, SHARED, 32) for n in range(1, 9)]
    first = zip(("What", "is", "this", "?"), (48, 30, 42, 28), strict=True)
    second = zip(("Which", "colour", "?"), (52, 58, 28), strict=True)
    cells += [Cell(token, 10 + n, FIRST, width) for n, (token, width) in enumerate(first)]
    cells += [Cell(token, 10 + n, SECOND, width) for n, (token, width) in enumerate(second)]
    draw_table(canvas, 206, cells, {FIRST: "question A", SECOND: "question B"})
    canvas.text(LEFT + 2, 334, "10 cells, computed once: 8 are the image", "green", "left", 13)
    canvas.text(LEFT + 404, 334, "A computes 4", "blue", size=13)
    canvas.text(LEFT + 547, 334, "B computes 3", "amber", size=13)
    return canvas
