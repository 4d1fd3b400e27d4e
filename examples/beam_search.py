"""Beam search by hand, out of forks: the same hypothesis as `generate(beams=4)` finds."""

import numpy as np

import stretto

WIDTH, LENGTH = 4, 8
PROMPT = "The best thing about the sea is"

with stretto.load("smollm2") as llm:
    beams = [(0.0, llm.sequence(PROMPT))]  # log-probability, sequence
    n_prompt = len(beams[0][1])
    for _ in range(LENGTH):
        rows = llm.logits([sequence for _, sequence in beams])  # float32[n, n_vocab], one forward pass
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        totals = rows + np.array([[score] for score, _ in beams], np.float32)
        chosen = []
        for place in np.argsort(totals, axis=None)[::-1][:WIDTH].tolist():
            beam, token = divmod(place, totals.shape[1])
            child = beams[beam][1].fork()
            child.append(token)
            chosen.append((float(totals.flat[place]), child))
        beams = chosen  # the others are dropped, and their cells parked

    for score, sequence in beams:
        print(f"{score:+.2f} {llm.tokenizer.decode(sequence.tokens[n_prompt:])!r}")
    print("generate:", repr(llm.generate(PROMPT, beams=WIDTH, max_tokens=LENGTH).text))
