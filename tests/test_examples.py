"""Every example runs as it stands, with the real model, and shows what it promises."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

import stretto
from serving import serving
from stretto.weights.hub import Store
from stretto.weights.safetensors import read_floats

EXAMPLES = Path(__file__).parent.parent / "examples"
ORDINARY_HOME = str(Store.default().home)  # found before a test gets a store of its own


@pytest.fixture
def output_of(smollm2_path):
    """Runs an example as a user would: its output."""

    def run(name, *arguments):
        environment = {
            **os.environ,
            "STRETTO_HOME": ORDINARY_HOME,
            "PYTHONIOENCODING": "utf-8",
            "OPENBLAS_NUM_THREADS": "1",  # its threads spin while they wait, which a busy machine pays for
        }
        command = [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_hello(output_of):
    lines = output_of("hello.py").splitlines()
    assert lines[0] == " Paris."
    assert "8 tokens, ended by 'length'" in lines
    assert re.fullmatch(r"first token after [\d.]+ s", lines[-2])
    assert re.fullmatch(r"then [\d.]+ tokens a second", lines[-1])


def test_streaming(output_of):
    text, end = output_of("streaming.py").rsplit("\n", 2)[:2]
    assert text.split()
    assert end == "16 tokens, ended by 'cancelled'"


def test_steering(output_of):
    lines = output_of("steering.py").splitlines()
    assert [line.split(":")[0] for line in lines] == ["-2", "+0", "+2"]
    assert lines[0].split(":")[1] != lines[2].split(":")[1]


def test_a_direction_shifts_more_than_random_vectors(output_of):
    *_, beyond = output_of("../benchmarks/steering.py").splitlines()
    low = re.search(r"interval ([+-][\d.]+) to", beyond)
    assert float(low[1]) > 0.5


def test_sampling(output_of):
    lines = output_of("sampling.py").splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["greedy", "careful", "default", "wild"]
    texts = [line.split("…")[1] for line in lines]
    assert all(map(ast.literal_eval, texts))
    assert texts[0] != texts[3]  # what lies between may be the same by chance


def test_prompt_lookup(output_of):
    plain, drafted = output_of("prompt_lookup.py").splitlines()
    (n, steps), (m, fewer) = (
        map(int, re.match(r"(\d+) tokens in (\d+) steps", line).groups()) for line in (plain, drafted)
    )
    assert n == m
    assert fewer < steps
    assert plain.split(":", 1)[1] == drafted.split(":", 1)[1]


def test_chat(output_of):
    lines = output_of("chat.py").splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["system", *["user", "assistant"] * 2]
    assert "Paris" in lines[2]
    assert "Rome" in lines[4]


def test_own_loop(output_of):
    output = output_of("own_loop.py")
    for prompt in ("The sun is", "A cat can", "Two plus two is"):
        assert re.search(rf"^{prompt}\b.*\S", output, re.MULTILINE)


def test_edit_logits(output_of):
    wanted, instead, without = output_of("edit_logits.py").splitlines()
    best = ast.literal_eval(wanted.removeprefix("it would say: "))
    assert (best[0], len(set(best))) == (" Paris", 3)  # the other two are nearly as good as a fourth
    said = ast.literal_eval(instead.removeprefix("instead: "))
    assert re.match(r"The capital of France is(?! Paris).*\w", said, re.DOTALL)
    said = without.removeprefix("without an e:")
    assert re.search(r"\w", said)
    assert "e" not in said.lower()


def test_hooks(output_of):
    first, *lines = output_of("hooks.py").splitlines()
    assert re.search(r"\w", ast.literal_eval(first.removeprefix("without Paris: ")))
    assert " Paris" not in first.removeprefix("without Paris")
    assert len(lines) == 8
    assert all(re.fullmatch(r"\d\.\d\d nats: '.+' \d+%, '.+' \d+%", line) for line in lines[:6])
    plain, guided = (line.split(": ", 1)[1] for line in lines[6:])
    assert plain != guided


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_native_hook(output_of):
    without, with_it, same = output_of("native_hook.py").splitlines()
    assert without.split(":")[1] != with_it.split(":")[1]
    assert same == "the same in both loops: True"


def test_many_requests(output_of):
    *answers, same, counts = output_of("many_requests.py").splitlines()
    found = dict(line.strip().split(": ", 1) for line in answers)
    assert list(found) == ["greedy", "seeded", "stopped", "urgent"]
    assert found["stopped"] == "' five, six, ', ended by 'stop'"
    assert "Rome" in found["urgent"]
    assert same == "the same as alone: True"
    assert re.fullmatch(r"5 requests in \d+ steps", counts)


def test_async_chat(output_of):
    lines = output_of("async_chat.py").splitlines()
    assert len(lines) == 3
    assert "Paris" in lines[0]
    assert "Rome" in lines[1]


def test_best_of(output_of):
    lines = output_of("best_of.py").splitlines()
    assert [line.split(":")[0].strip() for line in lines] == [*["sample"] * 3, "best of", "beam", "beam"]
    assert len(set(lines[:3])) == 3
    first, second = (float(re.search(r", (-[\d.]+) a token", line)[1]) for line in lines[4:])
    assert first >= second


def test_fork(output_of):
    output = output_of("fork.py")
    tokens = int(re.search(r"(\d+) tokens in 5 sequences", output)[1])
    forked, after = map(int, re.findall(r"(\d+) cells", output))
    assert forked == tokens
    assert after > forked
    branches = re.findall(r"^- In the old lighthouse there lived a .+", output, re.MULTILINE)
    assert len(set(branches)) == 4


def test_shared_system_prompt(output_of):
    output = output_of("shared_system_prompt.py")
    pinned = int(re.search(r"^(\d+) tokens are pinned", output)[1])
    counts = [tuple(map(int, found)) for found in re.findall(r"  (\d+) of (\d+) tokens were there", output)]
    assert len(counts) == 3
    assert all(pinned <= cached < prompt for cached, prompt in counts)
    saved = int(re.search(r"(\d+) tokens were not computed again", output)[1])
    assert saved == sum(cached for cached, _ in counts)


def test_tree_of_thoughts(output_of):
    output = output_of("tree_of_thoughts.py")
    assert re.findall(r"^(\d) thoughts, the best has [+-]\d+\.\d\d", output, re.MULTILINE) == ["3", "6", "6"]
    assert re.search(r"^The old sailor opened the box and\b.*\w", output, re.MULTILINE | re.DOTALL)


def test_resume_tomorrow(output_of):
    saved, restored, same = output_of("resume_tomorrow.py").splitlines()
    assert re.fullmatch(r"saved \d\d tokens in 0\.\d MB", saved)
    assert restored.startswith("restored: …")
    assert same == "the same tokens as without the break: True"


def test_parallel(output_of):
    lines = output_of("parallel.py").splitlines()
    for mode, (text, share, attention) in zip(("isolated", "visible"), (lines[:3], lines[3:]), strict=True):
        assert re.match(rf"{mode}: .*\[[^/]+/[^]]+\]", text)
        assert re.match(r"  \d+% of the steps are parallel", share)
        assert attention.endswith(", 0.000 to others") == (mode == "isolated")


def test_extract_json(output_of):
    *found, steps = output_of("extract_json.py").splitlines()
    first, second = (ast.literal_eval(line) for line in found)
    assert first == {"name": "Anna Berg", "thing": "lamp", "count": 3}
    assert second == {"name": "Marco Rossi", "thing": "chair", "count": 12}
    tokens, n_steps = map(int, re.match(r"up to (\d+) tokens in (\d+) steps", steps).groups())
    assert n_steps < tokens


def test_classify(output_of):
    lines = output_of("classify.py").splitlines()
    assert len(lines) == 3
    for line in lines:
        label, *shares = re.match(
            r" *(\w+) \(praise (\d+)%, complaint (\d+)%, neither (\d+)%\)", line
        ).groups()
        assert label in ("praise", "complaint", "neither")
        assert 98 <= sum(map(int, shares)) <= 102
    assert lines[0].split()[0] == "praise"


def test_dates(output_of):
    lines = output_of("dates.py").splitlines()
    assert all(re.fullmatch(r"temperature \d: \d\d [A-Z][a-z]+ (19|20)\d\d", line) for line in lines)
    assert len(lines) == 3


def test_tools(output_of):
    price, product = output_of("tools.py").splitlines()
    assert re.fullmatch(r"price\({'thing': 'chair'}\) is 45:.* 45.*", price)
    assert re.fullmatch(r"multiply\({'a': 12, 'b': 7}\) is 84:.* 84.*", product)


def test_two_questions(output_of):
    first, none, second, most = output_of("two_questions.py").splitlines()
    assert (first, second) == ("What shape is this? 'circle'", "What color is the shape? 'red'")
    assert none.startswith("  0 of ")
    there, tokens = map(int, re.match(r"  (\d+) of (\d+) tokens were there", most).groups())
    assert 64 < there < tokens


def test_many_pictures(output_of):
    *answers, counts = output_of("many_pictures.py").splitlines()
    found = dict(line.strip().split(": ", 1) for line in answers)
    assert list(found) == ["red", "green", "blue", "yellow", "again", "none"]
    assert all(found[colour] == repr(colour) for colour in list(found)[:4]), found
    assert found["again"] == "'square'"
    assert "8" in found["none"]
    assert re.fullmatch(r"6 answers in \d\d steps", counts)


def test_caption_folder(output_of, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a.png", "b.jpg", "c.webp"):
        PIL.ImageOps.expand(PIL.Image.new("RGB", (64, 64), "red"), 32, "white").save(folder / name)
    (folder / "d.png").write_bytes(b"nothing")
    *lines, bar = output_of("caption_folder.py", folder).splitlines()
    captions = dict(line.split(": ", 1) for line in lines)
    assert list(captions) == ["d.png", "a.png", "b.jpg", "c.webp"]
    assert captions["d.png"].startswith("left out")
    assert "red" in captions["a.png"]
    assert "red" in captions["b.jpg"]
    assert bar.startswith("captions")
    assert "100%" in bar


def test_semantic_search(output_of):
    first, _ = output_of("semantic_search.py").splitlines()
    assert first.endswith("Whales are mammals, not fish.")


def test_find_objects(output_of, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    source, target = Path(__file__).parent / "data" / "tasks" / "astronaut.jpg", tmp_path / "out.png"
    assert "person" in output_of("find_objects.py", source, target)
    with PIL.Image.open(target) as drawn, PIL.Image.open(source) as given:
        assert drawn.size == given.size


def test_blur_faces(output_of, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    source, target = Path(__file__).parent / "data" / "tasks" / "astronaut.jpg", tmp_path / "out.png"
    assert output_of("blur_faces.py", source, target) == "1 hidden; model under MIT\n"
    before, after = (PIL.Image.open(path).convert("RGB") for path in (source, target))
    assert after.crop((300, 300, 500, 500)).tobytes() == before.crop((300, 300, 500, 500)).tobytes()
    assert after.crop((190, 70, 260, 170)).getcolors(64) is not None  # the face is 8 × 8 squares


def test_chat_budget(output_of):
    lines = output_of("chat_budget.py").splitlines()
    found = [re.search(r"\((\d+) of 72 tokens, (\d+) messages forgotten\)$", line).groups() for line in lines]
    assert len(found) == 4
    assert all(int(tokens) <= 72 for tokens, _ in found)
    assert int(found[0][1]) == 0
    assert int(found[-1][1]) > 0


def test_best_of_fork(output_of):
    *lines, best = output_of("best_of_fork.py").splitlines()
    scores = [float(line.split(" ", 1)[0]) for line in lines]
    assert len(scores) == 8
    assert scores == sorted(scores, reverse=True)
    assert best == f"best: {lines[0].split(' ', 1)[1]}"


def test_beam_search(output_of):
    *beams, generated = output_of("beam_search.py").splitlines()
    assert len(beams) == 4
    assert beams[0].split(" ", 1)[1] == generated.removeprefix("generate: ")


def test_extract_many(output_of):
    n_orders, n_steps = re.match(r"(\d+) orders in (\d+) steps: name=", output_of("extract_many.py")).groups()
    assert int(n_orders) == 50
    assert int(n_steps) < 50 * 10  # alone each of them would take more


def test_watermark(output_of):
    plain, marked = (
        float(re.search(r"([+-][\d.]+) standard", line)[1]) for line in output_of("watermark.py").splitlines()
    )
    assert abs(plain) < 3 < marked


@pytest.fixture
def a_server(smollm2_path):
    with serving(
        lambda entry: stretto.load(smollm2_path, cells=1024), models=(f"smollm2={smollm2_path}",)
    ) as server:
        yield server


def test_server_best_of(output_of, a_server):
    lines = output_of("server_best_of.py", a_server.url).splitlines()
    scores = [float(line.split(" ", 1)[0]) for line in lines]
    assert len(scores) == 8
    assert scores == sorted(scores, reverse=True)
    assert a_server.llm("smollm2").cache.stats().held == 0  # all are closed


def test_server_tree(output_of, a_server):
    *steps, text = output_of("server_tree.py", a_server.url).rstrip("\n").split("\n", 3)
    assert [step.split(",")[0] for step in steps] == ["3 thoughts", "6 thoughts", "6 thoughts"]
    assert text.startswith("The old sailor opened the box and")


def test_grpo_rollouts():
    folder = Path(__file__).parent / "data" / "folders" / "llama"
    example = runpy.run_path(str(EXAMPLES / "grpo_rollouts.py"))
    numbers = read_floats(folder / "model.safetensors")
    model = SimpleNamespace(state_dict=lambda: {name: 1.1 * array for name, array in numbers.items()})
    args = SimpleNamespace(temperature=0.9, top_p=0.9, top_k=30, min_p=None, max_completion_length=12)
    trainer = SimpleNamespace(
        args=args,
        model=model,
        accelerator=SimpleNamespace(unwrap_model=lambda one: one),
        state=SimpleNamespace(global_step=3),
    )
    with stretto.load(folder, backend="native", threads=2) as llm:
        found = example["rollouts"](llm)(["The capital", "of France is"] * 4, trainer)
        assert llm.weights_version == "3"
        sampling = stretto.SamplingParams(temperature=0.9, top_p=0.9, top_k=30, min_p=0)
        rows = zip(found["prompt_ids"], found["completion_ids"], found["logprobs"], strict=True)
        for prompt, ids, logprobs in rows:  # what the trainer gets is what scoring finds, bit for bit
            [scores] = llm.score(prompt, [ids], sampling=sampling)
            assert np.array_equal(scores, np.array(logprobs, np.float32))


def test_every_example_is_tested():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    examples = {path.stem for path in EXAMPLES.glob("*.py")}
    assert examples
    assert examples <= tested


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short(path):
    source = path.read_text("utf-8")
    assert source.count("\n") <= 30
    assert source.startswith('"""')
