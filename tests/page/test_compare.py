"""The view that compares, in a real browser: the first differing token, times, and measured results."""

import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from serving import TINY, endless, mock, serving, until
from stretto.bench.comparing import ComparePlan, Comparison, Figure, Standing
from stretto.bench.comparing.contestants import Skipped

HOSTILE = "<img src=x onerror=alert(1)>"


def two_letters(seen):
    """Logits of a model that says a, unless it is told not to repeat itself: then b follows."""
    logits = np.zeros(258, np.float32)
    logits[[ord("a"), ord("b")]] = 20.0, 19.0
    return logits


OPENERS = {
    "one": mock("The cat sat on the mat."),
    "two": mock("The cat slept."),
    "letters": mock(two_letters),
    "endless": endless(0.02, context_length=4096, cells=8192),
}


@pytest.fixture(scope="module")
def server():
    """Models that say different texts."""
    models = tuple(f"{name}={TINY}" for name in OPENERS)
    with serving(lambda entry: OPENERS[entry.name](entry), models=models) as running:
        yield running


def opened(page, first="one", second="two"):
    page.get_by_role("link", name="Compare").click()
    for side, name in (("A", first), ("B", second)):
        page.get_by_role("group", name=side).get_by_label("Model").select_option(name)
    return page


def test_two_models_differ_at_a_token(page, shot):
    opened(page).get_by_role("button", name="Run both").click()
    expect(page.get_by_role("status")).to_have_text(
        re.compile("The first difference is at token 10: “a” against “l”. 1[0-9] of 23 and 14 are in both.")
    )
    expect(page.locator("mark")).to_have_text(["a", "l"])
    expect(page.locator(".text")).to_have_text(["The cat sat on the mat.", "The cat slept."])
    assert len("".join(page.locator("u").all_inner_texts())) > 8  # further differences
    expect(page.get_by_role("row").filter(has_text="Tokens a second")).to_be_in_viewport()
    shot(page, "compare")


def test_two_sets_of_options_differ_at_a_token(page):
    opened(page, "letters", "letters")
    page.get_by_label("Prompt").fill("x")
    page.get_by_label("Tokens", exact=True).fill("5")
    second = page.get_by_role("group", name="B")
    second.get_by_label("temperature").fill("0")
    second.locator("summary").click()
    second.get_by_label("repetition_penalty").fill("2")
    page.get_by_role("button", name="Run both").click()
    expect(page.get_by_role("status")).to_have_text(
        re.compile("The first difference is at token 2: “a” against “b”. [1-5] of 5 and 5 are in both.")
    )
    expect(page.locator(".text").first).to_have_text("aaaaa")
    expect(page.locator("mark")).to_have_text(["a", "b"])


@pytest.mark.parametrize("chat", [False, True])
def test_the_same_twice_is_the_same(page, chat):
    opened(page, "one", "one")
    page.get_by_role("group", name="B").get_by_label("temperature").fill("0")
    page.get_by_label("As a chat").set_checked(chat)
    page.get_by_label("One after the other").set_checked(True)
    page.get_by_role("button", name="Run both").click()
    expect(page.get_by_role("status")).to_have_text("Both are the same: 23 tokens.")
    expect(page.locator("mark")).to_have_count(0)


def test_both_sides_come_at_once_and_differences_are_marked_meanwhile(page, server):
    opened(page, "endless", "endless")
    page.get_by_label("Tokens", exact=True).fill("4000")
    second = page.get_by_role("group", name="B")
    second.get_by_label("temperature").fill("0")
    second.locator("summary").click()
    second.get_by_label("repetition_penalty").fill("2")
    page.get_by_role("button", name="Run both").click()
    until(lambda: len(server.state.generations) == 2)
    for side in (0, 1):
        expect(page.locator(".text").nth(side)).to_contain_text(re.compile("[a-z]{8}"))
    assert len(server.state.generations) == 2
    page.get_by_role("button", name="Stop").click()
    until(lambda: not server.state.generations)


def test_a_run_is_stopped_and_errors_are_told(page, server):
    opened(page, "endless", "endless")
    page.get_by_label("Tokens", exact=True).fill("4000")
    page.get_by_role("button", name="Run both").click()
    expect(page.locator(".text").first).not_to_be_empty()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    until(lambda: not server.state.generations)
    first = page.get_by_role("group", name="A")
    first.locator("summary").click()
    first.get_by_label("top_p").fill("7")
    page.get_by_role("button", name="Run both").click()
    expect(page.get_by_role("status")).to_contain_text("top_p")


def results():
    """A result of `stretto compare --json`."""
    standings = [
        Standing(
            "native on cpu", "1.0", figures={"decode": Figure([90.0, 100.0, 95.0])}, agreed=4, compared=4
        ),
        Standing(
            HOSTILE, "2.0", figures={"decode": Figure([50.0]), "load": Figure([0.5])}, agreed=3, compared=4
        ),
    ]
    plan, skipped = ComparePlan(), [Skipped("ollama", "it does not answer")]
    return Comparison("model.gguf", 1000, "a processor", "neon", plan, standings, skipped).as_data()


def test_measured_results_are_plotted_and_stay_text(page, shot):
    opened(page).locator("summary", has_text="Plot what").click()
    content = json.dumps(results(), default=str).encode()
    file = {"name": "results.json", "mimeType": "application/json", "buffer": content}
    page.get_by_label("Results").set_input_files(file)
    expect(page.get_by_role("img", name="native on cpu: 95.0 tok/s")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text=HOSTILE)).to_have_count(2)
    expect(page.locator("main")).to_contain_text("ollama did not take part: it does not answer")
    expect(page.locator("main img")).to_have_count(0)
    shot(page, "compare-measured")


@pytest.mark.parametrize(
    "content", [b"no JSON", b"{}", b'{"standings": [{"figures": {"x": {"samples": 1}}}]}', b"[]"]
)
def test_a_file_that_is_no_result_is_explained(page, content):
    opened(page).locator("summary", has_text="Plot what").click()
    file = {"name": f"{HOSTILE}.json", "mimeType": "application/json", "buffer": content}
    page.get_by_label("Results").set_input_files(file)
    expect(page.locator("main small.bad")).to_contain_text("is no result of stretto compare")


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_needs_no_sideways_scrolling(new_page, server, axe, shot, colors):
    page = opened(new_page(server.url, width=360, height=740, color_scheme=colors))
    page.get_by_role("button", name="Run both").click()
    expect(page.locator("mark")).to_have_count(2)
    expect(page.get_by_role("row").filter(has_text="Tokens a second")).to_be_visible()
    lefts = [page.locator(".results .text").nth(n).bounding_box() for n in (0, 1)]
    assert lefts[0]["y"] == lefts[1]["y"]  # side by side
    assert page.evaluate("document.documentElement.scrollHeight") < 1300
    shot(page, f"compare-phone-{colors}")
    page.locator("summary", has_text="Plot what").click()
    content = json.dumps(results(), default=str).encode()
    file = {"name": "results.json", "mimeType": "application/json", "buffer": content}
    page.get_by_label("Results").set_input_files(file)
    expect(page.get_by_role("img", name="native on cpu")).to_be_visible()
    shot(page, f"compare-{colors}")
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
