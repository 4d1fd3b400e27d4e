"""Triton's interpreter with any NumPy: tests run our kernels in it with TRITON_INTERPRET=1."""

from stretto.backends.torch.device import is_interpreting


def pytest_configure():
    if is_interpreting():
        _read_scalars_by_item()


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
