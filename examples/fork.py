"""Fork: read a text once, then continue it in several ways. Forks share their past and cost nothing."""

import stretto

with stretto.load("smollm2") as llm:
    story = llm.sequence("In the old lighthouse there lived a")
    branches = [story.fork(seed=seed) for seed in range(4)]
    print(f"{len(story)} tokens in 5 sequences take {llm.cells.n_used} cells")

    for _ in range(8):
        llm.step(branches, temperature=1.0)
    for branch in branches:
        print("-", branch.text)
    print(f"after 4 × 8 more tokens there are {llm.cells.n_used} cells")
