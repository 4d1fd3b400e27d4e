"""The page's files as they are served: headers, encodings, budgets. No browser is needed."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

from stretto.server.own import pages

OWN_LINES, SERVED_BYTES = 4_850, 240_000


@pytest.fixture(scope="module")
def web(server):
    with httpx.Client(base_url=server.url) as client:
        yield client


@pytest.mark.parametrize("path", sorted(pages.files()))
def test_a_file_is_served_under_the_policy(web, path):
    answer = web.get(path)
    assert answer.status_code == 200
    assert answer.content == pages.files()[path].content
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "require-trusted-types-for 'script'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"


def test_a_known_version_is_not_sent_again(web):
    tag = web.get("/").headers["etag"]
    answer = web.get("/", headers={"if-none-match": tag})
    assert (answer.status_code, answer.content) == (304, b"")


def test_a_client_without_gzip_gets_plain_bytes(web):
    answer = web.get("/page/app.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in answer.headers
    assert answer.content == pages.files()["/page/app.js"].content


@pytest.mark.parametrize("name", ["app.js", "style.css"])
def test_lines_of_comment_are_not_sent(name):
    source = (pages.FOLDER / name).read_text().splitlines()
    sent = pages.files()[f"/page/{name}"].content.decode().splitlines()
    assert len(sent) == len(source)
    changed = [line for line, other in zip(source, sent, strict=True) if line != other]
    assert changed
    assert all(line.strip().startswith(("//", "/*")) for line in changed)


@pytest.mark.parametrize("path", ["/page/", "/page/none.js", "/page/../pages.py", "/page/%2e%2e/pages.py"])
def test_nothing_else_is_served(web, path):
    assert web.get(path).status_code == 404


def test_head_has_no_body(web):
    answer = web.head("/", headers={"accept-encoding": "identity"})
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == len(pages.files()["/"].content)


def test_the_page_keeps_to_its_budget():
    own = [path for path in pages.FOLDER.iterdir() if path.suffix in (".js", ".css", ".html")]
    assert sum(len(path.read_text().splitlines()) for path in own) <= OWN_LINES
    assert sum(len(gzip.compress(file.content, 9)) for file in pages.files().values()) <= SERVED_BYTES


def test_sizes_of_type_are_those_of_one_scale():
    """The scale is in the first block of style.css; formulas are set a little larger than their line."""
    styles = {name: (pages.FOLDER / name).read_text() for name in ("style.css", "chat.css")}
    scale = dict(re.findall(r"--(xs|s|m|text|l|xl): (\d+)px", styles["style.css"]))
    assert len(scale) == 6
    for text in styles.values():
        for rule in re.findall(r"font(?:-size)?: *([^;}]+)", text.replace("math { font-size: 1.1em; }", "")):
            if not rule.startswith(("inherit", "sans")):
                assert re.search(r"var\(--(xs|s|m|text|l|xl)\)", rule), rule
    programs = "".join(path.read_text() for path in pages.FOLDER.glob("*.js"))
    drawn = set(re.findall(r"'(\d+)px ", programs))
    assert drawn
    assert drawn <= set(scale.values())


def test_no_file_names_another_host():
    named = {
        (path, host)
        for path, file in pages.files().items()
        if not file.type.startswith(("image/png", "text/plain"))
        for host in re.findall(r"(?:https?|wss?)://([^/\"'`\s]+)", file.content.decode())
    }
    names = {host for _, host in named if not host.startswith("${")}  # of what a library is given
    assert names <= {"www.w3.org"}  # names of XML, which nobody fetches


def test_all_that_others_have_written_is_named_with_its_licence():
    text = (pages.FOLDER / "vendor" / "LICENSES.txt").read_text()
    names = [path.name for path in (pages.FOLDER / "vendor").iterdir() if path.name != "LICENSES.txt"]
    assert names
    assert all(f"vendor/{name}" in text for name in names)


def test_the_libraries_have_their_licences():
    text = Path(pages.FOLDER / "vendor" / "LICENSES.txt").read_text()
    assert text.count("Permission is hereby granted, free of charge") == 9
    assert text.count("Redistribution and use in source and binary forms") == 1
    assert "Apache License 2.0" in text
