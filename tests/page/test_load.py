"""The view of the load in a real browser: charts under the policy, requests that are cancelled, the log."""

import logging
import re
import threading

import httpx
import pytest
from playwright.sync_api import expect

from serving import endless, serving, until
from stretto.server.http.keys import Keys
from stretto.server.settings import NO_KEY_LIMITS, KeyLimits

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def server():
    """A model that never ends by itself."""
    with serving(endless(0.01, context_length=8192, cells=16384)) as running:
        yield running


@pytest.fixture
def writing(server):
    """A request that runs until it is cancelled; its last event is in the list."""
    ends, begun = [], threading.Event()

    def read():
        body = {"model": "mock", "prompt": "a", "max_tokens": 8000, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as stream:
            lines = []
            for line in stream.iter_lines():
                begun.set()
                lines.append(line)
            ends.append(lines[-2])

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(60)
    yield ends
    for one in httpx.get(f"{server.url}/stretto/requests").json()["requests"]:
        httpx.delete(f"{server.url}/stretto/requests/{one['id']}")
    thread.join(60)


def pixels(page, number):
    """How many pixels of a chart are of the first line's colour, or nearly."""
    return page.evaluate(
        """number => {
            const canvas = document.querySelectorAll('figure canvas')[number];
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            let n = 0;
            for (let i = 0; i < data.length; i += 4) {
                n += data[i + 3] > 200 && data[i + 2] > data[i] + 60;  // blue
            }
            return n;
        }""",
        number,
    )


def opened(page):
    page.get_by_role("link", name="Load", exact=True).click()
    expect(page.locator("figure canvas")).to_have_count(9)
    return page


def test_charts_show_the_past_and_go_on(page, writing, shot):
    opened(page)
    now = page.get_by_role("img", name="Tokens a second")
    expect(now).to_have_attribute("aria-label", re.compile("generated [1-9]"))
    expect(page.get_by_role("img", name="Memory")).to_have_attribute(
        "aria-label", re.compile("process [1-9]")
    )
    expect(page.get_by_role("img", name="CPU time")).to_have_attribute(
        "aria-label", re.compile("all 0.0*[1-9]|all [1-9]")
    )
    before = now.get_attribute("aria-label")
    expect(now).not_to_have_attribute("aria-label", before)
    page.get_by_label("Show").select_option("60")
    expect(page.locator("#now")).to_contain_text("1 running")
    assert pixels(page, 0) > 20
    shot(page, "load")


def test_figures_are_kept_while_other_views_are_shown(page, writing):
    opened(page)
    expect(page.get_by_role("img", name="Tokens a second")).to_have_attribute(
        "aria-label", re.compile("generated [1-9]")
    )
    page.get_by_role("link", name="Models").click()
    expect(page.locator("figure canvas")).to_have_count(0)
    opened(page)
    expect(page.get_by_role("img", name="Tokens a second")).to_have_attribute(
        "aria-label", re.compile("generated [1-9]")
    )


def test_the_past_is_asked_for_again_when_the_view_is_opened_late(page):
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/stretto/live" in request.url else None)
    late = """async () => {
        const {live: {state: {history, stats}}} = await import('/page/live.js');
        return stats?.time - history?.columns.time.at(-1) > 3;
    }"""
    until(lambda: page.evaluate(late))
    asked.clear()
    opened(page)
    until(lambda: page.evaluate("1") and asked)
    assert len(asked) == 1


def test_a_single_value_between_gaps_is_drawn(page):
    opened(page)
    n = page.evaluate(
        """async () => {
            const {draw} = await import('/page/chart.js'), canvas = document.querySelector('figure canvas');
            draw(canvas, [1, 2, 3], [[null, 5, null]], ['accent'], 4);
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            let n = 0;
            for (let i = 0; i < data.length; i += 4) n += data[i + 3] > 100 && data[i + 2] > data[i] + 60;
            return n;
        }"""
    )
    assert n >= 3


def test_a_running_request_is_cancelled_from_the_list(page, writing):
    opened(page)
    row = page.get_by_role("listitem").filter(has_text="tokens of prompt")
    expect(row).to_contain_text("/v1/completions")
    row.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Nothing runs.")).to_be_visible()
    until(lambda: writing)
    assert "cancelled" in writing[0]


def test_lines_of_the_log_stay_text(page):
    opened(page)
    logging.getLogger("stretto.server").error("%s", HOSTILE)
    expect(page.get_by_label("The last lines of the log")).to_contain_text(HOSTILE)
    expect(page.locator("main img")).to_have_count(0)


def test_charts_are_drawn_again_when_the_colours_change(page, writing):
    opened(page)
    expect(page.get_by_role("img", name="Tokens a second")).to_have_attribute(
        "aria-label", re.compile("generated [1-9]")
    )
    picture = page.locator("figure canvas").first.evaluate("canvas => canvas.toDataURL()")
    page.emulate_media(color_scheme="dark")
    until(lambda: page.locator("figure canvas").first.evaluate("canvas => canvas.toDataURL()") != picture)
    expect(page.locator("figure canvas")).to_have_count(9)


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_needs_no_sideways_scrolling(
    new_page, server, writing, axe, shot, colors
):
    page = opened(new_page(server.url, width=360, height=740, color_scheme=colors))
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    shot(page, f"load-{colors}")
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_keys_are_shown_with_what_they_have_and_may_have(page, server):
    use = server.state.part(Keys).of(server.state.callers.nobody)
    use.limits = KeyLimits(requests=5, cells=1000)
    ask = {"model": "mock", "prompt": "Hello", "max_tokens": 2}
    n = 7 + use.used()
    assert httpx.post(f"{server.url}/v1/completions", json=ask).status_code == 200
    opened(page)
    told = f"nobody 0 of 5 requests · {n:,} tokens in the last minute · 1,000 cells at most · weight 1"
    expect(page.get_by_role("listitem").filter(has_text="nobody")).to_have_text(told)
    use.limits = NO_KEY_LIMITS
