"""OpenAI's API, with the fields of vLLM and llama-server: completions, chats, responses, batches, speech."""
