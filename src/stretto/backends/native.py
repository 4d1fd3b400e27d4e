"""The native backend: the decoder in csrc/, driven with one flat batch a step.

Weights are packed on loading into the layout the kernels want, a piece at a time, without losing a bit; K and
V are stored as half floats or in 8 bits. With `repack=False` kernels read the rows of the file where they are
mapped: a little slower, the same bits, for files larger than memory. Products take activations of 8 bits,
or of 16 with `precision="high"`. Within one kernel set and one precision a sequence's logits are the same
bits whatever else is in the batch, in however many chunks and with however many threads they are computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto import _native, kernels
from stretto.backends.base import Batch, Capabilities, Decoding, FusedRun
from stretto.errors import InvalidRequest, ModelError
from stretto.models.spec import ModelSpec
from stretto.sampling.sampler import WRONG, bias_arrays, history
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF, Tensor
from stretto.weights.placement import Placement

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]

PANEL_ROWS = 16  # that are packed together
PIECE_BYTES = 8 << 20  # of a matrix that are packed at a time


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
        placement: Placement | None = None,
    ) -> None:
        self.spec = spec
        self.n_cells = n_cells
        self.precision = precision
        self.placement = placement  # why weights are packed or not, where that was chosen
        repack = repack if placement is None else placement.repack
        self._decoder: _native.Decoder | None = _native.Decoder(
            _plain(spec), n_cells, kv, threads, kernels.chosen(), precision
        )
        self.cell_bytes = self._decoder.cell_bytes
        kind = f"native {kv}" if precision == "standard" else f"native {kv}, {precision} precision"
        self.cell_layout = f"{kind}, {spec.n_layer} layers, {spec.n_kv_head} heads of {spec.head_size}"
        file.read_ahead(repack)  # vectors stand between matrices, which are not to be read yet
        for name, shape in spec.tensors().items():
            tensor = file.tensors[name]
            if len(shape) == 1:
                self._decoder.set_vector(name, np.ascontiguousarray(tensor.dequantize()))
                file.forget(tensor)
            elif tensor.format not in PACKABLE:
                raise ModelError(
                    f"{tensor.format.name} is not supported; backend='reference' may read it",
                    path=file.path,
                    field=f"tensor {name!r}",
                )
            elif repack:
                self._pack(self._decoder, file, tensor)
            else:
                data = tensor.data.reshape(-1)
                rows, columns = tensor.shape
                self._decoder.set_unpacked(_plain_name(tensor), tensor.format.value, rows, columns, data)
        file.read_ahead(True)

    @staticmethod
    def _pack(decoder: _native.Decoder, file: GGUF, tensor: Tensor) -> None:
        """Pack a matrix piece by piece, and free each piece's pages: the file is never in memory twice."""
        rows, columns = tensor.shape
        step = max(PANEL_ROWS, PIECE_BYTES // tensor.data.shape[1] // PANEL_ROWS * PANEL_ROWS)
        for first in range(0, rows, step):
            piece = tensor.data[first : first + step]
            decoder.pack_rows(
                _plain_name(tensor), tensor.format.value, rows, columns, piece.reshape(-1), len(piece)
            )
            file.forget(tensor, end=(first + len(piece)) * tensor.data.shape[1])

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
        if isinstance(batch, Decoding):
            return (self._decoder or self._open).decode(
                batch.ids, batch.places, batch.taken, batch.stores, batch.counts, batch.table
            )
        return self._run(batch, hidden=False)

    def hidden(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_embd]."""
        return self._run(batch, hidden=True)

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """Generate several tokens of one sequence in native code."""
        biased, bias = bias_arrays(run.params, self.spec.n_vocab)
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

    def close(self) -> None:
        """Free weights, cache and threads."""
        self._decoder = None

    @property
    def _open(self) -> _native.Decoder:
        if self._decoder is None:
            raise InvalidRequest("the model is closed; load it again")
        return self._decoder

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


PACKABLE = frozenset(Format(code) for code in _native.dequantizable)


def _plain_name(tensor: Tensor) -> str:
    return tensor.name.removesuffix(".weight")


def _plain(spec: ModelSpec) -> dict[str, Any]:
    """The spec for the native code: each distinct rope once."""
    ropes = list(dict.fromkeys(layer.rope for layer in spec.layers))
    return {
        "n_vocab": spec.n_vocab,
        "n_embd": spec.n_embd,
        "n_ff": spec.n_ff,
        "n_head": spec.n_head,
        "n_kv_head": spec.n_kv_head,
        "head_size": spec.head_size,
        "norm_eps": spec.norm_eps,
        "attention_scale": spec.attention_scale,
        "embedding_scale": spec.embedding_scale,
        "attention_cap": spec.attention_cap,
        "logit_cap": spec.logit_cap,
        "activation": spec.activation,
        "qkv_bias": spec.qkv_bias,
        "qk_norm": spec.qk_norm,
        "post_norm": spec.post_norm,
        "tied": spec.tied,
        "ropes": [
            {"frequencies": list(r.frequencies), "pairs": r.pairs, "magnitude": r.magnitude} for r in ropes
        ],
        "layers": [(ropes.index(layer.rope), layer.window or 0) for layer in spec.layers],
    }
