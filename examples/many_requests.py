"""Many requests: streams with options of their own run in the same steps, and none disturbs another."""

import stretto

REQUESTS = {
    "greedy": ("The sea is", {"temperature": 0}),
    "seeded": ("The sea is", {"seed": 3}),
    "stopped": ("One, two, three, four,", {"temperature": 0, "stop": "seven"}),
    "urgent": ("The capital of Italy is", {"temperature": 0, "priority": 5}),
}

limits = stretto.Limits(max_running=16, max_queue=100, max_step_ms=40)
with stretto.load("smollm2", limits=limits) as llm:
    alone = llm.generate("The sea is", max_tokens=16, seed=3)
    streams = {
        name: llm.stream(prompt, max_tokens=16, **options) for name, (prompt, options) in REQUESTS.items()
    }
    for name, stream in streams.items():  # whoever waits for a token steps the engine for all
        print(f"{name:>8}: {stream.result.text!r}, ended by {stream.result.finish_reason!r}")

    print("the same as alone:", streams["seeded"].result.tokens == alone.tokens)
    metrics = llm.metrics
    print(f"{metrics.added} requests in {metrics.steps} steps")
