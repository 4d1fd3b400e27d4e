"""Real models of tasks, from the ordinary store; without one, tests are skipped here and fail in CI."""

import os
from functools import cache
from importlib import import_module

import pytest

from stretto.errors import PullError
from stretto.tasks.model import HOMES, Source
from stretto.weights import hub

IN_CI = os.environ.get("CI") == "true"
STORE = hub.Store.default()  # found before any test changes the environment


@cache
def files_of(name):
    stored = hub.pull(name, store=STORE)
    return stored.license, {path.name: path for path in (stored.path, *stored.parts)}


def open_real(name):
    """The model by its name; opened for one test, so that it is freed after it."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    try:
        license_name, files = files_of(name)
    except PullError as error:
        (pytest.fail if IN_CI else pytest.skip)(f"{name} cannot be had: {error}")
    return import_module(HOMES[name]).open_task(Source(name, license_name, files), "cpu", 1)
