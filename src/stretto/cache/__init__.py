"""The cache: a table of cells, each with a position and the set of sequences it belongs to."""

from stretto.cache.cells import Cells

__all__ = ["Cells"]
