"""Everything that a caller can set, written once: name, type, default, meaning, range, and where it applies.

option.py         `Option`, one of them         generating.py   those of generate, stream, chat and parallel
loading.py        those of `stretto.load`       serving.py      those of servers
keywords.py       all of them as type checkers read them
names.py          errors about names that other libraries have for them, by `Option.aka`
documenting.py    the tables as docstrings and signatures

Made from these tables: checks (`Option.check`), options of commands (`cli.options.flags`), settings of
servers and deployments, ranges and descriptions of requests' fields (`within`), help and docs/reference.
`scripts/option_types.py` writes keywords.py.
"""
