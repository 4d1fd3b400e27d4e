"""LiteLLM: OpenAI's, Anthropic's and Ollama's protocols, streams, tools, embeddings."""

import json
import sys

import litellm

url = sys.argv[1]
ROUTES = {"openai/agent": f"{url}/v1", "anthropic/agent": url, "ollama_chat/agent": url}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How cold it is.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
ASKED = [{"role": "user", "content": "Is it cold in Oslo?"}]

for model, base in ROUTES.items():
    options = {"model": model, "api_base": base, "api_key": "none", "max_tokens": 200}
    answer = litellm.completion(messages=ASKED, **options)
    assert answer.choices[0].message.content == "It is -3 degrees in Oslo.", answer
    assert answer.usage.completion_tokens > 0
    stream = litellm.completion(messages=ASKED, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "It is -3 degrees in Oslo."
    first = litellm.completion(messages=ASKED, tools=[WEATHER], **options).choices[0].message
    (call,) = first.tool_calls
    assert json.loads(call.function.arguments) == {"town": "Oslo"}, call
    result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "-3"}
    second = litellm.completion(messages=[*ASKED, first, result], tools=[WEATHER], **options)
    assert second.choices[0].message.content == "It is -3 degrees in Oslo.", second
    print(model, "ok")

made = litellm.responses(
    model="openai/agent", input="Is it cold in Oslo?", api_base=f"{url}/v1", api_key="none"
)
assert made.output[0].content[0].text == "It is -3 degrees in Oslo.", made
found = litellm.embedding(
    model="openai/smollm2", input=["a cat", "a dog"], api_base=f"{url}/v1", api_key="none"
)
assert len(found.data) == 2
