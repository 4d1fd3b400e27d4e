"""Sampling: one prompt, four strategies, side by side. The same seed always gives the same text."""

import stretto

STRATEGIES = {
    "greedy": {"temperature": 0},
    "careful": {"temperature": 0.5, "top_p": 0.8},
    "default": {},
    "wild": {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.02},
}

with stretto.load("smollm2") as llm:
    for name, options in STRATEGIES.items():
        result = llm.generate("The best thing about the sea is", max_tokens=12, seed=1, **options)
        print(f"{name:>7}: …{result.text!r}")
