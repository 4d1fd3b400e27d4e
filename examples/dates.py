"""Text in the shape of a regular expression: dates, whatever the temperature."""

import datetime

import stretto

DATE = stretto.Grammar.regex(r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])")

with stretto.load("smollm2") as llm:
    prompt = "The first moon landing was on 1969-07-20. The Berlin wall fell on "
    for temperature in (0, 1, 2):
        result = llm.generate(prompt, grammar=DATE, temperature=temperature, top_k=0, min_p=0, seed=1)
        date = datetime.date.fromisoformat(result.text)
        print(f"temperature {temperature}: {date:%d %B %Y}")
