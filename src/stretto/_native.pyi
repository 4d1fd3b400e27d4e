"""Types of the native core; the code is in csrc/."""

import numpy as np
from numpy.typing import NDArray

dequantizable: tuple[int, ...]
quantizable: tuple[int, ...]

def dequantize(code: int, data: NDArray[np.uint8]) -> NDArray[np.float32]: ...
def quantize(code: int, values: NDArray[np.float32]) -> NDArray[np.uint8]: ...
