"""Triton's interpreter with any NumPy: tests run our kernels in it with TRITON_INTERPRET=1."""

import numpy as np

from stretto.backends.torch.device import is_interpreting


def pytest_configure():
    if is_interpreting():
        _read_scalars_by_item()
        _add_products_in_order()


def _read_scalars_by_item():
    """Let bounds of loops be read from tensors: the interpreter has scalars as arrays of one number.

    It converts them by int(array), which NumPy deprecated in 1.25 and refuses from 2.4 on.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _add_products_in_order():
    """Let each element of a product be a sum from first to last, as on a GPU.

    The interpreter multiplies tiles by NumPy, whose BLAS adds in an order that depends on the processor, and
    on some processors on the row's place in its tile.
    """
    from triton.runtime import interpreter

    multiply = interpreter.InterpreterBuilder.create_dot

    def create_dot(self, a, b, d, *others):
        if a.data.dtype.kind != "f" or b.data.dtype.kind != "f":
            return multiply(self, a, b, d, *others)
        left, right = (each.data.astype(d.data.dtype, copy=False) for each in (a, b))
        total = np.zeros_like(d.data)
        for k in range(left.shape[-1]):
            total += left[..., :, k, None] * right[..., k, None, :]
        return interpreter.TensorHandle(total + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot
