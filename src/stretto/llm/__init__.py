"""The facade: a loaded model and everything one does with it.

loading.py       `stretto.load`                   prompts.py     texts, images, conversations as token ids
model.py         `LLM`                            making.py      options and prompts as requests
texts.py         its half that makes texts
"""

from stretto.llm.loading import load
from stretto.llm.model import LLM
from stretto.llm.prompts import Parts

__all__ = ["LLM", "Parts", "load"]
