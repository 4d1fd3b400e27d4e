"""The native backend: the decoder in csrc/, driven with one flat batch a step.

K and V are stored as half floats or in 8 bits; products take activations of 8 bits, or of 16 with
`precision="high"`. Within one kernel set and one precision a sequence's logits are the same bits whatever
else is in the batch, in however many chunks and with however many threads they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.backends.base import Batch, Capabilities, Decoding, DeviceRow, FusedRun, LoRA, NextHead
from stretto.backends.batch import find_changes, make_scales
from stretto.backends.native_weights import (
    FLOATS,
    Packing,
    as_bytes,
    checked_spec,
    load_weights,
    narrowest,
    renew_weights,
)
from stretto.errors import InvalidRequest, Unsupported
from stretto.hardware import kernel_sets
from stretto.models.spec import ModelSpec
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import WRONG, bias_arrays, history
from stretto.weights.gguf import GGUF
from stretto.weights.memory import Placement
from stretto.weights.tensor import Tensor

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]

Tapped = tuple[int, int, Ints, Floats, bool]  # layer, kind of site, rows, values, whether these change


class Collected(NamedTuple):
    """The inputs of a matrix: float64[columns] sums of their squares, and how many there were."""

    name: str
    rows: int  # of the matrix
    sums: NDArray[np.float64]
    times: int


class NativeBackend:
    """Runs a model on the CPU."""

    name = "native"
    capabilities = Capabilities(attention=True, sites=True, fused=True, ahead=True)
    next_head: NextHead | None = None  # set by who opens the file, as is the next
    open_head: Callable[[Path], NextHead] | None = None

    def __init__(
        self,
        file: GGUF,
        spec: ModelSpec,
        n_cells: int,
        threads: int,
        kv: str = "f16",
        repack: bool = True,
        precision: str = "standard",
        n_slots: int = 1,
        placement: Placement | None = None,
    ) -> None:
        plain = checked_spec(spec)
        self.spec = spec
        self.n_cells = n_cells
        self.precision = precision
        self.placement = placement  # why weights are packed or not, where that was chosen
        repack = repack if placement is None else placement.repack
        self.decoder: _native.Decoder | None = _native.Decoder(
            plain, n_cells, kv, threads, kernel_sets.select(), precision, n_slots
        )
        self.n_slots, self.slot_bytes = self.decoder.n_slots, self.decoder.slot_bytes
        self.slot_layout = f"native f32, {spec.state_layout}"
        self._adapters: dict[str, int] = {}  # their numbers in the decoder
        self._sampled_with: list[SamplingParams] = []  # of the last rows, and the numbers of the chain
        self._numbers: list[tuple[float, int, float, float]] = []
        self.cell_bytes = self.decoder.cell_bytes
        layout = f"native {kv}" if precision == "standard" else f"native {kv}, {precision} precision"
        self.cell_layout = f"{layout}, {spec.kv_layout}"
        is_shared = placement is not None and placement.shared
        formats = load_weights(self.decoder, file, spec, repack, is_shared)
        self._formats = formats if repack and not is_shared else None
        self._held: dict[str, Bytes] = {}  # replaced matrices that are not packed
        self._packing = Packing(self.decoder, file) if self.decoder.n_deferred else None
        self._quantized = {  # matrices that are multiplied with activations of 8 bits
            name for name, kind in formats.items() if kind not in FLOATS and precision == "standard"
        }

    @property
    def kernels(self) -> str:
        """The kernel set in use."""
        return self._open.kernels

    @property
    def threads(self) -> int:
        """The maximum number of threads."""
        return self._open.threads

    @property
    def active_threads(self) -> int:
        """Threads of the last batch: fewer than `threads` while other processes use the cores."""
        return self.decoder.active_threads if self.decoder else 0

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab]."""
        if isinstance(batch, Decoding) and batch.rotated is None:
            return (self.decoder or self._open).decode(
                batch.ids,
                batch.places,
                batch.taken,
                batch.stores,
                batch.counts,
                batch.table,
                batch.slots,
                self._scales(batch),
            )
        return self._run(batch, hidden=False)

    def hidden(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_embd]."""
        return self._run(batch, hidden=True)

    def update(self, file: GGUF, is_new: Callable[[Tensor], bool]) -> str:
        """Pack the new tensors of a file again, in the formats that the matrices have."""
        if self._formats is None:
            raise Unsupported(
                "the weights of this model are read from a file or shared with other processes; load it with "
                "repack=True to replace them"
            )
        self.settle()
        return renew_weights(self._open, file, self.spec, self._formats, is_new, self._held)

    def load_adapter(self, name: str, lora: LoRA) -> None:
        """Pack an adapter's matrices.

        Where the matrix that they change is quantised they become bytes (Q8_0), unless precision is high:
        far exacter than that matrix, and multiplied with the same activations. Elsewhere no bit is lost.
        """
        number = max(self._adapters.values(), default=-1) + 1
        try:
            for tensor, pair in find_changes(self.spec, lora.pairs).items():
                matrix = tensor.removesuffix(".weight")
                both = as_bytes(pair) if matrix in self._quantized else None
                a, b = both or (narrowest(pair.a), narrowest(pair.b))
                self._open.add_change(number, matrix, pair.rank, pair.scale, *a, *b)
            for layer, vector in lora.vectors.items():
                self._open.add_vector(number, layer, vector)
        except BaseException:
            self._open.remove_adapter(number)
            raise
        self._adapters[name] = number

    def unload_adapter(self, name: str) -> None:
        """Free an adapter."""
        self._open.remove_adapter(self._adapters.pop(name))

    def _scales(self, batch: Batch) -> list[tuple[int, Floats]]:
        """The adapters of a batch and their scale for each row."""
        mixes = batch.mixes
        if mixes is None:
            return []
        return [(self._adapters[name], scales) for name, scales in make_scales(mixes).items()]

    def project(self, name: str, rows: Floats) -> Floats:
        """float32[n, rows of the matrix]: what a projection makes of pooled hidden states."""
        return self._open.project(name, np.ascontiguousarray(rows, np.float32))

    def collect(self, wanted: bool) -> None:
        """Sum the squares of what each matrix multiplies from now on, or no longer."""
        self._open.collect(wanted)

    def collected(self) -> list[Collected]:
        """The sums since `collect`, of each matrix that multiplied something."""
        rows = {name: n for name, n, _ in self._open.tensors()}
        return [Collected(name, rows[name], sums, count) for name, sums, count in self._open.collected()]

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """Generate several tokens of one sequence in native code."""
        biased, bias = bias_arrays(run.params, self.spec.n_vocab)
        assert isinstance(run.logits, np.ndarray)
        tokens, logits, error, run.n_run, draws, run.sampling = self._open.loop(
            run.logits,
            run.cells,
            run.position,
            run.view,
            run.n_view,
            run.table,
            run.params.numbers,
            np.asarray(run.tokens, np.int32) if run.hooks else history(run.params, run.tokens),
            run.n_prompt,
            biased,
            bias,
            run.random.seed,
            run.random.index,
            run.random.draws,
            run.ends,
            [hook.addresses for hook in run.hooks],
            run.mask,
            run.follow,
            run.interrupt,
            run.slot,
            [] if run.mix is None else [(self._adapters[name], scale) for name, scale in run.mix.parts],
        )
        run.random.skip_to(draws)
        if error:
            raise InvalidRequest(WRONG[error])
        return tokens, logits

    def mixture(self, rows: Floats, order: list[int]) -> _native.Mixture:
        """The distributions of rows in this order, by the threads of the passes."""
        return _native.Mixture(rows, order, 1.0, self._open)

    def draw_rows(
        self, rows: list[Floats], params: SamplingParams, uniforms: list[float]
    ) -> list[tuple[int, float]]:
        """Of each row a token and its log-probability, by the threads of the passes."""
        return _native.draw_rows(rows, params.numbers[:4], uniforms, self._open)

    @property
    def samples_rows(self) -> bool:
        """Whether the rows of a pass are sampled together."""
        return True

    def sample_rows(
        self, rows: Sequence[DeviceRow] | Floats, params: list[SamplingParams], uniforms: list[float]
    ) -> list[int]:
        """A token of each row of a pass, or a code of `sampler.WRONG`, by the threads of the passes."""
        assert isinstance(rows, np.ndarray)
        if params is not self._sampled_with:
            self._sampled_with, self._numbers = params, [one.numbers[:4] for one in params]
        return _native.sample_rows(rows, self._numbers, uniforms, self._open)

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy K and V of cells `source` to cells `target`."""
        self._open.copy_cells(source, target)

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Re-apply RoPE to the keys of `cells`, `delta` positions further."""
        self._open.rotate_cells(cells, delta)

    def read_cells(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], in the order [n][layer][K, V][head]."""
        return self._open.read_cells(cells)

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """Write K and V of `cells`, in the format of `read_cells`."""
        self._open.write_cells(cells, data)

    def copy_slots(self, source: Ints, target: Ints) -> None:
        """Copy the states of slots `source` to slots `target`."""
        self._open.copy_slots(source, target)

    def clear_slots(self, slots: Ints) -> None:
        """Set the states of `slots` to that of no tokens."""
        self._open.clear_slots(slots)

    def read_slots(self, slots: Ints) -> Bytes:
        """uint8[n, slot_bytes], layer by layer."""
        return self._open.read_slots(slots)

    def write_slots(self, slots: Ints, data: Bytes) -> None:
        """Write the states of `slots`, in the format of `read_slots`."""
        self._open.write_slots(slots, data)

    def settle(self) -> None:
        """Wait until all weights are packed, which they are soon after loading."""
        if self._packing is not None:
            self._packing.wait()

    def close(self) -> None:
        """Free weights, cache and threads."""
        if self._packing is not None:
            self._packing.stop()
        if self.next_head is not None:
            self.next_head.close()
        self.decoder = None

    @property
    def _open(self) -> _native.Decoder:
        if self.decoder is None:
            raise InvalidRequest("the model is closed; load it again")
        return self.decoder

    def _run(self, batch: Batch, hidden: bool) -> Floats:
        placement = batch.placement
        if placement is None:
            raise InvalidRequest("the batch has no cells yet; call batch.place(cells) first")
        rows = self._open.forward(
            batch.tokens,
            batch.positions,
            placement.cells,
            placement.views,
            placement.view_of,
            placement.lengths,
            placement.table,
            batch.wanted,
            batch.vectors,
            hidden,
            batch.probes,
            np.array(batch.watched, np.int32),
            placement.rotated,
            placement.slots,
            placement.causal,
            batch.types if batch.has_types else None,
            self._scales(batch),
            *_taps(batch),
        )
        if len(batch.probes):
            batch.received = self._open.received().reshape(len(batch), len(batch.probes))
        if batch.watched:
            lengths = placement.lengths[batch.watched]
            ends = np.cumsum(lengths) * self.spec.n_layer * self.spec.n_head
            blocks = np.split(self._open.watched(), ends[:-1])
            shape = self.spec.n_layer, self.spec.n_head
            batch.attention = [
                block.reshape(*shape, n) for block, n in zip(blocks, lengths.tolist(), strict=True)
            ]
        return rows


def _taps(batch: Batch) -> tuple[list[Tapped], Callable[[int], None]] | tuple[()]:
    """The taps of a batch, and what changes the values of one in the middle of a pass."""
    taps = batch.taps
    if not taps:
        return ()

    def change(index: int) -> None:
        found = taps[index].change
        if found is not None:
            found(taps[index].values)

    return [
        (tap.site.layer, int(tap.site.kind), tap.rows, tap.values, tap.change is not None) for tap in taps
    ], change
