"""A shared system prompt: pin it once, and every question that begins with it starts from there."""

import stretto

SYSTEM = (
    "You are the guide of a small museum of the sea. Visitors ask you about ships, lighthouses and storms. "
    "You answer kindly, in one short sentence, and you never talk about anything else. If you do not know an "
    "answer, you say so and send the visitor to the library on the second floor."
)
QUESTIONS = ("What is a lighthouse for?", "Who steers a ship?", "Which winds blow here?")

with stretto.load("smollm2") as llm:
    system = {"role": "system", "content": SYSTEM}
    with llm.sequence(llm.chat_prompt([system], add_generation_prompt=False)) as prefix:
        pin = llm.cache.pin(prefix)  # computed now, and never evicted
    print(f"{pin.n_tokens} tokens are pinned")

    for question in QUESTIONS:
        answer = llm.chat([system, {"role": "user", "content": question}], max_tokens=20, temperature=0)
        usage = answer.usage
        print(f"{question} {answer.text!r}")
        print(f"  {usage.cached_tokens} of {usage.prompt_tokens} tokens were there already")

    pin.release()
    print(f"{llm.cache.stats().tokens_saved} tokens were not computed again")
