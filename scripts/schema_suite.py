"""Counts how a folder of JSON Schema test cases fares: `python scripts/schema_suite.py FOLDER`.

The folder has files in the form of JSON-Schema-Test-Suite: lists of groups, each with a `schema` and `tests`,
each with `data` and `valid`. A value is written as `json.dumps` does, its keys in the order of the file.
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


def outcome(llm: LLM, schema: Any, test: dict[str, Any]) -> str:
    """One of "right", "unsatisfiable", "refused", "permissive" and "strict".

    "unsatisfiable": no value fits the schema, which the error says, and this one does not fit either.
    """
    try:
        guide = llm.guide(Grammar.json(schema))
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


def main(folder: str, model: str = "smollm2") -> None:
    total: Counter[str] = Counter()
    with stretto.load(model) as llm:
        for path in sorted(Path(folder).rglob("*.json")):
            counts: Counter[str] = Counter()
            for group in json.loads(path.read_text()):
                for test in group["tests"]:
                    found = outcome(llm, group["schema"], test)
                    counts[found] += 1
                    if found == "permissive":
                        print("too permissive:", path.name, group["description"], test["description"])
            print(f"{path.name:32}", dict(counts))
            total += counts
    print("all", dict(total))


if __name__ == "__main__":
    main(*sys.argv[1:])
