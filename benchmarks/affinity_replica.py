"""A replica for `benchmarks/affinity.py`: the server's application, and the report that routers need."""

import asyncio
import os

from ray import serve

from stretto.deploy.prefixes import report
from stretto.server.app import create_app
from stretto.server.settings import ModelEntry, Settings


class Replica:
    def __init__(self, model, cells):
        self.model, self.cells = model, cells
        self.name = serve.get_replica_context().replica_id.unique_id
        self.state = None

    async def __serve_build_asgi_app__(self):
        settings = Settings(
            (ModelEntry.parse(self.model),), threads=1, cells=self.cells, memory=8 << 30, port=0
        )
        guard = create_app(settings)
        self.state = guard.state
        lease = await guard.state.registry.lease(next(iter(guard.state.registry.models)))
        lease.release()
        header = (b"x-stretto-replica", f"{self.name}:{os.getpid()}".encode())

        async def named(scope, receive, send):
            async def passed(message):
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], header]}
                await send(message)

            await guard(scope, receive, passed)

        return named

    async def record_routing_stats(self):
        return {} if self.state is None else await asyncio.to_thread(report, self.state)
