"""Drain a worker: accept no connections, finish running requests, and close the connections without one.

A caller may send a request on an idle connection at the moment at which the worker closes it, and would not know whether
it was received. So the worker keeps its idle connections open for a notice period, in which every reply carries
`Connection: close`. Then it closes those that are still idle.
"""

from __future__ import annotations

import asyncio
from math import inf

from penstock.gateway.inbound.connection import CallerServer
from penstock.gateway.serving.app import App

NOTICE_S = 1.0
"""How long connections without a request are kept open when the worker drains."""
CHECK_S = 0.05
FLUSH_S = 0.5
"""How long a caller may take to read the end of its reply when the drain time is over."""


async def drain(app: App, callers: CallerServer, cut_off: asyncio.Event) -> None:
    """Wait until no connection is left. After `drain_s`, or when `cut_off` is set, end all requests; each writes its entry."""
    now = asyncio.get_running_loop().time
    app.common_headers.draining = True
    notice_ends, drain_ends, flush_ends = now() + NOTICE_S, now() + app.config.listen.drain_s, inf
    while True:
        if flush_ends == inf and (cut_off.is_set() or now() >= drain_ends):
            app.cut_off()
            notice_ends, flush_ends = now(), now() + FLUSH_S
        for connection in callers.callers:
            if connection.is_busy:
                continue
            if now() >= flush_ends:
                connection.abort()
            elif now() >= notice_ends:
                connection.force_close()
        if not callers.connections and not app.requests:
            return
        await asyncio.sleep(CHECK_S)
