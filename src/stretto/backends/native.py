"""The native backend: the decoder in csrc/, driven with one flat batch a step.

Weights are packed on loading into the layout the kernels want, a piece at a time, without losing a bit; K
and V are stored as half floats or in 8 bits. With `repack=False` kernels read the rows of the file where
they are mapped: a little slower, the same bits, for files larger than memory. With `repack="shared"` they
are packed into a file that all processes map (weights/packed_file.py). Products take activations of 8 bits,
or of 16 with `precision="high"`. Within one kernel set and one precision a sequence's logits are the same
bits whatever else is in the batch, in however many chunks and with however many threads they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto import _native, kernels
from stretto.backends.adapters import changes_of, scales_of
from stretto.backends.base import Batch, Capabilities, Decoding, FusedRun, LoRA
from stretto.backends.matrices import Matrices, Rows
from stretto.backends.shared_weights import shared_matrices
from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.models.parts import Rope
from stretto.models.spec import ModelSpec
from stretto.sampling.sampler import WRONG, bias_arrays, history
from stretto.weights.adapters import Pair
from stretto.weights.formats import Format, quantize
from stretto.weights.gguf import GGUF
from stretto.weights.packed_file import PackedMatrix
from stretto.weights.placement import Placement

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]

PANEL_ROWS = 16  # that are packed together
PIECE_BYTES = 8 << 20  # of a matrix that are packed at a time


class Collected(NamedTuple):
    """The inputs of a matrix: float64[columns] sums of their squares, and how many there were."""

    name: str
    rows: int  # of the matrix
    sums: NDArray[np.float64]
    times: int


class NativeBackend:
    """Runs a model on the CPU."""

    name = "native"
    capabilities = Capabilities(attention=True, fused=True)

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
        _check(spec)
        self.spec = spec
        self.n_cells = n_cells
        self.precision = precision
        self.placement = placement  # why weights are packed or not, where that was chosen
        repack = repack if placement is None else placement.repack
        self._decoder: _native.Decoder | None = _native.Decoder(
            plain_spec(spec), n_cells, kv, threads, kernels.chosen(), precision, n_slots
        )
        self.n_slots, self.slot_bytes = self._decoder.n_slots, self._decoder.slot_bytes
        self.slot_layout = f"native f32, {spec.state_layout}"
        self._adapters: dict[str, int] = {}  # their numbers in the decoder
        self._quantized: set[str] = set()  # matrices that are multiplied with activations of 8 bits
        self.cell_bytes = self._decoder.cell_bytes
        kind = f"native {kv}" if precision == "standard" else f"native {kv}, {precision} precision"
        self.cell_layout = f"{kind}, {spec.kv_layout}"
        matrices, tensors = Matrices(file, spec), self._decoder.tensors()
        # Of an encoder's embeddings too only rows are read: it has no logits.
        looked_up = LOOKED_UP if spec.causal else LOOKED_UP | {"token_embd"}
        file.read_ahead(repack)  # vectors stand between matrices, which are not to be read yet
        for name, rows, columns in tensors:
            if not columns:
                tensor, numbers = matrices.vector(name, rows)
                self._decoder.set_vector(name, numbers)
                file.forget(tensor)
        file.read_ahead(True)
        wanted = [(name, rows, columns) for name, rows, columns in tensors if columns]
        packed = [one for one in wanted if repack and one[0] not in looked_up]
        mapped: dict[str, PackedMatrix] = {}
        if placement is not None and placement.shared:
            mapped = shared_matrices(file, lambda: self._packed_apart(file, matrices, packed))
        for name, rows, columns in wanted:
            if name in mapped:
                self._map_matrix(name, mapped[name])
            else:
                self._set_matrix(
                    self._decoder,
                    file,
                    matrices.rows(name, rows),
                    name,
                    columns,
                    repack and name not in looked_up,
                )

    def _packed_apart(
        self, file: GGUF, matrices: Matrices, wanted: Sequence[tuple[str, int, int]]
    ) -> Iterator[tuple[str, PackedMatrix]]:
        """Matrices as they are packed, in memory that is freed once they have been written."""
        decoder = _native.Decoder(plain_spec(self.spec), 1, "f16", self.threads, kernels.chosen())
        for name, rows, columns in wanted:
            found = matrices.rows(name, rows)
            self._set_matrix(decoder, file, found, name, columns, repack=True)
            yield name, PackedMatrix(found.format.value, rows, columns, decoder.packed(name))

    def _map_matrix(self, name: str, matrix: PackedMatrix) -> None:
        """A matrix that stays where it is mapped."""
        if Format(matrix.code) not in FLOATS and self.precision == "standard":
            self._quantized.add(name)
        self._open.set_packed(name, matrix.code, matrix.rows, matrix.columns, matrix.data)

    def _set_matrix(
        self, decoder: _native.Decoder, file: GGUF, rows: Rows, name: str, columns: int, repack: bool
    ) -> None:
        """Rows of the file, as a matrix of a decoder.

        They are packed piece by piece, and each piece's pages freed: the file is never in memory twice.
        """
        if rows.tensor.format not in PACKABLE:
            raise ModelError(
                f"weights in {rows.tensor.format.name} are read by no backend; make the file again from the "
                "original model, in another format (stretto quantize)",
                path=file.path,
                field=f"tensor {rows.tensor.name!r}",
            )
        if rows.format not in FLOATS and self.precision == "standard":
            self._quantized.add(name)
        n, nbytes = rows.data.shape
        code = rows.format.value
        if not repack:
            decoder.set_unpacked(name, code, n, columns, rows.data.reshape(-1))
            return
        step = max(PANEL_ROWS, PIECE_BYTES // nbytes // PANEL_ROWS * PANEL_ROWS)
        for at in range(0, n, step):
            piece = rows.data[at : at + step]
            decoder.pack_rows(name, code, n, columns, piece.reshape(-1), len(piece))
            if not rows.is_copy:
                file.forget(rows.tensor, end=(rows.first + at + len(piece)) * nbytes)

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
        return self._decoder.active_threads if self._decoder else 0

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab]."""
        if isinstance(batch, Decoding) and batch.rotated is None:
            return (self._decoder or self._open).decode(
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

    def load_adapter(self, name: str, lora: LoRA) -> None:
        """Pack an adapter's matrices.

        Where the matrix that they change is quantised they become bytes (Q8_0), unless precision is high:
        far exacter than that matrix, and multiplied with the same activations. Elsewhere no bit is lost.
        """
        number = max(self._adapters.values(), default=-1) + 1
        try:
            for tensor, pair in changes_of(self.spec, lora.pairs).items():
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

    def activations(self, batch: Batch, layers: list[int]) -> Floats:
        """float32[layers, n, n_embd]: the residual stream of all rows at the end of layers."""
        states = np.empty((len(layers), len(batch), self.spec.n_embd), np.float32)
        self._run(batch, True, layers, states.reshape(-1))
        return states

    def unload_adapter(self, name: str) -> None:
        """Free an adapter."""
        self._open.remove_adapter(self._adapters.pop(name))

    def _scales(self, batch: Batch) -> list[tuple[int, Floats]]:
        """The adapters of a batch and their scale for each row."""
        mixes = batch.mixes
        if mixes is None:
            return []
        return [(self._adapters[name], scales) for name, scales in scales_of(mixes).items()]

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

    def close(self) -> None:
        """Free weights, cache and threads."""
        self._decoder = None

    @property
    def _open(self) -> _native.Decoder:
        if self._decoder is None:
            raise InvalidRequest("the model is closed; load it again")
        return self._decoder

    def _run(
        self, batch: Batch, hidden: bool, layers: Sequence[int] = (), states: Floats | None = None
    ) -> Floats:
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
            list(layers),
            states,
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


# Tensors of which only rows are read, one for each token: they stay in the file.
LOOKED_UP = frozenset({"per_layer_token_embd", "position_embd"})
FLOATS = frozenset({Format.F32, Format.F16, Format.BF16})
PACKABLE = frozenset(Format(code) for code in _native.dequantizable)


def as_bytes(pair: Pair) -> tuple[tuple[int, Bytes], tuple[int, Bytes]] | None:
    """Both matrices of a change in Q8_0, the rank made up to whole blocks; None if columns are no blocks."""
    block = Format.Q8_0.block
    if pair.a.shape[1] % block:
        return None
    b = np.pad(pair.b, ((0, 0), (0, -pair.rank % block)))
    a_bytes, b_bytes = (quantize(one, Format.Q8_0).reshape(-1) for one in (pair.a, b))
    return (Format.Q8_0.value, a_bytes), (Format.Q8_0.value, b_bytes)


def narrowest(numbers: Floats) -> tuple[int, Bytes]:
    """Numbers in the smallest format that has all of them exactly: its code, and their bytes."""
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    words = numbers.view(np.uint32)
    if np.array_equal(halves.astype(np.float32), numbers):
        return Format.F16.value, halves.reshape(-1).view(np.uint8)
    if not (words & 0xFFFF).any():
        return Format.BF16.value, (words >> 16).astype(np.uint16).reshape(-1).view(np.uint8)
    return Format.F32.value, np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)


def _check(spec: ModelSpec) -> None:
    """Refuse what the native code cannot run."""
    try:
        _native.check_spec(plain_spec(spec))
    except ValueError as error:
        raise Unsupported(
            f"the native backend cannot run this model: {error}; backend='reference' may"
        ) from error


def plain_spec(spec: ModelSpec) -> dict[str, Any]:
    """The spec for the native code: dictionaries, with each distinct rope once.

    All fields are in it, so that the native code can refuse those it does not know.
    """
    ropes: list[Rope] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Rope):
            if value not in ropes:
                ropes.append(value)
            return ropes.index(value)
        if is_dataclass(value):
            named = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
            return {"part": type(value).__name__} | named
        return [plain(each) for each in value] if isinstance(value, tuple) else value

    found: dict[str, Any] = plain(spec)
    found["ropes"] = [
        {field.name: getattr(rope, field.name) for field in fields(rope) if field.name != "by_length"}
        for rope in ropes  # whose frequencies have been chosen by length
    ]
    return found
