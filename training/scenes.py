"""Draws the synthetic pictures that "sketch" learns from: shapes, and short words and numbers.

    scene = make_scene(np.random.default_rng(7))
    draw(scene, np.random.default_rng(7))          # uint8[128, 128, 3]

A scene is plain data, so that questions about it can be asked and answered without looking. Everything
follows from the generator it is made with. Needs NumPy and Pillow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = 128
FINE = 3  # drawn so many times larger, for smooth edges

SHAPES = ("circle", "square", "triangle", "star", "cross", "heart", "diamond", "hexagon")
COLOURS = {
    "red": (215, 30, 35),
    "green": (35, 150, 55),
    "blue": (40, 75, 215),
    "yellow": (245, 220, 45),
    "orange": (248, 140, 25),
    "purple": (125, 45, 165),
    "pink": (250, 135, 190),
    "brown": (115, 68, 32),
    "black": (18, 18, 20),
    "white": (246, 246, 246),
    "gray": (128, 128, 130),
}
SIZES = {
    "small": (0.10, 0.145),
    "medium": (0.17, 0.24),
    "large": (0.30, 0.38),
}  # radius, of the picture's side
PLACES = (
    *("top left", "top", "top right"),
    *("left", "center", "right"),
    *("bottom left", "bottom", "bottom right"),
)
STYLES = ("filled", "outlined", "bordered", "shaded", "wobbly")
WORDS = """
cat dog sun moon tree fish bird book ball cake door home love rain snow star wind fire gold king
lion bear duck frog goat milk nose open park rose ship time wave yes no stop go hello world happy
apple bread chair dance earth field glass green heart house juice light lemon mouse music night
ocean paper piano plant queen radio river salad sheep shirt smile sound spoon stone sugar table
tiger toast train truck uncle voice watch water whale wheel white zebra red blue pink ten six two
one box bag bed bus car cup egg hat ice jam key leg map net owl pen pig pot run sea toy van win zoo
art bee day ear fan gas hen ink jar kid lip man nut oil pie road sand seed shop sing soap song taxi
town wall wolf wood word yard year zero
""".split()  # noqa: SIM905

# Drawn in training beside the others: who has to read many words learns letters.
MORE_WORDS = """
able acid aged also area army baby back band bank barn base bath beach bell belt best bike bill blade
blood board boat body bone boot born both bowl brain bread brick bridge brush build cabin cable camp
candy card care cart case cash cave chain chalk cheap chest child city clay clean clock cloth cloud
coach coal coast coin cold color cook cool copy corn cost count court cover cow crab crane cream crow
crowd cry curve dark date dawn deep deer desk dirt dish dog donut dose down draft dream dress drink
drive drop drum dust eagle early east easy edge eight elbow empty engine enjoy event exit fact fair
farm fast feet fence few film find flag flame flat fleet floor flour flute food foot forest fork
frame free fresh fruit game garden gate ghost giant gift girl give glad globe glove grain grape grass
gray great group grow guest hair half hall hand harbor hard harp hill hole honey hook hope horn horse
hot hotel hour iron island jacket jeans job joke judge jump keep kitten knee knife lake lamp land last
late lawn lazy leaf left lens life lift like line list lock long loud low luck lunch mail main make
mask meal meat metal mile mind mint mix mood morning most mud nail name near neck nest new news next
nine noon north note oak oat office old olive onion orange other oven page paint pair palm pan past
path peach pear pencil phone photo pick pilot pine pipe pizza place plane plate play point pool poor
port post power price print proud pull pump push quick quiet quiz rabbit race rail rare read rest rice
rich right ring robot rock roof room root rope round rug rule sad safe sail salt same save school
scout seal seat sell send seven shade shape shark shelf shell shoe short show silk silver six sky
sleep slow small snail sock soft soil soup south space sport stage stair steam steel stick storm store
straw sweet swim tail tall tank tape tea team tent test thin three throat tiny tip tire tomato tool
top tower toys trip tube tuna turn twin ugly under unit use valley vase vest view village visit walk
warm wash way web west wet wide wild wing winter wish wolf wool work worm yellow young zip
""".split()  # noqa: SIM905
NAMELESS = ""  # a thing's color that no question names: its shape is to be seen in any

# Never drawn in training: what a model answers about these it has not seen.
UNSEEN_PAIRS = frozenset(
    (
        *(("red", "star"), ("green", "heart"), ("blue", "cross"), ("yellow", "square"), ("orange", "circle")),
        *(("purple", "triangle"), ("pink", "hexagon"), ("brown", "diamond"), ("black", "star")),
        *(("white", "circle"), ("gray", "square")),
    )
)
UNSEEN_WORDS = frozenset(WORDS[3::10])
READ_LATER = sorted(UNSEEN_WORDS)
READ = sorted({*WORDS, *MORE_WORDS} - UNSEEN_WORDS)
UNSEEN_NUMBERS = frozenset(range(7, 1000, 10))


@dataclass(frozen=True)
class Thing:
    """One shape. `x`, `y` and `radius` are parts of the picture's side."""

    shape: str
    colour: str
    size: str
    place: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """What a picture shows: things, or a text. `kind` is single, several, count, word or number."""

    kind: str
    things: tuple[Thing, ...] = ()
    text: str = ""
    style: dict[str, float] = field(default_factory=dict)


def make_scene(rng: np.random.Generator, *, unseen: bool = False, kind: str | None = None) -> Scene:
    """A scene; `unseen` makes one of what is never drawn in training."""
    kind = kind or str(
        rng.choice(("single", "several", "count", "word", "number"), p=(0.34, 0.24, 0.16, 0.13, 0.13))
    )
    if kind == "word":
        return Scene(kind, text=str(rng.choice(READ_LATER if unseen else READ)))
    if kind == "number":
        top = int(rng.choice((10, 100, 1000), p=(0.3, 0.4, 0.3)))
        while True:
            number = int(rng.integers(0, top))
            if (number in UNSEEN_NUMBERS) == unseen:
                return Scene(kind, text=str(number))
    if kind == "single":
        return Scene(kind, (_single(rng, unseen),))
    n = int(rng.integers(2, 4)) if kind == "several" else int(rng.integers(1, 7))
    return Scene(kind, _several(rng, n, unseen, alike=kind == "count" and rng.random() < 0.6))


def _pair(rng: np.random.Generator, unseen: bool) -> tuple[str, str]:
    while True:
        pair = str(rng.choice(list(COLOURS))), str(rng.choice(SHAPES))
        if (pair in UNSEEN_PAIRS) == unseen:
            return pair


def _single(rng: np.random.Generator, unseen: bool) -> Thing:
    colour, shape = _pair(rng, unseen)
    if not unseen and rng.random() < 0.25:
        colour = NAMELESS
    size = str(rng.choice(list(SIZES), p=(0.4, 0.2, 0.4)))
    radius = float(rng.uniform(*SIZES[size]))
    column, row = (int(rng.integers(0, 3)), int(rng.integers(0, 3))) if size == "small" else (1, 1)
    if size == "large":
        x, y = (0.5 + float(rng.uniform(-0.1, 0.1)) for _ in range(2))
    else:
        x, y = _in_cell(rng, column, row, 0.04)
    return Thing(shape, colour, size, PLACES[3 * row + column], x, y, radius)


def _several(rng: np.random.Generator, n: int, unseen: bool, alike: bool) -> tuple[Thing, ...]:
    cells = rng.permutation(9)[:n]
    things: list[Thing] = []
    first = _pair(rng, unseen)
    for i, cell in enumerate(cells):
        pair = first
        while not alike and i and (pair in {(t.colour, t.shape) for t in things}):
            pair = _pair(rng, False)
        row, column = divmod(int(cell), 3)
        x, y = _in_cell(rng, column, row, 0.03)
        things.append(
            Thing(pair[1], pair[0], "small", PLACES[int(cell)], x, y, float(rng.uniform(0.095, 0.135)))
        )
    return tuple(things)


def _in_cell(rng: np.random.Generator, column: int, row: int, spread: float) -> tuple[float, float]:
    x, y = (0.18 + 0.32 * at + float(rng.uniform(-spread, spread)) for at in (column, row))
    return x, y


# -- drawing --


def draw(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """uint8[128, 128, 3]: one of many pictures of a scene."""
    inks = [
        _jittered(COLOURS[thing.colour], rng) if thing.colour else _nameless(rng) for thing in scene.things
    ]
    scale = FINE if rng.random() < 0.85 else 1  # some without smooth edges
    if scene.text:
        ground, ink = _contrasting(rng)
        canvas = _ground(rng, ground, scale, [ink])
        _write(canvas, scene.text, ink, scale, rng)
    else:
        canvas = _ground(rng, _away_from(inks, rng), scale, inks)
        style = str(rng.choice(STYLES, p=(0.4, 0.15, 0.15, 0.15, 0.15)))
        for thing, ink in zip(scene.things, inks, strict=True):
            _shape(canvas, thing, ink, style, scale, rng)
    image = canvas if scale == 1 else canvas.reduce(scale)
    pixels = np.asarray(image, np.float32)
    if rng.random() < 0.5:
        pixels = pixels + rng.standard_normal(pixels.shape, np.float32) * np.float32(rng.uniform(2, 12))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def _jittered(colour: tuple[int, int, int], rng: np.random.Generator, by: int = 14) -> tuple[int, int, int]:
    """A colour a little lighter or darker, and a very little different."""
    all_of_it = int(rng.integers(-by, by + 1))
    parts = rng.integers(-by // 3, by // 3 + 1, 3).tolist()
    red, green, blue = (min(255, max(0, a + all_of_it + b)) for a, b in zip(colour, parts, strict=True))
    return red, green, blue


def _nameless(rng: np.random.Generator) -> tuple[int, int, int]:
    """A color that is not like any with a name."""
    while True:
        red, green, blue = (int(part) for part in rng.integers(0, 256, 3))
        if all(_distance((red, green, blue), colour) > 60 for colour in COLOURS.values()):
            return red, green, blue


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    return math.dist(a, b)


def _away_from(
    inks: list[tuple[int, int, int]], rng: np.random.Generator, least: float = 105.0
) -> tuple[int, int, int]:
    """A colour for the ground that no ink is like."""
    while True:
        plain = rng.random() < 0.4
        grey = int(rng.choice((250, 235, 30, 15)))
        found = (grey,) * 3 if plain else tuple(int(part) for part in rng.integers(0, 256, 3))
        if all(_distance(found, ink) > least for ink in inks):
            return found
        least -= 1.0


def _contrasting(rng: np.random.Generator) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    ink = _jittered(list(COLOURS.values())[int(rng.integers(len(COLOURS)))], rng)
    return _away_from([ink], rng, 170.0), ink


def _ground(
    rng: np.random.Generator, colour: tuple[int, int, int], scale: int, inks: list[tuple[int, int, int]]
) -> Image.Image:
    """A plain ground, a gradient, stripes or squares."""
    side = SIZE
    kind = rng.random()
    if kind < 0.4:
        return Image.new("RGB", (side * scale, side * scale), colour)
    for _ in range(8):
        other = _jittered(colour, rng, 45)
        if all(_distance(other, ink) > 85 for ink in inks):
            break
    else:
        other = colour
    steps = np.arange(side, dtype=np.float32) / side
    if kind < 0.65:  # a gradient
        angle = rng.uniform(0, 2 * math.pi)
        mix = (steps[None, :] * math.cos(angle) + steps[:, None] * math.sin(angle)) % 2.0
        mix = np.abs((mix + 1) % 2 - 1)
    else:
        n = int(rng.integers(3, 9))
        across = (steps * n).astype(int)
        mix = (across[None, :] if rng.random() < 0.5 else across[:, None]) + np.zeros((side, side), int)
        if kind > 0.83:
            mix = mix + mix.T
        mix = (mix % 2).astype(np.float32)
    first, second = np.array(colour, np.float32), np.array(other, np.float32)
    image = Image.fromarray((first + (second - first) * mix[..., None]).astype(np.uint8))
    return image if scale == 1 else image.resize((side * scale,) * 2, Image.Resampling.NEAREST)


def _outline(shape: str, rng: np.random.Generator) -> list[tuple[float, float]]:
    """A shape's corners around 0, about 1 away from it."""
    if shape == "circle":
        return [(math.cos(a), math.sin(a)) for a in np.linspace(0, 2 * math.pi, 48, endpoint=False)]
    if shape == "square":
        return _turned([(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)], rng.uniform(-0.22, 0.22))
    if shape == "diamond":
        return _turned([(0, -1.12), (0.72, 0), (0, 1.12), (-0.72, 0)], rng.uniform(-0.15, 0.15))
    if shape == "triangle":
        return _turned(_regular(3, 1.12), rng.uniform(-0.5, 0.5))
    if shape == "hexagon":
        return _turned(_regular(6), rng.uniform(-0.5, 0.5))
    if shape == "star":
        corners = [(r * x, r * y) for (x, y), r in zip(_regular(10), (1.12, 0.46) * 5, strict=True)]
        return _turned(corners, rng.uniform(-0.6, 0.6))
    if shape == "cross":
        a, b = 0.34, 1.0
        corners = [
            (-a, -b),
            (a, -b),
            (a, -a),
            (b, -a),
            (b, a),
            (a, a),
            (a, b),
            (-a, b),
            (-a, a),
            (-b, a),
            (-b, -a),
            (-a, -a),
        ]
        return _turned(corners, rng.uniform(-0.3, 0.3))
    around = np.linspace(0, 2 * math.pi, 48, endpoint=False)
    heart = [
        (
            math.sin(a) ** 3,
            -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)) / 16,
        )
        for a in around
    ]
    return _turned(heart, rng.uniform(-0.3, 0.3))


def _regular(n: int, radius: float = 1.0) -> list[tuple[float, float]]:
    angles = (2 * math.pi * i / n - math.pi / 2 for i in range(n))
    return [(radius * math.cos(a), radius * math.sin(a)) for a in angles]


def _turned(corners: list[tuple[float, float]], angle: float) -> list[tuple[float, float]]:
    c, s = math.cos(angle), math.sin(angle)
    return [(x * c - y * s, x * s + y * c) for x, y in corners]


def _shape(
    canvas: Image.Image,
    thing: Thing,
    ink: tuple[int, int, int],
    style: str,
    scale: int,
    rng: np.random.Generator,
) -> None:
    side, pen = SIZE * scale, ImageDraw.Draw(canvas)
    radius = thing.radius * side
    corners = [
        (thing.x * side + x * radius, thing.y * side + y * radius) for x, y in _outline(thing.shape, rng)
    ]
    if style == "wobbly":
        by = 0.035 * radius
        corners = [(x + rng.uniform(-by, by), y + rng.uniform(-by, by)) for x, y in corners]
    if style == "outlined":
        width = max(2, int(radius * rng.uniform(0.2, 0.32)))
        pen.line([*corners, corners[0], corners[1]], fill=ink, width=width, joint="curve")
        return
    pen.polygon(corners, fill=ink)
    if style == "bordered":
        border = (15, 15, 15) if sum(ink) > 330 else (240, 240, 240)
        pen.line(
            [*corners, corners[0], corners[1]], fill=border, width=max(1, int(radius * 0.09)), joint="curve"
        )
    elif style == "shaded":
        middle = [
            (thing.x * side + (x - thing.x * side) * 0.6, thing.y * side + (y - thing.y * side) * 0.6)
            for x, y in corners
        ]
        lighter = tuple(int(part + (255 - part) * 0.18) for part in ink)
        pen.polygon(middle, fill=lighter)


def _write(
    canvas: Image.Image, text: str, ink: tuple[int, int, int], scale: int, rng: np.random.Generator
) -> None:
    side = SIZE * scale
    size = int(min(rng.uniform(0.26, 0.5), 1.5 / max(1, len(text))) * side)
    font = ImageFont.load_default(size)
    stroke = int(rng.integers(0, 2)) * scale
    layer = Image.new("L", (side, side), 0)
    pen = ImageDraw.Draw(layer)
    shown = text.upper() if rng.random() < 0.35 else text
    left, top, right, bottom = pen.textbbox((0, 0), shown, font=font, stroke_width=stroke)
    room_x, room_y = max(0, side - (right - left)), max(0, side - (bottom - top))
    x = room_x * rng.uniform(0.15, 0.85) - left
    y = room_y * rng.uniform(0.15, 0.85) - top
    pen.text((x, y), shown, fill=255, font=font, stroke_width=stroke)
    smooth = Image.Resampling.BILINEAR if scale == 1 else Image.Resampling.NEAREST
    layer = layer.rotate(float(rng.uniform(-10, 10)), resample=smooth)
    canvas.paste(Image.new("RGB", canvas.size, ink), mask=layer)


def noise(rng: np.random.Generator) -> np.ndarray:
    """A picture of nothing, for a blind run."""
    return rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8)
