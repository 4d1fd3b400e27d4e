"""Extract JSON from a text: the answer fits a schema, whatever the model makes of the text."""

import json

import stretto

TEXTS = [
    "Anna Berg bought 3 lamps in Oslo. Her number is 555-0142.",
    "In Rome, Marco Rossi ordered 12 chairs. Call him at 555-0199!",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "city": {"type": "string", "maxLength": 20},
        "thing": {"enum": ["lamp", "chair", "table"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 1000},
        "phone": {"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"},
    },
    "required": ["name", "city", "thing", "count", "phone"],
    "additionalProperties": False,
}
EXAMPLE = (
    "Text: Jim Hall (555-0100) wants 2 tables in Paris.\n"
    'JSON: {"name": "Jim Hall", "city": "Paris", "thing": "table", "count": 2, "phone": "555-0100"}\n'
)

with stretto.load("smollm2") as llm:
    prompts = [f"{EXAMPLE}Text: {text}\nJSON: " for text in TEXTS]
    results = llm.generate(prompts, grammar=SCHEMA, temperature=0)
    for result in results:
        print(json.loads(result.text))
    longest = max(len(result.tokens) for result in results)
    print(f"up to {longest} tokens in {llm.metrics.steps} steps: what has to come is not asked for")
