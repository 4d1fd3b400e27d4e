"""Rollouts for TRL's GRPO trainer, by the weights of each step"""

import stretto


def rollouts(llm):
    """One completion for each prompt, with the log-probabilities that it was drawn with."""

    def sample(prompts, trainer):
        args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
        llm.update_weights(model.state_dict(), version=trainer.state.global_step)
        chain = stretto.Options(temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, min_p=0)
        chain |= {"max_tokens": args.max_completion_length, "logprobs": 1, "sampled_logprobs": True}
        ids = [llm.tokenizer.encode(one) if isinstance(one, str) else llm.chat_prompt(one) for one in prompts]
        found = llm.generate(ids, chain)
        texts = [one.tokens + [one.stop_reason] * (one.finish_reason == "stop") for one in found]
        logprobs = [[token.logprob for token in one.logprobs] for one in found]
        return {"prompt_ids": ids, "completion_ids": texts, "logprobs": logprobs}

    return sample


if __name__ == "__main__":
    from datasets import Dataset
    from trl import GRPOTrainer

    folder = "Qwen3-0.6B"  # a folder of a Hugging Face model
    llm, data = stretto.load(folder), Dataset.from_dict({"prompt": ["Count from 1 to 20: 1,"] * 64})
    commas = [lambda completions, **_: [float(one.count(",")) for one in completions]]
    GRPOTrainer(folder, commas, None, data, rollout_func=rollouts(llm)).train()
