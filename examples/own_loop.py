"""Your own loop: move several sequences on together, one forward pass a step, and end each when you like."""

import stretto

PROMPTS = ("The sun is", "A cat can", "Two plus two is")

with stretto.load("smollm2") as llm:
    sequences = [llm.sequence(prompt, seed=3) for prompt in PROMPTS]
    running = list(sequences)
    for _ in range(12):
        steps = llm.step(running, temperature=0.7)
        # A sequence is done at an end token, or, as we want it here, at the end of its sentence.
        running = [
            sequence
            for sequence, step in zip(running, steps, strict=True)
            if not step.is_end and "." not in step.text
        ]
        if not running:
            break

    for sequence in sequences:
        print(sequence.text)
