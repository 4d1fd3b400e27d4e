"""Draws the screen of a terminal emulator as an SVG that follows the reader's light or dark theme."""

from itertools import groupby
from xml.sax.saxutils import escape

CHARACTER, LINE, SIZE, MARGIN, BAR = 8.4, 19, 14, 18, 34  # pixels

# Name in the emulator: the colour on a light and on a dark ground.
COLOURS = {
    "default": ("#24292f", "#d4d8de"),
    "black": ("#24292f", "#8b949e"),
    "red": ("#b3261e", "#ff8a80"),
    "green": ("#1a7f37", "#7ee787"),
    "brown": ("#8a5a00", "#e3b341"),
    "blue": ("#0a57c2", "#79b8ff"),
    "magenta": ("#8250df", "#d2a8ff"),
    "cyan": ("#0b7285", "#76e3ea"),
    "white": ("#57606a", "#f0f3f6"),
    "brightblack": ("#6e7781", "#9198a1"),
}
GROUND = ("#ffffff", "#0d1117")
FRAME = ("#d0d7de", "#30363d")


def lines_of(screen):
    """Rows of (text, style) runs of a pyte screen with its history, empty ones at the end left out."""
    rows = [*getattr(screen.history, "top", ()), *(screen.buffer[y] for y in range(screen.lines))]
    drawn = [_runs([row[x] for x in range(screen.columns)]) for row in rows]
    while drawn and not drawn[-1]:
        drawn.pop()
    return drawn


def _runs(cells):
    def style(cell):
        return (cell.fg, cell.bg, cell.bold, cell.italics, cell.underscore, cell.reverse)

    x, runs = 0, []
    for look, group in groupby(cells, style):
        text = "".join(cell.data for cell in group)
        if text.strip() or look[1] != "default" or look[5]:
            runs.append((x, text, look))
        x += len(text)
    if runs and runs[-1][2][1] == "default" and not runs[-1][2][5]:
        x, text, look = runs.pop()
        runs += [(x, text.rstrip(), look)] if text.strip() else []
    return runs


def draw(rows, columns, title):
    """The SVG of rows of runs, `columns` characters wide."""
    width = round(2 * MARGIN + columns * CHARACTER)
    height = BAR + MARGIN + len(rows) * LINE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_css()}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *(f'<circle class="frame" cx="{20 + 18 * i}" cy="18" r="5"/>' for i in range(3)),
        f'<text class="brightblack" x="{width / 2}" y="22" text-anchor="middle">{escape(title)}</text>',
    ]
    for y, runs in enumerate(rows):
        parts += [_text(run, BAR + (y + 0.75) * LINE) for run in runs]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(run, y):
    x, text, (colour, ground, bold, italics, underlined, reverse) = run
    left, length = MARGIN + x * CHARACTER, len(text) * CHARACTER
    look = ""
    if colour in COLOURS:
        look += f' class="{"default" if reverse else colour}"'
    elif colour.removeprefix("bright") in COLOURS:
        look += f' class="{colour.removeprefix("bright")}"'
    else:
        look += f' fill="#{colour}"'
    look += ' font-weight="bold"' * bold + ' font-style="italic"' * italics
    look += ' text-decoration="underline"' * underlined
    behind = ""
    if reverse or ground != "default":
        place = f'x="{left:.1f}" y="{y - 0.75 * LINE:.1f}" width="{length:.1f}" height="{LINE}"'
        behind = f'<rect class="frame" {place}/>'
    if not text.strip():
        return behind
    return (
        f'{behind}<text x="{left:.1f}" y="{y:.1f}" textLength="{length:.1f}" '
        f'lengthAdjust="spacingAndGlyphs" xml:space="preserve"{look}>{escape(text)}</text>'
    )


def _css():
    def theme(i):
        rules = [f".{name} {{ fill: {colours[i]} }}" for name, colours in COLOURS.items()]
        rules.append(f".ground {{ fill: {GROUND[i]}; stroke: {FRAME[i]} }} .frame {{ fill: {FRAME[i]} }}")
        return " ".join(rules)

    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    return (
        f"text {{ font-family: {font}; font-size: {SIZE}px }} {theme(0)} "
        f"@media (prefers-color-scheme: dark) {{ {theme(1)} }}"
    )
