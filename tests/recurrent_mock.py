"""A backend whose logits follow from a state alone: a chain of hashes over all tokens, kept in state slots.

Every wrong copy, missed replay or wrong sharing changes the tokens, or fails an assertion first: a row's
position must be the number of tokens in its state, and its state the chain of the tokens that it attends to.
"""

from dataclasses import fields

import numpy as np

from stretto.backends.base import Capabilities
from stretto.llm import LLM
from stretto.models.spec import ModelSpec
from stretto.sampling.sampler import choose
from stretto.testing import FINGERPRINT, MockBackend, byte_tokenizer

MASK = (1 << 64) - 1
START = 0x9E3779B97F4A7C15
KIND = "gated delta net"


class RecurrentSpec(ModelSpec):
    """The spec of a model with recurrent layers."""

    recurrent = KIND


def chained(state, token):
    """The state behind one more token."""
    state = (state ^ (token + 1)) * 0xBF58476D1CE4E5B9 & MASK
    return state ^ (state >> 29)


def chain(tokens):
    """The state behind some tokens."""
    state = START
    for token in tokens:
        state = chained(state, token)
    return state


def row_of(state, n_vocab):
    """float32[n_vocab]: logits that only this state has; printable bytes are likely."""
    row = np.zeros(n_vocab, np.float32)
    for i in range(6):
        state = chained(state, i)
        row[32 + (state >> 20) % 90] += 6.0 - 0.7 * i + (state >> 50) / (1 << 16)
    return row


def greedy(tokens, n, n_vocab=258):
    """The n most probable tokens behind some tokens, one after the other."""
    state, found = chain(tokens), []
    for _ in range(n):
        found.append(int(row_of(state, n_vocab).argmax()))
        state = chained(state, found[-1])
    return found


class RecurrentBackend(MockBackend):
    """A model with recurrent layers."""

    capabilities = Capabilities(hidden=True, fused=True)
    slot_bytes = 16
    slot_layout = "chain of hashes"

    def __init__(self, n_vocab, n_cells=1024, context_length=1024, n_slots=32):
        super().__init__([], n_vocab, n_cells, context_length)
        self.spec = RecurrentSpec(
            **{field.name: getattr(self.spec, field.name) for field in fields(ModelSpec)}
        )
        self.n_slots = n_slots
        rng = np.random.default_rng(7)
        self.states = rng.integers(0, 1 << 62, (n_slots, 2), np.uint64)  # of chain and number of tokens
        self.n_copied = 0
        self.failures = []  # rows after which passes fail, the next one first

    def forward(self, batch):
        states = self._run(batch)
        if not len(batch.wanted):
            return np.empty((0, self.spec.n_vocab), np.float32)
        return np.stack([row_of(states[row], self.spec.n_vocab) for row in batch.wanted])

    def hidden(self, batch):
        states = self._run(batch)
        return np.array([[states[row] % 1009, 1.0] for row in batch.wanted], np.float32).reshape(-1, 2)

    def _run(self, batch):
        placement = batch.placement
        self.batches.append(batch.tokens.tolist())
        self.tokens[placement.cells] = batch.tokens
        fails_at = self.failures.pop(0) if self.failures else None
        states = []
        for row, (token, position, slot) in enumerate(
            zip(batch.tokens.tolist(), batch.positions.tolist(), placement.slots.tolist(), strict=True)
        ):
            if row == fails_at:
                self.states[placement.slots] += np.uint64(1)  # what is left of them is of no use
                raise MemoryError("a pass that fails")
            states.append(self._step(slot, position, token))
            view = placement.views[placement.view_of[row]][: placement.lengths[row]]
            if row in batch.wanted:
                assert chain(self.tokens[view].tolist()) == states[row], "cells and state have parted"
        return states

    def _step(self, slot, position, token):
        state, count = self.states[slot].tolist()
        assert count == position, f"a state of {count} tokens gets one for position {position}"
        state = chained(state, token)
        self.states[slot] = state, count + 1
        return state

    def loop(self, run):
        row, found, sampled = run.logits, [], list(run.tokens)
        while len(found) < len(run.cells):
            uniform = 0.0 if run.params.temperature == 0 else run.random.uniform()
            token = choose(row, run.params, sampled, run.n_prompt, uniform, run.mask)
            first = len(found)
            found.append(token)
            if token in run.ends:
                break
            more, goes_on = run.follow(token, len(run.cells) - len(found))
            found += more
            if not goes_on:
                break
            sampled += found[first:]
            if self.failures and not self.failures.pop(0):
                raise MemoryError("a pass that fails")
            for at, one in enumerate(found[first:], first):
                self.tokens[run.cells[at]] = one
                row = row_of(self._step(run.slot, run.position + at, one), self.spec.n_vocab)
            run.n_run = len(found)
            if run.interrupt[0]:
                break
        return found, row

    def copy_slots(self, source, target):
        assert not set(source.tolist()) & set(target.tolist())
        self.states[target] = self.states[source]
        self.n_copied += len(target)

    def clear_slots(self, slots):
        self.states[slots] = START, 0

    def read_slots(self, slots):
        return self.states[slots].view(np.uint8).reshape(len(slots), self.slot_bytes)

    def write_slots(self, slots, data):
        self.states[slots] = np.ascontiguousarray(data).view(np.uint64).reshape(len(slots), 2)


def recurrent_llm(cells=1024, context_length=1024, slots=32, **options):
    """An `LLM` on a `RecurrentBackend` with a byte tokenizer that has no chat template."""
    tokenizer = byte_tokenizer()
    backend = RecurrentBackend(tokenizer.n_vocab, cells, context_length, slots)
    return LLM(backend, tokenizer, fingerprint=lambda: FINGERPRINT, **options)


def check(llm):
    """Raise if tables contradict themselves, or a slot's state is not that of its sequences' tokens."""
    llm.cells.check()
    runner = llm.engine.runner
    for sequence, view in runner.slots.views.items():
        tokens = runner.cells.tokens[runner.cells.view(sequence)].tolist()
        for slot in view:
            n = runner.slots.positions[slot]
            assert llm.backend.states[slot].tolist() == [chain(tokens[:n]), n]
