"""Guesses of how a text goes on, which one forward pass then checks: more tokens a pass, the same text.

    llm.generate(prompt, draft="lookup")                        # what follows was said before
    llm.generate(prompt, draft=stretto.DraftModel(small))       # a smaller model guesses

Propose, verify, roll back: a `Drafter` proposes tokens, the engine computes all of them in one pass and
samples from each row as if it stood alone; the first that differs ends the guess, and the cells behind it are
removed. A wrong guess costs time and changes nothing.
"""

from stretto.drafts.base import Drafter, Guesser
from stretto.drafts.lookup import PromptLookup
from stretto.drafts.model import DraftModel

__all__ = ["DraftModel", "Drafter", "Guesser", "PromptLookup"]
