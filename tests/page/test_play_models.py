"""Play with models that see, think and call tools."""

import base64
import io
import re

from PIL import Image as Pillow
from playwright.sync_api import expect

from serving import mock
from thinking import KINDS, make, said
from tiny_vision import TEMPLATE, seeing_llm

CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "<b>"}}\n</tool_call>'


def picture(color):
    data = io.BytesIO()
    Pillow.new("RGB", (32, 24), color).save(data, "PNG")
    return data.getvalue()


def generate(page, text="Hi", max_tokens=40):
    page.get_by_label("Message 1", exact=True).fill(text)
    page.locator("summary", has_text="Options").click()
    page.get_by_label("temperature", exact=True).fill("0")
    page.get_by_label("max_tokens", exact=True).fill(str(max_tokens))
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_role("button", name="Generate").click()
    expect(page.locator("#end")).not_to_have_text("")
    return asked.value.post_data_json


def give(page, how, data, name="red.png", kind="image/png"):
    """Drop or paste a file on the first message."""
    page.get_by_label("Message 1", exact=True).evaluate(
        """(area, [how, data, name, kind]) => {
            const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0)), transfer = new DataTransfer();
            transfer.items.add(new File([bytes], name, {type: kind}));
            const all = {bubbles: true, cancelable: true, dataTransfer: transfer, clipboardData: transfer};
            area.dispatchEvent(new (how === 'drop' ? DragEvent : ClipboardEvent)(how, all));
        }""",
        [how, base64.b64encode(data).decode(), name, kind],
    )


def clock(entry):
    """A model that calls a function, and says something else once it has the result."""
    llm = make("qwen3", "")
    ways = [said(llm.tokenizer, text) for text in (CALL, "It is late.")]

    def script(seen):
        way = ways["23:59" in llm.tokenizer.decode(seen)]
        return way[next(n for n in range(len(way) - 1, -1, -1) if seen[len(seen) - n :] == way[:n])]

    llm.backend.script = script
    return llm


def cached_of(page):
    return [int(n) for n in re.search(r"(\d+) of (\d+) prompt", page.locator("#end").inner_text()).groups()]


def test_images_are_dropped_pasted_and_chosen(new_page, axe, shot, loaded):
    with loaded(lambda entry: seeing_llm("mlp", template=TEMPLATE)) as server:
        page = new_page(server.url)
        give(page, "drop", picture("red"), name="<img src=x onerror=alert(1)>.png")
        give(page, "paste", picture("blue"))
        expect(page.locator(".message img")).to_have_count(2)
        image = {"name": "green.png", "mimeType": "image/png", "buffer": picture("green")}
        page.get_by_label("Add images").set_input_files(image)
        expect(page.locator(".message img")).to_have_count(3)
        page.get_by_role("button", name="Remove image 3 of message 1").click()
        give(page, "drop", b"<svg onload=alert(1)>", name="x.txt", kind="text/plain")
        expect(page.locator(".message img")).to_have_count(2)
        assert axe(page) == []
        parts = generate(page, "What?", max_tokens=4)["messages"][0]["content"]
        assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
        assert parts[0]["image_url"]["url"].startswith("data:image/png;base64,")
        shot(page, "play-images")
        # A fork of it has the images too.
        page.locator('#text [data-i="2"]').click()
        page.locator("#alternatives button").nth(1).click()
        expect(page.locator(".tree button")).to_have_count(2)
        expect(page.locator("#end")).not_to_have_text("")
        cached, prompt = cached_of(page)
        assert cached == prompt - 1


def test_an_image_that_is_none_is_refused_by_the_server(new_page, loaded):
    with loaded(lambda entry: seeing_llm("mlp", template=TEMPLATE)) as server:
        page = new_page(server.url)
        give(page, "drop", b"no image at all")
        page.get_by_label("Message 1", exact=True).fill("What?")
        page.get_by_role("button", name="Generate").click()
        expect(page.get_by_role("alert")).to_contain_text("image")


def test_an_image_with_a_script_in_it_is_only_an_image(new_page, loaded):
    script = "document.title = 'hacked'; fetch('https://example.org')"
    drawing = f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"{script}\"><script>{script}</script></svg>"
    with loaded(lambda entry: seeing_llm("mlp", template=TEMPLATE)) as server:
        page = new_page(server.url)
        give(page, "drop", drawing.encode(), name='"><script>x</script>.svg', kind="image/svg+xml")
        expect(page.locator(".message img")).to_have_count(1)
        page.locator(".message img").evaluate("image => image.decode().catch(() => null)")
        expect(page).to_have_title("Play · Stretto")
        page.get_by_role("button", name="Generate").click()
        expect(page.get_by_role("alert")).to_contain_text("image")


def test_reasoning_is_folded(new_page, axe, loaded):
    with loaded(lambda entry: make("qwen3")) as server:
        page = new_page(server.url)
        generate(page)
        fold = page.locator("#text details")
        expect(fold.locator("summary")).to_contain_text("Reasoning")
        expect(fold.locator(".t").first).not_to_be_visible()
        expect(page.locator("#text > .text")).to_contain_text(KINDS["qwen3"].text.split("\n")[0])
        fold.locator("summary").click()
        expect(fold).to_contain_text("So: yes.")
        # A fork within the reasoning goes on with reasoning.
        fold.locator(".t").nth(3).click()
        assert axe(page) == []
        page.locator("#alternatives button").first.click()
        expect(page.locator(".tree button")).to_have_count(2)
        expect(fold).to_contain_text("So: yes.")
        expect(page.locator("#text > .text")).to_contain_text(KINDS["qwen3"].text.split("\n")[0])


def test_a_tool_is_called_and_answered(new_page, axe, shot, loaded):
    with loaded(clock) as server:
        page = new_page(server.url)
        page.locator("summary", has_text="Tools").click()
        page.get_by_label("Functions").fill("[{]")
        page.get_by_label("Message 1", exact=True).fill("What time is it?")
        page.get_by_role("button", name="Generate").click()
        expect(page.get_by_role("alert")).to_contain_text("Line 1, column")
        page.get_by_label("Functions").fill('{"name": "now"}')
        asked = generate(page, "What time is it?", max_tokens=200)
        assert asked["tools"] == [{"type": "function", "function": {"name": "now"}}]
        field = page.get_by_label("Result of now")
        expect(page.get_by_role("form", name="Tool calls")).to_contain_text('{"zone": "<b>"}')
        shot(page, "play-tools")
        assert axe(page) == []
        field.fill("23:59")
        with page.expect_request("**/v1/chat/completions") as sent:
            page.get_by_role("button", name="Send results").click()
        roles = [(one["role"], one["content"]) for one in sent.value.post_data_json["messages"]]
        assert roles[0] == ("user", "What time is it?")
        assert roles[-1] == ("tool", "23:59")
        expect(page.locator("#text > .text")).to_contain_text("It is late.")


def test_a_model_without_eyes_says_so(new_page, loaded):
    with loaded(mock()) as server:
        page = new_page(server.url)
        give(page, "drop", picture("red"))
        page.get_by_label("Message 1", exact=True).fill("What?")
        page.get_by_role("button", name="Generate").click()
        expect(page.get_by_role("alert")).to_contain_text("images")
