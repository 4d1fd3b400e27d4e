"""Streaming: show each token as soon as it is there, stop when you have read enough."""

import stretto

with stretto.load("smollm2") as llm:
    stream = llm.stream("Once upon a time, in a village by the sea,", max_tokens=200, seed=7)
    for n_tokens, token in enumerate(stream, start=1):
        print(token.text, end="", flush=True)
        if n_tokens == 16:
            stream.cancel()  # frees what it held; the text so far stays

    print(f"\n{len(stream.result.tokens)} tokens, ended by {stream.result.finish_reason!r}")
