"""Tree search over HTTP: fork, continue, judge by scores, keep the best, with a running `stretto serve`."""

import json
import sys
import urllib.request

URL = f"{sys.argv[1] if len(sys.argv) > 1 else 'http://127.0.0.1:8080'}/v1/sequences"
WIDTH, BRANCHES, DEPTH = 2, 3, 3  # thoughts kept, tried from each, steps
QUESTION = " … Is this a good story so far? Answer yes or no: "


def ask(path: str = "", method: str = "POST", **body: object) -> dict:
    """The answer to a request."""
    asked = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), method=method)
    return json.load(urllib.request.urlopen(asked))


kept = [ask(prompt="The old sailor opened the box and")["sequence"]["id"]]
for depth in range(DEPTH):
    thoughts = []
    for fork in [one for i in kept for one in ask(f"/{i}/fork", n=BRANCHES, seed=9 * depth)["forks"]]:
        ask(f"/{fork['id']}/generate", temperature=0.9, max_tokens=8)
        judged = ask(f"/{fork['id']}/score", continuations=[f"{QUESTION}yes", f"{QUESTION}no"])["data"]
        thoughts.append((judged[0]["total"] - judged[1]["total"], fork["id"]))
    thoughts.sort(reverse=True)
    print(f"{len(thoughts)} thoughts, the best has {thoughts[0][0]:+.2f}")
    for name in [*kept, *(name for _, name in thoughts[WIDTH:])]:
        ask(f"/{name}", "DELETE")
    kept = [name for _, name in thoughts[:WIDTH]]
print(ask(f"/{kept[0]}", "GET")["text"])
