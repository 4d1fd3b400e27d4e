"""What benchmarks/gpu.py measures, and what it is measured beside."""
