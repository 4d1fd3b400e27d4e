"""What `benchmarks/serve.py` is made of: a small HTTP client, servers as processes, and the soak."""
