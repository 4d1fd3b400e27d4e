"""asyncio: three conversations at once; one is left early, and its cells are free at once."""

import asyncio

import stretto

SYSTEM = {"role": "system", "content": "You answer in one short sentence."}
QUESTIONS = ("What is the capital of France?", "What is the capital of Italy?", "Count to a hundred.")


async def answer(llm: stretto.LLM, question: str) -> str:
    """The first sentence of the answer, or its first sixteen tokens."""
    prompt = llm.chat_prompt([SYSTEM, {"role": "user", "content": question}])
    text = ""
    async with llm.astream(prompt, max_tokens=16, temperature=0) as stream:
        async for token in stream:
            text += token.text
            if text.endswith((".", "!", "?")):
                break  # leaving cancels it
    return text


async def main() -> None:
    """Ask everything at once."""
    with stretto.load("smollm2") as llm:
        for text in await asyncio.gather(*(answer(llm, question) for question in QUESTIONS)):
            print("-", text)


asyncio.run(main())
