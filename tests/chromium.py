"""A real Chromium for tests; without one they are skipped here and fail in CI."""

import os
import shutil
from contextlib import contextmanager

import pytest

EXPECT_MS = 60_000  # that a page may take to show something, on a busy machine
IN_CI = os.environ.get("CI") == "true"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def missing(reason):
    """Skip here, fail in CI."""
    (pytest.fail if IN_CI else pytest.skip)(reason)


@contextmanager
def chromium():
    """A browser. While one is open, its event loop keeps other tests from having their own."""
    try:
        from playwright.sync_api import expect, sync_playwright
    except ImportError:
        missing("pages are tested with playwright; pip install 'stretto[test]'")
    if CHROMIUM is None:
        missing("pages are tested in Chromium, and there is none; apt-get install chromium")
    expect.set_options(timeout=EXPECT_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()
