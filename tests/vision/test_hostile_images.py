"""Image files that claim a lot in a few bytes: refused before or while they are decoded."""

import io
import os
import struct
import threading
import time
import zlib

import numpy as np
import pytest
from PIL import Image as Pillow

from stretto import Image
from stretto.errors import InvalidRequest
from stretto.vision import apart, worker
from stretto.vision.apart import DecodingPool

MAX_PIXELS = 16_000_000


def bmp_of_run_lengths():
    """4,000 × 4,000 pixels in a few jumps."""
    head = struct.pack("<IiiHHIIiiII", 40, 4000, 4000, 1, 8, 1, 0, 0, 0, 256, 0) + bytes(1024)
    body = b"\0\2\xff\xff" * 15
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(body), 0, 0, 14 + len(head)) + head + body


def ppm_of_odd_depth():
    return b"P6\n4000 4000\n37\n" + bytes(8 << 20)


def jpeg_of_segments():
    return b"\xff\xd8" + b"\xff\xfe\x00\x02" * 500_000 + b"\xff\xd9"


def jpeg_of_filling():
    return b"\xff\xd8" + b"\xff" * (4 << 20)


def jpeg_of_scans():
    file = io.BytesIO()
    Pillow.new("L", (4000, 3900)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    at = data.rindex(b"\xff\xda")
    return data[:at] + data[at:-2] * 60 + data[-2:]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_chunks():
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"aaAa", b"") * 400_000


def tiff_of_strips(n=900_000):
    """One row in each strip, all strips in the same place."""
    fields = [(256, 4, 1, 10), (257, 4, 1, n), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (278, 4, 1, 1)]
    at = 8 + 2 + 12 * (len(fields) + 2) + 4
    fields += [(273, 4, n, at), (279, 4, n, at)]
    entries = b"".join(struct.pack("<HHII", *field) for field in sorted(fields))
    return b"II*\0" + struct.pack("<IH", 8, len(fields)) + entries + bytes(4) + struct.pack("<I", 8) * n


def gif_of_blocks():
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"\x21\xfe" + b"\x01x" * 2_000_000


HOSTILE = [
    bmp_of_run_lengths,
    ppm_of_odd_depth,
    jpeg_of_segments,
    jpeg_of_filling,
    jpeg_of_scans,
    png_of_chunks,
    tiff_of_strips,
    gif_of_blocks,
]


@pytest.mark.parametrize("make", HOSTILE)
def test_it_is_refused_before_it_takes_long(make):
    data = make()
    begun = time.thread_time()
    with pytest.raises(InvalidRequest, match="save it"):
        Image.open(data, max_pixels=MAX_PIXELS)
    assert time.thread_time() - begun < 2  # each took 4 to 60 seconds


def saved(kind, mode="RGB", size=(60, 40), **options):
    file = io.BytesIO()
    pixels = np.random.default_rng(3).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Pillow.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def test_usual_files_are_within_the_bounds():
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP"):
        assert Image.open(saved(kind)).size == (60, 40), kind
    assert Image.open(saved("JPEG", progressive=True, comment=b"x" * 60_000)).size == (60, 40)
    assert Image.open(saved("TIFF", size=(30, 3000), compression="tiff_deflate")).size == (30, 3000)
    assert Image.open(bmp_of_run_lengths_small()).size == (4, 2)


def bmp_of_run_lengths_small():
    head = struct.pack("<IiiHHIIiiII", 40, 4, 2, 1, 8, 1, 0, 0, 0, 256, 0) + bytes(1024)
    body = b"\x04\1\0\0\x04\2\0\1"
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(body), 0, 0, 14 + len(head)) + head + body


def test_no_image_waits_for_another(monkeypatch):
    """Two threads are within a decoder at once."""
    from stretto.vision import decode as module

    both, pixels = threading.Barrier(2, timeout=60), module.read_pixels

    def meeting(*args):
        both.wait()
        return pixels(*args)

    monkeypatch.setattr(module, "read_pixels", meeting)
    sizes = []
    threads = [threading.Thread(target=lambda: sizes.append(Image.open(saved("PNG")).size)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [(60, 40)] * 2


# -- the processes of a server --


@pytest.fixture
def pool():
    made = DecodingPool(1)
    yield made
    made.close()


def test_a_process_decodes_as_the_library_does(pool):
    for data in (saved("PNG"), saved("JPEG"), saved("WEBP", "RGBA")):
        assert np.array_equal(pool.decode(data, MAX_PIXELS), Image.open(data).pixels)
    with pytest.raises(InvalidRequest, match="is none of PNG"):
        pool.decode(b"no image", MAX_PIXELS)
    with pytest.raises(InvalidRequest, match="60 × 40 pixels; at most 100"):
        pool.decode(saved("PNG"), 100)
    assert pool.decode(saved("PNG"), MAX_PIXELS).shape == (40, 60, 3)


def test_a_process_that_ends_is_replaced(pool, monkeypatch):
    pool.decode(saved("PNG"), MAX_PIXELS)
    process = pool.idle.get()
    pool.idle.put(process)
    os.kill(process.popen.pid, 9)
    process.popen.wait()
    assert pool.decode(saved("PNG"), MAX_PIXELS).shape == (40, 60, 3)
    monkeypatch.setattr(apart, "WALL_SECONDS", 0.0)
    with pytest.raises(InvalidRequest, match="takes more than 5 s"):
        decode_often(pool)  # the timer and the answer race
    monkeypatch.setattr(apart, "WALL_SECONDS", 60.0)
    assert pool.decode(saved("PNG"), MAX_PIXELS).shape == (40, 60, 3)


def decode_often(pool):
    for _ in range(50):
        pool.decode(saved("PNG"), MAX_PIXELS)


def test_an_answer_that_is_none_ends_the_process():
    for answer in (
        worker.ANSWER.pack(worker.PIXELS, 10, 10, 299),
        worker.ANSWER.pack(worker.PIXELS, 1 << 40, 1 << 40, 3 << 80 & 0xFFFF),
        worker.ANSWER.pack(worker.PIXELS, 10, 10, 300) + bytes(299),
        b"",
    ):
        with pytest.raises(EOFError):
            apart.read_answer(io.BytesIO(answer), 1000)


SPIN = """
import sys
from stretto.vision import worker
worker.CPU_SECONDS = 0.5
def decode(*args):
    while True:
        pass
worker.decode = decode
worker.main(sys.stdin.buffer, sys.stdout.buffer)
"""


def test_the_limit_on_time_ends_it(pool, monkeypatch):
    import sys

    real = apart.subprocess.Popen
    monkeypatch.setattr(
        apart.subprocess, "Popen", lambda command, **options: real([sys.executable, "-c", SPIN], **options)
    )
    begun = time.monotonic()
    with pytest.raises(InvalidRequest, match="to decode"):
        pool.decode(saved("PNG"), MAX_PIXELS)
    assert time.monotonic() - begun < 55  # not by the timer


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="this system has no niceness")
def test_decoders_stand_back_for_the_threads_of_texts(pool):
    pool.decode(saved("PNG"), MAX_PIXELS)
    process = pool.idle.get()
    pool.idle.put(process)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process.popen.pid) == min(19, own + worker.NICENESS)
