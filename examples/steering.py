"""Steer a model by a direction in its residual stream: from sad sentences to glad ones."""

import numpy as np

import stretto

LAYER = 15
GLAD = ["I love this song. It makes me happy.", "What a joy! I feel wonderful.", "It was great. I smiled."]
SAD = ["I hate this song. It makes me sad.", "What a pain! I feel terrible.", "It was awful. I cried."]

with stretto.load("smollm2") as llm:

    def mean(texts):
        """What the layer makes of the last tokens, on average."""
        return np.mean([llm.activations(text, [LAYER])[0, -1] for text in texts], axis=0)

    llm.load_steering("glad", {LAYER: mean(GLAD) - mean(SAD)})
    for scale in (-2.0, 0.0, 2.0):
        adapter = {"glad": scale} if scale else None
        text = llm.generate("Today the news is", adapter=adapter, max_tokens=12, temperature=0).text
        print(f"{scale:+.0f}: {text!r}")
