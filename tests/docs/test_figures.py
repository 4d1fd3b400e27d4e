"""Figures in the documents are those of benchmarks/: filled from its samples, or found in RESULTS.md."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = """# Results

## Adapters

| float16 | 1.8 | +4.8 % |

### On ARM

1,234 tok/s with Q4_1, 20.35 % more, 2.5e-5 nats.
"""


@pytest.fixture
def scripts(monkeypatch):
    """The folder of the scripts on the path, as when one of them is run."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def marked(section, text):
    return f"Text <!-- results: {section} -->{text}<!-- /results --> text."


def test_figures_are_current():
    command = [sys.executable, "scripts/doc_figures.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), "run: python scripts/doc_figures.py"


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("Adapters", "4.8 %"),
        ("Adapters", "5 %, rounded"),
        ("Adapters", "1,234 of a section within it"),
        ("Adapters / On ARM", "2.5e-5 nats"),
        ("Adapters / On ARM", "20.4 % and 1234, by `--rounds 99` with Q8_0 of an 8B model"),
    ],
)
def test_figures_of_results(scripts, section, text):
    from figures.results import strays

    assert list(strays(marked(section, text), RESULTS)) == []


def test_a_figure_that_results_do_not_have(scripts):
    from figures.results import strays

    assert list(strays(marked("Adapters / On ARM", "4.8 % and 1,234"), RESULTS)) == [
        "4.8 is not in “Adapters / On ARM” of benchmarks/RESULTS.md"
    ]
    assert list(strays(marked("Adapters", "4.9 %"), RESULTS))
    assert list(strays(marked("Adapters", "2.5e-4"), RESULTS))


def test_a_section_that_results_do_not_have(scripts):
    from figures.results import strays

    assert list(strays(marked("Nowhere", "1"), RESULTS)) == ["benchmarks/RESULTS.md has no section “Nowhere”"]


def test_an_old_figure_is_replaced(scripts):
    import doc_figures

    page = "<!-- figure: restore-2048 -->7<!-- /figure --> times"
    assert doc_figures.filled(page) == "<!-- figure: restore-2048 -->44<!-- /figure --> times"
    table = "<!-- table: servers -->\n\n| old |\n\n<!-- /table -->"
    assert "| 128 | 1,314 |" in doc_figures.filled(table)
    with pytest.raises(KeyError):
        doc_figures.filled("<!-- figure: unheard-of -->7<!-- /figure -->")


def test_a_mark_without_its_end(scripts):
    import doc_figures

    assert doc_figures.unclosed("<!-- figure: restore-2048 -->44<!-- /figure --> and <!-- table: servers -->")
    assert not doc_figures.unclosed("<!-- results: Adapters -->44<!-- /results -->")


def test_samples_of_drafts_have_the_layout_that_the_benchmark_writes():
    source = (ROOT / "benchmarks/drafts.py").read_text("utf-8")
    for file in (ROOT / "benchmarks/raw").glob("drafts-*.json"):
        sample = json.loads(file.read_text("utf-8"))["samples"][0]
        assert all(f'"{key}":' in source for key in sample)
        assert {"plain", "lookup"} <= sample["seconds"].keys() == sample["counts"].keys()


def test_a_figure_of_a_file_of_samples(scripts):
    from figures.results import strays

    page = marked("raw/affinity.json", "0.721, rounded 0.7, as a share 72 %")
    assert list(strays(page, RESULTS)) == []
    assert list(strays(marked("raw/affinity.json", "0.9876"), RESULTS)) == [
        "0.9876 is not in benchmarks/raw/affinity.json"
    ]
    assert list(strays(marked("raw/nowhere.json", "1"), RESULTS))


@pytest.mark.parametrize(
    ("text", "figure"),
    [
        ("It decodes 250 tok/s.", "250 tok/s"),
        ("It decodes 1,314 tokens a second.", "1,314 tokens a second"),
        ("The first token comes after 2 to 3.5 ms.", "3.5 ms"),
        ("It is 1.4 × as fast.", "1.4 ×"),
        ("It is 12 % slower.", "12 %"),
        ("It reads 21\nGB/s.", "21 GB/s"),
        ("A block takes 43 cycles.", "43 cycles"),
        ("It grows to 96 MB.", "96 MB"),
        ("The hit rate was 0.72.", "hit rate was 0.72"),
        ("Scores differ by 6e-7 and", "6e-7"),
        ("The union is 0.9999.", "0.9999"),
        ("No client sees an error (215 requests).", "215"),
        ("It gives the same ids for 68 of 74.", "68 of 74"),
        ("Of the 1257 tests here, many pass.", "Of the 1257"),
        ("The file has 96,448,512 bytes.", "96,448,512"),
        ("![A plot that ends at 0.12 nats](plot.svg)", "0.12 nats"),
        ("Speeds in tok/s:\n\n| | here |\n|---|---|\n| decode | 250 |\n", "| | here |"),
        ("| | CPU time, ms |\n|---|---|\n| `u2net` | **4,190** |\n", "| | CPU time, ms |"),
    ],
)
def test_a_measured_figure_in_no_mark(scripts, text, figure):
    from figures.unmarked import unmarked

    faults = list(unmarked("docs/page.md", f"# Page\n\n{text}\n"))
    assert len(faults) == 1
    assert f": {figure} is in no mark" in faults[0]
    assert list(unmarked("docs/page.md", f"<!-- results: Adapters -->{text}<!-- /results -->")) == []


@pytest.mark.parametrize(
    "text",
    [
        "Run `sleep 10 s` or\n\n```sh\ntimeout 5 s\n```\n",
        "    p / P = 38 users at 70 % load\n",
        "An image of 600 × 400 pixels, and 95 % intervals.",
        "It keeps 512 MiB on a machine with 16 GB.",
        "At most 65,535 cells, 1,000 texts, 127 levels, a 429 from the server, as of 2026 or later.",
        "A mean of 0.25 and blocks of 32.",
        "See [results](results-250%20ms.md), or Python 3.12 with 8 threads.",
        "| name | default |\n|---|---|\n| `threads` | 2 |\n",
    ],
)
def test_numbers_that_are_no_measurements(scripts, text):
    from figures.unmarked import unmarked

    assert list(unmarked("docs/page.md", f"# Page\n\n{text}\n")) == []


def test_given_figures_pass_on_their_page_only(scripts):
    from figures.given import GIVEN, LIMIT
    from figures.unmarked import unmarked

    page, figures = "docs/explanation/routing.md", GIVEN[LIMIT]["docs/explanation/routing.md"]
    text = f"It must be {figures[0]} faster."
    assert list(unmarked(page, text)) == []
    assert list(unmarked("docs/another.md", text))
    assert list(unmarked(page, "")) == [f"{figures[0]} is in figures/given.py and no longer on the page"]
