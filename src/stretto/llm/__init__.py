"""The facade: a loaded model and everything one does with it.

model.py         `LLM`                            prompts.py     texts, images, conversations as token ids
texts.py         its half that makes texts        making.py      options and prompts as requests
"""

from stretto.llm.model import LLM
from stretto.llm.prompts import Parts

__all__ = ["LLM", "Parts"]
