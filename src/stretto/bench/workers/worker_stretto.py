"""Stretto on one of its backends, through its public calls."""

from __future__ import annotations

import time
from typing import Any

import stretto
from stretto.hardware.gpus import cuda_devices


class Worker:
    """A model of Stretto."""

    def about(self) -> dict[str, Any]:
        """The version."""
        return {"version": f"stretto {stretto.__version__}"}

    def load(
        self, model: str, threads: int, cells: int, backend: str, device: str = "auto"
    ) -> dict[str, Any]:
        """Load it; prompts are not kept, as each is to be computed."""
        self.llm = stretto.load(
            model, backend=backend, device=device, threads=threads, cells=cells, prefix_cache=False
        )
        kernels = getattr(self.llm.backend, "kernels", "")
        notes = [f"kernels {kernels}"] if kernels else []
        if device == "cuda":  # the memory of the process says nothing about the device's
            notes += [cuda_devices()[0].name] if cuda_devices() else []
        return {"notes": ", ".join(notes)}

    def generate(self, prompts: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        """Greedy tokens, through `llm.stream` for one prompt and `llm.generate` for several."""
        begun = time.perf_counter()
        ids = [prompt["ids"] for prompt in prompts]
        options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        if len(ids) > 1:
            results = self.llm.generate(ids, **options)
            return {"ids": [result.tokens for result in results]}
        found: list[int] = []
        first = 0.0
        for token in self.llm.stream(ids[0], **options):
            first = first or time.perf_counter() - begun
            if token.id is not None:  # None: only text at the end
                found.append(token.id)
        return {"ids": [found], "first": first}
