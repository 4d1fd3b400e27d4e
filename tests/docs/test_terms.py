"""The index of terms: the words that readers search for, in order."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+?) \| (.+?) \|$", re.MULTILINE)
SEARCHED = (
    *("KV cache", "speculative decoding", "prefix cache", "paged attention", "continuous batching", "LoRA"),
    *("constrained decoding", "prefill", "decode", "quantisation", "chat template", "beam search", "RoPE"),
    *("logits", "hook", "GGUF", "perplexity", "parallel tokens", "chunked prefill", "preempt", "evict"),
    *("temperature", "top-p", "tokenizer", "streaming", "greedy decoding", "throughput"),
    *("embedding", "importance matrix", "flash attention", "logits processor", "structured output", "MoE"),
)


def rows():
    return ROW.findall((DOCS / "glossary.md").read_text("utf-8"))


def test_the_words_of_the_field_are_there():
    terms = {part.strip() for term, _, _ in rows() for part in re.split(r", |\(|\)", term)}
    assert [word for word in SEARCHED if word not in terms] == []


def test_terms_are_in_alphabetical_order():
    terms = [term.lower() for term, _, _ in rows()]
    assert terms == sorted(terms)


def test_every_term_leads_to_a_page():
    assert [term for term, _, page in rows() if not re.fullmatch(r"\[.+?\]\(.+?\)", page)] == []
