"""llama.cpp by llama-cpp-python's low-level functions, as its own llama-bench calls them."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp as lc
import numpy as np

BATCH, MICRO_BATCH = 2048, 512  # its defaults

quiet = lc.llama_log_callback(lambda level, text, data: None)


class Worker:
    """A model of llama.cpp, and a context for as many sequences as were asked for last."""

    def __init__(self) -> None:
        lc.llama_log_set(quiet, ctypes.c_void_p(0))
        lc.llama_backend_init()
        self.context: Any = None
        self.sequences = 0

    def about(self) -> dict[str, Any]:
        """The version, and the instructions that it was built with."""
        system = lc.llama_print_system_info().decode().strip(" |")
        return {"version": f"llama-cpp-python {lc.__version__}", "notes": system}

    def load(self, model: str, threads: int, cells: int) -> None:
        """Load it, with a context for one sequence."""
        params = lc.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = lc.llama_model_load_from_file(model.encode(), params)
        if not self.model:
            raise RuntimeError("llama.cpp cannot load it")
        self.threads, self.cells = threads, cells
        self.n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.flat = lc.llama_batch_init(BATCH, 0, 1)
        self._open(1)

    def _open(self, sequences: int) -> None:
        if sequences == self.sequences:
            lc.llama_memory_clear(lc.llama_get_memory(self.context), True)
            return
        if self.context:
            lc.llama_free(self.context)
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_seq_max = max(self.cells, 256 * sequences), sequences
        params.n_batch, params.n_ubatch = BATCH, MICRO_BATCH
        params.n_threads = params.n_threads_batch = self.threads
        self.context = lc.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp opens no context of {params.n_ctx} tokens")
        self.sequences = sequences

    def generate(self, prompts: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        """Greedy tokens: all prompts, then a pass for the next token of all sequences."""
        self._open(len(prompts))
        begun = time.perf_counter()
        found: list[list[int]] = [[] for _ in prompts]
        for sequence, prompt in enumerate(prompts):
            ids = prompt["ids"]
            for start in range(0, len(ids), BATCH):
                part = enumerate(ids[start : start + BATCH], start)
                rows = [(token, i, sequence, i == len(ids) - 1) for i, token in part]
                self._run(rows)
            found[sequence].append(self._best(len(rows) - 1))
        first = time.perf_counter() - begun
        lengths = [len(prompt["ids"]) for prompt in prompts]
        for turn in range(tokens - 1):
            self._run([(each[-1], lengths[i] + turn, i, True) for i, each in enumerate(found)])
            for i, each in enumerate(found):
                each.append(self._best(i))
        return {"ids": found, "first": first}

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        flat = self.flat
        flat.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            flat.token[i], flat.pos[i], flat.logits[i] = token, position, wanted
            flat.n_seq_id[i], flat.seq_id[i][0] = 1, sequence
        if lc.llama_decode(self.context, flat):
            raise RuntimeError("llama_decode failed")

    def _best(self, row: int) -> int:
        logits = lc.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.n_vocab,)).argmax())
