"""Prompt lookup: a text that repeats itself comes in fewer forward passes, and stays the same."""

import stretto

PROMPT = """Shopping list, first copy: apples, brown bread, two pounds of butter, a dozen eggs, green tea.
Shopping list, second copy: apples, brown bread,"""

with stretto.load("smollm2") as llm:
    for draft in (None, "lookup"):
        before = llm.metrics.steps
        result = llm.generate(PROMPT, max_tokens=24, temperature=0, draft=draft)
        print(f"{len(result.tokens)} tokens in {llm.metrics.steps - before} steps:{result.text!r}")
