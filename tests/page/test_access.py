"""The page without a mouse, without colours of its own, without motion, and as a screen reader tells it."""

from itertools import pairwise

import pytest
from playwright.sync_api import expect

from serving import mock

VIEWS = ("chat", "play", "cells", "parallel", "models", "load", "compare")
PARTS = "header, .side, .head, .scroll, .composer"
SAYS = "Hello world, this is a mock."
CONTROLS = {
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "slider",
    "spinbutton",
    "switch",
    "tab",
}


@pytest.fixture(scope="module")
def server(loaded):
    with loaded(mock(SAYS)) as running:
        yield running


def talk(page, text="Hi"):
    """A question and the whole answer."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator("article.last .stats")).to_be_attached()


def told(page):
    """What a screen reader is told: (role, name) of each node, in its order."""
    client = page.context.new_cdp_session(page)
    nodes = client.send("Accessibility.getFullAXTree")["nodes"]
    client.detach()
    by_id, found = {node["nodeId"]: node for node in nodes}, []

    def walk(node):
        if not node.get("ignored"):
            found.append((node["role"]["value"], node.get("name", {}).get("value", "")))
        for child in node.get("childIds", ()):
            if child in by_id:
                walk(by_id[child])

    walk(next(node for node in nodes if "parentId" not in node))
    return found


def in_order(found, *wanted):
    """Assert that these stand in a list, one behind the other."""
    rest = iter(found)
    for one in wanted:
        assert any(other == one for other in rest), (one, found)


def focused(page):
    name = "one.getAttribute('aria-label') || one.labels?.[0]?.innerText || one.innerText"
    return page.evaluate(f"(one => {name})(document.activeElement)").strip()


def test_focus_goes_the_way_that_one_reads(new_page, server):
    page = new_page(f"{server.url}/#chat")
    talk(page)
    page.locator(".skip").focus()
    names, places = [focused(page)], []
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        names.append(focused(page))
        places.append(page.evaluate(f"document.activeElement.closest('{PARTS}')?.className || 'header'"))
    in_order(
        names,
        "Skip to the view",
        "Chat",
        "Compare",
        "Search conversations",
        "New chat",
        "Settings",
        "Conversation",
        "Message",
    )
    order = [place for n, place in enumerate(places) if n == 0 or places[n - 1] != place]
    assert len(order) == len(set(order)), order  # each part once, none left and entered again


def test_a_conversation_is_told_in_its_order(new_page, server):
    page = new_page(f"{server.url}/#chat")
    talk(page, "First")
    talk(page, "Second")
    found = told(page)
    in_order(
        found,
        ("navigation", "Views"),
        ("heading", "First"),
        ("log", "Conversation"),
        ("article", "You"),
        ("article", "Answer of mock"),
        ("StaticText", SAYS),
        ("article", "You"),
        ("article", "Answer of mock"),
        ("textbox", "Message"),
        ("button", "Send"),
    )
    assert found.count(("article", "Answer of mock")) == 2
    page.locator("#settings").click()
    expect(page.get_by_role("complementary", name="Settings")).to_be_visible()
    in_order(
        told(page),
        ("log", "Conversation"),
        ("textbox", "Message"),
        ("complementary", "Settings"),
        ("slider", "Temperature"),
    )


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_has_a_name_and_headings_begin_at_the_top(new_page, server, view):
    page = new_page(f"{server.url}/#{view}")
    expect(page.locator("main > *").first).to_be_visible()
    expect(page.locator("main [aria-busy=true]")).to_have_count(0)
    found = told(page)
    assert [one for one in found if one[0] in CONTROLS and not one[1].strip()] == []
    assert ("navigation", "Views") in found
    assert ("main", "") in [(role, "") for role, _ in found if role == "main"]
    levels = page.locator("h1, h2, h3, h4").evaluate_all(
        "all => all.filter(one => one.checkVisibility()).map(one => +one.tagName[1])"
    )
    assert all(b <= a + 1 for a, b in pairwise(levels)), levels


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_with_the_systems_colours_nothing_is_said_by_a_colour_alone(new_page, server, axe, shot, colors):
    page = new_page(f"{server.url}/#chat", forced_colors="active", color_scheme=colors)
    talk(page)
    switch = page.get_by_role("switch", name="Tokens")
    knob = "one => getComputedStyle(one.querySelector('i')).backgroundColor"
    off = switch.evaluate(knob)
    switch.click()
    page.locator("[data-i]").first.click()
    expect(page.locator(".chosen")).to_be_visible()
    page.evaluate("Promise.all(document.getAnimations().map(one => one.finished)).then(() => true)")
    assert switch.evaluate(knob) != off
    lines = page.evaluate("""() => ['p1', 'p2', 'p3'].map(grade => {
        const one = document.querySelector('[data-i]').cloneNode(true);
        one.className = `t ${grade}`;
        document.querySelector('[data-i]').after(one);
        const line = getComputedStyle(one).textDecorationStyle;
        one.remove();
        return line;
    })""")
    assert len(set(lines)) == 3
    bar = page.locator(".alts .bar").first.evaluate(
        "one => [getComputedStyle(one), getComputedStyle(one.firstChild)].map(style => style.backgroundColor)"
    )
    assert bar[0] != bar[1]
    assert page.locator("nav [aria-current]").evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    shot(page, f"forced-{colors}", full_page=False)
    assert axe(page) == []


@pytest.mark.parametrize("view", VIEWS[1:])
def test_axe_finds_nothing_with_the_systems_colours(new_page, server, axe, shot, view):
    page = new_page(f"{server.url}/#{view}", forced_colors="active")
    expect(page.locator("main > *").first).to_be_visible()
    expect(page.locator("main [aria-busy=true]")).to_have_count(0)
    shot(page, f"forced-{view}", full_page=False)
    assert axe(page) == []


def moving(page):
    return page.evaluate("document.getAnimations().length")


def test_nothing_moves_where_motion_is_reduced(new_page, server):
    page = new_page(
        f"{server.url}/#chat", width=390, height=844, reduced_motion="reduce", is_mobile=True, has_touch=True
    )
    page.get_by_label("Message", exact=True).fill("Hi")
    page.get_by_role("button", name="Send", exact=True).tap()
    expect(page.locator("article.last")).to_be_visible()
    assert moving(page) == 0
    page.get_by_role("switch", name="Tokens").tap()
    assert moving(page) == 0
    page.get_by_role("button", name="Conversations and views").tap()
    assert moving(page) == 0
    moves = page.evaluate("""() => {
        const all = [...document.querySelectorAll('*')], parts = [undefined, '::before', '::after'];
        const lasts = style => style.transitionDuration.split(', ').some(time => time !== '0s');
        return all.flatMap(one => parts.map(part => getComputedStyle(one, part)))
            .filter(style => style.animationName !== 'none' || lasts(style)).length;
    }""")
    assert moves == 0
