"""The map of cells in a real browser, with frames from the test's hand and from a real server."""

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from page_frames import SOURCE, frame, push, sequence
from serving import serving

FREE, RUNNING, PARKED = "free", "running", "parked"
N = 200
PATIENCE = 30_000  # milliseconds: a busy machine is watched less often
A, B, C = 1000001, 1000002, 1000003


def small():
    """A running sequence that ends in a set of three, and a parked one; they share ten cells."""
    positions, sets = np.full(N, -1), np.zeros(N, int)
    positions[:40], sets[:40] = np.arange(40), 1
    sets[:10] = 2
    positions[40:60], sets[40:60] = np.arange(10, 30), 3
    positions[60:63], sets[60:63] = 40, 1
    members = {1: [A], 2: [A, B], 3: [B]}
    sequences = {A: sequence(RUNNING, 43), B: sequence(PARKED, 30)}
    return positions, sets, members, sequences


IMAGES = (50, 51)
SMALL = frame(*small(), images=IMAGES)


def forked():
    """The same with a fork of the first two cells, and one cell less. The sets have other numbers."""
    positions, sets, _, sequences = small()
    sets = np.array([0, 3, 2, 1])[sets]
    sets[:2] = 4
    positions[59], sets[59] = -1, 0
    sequences = {**sequences, B: sequence(PARKED, 29), C: sequence(RUNNING, 2)}
    return frame(positions, sets, {1: [B], 2: [A, B], 3: [A], 4: [A, B, C]}, sequences, images=IMAGES)


FORKED = forked()


def count(page, what):
    return page.locator(f"#n-{what}")


@pytest.fixture
def cells(new_page, server):
    """The view with frames from the test's hand."""

    def make(**options):
        page = new_page(f"{server.url}/#cells", script=SOURCE, **options)
        page.locator("#map").wait_for()
        return page

    return make


def test_the_legend_counts_the_cells(cells):
    page = cells()
    expect(page.locator("#no-cells")).to_be_visible()
    push(page, cells=SMALL)
    for what, n in {"running": 43, "parked": 20, "free": 137, "shared": 10, "image": 2, "stacked": 3}.items():
        expect(count(page, what)).to_have_text(str(n))
    expect(page.locator("#no-cells")).to_have_count(0)
    expect(page.locator("#map")).to_have_attribute("aria-label", "200 cells, 63 in use")


SIZE = 14  # pixels a cell has in a small table
NOTHING = "0,0,0,0"  # a pixel


def colour(page, cell):
    """The pixel near the corner of a cell, where marks and holes do not reach."""
    return page.evaluate(
        """([cell, size]) => {
            const {width, data} = picture ?? {width: size, data: []}, columns = Math.floor(width / size);
            const at = 4 * ((Math.floor(cell / columns) * size + 2) * width + cell % columns * size + 2);
            return data.slice(at, at + 4).join();
        }""",
        [cell, SIZE],
    )


def until(page, condition):
    """Wait for something that a frame of the browser brings."""
    for _ in range(300):
        if condition():
            return
        page.wait_for_timeout(20)
    raise AssertionError("it never happened")


def settled(page):
    """Let highlights of changed cells fade."""
    until(page, lambda: not {"", NOTHING} & {colour(page, 20), colour(page, 45)})


def test_states_have_their_colours(cells):
    page = cells()
    push(page, cells=SMALL)
    settled(page)
    running, parked, image, free = (colour(page, cell) for cell in (20, 45, 50, 199))
    assert len({running, parked, image, free}) == 4
    assert free == NOTHING
    assert colour(page, 0) != running  # shared: another shade


def test_arrow_keys_tell_about_cells(cells):
    page = cells()
    page.route(
        "**/stretto/cells/at?*",
        lambda route: route.fulfill(
            json={
                "cell": 1,
                "position": 1,
                "token": 7,
                "piece": "<img src=x onerror=alert(1)>\n",
                "sequences": [A],
            }
        ),
    )
    push(page, cells=SMALL)
    settled(page)
    page.locator("#map").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    told = page.locator("#cell")
    expect(told).to_contain_text(f"position 1, running, shared by 2 sequences: {A}, {B}")
    expect(told).to_contain_text("Cell 1: <img␣src=x␣onerror=alert(1)>⏎ (token 7)")
    assert page.locator("#cell img").count() == 0
    page.keyboard.press("End")
    expect(told).to_have_text("Cell 199: free")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    expect(told).to_contain_text("Cell 0:")


def test_a_cell_of_another_user_says_nothing_else(cells):
    page = cells()
    push(page, cells=frame([-1] * 4, [0, 65535, 65535, 0], {}, {}))
    expect(count(page, "others")).to_have_text("2")
    page.locator("#map").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cell")).to_have_text("Cell 1: in use by another user")


def test_a_selected_sequence_lights_up(cells):
    page = cells()
    push(page, cells=SMALL)
    settled(page)
    before = colour(page, 20)
    button = page.get_by_role("button", name=str(B))
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    until(page, lambda: colour(page, 20) != before)  # it is not of this sequence
    page.locator("#map").focus()
    page.keyboard.press("Escape")
    expect(button).to_have_attribute("aria-pressed", "false")
    until(page, lambda: colour(page, 20) == before)
    page.keyboard.press("Home")
    for chosen in (A, B):  # the first cell's sequences, one after the other
        page.keyboard.press("Enter")
        expect(page.locator("[aria-pressed=true]")).to_have_text(str(chosen))
    page.locator("#map").click(position={"x": 20 * SIZE + 5, "y": 5})
    expect(page.locator("[aria-pressed=true]")).to_have_text(str(A))


def test_forks_and_evictions_are_seen(cells):
    page = cells()
    push(page, cells=SMALL)
    settled(page)
    running = colour(page, 20)
    push(page, cells=FORKED)
    news = page.locator("#cells-news li").first
    expect(news).to_have_text(f"sequence {C} is a fork of {A} (2 cells shared)")
    expect(count(page, "free")).to_have_text("138")
    page.evaluate("fade()")
    until(page, lambda: colour(page, 59) == NOTHING)
    page.get_by_role("button", name=str(C)).click()
    until(page, lambda: colour(page, 20) != running)  # it is not of this sequence
    push(page, cells=SMALL)
    expect(news).to_have_text(f"sequence {C} is gone (2 cells)")
    expect(page.get_by_role("button", name=str(C))).to_have_count(0)
    until(page, lambda: colour(page, 20) == running)  # nothing is selected any more


def test_changed_cells_are_highlighted_for_a_moment(cells):
    page = cells()
    push(page, cells=SMALL)
    settled(page)
    before, others = colour(page, 0), colour(page, 20)
    push(page, cells=FORKED)
    until(page, lambda: colour(page, 0) != before)
    highlighted, freed = colour(page, 0), colour(page, 59)
    assert NOTHING != freed != highlighted
    assert colour(page, 20) == others  # numbers of sets mean nothing from one frame to the next
    assert page.evaluate("fade()") == 1
    until(page, lambda: colour(page, 59) == NOTHING)
    assert colour(page, 0) not in (before, highlighted)  # it is shared by more


def test_nothing_is_highlighted_with_reduced_motion(cells):
    page = cells(reduced_motion="reduce")
    push(page, cells=SMALL)
    settled(page)
    push(page, cells=FORKED)
    until(page, lambda: colour(page, 59) == NOTHING)
    assert page.evaluate("fade()") == 0


def test_a_hundred_thousand_cells_are_drawn_and_only_changed_rows_again(cells, shot):
    page = cells()
    n = 100_000
    sets = np.repeat(np.arange(200), n // 200)
    positions = np.where(sets > 0, np.tile(np.arange(n // 200), 200), -1)
    members = {i: [A + i, A] if i % 9 == 0 else [A + i] for i in range(1, 200)}
    sequences = {A + i: sequence((PARKED, RUNNING, "pinned", "held")[i % 4], n // 200) for i in range(200)}
    push(page, cells=frame(positions, sets, members, sequences))
    expect(count(page, "free")).to_have_text("500")
    until(page, lambda: page.evaluate("painted.length"))
    shot(page, "cells-100000")
    height = page.evaluate("painted[0][1]")
    page.evaluate("painted.length = 0")
    positions[3], sets[3] = 0, 1
    push(page, cells=frame(positions, sets, members, sequences))
    expect(count(page, "free")).to_have_text("499")
    until(page, lambda: page.evaluate("painted.length"))
    assert page.evaluate("painted[0]")[1] < height / 50


def test_the_map_reflows_to_the_width(cells):
    page = cells()
    push(page, cells=SMALL)
    settled(page)
    wide = page.locator("#map").bounding_box()
    page.set_viewport_size({"width": 500, "height": 800})
    until(page, lambda: page.locator("#map").bounding_box()["height"] > wide["height"])
    assert page.locator("#map").bounding_box()["width"] < wide["width"]


def test_colours_of_dots_follow_the_theme(cells):
    page = cells()
    push(page, cells=SMALL)
    settled(page)
    light = colour(page, 20)
    page.emulate_media(color_scheme="dark")
    until(page, lambda: colour(page, 20) not in (light, NOTHING))
    assert colour(page, 199) == NOTHING


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_axe_finds_nothing(cells, axe, shot, colors):
    page = cells(color_scheme=colors)
    assert axe(page) == []
    push(page, cells=SMALL)
    settled(page)
    page.get_by_role("button", name=str(A)).click()
    page.locator("#map").focus()
    page.keyboard.press("End")
    expect(page.locator("#cell")).to_have_text("Cell 199: free")
    shot(page, f"cells-{colors}")
    assert axe(page) == []


def test_a_phone_shows_all_of_it(cells, shot):
    page = cells(width=360, height=740, is_mobile=True, has_touch=True, device_scale_factor=2)
    push(page, cells=SMALL)
    expect(count(page, "running")).to_have_text("43")
    shot(page, "cells-phone")
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_another_view_needs_no_cells(cells):
    page = cells()
    push(page, cells=SMALL)
    asked = page.evaluate("asked")
    page.get_by_role("link", name="Play").click()
    expect(page).to_have_title("Play · Stretto")
    page.wait_for_timeout(50)
    assert page.evaluate("asked") == asked


def ask(server, prompt, key="none"):
    body = {"model": "mock", "prompt": prompt, "temperature": 0, "max_tokens": 4}
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200


def test_cells_of_a_real_server_are_followed(new_page):
    with serving() as server:
        page = new_page(f"{server.url}/#cells")
        expect(page.locator("#no-cells")).to_contain_text("once it is loaded")
        expect(page.locator(".map")).to_have_text("")
        ask(server, "abcdefgh")
        expect(page.locator("#map")).to_have_attribute(
            "aria-label", "1,024 cells, 11 in use", timeout=PATIENCE
        )
        expect(count(page, "parked")).to_have_text("11")  # the last token has no cell
        ask(server, "abcdefgxyz")  # another text, which shares what it can
        expect(count(page, "shared")).to_have_text("7", timeout=PATIENCE)
        expect(page.locator("#cells-news li").first).to_contain_text("(7 cells shared)")
        page.locator("#map").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#cell")).to_contain_text("position 0, parked, shared by 2 sequences")
        expect(page.locator("#cell code")).to_have_text("a")
        expect(page.locator("#cell")).to_contain_text("(token 97)")


def test_cells_of_another_key_are_only_in_use(new_page):
    with serving(api_keys=("mine", "theirs")) as server:
        ask(server, "abcdefgh", "mine")
        ask(server, "abcdefghijkl", "theirs")
        page = new_page(f"{server.url}/#cells", script="sessionStorage.setItem('stretto.key', 'mine')")
        expect(count(page, "parked")).to_have_text("11", timeout=PATIENCE)
        expect(count(page, "others")).to_have_text("15")
        expect(page.locator(".sequences tbody tr")).to_have_count(1)
        page.locator("#map").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#cell")).to_contain_text("(token 97)")
        for _ in range(11):
            page.keyboard.press("ArrowRight")
        expect(page.locator("#cell")).to_have_text("Cell 11: in use by another user")
