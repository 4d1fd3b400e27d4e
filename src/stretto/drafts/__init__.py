"""Speculative decoding: draft tokens, verified in one forward pass. More tokens a pass, the same text.

    llm.generate(prompt, draft="lookup")                        # n-grams of the text so far
    llm.generate(prompt, draft="suffix")                        # its longest repeated end, cached texts too
    llm.generate(prompt, draft="auto")                          # whichever pays
    llm.generate(prompt, draft="mtp")                           # the model's own layer for drafts
    llm.generate(prompt, draft="path/to/head")                  # an EAGLE-3 head
    llm.generate(prompt, draft=stretto.DraftModel(small))       # a smaller model
    llm.generate(prompt, draft="lookup", draft_branches=3)      # a tree of three continuations

Propose, verify, roll back: a `Proposer` drafts tokens, the engine computes all of them in one pass and
samples from each row as in plain decoding; the draft is accepted up to the first token that differs, and the
cells after it are removed. A rejected token costs time and changes nothing. A draft of several branches is a
`DraftTree`: that one pass computes all of them, and sampling goes down the branch that it happens to follow.
"""

from stretto.drafts.base import BranchProposer, CacheDrafter, Drafter, DraftTree, Guesser, Proposer
from stretto.drafts.lookup import PromptLookup, SuffixLookup
from stretto.drafts.model import AutoDrafts, DraftModel, HeadDrafts, NextTokenDrafts

__all__ = [
    "AutoDrafts",
    "BranchProposer",
    "CacheDrafter",
    "DraftModel",
    "DraftTree",
    "Drafter",
    "Guesser",
    "HeadDrafts",
    "NextTokenDrafts",
    "PromptLookup",
    "Proposer",
    "SuffixLookup",
]
