"""Figures of the documents: inline ones and tables from benchmarks/raw, others checked against RESULTS.md."""
