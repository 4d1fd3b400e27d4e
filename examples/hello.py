"""Hello: load a model, let it continue a text, and see what comes back with the text."""

import stretto

with stretto.load("smollm2") as llm:
    result = llm.generate("The capital of France is", max_tokens=8, temperature=0)

print(result.text)
print(f"{result.usage.completion_tokens} tokens, ended by {result.finish_reason!r}")
print(f"first token after {result.timings.first_token:.2f} s")
print(f"then {result.timings.tokens_per_second:.1f} tokens a second")
