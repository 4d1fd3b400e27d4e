"""Makes tests/data/golden/qwen2.5-coder-*.json: log-probabilities by transformers, in float32.

python scripts/make_coder_golden.py FILE.gguf      # Qwen2.5-Coder 1.5B needs 14 GB of memory
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

TARGET = Path(__file__).parent.parent / "tests" / "data" / "golden"
TEXTS = {
    "code": (
        'def mean(values):\n    """The arithmetic mean of numbers."""\n'
        "    if not values:\n        raise ValueError('no values')\n"
        "    return sum(values) / len(values)\n\n\ndef median(values):\n"
        "    ordered = sorted(values)\n    middle = len(ordered) // 2\n"
        "    if len(ordered) % 2:\n        return ordered[middle]\n"
        "    return (ordered[middle - 1] + ordered[middle]) / 2\n"
    ),
    "prose": (
        "The lighthouse keeper climbed the stairs every evening at six. He "
        "counted them aloud, one hundred and forty in all, because his father "
        "had counted them before him."
    ),
    "chat": (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nWhat does SELECT do in SQL?<|im_end|>\n"
        "<|im_start|>assistant\nIt reads rows from one or more tables and "
        "returns them."
    ),
}


@torch.inference_mode()
def main(path: Path) -> None:
    """Write the ids of each text, and the log-probability of each id but the first."""
    transformers.logging.set_verbosity_error()
    file = {"gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **file)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **file).eval()
    score = {}
    for name, text in TEXTS.items():
        ids = tokenizer.encode(text, add_special_tokens=False)
        rows = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        found = rows[:-1].gather(-1, torch.tensor(ids[1:]).unsqueeze(-1)).squeeze(-1)
        score[name] = {"text": text, "ids": ids, "logprobs": [round(value, 6) for value in found.tolist()]}
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    about = f"{versions}, the file's weights dequantised to float32"
    made = {"model": path.name, "reference": about, "score": score}
    target = TARGET / f"{path.stem.lower()}.json"
    target.write_text(json.dumps(made) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
