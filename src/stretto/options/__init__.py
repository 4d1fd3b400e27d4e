"""Every option by name, with its type, default and meaning, written once.

option.py         `Option`, one of them         generating.py   those of generate, stream and chat
loading.py        those of `stretto.load`       parallel.py     those of `llm.parallel`
other_names.py    how other libraries call them, for errors that name ours
documenting.py    the tables as docstrings, signatures and pages of documentation

Docstrings, docs/reference/options.md and the descriptions in the server's OpenAPI document are made from
these tables; a test compares them with the names and defaults that the code has.
"""
