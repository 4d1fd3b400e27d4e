"""Rows of logits that stay on the device: sampled there, moved to the host only where Python looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import DeviceRow, Draw, Mask
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.penalties import Penalties
from stretto.backends.torch.sampler import ALIGNMENT, Ask, Measured, Sampler
from stretto.errors import InvalidRequest
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import WRONG, choose
from stretto.sampling.transforms import allow, measure

Floats = NDArray[np.float32]


class RowSampler:
    """Samples rows of one model: many at once (`prepare`), or one that nothing was prepared for."""

    def __init__(self, device: object, n_vocab: int, capacity: int = 256) -> None:
        self.n_vocab = n_vocab
        self.buffers = Sampler(device, n_vocab, capacity)
        self.penalties = Penalties()

    def rows(self, logits: Tensor) -> TorchRows:
        """The rows of float32[n, at least n_vocab] on the device.

        Who writes to the tensor again while rows are in use calls `Logits.preserve` before.
        """
        return TorchRows(Logits(self, logits), len(logits))

    def sample(self, rows: TorchRows, params: list[SamplingParams], uniforms: list[float]) -> list[int]:
        """A token of each row as it was computed, or a code of `sampler.WRONG`.

        Parameters are those of the last call while the list is the same.
        """
        shared = rows.shared
        if len(rows) <= self.buffers.capacity:
            return self.buffers.sample_again(shared.address, shared.stride, params, uniforms)
        asked = zip(rows, params, uniforms, strict=True)
        return self.buffers.sample([Ask(row.address, each, uniform) for row, each, uniform in asked])

    def queue(self, rows: TorchRows, params: list[SamplingParams], uniforms: list[float]) -> None:
        """`sample` of up to `capacity` rows, without waiting for the tokens."""
        self.buffers.queue_again(rows.shared.address, rows.shared.stride, params, uniforms)

    def prepare(self, draws: Sequence[Draw]) -> None:
        """Sample all rows that will be asked for, together; rows that are on the host are left out.

        Where something is wrong with a draw it is left to `TorchRow.sample`, which says what.
        """
        waiting = [
            (draw, row) for draw in draws if isinstance(row := draw.row, TorchRow) and row.is_on_device
        ]
        while waiting:
            waiting = self._prepare_some(waiting)

    def _prepare_some(self, waiting: list[tuple[Draw, TorchRow]]) -> list[tuple[Draw, TorchRow]]:
        """Sample what can be sampled together; returns the rest.

        Penalties change a row in place for a moment: two draws from such a row go one after the other.
        """
        together: list[tuple[Draw, TorchRow, Ask]] = []
        later: list[tuple[Draw, TorchRow]] = []
        taken: dict[int, bool] = {}  # rows by address, and whether they are changed
        for draw, row in waiting:
            try:
                ask = row.ask(draw.params, draw.tokens, draw.n_prompt, draw.uniform, draw.mask)
            except InvalidRequest:
                continue
            address, changes = ask.address, ask.entries is not None
            if address in taken and (changes or taken[address]):
                later.append((draw, row))
            else:
                taken[address] = changes
                together.append((draw, row, ask))
        if together:
            tokens = self.buffers.sample([ask for _, _, ask in together])
            for (draw, row, _), token in zip(together, tokens, strict=True):
                row.prepared = (draw, token)
            self._measure(
                [(row, draw, token) for (draw, row, _), token in zip(together, tokens, strict=True)]
            )
        return later

    def _measure(self, sampled: list[tuple[TorchRow, Draw, int]]) -> None:
        wanted = [(row, draw, token) for row, draw, token in sampled if draw.n_top is not None and token >= 0]
        if wanted:
            asks = [row.measuring(draw.n_top or 0, draw.mask) for row, draw, _ in wanted]
            found = self.buffers.measure(asks, [token for _, _, token in wanted])
            for (row, draw, token), measured in zip(wanted, found, strict=True):
                row.measured = (draw, token, measured)


class Logits:
    """A tensor of rows, while any of them is in use."""

    __slots__ = ("__weakref__", "address", "has_kernels", "sampler", "stride", "tensor")

    def __init__(self, sampler: RowSampler, tensor: Tensor) -> None:
        self.sampler = sampler
        self.has_kernels = uses_kernels(tensor)
        self._set(_aligned(tensor) if self.has_kernels and not _is_aligned(tensor) else tensor)

    def _set(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.address: int = tensor.data_ptr()
        self.stride: int = 4 * tensor.stride(0)  # in bytes

    def preserve(self) -> None:
        """Copy the rows: the memory they were in is about to be written to."""
        self._set(_aligned(self.tensor))


class TorchRows(Sequence["TorchRow"]):
    """Rows of a tensor, made when they are asked for: most are only sampled, all at once."""

    __slots__ = ("_made", "_n", "shared")

    def __init__(self, shared: Logits, n: int) -> None:
        self.shared, self._n = shared, n
        self._made: dict[int, TorchRow] = {}

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> TorchRow: ...

    @overload
    def __getitem__(self, at: slice) -> list[TorchRow]: ...

    def __getitem__(self, at: int | slice) -> TorchRow | list[TorchRow]:
        if isinstance(at, slice):
            return [self[i] for i in range(self._n)[at]]
        index = range(self._n)[at]
        row = self._made.get(index)
        if row is None:
            row = self._made[index] = TorchRow(self.shared, index)
        return row


class TorchRow:
    """One row of logits on the device (`base.DeviceRow`)."""

    __slots__ = ("_host", "_index", "measured", "prepared", "shared")

    def __init__(self, shared: Logits, index: int, host: Floats | None = None) -> None:
        self.shared, self._index = shared, index
        self._host = host  # the row on the host, once it was looked at: from then on this is the row
        self.prepared: tuple[Draw, int] | None = None  # a token that has been sampled ahead
        self.measured: tuple[Draw, int, Measured | None] | None = None

    @property
    def logits(self) -> Tensor:
        """float32[n_vocab] on the device."""
        return self.shared.tensor[self._index, : self.shared.sampler.n_vocab]

    @property
    def current(self) -> Tensor:
        """float32[1, n_vocab], on the host if it was looked at there."""
        if self._host is None:
            return self.shared.tensor[self._index : self._index + 1, : self.shared.sampler.n_vocab]
        import torch

        return torch.from_numpy(self._host)[None]

    @property
    def address(self) -> int:
        """Where it begins on the device."""
        return self.shared.address + self._index * self.shared.stride

    @property
    def is_on_device(self) -> bool:
        """Whether it is sampled there: nothing has looked at it, and there are kernels."""
        return self._host is None and self.shared.has_kernels

    def numpy(self) -> Floats:
        """float32[n_vocab] on the host, writable; later calls of `sample` use that copy."""
        if self._host is None:
            self._host = np.array(self.logits.cpu().numpy(), np.float32)
        return self._host

    def fetch(self, others: Sequence[DeviceRow]) -> None:
        """Move this row and others to the host, in one copy for those of one tensor."""
        together: dict[int, dict[int, TorchRow]] = {}
        for row in (self, *others):
            if isinstance(row, TorchRow) and row._host is None:
                together.setdefault(id(row.shared), {})[id(row)] = row
        for group in together.values():
            rows = list(group.values())
            shared = rows[0].shared
            tensor = shared.tensor[[row._index for row in rows], : shared.sampler.n_vocab]
            for row, host in zip(rows, tensor.float().cpu().numpy(), strict=True):
                row._host = host

    def copy(self) -> TorchRow:
        """Another row with the same numbers; on the device they share them."""
        return TorchRow(self.shared, self._index, None if self._host is None else self._host.copy())

    def sample(
        self, params: SamplingParams, tokens: Sequence[int], n_prompt: int, uniform: float, mask: Mask | None
    ) -> int:
        """The token that the host's sampler would sample from the same logits."""
        if not self.is_on_device:
            return choose(self.numpy(), params, tokens, n_prompt, uniform, mask)
        if self.prepared is not None and self.prepared[0].is_for(params, tokens, n_prompt, uniform, mask):
            token = self.prepared[1]
        else:
            ask = self.ask(params, tokens, n_prompt, uniform, mask)
            (token,) = self.shared.sampler.buffers.sample([ask])
        if token < 0:
            raise InvalidRequest(WRONG[token])
        return token

    def measure(self, token: int, n_top: int, mask: Mask | None) -> Measured:
        """Log-probabilities of a token and of the `n_top` best ones, among those that the mask allows."""
        if self.is_on_device:
            found, ahead = None, self.measured
            if ahead is not None and (ahead[1], ahead[0].n_top) == (token, n_top) and ahead[0].mask is mask:
                found = ahead[2]
            else:
                (found,) = self.shared.sampler.buffers.measure([self.measuring(n_top, mask)], [token])
            if found is not None:
                return found[0], found[1][:n_top]
        row = self.logits.cpu().numpy() if self._host is None else self._host
        return measure(row if mask is None else allow(row, mask), token, n_top)

    def ask(
        self, params: SamplingParams, tokens: Sequence[int], n_prompt: int, uniform: float, mask: Mask | None
    ) -> Ask:
        """What the buffers take."""
        sampler, entries = self.shared.sampler, None
        if params.penalizes or params.logit_bias:
            entries = sampler.penalties.entries(params, tokens, n_prompt, sampler.n_vocab)
        return Ask(self.address, params, uniform, mask, entries)

    def measuring(self, n_top: int, mask: Mask | None) -> Ask:
        """What the buffers take for log-probabilities."""
        n = min(max(n_top, 1), self.shared.sampler.n_vocab)
        return Ask(self.address, SamplingParams(top_k=n), 0.0, mask)


def _is_aligned(tensor: Tensor) -> bool:
    """Whether every row begins where vectors can be read."""
    starts = (tensor.data_ptr(), 4 * tensor.stride(0))
    return tensor.stride(1) == 1 and all(start % ALIGNMENT == 0 for start in starts)


def _aligned(tensor: Tensor) -> Tensor:
    """A copy whose rows are."""
    import torch

    n, width = tensor.shape
    padded = torch.empty((n, -(-width // 4) * 4), dtype=torch.float32, device=tensor.device)
    padded[:, :width] = tensor
    return padded[:, :width]
