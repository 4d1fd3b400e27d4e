"""Sort texts into classes: the answer is one of them, and the model tells how sure it is of each."""

from math import exp

import stretto

LABELS = ["praise", "complaint", "neither"]
REVIEWS = ["I love this lamp, it is wonderful!", "It broke after a day. Never again.", "It came on Monday."]
PROMPT = """\
Review: The chair is great. I am so happy! This is praise.
Review: Awful quality, do not buy this. This is complaint.
Review: The box is brown. This is neither.
Review: {} This is"""

with stretto.load("smollm2") as llm:
    grammar = stretto.Grammar.choices([f" {label}" for label in LABELS])
    prompts = [PROMPT.format(review) for review in REVIEWS]
    results = llm.generate(prompts, grammar=grammar, temperature=0, logprobs=20)
    for review, result in zip(REVIEWS, results, strict=True):
        # The labels differ in their first letter, so the first token decides between them.
        shares = dict.fromkeys(LABELS, 0.0)
        for one in result.logprobs[0].top:
            fits = [label for label in LABELS if f" {label}".startswith(llm.tokenizer.decode([one.token]))]
            for label in fits:
                shares[label] += exp(one.logprob) / len(fits)
        shown = ", ".join(f"{label} {share:.0%}" for label, share in shares.items())
        print(f"{result.text.strip():>9} ({shown}): {review}")
