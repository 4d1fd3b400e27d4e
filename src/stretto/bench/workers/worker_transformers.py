"""transformers with PyTorch on the CPU: of a GGUF file it makes float32 weights."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is a file here

import torch
import transformers


class Worker:
    """A model of transformers."""

    def about(self) -> dict[str, Any]:
        """The versions."""
        return {"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}

    def load(self, model: str, threads: int, cells: int) -> dict[str, Any]:
        """Load it; a GGUF file is dequantised."""
        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        path = Path(model)
        how: dict[str, Any] = {"dtype": torch.float32}
        if path.is_file():
            how["gguf_file"] = path.name
        source = path if path.is_dir() else path.parent
        self.model = transformers.AutoModelForCausalLM.from_pretrained(source, **how).eval()
        self.model.generation_config.eos_token_id = None
        return {"notes": "float32 weights"}

    def generate(self, prompts: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        """Greedy tokens, with its own `generate`; prompts of a batch are padded on the left."""
        rows = [prompt["ids"] for prompt in prompts]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        clock = _Clock(len(rows))
        with torch.no_grad():
            output = self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=[clock],
            )
        return {"ids": output[:, width:].tolist(), "first": clock.first}


class _Clock(transformers.StoppingCriteria):  # type: ignore[misc]  # the package may not be installed
    """Notes when the first token was there; never stops anything."""

    def __init__(self, count: int) -> None:
        self.begun, self.first, self.count = time.perf_counter(), 0.0, count

    def __call__(self, ids: Any, scores: Any, **more: Any) -> Any:
        self.first = self.first or time.perf_counter() - self.begun
        return torch.zeros(self.count, dtype=torch.bool)
