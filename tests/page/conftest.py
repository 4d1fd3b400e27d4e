"""A real Chromium, and pages in it that fail a test by a console error or a request to another host."""

import re
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from chromium import chromium, missing
from serving import mock, serving

SHOTS = Path(__file__).resolve().parents[2] / "build" / "page"
# A server that is away, or that asks for a key, is part of tests; the page's own errors are not.
NETWORK = re.compile("Failed to load resource|net::ERR_")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A test that fails leaves a screenshot of each of its pages, beside those that tests take."""
    report = yield
    if report.when == "call" and report.failed and (pages := getattr(item, "pages", [])):
        from playwright.sync_api import Error

        for n, page in enumerate(pages):
            with suppress(Error):  # of a page that has crashed: the test's own failure is what counts
                keep(page, f"failed-{re.sub(r'[^A-Za-z0-9]+', '-', item.name)}-{n}")
    return report


def keep(page, name, full_page=True):
    """Write a screenshot to build/page/NAME.png."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=full_page)


@pytest.fixture(scope="module")
def browser():
    """One browser a test file."""
    with chromium() as opened:
        yield opened


@contextmanager
def _loaded(opener, **settings):
    with serving(opener, **settings) as running:
        asked = httpx.post(f"{running.url}/stretto/models/load", json={"model": "mock"}, timeout=60)
        asked.raise_for_status()
        yield running


@pytest.fixture(scope="session")
def loaded():
    """`loaded(opener)`: a server that has loaded its model, and tells of the mock instead of the file."""
    return _loaded


@pytest.fixture(scope="module")
def server():
    """A server with a mock model that says hello; a file that needs another one has its own."""
    with serving(mock()) as running:
        yield running


@pytest.fixture
def new_page(browser, request):
    """Pages of a test, each in a context of its own: `new_page(url, width=360, color_scheme="dark")`.

    A `script` runs before those of the page. An address without a view opens Play.

    `page.problems` lists console errors, exceptions and requests elsewhere; the test fails if there are any.
    """
    contexts, pages = [], []
    request.node.pages = pages

    def make(url, width=1280, height=860, script=None, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(60_000)
        page = context.new_page()
        if script is not None:
            page.add_init_script(script)
        page.problems = []
        host = urlsplit(url).netloc
        page.on("console", lambda said: _note(page, said))
        page.on("pageerror", lambda error: page.problems.append(f"exception: {error}"))
        page.on("request", lambda asked: _check_host(page, asked.url, host))
        contexts.append(context)
        pages.append(page)
        page.goto(url if "#" in url else f"{url}/#play")
        page.locator("#main > *").first.wait_for()
        return page

    yield make
    problems = [problem for page in pages for problem in page.problems]
    for context in contexts:
        context.close()
    assert not problems, problems


def _note(page, said):
    if said.type in ("error", "warning") and not NETWORK.search(said.text):
        page.problems.append(f"console: {said.text}")


def _check_host(page, url, host):
    parts = urlsplit(url)
    if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != host:
        page.problems.append(f"request elsewhere: {url}")


@pytest.fixture
def page(new_page, server):
    """The page of `server`, as wide as a laptop."""
    return new_page(server.url)


@pytest.fixture
def shot():
    """`shot(page, name)` keeps a screenshot as build/page/NAME.png."""
    return keep


@pytest.fixture(scope="session")
def axe():
    """`axe(page)`: what axe-core finds wrong, as (rule, impact, first place)."""
    try:
        import axe_core_python
    except ImportError:
        missing("accessibility is tested with axe-core; pip install 'stretto[test]'")
    folder = Path(axe_core_python.__file__).parent
    source = (folder / "axe.min.js").read_text()
    run = "axe.run().then(r => r.violations.map(v => [v.id, v.impact, v.nodes[0].target.join(' ')]))"
    return lambda page: page.evaluate(f"{source};{run}")
