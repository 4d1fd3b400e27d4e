"""Parallel runs in a real browser: the lattice as it grows, its path, pruned members, attention."""

import json
import math

import httpx
import pytest
from playwright.sync_api import expect

from serving import endless, serving
from stretto import LLM
from stretto.backends.native import NativeBackend
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

PROMPT = "1 + 2 = "  # of characters that the tiny model has tokens for
HOSTILE = "<img src=x onerror=alert(1)>"


def tiny(entry):
    """A real model, random and tiny."""
    return LLM(NativeBackend(tiny_file("llama"), tiny_spec("llama"), 512, 1), byte_tokenizer())


@pytest.fixture(scope="module")
def server():
    with serving(tiny) as running:
        yield running


@pytest.fixture
def parallel(new_page, server):
    """The view; `answers` are what the server says to runs, instead of what it would."""

    def make(*answers, **options):
        page = new_page(f"{server.url}/#parallel", **options)
        if answers:
            left = list(answers)
            page.route("**/stretto/parallel", lambda route: route.fulfill(**left.pop(0)))
        page.get_by_label("Prompt").wait_for()
        return page

    return make


def start(page, **fields):
    """Fill in the form and run."""
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_text("More options").click()
    for label, value in {"threshold": 0.01, "max_width": 3, "max_tokens": 8, **fields}.items():
        page.get_by_label(label, exact=True).fill(str(value))
    page.get_by_label("ignore_eos").check()
    page.get_by_role("button", name="Run").click()


def member(text, probability, **more):
    values = {"id": ord(text[0]), "weight": 1.0, "kept": True, "cell": None, "attention": None}
    return {"text": text, "probability": probability, **values, **more}


def step(index, members, edges, pruned=()):
    places = {"index": index, "position": 10 + index, "text": members[0]["text"], "threshold": 0.1}
    return {"step": {**places, "members": members, "edges": edges, "pruned": list(pruned)}}


def streamed(*events):
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return {"body": "".join([*lines, "data: [DONE]\n\n"]), "content_type": "text/event-stream"}


# The first members are a and c; b and d together are more probable.
FORKED = streamed(
    step(0, [member("a", 0.5), member("b", 0.4)], [[0.5, 0.4]]),
    step(1, [member("c", 0.6), member(HOSTILE, 0.3)], [[0.3, 0.1], [0.1, 0.9]]),
    step(2, [member("e", 0.9)], [[0.5], [0.5]], pruned=[[0, 1]]),
)


def test_the_most_probable_path_is_marked(parallel):
    page = parallel(FORKED, FORKED)
    start(page)
    expect(page.locator("#path-isolated")).to_have_text(f"b{HOSTILE}e")
    best = page.get_by_label("Lattice, isolated").locator(".node.best")
    assert [text.split()[0] for text in best.all_inner_texts()] == ["b", "<img␣src=x␣onerror=alert(1)>", "e"]
    each = math.exp(math.log(0.4 * 0.9 * 0.5) / 3)
    expect(page.locator("#path-isolated").locator("..")).to_contain_text(f"{100 * each:.0f} % a token")
    assert page.locator("main img").count() == 0


def test_pruned_members_are_struck_through(parallel):
    page = parallel(FORKED, FORKED)
    start(page)
    pruned = page.get_by_label("Lattice, visible").locator(".node.pruned")
    expect(pruned).to_have_count(1)
    expect(pruned.locator("s")).to_have_text("b")
    expect(pruned).to_contain_text("pruned")


def test_isolated_and_visible_run_side_by_side(parallel, server, shot):
    page = parallel()
    start(page)
    for mode in ("isolated", "visible"):
        expect(page.locator(f"#end-{mode}")).to_contain_text("8 steps")
        body = {"prompt": PROMPT, "threshold": 0.01, "max_width": 3, "max_tokens": 8}
        asked = {"model": "mock", "mode": mode, "ignore_eos": True, "combine": "mixture", **body}
        alone = httpx.post(f"{server.url}/stretto/parallel", json=asked, timeout=60).json()
        nodes = page.get_by_label(f"Lattice, {mode}").locator(".node")
        expect(nodes).to_have_count(alone["usage"]["members"])
    boxes = [page.locator(f"section:has(#end-{mode})").bounding_box() for mode in ("isolated", "visible")]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] < boxes[1]["x"]
    shot(page, "parallel-tiny")


def test_members_are_reached_by_keyboard_and_tell_their_attention(parallel):
    page = parallel()
    page.get_by_label("mode", exact=True).select_option("isolated")
    page.get_by_label("attention", exact=True).check()
    start(page)
    expect(page.locator("#end-isolated")).to_be_visible()
    lattice = page.get_by_label("Lattice, isolated")
    lattice.focus()
    page.keyboard.press("Tab")
    expect(lattice.locator("[data-at='0,0']")).to_be_focused()
    for key, at in (("ArrowRight", "1,0"), ("ArrowDown", "1,1"), ("ArrowLeft", "0,1"), ("ArrowUp", "0,0")):
        page.keyboard.press(key)
        expect(lattice.locator(f"[data-at='{at}']")).to_be_focused()
        expect(lattice.locator("[aria-pressed=true]")).to_have_attribute("data-at", at)
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", name="Step 4")).to_be_visible()
    rows = page.get_by_role("table", name="Attention").locator("tbody tr")
    expect(rows).to_have_count(12)
    shares = [float(row.locator("td").nth(2).inner_text().removesuffix(" %")) for row in rows.all()]
    assert shares == sorted(shares, reverse=True)
    marked = lattice.locator(".node").evaluate_all(
        """nodes => nodes.filter(node => node.style.getPropertyValue('--share') > 0)
            .map(node => +node.dataset.at[0])"""
    )
    assert {0, 1, 2, 3} == set(marked)  # what came later is not attended to


def test_an_error_is_shown_with_its_reason(parallel):
    refused = {"status": 400, "json": {"error": {"message": f"no {HOSTILE}", "param": "prompt"}}}
    page = parallel(refused, refused)
    start(page)
    expect(page.get_by_role("alert").first).to_have_text(f"no {HOSTILE}")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()


def test_a_run_is_stopped(new_page):
    with serving(endless(0.02)) as server:
        page = new_page(f"{server.url}/#parallel")
        start(page, max_tokens=900)
        expect(page.locator(".node").nth(5)).to_be_attached()
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Stop")).to_be_disabled()
        for _ in range(200):
            if not server.state.generations:
                break
            page.wait_for_timeout(20)
        assert not server.state.generations
        expect(page.locator(".node").first).to_be_attached()  # what has come stays


def test_the_form_is_kept_while_other_views_are_shown(parallel):
    page = parallel()
    page.get_by_label("Prompt").fill("Once upon a time")
    page.get_by_role("link", name="Cells").click()
    expect(page).to_have_title("Cells · Stretto")
    page.get_by_role("link", name="Parallel").click()
    expect(page.get_by_label("Prompt")).to_have_value("Once upon a time")


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_axe_finds_nothing(parallel, axe, shot, colors):
    page = parallel(color_scheme=colors)
    page.get_by_label("attention", exact=True).check()
    start(page, prune=0.9)
    for mode in ("isolated", "visible"):
        expect(page.locator(f"#end-{mode}")).to_be_visible()
    page.get_by_label("Lattice, isolated").locator(".node").nth(3).click()
    shot(page, f"parallel-{colors}")
    assert axe(page) == []


def test_a_phone_scrolls_the_lattice_and_not_the_page(parallel, shot):
    page = parallel(width=360, height=740, is_mobile=True, has_touch=True)
    start(page)
    expect(page.locator("#end-visible")).to_be_visible()
    shot(page, "parallel-phone")
    sideways = "element => element.scrollWidth - element.clientWidth"
    assert page.locator("html").evaluate(sideways) == 0
    lattice = page.get_by_label("Lattice, isolated")
    assert lattice.evaluate(sideways) > 0
    lattice.focus()
    expect(lattice).to_be_focused()
