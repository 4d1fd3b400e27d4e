"""The form of ONNX Runtime's MatMulNBits that `export/` writes and `backends/onnx/` packs."""

BLOCK = 32  # numbers that share a scale
ACCURACY_LEVEL = 4  # activations in 8 bits, as the kernels are fast for
