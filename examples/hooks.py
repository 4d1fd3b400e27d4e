"""Ready-made hooks: forbid a token, watch the model choose, guide it away from another prompt."""

import stretto
from stretto.hooks import Ban, Guidance, Watcher

with stretto.load("smollm2") as llm:
    ban, watcher = Ban(llm.tokenizer.encode(" Paris")), Watcher(top=2)
    result = llm.generate("The capital of France is", max_tokens=6, temperature=0, hooks=[ban, watcher])
    print("without Paris:", repr(result.text))
    for record in watcher.records:
        top = (f"{llm.tokenizer.decode([best.token])!r} {best.probability:.0%}" for best in record.top)
        print(f"{record.entropy:.2f} nats:", ", ".join(top))

    def prompt(role: str) -> list[int]:
        """The same question to somebody else."""
        question = "What do you think of the sea? Answer in one sentence."
        system = {"role": "system", "content": f"You are {role}."}
        return llm.chat_prompt([system, {"role": "user", "content": question}])

    for scale in (1, 2):  # 1 changes nothing; above it, less of the clerk and more of the pirate
        with llm.sequence(prompt("an office clerk")) as clerk:
            hooks = [Guidance(clerk, scale)]
            result = llm.generate(prompt("a pirate"), max_tokens=40, temperature=0, hooks=hooks)
        print(f"guided by {scale}:", repr(result.text))
