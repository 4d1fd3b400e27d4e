"""Which backend serves a model here: what can run it, what fits, and what is fastest by measurement.

`route` has the types that `llm.route` shows, `candidates` says what can run a file and why not, `probe`
measures an open backend, `remembered` keeps the figures on disk, and `decide` puts them together.
"""

from stretto.routing.route import Option, Route

__all__ = ["Option", "Route"]
