"""The documentation site: it builds without a warning, its links work, and it asks no other host."""

import functools
import threading
import zlib
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urljoin, urlsplit

import pytest

import stretto

HERE = "http://site"
FETCHED = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("object", "data"),
}


class Page(HTMLParser):
    """The anchors, links and fetched addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.fetched, self.images = set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.fetched += [given[name] for name in given if (tag, name) in FETCHED and given[name]]
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "img":
            self.images.append((given.get("src", ""), given.get("alt")))


class Files(SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def pages(site):
    """All pages by their path, such as "reference/options/"."""
    found = {}
    for file in sorted(site.rglob("*.html")):
        path = file.relative_to(site).as_posix().removesuffix("index.html")
        found[path] = Page(file.read_text("utf-8"))
    return found


def local(address, page):
    """The path and anchor of an address on a page, or None for one of another host."""
    parts = urlsplit(urljoin(f"{HERE}/{page}", address))
    if f"{parts.scheme}://{parts.netloc}" != HERE:
        return None
    return unquote(parts.path.lstrip("/")), unquote(parts.fragment)


def test_every_link_leads_to_a_page_or_file(site, pages):
    broken = []
    for page, content in pages.items():
        for link in (*content.links, *content.fetched):
            where = local(link, "" if page == "404.html" else page)
            if where and where[0] not in pages and not (site / where[0]).is_file():
                broken.append((page, link))
    assert broken == []


def test_every_anchor_exists(pages):
    broken = []
    for page, content in pages.items():
        for link in content.links:
            where = local(link, page)
            if where and where[1] and where[0] in pages and where[1] not in pages[where[0]].anchors:
                broken.append((page, link))
    assert broken == []


def test_no_page_fetches_anything_from_another_host(pages):
    fetched = {(page, one) for page, content in pages.items() for one in content.fetched}
    assert len(fetched) > 100
    assert [
        (page, one) for page, one in fetched if local(one, page) is None and not one.startswith("data:")
    ] == []


def test_every_image_has_an_alternative_text(pages):
    assert [(page, src) for page, one in pages.items() for src, alt in one.images if not alt] == []


def test_every_public_name_is_in_the_reference(site):
    data = (site / "objects.inv").read_bytes()
    lines = zlib.decompress(data[data.index(b"zlib.\n") + 6 :]).decode().splitlines()
    names = {line.split(" ", 1)[0] for line in lines}
    public = [name for name in stretto.__all__ if name != "__version__"]
    assert [name for name in public if f"stretto.{name}" not in names] == []


def test_tables_of_names_lead_to_their_descriptions(pages):
    assert "#stretto.LLM.generate" in pages["reference/api/llm/"].links
    assert "#stretto.Sequence.fork" in pages["reference/api/sequences/"].links


def test_the_page_in_a_browser_asks_only_its_own_host(site, browser):
    handler = functools.partial(Files, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        page, asked, problems = browser.new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address, wait_until="networkidle")
        page.click("input.md-search__input")
        page.type("input.md-search__input", "speculative decoding")  # the search listens to keys
        page.wait_for_selector(".md-search-result__item")
        found = page.inner_text(".md-search-result__list")
        page.close()
        server.shutdown()
    assert "Speculative decoding" in found
    assert problems == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
