"""lm-eval: log-probabilities of texts, and texts that go on, by `local-completions`."""

import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

url, tokenizer = sys.argv[1:]
lm = LocalCompletionsAPI(model="smollm2", base_url=f"{url}/v1/completions", tokenizer=tokenizer, batch_size=2)


def instances(kind, *arguments):
    return [Instance(kind, {}, one, number) for number, one in enumerate(arguments)]


context = "The capital of France is"
(right, _), (wrong, is_greedy) = lm.loglikelihood(
    instances("loglikelihood", (context, " Paris"), (context, " seventeen")), disable_tqdm=True
)
assert 0 > right > wrong, (right, wrong)
assert not is_greedy
(text,) = lm.generate_until(
    instances("generate_until", ("One, two, three,", {"until": [","], "max_gen_toks": 5})), disable_tqdm=True
)
assert text.strip() == "four", text
