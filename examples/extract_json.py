"""Extract JSON from texts: the answer fits a schema, whatever the model makes of them."""

import json

import stretto

TEXTS = ["Anna Berg bought 3 lamps in Oslo.", "In Rome, Marco Rossi ordered 12 chairs, all of them red."]
EXAMPLE = (
    'Text: Jim Hall wants 2 tables in Paris.\nJSON: {"name": "Jim Hall", "thing": "table", "count": 2}\n'
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "thing": {"enum": ["lamp", "chair", "table"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 1000},
    },
    "required": ["name", "thing", "count"],
    "additionalProperties": False,
}

with stretto.load("smollm2") as llm:
    prompts = [f"{EXAMPLE}Text: {text}\nJSON: " for text in TEXTS]
    results = llm.generate(prompts, grammar=SCHEMA, temperature=0)
    for result in results:
        print(json.loads(result.text))
    longest = max(len(result.tokens) for result in results)
    print(f"up to {longest} tokens in {llm.metrics.steps} steps: forced tokens need no pass of their own")
