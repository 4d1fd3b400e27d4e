"""Makers of the generated pages of docs/reference, one page a file; scripts/doc_reference.py runs them."""
