"""Counts how a folder of JSON Schema test cases fares: `python scripts/schema_suite.py FOLDER [REMOTES]`,
or `python scripts/schema_suite.py --maskbench FOLDER [PROCESSES]` for every eighth file of MaskBench.

The folder has files in the form of JSON-Schema-Test-Suite: lists of groups, each with a `schema` and `tests`,
each with `data` and `valid`. A value is written as `json.dumps` does, its keys in the order of the file.
REMOTES is the suite's folder of documents that schemas refer to; they are given beside each schema, as are
the metaschemas of the draft of 2020, which the package jsonschema brings.

A file of MaskBench (guidance-ai/jsonschemabench, `maskbench/data`) is a schema with values, and right if all
of these come out as it says. The vocabulary is bytes. A file whose values fit with their keys in another
order, which is searched, counts as "order"; "unsatisfiable" are schemas that nothing fits, as they should.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import stretto
from stretto import Grammar, InvalidRequest
from stretto.llm import LLM
from stretto.structured import Compiler, Guide
from stretto.testing import byte_tokenizer

MAX_TRIED = 20_000  # beginnings of a value, in search of an order of its keys
REMOTE = "http://localhost:1234/"  # under which the suite names its documents


def documents(folder: str) -> dict[str, Any]:
    """The documents of the suite, and the metaschemas of the draft of 2020."""
    from jsonschema_specifications import REGISTRY

    found = {uri: REGISTRY.contents(uri) for uri in REGISTRY if "2020-12" in uri}
    for path in [*Path(folder).glob("*.json"), *Path(folder, "draft2020-12").rglob("*.json")]:
        found[REMOTE + path.relative_to(folder).as_posix()] = json.loads(path.read_text())
    return found


def outcome(llm: LLM, schema: Any, test: dict[str, Any], beside: dict[str, Any]) -> str:
    """One of "right", "unsatisfiable", "refused", "permissive" and "strict".

    "unsatisfiable": no value fits the schema, which the error says, and this one does not fit either.
    """
    try:
        guide = llm.guide(Grammar.json(schema, documents=beside))
    except InvalidRequest as error:
        if schema is False and not test["valid"]:
            return "right"
        return "unsatisfiable" if not test["valid"] and fits_nothing(error) else "refused"
    ids = llm.tokenizer.encode(json.dumps(test["data"], ensure_ascii=False))
    end = min(llm.tokenizer.end_ids)
    accepted = guide.n_valid([*ids, end]) == len(ids) + 1
    if accepted == test["valid"]:
        return "right"
    return "permissive" if accepted else "strict"


def fits_nothing(error: InvalidRequest) -> bool:
    """Whether an error says that no value fits a schema as a whole."""
    text = str(error)
    return "cannot be used: Unsatisfiable schema" in text and "JSON schema at" not in text


@cache
def compiler() -> Compiler:
    """A compiler for a vocabulary of bytes."""
    tokenizer = byte_tokenizer()
    return Compiler(tokenizer, tokenizer.n_vocab)


def outcome_of_file(path: Path) -> tuple[str, str]:
    """What becomes of a file of MaskBench: as `outcome`, or "order"; and why."""
    case = json.loads(path.read_text())
    try:
        guide = compiler().compile(Grammar.of_schema(case["schema"])).guide()
        found = {outcome_of_value(guide, test) for test in case["tests"]}
    except InvalidRequest as error:
        is_known = fits_nothing(error) and not any(test["valid"] for test in case["tests"])
        return "unsatisfiable" if is_known else "refused", str(error)
    return next((one for one in ("permissive", "strict", "order") if one in found), "right"), ""


def outcome_of_value(guide: Guide, test: dict[str, Any]) -> str:
    """As `outcome`, or "order"."""
    end = min(compiler().tokenizer.end_ids)
    n_tried = 0

    def is_begun(text: bytes, *more: int) -> bool:
        nonlocal n_tried
        n_tried += 1
        return n_tried < MAX_TRIED and guide.n_valid([*text, *more]) == len(text) + len(more)

    if is_begun(as_text(test["data"]), end) == test["valid"]:
        return "right"
    if not test["valid"]:
        return "permissive"
    found = (text for text in orders(test["data"], b"", is_begun) if is_begun(text, end))
    return "strict" if next(found, None) is None else "order"


def as_text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def orders(value: Any, before: bytes, is_begun: Callable[[bytes], bool]) -> Iterator[bytes]:
    """Texts that begin with one, and go on with a value whose keys are in an order that is allowed."""
    if isinstance(value, dict) and value:
        yield from orders_of_members(list(value.items()), before + b"{", is_begun)
    elif isinstance(value, list) and value:
        yield from orders_of_items(value, before + b"[", is_begun)
    elif is_begun(before + as_text(value)):
        yield before + as_text(value)


def orders_of_members(
    members: list[tuple[str, Any]], before: bytes, is_begun: Callable[[bytes], bool]
) -> Iterator[bytes]:
    if not members and is_begun(before + b"}"):
        yield before + b"}"
    comma = b"" if before.endswith(b"{") else b", "
    for i, (key, value) in enumerate(members):
        if is_begun(begun := before + comma + as_text(key) + b": "):
            for text in orders(value, begun, is_begun):
                yield from orders_of_members(members[:i] + members[i + 1 :], text, is_begun)


def orders_of_items(items: list[Any], before: bytes, is_begun: Callable[[bytes], bool]) -> Iterator[bytes]:
    if not items and is_begun(before + b"]"):
        yield before + b"]"
    for text in orders(items[0], before, is_begun) if items else ():
        yield from orders_of_items(items[1:], text + b", " if items[1:] else text, is_begun)


def count_maskbench(folder: str, n_processes: str = "2") -> None:
    """Count every eighth file, and name those that are not right."""
    paths = sorted(Path(folder).glob("*.json"))[::8]
    total: Counter[str] = Counter()
    with ProcessPoolExecutor(int(n_processes)) as pool:
        for path, (found, why) in zip(paths, pool.map(outcome_of_file, paths, chunksize=8), strict=True):
            total[found] += 1
            if found != "right":
                print(f"{found:14}", path.name, why[:300])
    print(len(paths), "files", dict(total))


def main(folder: str, remotes: str | None = None, model: str = "smollm2") -> None:
    beside = {} if remotes is None else documents(remotes)
    total: Counter[str] = Counter()
    with stretto.load(model) as llm:
        for path in sorted(Path(folder).rglob("*.json")):
            counts: Counter[str] = Counter()
            for group in json.loads(path.read_text()):
                for test in group["tests"]:
                    found = outcome(llm, group["schema"], test, beside)
                    counts[found] += 1
                    if found == "permissive":
                        print("too permissive:", path.name, group["description"], test["description"])
            print(f"{path.name:32}", dict(counts))
            total += counts
    print("all", dict(total))


if __name__ == "__main__":
    if sys.argv[1] == "--maskbench":
        count_maskbench(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
