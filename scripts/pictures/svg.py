"""A canvas that becomes an SVG: boxes, texts and arrows in named colours, light and dark in one file.

An image in a page follows the page's `color-scheme`, so also the switch of the documentation site. The
ground is opaque: a browser that knows only the system's preference may show the other colours, and all stays
readable.
"""

from xml.sax.saxutils import escape, quoteattr

# Name: the colour on a light and on a dark ground.
COLOURS = {
    "ground": ("#ffffff", "#161b22"),
    "frame": ("#d0d7de", "#3d444d"),
    "ink": ("#24292f", "#e6edf3"),
    "soft": ("#57606a", "#9ea7b3"),
    "plain": ("#f3f5f7", "#21262d"),
    "blue": ("#0a57c2", "#79b8ff"),
    "blue-fill": ("#d8e8fd", "#173a63"),
    "amber": ("#8a5a00", "#e3b341"),
    "amber-fill": ("#fcebc5", "#4d3a0c"),
    "green": ("#1a7f37", "#7ee787"),
    "green-fill": ("#d5f2dc", "#17452a"),
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
ANCHORS = {"left": "start", "middle": "middle", "right": "end"}


def number(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """Shapes in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def box(
        self,
        place: tuple[float, float, float, float],
        fill: str = "plain",
        stroke: str = "frame",
        radius: float = 5,
        dashed: bool = False,
    ) -> None:
        """A rectangle: left, top, width, height."""
        x, y, width, height = map(number, place)
        look = f'class="f-{fill} s-{stroke}"' + ' stroke-dasharray="4 3"' * dashed
        self._parts.append(
            f'<rect {look} x="{x}" y="{y}" width="{width}" height="{height}" rx="{number(radius)}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = "ink",
        anchor: str = "middle",
        size: int = 14,
        bold: bool = False,
    ) -> None:
        """One line of text; y is its middle."""
        look = f'class="f-{colour}" text-anchor="{ANCHORS[anchor]}"'
        look += f' font-size="{size}"' * (size != 14) + ' font-weight="600"' * bold
        baseline = number(y + 0.35 * size)
        self._parts.append(f'<text {look} x="{number(x)}" y="{baseline}">{escape(text)}</text>')

    def line(self, points: list[tuple[float, float]], colour: str = "soft", width: float = 1.5) -> None:
        """A line from point to point."""
        self._path("M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), colour, width)

    def arrow(self, points: list[tuple[float, float]], colour: str = "soft", width: float = 1.5) -> None:
        """A line along the axes, or a straight one, with a head at its end."""
        (x0, y0), (x1, y1) = points[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        back = (x1 - 8 * dx, y1 - 8 * dy)
        self.line([*points[:-1], back], colour, width)
        corners = [(x1, y1), (back[0] - 4 * dy, back[1] + 4 * dx), (back[0] + 4 * dy, back[1] - 4 * dx)]
        shape = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
        self._parts.append(f'<polygon class="f-{colour}" points="{shape}"/>')

    def curve(self, start: tuple[float, float], end: tuple[float, float], colour: str, width: float) -> None:
        """A line that leaves and arrives horizontally."""
        (x0, y0), (x1, y1) = start, end
        middle = number((x0 + x1) / 2)
        ends = (number(value) for value in (x0, y0, y1, x1))
        left, top, bottom, right = ends
        self._path(f"M{left} {top}C{middle} {top} {middle} {bottom} {right} {bottom}", colour, width)

    def _path(self, path: str, colour: str, width: float) -> None:
        look = f'class="s-{colour}" fill="none" stroke-width="{number(width)}"'
        self._parts.append(f'<path {look} d="{path}"/>')

    def render(self) -> str:
        """The SVG file."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        ground = f'x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="14" role="img" '
                f"aria-label={quoteattr(self.title)}>",
                f"<title>{escape(self.title)}</title>",
                f"<style>{style()}</style>",
                f'<rect class="f-ground s-frame" {ground}/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def style() -> str:
    """The rules of all pictures: colours as variables, which the dark scheme sets anew."""
    light, dark = (" ".join(f"--{name}: {pair[i]};" for name, pair in COLOURS.items()) for i in range(2))
    rules = [f".f-{name} {{ fill: var(--{name}) }} .s-{name} {{ stroke: var(--{name}) }}" for name in COLOURS]
    return "\n".join(
        [
            "",
            f":root {{ {light} }}",
            f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}",
            f"text {{ font-family: {FONT} }}",
            *rules,
            "",
        ]
    )
