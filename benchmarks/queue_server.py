"""An asyncio server with exponential service times: it processes some requests at a time, and the others wait.

python -m benchmarks.queue_server PORT_FILE SERVICE_FILE --slots 8 --service-ms 10 --seed 1

It answers chat completions with one chunk when the service ends. A line of the file has the service time of a request, and how
long before it its connection was idle, in seconds, so that a simulation can be fed with them.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from pathlib import Path
from random import Random

_BODY = (
    b'{"id":"1","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
_REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


async def _serve(options: argparse.Namespace) -> None:
    random, slots = Random(options.seed), asyncio.Semaphore(options.slots)
    with open(options.service_file, "w", buffering=1) as log:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            idle_since = math.nan
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    fields = [line.partition(b":") for line in head.lower().split(b"\r\n")]
                    length = next((int(value) for name, _, value in fields if name == b"content-length"), 0)
                    await reader.readexactly(length)
                    pause = time.perf_counter() - idle_since
                    async with slots:
                        began = time.perf_counter()
                        await asyncio.sleep(random.expovariate(1000 / options.service_ms))
                        log.write(f"{time.perf_counter() - began:.6f} {pause:.6f}\n")
                    writer.write(_REPLY)
                    idle_since = time.perf_counter()
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
        Path(options.port_file).write_text(str(server.sockets[0].getsockname()[1]))
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("port_file")
    parser.add_argument("service_file")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--service-ms", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
