"""Parallel tokens: keep every probable token, several at one position, and see who looks at whom."""

import stretto

with stretto.load("smollm2") as llm:
    for mode in ("isolated", "visible"):
        run = llm.parallel("My favourite colour is", threshold=0.15, mode=mode, max_tokens=16, attention=True)
        print(f"{mode}: {run.brackets!r}")
        print(f"  {run.parallel_share:.0%} of the steps are parallel, the best path is {run.text!r}")
        step = next(step for step in run.steps if step.width > 1)
        own = step.attention.cells.tolist().index(step.best.cell)
        others = [step.attention.cells.tolist().index(member.cell) for member in step.members[1:]]
        seen = step.attention.weights.mean(axis=(0, 1))[0]  # of the best member: float32[cells]
        print(f"  of {step.brackets} the first gives {seen[own]:.3f} to itself", end=", ")
        print(f"{seen[others].sum():.3f} to others")
