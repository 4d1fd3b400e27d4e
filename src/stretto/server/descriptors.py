"""File descriptors: enough for all connections and some more, so that a full server answers 429.

Without a descriptor a connection cannot even be accepted: its client sees a timeout or a reset.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from stretto.server.settings import RequestLimits

log = logging.getLogger("stretto.server")

SPARE_CONNECTIONS = 64  # over the limit, to tell clients so: as many with a request, as many without
RESERVED_DESCRIPTORS = 256  # of those for connections above the limit, and for models, images, libraries
MIN_CONNECTIONS = 16


def with_descriptors(limits: RequestLimits) -> RequestLimits:
    """Raise the process's limit of descriptors as needed; if that fails, allow fewer connections."""
    try:
        import resource  # not on Windows
    except ImportError:
        return limits
    wanted = limits.connections + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = soft
    if most >= wanted:
        return limits
    n = max(MIN_CONNECTIONS, most - RESERVED_DESCRIPTORS)
    log.warning("the process may open %d files only: at most %d connections are served", most, n)
    return replace(limits, connections=min(n, limits.connections))
