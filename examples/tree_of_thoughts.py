"""Tree of thoughts: fork several continuations, score them, keep the best, and go on from there."""

import numpy as np

import stretto

WIDTH, BRANCHES, DEPTH, LENGTH = 2, 3, 3, 8  # thoughts kept, tried from each, steps, tokens of a thought

with stretto.load("smollm2") as llm:

    def verdict(thought: stretto.Sequence) -> float:
        """How much more the model would go on with "yes" than with "no" when asked about it."""
        with thought.fork() as judge:
            judge.append(" … Is this a good story so far? Answer yes or no:")
            yes, no = (judge.logits[llm.tokenizer.encode(word)[0]] for word in (" yes", " no"))
            return float(yes - no)

    kept = [llm.sequence("The old sailor opened the box and", seed=1)]
    for depth in range(DEPTH):
        thoughts = [best.fork(seed=10 * depth + i) for best in kept for i in range(BRANCHES)]
        for _ in range(LENGTH):
            llm.step(thoughts, temperature=0.9)  # one forward pass for all of them
        scores = [verdict(thought) for thought in thoughts]
        order = np.argsort(scores)[::-1][:WIDTH]
        print(f"{len(thoughts)} thoughts, the best has {max(scores):+.2f}, {llm.cells.n_used} cells")
        kept = [thoughts[i] for i in order.tolist()]  # the others are dropped, and their cells parked
    print(kept[0].text)
