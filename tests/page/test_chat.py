"""The chat in a real browser, as a person uses it: send, stop, edit, branch, reload; and hostile text."""

import base64
import io
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from PIL import Image as Pillow
from playwright.sync_api import expect

from serving import TINY, endless, mock, serving, until
from stretto.server.settings import RequestLimits
from stretto.testing import mock_llm
from thinking import make, said
from tiny_vision import TEMPLATE, seeing_llm

SAYS, END = "Hello world, this is a mock.", 257
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "27.4 - 11.9"}}\n</tool_call>'
MARKDOWN = r"""A **bold** word, `code` and $E = mc^2$.

| Time | Reading |
| --- | ---: |
| noon | 11.9 |

- one
- two

```python
def warmest(readings):
    return max(readings)  # the hour
```

## Times

#### Later

# Readings
"""
HOSTILE = (
    "<img src=x onerror=document.title=1> <script>document.title=2</script> [a](javascript:document.title=3) "
    "![picture](http://no.invalid/x.png) <http://no.invalid/y> [ok](https://no.invalid/z) "
    "\u202egnp.exe \x07 \u061ca\U000e0041b [data](data:text/html,x)\n\n[style]: http://no.invalid/s.css\n\n"
    "$\\href{javascript:alert(1)}{x}$ $\\includegraphics{http://no.invalid/i.png}$ $\\style{color:red}{x}$\n"
    "```<img src=x>\n<svg onload=alert(1)>\n```\n" + "x" * 100
)


@pytest.fixture(scope="module")
def server(loaded):
    with loaded(mock(SAYS)) as running:
        yield running


@pytest.fixture
def chat(new_page, server):
    """The chat of `server`."""
    return new_page(f"{server.url}/#chat")


def box(page):
    return page.get_by_label("Message", exact=True)


def send(page, text="Hi", done=True):
    """Type a message, press Enter, and wait for the whole answer."""
    box(page).fill(text)
    box(page).press("Enter")
    if done:
        finished(page)


def finished(page):
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.locator("article.last .stats")).to_be_attached()


def answer(page):
    return page.locator("article.theirs").last


def prose(page):
    return answer(page).locator(".prose")


def act(page, name, article=None):
    (article or answer(page)).get_by_role("button", name=name, exact=True).click()


def test_enter_sends_and_shift_enter_breaks_while_the_box_grows(chat, shot):
    expect(box(chat)).to_be_focused()
    height = box(chat).bounding_box()["height"]
    chat.keyboard.type("One")
    for line in ("two", "three"):
        chat.keyboard.press("Shift+Enter")
        chat.keyboard.type(line)
    assert box(chat).bounding_box()["height"] > height + 20
    chat.keyboard.press("Enter")
    finished(chat)
    expect(box(chat)).to_have_value("")
    expect(chat.locator("article.mine .said")).to_have_text("One\ntwo\nthree")
    expect(prose(chat)).to_have_text(SAYS)
    expect(answer(chat).locator(".stats")).to_contain_text("tokens")
    shot(chat, "chat", full_page=False)


def test_markdown_becomes_nodes(new_page, loaded):
    with loaded(mock(MARKDOWN)) as server:
        page = new_page(f"{server.url}/#chat", permissions=["clipboard-read", "clipboard-write"])
        send(page)
        expect(prose(page).locator("strong")).to_have_text("bold")
        expect(prose(page).locator("td").nth(1)).to_have_class("right")
        expect(prose(page).locator("li")).to_have_text(["one", "two"])
        expect(prose(page).locator("math msup")).to_have_count(1)
        names = prose(page).locator("h1, h2, h3, h4, h5").evaluate_all("all => all.map(one => one.tagName)")
        assert names == ["H2", "H3", "H2"]  # no level is left out below the page's own heading
        expect(prose(page).locator("pre .h-k").first).to_have_text("def")
        act(page, "Copy", prose(page).locator("figure"))
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == "def warmest(readings):\n    return max(readings)  # the hour"
        act(page, "Copy", answer(page).locator("footer"))
        expect(page.get_by_role("status").last).to_have_text("Answer copied")
        assert page.evaluate("navigator.clipboard.readText()") == MARKDOWN


def imported(page, title, *said):
    """Open a conversation that is brought in: messages one after the other."""
    messages = [
        {"id": str(n), "parent": str(n - 1) if n else None, "created": n} | one for n, one in enumerate(said)
    ]
    text = json.dumps({"format": "stretto.chats.1", "chats": [{"title": title, "messages": messages}]})
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}
    page.get_by_label("File to import").set_input_files(file)
    page.locator(".list .open", has_text=title).click()


def test_a_formula_that_is_never_closed_ends_nothing(chat):
    text = "It costs\n\n$$ 5 and more.\n\n## Then\n\n$$\nx^2\n$$\n\n$$\ny^2"
    imported(
        chat,
        "Open",
        {"role": "user", "content": "?"},
        {"role": "assistant", "model": "mock", "content": text},
    )
    expect(prose(chat).locator("h2")).to_have_text("Then")
    expect(prose(chat).locator("math")).to_have_count(
        2
    )  # one that may still be written is set as far as it goes
    expect(prose(chat).locator("p").nth(1)).to_have_text("$$ 5 and more.")


def test_what_is_nested_too_deep_is_shown_as_it_was_written(chat):
    text = "- " * 200 + "deep\n\nand flat"
    imported(
        chat,
        "Deep",
        {"role": "user", "content": "?"},
        {"role": "assistant", "model": "mock", "content": text},
    )
    expect(prose(chat).locator("pre")).to_have_text(text.replace("\n\n", " "))  # and all behind it


def test_a_full_context_is_told_from_a_limit(chat):
    stats, one = (
        {"prompt": 10, "tokens": 1_000_000, "speed": 9},
        {"role": "assistant", "model": "mock", "finish": "length"},
    )
    imported(chat, "Full", {"role": "user", "content": "?"}, one | {"content": "!", "stats": stats})
    expect(answer(chat).locator(".stats")).to_contain_text("the context is full · 1,000,000 tokens")
    imported(
        chat,
        "Short",
        {"role": "user", "content": "?"},
        one | {"content": "!", "stats": stats | {"tokens": 9}},
    )
    expect(answer(chat).locator(".stats")).to_contain_text("the limit of tokens was reached · 9 tokens")


def test_tokens_do_not_move_the_lines_of_lists(new_page, loaded):
    with loaded(
        mock(
            "Lists:\n\n- one **and**\n  - two\n  - three\n- four\n\n  ```\n  five\n  ```\n\n> six\n>\n> seven"
        )
    ) as server:
        page = new_page(f"{server.url}/#chat")
        send(page)
        top = "getBoundingClientRect().top"
        places = f"all => all.map(one => one.{top} - document.querySelector('.prose').{top})"
        plain = prose(page).locator("li, pre, p").evaluate_all(places)
        page.get_by_role("switch", name="Tokens").click()
        prose(page).locator(".t").first.wait_for()
        assert prose(page).locator("li, pre, p").evaluate_all(places) == plain


def test_hostile_text_is_text(new_page, loaded):
    with loaded(mock(HOSTILE)) as server:
        page = new_page(f"{server.url}/#chat")
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        send(page, HOSTILE)
        expect(prose(page)).to_contain_text("<script>document.title=2</script>")
        expect(prose(page)).to_contain_text("[a](javascript:document.title=3)")
        expect(prose(page)).to_contain_text("\ufffdgnp.exe \ufffd \ufffda\ufffdb")
        assert page.locator("main img, main script, main svg[onload], main iframe, main style").count() == 0
        links = {link.get_attribute("href") for link in prose(page).locator("a").all()}
        assert all(link.startswith(("http://no.invalid/", "https://no.invalid/")) for link in links)
        assert page.locator("main [style], main [onerror]").evaluate_all(
            "all => all.map(one => one.tagName)"
        ) == ["ARTICLE", "ARTICLE", "TEXTAREA"]  # our own, with their heights
        title = page.title()  # the first line of what was said, which no program has written over
        assert title.startswith("<img src=x onerror=document.title=1>")
        assert title.endswith(" · Stretto")
        assert all(url.startswith(server.url) for url in asked)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_stop_keeps_what_came_and_continue_goes_on(new_page, loaded):
    with loaded(endless()) as server:
        page = new_page(f"{server.url}/#chat")
        send(page, done=False)
        expect(prose(page)).to_contain_text("abc")
        page.keyboard.press("Escape")
        finished(page)
        expect(answer(page).locator(".stats")).to_contain_text("stopped")
        before = prose(page).inner_text()
        with page.expect_request("**/v1/chat/completions") as asked:
            act(page, "Continue")
        assert len(asked.value.post_data_json["continue_token_ids"]) == len(before)
        until(lambda: len(prose(page).inner_text()) > len(before) + 5)
        page.get_by_role("button", name="Stop").click()
        finished(page)
        assert prose(page).inner_text().startswith(before)


def test_regenerate_and_edit_make_versions(chat):
    send(chat, "First")
    act(chat, "Regenerate")
    expect(answer(chat).locator(".branch")).to_contain_text("2/2")
    finished(chat)
    send(chat, "Second")
    mine = chat.locator("article.mine").first
    mine.hover()
    act(chat, "Edit and send again", mine)
    chat.get_by_label("Edit your message").fill("Changed")
    chat.keyboard.press("Enter")
    finished(chat)
    expect(chat.locator("article.mine .said")).to_have_text(["Changed"])
    expect(chat.locator("article.mine .branch")).to_contain_text("2/2")
    act(chat, "Previous version", chat.locator("article.mine").first)
    expect(chat.locator("article.mine .said")).to_have_text(["First", "Second"])
    expect(chat.locator("article.theirs").first.locator(".branch")).to_contain_text("2/2")
    chat.once("dialog", lambda dialog: dialog.accept())
    chat.locator("article.mine").first.hover()
    act(chat, "Delete from here", chat.locator("article.mine").first)
    expect(chat.locator("article.mine .said")).to_have_text(["Changed"])
    expect(chat.locator(".branch")).to_have_count(0)


def test_a_conversation_stays(chat):
    send(chat, "Remember me")
    expect(chat).to_have_url(re.compile("#chat/[0-9a-f]{24}$"))
    chat.reload()
    expect(chat.locator("article.mine .said")).to_have_text("Remember me")
    expect(prose(chat)).to_have_text(SAYS)
    chat.get_by_role("button", name="New chat").click()
    expect(chat.locator("article")).to_have_count(0)
    chat.locator(".list .open", has_text="Remember me").click()
    expect(prose(chat)).to_have_text(SAYS)


ALPHABET = "".join(
    chr(97 + (n + n // 26) % 26) for n in range(20_000)
)  # what `endless` says, from some place on


def asked_for(page):
    """Requests for answers, as (method, path)."""
    found = []
    page.on("request", lambda one: found.append((one.method, urlsplit(one.url).path)))
    return lambda: [one for one in found if one[1].startswith(("/v1/chat", "/stretto/streams"))]


def test_a_reload_in_the_middle_reads_the_same_answer_on(new_page, loaded):
    with loaded(endless()) as server:
        page = new_page(f"{server.url}/#chat")
        send(page, done=False)
        expect(prose(page)).to_contain_text("abcdefghijklm")
        asked = asked_for(page)
        page.reload()
        (running,) = server.state.generations  # it did not end, and does not begin again
        n = running.progress.tokens
        until(lambda: answer(page).count() and len(prose(page).inner_text()) > n + 50)
        assert server.state.generations == {running}
        page.get_by_role("button", name="Stop").click()
        finished(page)
        until(lambda: not server.state.generations)
        text = prose(page).inner_text()
        assert page.locator("article.theirs").count() == 1
        assert text in ALPHABET
        methods = [method for method, path in asked() if path.startswith("/stretto/streams/")]
        assert methods == ["GET", "DELETE"]
        assert all("/v1/chat" not in path for _, path in asked())
        with page.expect_request("**/v1/chat/completions") as again:
            act(page, "Continue")
        assert len(again.value.post_data_json["continue_token_ids"]) == len(text)
        page.get_by_role("button", name="Stop").click()


LOSES = """const real = window.fetch;
window.fetch = async (...given) => {
  const answer = await real(...given);
  if (!String(given[0]).includes('/v1/chat')) return answer;
  const {readable, writable} = new TransformStream(), abort = new AbortController();
  answer.body.pipeTo(writable, {signal: abort.signal}).catch(() => {});
  window.lose = () => abort.abort(new TypeError('lost'));
  return new Response(readable, {status: answer.status, headers: answer.headers});
};"""


def test_a_reload_behind_a_lost_connection_reads_the_same_answer_on(new_page, loaded):
    """As in Firefox, which tells a page that it leaves that its connections were lost."""
    with loaded(endless()) as server:
        page = new_page(f"{server.url}/#chat", script=LOSES)
        send(page, done=False)
        expect(prose(page)).to_contain_text("abcdefghijklm")
        page.evaluate("lose()")
        expect(page.locator("article.theirs")).to_contain_text("the connection was lost")
        page.reload()
        (running,) = server.state.generations
        n = running.progress.tokens
        until(lambda: answer(page).count() and len(prose(page).inner_text()) > n + 50)
        assert server.state.generations == {running}
        page.get_by_role("button", name="Stop").click()
        until(lambda: not server.state.generations)


def test_an_answer_whose_connection_alone_was_lost_is_read_on(new_page, loaded):
    with loaded(endless()) as server:
        page = new_page(f"{server.url}/#chat", script=LOSES)
        send(page, done=False)
        expect(prose(page)).to_contain_text("abcdefghijklm")
        page.evaluate("lose()")
        alert = answer(page).get_by_role("alert")
        expect(alert).to_have_text("the connection was lost")
        expect(alert).to_have_count(0)  # without a reload, by itself
        (running,) = server.state.generations
        n = len(prose(page).inner_text())
        until(lambda: len(prose(page).inner_text()) > n + 20)
        assert server.state.generations == {running}
        assert prose(page).inner_text() in ALPHABET
        page.get_by_role("button", name="Stop").click()
        until(lambda: not server.state.generations)


def test_a_reload_behind_the_answers_end_gets_the_rest(new_page, loaded):
    says = ALPHABET[:400]
    with loaded(mock(says, 0.005)) as server:
        page = new_page(f"{server.url}/#chat")
        send(page, done=False)
        expect(prose(page)).to_contain_text(says[:13])
        page.goto("about:blank")
        until(lambda: not server.state.generations)
        page.goto(f"{server.url}/#chat")
        page.locator(".list .open").first.click()
        expect(prose(page)).to_have_text(says)
        finished(page)
        expect(answer(page).locator(".stats")).to_contain_text("tok/s")


def test_a_reload_goes_on_from_the_tokens_when_the_server_has_forgotten(new_page, loaded):
    with loaded(endless(), limits=RequestLimits(stream_seconds=0.01)) as server:
        page = new_page(f"{server.url}/#chat")
        send(page, done=False)
        expect(prose(page)).to_contain_text("abcdefghijklm")
        page.goto("about:blank")
        until(lambda: not server.state.generations)
        asked = asked_for(page)
        page.goto(f"{server.url}/#chat")
        page.locator(".list .open").first.click()
        until(lambda: answer(page).count() and len(prose(page).inner_text()) > 200)
        page.get_by_role("button", name="Stop").click()
        finished(page)
        assert prose(page).inner_text() in ALPHABET
        assert [method for method, _ in asked()][:2] == ["GET", "POST"]


def test_a_reload_reads_an_answer_of_another_conversation_on(new_page, loaded):
    with loaded(endless()) as server:
        page = new_page(f"{server.url}/#chat")
        send(page, "In the background", done=False)
        expect(prose(page)).to_contain_text("abcdefghijklm")
        page.get_by_role("button", name="New chat").click()
        marked = page.locator(".list .open", has_text="In the background").get_by_label("Being answered")
        expect(marked).to_be_visible()
        asked = asked_for(page)
        page.reload()
        expect(marked).to_be_visible()
        (running,) = server.state.generations
        page.locator(".list .open").first.click()
        n = running.progress.tokens
        until(lambda: answer(page).count() and len(prose(page).inner_text()) > n + 20)
        assert server.state.generations == {running}
        assert [method for method, _ in asked()] == ["GET"]
        page.get_by_role("button", name="Stop").click()
        finished(page)
        assert prose(page).inner_text() in ALPHABET


def test_an_answer_of_another_conversation_goes_on_when_the_server_is_back(new_page, loaded):
    with loaded(endless()) as server:
        page = new_page(f"{server.url}/#chat")
        send(page, "In the background", done=False)
        expect(prose(page)).to_contain_text("abc")
        page.get_by_role("button", name="New chat").click()
        port = server.port
    expect(page.locator("#now")).not_to_contain_text("tok/s")
    with loaded(endless(), port=port), page.expect_request("**/v1/chat/completions", timeout=30_000) as asked:
        pass
    body = asked.value.post_data_json
    assert [one["content"] for one in body["messages"]] == ["In the background"]
    assert body["continue_token_ids"]


def test_another_tab_gets_the_rest_of_an_answer_whose_tab_was_closed(new_page, loaded):
    with loaded(endless()) as server:
        first = new_page(f"{server.url}/#chat")
        send(first, done=False)
        expect(prose(first)).to_contain_text("abcdefghijklm")
        first.close()
        (running,) = server.state.generations
        later = "const now = Date.now; Date.now = () => now() + 10_000"
        page = first.context.new_page()
        page.add_init_script(later)
        page.goto(f"{server.url}/#chat")
        page.locator(".list .open").first.click()
        until(lambda: answer(page).count() and len(prose(page).inner_text()) > 200)
        assert server.state.generations == {running}
        page.get_by_role("button", name="Stop").click()
        finished(page)
        assert prose(page).inner_text() in ALPHABET


def test_a_reader_is_left_where_they_are(new_page, loaded):
    with loaded(mock("line\n\n" * 1500, 0.005)) as server:
        page = new_page(f"{server.url}/#chat")
        send(page, done=False)
        count, place = (
            "document.querySelectorAll('article.last p').length",
            "document.querySelector('.scroll').scrollTop",
        )
        left = "(({scrollTop, scrollHeight, clientHeight}) => scrollHeight - scrollTop - clientHeight)"
        left += "(document.querySelector('.scroll'))"
        until(lambda: page.evaluate(count) > 30 and page.evaluate(left) < 48)
        page.locator(".scroll").hover()
        page.mouse.wheel(0, -400)
        page.locator(".below").wait_for()
        n, top = page.evaluate(f"[{count}, {place}]")
        until(lambda: page.evaluate(count) > n + 10)
        assert page.evaluate(place) == top
        page.locator(".below").click()
        until(lambda: page.evaluate(left) < 48)
        page.get_by_role("button", name="Stop").click()


def test_two_tabs_agree(chat, server):
    other = chat.context.new_page()
    other.goto(f"{server.url}/#chat")
    send(chat, "From the first tab")
    other.locator(".list .open", has_text="From the first tab").click()
    expect(prose(other)).to_have_text(SAYS)
    send(other, "From the second")
    expect(chat.locator("article.mine .said")).to_have_text(["From the first tab", "From the second"])
    other.close()


KEPT = """() => new Promise(done => {
    const request = indexedDB.open('stretto', 1);
    request.onsuccess = () => {
        const work = request.result.transaction(['chats', 'messages', 'tokens']);
        const names = [...work.objectStoreNames];
        const counts = names.map(name => work.objectStore(name).count());
        work.oncomplete = () => done(counts.map(one => one.result));
    };
})"""


@pytest.mark.parametrize("what", ["message", "conversation"])
def test_what_is_removed_while_it_is_written_is_gone_in_all_tabs(new_page, loaded, what):
    with loaded(endless()) as server:
        page = new_page(f"{server.url}/#chat")
        send(page, "Never mind", done=False)
        expect(prose(page)).to_contain_text("abc")
        other = page.context.new_page()
        other.goto(page.url)
        expect(prose(other)).to_contain_text("abc")
        by = page if what == "message" else other  # by the tab that writes it, and by one that does not
        by.once("dialog", lambda dialog: dialog.accept())
        if what == "message":
            act(by, "Delete from here", by.locator("article.mine"))
        else:
            by.locator(".list .open").hover()
            by.get_by_role("button", name="Delete Never mind").click()
        for one in (page, other):
            expect(one.locator("article")).to_have_count(0)
            expect(one.get_by_role("button", name="Send", exact=True)).to_be_visible()
            expect(one.locator(".list .open")).to_have_count(1 if what == "message" else 0)
        until(lambda: not server.state.generations)
        assert page.evaluate(KEPT) == [1 if what == "message" else 0, 0, 0]
        other.close()


def test_a_new_title_keeps_the_version_that_is_shown(chat):
    send(chat, "Twice")
    act(chat, "Regenerate")
    finished(chat)
    act(chat, "Previous version")
    expect(answer(chat).locator(".branch")).to_contain_text("1/2")
    chat.locator(".list .open").dblclick()
    chat.get_by_label("Title").fill("Once")
    chat.keyboard.press("Enter")
    expect(chat.locator(".head h1")).to_have_text("Once")
    chat.reload()
    expect(answer(chat).locator(".branch")).to_contain_text("1/2")


def test_the_list_finds_renames_pins_and_deletes(chat):
    for text in ("Alpha", "Beta"):
        send(chat, text)
        chat.get_by_role("button", name="New chat").click()
    entries = chat.locator(".list .open")
    expect(entries).to_have_text(["Beta", "Alpha"])
    chat.get_by_label("Search conversations").fill("alp")
    expect(entries).to_have_text(["Alpha"])
    entries.first.hover()
    chat.get_by_role("button", name="Rename Alpha").click()
    chat.get_by_label("Title").fill("Gamma")
    chat.keyboard.press("Enter")
    chat.get_by_label("Search conversations").fill("")
    expect(entries).to_have_text(["Beta", "Gamma"])
    entries.nth(1).hover()
    chat.get_by_role("button", name="Pin Gamma").click()
    expect(chat.locator(".list h2").first).to_have_text("Pinned")
    chat.reload()
    expect(entries).to_have_text(["Gamma", "Beta"])
    entries.nth(1).hover()
    chat.once("dialog", lambda dialog: dialog.accept())
    chat.get_by_role("button", name="Delete Beta").click()
    expect(entries).to_have_text(["Gamma"])


def test_the_list_finds_what_was_said(chat):
    send(chat, "Alpha")
    chat.get_by_role("button", name="New chat").click()
    entries, search = chat.locator(".list .open"), chat.get_by_label("Search conversations")
    for words in ("ALPHA", "this is a Mock"):
        search.fill(words)
        expect(entries).to_have_text(["Alpha"])
    search.fill("nowhere")
    expect(chat.locator(".list .none")).to_have_text("No conversation has “nowhere”.")


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_axe_finds_nothing(new_page, loaded, axe, shot, colors):
    with loaded(mock(MARKDOWN)) as server:
        page = new_page(f"{server.url}/#chat", color_scheme=colors)
        expect(page.locator(".empty")).to_be_visible()
        assert axe(page) == []
        send(page)
        shot(page, f"chat-{colors}", full_page=False)
        assert axe(page) == []
        page.locator("#settings").click()
        page.locator("#picker").click()
        assert axe(page) == []
        page.keyboard.press("Escape")
        page.get_by_role("switch", name="Tokens").click()
        prose(page).locator("[data-i]").nth(5).click()
        expect(page.locator(".chosen")).to_be_visible()
        assert axe(page) == []
        page.get_by_role("button", name="All versions").click()
        page.get_by_role("button", name="Keys").click()
        assert axe(page) == []


def test_on_a_phone_the_sheet_of_alternatives_covers_no_answer(new_page, loaded, shot, axe):
    with loaded(mock(MARKDOWN)) as server:
        page = new_page(f"{server.url}/#chat", width=390, height=844, is_mobile=True, has_touch=True)
        box(page).fill("Hi")
        page.get_by_role("button", name="Send", exact=True).tap()
        finished(page)
        page.get_by_role("switch", name="Tokens").tap()
        chosen = prose(page).locator("li [data-i]").last
        chosen.tap()
        expect(page.locator(".chosen")).to_be_visible()
        expect(prose(page).locator(".on")).to_be_visible()
        bottom = prose(page).locator(".on").bounding_box()
        assert bottom["y"] + bottom["height"] <= page.locator(".panel").bounding_box()["y"]
        shot(page, "chat-phone-tokens", full_page=False)
        assert axe(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_phone_has_a_drawer(new_page, loaded, shot, axe):
    with loaded(mock(MARKDOWN)) as server:
        page = new_page(f"{server.url}/#chat", width=390, height=844, is_mobile=True, has_touch=True)
        box(page).fill("Hi")
        page.get_by_role("button", name="Send", exact=True).tap()
        finished(page)
        shot(page, "chat-phone", full_page=False)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.get_by_role("button", name="Conversations and views").tap()
        expect(page.locator("#side")).to_be_focused()
        page.evaluate("Promise.all(document.getAnimations().map(one => one.finished)).then(() => true)")
        assert axe(page) == []
        page.get_by_role("button", name="Colours: auto").tap()
        expect(page.locator("html")).to_have_attribute("data-theme", "light")
        page.get_by_role("link", name="Load").tap()
        expect(page).to_have_title("Load · Stretto")


def choosy(entry):
    """Says "Hello world."; a Q is nearly as probable everywhere, and behind it comes "uit"."""

    def following(said):
        for way in (b"Quit", b"Hello world."):
            for n in range(len(way), 0, -1):
                if said.endswith(way[:n]):
                    return way[n] if n < len(way) else END
        return ord("H")

    def script(seen):
        row = np.zeros(258, np.float32)
        row[following(bytes(token % 256 for token in seen))] = 9
        row[ord("Q")] = 8
        return row

    return mock_llm(script)


GREEDY = """() => new Promise(done => {
    const request = indexedDB.open('stretto', 1);
    request.onsuccess = () => {
        const work = request.result.transaction('settings', 'readwrite');
        work.objectStore('settings').put({id: 'now', value: {values: {temperature: 0}}});
        work.oncomplete = () => done();
    };
})"""


@pytest.fixture
def greedy(new_page, loaded):
    """The chat of a server with alternatives, greedy."""
    with loaded(choosy) as server:
        page = new_page(f"{server.url}/#chat")
        expect(page.locator(".empty")).to_be_visible()
        page.evaluate(GREEDY)
        page.reload()
        expect(page.locator(".empty")).to_be_visible()
        yield page


def test_a_token_is_forked_into_a_version(greedy, shot):
    send(greedy)
    expect(prose(greedy)).to_have_text("Hello world.")
    assert prose(greedy).locator(".t").count() == 0
    greedy.get_by_role("switch", name="Tokens").click()
    prose(greedy).locator('[data-i="5"]').wait_for(state="attached")
    prose(greedy).locator('[data-i="6"]').click()
    panel = greedy.get_by_role("complementary", name="Token")
    expect(panel.locator(".chosen code")).to_have_text("w")
    expect(panel.locator(".alts").first.locator("button").first).to_be_disabled()
    shot(greedy, "chat-tokens", full_page=False)
    with greedy.expect_request("**/v1/chat/completions") as asked:
        panel.locator(".alts").first.locator("button").nth(1).click()
    assert len(asked.value.post_data_json["continue_token_ids"]) == 7
    finished(greedy)
    expect(prose(greedy)).to_have_text("Hello Quit")
    expect(answer(greedy).locator(".branch")).to_contain_text("2/2")
    expect(prose(greedy).locator(".given")).to_have_text("Q")
    greedy.get_by_label("Other text here").fill("He")
    greedy.keyboard.press("Enter")
    expect(answer(greedy).locator(".branch")).to_contain_text("3/3")
    expect(prose(greedy)).to_have_text("Hello Hello world.")


def test_what_each_layer_would_have_said(greedy, axe):
    """The model is a mock without layers: the server says so, and then a stand-in answers for it."""
    send(greedy)
    greedy.get_by_role("switch", name="Tokens").click()
    prose(greedy).locator('[data-i="6"]').click()
    panel = greedy.get_by_role("complementary", name="Token")
    panel.locator("summary", has_text="each layer").click()
    expect(panel.get_by_role("alert")).to_be_visible()
    asked = []

    def answer_for(route):
        asked.append(route.request.post_data_json)
        said = [[{"id": token, "piece": piece, "logprob": -0.5}] for token, piece in ((81, "Q"), (111, "o"))]
        route.fulfill(json={"layers": said})

    greedy.route("**/stretto/layers", answer_for)
    prose(greedy).focus()
    greedy.keyboard.press("ArrowRight")  # it stays open from token to token
    rows = panel.locator(".layers tbody tr")
    expect(rows).to_have_text([re.compile("1o as taken *61 %"), re.compile("0Q *61 %")])
    assert bytes(token % 256 for token in asked[0]["prompt"]).endswith(b"Hello w")
    assert axe(greedy) == []


def test_tokens_by_keyboard_alone(greedy):
    send(greedy)
    box(greedy).press("Escape")
    greedy.locator(".scroll").focus()
    greedy.keyboard.press("t")
    expect(greedy.get_by_role("switch", name="Tokens")).to_have_attribute("aria-checked", "true")
    prose(greedy).locator('[data-i="0"]').wait_for()
    prose(greedy).focus()
    for key in ("End", "Home", "ArrowRight", "ArrowRight", "ArrowLeft"):
        greedy.keyboard.press(key)
    expect(prose(greedy).locator(".on")).to_have_text("e")
    greedy.keyboard.press("Enter")
    expect(greedy.locator(".alts button:enabled").first).to_be_focused()
    greedy.keyboard.press("Escape")
    expect(greedy.locator(".panel")).to_have_count(0)


TOKENS = """() => new Promise(done => {
    const request = indexedDB.open('stretto', 1);
    request.onsuccess = () => {
        const work = request.result.transaction(['messages', 'tokens'], 'readwrite');
        const top = [{id: 1, text: 'a', logprob: -0.1}];
        work.objectStore('messages').openCursor().onsuccess = ({target: {result: at}}) => {
            if (!at) return;
            const {id, chat, content, role} = at.value;
            const tokens = [...content].map(text => ({id: 1, text, content: text, logprob: -3, top}));
            if (role === 'assistant') work.objectStore('tokens').put({id, chat, tokens});
            at.continue();
        };
        work.oncomplete = () => done();
    };
})"""


def test_only_answers_in_sight_carry_their_tokens(chat):
    messages = [
        {
            "id": str(n),
            "parent": str(n - 1) if n else None,
            "created": n,
            "content": f"{n} and so on.\n\n" * 9,
        }
        | ({"role": "assistant", "model": "mock"} if n % 2 else {"role": "user"})
        for n in range(40)
    ]
    text = json.dumps({"format": "stretto.chats.1", "chats": [{"title": "Long", "messages": messages}]})
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}
    chat.get_by_label("File to import").set_input_files(file)
    expect(chat.locator(".list .open", has_text="Long")).to_be_visible()
    chat.evaluate(TOKENS)
    chat.locator(".list .open", has_text="Long").click()
    expect(chat.locator("article")).to_have_count(40)
    height = prose(chat).bounding_box()["height"]
    chat.get_by_role("switch", name="Tokens").click()
    first, last = chat.locator("article.theirs").first, answer(chat)
    last.locator(".t").first.wait_for()
    assert prose(chat).bounding_box()["height"] == height
    assert chat.locator("article:has(.t)").count() < 12
    assert first.locator(".t").count() == 0
    expect(first.locator(".prose")).to_have_attribute("tabindex", "0")
    chat.locator(".scroll").evaluate("box => box.scrollTo(0, 0)")
    first.locator(".t").first.wait_for()
    expect(last.locator(".t")).to_have_count(0)
    chat.get_by_role("switch", name="Tokens").click()
    expect(chat.locator(".t")).to_have_count(0)
    assert chat.problems == []


def test_settings_reach_the_request_and_stay(chat):
    chat.keyboard.press("Escape")
    chat.locator("#settings").click()
    chat.get_by_label("System message").fill("Be brief.")
    chat.get_by_label("Temperature, value").fill("0.3")
    chat.get_by_label("Length", exact=True).fill("9")
    with chat.expect_request("**/v1/chat/completions") as asked:
        send(chat)
    body = asked.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"]) == (0.3, 9)
    assert not {"top_p", "min_p", "n"} & body.keys()
    panel = chat.get_by_role("complementary", name="Settings")
    panel.locator("summary", has_text="Options").click()
    for name in ("max_tokens", "temperature", "n"):  # the panel's own, and more than one text
        expect(panel.get_by_label(name, exact=True)).to_have_count(0)
    expect(answer(chat).locator(".stats")).to_contain_text("limit")
    chat.get_by_role("button", name="Save as…").click()
    expect(chat.get_by_label("Name of the preset")).to_be_focused()
    chat.keyboard.type("Short")
    chat.keyboard.press("Enter")
    expect(chat.get_by_label("Preset", exact=True)).to_be_focused()
    chat.get_by_label("Preset").select_option("Model’s own")
    expect(chat.get_by_label("System message")).to_have_value("")
    chat.reload()
    chat.locator("#settings").click()
    chat.get_by_label("Preset").select_option("Short")
    expect(chat.get_by_label("System message")).to_have_value("Be brief.")


def reckoner(entry):
    """A model that calls the calculator, and says something else once it has the result."""
    llm = make("qwen3", "")
    ways = [said(llm.tokenizer, text) for text in (CALL, "It is 15.5 degrees.")]

    def script(seen):
        way = ways["15.5" in llm.tokenizer.decode(seen)]
        return way[next(n for n in range(len(way) - 1, -1, -1) if seen[len(seen) - n :] == way[:n])]

    llm.backend.script = script
    return llm


def test_a_tool_of_the_page_is_run(new_page, loaded, axe, shot):
    with loaded(reckoner) as server:
        page = new_page(f"{server.url}/#chat")
        page.locator("#settings").click()
        page.get_by_role("switch", name="calculator").click()
        with page.expect_request("**/v1/chat/completions") as asked:
            send(page, "How much warmer?", done=False)
        assert asked.value.post_data_json["tools"][0]["function"]["name"] == "calculator"
        expect(page.locator(".card")).to_contain_text("27.4 - 11.9")
        expect(page.locator(".card dd").last).to_have_text("15.5")
        expect(prose(page)).to_have_text("It is 15.5 degrees.")
        expect(page.locator("article.theirs")).to_have_count(2)
        finished(page)
        shot(page, "chat-tool", full_page=False)
        assert axe(page) == []


def test_a_call_of_another_tool_waits_for_its_result(new_page, loaded):
    with loaded(reckoner) as server:
        page = new_page(f"{server.url}/#chat")
        page.locator("#settings").click()
        page.locator("summary", has_text="Tools").click()
        page.get_by_label("Functions").fill('{"name": "calculator"}')
        send(page, "How much warmer?")
        page.get_by_label("Result of calculator").fill("15.5 °C")
        page.get_by_role("button", name="Send results").click()
        expect(prose(page)).to_have_text("It is 15.5 degrees.")
        expect(page.locator(".card dd").last).to_have_text("15.5 °C")


def test_mistakes_are_shown_at_their_field_and_nothing_is_sent(chat):
    chat.locator("#settings").click()
    chat.locator("summary", has_text="Tools").click()
    field = chat.get_by_label("Functions")
    field.fill('[\n  {"name": "weather",}\n]')
    told = chat.locator(".field", has=field).locator(".bad")
    expect(told).to_have_text("Line 2, column 21: take out the comma before }")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill('{"parameters": {}}')
    expect(told).to_contain_text('Function 1 has no "name"')
    chat.locator("#settings").click()
    send(chat, done=False)
    expect(chat.locator(".composer [role=alert]")).to_contain_text(
        "Not sent: tools in the settings is wrong."
    )
    expect(field).to_be_focused()
    assert chat.locator("article").count() == 0
    expect(box(chat)).to_have_value("Hi")
    field.fill("")
    expect(told).to_have_count(0)
    expect(chat.locator(".composer [role=alert]")).to_have_count(0)
    box(chat).press("Enter")
    finished(chat)
    expect(prose(chat)).to_have_text(SAYS)


def test_what_the_server_refuses_is_shown_at_its_field(chat):
    chat.locator("#settings").click()
    chat.locator("summary", has_text="Structured output").click()
    chat.get_by_label("Output").select_option("JSON by a schema")
    field = chat.get_by_label("JSON by a schema")
    told = chat.locator(".field", has=field).locator(".bad")
    expect(told).to_have_text("Line 1, column 1: it ends before the value")
    field.fill('{"type": "nothing"}')
    expect(told).to_have_count(0)
    send(chat)
    expect(told).to_contain_text("type")
    expect(answer(chat).get_by_role("alert")).to_contain_text("type")
    act(chat, "Show it in the settings")
    expect(field).to_be_focused()
    field.fill('{"type": "string"}')
    expect(told).to_have_count(0)


def test_a_refused_sampling_value_is_shown_at_its_dial(chat):
    chat.locator("#settings").click()
    dial = chat.get_by_label("Temperature, value")
    dial.fill("1000")
    send(chat)
    act(chat, "Show it in the settings")
    expect(dial).to_be_focused()
    expect(chat.locator(".dial", has=dial).get_by_role("alert")).to_contain_text("temperature")
    dial.fill("1")
    expect(chat.locator(".dial", has=dial).get_by_role("alert")).to_have_count(0)


def test_the_cells_of_an_answer_and_several_tokens_behind_it(chat, server):
    send(chat, "Open it elsewhere")
    act(chat, "Beneath this answer")
    answer(chat).get_by_role("button", name="Its cells").click()
    expect(chat).to_have_title("Cells · Stretto")
    told = re.compile(
        r"Sequence \d+ holds (\d+) of the (\d+) tokens of “Open it elsewhere”, to the end of the answer"
    )
    expect(chat.locator("#about")).to_have_text(told)
    held, n = map(int, told.match(chat.locator("#about").inner_text()).groups())
    assert n - 1 <= held <= n
    assert n > len("Open it elsewhere") + len(SAYS)
    expect(chat.locator(".sequences [aria-pressed=true]")).to_have_count(1)
    chat.get_by_role("link", name="Chat", exact=True).click()
    chat.get_by_role("switch", name="Tokens").click()
    prose(chat).locator('[data-i="5"]').click()
    panel = chat.get_by_role("complementary", name="Token")
    panel.get_by_role("button", name="Several tokens at one place").click()
    expect(chat).to_have_title("Parallel · Stretto")
    expect(chat.locator("#given")).to_contain_text("up to token 5 of the answer")
    with chat.expect_request("**/stretto/parallel") as asked:
        chat.get_by_role("button", name="Run", exact=True).click()
    assert len(asked.value.post_data_json["prompt"]) == n - len(SAYS) + 5
    expect(chat.locator(".node").first).to_be_visible()
    chat.get_by_role("button", name="Type a prompt instead").click()
    expect(chat.get_by_label("Prompt")).to_be_visible()


def test_a_conversation_is_compared_with_other_settings(chat):
    chat.locator("#settings").click()
    chat.get_by_label("System message").fill("Be brief.")
    chat.get_by_label("Temperature, value").fill("0.3")
    for text in ("First", "Second"):
        send(chat, text)
    act(chat, "Beneath this answer")
    act(chat, "Compare with another model or settings")
    expect(chat).to_have_title("Compare · Stretto")
    expect(chat.locator("#given")).to_contain_text("Answers 4 messages of “First”")
    for side, temperature in (("A", "0.3"), ("B", "0")):
        field = chat.get_by_role("group", name=side).get_by_label("temperature")
        expect(field).to_have_value(temperature)
    asked = []
    chat.on("request", lambda one: asked.append(one.post_data_json) if "/v1/chat" in one.url else None)
    chat.get_by_role("button", name="Run both").click()
    expect(chat.get_by_role("status").first).to_contain_text("Both are the same")
    assert [[one["content"] for one in body["messages"]] for body in asked] == [
        ["Be brief.", "First", SAYS, "Second"]
    ] * 2
    chat.get_by_role("button", name="Type a prompt instead").click()
    expect(chat.get_by_label("Prompt")).to_be_visible()


def test_reasoning_is_folded_with_its_time(new_page, loaded):
    with loaded(lambda entry: make("qwen3")) as server:
        page = new_page(f"{server.url}/#chat")
        send(page)
        fold = page.locator(".fold")
        expect(fold.locator("summary")).to_have_text(re.compile(r"Reasoned for \d+\.\d s"))
        expect(fold.get_by_text("So: yes.")).not_to_be_visible()
        fold.locator("summary").click()
        expect(fold.get_by_text("So: yes.")).to_be_visible()
        page.get_by_role("switch", name="Tokens").click()
        fold.locator(".t").nth(3).click()
        page.locator(".alts").first.locator("button:enabled").first.click()
        expect(answer(page).locator(".branch")).to_contain_text("2/2")


def test_another_model_answers_from_then_on(new_page):
    says = {"first": mock("I am the first."), "second": mock("I am the second.")}
    with serving(lambda entry: says[entry.name](entry), models=[f"{name}={TINY}" for name in says]) as server:
        for name in says:
            httpx.post(f"{server.url}/stretto/models/load", json={"model": name}).raise_for_status()
        page = new_page(f"{server.url}/#chat")
        send(page)
        expect(prose(page)).to_have_text("I am the first.")
        page.get_by_role("button", name="Model: first").click()
        page.get_by_role("dialog", name="Model").get_by_role("button", name="second").click()
        send(page, "And you?")
        expect(prose(page)).to_have_text("I am the second.")
        expect(page.locator("article.theirs").first).to_have_attribute("aria-label", "Answer of first")
        page.locator("#settings").click()
        setting = page.get_by_label("Model", exact=True)
        expect(setting.locator("option:checked")).to_have_text(re.compile("second · .*in memory"))
        setting.select_option("first")
        expect(page.get_by_role("button", name="Model: first")).to_be_visible()
        act(page, "Regenerate")
        expect(answer(page).locator(".branch")).to_contain_text("2/2")
        expect(prose(page)).to_have_text("I am the first.")


def test_conversations_are_exported_and_imported(chat, tmp_path):
    send(chat, "Take me with you")
    chat.locator(".kept summary").click()
    with chat.expect_download() as got:
        chat.get_by_role("button", name="Export this one as Markdown").click()
    markdown = Path(got.value.path()).read_text()
    assert "## You\n\nTake me with you" in markdown
    assert SAYS in markdown
    with chat.expect_download() as got:
        chat.get_by_role("button", name="Export all as JSON").click()
    file = tmp_path / "chats.json"
    got.value.save_as(file)
    chat.once("dialog", lambda dialog: dialog.accept())
    chat.get_by_role("button", name="Delete all").click()
    expect(chat.locator(".list .open")).to_have_count(0)
    chat.get_by_label("File to import").set_input_files(file)
    chat.locator(".list .open", has_text="Take me with you").click()
    expect(prose(chat)).to_have_text(SAYS)
    with chat.expect_request("**/v1/chat/completions") as asked:
        act(chat, "Continue")
    assert len(asked.value.post_data_json["continue_token_ids"]) == len(SAYS)
    finished(chat)
    for text in ('{"format": "another"}', "# Notes\n\n## You\n\nnot of this page"):
        file.write_text(text)
        chat.get_by_label("File to import").set_input_files(file)
        expect(chat.get_by_role("status").last).to_contain_text("Not imported")
        expect(chat.get_by_role("status").last).to_have_text("")
    file = tmp_path / "chat.md"
    file.write_text(markdown.replace(SAYS, f"## Not a message\n\n{SAYS}"))
    chat.get_by_label("File to import").set_input_files(file)
    expect(chat.locator(".list .open", has_text="Take me with you")).to_have_count(2)
    chat.locator(".list .open", has_text="Take me with you").first.click()
    expect(prose(chat).locator("h2")).to_have_text("Not a message")
    expect(prose(chat)).to_contain_text(SAYS)
    expect(chat.locator("article.mine .said")).to_have_text(["Take me with you"])
    assert chat.locator("article").count() == 2


def test_a_hostile_file_is_only_text(chat):
    said = {"id": "1", "role": "user", "content": "<b>x</b>", "images": ["http://no.invalid/x.png"]}
    call = {"id": "c", "function": {"name": "constructor", "arguments": "<i>"}}
    answered = {"id": "2", "parent": "1", "role": "assistant", "model": "<i>", "content": "", "calls": [call]}
    script = {"id": "3", "parent": "2", "role": "script", "content": "alert(1)"}
    found = {"title": "<img src=x>", "messages": [said, answered, script]}
    text = json.dumps({"format": "stretto.chats.1", "chats": [found]})
    text = text.replace('"role": "user"', '"role": "user", "__proto__": {"version": 3}, "constructor": 1')
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}
    chat.get_by_label("File to import").set_input_files(file)
    chat.locator(".list .open", has_text="<img src=x>").click()
    expect(chat.locator("article.mine .said")).to_have_text("<b>x</b>")
    expect(chat.locator(".card b")).to_have_text("constructor")
    expect(chat.locator("article")).to_have_count(2)
    assert chat.locator("main img, main b b, main i i").count() == 0


def test_text_that_is_slow_to_read_does_not_hold_up_the_page(chat):
    """Long lines, and what expressions of the highlighter and marks of markdown take very long for."""
    letters, tags = "a" * 59_000, "<a " * 15_000
    plain = "def one():\n    return 1\n\n" * 400
    codes = f"```js\n{letters}\n```\n\n```html\n{tags}\n```\n\n```python\n{plain}```\n\n"
    answered = {"id": "2", "parent": "1", "role": "assistant", "model": "m", "content": codes + "![" * 25_000}
    found = {"title": "Slow", "messages": [{"id": "1", "role": "user", "content": "?"}, answered]}
    text = json.dumps({"format": "stretto.chats.1", "chats": [found]})
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": text.encode()}
    chat.get_by_label("File to import").set_input_files(file)
    chat.locator(".list .open", has_text="Slow").click()
    codes = prose(chat).locator("code")
    expect(codes.nth(2).locator(".h-k").last).to_have_text("return")
    assert codes.nth(2).locator(".h-k").count() == 800  # in pieces, each of them coloured as a whole
    assert [text.strip() for text in codes.all_text_contents()] == [letters, tags.strip(), plain.strip()]
    assert prose(chat).locator("p").text_content() == "![" * 25_000


def test_the_sheet_of_keys(chat):
    chat.locator(".scroll").focus()
    chat.keyboard.press("?")
    expect(chat.get_by_role("dialog", name="Keys")).to_contain_text("a new line")
    chat.keyboard.press("Escape")
    expect(chat.get_by_role("dialog", name="Keys")).to_have_count(0)


def test_the_tree_of_versions_leads_to_each(chat):
    send(chat, "First")
    act(chat, "Regenerate")
    finished(chat)
    send(chat, "On the second")
    chat.get_by_role("button", name="All versions").click()
    versions = chat.get_by_role("complementary", name="Versions").locator(".forks button")
    expect(versions).to_have_count(5)  # a question, two answers, a question and its answer
    expect(chat.locator(".forks [aria-current=true]")).to_have_count(4)
    expect(chat.locator(".forks i")).to_have_text(["1/2", "2/2"])
    versions.nth(1).click()
    expect(chat.locator("article.mine .said")).to_have_text(["First"])
    expect(answer(chat).locator(".branch")).to_contain_text("1/2")


def test_an_answer_goes_on_when_the_server_is_back(new_page, loaded):
    with loaded(endless()) as server:
        page = new_page(f"{server.url}/#chat")
        send(page, done=False)
        expect(prose(page)).to_contain_text("abc")
        port = server.port
    expect(answer(page).get_by_role("alert")).to_be_visible()
    before = prose(page).inner_text()
    with loaded(endless(), port=port):
        expect(answer(page).get_by_role("alert")).to_have_count(0, timeout=30_000)  # it goes on by itself
        until(lambda: len(prose(page).inner_text()) > len(before) + 5)
        page.get_by_role("button", name="Stop").click()
        assert prose(page).inner_text().startswith(before)
        finished(page)


def test_images_are_pasted_dropped_and_removed(new_page, loaded, axe):
    paste = """name => {
        const data = new DataTransfer();
        const bytes = Uint8Array.from(atob('DATA'), one => one.charCodeAt(0));
        data.items.add(new File([bytes], 'a.png', {type: 'image/png'}));
        const kind = {bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data};
        const event = name === 'drop' ? new DragEvent(name, kind) : new ClipboardEvent(name, kind);
        document.getElementById('ask').dispatchEvent(event);
    }""".replace("DATA", base64.b64encode(picture()).decode())
    with loaded(lambda entry: seeing_llm("mlp", template=TEMPLATE)) as server:
        page = new_page(f"{server.url}/#chat")
        expect(page.get_by_role("button", name="Attach images or text files")).to_be_visible()
        page.evaluate(paste, "paste")
        page.evaluate(paste, "drop")
        file = {"name": "green.png", "mimeType": "image/png", "buffer": picture()}
        page.get_by_label("Files", exact=True).set_input_files(file)
        expect(page.locator(".images img")).to_have_count(3)
        page.get_by_role("button", name="Remove image 2").click()
        expect(page.locator(".images img")).to_have_count(2)
        assert axe(page) == []
        with page.expect_request("**/v1/chat/completions") as asked:
            send(page, "What is it?", done=False)
        content = asked.value.post_data_json["messages"][0]["content"]
        assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
        expect(page.locator("article.mine img")).to_have_count(2)
        page.reload()
        expect(page.locator("article.mine img")).to_have_count(2)


DROP = """([on, name, bytes]) => {
    const data = new DataTransfer();
    data.items.add(new File([Uint8Array.from(bytes)], name));
    const event = new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: data});
    document.querySelector(on).dispatchEvent(event);
    return event.defaultPrevented;
}"""


def test_text_files_are_put_into_the_box_wherever_they_are_dropped(chat):
    box(chat).fill("Explain this.")
    text = "one = 1\n```\n"
    assert chat.evaluate(DROP, [".side", "one.py", list(text.encode())])
    said = "Explain this.\n\none.py:\n````py\none = 1\n```\n````\n"
    expect(box(chat)).to_have_value(said)
    assert chat.evaluate(DROP, [".scroll", "a.bin", [0, 1, 2, 255]])
    expect(chat.get_by_role("status").last).to_have_text("a.bin is no text")
    chat.reload()
    expect(box(chat)).to_have_value(said)


def test_what_a_spreadsheet_copies_is_pasted_as_text(chat):
    expect(box(chat)).to_be_visible()
    taken = chat.evaluate("""() => {
        const data = new DataTransfer();
        data.items.add(new File(['x'], 'a.png', {type: 'image/png'}));
        data.setData('text/plain', '1\\t2');
        const event = new ClipboardEvent('paste', {bubbles: true, cancelable: true, clipboardData: data});
        document.getElementById('ask').dispatchEvent(event);
        return event.defaultPrevented;
    }""")
    assert not taken
    expect(chat.locator(".images")).to_have_count(0)


def test_a_model_without_eyes_takes_no_images(chat):
    expect(box(chat)).to_have_attribute("placeholder", "Message mock")
    chat.evaluate("""() => {
        const data = new DataTransfer();
        data.items.add(new File(['x'], 'a.png', {type: 'image/png'}));
        const event = new ClipboardEvent('paste', {bubbles: true, clipboardData: data});
        document.getElementById('ask').dispatchEvent(event);
    }""")
    expect(chat.get_by_role("status").last).to_have_text("mock takes no images")
    expect(chat.locator(".images")).to_have_count(0)


def picture():
    data = io.BytesIO()
    Pillow.new("RGB", (32, 24), "green").save(data, "PNG")
    return data.getvalue()
