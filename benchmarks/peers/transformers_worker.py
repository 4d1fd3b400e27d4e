"""Scores texts with transformers, on the weights of a GGUF file dequantised by transformers itself.

`agreement.py` starts it, in an environment with torch, transformers, accelerate and gguf.
"""

import os
from pathlib import Path

import torch
import transformers
from lines import serve

models = {}


def about():
    return {"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}


def load(path, threads, dtype="float32"):
    """Dequantise a model."""
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    file = Path(path).absolute()
    kinds = {"gguf_file": file.name, "dtype": getattr(torch, dtype)}
    models["model"] = transformers.AutoModelForCausalLM.from_pretrained(
        os.fspath(file.parent), **kinds
    ).eval()
    return {}


@torch.inference_mode()
def score(prefix, rests):
    """The log-probabilities of each continuation's tokens: one pass for the prefix, one for all of them."""
    model = models["model"]
    first = model(torch.tensor([prefix]), use_cache=True, logits_to_keep=1)
    cache = first.past_key_values
    cache.batch_repeat_interleave(len(rests))
    longest = max(map(len, rests))
    rows = torch.tensor([rest + [0] * (longest - len(rest)) for rest in rests])
    rows_logits = model(rows, past_key_values=cache).logits.float()
    start = first.logits.float().expand(len(rests), 1, -1)
    logs = torch.cat([start, rows_logits[:, :-1]], dim=1).log_softmax(-1)
    found = logs.gather(-1, rows.unsqueeze(-1)).squeeze(-1)
    return {"scores": [row[: len(rest)].tolist() for row, rest in zip(found, rests, strict=True)]}


if __name__ == "__main__":
    serve({function.__name__: function for function in (about, load, score)})
