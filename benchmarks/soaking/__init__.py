"""A soak: everything users do to an engine, at random and at once, for a long time.

Threads and an event loop make requests of all kinds against one model: they stop them, time them out, cancel
them from elsewhere, forget them, raise in hooks and callbacks, fill the cache and the queue. Meanwhile and at
the end everything has to add up:

- every request ends within a generous time
- the table of cells is sound, and nothing is held once all is done
- every request that was added has finished or failed
- requests with a seed give the tokens that they give alone
- memory does not grow
"""

from soaking.plan import SoakPlan, SoakReport
from soaking.run import soak

__all__ = ["SoakPlan", "SoakReport", "soak"]
