"""Models on GPUs: weights and cells on the device, kernels in Triton, products in one order of sums."""
