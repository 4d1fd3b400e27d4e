"""Best of n over HTTP: fork a sequence of a running `stretto serve`, continue all forks, keep the best."""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

URL = f"{sys.argv[1] if len(sys.argv) > 1 else 'http://127.0.0.1:8080'}/v1/sequences"
N = 8


def ask(path: str = "", method: str = "POST", **body: object) -> dict:
    """The answer to a request."""
    head = {"content-type": "application/json"}  # and, with keys: "authorization": "Bearer KEY"
    request = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), head, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


prompt = ask(prompt="The best thing about the sea is")["sequence"]["id"]
forks = [fork["id"] for fork in ask(f"/{prompt}/fork", n=N, seed=1)["forks"]]  # share its cells
options = {"temperature": 1.0, "max_tokens": 12, "logprobs": 0}
with ThreadPoolExecutor(N) as pool:  # together: they share the steps of the engine
    texts = [one["texts"][0] for one in pool.map(lambda i: ask(f"/{i}/generate", **options), forks)]
means = [sum(t["logprob"] for t in text["logprobs"]) / max(1, len(text["logprobs"])) for text in texts]
for mean, text in sorted(zip(means, [text["text"] for text in texts], strict=True), reverse=True):
    print(f"{mean:+.2f} {text!r}")
for name in (prompt, *forks):
    ask(f"/{name}", "DELETE")
