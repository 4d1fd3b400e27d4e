"""DSPy: a signature that is answered."""

import sys

import dspy

lm = dspy.LM("openai/agent", api_base=f"{sys.argv[1]}/v1", api_key="none", cache=False)
dspy.configure(lm=lm)
assert dspy.Predict("question -> answer")(question="Is it cold?").answer == "It is -3 degrees in Oslo."
