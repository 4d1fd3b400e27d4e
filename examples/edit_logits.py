"""Edited logits: look at what the model wants to say next, forbid it, and let it go on."""

import numpy as np

import stretto

llm = stretto.load("smollm2")

sequence = llm.sequence("The capital of France is")
best = np.argsort(sequence.logits)[::-1][:3]
print("it would say:", [llm.tokenizer.decode([token]) for token in best.tolist()])

sequence.logits[best[0]] = -np.inf  # a writable view: what you change is what is sampled
for _ in range(8):
    if sequence.step(temperature=0).is_end:
        break
print("instead:", repr(sequence.text))

with_e = [token for token in range(llm.tokenizer.n_vocab) if "e" in llm.tokenizer.piece(token).lower()]


def no_e(logits: np.ndarray, tokens: list[int]) -> None:
    """The same for a whole generation: a hook gets the logits before every token."""
    logits[with_e] = -np.inf


result = llm.generate("My dog is", max_tokens=10, temperature=0, hooks=[no_e])
print("without an e:", repr(result.text))
llm.close()
