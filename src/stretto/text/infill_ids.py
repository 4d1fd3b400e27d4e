"""The tokens of a vocabulary that mark the parts of a fill-in-the-middle prompt; read by `vocabulary`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The keys of a file, with the names of older ones, and the texts of the tokens where no key is there.
_KEYS = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "repository": ("fim_rep_token_id",),
    "file": ("fim_sep_token_id",),
}
_TEXTS = {
    "prefix": "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> "
    "<|prefix|> [PREFIX]",
    "suffix": "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> "
    "<|suffix|> [SUFFIX]",
    "middle": "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> "
    "<|middle|>",
    "repository": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "file": "<|file_sep|>",
}
FILL_TEXTS = frozenset(" ".join(_TEXTS[role] for role in ("prefix", "suffix", "middle")).split())
INFILL_KEYS = tuple(key for keys in _KEYS.values() for key in keys)


@dataclass(frozen=True)
class InfillIds:
    """The ids of the markers. Without `middle` the suffix comes first, and the prefix is continued."""

    prefix: int
    suffix: int
    middle: int | None
    repository: int | None = None  # before the name of a repository
    file: int | None = None  # before the name of another file


def find_infill(ids: Mapping[str, int], named: Mapping[str, int]) -> InfillIds | None:
    """The markers by the ids under a file's keys, else by their texts; None if there are none."""
    found = {role: _find(role, ids, named) for role in _KEYS}
    prefix, suffix, middle = found["prefix"], found["suffix"], found["middle"]
    if prefix is None or suffix is None or (middle is None and "[SUFFIX]" not in ids):
        return None
    return InfillIds(prefix, suffix, middle, found["repository"], found["file"])


def _find(role: str, ids: Mapping[str, int], named: Mapping[str, int]) -> int | None:
    for key in _KEYS[role]:
        if key in named:
            return named[key]
    return next((ids[text] for text in _TEXTS[role].split() if text in ids), None)
