"""The page's shell in a real browser: navigation, keys, lost connections, phones, colours."""

import pytest
from playwright.sync_api import expect

from serving import mock, serving

KEY = "a-key-of-the-test"
VIEWS = ("Play", "Cells", "Parallel", "Models", "Load", "Compare")


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
        expect(page.get_by_role("link", name=name, exact=True)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page).to_have_title(f"{name} · Stretto")
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")
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


def test_a_model_name_is_text(new_page):
    name = "<img src onerror>"
    with serving(mock(), models=(f"{name}=tests/data/tiny/llama.gguf",)) as server:
        page = new_page(server.url)
        expect(page.get_by_label("Model", exact=True)).to_have_value(name)
        assert page.locator("img").count() == 0
