"""A loop with tools and a prompt of its own: calls come as JSON (see docs/how-to/tools.md)."""

import stretto
from stretto.tools import call_grammar, read_call

PRICES = {"lamp": 30, "chair": 45, "table": 120}
FUNCTIONS = {"price": lambda thing: PRICES[thing], "multiply": lambda a, b: a * b}
PARAMETERS = {
    "price": {"thing": {"enum": list(PRICES)}},
    "multiply": {name: {"type": "integer", "minimum": 0, "maximum": 10000} for name in "ab"},
}
TOOLS = [
    {"name": name, "parameters": {"type": "object", "properties": found, "required": list(found)}}
    for name, found in PARAMETERS.items()
]
CALLS = """Call a function for each question.
What is 2 times 3? {"name": "multiply", "arguments": {"a": 2, "b": 3}}
What does the lamp cost? {"name": "price", "arguments": {"thing": "lamp"}}
"""
ANSWERS = "What is 2 times 3? (6) It is 6.\nWhat does the lamp cost? (30) It costs 30.\n"

with stretto.load("smollm2") as llm:
    for question in ("What does the chair cost?", "What is 12 times 7?"):
        said = llm.generate(f"{CALLS}{question} ", grammar=call_grammar(TOOLS), temperature=0)
        call = read_call(said.text)
        value = FUNCTIONS[call.name](**call.arguments)
        answer = llm.generate(f"{ANSWERS}{question} ({value})", temperature=0, stop="\n")
        print(f"{call.name}({call.arguments}) is {value}:{answer.text}")
