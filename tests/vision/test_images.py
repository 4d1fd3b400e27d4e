"""Image files as people and attackers have them: a picture, or an error that says what is wrong."""

import io
import os
import random
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import stretto
from stretto import Image, InvalidRequest
from stretto.vision import decode, image
from stretto.vision.queue import prepare
from tiny_vision import NAMES, picture, seeing_llm, vision_spec

ORIENTATION = 274


def saved(source, kind, **options):
    """The bytes of an image file."""
    file = io.BytesIO()
    source.save(file, kind, **options)
    return file.getvalue()


def sample(mode="RGB", size=(6, 4)):
    """No two pixels alike, and no symmetry."""
    height, width = size[1], size[0]
    pixels = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3) * 3
    return PIL.Image.fromarray(pixels).convert(mode)


def png(width, height, data, *, bits=8, colours=2, between=b""):
    """A PNG file whose head says what it likes."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + between + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def tiff(tags, data):
    """A TIFF file of one page; its data begin at byte 8."""
    rows = b"".join(
        struct.pack("<HHII", tag, 4 if value > 65535 else 3, 1, value) for tag, value in sorted(tags.items())
    )
    return (
        b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + rows + b"\0" * 4
    )


def webp(width, height):
    """A WebP file with a canvas of that size, and 4 × 4 pixels on it."""
    canvas = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    inside = b"VP8X" + struct.pack("<I", 10) + bytes([16, 0, 0, 0]) + canvas
    inside += saved(PIL.Image.new("RGBA", (4, 4)), "WEBP", lossless=True)[12:]
    return b"RIFF" + struct.pack("<I", 4 + len(inside)) + b"WEBP" + inside


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_formats_that_lose_nothing(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    found = Image.open(saved(sample(), kind, **options))
    assert (found.pixels == np.asarray(sample())).all()


def test_formats_that_lose_something():
    flat = PIL.Image.new("RGB", (32, 32), (200, 100, 50))
    for kind in ("JPEG", "GIF"):
        assert np.abs(Image.open(saved(flat, kind)).pixels.astype(int) - (200, 100, 50)).max() < 4, kind


def test_a_name_says_nothing(tmp_path):
    """What a file is, its bytes say."""
    path = tmp_path / "cat.eps"
    path.write_bytes(saved(sample(), "PNG"))
    assert (Image.open(path).pixels == np.asarray(sample())).all()
    (tmp_path / "cat.png").write_bytes(saved(sample(), "EPS"))
    with pytest.raises(InvalidRequest, match=r"cat.png' is none of PNG, JPEG.*damaged"):
        Image.open(tmp_path / "cat.png")


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "PCX", "TGA", "JPEG2000", "SGI"])
def test_formats_that_are_not_on_the_list(kind):
    with pytest.raises(InvalidRequest, match="none of PNG"):
        Image.open(saved(sample(size=(32, 32)), kind))


def test_no_decoder_that_starts_a_program_is_asked(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "system", refuse)
    for data in (saved(sample(), "EPS"), b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
        with pytest.raises(InvalidRequest, match="none of PNG"):
            Image.open(data)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGB"), ("TIFF", "RGB"), ("TIFF", "I;16"), ("JPEG", "RGB")]
)
def test_turned_upright(kind, mode, orientation):
    """Each orientation undoes what a camera did; 16 bits are turned too."""
    right = sample(size=(24, 16)) if mode == "RGB" else PIL.Image.fromarray(steps((16, 24)))
    pixels = np.asarray(right)
    stored = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.swapaxes(0, 1),
        6: np.rot90(pixels, 1),
        7: pixels[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(pixels, -1),
    }[orientation]
    exif = PIL.Image.Exif()
    exif[ORIENTATION] = orientation
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}
    data = saved(PIL.Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif, **options)
    found, wanted = Image.open(data).pixels, Image.open(pixels).pixels
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).mean() <= (5 if kind == "JPEG" else 0)


def steps(shape):
    return np.linspace(0, 65535, shape[0] * shape[1]).astype(np.uint16).reshape(shape)


def test_damaged_exif_data_say_nothing():
    for exif in (
        b"Exif\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 40,
    ):
        for kind in ("PNG", "JPEG", "WEBP"):
            assert Image.open(saved(sample(size=(16, 8)), kind, exif=exif)).size == (16, 8)


def test_sixteen_bits_are_scaled():
    numbers = steps((16, 16))
    wanted = np.rint(numbers / 65535 * 255).astype(np.uint8)
    for data in (
        saved(PIL.Image.fromarray(numbers), "PNG"),
        saved(PIL.Image.fromarray(numbers), "TIFF"),
        numbers,
    ):
        found = Image.open(data).pixels
        assert (found == wanted[:, :, None]).all()
    every = np.arange(65536, dtype=np.uint16)
    assert (decode.from_16_bits(every) == np.rint(every / 257)).all()
    colours = b"".join(b"\0" + bytes([200, 7, 100, 7, 50, 7] * 3) for _ in range(2))
    assert (Image.open(png(3, 2, colours, bits=16)).pixels == (200, 100, 50)).all()


def test_numbers_beyond_a_picture():
    with pytest.raises(InvalidRequest, match="beyond 16 bits"):
        Image.open(PIL.Image.fromarray(np.array([[0, 70_000]], np.int32)))
    for wrong in (255.0, -0.5, np.nan, np.inf):
        with pytest.raises(InvalidRequest, match="from 0 to 1"):
            Image.open(PIL.Image.fromarray(np.array([[0.5, wrong]], np.float32)))
        with pytest.raises(InvalidRequest, match="from 0 to 1"):
            Image.open(np.array([[0.5, wrong]], np.float32))
    halves = PIL.Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32))
    assert Image.open(saved(halves, "TIFF")).pixels[0, :, 0].tolist() == [0, 128, 255]


def test_cmyk():
    red = PIL.Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    for kind in ("JPEG", "TIFF"):
        assert np.abs(Image.open(saved(red, kind)).pixels.astype(int) - (255, 0, 0)).max() < 6, kind


def test_what_is_clear_is_white():
    layer = np.zeros((1, 3, 4), np.uint8)
    layer[0, :, 3] = 0, 128, 255
    for source in (
        layer,
        saved(PIL.Image.fromarray(layer), "PNG"),
        saved(PIL.Image.fromarray(layer), "TIFF"),
    ):
        assert Image.open(source).pixels[0, :, 0].tolist() == [255, 127, 0]
    premultiplied = PIL.Image.fromarray(layer).convert("RGBa")
    assert Image.open(premultiplied).pixels[0, :, 0].tolist() == [255, 127, 0]
    palette = PIL.Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    for clear in (0, b"\0\xff"):
        found = Image.open(saved(palette, "PNG", transparency=clear)).pixels
        assert found[0].tolist() == [[255, 255, 255], [40, 50, 60]]
    found = Image.open(saved(palette, "GIF", transparency=1)).pixels
    assert found[0].tolist() == [[10, 20, 30], [255, 255, 255]]
    hidden = chunk(b"tRNS", struct.pack(">H", 500))  # 16-bit grey: one value cannot be seen
    grey = png(2, 1, b"\0" + struct.pack(">HH", 500, 40_000), bits=16, colours=0, between=hidden)
    assert Image.open(grey).pixels[0, :, 0].tolist() == [255, 156]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_of_several(kind):
    frames = [PIL.Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (Image.open(data).pixels == (255, 0, 0)).all()
    with PIL.Image.open(io.BytesIO(data)) as opened:
        opened.seek(2)
        assert (Image.open(opened).pixels == (0, 0, 255)).all()  # the frame that it shows
        assert opened.tell() == 2


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBX", "YCbCr", "HSV", "CMYK", "I", "I;16", "F"])
def test_modes_of_pillow(mode):
    source = PIL.Image.new(mode, (5, 3))
    assert Image.open(source).size == (5, 3)


def test_modes_that_have_no_colours():
    with pytest.raises(InvalidRequest, match=r"image from Pillow cannot be decoded.*La"):
        Image.open(PIL.Image.new("La", (5, 3)))


BOMBS = {
    "a PNG that claims much": png(50_000, 50_000, b"\0" * 1000),
    "a PNG that claims everything": png(2**31 - 1, 2**31 - 1, b"\0" * 1000),
    "a PNG between our limit and Pillow's": png(12_000, 12_000, b"\0" * 1000),
    "a wide PNG": png(100_000_000, 1, b"\0" * 1000),
    "a GIF": b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;",
    "a frame larger than its GIF": b"GIF89a\1\0\1\0\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x02\x02D\x01\0;",
    "a WebP": webp(16_000, 16_000),
    "a WebP that claims everything": webp(1 << 24, 255),
    "a BMP": saved(sample(), "BMP")[:18] + struct.pack("<ii", 60_000, -60_000) + saved(sample(), "BMP")[26:],
    "a JPEG": saved(sample(), "JPEG").replace(b"\0\x11\x08\0\x04\0\x06", b"\0\x11\x08\xff\xff\xff\xff"),
    "a PPM": b"P6 60000 60000 255\n",
    "a TIFF": tiff({256: 60_000, 257: 60_000, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 279: 4}, b"abcd"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_more_pixels_than_are_taken(name):
    with pytest.raises(InvalidRequest, match=r"claims far more|pixels; at most 64,000,000"):
        Image.open(BOMBS[name])


def test_tiles_larger_than_their_picture():
    """A TIFF of one pixel whose tile is 400 megabytes of zeros."""
    data = zlib.compress(bytes(1 << 20))
    tags = {256: 1, 257: 1, 258: 8, 259: 8, 262: 1, 277: 1, 322: 20_000, 323: 20_000, 324: 8, 325: len(data)}
    with pytest.raises(InvalidRequest, match="tiles of 20000 × 20000"):
        Image.open(tiff(tags, data))


def test_a_jpeg_of_many_scans():
    """Each costs a few bytes, and a walk over the whole picture."""
    whole = saved(PIL.Image.new("RGB", (64, 64)), "JPEG", progressive=True)
    last = whole[whole.rfind(b"\xff\xda") : -2]
    assert Image.open(whole[:-2] + last * 20 + whole[-2:]).size == (64, 64)
    with pytest.raises(InvalidRequest, match=r"JPEG of \d+ scans; at most 100"):
        Image.open(whole[:-2] + last * 200 + whole[-2:])


def test_text_is_not_read_number_by_number():
    with pytest.raises(InvalidRequest, match="plain text; save it as PNG"):
        Image.open(b"P3 2 1 255\n1 2 3 4 5 6\n")


LIMITED = """
import resource, sys
sys.path[:0] = sys.argv[1:]
import pytest
from pathlib import Path
from test_images import BOMBS, png
from stretto import Image, InvalidRequest
Image.open(png(1, 1, bytes(100)))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (150 << 20),) * 2)
for data in BOMBS.values():
    with pytest.raises(InvalidRequest, match="claims far more|at most 64,000,000"):
        Image.open(data)
assert Image.open(png(1, 1, bytes(100_000_000))).size == (1, 1)
print("fine")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a process can be kept from having more memory there")
def test_bombs_take_no_memory():
    """All of them, and a pixel that inflates to 100 MB, in a process that gets no more than 150 MB."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", LIMITED, str(here), str(here.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_truncated(kind, capfd):
    """Wherever a file ends early: an error, never half a picture."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    whole = saved(PIL.Image.fromarray(noise), kind)
    refused = 0
    ends = random.Random(kind).sample(range(1, len(whole) * 3 // 4), 40)
    for end in ends:
        try:
            assert Image.open(whole[:end]).size == (24, 24)
        except InvalidRequest:
            refused += 1
    assert refused == len(ends)
    with pytest.raises(InvalidRequest, match="is empty"):
        Image.open(b"")


SEEDS = {
    "PNG": saved(sample("P", (20, 12)), "PNG", transparency=3),
    "16-bit PNG": saved(PIL.Image.fromarray(steps((12, 20))), "PNG"),
    "JPEG": saved(sample(size=(20, 12)), "JPEG", progressive=True),
    "CMYK JPEG": saved(sample("CMYK", (20, 12)), "JPEG"),
    "WebP": saved(sample(size=(20, 12)), "WEBP"),
    "animated WebP": saved(
        sample(size=(20, 12)), "WEBP", save_all=True, append_images=[sample("L", (20, 12))]
    ),
    "GIF": saved(sample(size=(20, 12)), "GIF", save_all=True, append_images=[sample("L", (20, 12))]),
    "BMP": saved(sample("P", (20, 12)), "BMP"),
    "TIFF": saved(sample(size=(20, 12)), "TIFF"),
    "LZW TIFF": saved(sample(size=(20, 12)), "TIFF", compression="tiff_lzw"),
    "PPM": saved(sample(size=(20, 12)), "PPM"),
}
LIMIT = 1_000_000  # pixels, so that a large picture is not a slow test


def mended(data):
    """A PNG whose checksums are right again, so that what stands in its chunks is looked at."""
    at, found = 8, data[:8]
    while at + 12 <= len(data):
        n = struct.unpack(">I", data[at : at + 4])[0]
        if n > len(data) - at - 12:
            break
        found += chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + n])
        at += n + 12
    return found + data[at:]


@pytest.mark.parametrize("name", SEEDS)
def test_damaged(name):
    """Bytes changed, cut out, doubled: a picture within the limit, or an error of ours, and no warning."""
    generator, outcomes = random.Random(name), {"opened": 0, "refused": 0}
    for _ in range(60):
        data = bytearray(SEEDS[name])
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(data))
            match generator.randrange(4):
                case 0 | 1:
                    data[at] = generator.choice((0, 1, 127, 128, 255, generator.randrange(256)))
                case 2:
                    del data[at : at + generator.randint(1, 8)]
                case 3:
                    data[at:at] = data[at : at + generator.randint(1, 8)]
        damaged = mended(bytes(data)) if "PNG" in name else bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                found = Image.open(damaged, max_pixels=LIMIT)
                assert 0 < found.width * found.height <= LIMIT
                assert (found.pixels.dtype, found.pixels.shape[2]) == (np.uint8, 3)
                outcomes["opened"] += 1
            except InvalidRequest:
                outcomes["refused"] += 1
    assert sum(outcomes.values()) == 60
    assert min(outcomes.values()) > 0, outcomes


def test_threads_leave_warnings_as_they_were():
    """What Python does with warnings is one list for all threads; decoding must not leave it changed."""
    before, data = list(warnings.filters), saved(sample(size=(64, 64)), "PNG")
    threads = [
        threading.Thread(target=lambda: [Image.open(data) for _ in range(30)], daemon=True) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


def test_a_pil_image_that_cannot_be_read():
    whole = saved(sample(size=(40, 40)), "PNG")
    with (
        PIL.Image.open(io.BytesIO(whole[:-60])) as lazy,
        pytest.raises(InvalidRequest, match="from Pillow cannot"),
    ):
        Image.open(lazy)
    with pytest.raises(InvalidRequest, match="no pixels"):
        Image.open(PIL.Image.new("RGB", (0, 5)))


class Elsewhere(os.PathLike):
    def __fspath__(self):
        return b"bytes"


SOURCES = [
    (None, "not NoneType"),
    (7, "not int"),
    ("nowhere.png", "no such file"),
    ("a\0b", "cannot be read"),
    (Elsewhere(), "a path is a str"),
    ("https://example.org/cat.png", "nothing is fetched"),
    (os.sep, "is no file"),
    ("data:image/png;base64", "comma"),
    ("data:image/png;base64,!", "not base64"),
    ("data:image/png;base64,\ud800", "not base64"),
    ("data:,hello", "none of"),
    (np.zeros((4, 4, 2), np.uint8), "not (4, 4, 2)"),
    (np.zeros(4, np.uint8), "not (4,)"),
    (np.zeros((0, 4, 3), np.uint8), "no pixels"),
    (np.zeros((4, 4, 3), np.int64), "not int64"),
    (np.zeros((4, 4, 3), object), "not object"),
    (np.zeros((4, 4, 3), complex), "not complex128"),
]


@pytest.mark.parametrize(("source", "message"), SOURCES, ids=[message for _, message in SOURCES])
def test_sources_that_are_no_picture(source, message):
    with pytest.raises(InvalidRequest) as refused:
        Image.open(source)
    assert message in str(refused.value)


def test_sizes_of_sources(monkeypatch, tmp_path):
    data = saved(sample(), "PNG")
    monkeypatch.setattr(image, "MAX_FILE_BYTES", len(data))
    (tmp_path / "a.png").write_bytes(data)
    for source in (data, bytearray(data), memoryview(data), tmp_path / "a.png"):
        assert Image.open(source).size == (6, 4)
    (tmp_path / "a.png").write_bytes(data + b"\0")
    for source in (data + b"\0", memoryview(data + b"\0"), tmp_path / "a.png"):
        with pytest.raises(InvalidRequest, match="more than"):
            Image.open(source)
    monkeypatch.setattr(image, "MAX_URL_BYTES", 100)
    with pytest.raises(InvalidRequest, match="at most 200"):
        Image.open("data:image/png;base64," + "A" * 200)


def test_pixels_that_are_none():
    for wrong in (np.zeros((2, 2)), np.zeros((2, 2, 4), np.uint8), np.zeros((0, 2, 3), np.uint8), [[1]]):
        with pytest.raises(InvalidRequest, match=r"uint8\[height, width, 3\]"):
            stretto.Image(wrong)


@pytest.mark.parametrize("size", [(1, 1), (20_000, 1), (1, 20_000), (7, 5000)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_odd_shapes_are_seen(name, size):
    """From the file to a token behind it."""
    shape = Image.open(saved(PIL.Image.new("RGB", size, (200, 30, 60)), "PNG"))
    assert shape.size == size
    spec = vision_spec(name)
    prepared = prepare(shape, spec)
    assert prepared.tiles.shape[1:] == (spec.image_size, spec.image_size, 3)
    with seeing_llm(name) as llm:
        result = llm.generate(("A", shape, "B"), max_tokens=2, temperature=0, ignore_eos=True)
        assert len(result.tokens) == 2


def test_how_many():
    with seeing_llm("mlp", cells=2048) as llm:
        with pytest.raises(InvalidRequest, match="prompt: 65 images or sounds; at most 64"):
            llm.generate((picture(0),) * 65)
        url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}  # not opened
        with pytest.raises(
            InvalidRequest, match="messages: 65 images or sounds; at most 64"
        ):  # before one is opened
            llm.chat_prompt([{"role": "user", "content": [url] * 65}])
