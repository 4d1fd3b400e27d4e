"""What the page costs in Chromium: its first paint, a fast stream, and memory while it is open.

python benchmarks/page.py                       first paint, and 3,000 tokens at 300 tok/s from a mock backend
python benchmarks/page.py --minutes 10          and the heap of a tab that stays open so long
python benchmarks/page.py --turns 200           a conversation of so many turns, opened and scrolled through

Frames are those of requestAnimationFrame while the stream runs; tasks are those of the renderer's main thread
in Chromium's trace, with their wall-clock and processor time. The memory of a tab is what its
process shares with no other. Needs playwright and Debian's `chromium`.
"""

import argparse
import json
import re
import shutil
import sys
import time
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from serving import serving
from stretto.testing import mock_llm

LONG_MS = 50
WATCH = """
globalThis.frames_ms = [];
let last = null;
const look = now => {
  if (last !== null) frames_ms.push(now - last);
  last = now;
  if (!globalThis.usable_ms && document.querySelector('main form button.primary:not(:disabled), #ask')) {
    globalThis.usable_ms = performance.now();
  }
  if (!globalThis.over) requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


def paced(rate):
    """An opener of models that write a letter, a space or a line break `rate` times a second, for ever."""
    due = [0.0]

    def script(seen):
        due[0] = max(due[0] + 1 / rate, time.perf_counter() - 1 / rate)
        time.sleep(max(0.0, due[0] - time.perf_counter()))
        n = len(seen)
        return 10 if n % 97 == 0 else 32 if n % 6 == 0 else 97 + n % 26

    return lambda entry: mock_llm(script, cells=16384, context_length=16384)


def first_paint(page, url, view="play"):
    page.goto(f"{url}/#{view}")
    page.locator("main form button.primary:not(:disabled), #ask").first.wait_for()
    page.wait_for_timeout(100)
    return page.evaluate(PAINT), page.evaluate("usable_ms")


def stream(browser, page, n_tokens):
    """Stream a text and return its frames, its tasks and how fast it was."""
    page.get_by_label("Message 1", exact=True).fill("Write")
    page.locator("summary", has_text="Options").click()
    page.get_by_label("max_tokens", exact=True).fill(str(n_tokens))
    page.get_by_label("temperature", exact=True).fill("0")
    page.wait_for_timeout(1000)
    browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    page.evaluate("frames_ms.length = 0")
    page.get_by_role("button", name="Generate").click()
    page.locator("#end", has_text="length").wait_for(timeout=600_000)
    frames = page.evaluate("over = true, frames_ms")
    page.evaluate("frames_ms.length = 0")
    tasks = main_tasks(json.loads(browser.stop_tracing())["traceEvents"])
    return frames, tasks, page.locator("#end").inner_text()


def conversation(turns):
    """A file of the page's chat: answers of about 300 tokens with a table, a list and code."""
    text = """A paragraph with **bold** words and `code`, as answers have them, so long that it wraps.\n
| Time | Reading |\n| --- | ---: |\n| noon | 11.9 |\n| night | 7.2 |\n
- one thing, and a few words about it\n- another thing, with a few words more\n
```python\ndef warmest(readings):\n    # by their second parts\n    return max(readings)\n```\n
"""
    messages, parent = [], None
    for n in range(2 * turns):
        mine = (
            {"role": "user", "content": f"Question {n}?"}
            if n % 2 == 0
            else {"role": "assistant", "model": "mock"}
        )
        messages.append({"content": 3 * text, "created": n, "parent": parent, "id": str(n), **mine})
        parent = str(n)
    chat = {"title": "Long", "picks": {}, "changed": 1, "messages": messages}
    return json.dumps({"format": "stretto.chats.1", "chats": [chat]}).encode()


def long_chat(browser, page, url, turns):
    """Open a long conversation and scroll through it; returns the tasks of opening and of scrolling."""
    page.goto(f"{url}/#chat")
    page.locator(".empty").wait_for()
    file = {"name": "chats.json", "mimeType": "application/json", "buffer": conversation(turns)}
    page.get_by_label("File to import").set_input_files(file)
    page.locator(".list .open").wait_for()
    found = []
    for act in (lambda: page.locator(".list .open").click(), lambda: scroll(page)):
        browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
        act()
        while page.locator("article").count() < 2 * turns:
            page.wait_for_timeout(100)
        found.append(main_tasks(json.loads(browser.stop_tracing())["traceEvents"]))
    return found


def scroll(page):
    page.locator(".scroll").hover()
    for way in (-1, 1):
        for _ in range(60):
            page.mouse.wheel(0, way * 2500)
            page.wait_for_timeout(30)


def main_tasks(events):
    """(wall ms, processor ms) of every task of the page's main thread."""
    names = [e for e in events if e.get("name") == "thread_name" and e["args"]["name"] == "CrRendererMain"]
    mains = {(e["pid"], e["tid"]) for e in names}
    return [
        (e["dur"] / 1e3, e.get("tdur", 0) / 1e3)
        for e in events
        if e.get("name") in ("RunTask", "ThreadControllerImpl::RunTask")
        and e.get("ph") == "X"
        and (e["pid"], e["tid"]) in mains
    ]


def private_memory(browser):
    """Megabytes of memory that the largest process of a tab shares with no other."""
    found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    maps = [Path(f"/proc/{one['id']}/smaps_rollup").read_text() for one in found if one["type"] == "renderer"]
    return max(sum(map(int, re.findall(r"Private_\w+: +(\d+) kB", text))) for text in maps) * 1024 / 1e6


def heap(session):
    """(megabytes of JavaScript's heap, nodes of the document), after a collection."""
    session.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return round(found["JSHeapUsedSize"] / 1e6, 2), int(found["Nodes"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=300.0, help="tokens a second of the mock backend")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--turns", type=int, default=0, help="of a long conversation, instead of the rest")
    parser.add_argument("--minutes", type=float, default=0.0, help="how long the tab stays open")
    args = parser.parse_args()
    with serving(paced(args.rate)) as server, sync_playwright() as playwright:
        httpx.post(f"{server.url}/stretto/models/load", json={"model": "mock"}).raise_for_status()
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--enable-thread-instruction-count"],
        )
        if args.turns:
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            for name, tasks in zip(
                ("opened", "scrolled"), long_chat(browser, page, server.url, args.turns), strict=True
            ):
                wall, cpu = (sorted(column) for column in zip(*tasks, strict=True))
                n_slow, n_busy = (sum(ms > LONG_MS for ms in column) for column in (wall, cpu))
                print(
                    f"{name}: {len(tasks)} tasks, {n_slow} over {LONG_MS} ms, longest {wall[-1]:.0f} ms; "
                    f"of processor time {n_busy}, longest {cpu[-1]:.0f} ms"
                )
            taken, left = private_memory(browser), heap(session)
            print(f"the process: {taken:.0f} MB, {private_memory(browser):.0f} MB after a collection; "
                  f"heap {left} (MB, nodes)")  # fmt: skip
            return
        for view in ("chat", "play"):
            paints = []
            for _ in range(5):
                page = browser.new_page(viewport={"width": 1280, "height": 860})
                page.add_init_script(WATCH)
                paints.append(first_paint(page, server.url, view))
                page.close()
            paint, usable = (sorted(column)[2] for column in zip(*paints, strict=True))
            print(
                f"{view}: first paint {paint:.0f} ms, usable form {usable:.0f} ms (medians of 5 fresh tabs)"
            )
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.add_init_script(WATCH)
        first_paint(page, server.url)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        before = heap(session)
        frames, tasks, said = stream(browser, page, args.tokens)
        slow = [ms for ms in frames if ms > LONG_MS]
        print(f"stream: {said}")
        print(f"{len(frames)} frames, {len(slow)} over {LONG_MS} ms, longest {max(frames):.0f} ms")
        wall, cpu = (sorted(column) for column in zip(*tasks, strict=True))
        n_slow, n_busy = (sum(ms > LONG_MS for ms in column) for column in (wall, cpu))
        print(f"{len(tasks)} tasks of the main thread, {n_slow} over {LONG_MS} ms, longest {wall[-1]:.0f} ms")
        per_token = sum(cpu) / args.tokens
        print(
            f"processor time: {n_busy} over {LONG_MS} ms, longest {cpu[-1]:.0f}; {per_token:.2f} ms a token"
        )
        print(f"heap before {before}, after {heap(session)} (MB, nodes)")
        until = time.monotonic() + 60 * args.minutes
        while time.monotonic() < until:
            page.wait_for_timeout(min(60.0, max(0.1, until - time.monotonic())) * 1e3)
            print(f"heap {heap(session)}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
