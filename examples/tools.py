"""A loop with tools: the model calls a function, gets its answer, and says what it found.

SmolLM2's chat template knows no tools, so they are described in a message and calls come as JSON. For a model
whose template does, the call is `llm.chat(messages, tools=TOOLS).tool_calls`, with `call.answer(…)` for the
message that goes back.
"""

import stretto
from stretto.tools import call_grammar, read_call

PRICES = {"lamp": 30, "chair": 45, "table": 120}
TOOLS = [
    {
        "name": "price",
        "description": "The price of a thing in the shop.",
        "parameters": {
            "type": "object",
            "properties": {"thing": {"enum": list(PRICES)}},
            "required": ["thing"],
        },
    },
    {
        "name": "multiply",
        "description": "Multiplies two numbers.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "integer", "minimum": 0, "maximum": 10000} for name in "ab"},
            "required": ["a", "b"],
        },
    },
]
FUNCTIONS = {"price": lambda thing: PRICES[thing], "multiply": lambda a, b: a * b}

with stretto.load("smollm2") as llm:
    calls = [
        {"role": "system", "content": "You call a function for each question, as JSON."},
        {"role": "user", "content": "What is 2 times 3?"},
        {"role": "assistant", "content": '{"name": "multiply", "arguments": {"a": 2, "b": 3}}'},
        {"role": "user", "content": "What does the lamp cost?"},
        {"role": "assistant", "content": '{"name": "price", "arguments": {"thing": "lamp"}}'},
    ]
    answers = [
        {"role": "user", "content": "What is 2 times 3? The result is 6."},
        {"role": "assistant", "content": "2 times 3 is 6."},
        {"role": "user", "content": "What does the lamp cost? The result is 30."},
        {"role": "assistant", "content": "The lamp costs 30."},
    ]
    for question in ("What does the chair cost?", "What is 12 times 7?"):
        asked = [*calls, {"role": "user", "content": question}]
        call = read_call(llm.chat(asked, grammar=call_grammar(TOOLS), temperature=0).text)
        value = FUNCTIONS[call.name](**call.arguments)
        print(f"{call.name}({call.arguments}) is {value}")
        told = [*answers, {"role": "user", "content": f"{question} The result is {value}."}]
        print(" ", llm.chat(told, temperature=0, max_tokens=24).text)
