"""Play in a real browser, as a person would: type, generate, fork, stop, edit, copy."""

import io
import json
import re
import subprocess
from contextlib import redirect_stdout

import numpy as np
import pytest
from playwright.sync_api import expect

from serving import TINY, endless, mock, serving
from stretto.testing import mock_llm

SAYS, END = "Hello world.", 257
HOSTILE = "<img src=x onerror=document.title=1><script>document.title=2</script>\u202e"


def choosy(entry):
    """Says "Hello world."; a Q is nearly as probable everywhere, and behind it comes "uit"."""

    def following(said):
        for way in (b"Quit", SAYS.encode()):
            for n in range(len(way), 0, -1):
                if said.endswith(way[:n]):
                    return way[n] if n < len(way) else END
        return ord(SAYS[0])

    def script(seen):
        row = np.zeros(258, np.float32)
        row[following(bytes(token % 256 for token in seen))] = 9
        row[ord("Q")] = 8
        return row

    return mock_llm(script)


@pytest.fixture(scope="module")
def server(loaded):
    with loaded(choosy) as running:
        yield running


def generate(page, text="Hi", **options):
    """Type a message and generate; greedy."""
    page.get_by_label("Message 1", exact=True).fill(text)
    set_options(page, temperature=0, **options)
    page.get_by_role("button", name="Generate").click()


def set_options(page, **options):
    page.locator("summary", has_text="Options").click()
    for name, value in options.items():
        page.get_by_label(name, exact=True).fill(str(value))


def text_of(page):
    return page.locator("#text > .text")


def test_a_person_types_and_gets_an_answer_in_colours(page, shot):
    generate(page)
    expect(page.locator("#end")).to_contain_text("stop")
    expect(text_of(page)).to_have_text(f"{SAYS}<|end|>")
    assert page.locator("#text .t").count() == len(SAYS) + 1
    assert page.locator("#text .t.p1").count() > 0
    shot(page, "play")


def test_an_alternative_becomes_a_fork_from_the_cache(page, shot):
    generate(page)
    expect(page.locator("#end")).to_contain_text("stop")
    page.locator('#text [data-i="5"]').click()
    alternatives = page.locator("#alternatives button")
    expect(alternatives.first).to_contain_text("␣")
    expect(alternatives.nth(1)).to_contain_text("Q")
    shot(page, "alternatives")
    alternatives.nth(1).click()
    expect(text_of(page)).to_have_text("HelloQuit<|end|>")
    cached, prompt = map(int, re.search(r"(\d+) of (\d+) prompt", page.locator("#end").inner_text()).groups())
    assert cached == prompt - 1
    # The tree has both, and leads back.
    tree = page.locator(".tree button")
    assert [one.inner_text() for one in tree.all()] == [f"{SAYS}", "Quit<|end|>"]
    tree.first.click()
    expect(text_of(page)).to_have_text(f"{SAYS}<|end|>")


def test_a_fork_by_keyboard_alone(page):
    generate(page)
    expect(page.locator("#end")).to_contain_text("stop")
    page.locator("#text").focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#alternatives button").first).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(text_of(page)).to_have_text("HQuit<|end|>")


def test_a_token_is_replaced_by_other_text(page):
    generate(page)
    expect(page.locator("#end")).to_contain_text("stop")
    page.locator('#text [data-i="6"]').click()
    page.get_by_label("Other text here").fill("He")
    page.get_by_role("button", name="Go on from it").click()
    expect(text_of(page)).to_have_text(f"Hello {SAYS}<|end|>")
    assert page.locator("#text .given").count() == 2


def test_a_text_that_was_cut_goes_on(page):
    generate(page, max_tokens=3)
    expect(page.locator("#end")).to_contain_text("length")
    expect(text_of(page)).to_have_text("Hel")
    page.get_by_label("max_tokens", exact=True).fill("")
    page.get_by_role("button", name="Continue").click()
    expect(text_of(page)).to_have_text(f"{SAYS}<|end|>")


def test_several_texts_are_in_the_tree(page):
    generate(page, n=3)
    expect(page.locator("#end")).to_contain_text("stop")
    expect(page.locator(".tree button")).to_have_count(3)


def test_a_prompt_without_a_template(page):
    page.get_by_role("tab", name="Text").click()
    page.get_by_label("Prompt", exact=True).fill("Say: ")
    set_options(page, temperature=0)
    page.get_by_label("Prompt", exact=True).press("Control+Enter")
    expect(text_of(page)).to_have_text(f"{SAYS}<|end|>")


def test_the_conversation_goes_on_and_any_message_can_be_edited(page, server):
    generate(page)
    expect(page.locator("#end")).to_contain_text("stop")
    page.get_by_label("Next message").fill("And then?")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Message 3", exact=True)).to_have_value("And then?")
    expect(page.get_by_label("Message 2", exact=True)).to_have_value(SAYS)
    expect(page.locator("#end")).to_contain_text("stop")
    page.get_by_label("Message 2", exact=True).fill("Edited")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_role("button", name="Generate").click()
    messages = asked.value.post_data_json["messages"]
    assert [one["content"] for one in messages] == ["Hi", "Edited", "And then?"]
    expect(page.locator(".tree button")).to_have_count(3)


def test_stop_ends_a_text(new_page, loaded):
    with loaded(endless()) as server:
        page = new_page(server.url)
        generate(page, max_tokens=900)
        page.locator('#text [data-i="3"]').wait_for()
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#end")).to_contain_text("stopped")
        n = page.locator("#text .t").count()
        assert 4 <= n < 900
        expect(page.get_by_role("button", name="Stop")).to_be_disabled()


def test_a_text_goes_on_when_the_server_is_back(new_page, loaded):
    with loaded(endless()) as server:
        page = new_page(server.url)
        generate(page, max_tokens=900)
        page.locator('#text [data-i="3"]').wait_for()
        port = server.port
    expect(page.locator("p[role=alert]")).to_be_visible()
    n = page.locator("#text .t").count()
    with loaded(endless(), port=port):
        expect(page.locator("#now")).not_to_have_text("not connected", timeout=30_000)
        page.get_by_role("button", name="Continue").click()
        page.locator(f'#text [data-i="{n + 3}"]').wait_for()
        expect(page.get_by_role("alert")).to_have_count(0)
        page.get_by_role("button", name="Stop").click()


def test_a_wrong_schema_is_shown_by_its_field(page):
    page.locator("summary", has_text="Structured output").click()
    page.get_by_label("Output", exact=True).select_option("schema")
    field = page.get_by_label("JSON by a schema")
    field.fill('{"type": ')
    generate(page)
    expect(page.get_by_role("alert")).to_contain_text("Line 1, column")
    field.fill('{"type": "nothing known"}')
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="Generate").click()
    expect(page.get_by_role("alert")).to_contain_text("Invalid type: nothing known")
    described = field.get_attribute("aria-describedby").split()[-1]
    assert page.locator(f"#{described}").inner_text() == page.get_by_role("alert").inner_text()
    field.fill('{"enum": ["a"]}')
    page.get_by_role("button", name="Generate").click()
    expect(text_of(page)).to_have_text('"a"')


def test_a_wrong_option_is_shown_by_its_field(page):
    generate(page, top_p=7)
    # The browser itself refuses it first.
    assert page.get_by_label("top_p", exact=True).evaluate("field => field.validity.rangeOverflow")


def test_a_line_break_can_be_clicked(new_page, loaded):
    with loaded(mock("a\nb")) as server:
        page = new_page(server.url)
        generate(page, "Go")
        expect(page.locator("#end")).to_contain_text("stop")
        page.locator('#text [data-i="1"]').click()
        expect(page.locator("#h-alternatives")).to_contain_text("Instead of “⏎”")
        assert page.locator("#text > .text").evaluate("text => text.textContent").startswith("a\nb")


def test_text_of_a_model_is_never_markup(new_page, loaded):
    with loaded(mock(HOSTILE)) as server:
        page = new_page(server.url)
        generate(page, HOSTILE)
        expect(page.locator("#end")).to_contain_text("stop")
        expect(text_of(page)).to_contain_text("onerror")
        page.locator('#text [data-i="0"]').click()
        assert page.locator("img, #text script").count() == 0
        expect(page).to_have_title("Play · Stretto")


def test_requests_are_copied_as_code(new_page, server):
    page = new_page(server.url, permissions=["clipboard-read", "clipboard-write"])
    generate(page, 'It\'s "so"', top_k=5)
    expect(page.locator("#end")).to_contain_text("stop")
    texts = {}
    for name in ("Python (openai)", "Python (stretto)", "curl"):
        page.get_by_role("button", name=f"Copy as {name}").click()
        texts[name] = page.evaluate("navigator.clipboard.readText()")
    compile(texts["Python (stretto)"], "copied", "exec")
    said = io.StringIO()
    with redirect_stdout(said):
        exec(texts["Python (openai)"], {})
    assert said.getvalue() == f"{SAYS}\n"
    answer = subprocess.run(["bash", "-c", texts["curl"]], capture_output=True, check=True, timeout=60)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"] == SAYS
    assert '"top_k": 5' in texts["Python (openai)"]
    assert "extra_body" in texts["Python (openai)"]
    assert "llm.chat(" in texts["Python (stretto)"]
    assert "It'\\''s" in texts["curl"]
    assert f"{server.url}/v1/chat/completions" in texts["curl"]


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_axe_finds_nothing(new_page, server, axe, shot, colors):
    page = new_page(server.url, color_scheme=colors)
    for name in ("Structured output", "Tools"):
        page.locator("summary", has_text=name).click()
    generate(page)
    expect(page.locator("#end")).to_contain_text("stop")
    page.locator('#text [data-i="5"]').click()
    shot(page, f"play-{colors}")
    assert axe(page) == []


def test_a_phone(new_page, server, shot):
    page = new_page(server.url, width=360, height=740, is_mobile=True, has_touch=True)
    generate(page)
    expect(page.locator("#end")).to_contain_text("stop")
    page.locator('#text [data-i="5"]').tap()
    expect(page.locator("#alternatives")).to_be_visible()
    shot(page, "play-phone")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    answer, chosen = page.locator("section"), page.locator("#text .on")
    sheet = page.locator("aside").bounding_box()
    for above in (answer, chosen):  # the sheet is below the answer, and not over it
        box = above.bounding_box()
        assert box["y"] + box["height"] <= sheet["y"]
    page.get_by_role("button", name="Close").tap()
    expect(page.locator("#text")).to_be_focused()
    expect(page.locator("#text")).to_be_in_viewport()


def test_a_fork_keeps_to_the_model_of_its_text(new_page):
    with serving(choosy, models=(f"first={TINY}", f"second={TINY}")) as server:
        page = new_page(server.url)
        page.get_by_role("tab", name="Text").click()
        page.get_by_label("Prompt", exact=True).fill("Say: ")
        page.get_by_role("button", name="Generate").click()
        expect(page.locator("#end")).not_to_have_text("")
        page.get_by_label("Model", exact=True).select_option("second")
        page.locator('#text [data-i="1"]').click()
        with page.expect_request("**/v1/completions") as asked:
            page.locator("#alternatives button").nth(1).click()
        assert asked.value.post_data_json["model"] == "first"
