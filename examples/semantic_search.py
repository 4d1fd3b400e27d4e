"""Search by meaning: sentences as vectors, the nearest ones to a question."""

import stretto

SENTENCES = [
    "The kettle boils at a hundred degrees.",
    "A fugue is built on one short theme.",
    "Trains to the coast leave every hour.",
    "Whales are mammals, not fish.",
]

with stretto.load("minilm") as model:
    for item in model.rerank("Which animals live in the sea?", SENTENCES, top=2):
        print(f"{item.score:.2f}  {item.text}")
