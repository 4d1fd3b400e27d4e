"""Counts how a folder of JSON Schema test cases fares: `python scripts/schema_suite.py FOLDER [REMOTES]`.

The folder has files in the form of JSON-Schema-Test-Suite: lists of groups, each with a `schema` and `tests`,
each with `data` and `valid`. A value is written as `json.dumps` does, its keys in the order of the file.
REMOTES is the suite's folder of documents that schemas refer to; they are given beside each schema, as are
the metaschemas of the draft of 2020, which the package jsonschema brings.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import stretto
from stretto import Grammar, InvalidRequest
from stretto.llm import LLM

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
        is_known = not test["valid"] and "cannot be used: Unsatisfiable schema" in str(error)
        return "unsatisfiable" if is_known and "JSON schema at" not in str(error) else "refused"
    ids = llm.tokenizer.encode(json.dumps(test["data"], ensure_ascii=False))
    end = min(llm.tokenizer.end_ids)
    accepted = guide.n_valid([*ids, end]) == len(ids) + 1
    if accepted == test["valid"]:
        return "right"
    return "permissive" if accepted else "strict"


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
    main(*sys.argv[1:])
