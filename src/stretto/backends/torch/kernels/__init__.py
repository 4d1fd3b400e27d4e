"""Triton kernels. They are imported only where they can run: on CUDA, or in Triton's interpreter."""
