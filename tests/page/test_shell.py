"""The page's shell in a real browser: navigation, keys, lost connections, phones, colours."""

import re
from contextlib import ExitStack

import httpx
import pytest
from playwright.sync_api import expect

from serving import mock, serving, until
from stretto.server.own.live import MAX_WATCHERS

KEY = "a-key-of-the-test"
VIEWS = ("Chat", "Play", "Cells", "Parallel", "Models", "Load", "Compare")


def sideways(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def hide(page, hidden):
    """Let the page believe that its tab is hidden, or shown again."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        hidden,
    )


def test_the_page_loads_and_names_its_model(page):
    expect(page).to_have_title("Play · Stretto")
    expect(page.get_by_label("Model", exact=True)).to_have_value("mock")
    assert [link.inner_text() for link in page.locator("nav a").all()] == list(VIEWS)


def test_views_are_reached_by_keyboard_alone(page):
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    for name in VIEWS:
        page.keyboard.press("Tab")
        link = page.locator("nav").get_by_role("link", name=name, exact=True)
        expect(link).to_be_focused()
        page.keyboard.press("Enter")
        expect(page).to_have_title(f"{name} · Stretto")
        expect(link).to_have_attribute("aria-current", "page")
        expect(page.locator("main > *").first).to_be_visible()


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_axe_finds_nothing_in_the_shell(new_page, server, axe, shot, colors):
    page = new_page(server.url, color_scheme=colors)
    expect(page.get_by_label("Model", exact=True)).to_be_visible()
    shot(page, f"shell-{colors}")
    assert axe(page) == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_needs_no_sideways_scrolling(new_page, server, view):
    page = new_page(f"{server.url}/#{view.lower()}", width=360, height=740, is_mobile=True, has_touch=True)
    expect(page.locator("main > *").first).to_be_visible()
    assert sideways(page) == 0


def test_colours_follow_the_system(new_page, server):
    color = "getComputedStyle(document.body).backgroundColor"
    light, dark = (new_page(server.url, color_scheme=colors).evaluate(color) for colors in ("light", "dark"))
    assert light != dark


def test_colours_can_be_chosen(page):
    color = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(color)
    for choice in ("light", "dark"):
        page.get_by_role("button", name=re.compile("^Colours")).click()
        expect(page.get_by_role("button", name=f"Colours: {choice}")).to_be_visible()
    assert page.evaluate(color) != light
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
    assert page.evaluate(color) != light


def test_a_key_is_asked_for_once_and_kept_for_the_tab(new_page, axe):
    with serving(mock(), api_keys=(KEY,)) as server:
        page = new_page(server.url)
        dialog = page.get_by_role("dialog", name="API key")
        expect(dialog).to_contain_text("there is no API key")
        assert axe(page) == []
        page.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("not right")
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        expect(page.get_by_label("Model", exact=True)).to_have_value("mock")
        expect(dialog).not_to_be_visible()
        page.reload()
        expect(page.get_by_label("Model", exact=True)).to_have_value("mock")
        expect(dialog).not_to_be_visible()


def test_without_a_key_the_page_refuses_politely(new_page):
    with serving(mock(), api_keys=(KEY,)) as server:
        page = new_page(server.url)
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        expect(page.locator(".notice")).to_contain_text("This server needs an API key.")
        page.get_by_role("button", name="Enter a key").click()
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        expect(page.get_by_label("Model", exact=True)).to_have_value("mock")
        expect(page.locator(".notice")).to_have_count(0)


def test_it_comes_back_when_the_server_does(new_page):
    with serving(mock()) as server:
        page = new_page(server.url)
        expect(page.locator("#now")).not_to_have_text("not connected")
        port = server.port
    expect(page.locator("#now")).to_have_text("not connected")
    with serving(mock(), port=port):
        expect(page.locator("#now")).not_to_have_text("not connected", timeout=30_000)
        expect(page.locator(".notice")).to_have_count(0)


def test_a_hidden_tab_has_no_live_connection(page):
    expect(page.locator("#now")).not_to_have_text("not connected")
    hide(page, True)
    expect(page.locator("#now")).to_have_text("not connected")
    hide(page, False)
    expect(page.locator("#now")).not_to_have_text("not connected")


def watchers(server):
    return len(server.live.watchers)


@pytest.fixture
def tabs(browser):
    """Seven tabs of one browser, which allows a host six connections."""
    context = browser.new_context()
    context.set_default_timeout(20_000)
    yield [context.new_page() for _ in range(7)]
    context.close()


def test_seven_tabs_of_one_browser_share_one_connection(tabs):
    with serving(mock()) as server:
        for tab in tabs:
            tab.goto(f"{server.url}/#play", wait_until="commit")
        for tab in tabs:
            expect(tab.get_by_label("Model", exact=True)).to_have_value("mock")
            expect(tab.locator("#now")).to_contain_text("tok/s")
        until(lambda: tabs[0].evaluate("1") and watchers(server) == 1)
        tabs[-1].get_by_label("Prompt", exact=True).fill("Once")
        tabs[-1].get_by_role("button", name="Generate").click()
        expect(tabs[-1].locator("main")).to_contain_text("Hello world, this is a mock.")
        for tab in tabs[:-1]:  # whichever leads, others take over
            tab.close()
        expect(tabs[-1].locator("#now")).to_contain_text("tok/s")
        until(lambda: tabs[-1].evaluate("1") and watchers(server) == 1)


def test_tabs_that_show_cells_lead_and_others_follow(tabs):
    with serving(mock()) as server:
        for tab, view in zip(tabs[:3], ("play", "cells", "load"), strict=True):
            tab.goto(f"{server.url}/#{view}", wait_until="commit")
            expect(tab.locator("#now")).to_contain_text("tok/s")
        until(lambda: tabs[0].evaluate("1") and watchers(server) == 1)
        assert next(iter(server.live.watchers)).model == "mock"
        hide(tabs[1], True)
        expect(tabs[1].locator("#now")).to_have_text("not connected")
        for tab in (tabs[0], tabs[2]):
            expect(tab.locator("#now")).to_contain_text("tok/s")
        until(lambda: tabs[0].evaluate("1") and [one.model for one in server.live.watchers] == [None])


def test_a_tab_that_was_asleep_connects_again(page):
    expect(page.locator("#now")).to_contain_text("tok/s")
    page.clock.install()
    hide(page, True)
    hide(page, False)  # the timers of this connection are the clock's
    expect(page.locator("#now")).to_contain_text("tok/s")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward(30_000)
    until(lambda: page.evaluate("1") and any("/stretto/live" in url for url in asked))
    expect(page.locator("#now")).to_contain_text("tok/s")


def test_a_page_too_many_says_why_it_is_not_live(new_page):
    with serving(mock()) as server:
        with ExitStack() as stack:
            for _ in range(MAX_WATCHERS):
                stack.enter_context(httpx.stream("GET", f"{server.url}/stretto/live"))
            page = new_page(server.url)
            expect(page.locator("#now")).to_contain_text("8 pages watch this server already")
            expect(page.get_by_role("button", name="Generate")).to_be_enabled()
        expect(page.locator("#now")).to_contain_text("tok/s", timeout=30_000)


def test_nothing_becomes_markup_or_code(page):
    refused = """text => {
        try { document.querySelector('main').innerHTML = text; } catch (error) { return error.name; }
    }"""
    assert page.evaluate(refused, "<img src=x onerror=alert(1)>") == "TypeError"
    assert page.locator("img").count() == 0
    assert all("TrustedHTML" in problem for problem in page.problems)
    page.problems.clear()


def test_a_model_name_is_text(new_page):
    name = "<img src onerror>"
    with serving(mock(), models=(f"{name}=tests/data/tiny/llama.gguf",)) as server:
        page = new_page(server.url)
        expect(page.get_by_label("Model", exact=True)).to_have_value(name)
        assert page.locator("img").count() == 0
