"""Vectors of nomic-embed beside llama.cpp's of the same file: the cosine of each of ten texts, and the time.

    python benchmarks/nomic.py --peer PEER/bin/python

PEER has xllamacpp. Texts are short and long, with the prefixes of the model's tasks and without.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import stretto
from stretto.weights import hub

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "architecture.md"
PEER = """
import json, sys, time, xllamacpp as x
path, texts = json.load(sys.stdin)
params = x.CommonParams()
params.model.path, params.embedding, params.cpuparams.n_threads, params.n_parallel = path, True, 2, 1
params.n_ctx = params.n_batch = params.n_ubatch = 2048
params.pooling_type = x.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
server, start = x.Server(params), time.perf_counter()
found = [server.handle_embeddings({"input": text}) for text in texts]
seconds = time.perf_counter() - start
found = [one if isinstance(one, dict) else json.loads(one) for one in found]
print(json.dumps([seconds, [one["data"][0]["embedding"] for one in found]]))
"""


def texts():
    """Ten texts, the longest of nearly 2,000 tokens."""
    page = PAGE.read_text("utf-8")
    return [
        "search_query: What is t-SNE?",
        "search_document: t-SNE is a dimensionality reduction algorithm by Laurens van der Maaten",
        "clustering: the quick brown fox",
        "classification: Das Wetter ist heute schön",
        "search_query: ",
        "search_document: def add(a, b):\n    return a + b",
        "A plain text without a prefix.",
        "search_document: naïve café — déjà vu, 東京 🙂",
        "search_document: " + page[:1800],
        "search_document: " + page[:6500],
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", default=sys.executable)
    arguments = parser.parse_args()
    path, given = hub.resolve("nomic-embed"), texts()
    with stretto.load(path, threads=2) as model:
        start = time.perf_counter()
        ours = np.concatenate([model.embed(text) for text in given])
        seconds = time.perf_counter() - start
        lengths = [len(model.tokenizer.encode(text)) for text in given]
    peer = subprocess.run(
        [arguments.peer, "-c", PEER], input=json.dumps([str(path), given]), capture_output=True, text=True
    )
    other_seconds, found = json.loads(peer.stdout.splitlines()[-1])
    theirs = np.array(found)
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    for n, cosine in zip(lengths, (ours * theirs).sum(axis=1), strict=True):
        print(f"{n:5} tokens  cosine {cosine:.7f}")
    print(f"{seconds:.2f} s, llama.cpp {other_seconds:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
