"""Screenshots of the server's page with the default model, light and dark, written to docs/pictures.

python scripts/page_pictures.py [chat tokens chat-phone play phone cells parallel models load compare]

Needs playwright (of the test extra), Chromium and the default model. Each picture is `page-NAME.png`, and
`page-NAME-dark.png` for the dark pages of the site; their colours are reduced to a palette.
"""

import argparse
import io
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

MODEL, SECONDS, COLOURS = "qwen2.5-coder-1.5b", 100, 128
TASK = "Write a Python function that counts the words of a text, and say in one sentence how it works."
QUESTION = "Why is the sky blue? One sentence."
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def serving() -> Iterator[str]:
    """A server of its own; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "stretto", "serve", "--model", MODEL, "--port", str(port)]
    process = subprocess.Popen([*command, "--cells", "2048"], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(SECONDS * 10):
            try:
                ask(url, "Hello", 1)
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(SECONDS)


def ask(url: str, text: str, n_tokens: int) -> None:
    """A request of a client."""
    body = {"model": MODEL, "prompt": text, "max_tokens": n_tokens, "ignore_eos": True}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head)
    urllib.request.urlopen(request, timeout=SECONDS).read()


@contextmanager
def four_clients(url: str) -> Iterator[None]:
    """Clients that ask one question after the other."""
    done = threading.Event()

    def run(n: int) -> None:
        while not done.is_set():
            ask(url, f"Once upon a time there were {n} sailors who", 48)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2, 6)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def chat(page: Page, url: str) -> None:
    """A conversation."""
    page.goto(f"{url}/#chat")
    page.get_by_label("Message", exact=True).fill(TASK)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("article.last .stats")).to_be_visible()


def tokens(page: Page, url: str) -> None:
    """Tokens over the text of a conversation, and the alternatives of one."""
    chat(page, url)
    page.get_by_role("switch", name="Tokens").click()
    page.locator(".prose .t:is(.p1, .p2, .p3)").last.click()
    expect(page.locator(".chosen")).to_be_visible()


def play(page: Page, url: str) -> None:
    """A text coloured by probability, and the alternatives to one of its tokens."""
    page.get_by_label("Message 1", exact=True).fill(QUESTION)
    page.locator("summary", has_text="Options").click()
    page.get_by_label("temperature", exact=True).fill("0")
    page.get_by_label("max_tokens", exact=True).fill("40")
    page.locator("summary", has_text="Options").click()
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#end")).to_contain_text(re.compile("stop|length"))
    page.locator('#text [data-i="3"]').click()
    expect(page.locator("#alternatives")).to_be_visible()


def cells(page: Page, url: str) -> None:
    """The cells of the model, one sequence selected."""
    page.get_by_role("link", name="Cells").click()
    story = "The quick brown fox jumps over the lazy dog. It was a fine day in a village by the sea, and"
    for animal in ("a cat", "a horse", "two birds"):
        ask(url, f"{story} {animal}", 48)
    page.get_by_role("button", name=re.compile(r"^\d{7}$")).first.click()
    page.locator("#map").focus()
    page.keyboard.press("Home")


def parallel(page: Page, url: str) -> None:
    """Two runs from one prompt."""
    page.get_by_role("link", name="Parallel").click()
    page.get_by_label("Prompt").fill("The cat")
    page.get_by_text("More options").click()
    for label, value in {"threshold": "0.05", "max_width": "4", "max_tokens": "12"}.items():
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_text("More options").click()
    page.get_by_role("button", name="Run").click()
    for mode in ("isolated", "visible"):
        expect(page.locator(f"#end-{mode}")).to_be_visible()


def models(page: Page, url: str) -> None:
    """A model looked into."""
    page.get_by_role("link", name="Models").click()
    page.get_by_role("tab", name="Served", exact=True).click()
    page.get_by_role("button", name="Inspect").first.click()
    expect(page.get_by_role("heading", name="Weights by format")).to_be_visible()


def load(page: Page, url: str) -> None:
    """Charts of the last minute with four clients."""
    page.get_by_role("link", name="Load", exact=True).click()
    page.get_by_label("Show").select_option(index=0)
    with four_clients(url):
        page.wait_for_timeout(20_000)


def compare(page: Page, url: str) -> None:
    """Two texts and where they begin to differ."""
    page.get_by_role("link", name="Compare").click()
    page.get_by_role("button", name="Run both").click()
    expect(page.get_by_role("status")).to_contain_text("difference")


PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
PICTURES: dict[str, tuple[Callable[[Page, str], None], dict[str, Any]]] = {
    "chat": (chat, {}),
    "tokens": (tokens, {}),
    "chat-phone": (tokens, PHONE),
    "play": (play, {}),
    "phone": (play, PHONE),
    "cells": (cells, {}),
    "parallel": (parallel, {}),
    "models": (models, {}),
    "load": (load, {}),
    "compare": (compare, {}),
}


def main() -> None:
    """Take the pictures that were asked for."""
    parser = argparse.ArgumentParser(description="Take screenshots of the page.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1] / "docs" / "pictures")
    args = parser.parse_args()
    expect.set_options(timeout=SECONDS * 1000)
    with serving() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in args.names or PICTURES:
            show, options = PICTURES[name]
            for scheme, suffix in (("light", ""), ("dark", "-dark")):
                shape = {"viewport": {"width": 1180, "height": 880}, **options}
                context = browser.new_context(color_scheme=scheme, **shape)
                context.set_default_timeout(SECONDS * 1000)
                page = context.new_page()
                page.goto(f"{url}/#play")
                page.locator("#main > *").first.wait_for()
                show(page, url)
                file = args.folder / f"page-{name}{suffix}.png"
                taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                taken.quantize(COLOURS).save(file, optimize=True)
                print(f"written: {file}")
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
