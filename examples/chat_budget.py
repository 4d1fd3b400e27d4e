"""Chat with a budget: the prompt has at most so many tokens, and the oldest turns are forgotten first."""

import stretto

BUDGET, ANSWER = 72, 24  # tokens of a prompt, and of an answer
QUESTIONS = ("What is the capital of France?", "And of Italy?", "And of Spain?", "And of Portugal?")


def trimmed(llm: stretto.LLM, messages: list[dict]) -> list[dict]:
    """The system message and the newest turns, as many as the budget has room for."""
    system, turns = messages[:1], messages[1:]
    while len(turns) > 1 and len(llm.chat_prompt(system + turns)) > BUDGET:
        turns = turns[2:]  # a question and its answer
    return system + turns


with stretto.load("smollm2", cells=BUDGET + ANSWER) as llm:
    messages = [{"role": "system", "content": "You answer in one short sentence."}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        shown = trimmed(llm, messages)
        answer = llm.chat(shown, max_tokens=ANSWER, temperature=0)
        messages.append(answer.message)
        forgotten, used = len(messages) - 1 - len(shown), answer.usage.prompt_tokens
        print(f"{question} {answer.text} ({used} of {BUDGET} tokens, {forgotten} messages forgotten)")
