"""Measuring, and remembering what was measured."""

import json
import math

import pytest
from machines import GIB, MEASURED, Native

from stretto.hardware import speed
from stretto.hardware.speed import IntegerPeak, Rate, Speed


def entry(**changes):
    bandwidth = {"memory": {"one": 1, "all": 2}, "memory_nbytes": 9, "model": {"one": 1, "all": 2}}
    peak = {"instruction": "x", "rate": {"one": 1, "all": 2}}
    return {"bandwidth": bandwidth | {"model_nbytes": 9}, "integer_peak": peak} | changes


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b"{}",
        json.dumps({"key": 7}).encode(),
        json.dumps({"key": {}}).encode(),
        json.dumps({"key": entry(bandwidth=[])}).encode(),
        json.dumps({"key": entry(integer_peak={"instruction": 5, "rate": {"one": 1, "all": 2}})}).encode(),
        *(
            json.dumps(
                {"key": entry(integer_peak={"instruction": "x", "rate": {"one": 1, "all": bad}})}
            ).encode()
            for bad in (True, "7", None, 0, -1, math.inf, math.nan, 10**400)
        ),
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(tmp_path, damage):
    path = tmp_path / "hardware.json"
    path.write_bytes(damage)
    assert speed.recall("key", path) is None
    speed.remember("key", MEASURED, path)
    assert speed.recall("key", path) == MEASURED


def test_an_entry_in_order_is_read(tmp_path):
    path = tmp_path / "hardware.json"
    path.write_text(json.dumps({"key": entry()}))
    assert speed.recall("key", path).integer_peak == IntegerPeak("x", Rate(1, 2))
    path.write_text(json.dumps({"key": {"bandwidth": None, "integer_peak": None}}))
    assert speed.recall("key", path) == Speed()


def test_buffers_leave_room():
    for free, caches, buffer in [
        (100 * GIB, 0, 2**28),
        (100 * GIB, 300 * 2**20, 600 * 2**20),
        (100 * GIB, 4 * GIB, GIB),
        (None, 0, 2**28),
        (GIB // 2, 300 * 2**20, 2**27),
    ]:
        made = Native()
        measured = speed.measure(made, 2, caches, free).bandwidth
        assert made.asked[:2] == [buffer, min(buffer, 100_000_000)]
        assert (measured.memory_nbytes, measured.model_nbytes) == tuple(made.asked[:2])
    assert speed.measure(Native(), 2, 0, 2**20).bandwidth is None
