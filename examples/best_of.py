"""Several texts from one prompt, which is read once: n samples, the best of eight, beam search."""

import stretto

PROMPT = "The best thing about the sea is"

with stretto.load("smollm2") as llm:
    for result in llm.generate(PROMPT, n=3, seed=1, max_tokens=10):
        print(f" sample: …{result.text!r}")

    best = llm.generate(PROMPT, best_of=8, seed=1, max_tokens=10)
    print(f"best of: …{best.text!r}, {best.logprob:.2f} a token")

    for result in llm.generate(PROMPT, n=2, beams=4, max_tokens=10):
        print(f"   beam: …{result.text!r}, {result.logprob:.2f} a token")
