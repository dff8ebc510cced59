"""Ray Serve as a gateway: one replica, an async handler. Runs in Ray's own environment, started by `bench.targets`."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import httpx
from ray import serve
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=int(os.environ["BENCH_SLOTS"]),
    max_queued_requests=int(os.environ["BENCH_WAITING"]),
)
class Gateway:
    """Passes one inference on."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(base_url=os.environ["BENCH_BACKEND"], timeout=None)

    async def __call__(self, request: Request) -> Response:
        answer = await self._client.post(request.url.path, content=await request.body())
        return Response(answer.content, status_code=answer.status_code, media_type=answer.headers["Content-Type"])


def main() -> None:
    """Serves until it is told to end."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    timeout_s = os.environ.get("BENCH_TIMEOUT_S")
    options = {"host": "127.0.0.1", "port": int(os.environ["BENCH_PORT"])}
    if timeout_s is not None:
        options["request_timeout_s"] = float(timeout_s)
    serve.start(http_options=options)
    serve.run(Gateway.bind(), route_prefix="/")
    stop.wait()
    serve.shutdown()


if __name__ == "__main__":
    main()
