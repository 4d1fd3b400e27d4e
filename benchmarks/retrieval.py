"""Retrieval in this project's documents: nomic-embed beside MiniLM, at several sizes of vectors.

    python benchmarks/retrieval.py

The corpus are the sections of the pages under `docs/`, each with its page's title and cut at 400 characters;
a question is answered by a section of the page that is meant to answer it. The share of questions whose best
section is of that page, and whose first three have one; the mean reciprocal rank of the first such section.
"""

import re
import sys
import time
from pathlib import Path

import numpy as np

import stretto

DOCS = Path(__file__).parent.parent / "docs"
CHARACTERS = 400
QUESTIONS = {
    "How do I let the model call my own Python functions?": "how-to/tools.md",
    "make the answer valid JSON that follows a schema": "how-to/structured.md",
    "My process uses too much RAM": "how-to/limit-memory.md",
    "serve several people with one model at the same time": "how-to/several-users.md",
    "convert a model to fewer bits per weight": "how-to/quantize.md",
    "I come from Ollama, what changes?": "how-to/migrate-from-ollama.md",
    "replacement for vLLM's LLM class": "how-to/migrate-from-vllm.md",
    "port a script that uses AutoModelForCausalLM": "how-to/migrate-from-transformers.md",
    "port code written for Llama(model_path=...)": "how-to/migrate-from-llama-cpp-python.md",
    "unit tests that need no downloaded weights": "how-to/test-without-a-model.md",
    "write my own token sampling function": "how-to/custom-sampler.md",
    "change activations to push the style of answers": "how-to/steering.md",
    "measure tokens per second": "how-to/bench.md",
    "perplexity of a text and multiple choice accuracy": "how-to/evaluation.md",
    "LoRA weights on top of a base model": "how-to/adapters.md",
    "run many copies of the server behind a router": "how-to/replicas.md",
    "which model fits into my laptop": "how-to/choose-a-model.md",
    "turn speech into text": "how-to/tasks/transcribe.md",
    "find objects in a photograph": "how-to/tasks/detect.md",
    "extract printed text from a scanned page": "how-to/tasks/read.md",
    "remove the background of an image": "how-to/tasks/segment.md",
    "vectors for semantic search": "how-to/tasks/embed.md",
    "what kind of file is this": "how-to/tasks/classify-files.md",
    "word vectors without a neural network pass": "how-to/tasks/static-embeddings.md",
    "how does a small draft model make decoding faster": "explanation/drafts.md",
    "why is the prefix of a prompt not computed again": "explanation/cache.md",
    "threat model of the server": "explanation/security.md",
    "AVX-512 and AMX matrix kernels": "explanation/kernels.md",
    "several tokens at one position": "explanation/parallel-tokens.md",
    "accuracy of int8 arithmetic": "explanation/precision.md",
    "Prometheus counters of the server": "reference/metrics.md",
    "which exceptions are raised": "reference/errors.md",
    "keyboard shortcuts in the terminal chat": "reference/terminal.md",
    "list of HTTP routes": "reference/endpoints.md",
    "settings in a configuration file": "reference/configuration.md",
    "EBNF, Lark and regular expressions for output": "reference/grammars.md",
    "save the state of a conversation and restore it": "reference/sequences.md",
    "send pictures to a chat model": "tutorials/images.md",
    "first steps after installation": "tutorials/first-five-minutes.md",
    "ONNX operators that are supported": "reference/onnx.md",
}


def sections() -> list[tuple[str, str]]:
    """Pages and the texts of their sections."""
    found = []
    for path in sorted(DOCS.rglob("*.md")):
        title, *parts = re.split(r"^## ", path.read_text("utf-8"), flags=re.MULTILINE)
        head = title.splitlines()[0].lstrip("# ")
        name = str(path.relative_to(DOCS))
        found += [(name, f"{head}: {part}"[:CHARACTERS]) for part in (title, *parts)]
    return found


def main() -> int:
    corpus = sections()
    pages = [page for page, _ in corpus]
    assert set(QUESTIONS.values()) <= set(pages)
    print(f"{len(corpus)} sections, {len(QUESTIONS)} questions")
    for name, prefixes, sizes in (
        ("minilm", ("", ""), (None,)),
        ("nomic-embed", ("search_query: ", "search_document: "), (None, 256, 64)),
        ("nomic-embed", ("", ""), (None,)),
    ):
        with stretto.load(name, threads=2) as model:
            start = time.perf_counter()
            documents = model.embed([prefixes[1] + text for _, text in corpus])
            seconds = time.perf_counter() - start
            questions = model.embed([prefixes[0] + text for text in QUESTIONS])
        for size in sizes:
            cut = [vectors[:, :size] for vectors in (questions, documents)]
            a, b = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in cut)
            order = np.argsort(-(a @ b.T), axis=1)
            wanted = [
                next(i for i, at in enumerate(row) if pages[at] == page)
                for row, page in zip(order, QUESTIONS.values(), strict=True)
            ]
            ranks = np.array(wanted) + 1
            label = f"{name}{', with prefixes' if prefixes[0] else ''}, {size or b.shape[1]} numbers"
            shares = f"first {np.mean(ranks == 1):.1%}  three {np.mean(ranks <= 3):.1%}"
            print(f"{label:42} {shares}  mrr {np.mean(1 / ranks):.3f}  {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
