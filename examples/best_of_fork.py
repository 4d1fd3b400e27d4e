"""Best of n by hand: fork a prompt, sample all forks in the same passes, keep the most probable one."""

import numpy as np

import stretto

N, LENGTH = 8, 12

with stretto.load("smollm2") as llm:
    prompt = llm.sequence("The best thing about the sea is")
    forks = [prompt.fork(seed=seed) for seed in range(N)]  # share the prompt's cells
    totals, lengths, running = np.zeros(N), np.zeros(N), list(range(N))
    while running and lengths.max() < LENGTH:
        steps = llm.step([forks[i] for i in running], temperature=1.0)  # one forward pass for all
        for i, step in zip(running, steps, strict=True):
            totals[i] += step.logprob
            lengths[i] += 1
        running = [i for i, step in zip(running, steps, strict=True) if not step.is_end]

    means = totals / lengths  # a token's log-probability, on average: lengths differ
    for i in np.argsort(means)[::-1].tolist():
        print(f"{means[i]:+.2f} {forks[i].text!r}")
    print("best:", repr(forks[int(means.argmax())].text))
