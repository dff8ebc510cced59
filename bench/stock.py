"""The stock path, kept as a baseline: a Quart-Trio handler and one shared httpx pool, under stock hypercorn.

This is what one would write first, and what `api/` was before it was measured:
`BENCH_BACKEND=http://127.0.0.1:8000 hypercorn -k trio bench.stock:app`.
"""

from __future__ import annotations

import os

import httpx
from quart import Response, request
from quart_trio import QuartTrio

app = QuartTrio(__name__)
client = httpx.AsyncClient(
    base_url=os.environ.get("BENCH_BACKEND", "http://127.0.0.1:8000"),
    limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    timeout=None,
)


@app.post("/v2/models/<model>/infer")
async def infer(model: str) -> Response:
    """Passes one inference on."""
    answer = await client.post(
        f"/v2/models/{model}/infer",
        content=await request.get_data(),
        headers={"Content-Type": request.headers.get("Content-Type", "application/json")},
    )
    return Response(answer.content, status=answer.status_code, content_type=answer.headers["Content-Type"])


@app.get("/healthz")
async def health() -> str:
    """Alive."""
    return "ok"
