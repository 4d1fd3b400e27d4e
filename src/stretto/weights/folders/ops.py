"""How tensors of a GGUF file are made of those of a Hugging Face folder."""

from __future__ import annotations

import numpy as np

from stretto.weights.made_tensor import Array, Op, Shape


def _same(shape: Shape) -> Shape:
    return shape


def adjacent(head_size: int, n_head: int | None = None) -> Op:
    """Rows reordered within each head: transformers rotates (i, i + d/2), llama.cpp's files (2i, 2i + 1)."""

    def apply(array: Array) -> Array:
        halves = array.reshape(-1, 2, head_size // 2, *array.shape[1:])
        return halves.swapaxes(1, 2).reshape(array.shape)

    def shape(given: Shape) -> Shape:
        if given[0] % head_size or head_size % 2:
            raise ValueError(f"{given[0]} rows are no whole heads of {head_size}")
        return given

    return Op(apply, shape, whole_rows=True)


def plus(number: float) -> Op:
    """A number added to all: norms that a model adds one to have it in the file."""
    return Op(lambda array: array + np.float32(number), _same, computes=True)


def times(factor: float | Array) -> Op:
    """All numbers, or all rows, multiplied."""
    factors = np.asarray(factor, np.float32)
    factors = factors[:, None] if factors.ndim else factors
    return Op(lambda array: array * factors, _same, computes=True)


NEGATIVE_EXP = Op(lambda array: -np.exp(array), _same, computes=True)


def rows(first: int, last: int, axis: int = 0) -> Op:
    """A range along one axis."""
    at = (slice(None),) * axis + (slice(first, last),)

    def shape(given: Shape) -> Shape:
        if not 0 <= first < last <= given[axis]:
            raise ValueError(f"{given[axis]} rows where {last} are needed")
        return (*given[:axis], last - first, *given[axis + 1 :])

    return Op(lambda array: array[at], shape, whole_rows=axis == 0)


def half(which: int, axis: int) -> Op:
    """The first or the second half along one axis, such as gate and up in one matrix."""

    def bounds(size: int) -> slice:
        return slice(which * (size // 2), (which + 1) * (size // 2))

    def shape(given: Shape) -> Shape:
        if given[axis] % 2:
            raise ValueError(f"{given[axis]} rows are no two halves")
        return (*given[:axis], given[axis] // 2, *given[axis + 1 :])

    return Op(
        lambda array: array[(slice(None),) * axis + (bounds(array.shape[axis]),)],
        shape,
        whole_rows=axis == 0,
    )


def every_other(which: int, axis: int) -> Op:
    """Every other entry along one axis, from the first or from the second."""

    def shape(given: Shape) -> Shape:
        if given[axis] % 2:
            raise ValueError(f"{given[axis]} entries do not come in pairs")
        return (*given[:axis], given[axis] // 2, *given[axis + 1 :])

    return Op(lambda array: array[(slice(None),) * axis + (slice(which, None, 2),)], shape)


def turned(one: int, other: int) -> Op:
    """Two axes exchanged."""

    def shape(given: Shape) -> Shape:
        axes = list(given)
        axes[one], axes[other] = axes[other], axes[one]
        return tuple(axes)

    return Op(lambda array: array.swapaxes(one, other), shape)


def shaped(*sizes: int) -> Op:
    """The same numbers in another shape; one size may be −1."""

    def shape(given: Shape) -> Shape:
        return np.broadcast_to(np.int8(0), given).reshape(sizes).shape if 0 not in given else given

    return Op(lambda array: array.reshape(sizes), shape)


def without_axis(axis: int) -> Op:
    """An axis of one left out."""

    def shape(given: Shape) -> Shape:
        if given[axis] != 1:
            raise ValueError(f"{given[axis]} where 1 is needed")
        return (*given[:axis], *given[axis + 1 :])

    return Op(lambda array: array.reshape(shape(array.shape)), shape)


COLUMN = Op(lambda array: array[:, None], lambda given: (*given, 1))


def _stacked(*given: Shape) -> Shape:
    if len(set(given)) != 1:
        raise ValueError(f"tensors of different shapes: {sorted(set(given))}")
    return (len(given), *given[0])


STACK = Op(lambda *arrays: np.stack(arrays), _stacked, whole_rows=True)


def _joined(*given: Shape) -> Shape:
    if len({shape[1:] for shape in given}) != 1:
        raise ValueError(f"tensors of different widths: {sorted(set(given))}")
    return (sum(shape[0] for shape in given), *given[0][1:])


JOIN = Op(lambda *arrays: np.concatenate(arrays), _joined, whole_rows=True)
