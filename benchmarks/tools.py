"""Tool calls beside llama.cpp's server on the same file: `stretto eval tools` asked of both.

    python benchmarks/tools.py qwen2.5-coder-0.5b --peer PEER/bin/python

PEER has xllamacpp. The peer's answers are kept in a file (--answers), so that a run that was interrupted
goes on; ours are what `stretto eval tools` has kept, or are asked now.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from stretto.evaluation.calling import GREEDY, MAX_TOKENS, METRICS, read_conversations
from stretto.evaluation.statistics import share
from stretto.weights import hub

PEER = """
import json, sys, xllamacpp as x
path, requests = json.load(sys.stdin)
params = x.CommonParams()
params.model.path, params.cpuparams.n_threads, params.n_parallel, params.n_ctx = path, 1, 1, 4096
params.cpuparams_batch.n_threads, params.use_jinja, params.verbosity = 1, True, 0
server = x.Server(params)
for request in requests:
    found = server.handle_chat_completions(request)
    print("\\x1e" + (found if isinstance(found, str) else json.dumps(found)), flush=True)
"""


def request_of(item) -> dict:
    """A conversation as a request of OpenAI's protocol."""
    return {
        "messages": item.messages,
        "tools": item.tools,
        "tool_choice": item.choice,
        "parallel_tool_calls": item.parallel,
        "max_tokens": MAX_TOKENS,
        **{name: value for name, value in GREEDY.items() if name != "repetition_penalty"},
        "repeat_penalty": GREEDY["repetition_penalty"],
    }


def judged(item, found: dict) -> dict:
    """The answer of a server, judged; an error is an answer without calls."""
    message = found["choices"][0]["message"] if "choices" in found else {"content": json.dumps(found)}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return item.judged([(call["name"], call["arguments"]) for call in calls], message.get("content") or "")


def ask_peer(python: str, path: Path, items: list, kept: Path) -> list[dict]:
    """Ask for the answers that are not kept yet; returns all, judged."""
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    missing = [request_of(item) for item in items[len(lines) :]]
    with tempfile.TemporaryFile("w+") as given:
        json.dump([str(path), missing], given)
        given.seek(0)
        with subprocess.Popen(
            [python, "-c", PEER], stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as peer:
            for line in peer.stdout or ():
                if line.startswith("\x1e"):
                    lines.append(line[1:].rstrip("\n"))
                    with kept.open("a", encoding="utf-8") as file:
                        file.write(lines[-1] + "\n")
                    print(f"\r{len(lines)} of {len(items)}", end="", file=sys.stderr, flush=True)
    return [judged(item, json.loads(line)) for item, line in zip(items, lines, strict=False)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer", default=sys.executable)
    parser.add_argument("--answers", type=Path, default=Path(tempfile.gettempdir()), help="a folder")
    parser.add_argument("--show", action="store_true", help="print answers that are wrong")
    arguments = parser.parse_args()
    for choice in ("auto", "required"):
        items = read_conversations(choice)
        kept = arguments.answers / f"tools-{arguments.model}-{choice}.jsonl"
        found = ask_peer(arguments.peer, hub.resolve(arguments.model), items, kept)
        if len(found) < len(items):
            return 1
        print(f"\n{arguments.model}, {choice}: llama.cpp, {len(found)} of {len(items)}")
        for metric in METRICS:
            right = [one["right"][metric] for one in found if metric in one["right"]]
            if right:
                value = share(sum(right), len(right)).value
                print(f"  {metric:14} {sum(right):3} of {len(right):3}  {value:.1%}")
        for item, one in zip(items, found, strict=False):
            if arguments.show and not one["right"]["right"]:
                print(f"  {item.id}: {one['calls'] or one['text']!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
