"""ONNX Runtime GenAI on the CPU: it takes folders with a genai_config.json."""

from __future__ import annotations

import os
import time
from typing import Any

import onnxruntime_genai as og


class Worker:
    """A model of ONNX Runtime GenAI."""

    def about(self) -> dict[str, Any]:
        """The version."""
        return {"version": f"onnxruntime-genai {og.__version__}"}

    def load(self, model: str, threads: int, cells: int) -> dict[str, Any]:
        """Load it with so many threads."""
        os.environ["OMP_NUM_THREADS"] = str(threads)
        config = og.Config(model)
        options = f'{{"model": {{"decoder": {{"session_options": {{"intra_op_num_threads": {threads}}}}}}}}}'
        config.overlay(options)
        self.model = og.Model(config)
        return {}

    def generate(self, prompts: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        """Greedy tokens; prompts of a batch must be of one length."""
        rows = [prompt["ids"] for prompt in prompts]
        width = min(map(len, rows))  # it pads by itself, and not every graph allows it
        rows = [row[:width] for row in rows]
        params = og.GeneratorParams(self.model)
        params.set_search_options(
            do_sample=False, max_length=width + tokens, min_length=width + tokens, batch_size=len(rows)
        )
        begun = time.perf_counter()
        generator = og.Generator(self.model, params)
        generator.append_tokens(rows if len(rows) > 1 else rows[0])
        first = 0.0
        for _ in range(tokens):
            if generator.is_done():
                break
            generator.generate_next_token()
            first = first or time.perf_counter() - begun
        found = [generator.get_sequence(i)[width:].tolist() for i in range(len(rows))]
        return {"ids": found, "first": first}
