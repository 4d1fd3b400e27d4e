"""What a direction in the residual stream shifts, beside random vectors of the same length.

    python benchmarks/steering.py

The direction is the difference between the mean activations of glad and sad sentences. On 60 other prompts
the score is how much likelier glad words are than sad ones as the next word. The same is done with random
vectors of the same length: what the direction shifts beyond them has a 95 % confidence interval.
"""

import numpy as np

import stretto

LAYER, SCALE = 15, 1.5
TOPICS = ["the food", "my job", "this town", "the weather", "her song", "our team", "the film", "his talk"]
GLAD = ["I love {}. It makes me so happy.", "What a joy {} is! I feel wonderful.", "{} was great. I smiled."]
SAD = ["I hate {}. It makes me so sad.", "What a pain {} is! I feel terrible.", "{} was awful. I cried."]
GLAD_WORDS = [" good", " great", " wonderful", " happy", " beautiful", " excellent", " amazing", " nice"]
SAD_WORDS = [" bad", " terrible", " awful", " sad", " ugly", " horrible", " poor", " wrong"]
THINGS = [
    "book",
    "hotel",
    "garden",
    "phone",
    "lesson",
    "train",
    "market",
    "cake",
    "dog",
    "house",
    "game",
    "pen",
]
STARTS = ["The {} was", "I think the {} is", "Everyone says the {} is", "To me this {} feels", "My new {} is"]
HELD_OUT = [start.format(thing) for thing in THINGS for start in STARTS]


def direction(llm):
    """float32[n_embd]: from sad to glad sentences, at the end of a layer, the mean over topics."""

    def mean(templates):
        texts = [template.format(topic) for template in templates for topic in TOPICS]
        return np.mean([llm.activations(text, [LAYER])[0, -1] for text in texts], axis=0)

    return mean(GLAD) - mean(SAD)


def scores(llm, adapter=None):
    """float64[prompts]: log odds of glad words against sad ones as the next word."""
    ids = [[llm.tokenizer.encode(word)[0] for word in words] for words in (GLAD_WORDS, SAD_WORDS)]
    sequences = [llm.sequence(prompt, adapter=adapter) for prompt in HELD_OUT]
    rows = llm.logits(sequences).astype(np.float64)
    for sequence in sequences:
        sequence.close()
    glad, sad = (np.logaddexp.reduce(rows[:, words], axis=1) for words in ids)
    return glad - sad


def main():
    """Print what the direction and random vectors shift."""
    rng = np.random.default_rng(0)
    with stretto.load("smollm2") as llm:
        glad = direction(llm)
        llm.load_steering("glad", {LAYER: glad})
        before, steered = scores(llm), scores(llm, {"glad": SCALE})
        chance = []
        for number in range(4):
            noise = rng.standard_normal(len(glad))
            noise *= np.linalg.norm(glad) / np.linalg.norm(noise)
            llm.load_steering(f"random-{number}", {LAYER: noise})
            chance.append(scores(llm, {f"random-{number}": SCALE}) - before)
    gain = steered - before - np.mean(chance, axis=0)
    means = [rng.choice(gain, len(gain)).mean() for _ in range(2000)]
    low, high = np.percentile(means, [2.5, 97.5])
    print(f"{len(HELD_OUT)} prompts, layer {LAYER}")
    print(f"the direction shifts the log odds by {np.mean(steered - before):+.2f}")
    print(f"random vectors of its length by {np.mean(chance):+.2f}")
    print(f"beyond them: {gain.mean():+.2f} (95 % interval {low:+.2f} to {high:+.2f})")


if __name__ == "__main__":
    main()
