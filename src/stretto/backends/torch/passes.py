"""One forward pass: what its rows are, on the device."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.backends.torch.cells import DeviceCells
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.matrix import Matrix, Prefetch, make_prefetch
from stretto.backends.torch.work import PassWork, Runs


@dataclass
class Pass:
    """The rows of a batch, and the memory that they read and write."""

    work: PassWork  # tokens, positions and cells of the rows, and the cells that each attends to
    memory: DeviceCells
    has_axes: bool = False  # rows are rotated by three positions each (M-RoPE)
    vectors: tuple[Tensor, Tensor] | None = None  # int64[m] rows, float32[m, n_vector] in place of embeddings
    types: Tensor | None = None  # int32[n]: token types
    probes: Tensor | None = None  # int32[m]: cells whose share of each row's attention is asked for
    watched: list[int] = field(default_factory=list)  # rows whose whole attention is asked for
    received: list[Tensor] = field(default_factory=list)  # of each layer that attends: float32[n, m]
    weights: list[list[Tensor]] = field(default_factory=list)  # of each such layer, of each watched row
    inputs: Tensor | None = None  # of each layer beside x: [n_layer, n, size]
    is_lean: bool = False  # kernels are launched early (lean.py)
    prefetches: bool = False  # kernels ask for the weights of the next product

    def prefetch(self, matrix: Matrix) -> Prefetch | None:
        """What a kernel that leaves the memory idle prefetches if this matrix is multiplied next."""
        return make_prefetch(matrix) if self.prefetches else None

    @property
    def tokens(self) -> Tensor:
        """int32[n]."""
        return self.work.tokens

    @property
    def positions(self) -> Tensor:
        """int32[n]."""
        return self.work.positions

    @property
    def cells(self) -> Tensor:
        """int32[n]: where K and V go."""
        return self.work.cells

    @property
    def is_row(self) -> Tensor:
        """bool[n]: False for rows of padding, which write to the scratch cell."""
        return self.work.cells < self.memory.n_cells

    @property
    def runs(self) -> Runs | None:
        """The rows of each state slot, for recurrent layers."""
        return self.work.runs

    @property
    def turns(self) -> Tensor:
        """int32[n] or int32[n, 3]: what each row is rotated by."""
        return self.work.rotated if self.has_axes else self.work.positions
