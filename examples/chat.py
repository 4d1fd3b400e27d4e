"""Chat: a conversation is a list of messages; append the answer and it goes on."""

import stretto

QUESTIONS = ("What is the capital of France?", "And of Italy?")

with stretto.load("smollm2") as llm:
    messages = [{"role": "system", "content": "You answer in one short sentence."}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = llm.chat(messages, max_tokens=16, temperature=0)
        messages.append({"role": "assistant", "content": answer.text})

for message in messages:
    print(f"{message['role']:>9}: {message['content']}")
